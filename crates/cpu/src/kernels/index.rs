//! Reading at places given by data: `embedding`, `gather`, `index`, `check_index`; and constants. Indices are
//! all checked before anything is read; the error names the first that is out of range.

use super::advanced_index::AdvancedIndex;
use super::grid::{GRAIN, Grid, Indices, small_rank};
use super::{Args, Kernel, Prepared, Site, any, contiguous, no_workspace};
use crate::bits_of;
use crate::pool::Pool;
use headwater_core::attr::Attr;
use headwater_core::diagnostic::Result;
use headwater_core::fail;
use headwater_core::ops::OpDef;
use headwater_core::ops::create::constant::CONSTANT;
use headwater_core::ops::index::check_index::CHECK_INDEX;
use headwater_core::ops::index::embedding::EMBEDDING;
use headwater_core::ops::index::gather::GATHER;
use headwater_core::ops::index::index_tensor::INDEX;
use headwater_core::ops::index::resolve;

/// The family.
pub static KERNELS: &[Kernel] = &[
    kernel(&CHECK_INDEX, check_index),
    kernel(&EMBEDDING, embedding),
    kernel(&GATHER, gather),
    Kernel {
        workspace: |site| AdvancedIndex::new(site, site.cx.inputs.len()).map_or(0, |p| p.workspace()),
        ..kernel(&INDEX, index)
    },
    Kernel { takes: any, ..kernel(&CONSTANT, constant) },
];

const fn kernel(op: &'static OpDef, prepare: fn(&Site) -> Result<Prepared>) -> Kernel {
    Kernel { op, takes: small_rank, workspace: no_workspace, strided: contiguous, prepare }
}

fn check_index(site: &Site) -> Result<Prepared> {
    let (limit, wrap) = (site.cx.size("limit")?, site.cx.flag("wrap")?);
    let ignored = site.cx.opt_int("ignore_index")?;
    Ok(Box::new(move |args| {
        let index = Indices::of(args.read(0)?)?;
        let checked = |at: usize| match index.get(at) {
            i if ignored == Some(i) => Ok(i),
            i => resolve(i, at, limit, wrap).map(|i| i as i64),
        };
        macro_rules! write {
            ($t:ty) => {{
                let out = args.writes[0].slice_mut::<$t>();
                out.iter_mut().enumerate().try_for_each(|(at, o)| checked(at).map(|i| *o = i as $t))
            }};
        }
        match index {
            Indices::U8(_) => write!(u8),
            Indices::I8(_) => write!(i8),
            Indices::I16(_) => write!(i16),
            Indices::I32(_) => write!(i32),
            Indices::I64(_) => write!(i64),
        }
    }))
}

fn embedding(site: &Site) -> Result<Prepared> {
    let (rows, width) = (site.cx.shape(0)?[0], site.cx.shape(0)?[1]);
    let row = width * site.outs[0].dtype.size();
    Ok(Box::new(move |args| {
        let (table, index) = (args.read(0)?.bytes(), Indices::of(args.read(1)?)?);
        index.check(rows, false)?;
        if row == 0 {
            return Ok(());
        }
        let group = (GRAIN / width).max(1);
        args.pool.chunks(args.writes[0].bytes_mut(), group * row, |g, out| {
            for (i, out) in out.chunks_exact_mut(row).enumerate() {
                let from = index.place(g * group + i, rows) * row;
                out.copy_from_slice(&table[from..from + row]);
            }
        });
        Ok(())
    }))
}

fn gather(site: &Site) -> Result<Prepared> {
    let g = Gather::new(site)?;
    Ok(Box::new(move |args| bits_of!(args.writes[0].dtype(), T => g.run::<T>(args))))
}

/// `gather` by rows of the index, which its last dimension makes.
struct Gather {
    /// Offsets in the tensor of the rows, apart from the index.
    rows: Grid,
    width: usize,
    /// Elements of the tensor from one of a row to the next, apart from the index: none along its dimension.
    step: usize,
    /// Stride and size of the indexed dimension.
    stride: usize,
    limit: usize,
}

impl Gather {
    fn new(site: &Site) -> Result<Gather> {
        let (x, index) = (site.cx.shape(0)?, site.cx.shape(1)?);
        let dim = site.cx.dim("dim", x.rank())?;
        let mut strides = x.strides();
        let (stride, limit) = (strides.get(dim).map_or(1, |&s| s as usize), x.get(dim).copied().unwrap_or(1));
        strides.resize(index.rank(), 0);
        if let Some(s) = strides.get_mut(dim) {
            *s = 0;
        }
        let (width, lead) = index.split_last().map_or((1, &index[..]), |(&n, lead)| (n, lead));
        let step = strides.last().map_or(0, |&s| s as usize);
        Ok(Gather { rows: Grid::new(lead, &strides[..lead.len()]), width, step, stride, limit })
    }

    fn run<T: bytemuck::Pod + Send + Sync>(&self, args: &mut Args) -> Result<()> {
        let (x, index) = (args.read(0)?.bytes(), Indices::of(args.read(1)?)?);
        let x: &[T] = bytemuck::cast_slice(x);
        index.check(self.limit, false)?;
        let out: &mut [T] = bytemuck::cast_slice_mut(args.writes[0].bytes_mut());
        match index {
            Indices::I64(index) => self.rows(args.pool, x, |at| index[at] as usize, out),
            _ => self.rows(args.pool, x, |at| index.place(at, self.limit), out),
        }
        Ok(())
    }

    fn rows<T: Copy + Send + Sync>(
        &self,
        pool: &Pool,
        x: &[T],
        place: impl Fn(usize) -> usize + Sync,
        out: &mut [T],
    ) {
        if self.width == 0 {
            return;
        }
        let group = (GRAIN / self.width).max(1);
        pool.chunks(out, group * self.width, |g, out| {
            let first = g * group;
            for ((row, out), from) in out.chunks_exact_mut(self.width).enumerate().zip(self.rows.from(first))
            {
                let at = (first + row) * self.width;
                for (i, o) in out.iter_mut().enumerate() {
                    *o = x[from + i * self.step + place(at + i) * self.stride];
                }
            }
        });
    }
}

fn index(site: &Site) -> Result<Prepared> {
    let picks = AdvancedIndex::new(site, site.cx.inputs.len())?;
    Ok(Box::new(move |args| bits_of!(args.writes[0].dtype(), T => index_bits::<T>(&picks, args))))
}

fn index_bits<T: bytemuck::Pod + Send + Sync>(picks: &AdvancedIndex, args: &mut Args) -> Result<()> {
    let x: &[T] = bytemuck::cast_slice(args.read(0)?.bytes());
    let places = picks.places(args.reads, args.workspace)?;
    let row = picks.row;
    if row == 0 {
        return Ok(());
    }
    let group = (GRAIN / row).max(1);
    let out: &mut [T] = bytemuck::cast_slice_mut(args.writes[0].bytes_mut());
    args.pool.chunks(out, group * row, |g, out| {
        let rows = g * group..g * group + out.len() / row;
        match row {
            // Single elements, as of an interaction of features by pairs.
            1 => out.iter_mut().zip(picks.starts(places, rows)).for_each(|(o, from)| *o = x[from]),
            _ => {
                for (out, from) in out.chunks_exact_mut(row).zip(picks.starts(places, rows)) {
                    out.copy_from_slice(&x[from..from + row]);
                }
            }
        }
    });
    Ok(())
}

fn constant(site: &Site) -> Result<Prepared> {
    let Some(Attr::Tensor(value)) = site.cx.attrs.get("value") else {
        return Err(fail!(Attribute, "attribute `value` must be a tensor"));
    };
    let bytes = value.to_bytes();
    Ok(Box::new(move |args| {
        args.writes[0].bytes_mut().copy_from_slice(&bytes);
        Ok(())
    }))
}
