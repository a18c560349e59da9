//! Convolutions and their gradients as products of gathered patches: im2col, in scratch memory.
//!
//! An input is laid out with its padding, patches are copied out of it as a strided view, and the cube
//! multiplies them. The gradient of the input is a convolution too: of the gradient, dilated by the stride,
//! with the flipped kernel. So every sum is one product in f32, ascending, rounded once. Samples are taken in
//! blocks, so that scratch memory stays bounded.

use super::launch::Refusal;
use super::product::even;
use super::sequence::{Sequence, Sum, Tensor};
use headwater_core::DType;
use headwater_core::expr::input as x;
use headwater_core::ops::OpCx;
use headwater_core::ops::conv::convolution::{forward, input_grad, weight_grad};
use headwater_core::ops::conv::geometry::Conv;
use headwater_core::ops::conv::unfold;
use headwater_core::row::{Access, RowProgram};

/// Most bytes of patches, but for a single sample's. Few in unit tests, which cut.
const PATCHES: usize = if cfg!(test) { 8 << 10 } else { 64 << 20 };

/// Most elements of a kernel that is flipped, with a copy for each.
const TURNED: usize = 64;

/// The launches of a `convolution` node.
///
/// # Errors
/// Types and shapes that the kernels do not take.
pub fn convolution(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let c = forward(cx)?;
    let y = s.output(0)?;
    if empty(&c, &y)? {
        return Ok(());
    }
    let (inputs, weights) = (images(&s.input(0)?, &c)?, kernels(&s.input(1)?, &c)?);
    let bias = s.optional(2);
    let y = results(&y, &c)?;
    let weights = s.shaped(&weights, &[c.groups, c.cout, c.cin * c.kernel_size()])?;
    let patches = Patches::forward(&c);
    for (first, len) in patches.samples(&c, inputs.dtype()) {
        let mark = s.mark();
        let b = patches.of(s, &inputs.part(0, first, len)?)?;
        let own = y.part(0, first, len)?;
        match &bias {
            None => s.product(&weights, &b, None, &own)?,
            Some(bias) => {
                let sums = s.scratch(DType::F32, own.shape())?;
                s.product(&weights, &b, None, &sums)?;
                let bias = even(bias, &[c.groups, c.cout])?;
                let shape: &[usize] = own.shape();
                let mut add = RowProgram::pointwise(
                    &[(DType::F32, shape), (bias.dtype(), shape)],
                    shape,
                    &[own.dtype()],
                    &[x(0) + x(1)],
                );
                add.reads[1].access = Access::dims(&[None, Some(0), Some(1), None]);
                s.rows(&add, &[&sums, &bias], &[&own])?;
            }
        }
        s.release(mark);
    }
    Ok(())
}

/// The launches of a `convolution_input_grad` node.
///
/// # Errors
/// Types and shapes that the kernels do not take; kernels of more than [`TURNED`] elements.
pub fn convolution_input_grad(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let c = input_grad(cx)?;
    let dx = s.output(0)?;
    if empty(&c, &dx)? {
        return Ok(());
    }
    let (g, weights) = (s.input(0)?, kernels(&s.input(1)?, &c)?);
    let g = s.shaped(&g, &[&[c.batch, c.groups, c.cout][..], &c.output].concat())?;
    let dx = even(&dx, &[c.batch, c.groups, c.cin, c.input_plane()])?;
    let taps = c.kernel_size();
    if taps > TURNED {
        return Err(Refusal(format!("an input gradient of a kernel of more than {TURNED} elements")));
    }
    // [groups, cin, cout, kernel], the kernel flipped.
    let order = [0, 2, 1, 3, 4, 5];
    let turned = s.scratch(weights.dtype(), &order.map(|d| weights.shape()[d]))?;
    let weights = weights.permuted(&order);
    for tap in 0..taps {
        let mut at = tap;
        let (mut from, mut to) = (weights.clone(), turned.clone());
        for d in (0..3).rev() {
            let k = c.kernel[d];
            (from, to) = (from.part(3 + d, at % k, 1)?, to.part(3 + d, k - 1 - at % k, 1)?);
            at /= k;
        }
        s.copy(&from, &to)?;
    }
    let turned = s.shaped(&turned, &[c.groups, c.cin, c.cout * taps])?;
    let patches = Patches::backward(&c)?;
    for (first, len) in patches.samples(&c, g.dtype()) {
        let mark = s.mark();
        let b = patches.of(s, &g.part(0, first, len)?)?;
        s.product(&turned, &b, None, &dx.part(0, first, len)?)?;
        s.release(mark);
    }
    Ok(())
}

/// The launches of a `convolution_weight_grad` node.
///
/// # Errors
/// Types and shapes that the kernels do not take.
pub fn convolution_weight_grad(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let c = weight_grad(cx)?;
    let dw = s.output(0)?;
    if dw.shape().contains(&0) {
        return Ok(());
    }
    if c.batch == 0 {
        s.fill(&dw, 0.0)?;
        return Ok(());
    }
    let (g, inputs) = (results(&s.input(0)?, &c)?, images(&s.input(1)?, &c)?);
    let dw = even(&dw, &[c.groups, c.cout, c.cin * c.kernel_size()])?;
    let patches = Patches { by_group: true, ..Patches::forward(&c) };
    let blocks: Vec<_> = patches.samples(&c, inputs.dtype()).collect();
    let mut sum = Sum::new(s, &dw, blocks.len())?;
    for (first, len) in blocks {
        let mark = s.mark();
        let b = patches.of(s, &inputs.part(0, first, len)?)?;
        let g = g.part(0, first, len)?.permuted(&[1, 2, 0, 3]);
        let g = s.shaped(&g, &[c.groups, c.cout, len * c.output_plane()])?;
        sum.add(s, &g, &b.transposed())?;
        s.release(mark);
    }
    Ok(())
}

/// The launches of an `im2col` node.
///
/// # Errors
/// Types and shapes that the kernels do not take.
pub fn im2col(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let (from, to) = (s.input(0)?, s.output(0)?);
    let c = unfold::patches(from.shape(), cx)?;
    if to.shape().contains(&0) {
        return Ok(());
    }
    let all = Patches::forward(&c).all(s, &images(&from, &c)?)?;
    s.copy(&all, &even(&to, all.shape())?)?;
    Ok(())
}

/// The launches of a `col2im` node: the columns of one tap after the other are added to the image, in f32.
///
/// # Errors
/// Types and shapes that the kernels do not take; kernels of more than [`TURNED`] elements.
pub fn col2im(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let (from, to) = (s.input(0)?, s.output(0)?);
    let c = unfold::patches(to.shape(), cx)?;
    if to.shape().contains(&0) {
        return Ok(());
    }
    if c.kernel_size() > TURNED {
        return Err(Refusal(format!("columns of a kernel of more than {TURNED} elements")));
    }
    let patches = Patches::forward(&c);
    let room = patches.room()?;
    let lead = [c.batch, c.groups, c.cin];
    // Size of the padded image, including elements that no patch reaches.
    let size = [0, 1, 2].map(|d| room[d].max(c.input[d] + c.pad[d]));
    let sums = s.scratch(DType::F32, &[&lead[..], &size].concat())?;
    s.fill(&sums, 0.0)?;
    let columns = even(&from, &[&lead[..], &c.kernel, &c.output].concat())?;
    for tap in 0..c.kernel_size() {
        let mut at = tap;
        let (mut own, mut places) = (columns.clone(), sums.clone());
        let mut dims = [0, 1, 2].map(|d| (sums.shape()[d], Some((d, 1)))).to_vec();
        let mut order = vec![];
        for d in (0..3).rev() {
            let k = at % c.kernel[d];
            at /= c.kernel[d];
            own = own.part(3 + d, k, 1)?;
            places = places.part(3 + d, k * c.dilation[d], size[d] - k * c.dilation[d])?;
            order.push((c.output[d], Some((3 + d, c.stride[d]))));
        }
        dims.extend(order.into_iter().rev());
        let places = places.walked(&dims)?;
        let own = own.walked(&[0, 1, 2, 6, 7, 8].map(|d| (own.shape()[d], Some((d, 1)))))?;
        let shape: &[usize] = places.shape();
        let inputs = [(DType::F32, shape), (from.dtype(), shape)];
        let add = RowProgram::pointwise(&inputs, shape, &[DType::F32], &[x(0) + x(1)]);
        s.rows(&add, &[&places, &own], &[&places])?;
    }
    let mut image = sums;
    for d in 0..3 {
        image = image.part(3 + d, c.pad[d], c.input[d])?;
    }
    s.copy(&image, &images(&to, &c)?)?;
    Ok(())
}

/// True if the result has no elements.
///
/// # Errors
/// Convolutions over no channels.
fn empty(c: &Conv, result: &Tensor) -> Result<bool, Refusal> {
    let none = result.shape().contains(&0);
    if !none && c.cin * c.cout * c.input_plane() == 0 {
        return Err(Refusal::new("a convolution over no elements"));
    }
    Ok(none)
}

/// `[batch, groups, cin, input…]`, also of an input without a batch.
fn images(t: &Tensor, c: &Conv) -> Result<Tensor, Refusal> {
    even(t, &[&[c.batch, c.groups, c.cin][..], &c.input].concat())
}

/// `[groups, cout, cin, kernel…]`
fn kernels(t: &Tensor, c: &Conv) -> Result<Tensor, Refusal> {
    even(t, &[&[c.groups, c.cout, c.cin][..], &c.kernel].concat())
}

/// `[batch, groups, cout, output]`
fn results(t: &Tensor, c: &Conv) -> Result<Tensor, Refusal> {
    even(t, &[c.batch, c.groups, c.cout, c.output_plane()])
}

/// Patches of images `[n, groups, channels, size…]`: input `i` is at `i · step + pad`, zeros elsewhere, and
/// output `o`, tap `k` reads position `o · stride + k · dilation`.
#[derive(Clone, Debug)]
struct Patches {
    groups: usize,
    channels: usize,
    size: [usize; 3],
    step: [usize; 3],
    pad: [isize; 3],
    kernel: [usize; 3],
    output: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
    /// True if patches of all samples are one matrix for each group, otherwise one for each sample and group.
    by_group: bool,
}

impl Patches {
    fn forward(c: &Conv) -> Patches {
        Patches {
            groups: c.groups,
            channels: c.cin,
            size: c.input,
            step: [1; 3],
            pad: c.pad.map(|p| p as isize),
            kernel: c.kernel,
            output: c.output,
            stride: c.stride,
            dilation: c.dilation,
            by_group: false,
        }
    }

    /// Patches for the gradient of the input: input `i` gets output `o` through `k` where
    /// `i = o · stride + k · dilation − pad`.
    fn backward(c: &Conv) -> Result<Patches, Refusal> {
        let pad = |d: usize| {
            let reach = isize::try_from((c.kernel[d] - 1).checked_mul(c.dilation[d])?).ok()?;
            reach.checked_sub(c.pad[d] as isize)
        };
        let pads = [pad(0), pad(1), pad(2)];
        let [Some(a), Some(b), Some(d)] = pads else { return Err(Refusal::new("padding beyond memory")) };
        Ok(Patches {
            groups: c.groups,
            channels: c.cout,
            size: c.output,
            step: c.stride,
            pad: [a, b, d],
            kernel: c.kernel,
            output: c.input,
            stride: [1; 3],
            dilation: c.dilation,
            by_group: false,
        })
    }

    /// Blocks of samples: the first, and how many.
    fn samples(&self, c: &Conv, dtype: DType) -> impl Iterator<Item = (usize, usize)> + use<> {
        let sizes = [self.groups, self.channels].into_iter().chain(self.kernel).chain(self.output);
        let each = sizes.fold(dtype.size(), usize::saturating_mul);
        let (all, most) = (c.batch, (PATCHES / each.max(1)).clamp(1, c.batch));
        (0..all).step_by(most).map(move |first| (first, most.min(all - first)))
    }

    /// Places along each dimension that patches reach.
    fn room(&self) -> Result<[usize; 3], Refusal> {
        let room = |d: usize| {
            let outputs = (self.output[d] - 1).checked_mul(self.stride[d])?;
            let taps = (self.kernel[d] - 1).checked_mul(self.dilation[d])?;
            outputs.checked_add(taps)?.checked_add(1)
        };
        let [Some(a), Some(b), Some(c)] = [room(0), room(1), room(2)] else {
            return Err(Refusal::new("padding beyond memory"));
        };
        Ok([a, b, c])
    }

    /// The images with their padding.
    fn padded(&self, s: &mut Sequence, images: &Tensor) -> Result<Tensor, Refusal> {
        let room = self.room()?;
        if self.step == [1; 3] && self.pad == [0; 3] && (0..3).all(|d| room[d] <= self.size[d]) {
            return Ok(images.clone());
        }
        let n = images.shape()[0];
        let padded = s.scratch(images.dtype(), &[&[n, self.groups, self.channels][..], &room].concat())?;
        s.fill(&padded, 0.0)?;
        let (mut from, mut to) = (images.clone(), padded.clone());
        let mut dims = [0, 1, 2].map(|d| (padded.shape()[d], Some((d, 1)))).to_vec();
        for (d, &room) in room.iter().enumerate() {
            // Inputs i with 0 ≤ i · step + pad < `room`.
            let (step, pad) = (self.step[d] as isize, self.pad[d]);
            let first = (-pad).max(0) as usize;
            let first = first.div_ceil(step as usize);
            let last = (room as isize - pad).max(0) as usize;
            let end = last.div_ceil(step as usize).min(self.size[d]);
            if first >= end {
                return Ok(padded);
            }
            from = from.part(3 + d, first, end - first)?;
            to = to.part(3 + d, (first as isize * step + pad) as usize, 1)?;
            dims.push((end - first, Some((3 + d, step as usize))));
        }
        s.copy(&from, &to.walked(&dims)?)?;
        Ok(padded)
    }

    /// Patches as `[n, groups, channels, kernel…, output…]`.
    fn all(&self, s: &mut Sequence, images: &Tensor) -> Result<Tensor, Refusal> {
        let padded = self.padded(s, images)?;
        let lead = [0, 1, 2].map(|d| (padded.shape()[d], Some((d, 1))));
        let taps = [0, 1, 2].map(|d| (self.kernel[d], Some((3 + d, self.dilation[d]))));
        let outputs = [0, 1, 2].map(|d| (self.output[d], Some((3 + d, self.stride[d]))));
        padded.walked(&[lead, taps, outputs].concat())
    }

    /// Patches as `[n, groups, channels · kernel, output]`, or `[groups, channels · kernel, n · output]`.
    fn of(&self, s: &mut Sequence, images: &Tensor) -> Result<Tensor, Refusal> {
        let n = images.shape()[0];
        let all = self.all(s, images)?;
        let [depth, places] =
            [self.channels * self.kernel.iter().product::<usize>(), self.output.iter().product()];
        // The cube takes rows of f32 along the sums alone, which run over channels and kernel, or over
        // places.
        let along = images.dtype() == DType::F32;
        match (self.by_group, along) {
            (true, _) => {
                let all = all.permuted(&[1, 2, 3, 4, 5, 0, 6, 7, 8]);
                s.shaped(&all, &[self.groups, depth, n * places])
            }
            (false, true) => {
                let all = all.permuted(&[0, 1, 6, 7, 8, 2, 3, 4, 5]);
                Ok(s.shaped(&all, &[n, self.groups, places, depth])?.transposed())
            }
            (false, false) => s.shaped(&all, &[n, self.groups, depth, places]),
        }
    }
}
