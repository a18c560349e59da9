//! Pooling over the last two dimensions, plane by plane: maxima and means over sliding and adaptive windows,
//! and their gradients. What windows cover is worked out once, when the plan is loaded.

mod max;

use super::{Args, Kernel, Prepared, Site, contiguous, floats, no_workspace};
use crate::element::same;
use crate::element::{Float, Wide};
use crate::float_dtype;
use crate::pool::Shared;
use headwater_core::diagnostic::Result;
use headwater_core::ops::conv::avg_pool2d::{
    ADAPTIVE_AVG_POOL2D, ADAPTIVE_AVG_POOL2D_BACKWARD, AVG_POOL2D, AVG_POOL2D_BACKWARD,
};
use headwater_core::ops::conv::max_pool2d::{ADAPTIVE_MAX_POOL2D, MAX_POOL2D, MAX_POOL2D_BACKWARD};
use headwater_core::ops::conv::window::{Pool, Window};
use headwater_core::{DType, fail};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The family.
pub static KERNELS: &[Kernel] = &[
    Kernel {
        op: &MAX_POOL2D,
        takes: |site| site.outs[0].dtype.is_float(),
        workspace: |site| max::workspace(site, site.cx.shape(0).and_then(|x| Pool::sliding(x, &site.cx))),
        strided: contiguous,
        prepare: |site| Ok(max::prepare(site, Pool::sliding(site.cx.shape(0)?, &site.cx)?)),
    },
    Kernel {
        op: &ADAPTIVE_MAX_POOL2D,
        takes: |site| site.outs[0].dtype.is_float(),
        workspace: |site| max::workspace(site, site.cx.shape(0).and_then(|x| Pool::adaptive(x, &site.cx))),
        strided: contiguous,
        prepare: |site| Ok(max::prepare(site, Pool::adaptive(site.cx.shape(0)?, &site.cx)?)),
    },
    Kernel {
        op: &MAX_POOL2D_BACKWARD,
        takes: |site| site.outs[0].dtype.is_float(),
        workspace: plane_each,
        strided: contiguous,
        prepare: |site| Ok(float_dtype!(site.outs[0].dtype, T => Box::new(place::<T>))),
    },
    Kernel {
        op: &AVG_POOL2D,
        takes: floats,
        workspace: no_workspace,
        strided: contiguous,
        prepare: |site| mean(site, Pool::sliding(site.cx.shape(0)?, &site.cx)?),
    },
    Kernel {
        op: &ADAPTIVE_AVG_POOL2D,
        takes: floats,
        workspace: no_workspace,
        strided: contiguous,
        prepare: |site| mean(site, Pool::adaptive(site.cx.shape(0)?, &site.cx)?),
    },
    Kernel {
        op: &AVG_POOL2D_BACKWARD,
        takes: floats,
        workspace: plane_each,
        strided: contiguous,
        prepare: |site| spread(site, Pool::sliding(&site.cx.sizes("input_size")?, &site.cx)?),
    },
    Kernel {
        op: &ADAPTIVE_AVG_POOL2D_BACKWARD,
        takes: floats,
        workspace: plane_each,
        strided: contiguous,
        prepare: |site| spread(site, Pool::adaptive(&site.cx.sizes("input_size")?, &site.cx)?),
    },
];

/// Elements of the last two dimensions of the result.
fn plane(shape: &[usize]) -> usize {
    shape.iter().rev().take(2).product()
}

/// Workspace: a plane of the result for each thread, in which sums are kept that are not rounded yet.
fn plane_each(site: &Site) -> usize {
    float_dtype!(site.outs[0].dtype, T => {
        let wide = if same::<T, <T as Float>::Wide>() { 0 } else { size_of::<<T as Float>::Wide>() };
        plane(&site.outs[0].shape) * wide * site.threads
    })
}

/// Bytes of a number of the type computed in.
fn wide(site: &Site) -> usize {
    if site.outs[0].dtype == DType::F64 { 8 } else { 4 }
}

/// The windows of all rows and of all columns.
struct Windows {
    pool: Pool,
    rows: Vec<Window>,
    columns: Vec<Window>,
}

impl Windows {
    fn new(pool: Pool) -> Windows {
        let windows = |d: usize| (0..pool.output[d]).map(|o| pool.window(d, o)).collect();
        Windows { rows: windows(0), columns: windows(1), pool }
    }

    /// Calls `f(output, row window, column window)` for each output of a plane.
    #[inline(always)]
    fn each(&self, mut f: impl FnMut(usize, Window, Window)) {
        for (r, &rows) in self.rows.iter().enumerate() {
            for (c, &columns) in self.columns.iter().enumerate() {
                f(r * self.columns.len() + c, rows, columns);
            }
        }
    }
}

fn mean(site: &Site, pool: Pool) -> Result<Prepared> {
    let given = given(site)?;
    let windows = Windows::new(pool);
    Ok(float_dtype!(site.outs[0].dtype, T => Box::new(move |args| {
        let x = args.read(0)?.slice::<T>();
        let (from, to) = (windows.pool.input_plane(), windows.pool.output_plane());
        let out = args.writes[0].slice_mut::<T>();
        args.pool.chunks(out, to, |p, out| {
            let x = &x[p * from..][..from];
            let width = windows.pool.input[1];
            windows.each(|o, rows, columns| {
                let mut sum = <T as Float>::Wide::ZERO;
                for r in rows.indices() {
                    columns.indices().for_each(|c| sum += x[r * width + c].widen());
                }
                out[o] = T::narrow(sum / <T as Float>::Wide::from_f64(divisor(given, rows, columns)));
            });
        });
        Ok(())
    })))
}

/// The divisor of sums: the node's `divisor_override`, or the window's size.
fn divisor(given: Option<f64>, rows: Window, columns: Window) -> f64 {
    given.unwrap_or((rows.weight * columns.weight) as f64)
}

fn given(site: &Site) -> Result<Option<f64>> {
    Ok(site.cx.opt_int("divisor_override")?.map(|d| d as f64))
}

/// The gradient of a mean: each output's, divided, to all inputs it was made of.
fn spread(site: &Site, pool: Pool) -> Result<Prepared> {
    let given = given(site)?;
    let windows = Windows::new(pool);
    Ok(float_dtype!(site.outs[0].dtype, T => Box::new(move |args| {
        let g = args.read(0)?.slice::<T>();
        let (from, width) = (windows.pool.output_plane(), windows.pool.input[1]);
        planes::<T>(args, windows.pool.input_plane(), |p, sums| {
            let g = &g[p * from..][..from];
            windows.each(|o, rows, columns| {
                let share = g[o].widen() / <T as Float>::Wide::from_f64(divisor(given, rows, columns));
                for r in rows.indices() {
                    columns.indices().for_each(|c| sums[r * width + c] += share);
                }
            });
        });
        Ok(())
    })))
}

/// The gradient of a maximum: each output's to the input at its index.
fn place<T: Float>(args: &mut Args) -> Result<()> {
    let (g, at) = (args.read(0)?, args.read(1)?);
    let (from, to) = (plane(g.shape()), plane(args.writes[0].shape()));
    let (g, at) = (g.slice::<T>(), at.slice::<i64>());
    let wrong = AtomicUsize::new(usize::MAX);
    if to == 0 && !at.is_empty() {
        wrong.store(0, Ordering::Relaxed);
    }
    planes::<T>(args, to, |p, sums| {
        for (i, (&g, &at)) in g[p * from..][..from].iter().zip(&at[p * from..]).enumerate() {
            match usize::try_from(at).ok().and_then(|at| sums.get_mut(at)) {
                Some(sum) => *sum += g.widen(),
                None => _ = wrong.fetch_min(p * from + i, Ordering::Relaxed),
            }
        }
    });
    match wrong.into_inner() {
        usize::MAX => Ok(()),
        i => Err(fail!(Value, "index {} at {i}, in a plane of {to}", at[i])),
    }
}

/// Makes each plane of the result, of `size` elements: `f` adds to a plane of zeros.
fn planes<T: Float>(args: &mut Args, size: usize, f: impl Fn(usize, &mut [T::Wide]) + Sync) {
    let out = args.writes[0].slice_mut::<T>();
    let count = out.len().checked_div(size).unwrap_or(0);
    let bytes = if same::<T, T::Wide>() { 0 } else { size * size_of::<T::Wide>() * args.pool.threads() };
    // An empty workspace need not be aligned, which the cast would demand.
    let scratch: &mut [T::Wide] =
        if bytes == 0 { &mut [] } else { bytemuck::cast_slice_mut(&mut args.workspace[..bytes]) };
    let out = Shared(out.as_mut_ptr());
    args.pool.each_with(count, scratch, |p, sums| {
        // SAFETY: a plane of the result, which no other task writes.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(p * size), size) };
        if same::<T, T::Wide>() {
            // The sum is the result.
            let out: &mut [T::Wide] = bytemuck::cast_slice_mut(out);
            out.fill(T::Wide::ZERO);
            return f(p, out);
        }
        sums.fill(T::Wide::ZERO);
        f(p, sums);
        out.iter_mut().zip(sums).for_each(|(o, &mut s)| *o = T::narrow(s));
    });
}
