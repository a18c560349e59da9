//! Resampling of images, plane by plane: first rows are mixed, then columns. Weights are worked out once,
//! when the plan is loaded.

use super::{Args, Kernel, Prepared, Site, contiguous, floats};
use crate::element::{Float, Wide};
use crate::float_dtype;
use crate::pool::Shared;
use headwater_core::DType;
use headwater_core::ops::image::resample::ResampledAxis;
use headwater_core::ops::image::upsample2d::{UPSAMPLE2D, UPSAMPLE2D_BACKWARD, axes};

/// The family.
pub static KERNELS: &[Kernel] = &[
    Kernel {
        op: &UPSAMPLE2D,
        takes: floats,
        workspace: |site| site.cx.shape(0).map_or(0, |x| last(x) * wide(site) * site.threads),
        strided: contiguous,
        prepare: |site| {
            let taps = Taps::new(axes(&site.cx, site.cx.shape(0)?)?.0);
            Ok(float_dtype!(site.outs[0].dtype, T => prepare_forward::<T>(taps)))
        },
    },
    Kernel {
        op: &UPSAMPLE2D_BACKWARD,
        takes: floats,
        workspace: |site| {
            let out = &site.outs[0].shape;
            let plane: usize = out.iter().rev().take(2).product();
            (plane + last(out)) * wide(site) * site.threads
        },
        strided: contiguous,
        prepare: |site| {
            let taps = Taps::new(axes(&site.cx, &site.cx.sizes("input_size")?)?.0);
            Ok(float_dtype!(site.outs[0].dtype, T => prepare_backward::<T>(taps)))
        },
    },
];

fn last(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(0)
}

fn wide(site: &Site) -> usize {
    if site.outs[0].dtype == DType::F64 { 8 } else { 4 }
}

/// Inputs and weights of each output row, and of each column.
struct Taps {
    rows: Vec<Vec<(usize, f64)>>,
    columns: Vec<Vec<(usize, f64)>>,
    input: [usize; 2],
}

impl Taps {
    fn new(axes: [ResampledAxis; 2]) -> Taps {
        let [rows, columns] = axes.map(|a| (0..a.output).map(|o| a.taps(o)).collect());
        Taps { rows, columns, input: axes.map(|a| a.input) }
    }

    fn output_plane(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    fn input_plane(&self) -> usize {
        self.input[0] * self.input[1]
    }
}

fn scratch<T: Float>(args: &mut [u8], elements: usize, threads: usize) -> &mut [T::Wide] {
    bytemuck::cast_slice_mut(&mut args[..elements * threads * size_of::<T::Wide>()])
}

fn prepare_forward<T: Float>(taps: Taps) -> Prepared {
    Box::new(move |args: &mut Args| {
        let x = args.read(0)?.slice::<T>();
        let (from, to, width) = (taps.input_plane(), taps.output_plane(), taps.input[1]);
        let out = args.writes[0].slice_mut::<T>();
        let planes = out.len() / to;
        let out = Shared(out.as_mut_ptr());
        let scratch = scratch::<T>(args.workspace, width, args.pool.threads());
        args.pool.each_with(planes, scratch, |p, mixed| {
            let x = &x[p * from..][..from];
            // SAFETY: a plane of the result, which no other task writes.
            let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(p * to), to) };
            for (rows, out) in taps.rows.iter().zip(out.chunks_mut(taps.columns.len())) {
                mixed.fill(T::Wide::ZERO);
                for &(y, weight) in rows {
                    let weight = T::Wide::from_f64(weight);
                    mixed.iter_mut().zip(&x[y * width..]).for_each(|(m, x)| *m += weight * x.widen());
                }
                for (o, columns) in out.iter_mut().zip(&taps.columns) {
                    let mut sum = T::Wide::ZERO;
                    columns.iter().for_each(|&(c, w)| sum += T::Wide::from_f64(w) * mixed[c]);
                    *o = T::narrow(sum);
                }
            }
        });
        Ok(())
    })
}

fn prepare_backward<T: Float>(taps: Taps) -> Prepared {
    Box::new(move |args: &mut Args| {
        let g = args.read(0)?.slice::<T>();
        let (from, to, width) = (taps.output_plane(), taps.input_plane(), taps.input[1]);
        let out = args.writes[0].slice_mut::<T>();
        let planes = out.len() / to;
        let out = Shared(out.as_mut_ptr());
        let scratch = scratch::<T>(args.workspace, to + width, args.pool.threads());
        args.pool.each_with(planes, scratch, |p, scratch| {
            let (sums, mixed) = scratch.split_at_mut(to);
            sums.fill(T::Wide::ZERO);
            for (rows, g) in taps.rows.iter().zip(g[p * from..][..from].chunks(taps.columns.len())) {
                mixed.fill(T::Wide::ZERO);
                for (g, columns) in g.iter().zip(&taps.columns) {
                    columns.iter().for_each(|&(c, w)| mixed[c] += T::Wide::from_f64(w) * g.widen());
                }
                for &(y, weight) in rows {
                    let weight = T::Wide::from_f64(weight);
                    sums[y * width..].iter_mut().zip(&*mixed).for_each(|(s, &m)| *s += weight * m);
                }
            }
            // SAFETY: a plane of the result, which no other task writes.
            let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(p * to), to) };
            out.iter_mut().zip(sums).for_each(|(o, &mut s)| *o = T::narrow(s));
        });
        Ok(())
    })
}
