//! Connectionist temporal classification: the core's sums over alignments, a sequence at a time on each
//! thread.

use super::{Args, Kernel, Site, contiguous};
use crate::element::{Float, Wide};
use crate::float_dtype;
use crate::pool::Shared;
use headwater_core::diagnostic::Result;
use headwater_core::ops::OpDef;
use headwater_core::ops::loss::alignments::{Alignments, states};
use headwater_core::ops::loss::ctc::{CTC_NLL, CTC_NLL_BACKWARD, blank, checked};

/// The family.
pub static KERNELS: &[Kernel] = &[
    kernel(&CTC_NLL, |site| scratch(site, 0).unwrap_or(0) * size_of::<f64>() * site.threads),
    kernel(&CTC_NLL_BACKWARD, |site| scratch(site, 1).unwrap_or(0) * size_of::<f64>() * site.threads),
];

const fn kernel(op: &'static OpDef, workspace: fn(&Site) -> usize) -> Kernel {
    Kernel {
        op,
        takes: |site| site.cx.present().all(|t| t.shape.numel() > 0),
        workspace,
        strided: contiguous,
        prepare: |site| {
            // The gradient has one more operand, before the others.
            let first = site.cx.inputs.len() - 4;
            let shape = site.cx.shape(first)?;
            let sizes = Sizes {
                frames: shape[0],
                sequences: shape[1],
                classes: shape[2],
                labels: site.cx.shape(first + 1)?[1],
                blank: blank(&site.cx, shape[2])?,
                scratch: scratch(site, first)?,
            };
            Ok(Box::new(move |args: &mut Args| {
                let dtype = args.read(first)?.dtype();
                float_dtype!(dtype, T => if first == 0 { losses::<T>(args, &sizes) } else { gradient::<T>(args, &sizes) })
            }))
        },
    }
}

/// Workspace per thread, in elements.
fn scratch(site: &Site, first: usize) -> Result<usize> {
    let states = states(site.cx.shape(first + 1)?[1]);
    let shape = site.cx.shape(first)?;
    Ok(if first == 0 { 2 * states } else { (shape[0] + 2) * states + shape[2] })
}

struct Sizes {
    frames: usize,
    sequences: usize,
    classes: usize,
    /// Places for labels of each sequence.
    labels: usize,
    blank: usize,
    scratch: usize,
}

/// Targets, and how many frames and labels each sequence has.
fn lists<'a>(args: &Args<'a>, sizes: &Sizes, first: usize) -> Result<[&'a [i64]; 3]> {
    let list = |i: usize| args.read(first + i).map(|view| view.slice::<i64>());
    let lists = [list(1)?, list(2)?, list(3)?];
    checked(lists, sizes.labels, [sizes.frames, sizes.classes])?;
    Ok(lists)
}

impl Sizes {
    fn at<'a, T: Float>(
        &self,
        n: usize,
        x: &'a [T],
        [targets, frames, labels]: [&'a [i64]; 3],
    ) -> Alignments<'a, impl Fn(usize, usize) -> f64 + use<'a, T>> {
        let (sequences, classes) = (self.sequences, self.classes);
        Alignments {
            log_probability: move |t: usize, c: usize| x[(t * sequences + n) * classes + c].widen().to_f64(),
            frames: frames[n] as usize,
            labels: &targets[n * self.labels..][..labels[n] as usize],
            blank: self.blank,
        }
    }
}

fn losses<T: Float>(args: &mut Args, sizes: &Sizes) -> Result<()> {
    let (x, lists) = (args.read(0)?.slice::<T>(), lists(args, sizes, 0)?);
    let scratch = room(args.workspace, sizes, args.pool.threads());
    let out = Shared(args.writes[0].slice_mut::<T>().as_mut_ptr());
    args.pool.each_with(sizes.sequences, scratch, |n, scratch| {
        let loss = sizes.at(n, x, lists).loss(scratch);
        // SAFETY: one of the results, which are as many as the sequences.
        unsafe { *out.get().add(n) = T::from_f64(loss) };
    });
    Ok(())
}

fn gradient<T: Float>(args: &mut Args, sizes: &Sizes) -> Result<()> {
    let (g, x, lists) = (args.read(0)?, args.read(1)?.slice::<T>(), lists(args, sizes, 1)?);
    let g = g.slice::<T>();
    let scratch = room(args.workspace, sizes, args.pool.threads());
    let (sequences, classes) = (sizes.sequences, sizes.classes);
    let out = args.writes[0].slice_mut::<T>();
    assert_eq!(out.len(), sizes.frames * sequences * classes);
    let out = Shared(out.as_mut_ptr());
    args.pool.each_with(sequences, scratch, |n, scratch| {
        let (sums, scratch) = scratch.split_at_mut(classes);
        let row = |t: usize| {
            // SAFETY: the row of this sequence in frame `t`, which no other task writes.
            unsafe { std::slice::from_raw_parts_mut(out.get().add((t * sequences + n) * classes), classes) }
        };
        (0..sizes.frames).for_each(|t| row(t).fill(T::from_f64(0.0)));
        let (g, one) = (g[n].widen().to_f64(), sizes.at(n, x, lists));
        if g == 0.0 {
            return;
        }
        // Shares come frame by frame, the last frame first.
        let mut frame = one.frames;
        let flush = |t: usize, sums: &mut [f64]| {
            if t < one.frames {
                row(t).iter_mut().zip(&mut *sums).for_each(|(y, s)| *y = T::from_f64(*s));
            }
            sums.fill(0.0);
        };
        flush(frame, sums);
        let aligned = one.shares(scratch, |t, c, share| {
            if t != frame {
                flush(frame, sums);
                frame = t;
            }
            sums[c] -= g * share;
        });
        flush(frame, sums);
        if !aligned {
            (0..one.frames).for_each(|t| row(t).fill(T::from_f64(f64::NAN)));
        }
    });
    Ok(())
}

/// Each thread's numbers.
fn room<'a>(workspace: &'a mut [u8], sizes: &Sizes, threads: usize) -> &'a mut [f64] {
    bytemuck::cast_slice_mut(&mut workspace[..sizes.scratch * size_of::<f64>() * threads])
}
