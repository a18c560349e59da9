//! Steps of plans as calls of the vendor's operators: products, attention and convolutions on A2 and A3.
//!
//! The vendor's operators are known to fail on operands with gaps. So operands are contiguous, or contiguous
//! once their last two dimensions are exchanged, where the operator is a product. Others are first copied
//! into scratch memory by a kernel of ours. What an operator does not state, such as a query that sees no
//! key, is left to our own kernels.

use super::launch::{Lowered, LoweredArg, Refusal};
use super::product::even;
use super::sequence::{Sequence, Tensor};
use crate::aclnn::{Attention, Call, Format, Function, Operand, Window};
use crate::chip::{Arch, Chip};
use crate::kernel::Source;
use headwater_core::DType;
use headwater_core::graph::Origin;
use headwater_core::ops::attention::attention as heads;
use headwater_core::ops::conv::convolution as conv;
use headwater_core::ops::conv::geometry::Conv;
use headwater_core::ops::{OpCx, linear};
use headwater_core::plan::{Step, Work};

/// A step as a call of the vendor's, with launches of ours before and after it.
#[derive(Clone, Debug)]
pub struct VendorStep {
    /// The call.
    pub call: Call,
    /// Address of each operand.
    pub args: Vec<LoweredArg>,
    /// Launches, with the scratch memory and the constants of all.
    pub lowered: Lowered,
    /// Launches before the call.
    pub before: usize,
}

/// The call that a step is; `None` for a step of a kind that no operator of the vendor's computes here.
pub fn vendor(chip: &Chip, step: &Step, origin: &Origin) -> Option<Result<VendorStep, Refusal>> {
    let Work::Kernel { op, attrs } = &step.work else { return None };
    let build: Build = match op.name {
        "matmul" => product,
        "linear" => affine,
        "attention" => attention,
        "attention_backward" => attention_backward,
        "convolution" => convolution,
        "convolution_input_grad" => convolution_input_grad,
        "convolution_weight_grad" => convolution_weight_grad,
        _ => return None,
    };
    if step.writes.iter().any(|view| view.layout.shape.contains(&0)) {
        return None;
    }
    if chip.arch != Arch::A2 {
        return Some(Err(Refusal::new("the vendor's operators are for A2 and A3")));
    }
    let types = step.types();
    let cx = types.cx(attrs);
    let source = Source { op: step.op.into(), origin: origin.clone() };
    let mut s = Sequence::new(chip, &source).of(&step.reads, &step.writes);
    Some(build(&mut s, &cx))
}

type Build = fn(&mut Sequence, &OpCx) -> Result<VendorStep, Refusal>;

/// A call on tensors, of which the last `written` are written; after the first `before` launches.
fn call(
    s: &mut Sequence,
    function: Function,
    (tensors, format): (&[Tensor], Format),
    written: usize,
    before: usize,
) -> VendorStep {
    let count = tensors.len();
    let operand = |(i, tensor): (usize, &Tensor)| Operand {
        dtype: tensor.dtype(),
        shape: tensor.shape().to_vec(),
        strides: strides(tensor),
        format: if tensor.shape().rank() > 1 { format } else { Format::Nd },
        written: i >= count - written,
    };
    let operands = tensors.iter().enumerate().map(operand).collect();
    let args = tensors.iter().map(|tensor| tensor.arg).collect();
    VendorStep { call: Call { function, operands }, args, lowered: std::mem::take(&mut s.lowered), before }
}

/// Strides of a tensor that is contiguous, or is so once its last two dimensions are exchanged. Those of
/// dimensions of size 1 are as if they were larger.
fn strides(tensor: &Tensor) -> Vec<usize> {
    let contiguous = |shape: &[usize]| {
        let mut strides = vec![1; shape.len()];
        for d in (1..shape.len()).rev() {
            strides[d - 1] = strides[d] * shape[d];
        }
        strides
    };
    if tensor.view.layout.is_contiguous() {
        return contiguous(tensor.shape());
    }
    let turned = tensor.transposed();
    let mut strides = contiguous(turned.shape());
    let rank = strides.len();
    strides.swap(rank - 2, rank - 1);
    strides
}

/// Refuses tensors of different types, and those that the operators do not take.
fn one_type(tensors: &[&Tensor]) -> Result<DType, Refusal> {
    let dtype = tensors[0].dtype();
    if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
        return Err(Refusal(format!("operands in {dtype}")));
    }
    match tensors.iter().all(|t| t.dtype() == dtype) {
        true => Ok(dtype),
        false => Err(Refusal::new("operands of different types")),
    }
}

/// True if the batch of matrices is contiguous, each row by row.
fn plain(tensor: &Tensor) -> bool {
    tensor.view.layout.is_contiguous()
}

/// A matrix or a batch of some as the operators take it. Dimensions of the batch that repeat have size 1.
fn matrices(s: &mut Sequence, tensor: &Tensor) -> Result<Tensor, Refusal> {
    let layout = &tensor.view.layout;
    let lead = layout.shape.rank() - 2;
    let once = |d: usize| if d < lead && layout.strides[d] == 0 { 1 } else { layout.shape[d] };
    let dims: Vec<_> = (0..lead + 2).map(|d| (once(d), Some((d, 1)))).collect();
    let tensor = tensor.walked(&dims)?;
    if plain(&tensor) || plain(&tensor.transposed()) { Ok(tensor) } else { s.copied(&tensor) }
}

fn product(s: &mut Sequence, cx: &OpCx) -> Result<VendorStep, Refusal> {
    let dims = linear::matmul::Dims::of(cx)?;
    let a = s.shaped(&s.input(0)?, &dims.left)?;
    let b = s.shaped(&s.input(1)?, &dims.right)?;
    let c = even(&s.output(0)?, &[&dims.batch[..], &[dims.m, dims.n]].concat())?;
    multiply(s, a, b, c)
}

/// `c = a · b`; where `c` is written in the order of its columns, `cᵀ = bᵀ · aᵀ`.
fn multiply(s: &mut Sequence, a: Tensor, b: Tensor, c: Tensor) -> Result<VendorStep, Refusal> {
    one_type(&[&a, &b, &c])?;
    if [&a, &b].iter().any(|t| t.shape().contains(&0)) {
        return Err(Refusal::new("sums of nothing"));
    }
    let (a, b, c) = match (plain(&c), plain(&c.transposed())) {
        (true, _) => (a, b, c),
        (_, true) => (b.transposed(), a.transposed(), c.transposed()),
        _ => return Err(Refusal::new("a result that is written with gaps")),
    };
    let rank = c.shape().rank();
    let batch = &c.shape()[..rank - 2];
    let mut sides = [matrices(s, &a)?, matrices(s, &b)?];
    let size = |t: &Tensor, d: usize| (d + t.shape().rank()).checked_sub(rank).map_or(1, |d| t.shape()[d]);
    if (0..batch.len()).any(|d| sides.iter().all(|t| size(t, d) == 1) && batch[d] != 1) {
        sides[0] = s.copied(&a)?;
    }
    let [a, b] = sides;
    let before = s.lowered.launches.len();
    Ok(call(s, Function::Matmul, (&[a, b, c], Format::Nd), 1, before))
}

fn affine(s: &mut Sequence, cx: &OpCx) -> Result<VendorStep, Refusal> {
    let dims = linear::linear::Dims::of(cx)?;
    let a = s.shaped(&s.input(0)?, &[dims.m, dims.k])?;
    let b = s.shaped(&s.input(1)?, &[dims.n, dims.k])?.transposed();
    let c = even(&s.output(0)?, &[dims.m, dims.n])?;
    let Some(bias) = s.optional(2) else { return multiply(s, a, b, c) };
    one_type(&[&a, &b, &bias, &c])?;
    if dims.k == 0 {
        return Err(Refusal::new("sums of nothing"));
    }
    if !plain(&c) {
        return Err(Refusal::new("a result that is written with gaps"));
    }
    let bias = if plain(&bias) { bias } else { s.copied(&bias)? };
    let (a, b) = (matrices(s, &a)?, matrices(s, &b)?);
    let before = s.lowered.launches.len();
    Ok(call(s, Function::Addmm, (&[bias, a, b, c], Format::Nd), 1, before))
}

/// Sides of the mask that stands for any causal one (`sparseMode` 2).
const CAUSAL: usize = 2048;

/// Most heads of the vendor's attention.
const HEADS: usize = 256;

/// Copies of a query's largest score, and of the sum.
const COPIES: usize = 8;

/// A contiguous tensor, copied if it is not.
fn dense(s: &mut Sequence, tensor: Tensor) -> Result<Tensor, Refusal> {
    if plain(&tensor) { Ok(tensor) } else { s.copied(&tensor) }
}

/// A contiguous tensor for a result: its own, or one in scratch memory that is copied there by [`settle`].
fn room(s: &mut Sequence, tensor: &Tensor) -> Result<Tensor, Refusal> {
    if plain(tensor) { Ok(tensor.clone()) } else { s.scratch(tensor.dtype(), tensor.shape()) }
}

fn settle(s: &mut Sequence, from: &Tensor, to: &Tensor) -> Result<(), Refusal> {
    if plain(to) { Ok(()) } else { s.copy(from, to) }
}

/// Options of attention and its mask, or the reason why the vendor's does not compute it.
fn seen(
    s: &mut Sequence,
    a: &heads::Attention,
    masked: bool,
) -> Result<(Attention, Option<Tensor>), Refusal> {
    let reasons = [
        (masked, "a mask: the vendor does not state what a query without a key gives"),
        (a.dropout > 0.0, "dropout: the vendor draws other random numbers"),
        (a.ev != a.e || a.key_heads != a.value_heads, "values of other sizes than keys"),
        (a.heads > HEADS, "more than 256 heads"),
        (a.s == 0, "no keys"),
    ];
    if let Some((_, why)) = reasons.iter().find(|(met, _)| *met) {
        return Err(Refusal::new(*why));
    }
    let mut options = Attention { scale: a.scale, heads: a.heads, masked: a.causal, sparse_mode: 0 };
    if !a.causal {
        return Ok((options, None));
    }
    let [rows, columns] = match a.l.saturating_mul(a.s) <= CAUSAL * CAUSAL {
        true => [a.l, a.s],
        false => {
            options.sparse_mode = 2;
            [CAUSAL, CAUSAL]
        }
    };
    let hidden: Vec<u8> = (0..rows).flat_map(|i| (0..columns).map(move |j| u8::from(j > i))).collect();
    let mask = s.constant(DType::Bool, &[rows, columns], &hidden);
    Ok((options, Some(mask)))
}

fn attention(s: &mut Sequence, cx: &OpCx) -> Result<VendorStep, Refusal> {
    let a = heads::Attention::of(cx, [0, 1, 2, 3, 4])?;
    let results: Vec<Tensor> = s.outputs();
    let [out, numbers @ ..] = &results[..] else { return Err(Refusal::new("attention without its results")) };
    let masked = s.optional(3).is_some();
    let (options, mask) = seen(s, &a, masked)?;
    let [q, k, v] = [0, 1, 2].map(|i| s.input(i).and_then(|t| dense(s, t)));
    let (q, k, v) = (q?, k?, v?);
    one_type(&[&q, &k, &v, out])?;
    let stated = [a.batch, a.heads, a.l, COPIES];
    let (largest, sum) = (s.scratch(DType::F32, &stated)?, s.scratch(DType::F32, &stated)?);
    let own = room(s, out)?;
    let before = s.lowered.launches.len();
    // One copy of each number.
    for (from, to) in [&largest, &sum].into_iter().zip(numbers) {
        s.copy(&from.walked(&[0, 1, 2].map(|d| (stated[d], Some((d, 1)))))?, to)?;
    }
    settle(s, &own, out)?;
    let tensors: Vec<Tensor> = [q, k, v].into_iter().chain(mask).chain([largest, sum, own]).collect();
    Ok(call(s, Function::Attention(options), (&tensors, Format::Nd), 3, before))
}

fn attention_backward(s: &mut Sequence, cx: &OpCx) -> Result<VendorStep, Refusal> {
    let a = heads::Attention::of_backward(cx)?;
    let masked = s.optional(7).is_some();
    let (options, mask) = seen(s, &a, masked)?;
    let results: Vec<Tensor> = s.outputs();
    let [dq, dk, dv] = &results[..] else { return Err(Refusal::new("a gradient of the mask")) };
    let [g, q, k, v, y] = [0, 1, 2, 3, 4].map(|i| s.input(i).and_then(|t| dense(s, t)));
    let (g, q, k, v, y) = (g?, q?, k?, v?, y?);
    one_type(&[&g, &q, &k, &v, &y, dq, dk, dv])?;
    let stated = [a.batch, a.heads, a.l, COPIES];
    let (largest, sum) = (s.scratch(DType::F32, &stated)?, s.scratch(DType::F32, &stated)?);
    let way = |d: usize| (stated[d], (d < 3).then_some((d, 1)));
    for (i, to) in [(5, &largest), (6, &sum)] {
        s.copy(&s.input(i)?.walked(&[0, 1, 2, 3].map(way))?, to)?;
    }
    let own = [dq, dk, dv].map(|t| room(s, t));
    let before = s.lowered.launches.len();
    let mut tensors: Vec<Tensor> = [q, k, v, g].into_iter().chain(mask).chain([largest, sum, y]).collect();
    for (own, to) in own.into_iter().zip([dq, dk, dv]) {
        let own = own?;
        settle(s, &own, to)?;
        tensors.push(own);
    }
    Ok(call(s, Function::AttentionGrad(options), (&tensors, Format::Nd), 3, before))
}

/// A convolution as the vendor's operators take it, and the number of its spatial dimensions.
fn window(c: &Conv, spatial: usize) -> Result<Window, Refusal> {
    let dims = 3 - spatial..3;
    let even = |d: usize| {
        let reach = (c.kernel[d] - 1) * c.dilation[d] + 1;
        let padded = c.input[d] + 2 * c.pad[d];
        padded >= reach && (padded - reach) / c.stride[d] + 1 == c.output[d]
    };
    if !dims.clone().all(even) {
        return Err(Refusal::new("other padding before than behind"));
    }
    let numbers = |all: &[usize; 3]| all[dims.clone()].iter().map(|&n| n as i64).collect();
    Ok(Window {
        stride: numbers(&c.stride),
        padding: numbers(&c.pad),
        dilation: numbers(&c.dilation),
        groups: c.groups as i64,
    })
}

/// A convolution's operands as `[batch, channels, …]`: of the input, the result and the weight.
struct Images {
    input: Vec<usize>,
    output: Vec<usize>,
    weight: Vec<usize>,
}

impl Images {
    fn of(c: &Conv, spatial: usize) -> Result<Images, Refusal> {
        let of = |lead: [usize; 2], plane: &[usize; 3]| [&lead[..], &plane[3 - spatial..]].concat();
        let images = Images {
            input: of([c.batch, c.groups * c.cin], &c.input),
            output: of([c.batch, c.groups * c.cout], &c.output),
            weight: of([c.groups * c.cout, c.cin], &c.kernel),
        };
        if [&images.input, &images.output, &images.weight].iter().any(|shape| shape.contains(&0)) {
            return Err(Refusal::new("sums of nothing"));
        }
        Ok(images)
    }
}

/// Input `i` of a step as images, contiguous.
fn images(s: &mut Sequence, i: usize, shape: &[usize]) -> Result<Tensor, Refusal> {
    let tensor = s.shaped(&s.input(i)?, shape)?;
    dense(s, tensor)
}

fn convolution(s: &mut Sequence, cx: &OpCx) -> Result<VendorStep, Refusal> {
    let c = conv::forward(cx)?;
    let spatial = cx.shape(1)?.rank() - 2;
    let (window, shapes) = (window(&c, spatial)?, Images::of(&c, spatial)?);
    let (x, w) = (images(s, 0, &shapes.input)?, images(s, 1, &shapes.weight)?);
    let y = even(&s.output(0)?, &shapes.output)?;
    let bias = s.optional(2);
    let bias = bias.map(|bias| dense(s, bias)).transpose()?;
    one_type(&[&x, &w, &y].into_iter().chain(&bias).collect::<Vec<_>>())?;
    let own = room(s, &y)?;
    let before = s.lowered.launches.len();
    settle(s, &own, &y)?;
    let function = Function::Convolution { window, bias: bias.is_some() };
    let tensors: Vec<Tensor> = [x, w].into_iter().chain(bias).chain([own]).collect();
    Ok(call(s, function, (&tensors, Format::Images), 1, before))
}

fn convolution_input_grad(s: &mut Sequence, cx: &OpCx) -> Result<VendorStep, Refusal> {
    let c = conv::input_grad(cx)?;
    let spatial = cx.shape(1)?.rank() - 2;
    let (window, shapes) = (window(&c, spatial)?, Images::of(&c, spatial)?);
    let (g, w) = (images(s, 0, &shapes.output)?, images(s, 1, &shapes.weight)?);
    let dx = even(&s.output(0)?, &shapes.input)?;
    one_type(&[&g, &w, &dx])?;
    let own = room(s, &dx)?;
    let before = s.lowered.launches.len();
    settle(s, &own, &dx)?;
    // The input's shape alone is used: the gradient's memory stands for it.
    let tensors = [g, own.clone(), w, own];
    let function = Function::ConvolutionGrad { window, of_weight: false };
    Ok(call(s, function, (&tensors, Format::Images), 1, before))
}

fn convolution_weight_grad(s: &mut Sequence, cx: &OpCx) -> Result<VendorStep, Refusal> {
    let c = conv::weight_grad(cx)?;
    let spatial = s.output(0)?.shape().rank() - 2;
    let (window, shapes) = (window(&c, spatial)?, Images::of(&c, spatial)?);
    let (g, x) = (images(s, 0, &shapes.output)?, images(s, 1, &shapes.input)?);
    let dw = even(&s.output(0)?, &shapes.weight)?;
    one_type(&[&g, &x, &dw])?;
    let own = room(s, &dw)?;
    let before = s.lowered.launches.len();
    settle(s, &own, &dw)?;
    // The weight's shape alone is used: the gradient's memory stands for it.
    let tensors = [g, x, own.clone(), own];
    let function = Function::ConvolutionGrad { window, of_weight: true };
    Ok(call(s, function, (&tensors, Format::Images), 1, before))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attention_of(l: usize, s: usize) -> heads::Attention {
        heads::Attention {
            batch: 1,
            heads: 2,
            key_heads: 1,
            value_heads: 1,
            l,
            s,
            e: 8,
            ev: 8,
            scale: 0.5,
            causal: true,
            dropout: 0.0,
            nan_without_keys: false,
        }
    }

    #[test]
    fn a_causal_mask_is_its_own_or_the_one_of_all() {
        let chip = Chip::from_name("910b1").unwrap();
        let source = Source { op: "attention".into(), origin: Origin::default() };
        for (l, s, mode, shape) in [(3, 5, 0, [3, 5]), (CAUSAL, CAUSAL + 1, 2, [CAUSAL, CAUSAL])] {
            let mut sequence = Sequence::new(chip, &source);
            let (options, mask) = seen(&mut sequence, &attention_of(l, s), false).unwrap();
            assert_eq!((options.sparse_mode, options.masked), (mode, true));
            assert_eq!(mask.unwrap().shape()[..], shape);
            let hidden = &sequence.lowered.constants;
            assert_eq!(hidden.len(), shape[0] * shape[1]);
            // Query 1 sees keys 0 and 1.
            assert_eq!(hidden[shape[1]..shape[1] + 3], [0, 0, 1]);
        }
    }

    #[test]
    fn attention_that_the_vendor_does_not_state_is_refused_with_the_reason() {
        let chip = Chip::from_name("910b1").unwrap();
        let source = Source { op: "attention".into(), origin: Origin::default() };
        let refused =
            |a: heads::Attention, masked| seen(&mut Sequence::new(chip, &source), &a, masked).unwrap_err().0;
        let plain = attention_of(4, 4);
        assert!(refused(plain, true).contains("a mask"));
        assert!(refused(heads::Attention { dropout: 0.5, ..plain }, false).contains("dropout"));
        assert!(refused(heads::Attention { ev: 4, ..plain }, false).contains("other sizes"));
        assert!(refused(heads::Attention { heads: 257, ..plain }, false).contains("256"));
    }
}
