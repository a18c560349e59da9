//! Index arithmetic of convolutions, for every number of spatial dimensions. Shared by the type rules, the
//! reference and the devices' kernels.

use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::OpCx;
use crate::shape::Shape;

/// A convolution in canonical form: three spatial dimensions, leading ones of size 1 where the model has
/// fewer.
///
/// Input `[batch, groups · cin, input…]`, weight `[groups · cout, cin, kernel…]`, output `[batch, groups ·
/// cout, output…]`; output index `o` meets input index `o · stride + k · dilation − pad` through kernel index
/// `k`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conv {
    /// Samples; 1 for an input without a batch dimension.
    pub batch: usize,
    /// Groups of channels convolved separately.
    pub groups: usize,
    /// Input channels of one group.
    pub cin: usize,
    /// Output channels of one group.
    pub cout: usize,
    /// Spatial sizes of the input.
    pub input: [usize; 3],
    /// Spatial sizes of the kernel.
    pub kernel: [usize; 3],
    /// Spatial sizes of the output.
    pub output: [usize; 3],
    /// Steps between outputs.
    pub stride: [usize; 3],
    /// Steps between kernel elements.
    pub dilation: [usize; 3],
    /// Zeros before the first input; those after the last only show in `output`.
    pub pad: [usize; 3],
    /// Shape of the output as the model sees it.
    pub out_shape: Shape,
}

impl Conv {
    /// The convolution of `input` by `weight` with the node's `stride`, `padding`, `dilation` and `groups`.
    ///
    /// # Errors
    /// `Shape` or `Attribute` if they do not match.
    pub fn new(input: &Shape, weight: &Shape, cx: &OpCx) -> Result<Conv> {
        let spatial = spatial_rank(input, weight)?;
        let batched = input.rank() == spatial + 2;
        let groups = cx.opt_int("groups")?.unwrap_or(1);
        ensure!(groups > 0, Attribute, "`groups` must be positive, got {groups}");
        let groups = groups as usize;
        let channels = input[input.rank() - spatial - 1];
        ensure!(
            weight[1].checked_mul(groups) == Some(channels) && weight[0].is_multiple_of(groups),
            Shape,
            "input {input} and weight {weight} do not fit with {groups} groups"
        );
        let stride = numbers(cx, "stride", spatial, 1, 1)?;
        let dilation = numbers(cx, "dilation", spatial, 1, 1)?;
        let mut c = Conv {
            batch: if batched { input[0] } else { 1 },
            groups,
            cin: weight[1],
            cout: weight[0] / groups,
            input: canonical(&input[input.rank() - spatial..], 1),
            kernel: canonical(&weight[2..], 1),
            output: [1; 3],
            stride: canonical(&stride, 1),
            dilation: canonical(&dilation, 1),
            pad: [0; 3],
            out_shape: Shape::default(),
        };
        ensure!(!c.kernel.contains(&0), Shape, "the kernel of {weight} is empty");
        let (before, after) = c.padding(cx, spatial)?;
        c.pad = before;
        for d in 0..3 {
            let reach = c.reach(d)?;
            let padded = c.input[d].checked_add(before[d]).and_then(|n| n.checked_add(after[d]));
            let Some(padded) = padded else { return Err(crate::fail!(Size, "the padding is too large")) };
            ensure!(
                padded >= reach,
                Shape,
                "the kernel of {weight} reaches {reach} over {padded} padded inputs"
            );
            c.output[d] = (padded - reach) / c.stride[d] + 1;
        }
        let mut out = if batched { vec![c.batch] } else { vec![] };
        out.push(weight[0]);
        out.extend(&c.output[3 - spatial..]);
        c.out_shape = out.into();
        Ok(c)
    }

    /// Inputs that the kernel spans along `d`.
    fn reach(&self, d: usize) -> Result<usize> {
        (self.kernel[d] - 1)
            .checked_mul(self.dilation[d])
            .and_then(|n| n.checked_add(1))
            .ok_or_else(|| crate::fail!(Size, "the kernel spans more than memory can hold"))
    }

    /// Zeros before and after each dimension: the same number, or all numbers before and then all after.
    /// `same` puts the odd one after, as PyTorch does.
    fn padding(&self, cx: &OpCx, spatial: usize) -> Result<([usize; 3], [usize; 3])> {
        use crate::attr::Attr;
        match cx.attrs.get("padding") {
            Some(Attr::Str(s)) if s == "valid" => Ok(([0; 3], [0; 3])),
            Some(Attr::Str(s)) if s == "same" => {
                ensure!(
                    self.stride == [1; 3],
                    Attribute,
                    "padding \"same\" needs stride 1, got {:?}",
                    self.stride
                );
                let (mut before, mut after) = ([0; 3], [0; 3]);
                for d in 0..3 {
                    let total = self.reach(d)? - 1;
                    (before[d], after[d]) = (total / 2, total - total / 2);
                }
                Ok((before, after))
            }
            _ => {
                let sides = cx.opt_ints("padding")?.is_some_and(|p| spatial > 0 && p.len() == 2 * spatial);
                let pad = numbers(cx, "padding", if sides { 2 * spatial } else { spatial }, 0, 0)?;
                let (before, after) = pad.split_at(spatial);
                Ok((canonical(before, 0), canonical(if sides { after } else { before }, 0)))
            }
        }
    }

    /// True if padding and the gaps between taps are not much larger than the images. The former may then be
    /// held in memory.
    pub fn is_compact(&self) -> bool {
        (0..3).all(|d| {
            let outputs = self.output[d].saturating_sub(1).saturating_mul(self.stride[d]);
            let taps = (self.kernel[d] - 1).saturating_mul(self.dilation[d]);
            let images = self.input[d].saturating_add(self.output[d]);
            outputs.saturating_add(taps) <= images.saturating_mul(4).saturating_add(64)
        })
    }

    /// Elements of one input channel.
    pub fn input_plane(&self) -> usize {
        self.input.iter().product()
    }

    /// Elements of one output channel.
    pub fn output_plane(&self) -> usize {
        self.output.iter().product()
    }

    /// Elements of one kernel.
    pub fn kernel_size(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Multiplications and additions of one pass.
    pub fn flops(&self) -> f64 {
        let outputs = self.batch * self.groups * self.cout;
        2.0 * outputs as f64 * self.output_plane() as f64 * (self.cin * self.kernel_size()) as f64
    }

    /// Input index that output `o`, tap `k` reads along `d`, unless it is in the padding.
    pub fn meets(&self, d: usize, o: usize, k: usize) -> Option<usize> {
        let at = (o * self.stride[d] + k * self.dilation[d]).checked_sub(self.pad[d])?;
        (at < self.input[d]).then_some(at)
    }

    /// Calls `f(input index, weight index, output index)` for every product of the convolution: its
    /// definition.
    pub fn products(&self, mut f: impl FnMut(usize, usize, usize)) {
        if self.batch * self.groups * self.cin * self.cout == 0 {
            return;
        }
        let (ip, op, kp) = (self.input_plane(), self.output_plane(), self.kernel_size());
        let inside = |o: [usize; 3], k: [usize; 3]| {
            let at = [self.meets(0, o[0], k[0])?, self.meets(1, o[1], k[1])?, self.meets(2, o[2], k[2])?];
            Some((at[0] * self.input[1] + at[1]) * self.input[2] + at[2])
        };
        for (o, oi) in indices(self.output).zip(0..) {
            for (k, ki) in indices(self.kernel).zip(0..) {
                let Some(at) = inside(o, k) else { continue };
                for n in 0..self.batch {
                    for g in 0..self.groups {
                        for co in 0..self.cout {
                            let channel = g * self.cout + co;
                            for ci in 0..self.cin {
                                let x = ((n * self.groups + g) * self.cin + ci) * ip + at;
                                let w = (channel * self.cin + ci) * kp + ki;
                                f(x, w, (n * self.groups * self.cout + channel) * op + oi);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Number of spatial dimensions, by the weight; the input may lack the batch dimension.
pub fn spatial_rank(input: &Shape, weight: &Shape) -> Result<usize> {
    ensure!((3..=5).contains(&weight.rank()), Shape, "a weight has 3 to 5 dimensions, this one is {weight}");
    let spatial = weight.rank() - 2;
    let fits = input.rank() == spatial + 2 || input.rank() == spatial + 1;
    ensure!(fits, Shape, "input {input} does not fit weight {weight}");
    Ok(spatial)
}

/// The attribute `name` as one number for each of `n` dimensions: one given number stands for all, absent is
/// `default`.
pub fn numbers(cx: &OpCx, name: &str, n: usize, default: i64, least: i64) -> Result<Vec<usize>> {
    let given = cx.opt_ints(name)?.filter(|v| !v.is_empty()).unwrap_or(std::slice::from_ref(&default));
    ensure!(given.len() == n || given.len() == 1, Attribute, "`{name}` = {given:?} for {n} dimensions");
    // The limit keeps sums and products with sizes within 64 bits.
    let good = given.iter().all(|&v| (least..=i32::MAX as i64).contains(&v));
    ensure!(good, Attribute, "`{name}` = {given:?} must be at least {least} and less than 2^31");
    Ok((0..n).map(|d| given[if given.len() == 1 { 0 } else { d }] as usize).collect())
}

/// Up to three numbers as three, filled up in front.
fn canonical(values: &[usize], fill: usize) -> [usize; 3] {
    let mut out = [fill; 3];
    out[3 - values.len()..].copy_from_slice(values);
    out
}

/// All indices of a box in row-major order.
fn indices(size: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..size[0]).flat_map(move |a| (0..size[1]).flat_map(move |b| (0..size[2]).map(move |c| [a, b, c])))
}
