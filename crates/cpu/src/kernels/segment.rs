//! Segments of flat spans: `segment_sum`, `segment_spread`. A sum runs over one number a block of the span,
//! so that one thread is soon done. Spreading may write a number for every element, so that it is cut over
//! threads.

use super::grid::GRAIN;
use super::{Kernel, Prepared, Site, contiguous, floats, no_workspace};
use crate::element::{Float, Wide};
use crate::float_dtype;
use headwater_core::diagnostic::Result;
use headwater_core::ops::update::segment::{SEGMENT_SPREAD, SEGMENT_SUM, segments};

/// The family.
pub static KERNELS: &[Kernel] = &[
    Kernel { op: &SEGMENT_SUM, takes: floats, workspace: no_workspace, strided: contiguous, prepare: sum },
    Kernel {
        op: &SEGMENT_SPREAD,
        takes: floats,
        workspace: no_workspace,
        strided: contiguous,
        prepare: spread,
    },
];

fn sum(site: &Site) -> Result<Prepared> {
    let segments = segments(&site.cx, site.cx.shape(0)?[0])?;
    Ok(Box::new(move |args| {
        let x = args.read(0)?;
        float_dtype!(x.dtype(), T => {
            let x = x.slice::<T>();
            for (out, s) in args.writes[0].slice_mut::<f64>().iter_mut().zip(&segments) {
                *out = x[s.clone()].iter().fold(0.0, |sum, x| sum + x.widen().to_f64());
            }
        });
        Ok(())
    }))
}

fn spread(site: &Site) -> Result<Prepared> {
    let segments = segments(&site.cx, site.outs[0].shape[0])?;
    Ok(Box::new(move |args| {
        let x = args.read(0)?;
        float_dtype!(x.dtype(), T => {
            let x = x.slice::<T>();
            args.pool.chunks(args.writes[0].slice_mut::<T>(), GRAIN, |chunk, out| {
                let (start, end) = (chunk * GRAIN, chunk * GRAIN + out.len());
                let first = segments.partition_point(|s| s.end <= start);
                for (s, &x) in segments[first..].iter().zip(&x[first..]) {
                    if s.start >= end {
                        break;
                    }
                    out[s.start.max(start) - start..s.end.min(end) - start].fill(x);
                }
            });
        });
        Ok(())
    }))
}
