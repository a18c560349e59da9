//! `mylib::discounted_cumsum`, the returns of reinforcement learning: a custom operator with a kernel for the
//! CPU.

use headwater_core::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use headwater_core::{Attrs, Tensor, ensure};
use headwater_cpu::element::{Float, Wide};
use headwater_cpu::float_dtype;
use headwater_cpu::kernels::{Kernel, contiguous, floats, no_workspace};

/// `y[t] = x[t] + gamma · y[t − 1]` along the last dimension; with `reverse` from its end, which is the
/// gradient.
pub static DISCOUNTED_CUMSUM: OpDef = OpDef {
    name: "discounted_cumsum",
    schemas: &["mylib::discounted_cumsum(Tensor self, float gamma, bool reverse=False) -> Tensor"],
    infer: |cx| {
        let x = cx.ty(0)?;
        let fits = x.dtype.is_float() && x.shape.rank() > 0;
        ensure!(fits, DType, "the input must be floats along a dimension, it is {x}");
        cx.float("gamma")?;
        cx.flag("reverse")?;
        Ok(vec![x.clone()])
    },
    derivative: Derivative::Rule(|cx| {
        let (g, at) = (cx.grad(0)?, cx.args());
        let attrs = Attrs::new().with("gamma", at.float("gamma")?).with("reverse", !at.flag("reverse")?);
        let dx = cx.one(&DISCOUNTED_CUMSUM, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(2),
    body: Body::Kernel(|cx, inputs, outs| {
        let (gamma, reverse, shape) = (cx.float("gamma")?, cx.flag("reverse")?, outs[0].shape.clone());
        let mut y = inputs[0].expect("typed").floats().to_vec();
        for row in y.chunks_mut(shape[shape.rank() - 1].max(1)) {
            if reverse {
                row.reverse();
            }
            for t in 1..row.len() {
                row[t] += gamma * row[t - 1];
            }
            if reverse {
                row.reverse();
            }
        }
        Ok(vec![Tensor::float(outs[0].dtype, shape, y)])
    }),
    cases: || {
        vec![
            Case::new("rows").f(&[3, 5]).attr("gamma", 0.9),
            Case::new("reversed").f(&[2, 2, 4]).attr("gamma", 0.5).attr("reverse", true),
            Case::new("one column").f(&[4, 1]).attr("gamma", 0.9),
            Case::new("empty").f(&[2, 0]).attr("gamma", 0.9),
        ]
    },
};

/// Least elements of a block, which one thread computes.
const GRAIN: usize = 16 << 10;

/// [`DISCOUNTED_CUMSUM`] on the CPU: whole rows are divided among threads, sums are in f32 or wider.
pub static KERNEL: Kernel = Kernel {
    op: &DISCOUNTED_CUMSUM,
    takes: floats,
    workspace: no_workspace,
    strided: contiguous,
    prepare: |site| {
        let (gamma, reverse) = (site.cx.float("gamma")?, site.cx.flag("reverse")?);
        let columns = site.outs[0].shape[site.outs[0].shape.rank() - 1];
        Ok(Box::new(move |args| {
            let (x, pool) = (args.read(0)?, args.pool);
            float_dtype!(x.dtype(), T => {
                let (x, block) = (x.slice::<T>(), columns * GRAIN.div_ceil(columns));
                let gamma = <T as Float>::Wide::from_f64(gamma);
                pool.chunks(args.writes[0].slice_mut::<T>(), block, |i, y| {
                    let rows = x[i * block..].chunks_exact(columns);
                    for (x, y) in rows.zip(y.chunks_exact_mut(columns)) {
                        let mut sum = <T as Float>::Wide::ZERO;
                        for t in 0..columns {
                            let t = if reverse { columns - 1 - t } else { t };
                            sum = x[t].widen() + gamma * sum;
                            y[t] = T::narrow(sum);
                        }
                    }
                });
            });
            Ok(())
        }))
    },
};
