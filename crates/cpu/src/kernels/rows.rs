//! Rows of tables by their numbers: `gather_rows`, `update_rows`. Copies of rows, divided among threads;
//! numbers ascend, so that no two threads write one row.

use super::{Kernel, Prepared, Site, any, contiguous, no_workspace};
use crate::any_dtype;
use crate::pool::Shared;
use headwater_core::diagnostic::Result;
use headwater_core::ops::update::rows::{GATHER_ROWS, UPDATE_ROWS, written};

/// The family.
pub static KERNELS: &[Kernel] = &[
    Kernel { op: &GATHER_ROWS, takes: any, workspace: no_workspace, strided: contiguous, prepare: gather },
    Kernel { op: &UPDATE_ROWS, takes: any, workspace: no_workspace, strided: contiguous, prepare: update },
];

/// Bytes that a thread copies at a time.
const GRAIN: usize = 64 << 10;

fn gather(site: &Site) -> Result<Prepared> {
    let (rows, width) = (site.cx.shape(0)?[0], site.cx.shape(0)?[1]);
    Ok(Box::new(move |args| {
        let there = written(args.read(1)?.slice::<i64>(), rows)?;
        let (table, pool) = (args.read(0)?, args.pool);
        any_dtype!(table.dtype(), T => {
            let (table, out) = (table.slice::<T>(), args.writes[0].slice_mut::<T>());
            let (out, behind) = out.split_at_mut(there.len() * width);
            behind.fill(Default::default());
            if width > 0 {
                let some = (GRAIN / (width * size_of::<T>())).max(1);
                pool.chunks(out, some * width, |chunk, out| {
                    for (to, &row) in out.chunks_exact_mut(width).zip(&there[chunk * some..]) {
                        to.copy_from_slice(&table[row * width..][..width]);
                    }
                });
            }
        });
        Ok(())
    }))
}

fn update(site: &Site) -> Result<Prepared> {
    let (rows, width) = (site.outs[0].shape[0], site.outs[0].shape[1]);
    Ok(Box::new(move |args| {
        let there = written(args.read(1)?.slice::<i64>(), rows)?;
        let (values, pool) = (args.read(2)?, args.pool);
        any_dtype!(values.dtype(), T => {
            let values = &values.slice::<T>()[..there.len() * width];
            let out = Shared(args.writes[0].slice_mut::<T>().as_mut_ptr());
            let some = (GRAIN / (width.max(1) * size_of::<T>())).max(1);
            pool.each(there.len().div_ceil(some), |chunk| {
                let part = chunk * some..((chunk + 1) * some).min(there.len());
                for i in part {
                    // SAFETY: `written` has checked that rows are inside the table and ascend, so that no
                    // other thread has this one.
                    let to = unsafe {
                        std::slice::from_raw_parts_mut(out.get().add(there[i] * width), width)
                    };
                    to.copy_from_slice(&values[i * width..][..width]);
                }
            });
        });
        Ok(())
    }))
}
