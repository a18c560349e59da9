//! Group normalisation: Wu and He 2018.

use super::{affine, moments, only, output_mask, stat_dtype, through_statistics};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::{Access, ReduceSpace, RowBuilder};
use crate::tensor::TensorType;

/// `(x − mean) / sqrt(var + eps) · weight + bias`, mean and biased variance over each of the groups of
/// channels (dimension 1) of each sample; `num_groups` groups (`group` in the native form). Outputs: the
/// result; mean and reciprocal standard deviation, `[samples, groups]`.
pub static GROUP_NORM: OpDef = OpDef {
    name: "group_norm",
    schemas: &[
        "group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05, bool cudnn_enabled=True) -> Tensor",
        "native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let (x, s) = (cx.ty(0)?, Groups::of(cx, 0)?);
        [1, 2].into_iter().try_for_each(|i| cx.expect_floats(i, &x.shape[1..2]))?;
        let stat = TensorType::new(stat_dtype(x.dtype)?, [x.shape[0], s.groups]);
        Ok(vec![x.clone(), stat.clone(), stat])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let also = through_statistics(cx, Some(1), 2)?;
        let (g, x, w) = (cx.grad(0)?, cx.x(0)?, cx.opt_x(1));
        let (mean, rstd) = (cx.y(1), cx.y(2));
        let attrs = Attrs::new().with("num_groups", cx.ty(mean).shape[1] as i64);
        if cx.needs(0) {
            let inputs = [Some(g), Some(x), Some(mean), Some(rstd), w];
            let mut dx = cx.apply(&GROUP_NORM_BACKWARD, &inputs, attrs.clone())?[0];
            if let Some(also) = also {
                dx = cx.add(dx, also)?;
            }
            cx.set(0, dx)?;
        }
        let mask = [cx.needs(1) as i64, cx.needs(2) as i64];
        if mask == [0, 0] {
            return Ok(());
        }
        let inputs = [Some(g), Some(x), Some(mean), Some(rstd)];
        let outs = cx.apply(&GROUP_NORM_BACKWARD_WEIGHT, &inputs, attrs.with("output_mask", mask))?;
        let wanted: Vec<usize> = [1, 2].into_iter().filter(|&i| cx.needs(i)).collect();
        wanted.into_iter().zip(outs).try_for_each(|(i, g)| cx.set(i, g))
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Rows(|cx, out| {
        let s = Groups::of(cx, 0)?;
        let mut b = s.builder();
        let v = b.read(cx.dtype(0)?, s.full.clone());
        let [weight, bias] = [1, 2].map(|i| cx.opt(i).map(|t| b.read(t.dtype, s.channel.clone())));
        let [mean, var, centred] = moments(&mut b, v, s.count());
        let rstd = b.expr(&(input(0) + cx.float("eps")?).rsqrt(), &[var]);
        let y = b.expr(&(input(0) * input(1)), &[centred, rstd]);
        let y = affine(&mut b, y, weight, bias);
        b.store(out[0].dtype, s.full.clone(), y);
        b.store(out[1].dtype, s.stats.clone(), mean);
        b.store(out[2].dtype, s.stats.clone(), rstd);
        Ok(b.finish())
    }),
    cases: || {
        let attrs = |c: Case, groups: i64| c.attr("num_groups", groups).attr("eps", 1e-5);
        vec![
            attrs(Case::new("two groups").f(&[2, 4, 3]).f(&[4]).f(&[4]), 2),
            attrs(Case::new("one group").f(&[2, 3, 2, 2]).f(&[3]).none(), 1),
            attrs(Case::new("no space").f(&[2, 6]).none().f(&[6]), 2),
            Case::new("native")
                .f(&[2, 4, 3])
                .f(&[4])
                .f(&[4])
                .attr("N", 2)
                .attr("C", 4)
                .attr("HxW", 3)
                .attr("group", 2)
                .attr("eps", 1e-5),
        ]
    },
};

/// Gradient of [`GROUP_NORM`] by its input: `(grad_out, input, mean, rstd, weight?)`. With h the normalised
/// input and n elements a group: `rstd · (g·w − Σ g·w / n − h · Σ g·w·h / n)`.
pub static GROUP_NORM_BACKWARD: OpDef = OpDef {
    name: "native_group_norm_backward",
    schemas: &[],
    infer: |cx| {
        gradient_inputs(cx)?;
        cx.expect_floats(4, &cx.shape(1)?[1..2])?;
        Ok(vec![cx.ty(1)?.clone()])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerInput(10),
    body: Body::Rows(|cx, out| {
        let s = Groups::of(cx, 1)?;
        let n = s.count() as f64;
        let mut b = s.builder();
        let g = b.read(cx.dtype(0)?, s.full.clone());
        let v = b.read(cx.dtype(1)?, s.full.clone());
        let [mean, rstd] = [b.read(cx.dtype(2)?, s.stats.clone()), b.read(cx.dtype(3)?, s.stats.clone())];
        let weight = cx.opt(4).map(|t| b.read(t.dtype, s.channel.clone()));
        let hat = b.expr(&((input(0) - input(1)) * input(2)), &[v, mean, rstd]);
        let gw = affine(&mut b, g, weight, None);
        let product = b.expr(&(input(0) * input(1)), &[gw, hat]);
        let (sum, along) = (b.sum(gw), b.sum(product));
        let mean = (input(1) + input(2) * input(3)) / n;
        let dx = b.expr(&((input(0) - mean) * input(4)), &[gw, sum, hat, along, rstd]);
        b.store(out[0].dtype, s.full.clone(), dx);
        Ok(b.finish())
    }),
    cases: || {
        let stats = |c: Case| c.f(&[2, 2]).range(&[2, 2], 0.5, 2.0).attr("num_groups", 2);
        vec![stats(Case::new("two groups").f(&[2, 4, 3]).f(&[2, 4, 3])).f(&[4])]
    },
};

/// Gradients of [`GROUP_NORM`] by weight and bias: `(grad_out, input, mean, rstd)` to those of `(weight,
/// bias)` that `output_mask` names: `Σ g·h` and `Σ g` over samples and space.
pub static GROUP_NORM_BACKWARD_WEIGHT: OpDef = OpDef {
    name: "native_group_norm_backward_weight",
    schemas: &[],
    infer: |cx| {
        gradient_inputs(cx)?;
        let ty = TensorType::new(stat_dtype(cx.dtype(1)?)?, [cx.shape(1)?[1]]);
        Ok(only(&output_mask(cx, 2)?, [ty.clone(), ty]).collect())
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerInput(4),
    body: Body::Rows(|cx, out| {
        let (x, groups) = (cx.shape(1)?, cx.size("num_groups")?);
        let members = x[1] / groups;
        // Rows are channels (group, member), columns samples and space.
        let mut b = RowBuilder::new(&[groups, members], &[&x[..1], &x[2..]].concat());
        let space = (2..x.rank()).map(|d| Some((d, 1)));
        let full =
            Access([Some((1, members)), Some((1, 1)), Some((0, 1))].into_iter().chain(space).collect());
        let still = || std::iter::repeat_n(None, x.rank() - 2);
        let stats = Access([Some((1, 1)), None, Some((0, 1))].into_iter().chain(still()).collect());
        let channel = Access([Some((0, members)), Some((0, 1)), None].into_iter().chain(still()).collect());
        let g = b.read(cx.dtype(0)?, full.clone());
        let v = b.read(cx.dtype(1)?, full);
        let [mean, rstd] = [b.read(cx.dtype(2)?, stats.clone()), b.read(cx.dtype(3)?, stats)];
        let product = b.expr(&(input(0) * (input(1) - input(2)) * input(3)), &[g, v, mean, rstd]);
        for (ty, v) in out.iter().zip(only(&output_mask(cx, 2)?, [product, g])) {
            let sum = b.sum(v);
            b.store(ty.dtype, channel.clone(), sum);
        }
        Ok(b.finish())
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 4, 3]).f(&[2, 4, 3]).f(&[2, 2]).range(&[2, 2], 0.5, 2.0);
        vec![
            case("both").attr("num_groups", 2).attr("output_mask", [1, 1]),
            case("bias").attr("num_groups", 2).attr("output_mask", [0, 1]),
        ]
    },
};

/// Checks the inputs `(grad_out, input, mean, rstd)` of a gradient.
fn gradient_inputs(cx: &OpCx) -> Result<()> {
    let (x, groups) = (cx.shape(1)?, Groups::of(cx, 1)?.groups);
    [0, 1].into_iter().try_for_each(|i| cx.expect_floats(i, x))?;
    [2, 3].into_iter().try_for_each(|i| cx.expect_floats(i, &[x[0], groups]))
}

/// The iteration space of a group norm: rows are (sample, group), columns (member of the group, space).
struct Groups {
    groups: usize,
    space: ReduceSpace,
    full: Access,
    channel: Access,
    stats: Access,
}

impl Groups {
    /// The groups of input `x`.
    fn of(cx: &OpCx, x: usize) -> Result<Groups> {
        let x = cx.shape(x)?;
        let name = if cx.opt_int("num_groups")?.is_some() { "num_groups" } else { "group" };
        let groups = cx.size(name)?;
        ensure!(x.rank() >= 2, Shape, "group norm needs [batch, channels, ...], got {x}");
        ensure!(groups > 0 && x[1].is_multiple_of(groups), Shape, "{} channels in {groups} groups", x[1]);
        let members = x[1] / groups;
        let split = [&[x[0], groups, members], &x[2..]].concat();
        let space = ReduceSpace::new(&split, &(2..split.len()).collect::<Vec<_>>());
        let inner = |member, space: fn(usize) -> Option<(usize, usize)>| {
            std::iter::once(member).chain((2..x.rank()).map(space))
        };
        let full =
            [Some((0, 1)), Some((1, members))].into_iter().chain(inner(Some((1, 1)), |d| Some((d, 1))));
        let channel = [None, Some((0, members))].into_iter().chain(inner(Some((0, 1)), |_| None));
        Ok(Groups {
            groups,
            full: Access(full.collect()),
            channel: Access(channel.collect()),
            stats: space.dropped.clone(),
            space,
        })
    }

    fn builder(&self) -> RowBuilder {
        self.space.builder()
    }

    /// Elements of a group.
    fn count(&self) -> usize {
        self.space.inner.iter().product()
    }
}
