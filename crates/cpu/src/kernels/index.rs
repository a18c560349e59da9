//! Reading at places given by data: `embedding`, `gather`, `index`, `check_index`; and constants. Indices are
//! all checked before anything is read; the error names the first that is out of range.

use super::walk::{Grid, Indices, MAX_RANK};
use super::{Args, Kernel, Prepared, Site, any, contiguous, no_workspace};
use crate::bits_of;
use crate::view::View;
use headwater_core::attr::Attr;
use headwater_core::diagnostic::Result;
use headwater_core::ops::index::index_tensor::Indexing;
use headwater_core::ops::index::resolve;
use headwater_core::{Shape, fail};

/// The family.
pub static KERNELS: &[Kernel] = &[
    kernel("check_index", check_index),
    kernel("embedding", embedding),
    kernel("gather", gather),
    kernel("index", index),
    Kernel { takes: any, ..kernel("constant", constant) },
];

const fn kernel(name: &'static str, prepare: fn(&Site) -> Result<Prepared>) -> Kernel {
    Kernel { name, takes: small_rank, workspace: no_workspace, strided: contiguous, prepare }
}

/// For [`Kernel::takes`]: no operand has more than [`MAX_RANK`] dimensions.
pub(super) fn small_rank(site: &Site) -> bool {
    site.cx.present().chain(site.outs).all(|t| t.shape.rank() <= MAX_RANK)
}

/// Elements that a thread copies at a time.
pub(super) const GRAIN: usize = 1 << 14;

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
    let (x, index) = (site.cx.shape(0)?, site.cx.shape(1)?);
    let dim = site.cx.dim("dim", x.rank())?;
    let mut strides = x.strides();
    let (stride, limit) = (strides.get(dim).map_or(1, |&s| s as usize), x.get(dim).copied().unwrap_or(1));
    // Where each position of the index reads, apart from the index itself.
    strides.resize(index.rank(), 0);
    if let Some(s) = strides.get_mut(dim) {
        *s = 0;
    }
    let rest = Grid::new(index, &strides);
    Ok(Box::new(
        move |args| bits_of!(args.writes[0].dtype(), T => gather_bits::<T>(&rest, stride, limit, args)),
    ))
}

fn gather_bits<T: bytemuck::Pod + Send + Sync>(
    rest: &Grid,
    stride: usize,
    limit: usize,
    args: &mut Args,
) -> Result<()> {
    let (x, index) = (args.read(0)?.bytes(), Indices::of(args.read(1)?)?);
    let x: &[T] = bytemuck::cast_slice(x);
    index.check(limit, false)?;
    args.pool.chunks(bytemuck::cast_slice_mut::<u8, T>(args.writes[0].bytes_mut()), GRAIN, |b, out| {
        let from = b * GRAIN;
        for ((i, o), rest) in out.iter_mut().enumerate().zip(rest.from(from)) {
            *o = x[rest + index.place(from + i, limit) * stride];
        }
    });
    Ok(())
}

/// Advanced indexing as runs of neighbouring elements: those of the dimensions after the last indexed one.
pub(super) struct Runs {
    /// Elements of a run.
    pub len: usize,
    /// Shape of the result, and how many of its dimensions count runs; the others are within one.
    pub out: Shape,
    pub lead: usize,
    /// Offset in the tensor of each run, apart from the indices.
    pub rest: Grid,
    /// For each index: its input, the offset in it for each run, limit and stride of its dimension.
    pub picks: Vec<(usize, Grid, usize, usize)>,
    pub wrap: bool,
}

impl Runs {
    /// Of input 0 by inputs `1..end`.
    pub fn new(site: &Site, end: usize) -> Result<Runs> {
        let (x, indexing) = (site.cx.shape(0)?, Indexing::of(&site.cx, end)?);
        let strides = x.strides();
        let Indexing { dims, index, first, out, wrap } = indexing;
        // Strides in the tensor along the dimensions of the result.
        let others = (0..x.rank()).filter(|d| !dims.contains(d));
        let mut rest: Vec<isize> = others.map(|d| strides[d]).collect();
        rest.splice(first..first, index.iter().map(|_| 0));
        // Trailing dimensions that neither are indexed nor stand before an indexed one keep their order in
        // memory.
        let tail = dims.last().map_or(x.rank(), |&d| x.rank() - 1 - d);
        let tail = if dims.is_empty() { 0 } else { tail };
        let lead = out.rank() - tail;
        let len: usize = out[lead..].iter().product();
        let picks = dims.iter().map(|&d| {
            let shape = site.cx.shape(d + 1)?;
            let (own, skip) = (shape.strides(), index.rank() - shape.rank());
            let mut walk = vec![0; lead];
            for i in 0..shape.rank() {
                walk[first + skip + i] = if shape[i] == 1 { 0 } else { own[i] };
            }
            Ok((d + 1, Grid::new(&out[..lead], &walk), x[d], strides[d] as usize))
        });
        let picks = picks.collect::<Result<Vec<_>>>()?;
        let rest = Grid::new(&out[..lead], &rest[..lead]);
        Ok(Runs { len, rest, picks, wrap, out, lead })
    }

    /// Checks all indices.
    pub fn check(&self, args: &Args) -> Result<()> {
        let one =
            |pick: &(usize, Grid, usize, usize)| Indices::of(args.read(pick.0)?)?.check(pick.2, self.wrap);
        self.picks.iter().try_for_each(one)
    }

    /// First element in the tensor of each run from one on; the indices were checked.
    pub fn starts<'a>(&'a self, reads: &'a [Option<View>], from: usize) -> impl Iterator<Item = usize> + 'a {
        let mut walks = [const { None }; MAX_RANK];
        for (slot, (input, grid, limit, stride)) in walks.iter_mut().zip(&self.picks) {
            let index = reads[*input].as_ref().and_then(|v| Indices::of(v).ok());
            *slot = index.map(|index| (index, grid.from(from), *limit, *stride));
        }
        let mut rest = self.rest.from(from);
        std::iter::from_fn(move || {
            let mut at = rest.next()?;
            for (index, walk, limit, stride) in walks.iter_mut().flatten() {
                at += index.place(walk.next()?, *limit) * *stride;
            }
            Some(at)
        })
    }
}

fn index(site: &Site) -> Result<Prepared> {
    let runs = Runs::new(site, site.cx.inputs.len())?;
    Ok(Box::new(move |args| bits_of!(args.writes[0].dtype(), T => index_bits::<T>(&runs, args))))
}

fn index_bits<T: bytemuck::Pod + Send + Sync>(runs: &Runs, args: &mut Args) -> Result<()> {
    runs.check(args)?;
    let x: &[T] = bytemuck::cast_slice(args.read(0)?.bytes());
    if runs.len == 0 {
        return Ok(());
    }
    let group = (GRAIN / runs.len).max(1);
    let reads = args.reads;
    let out: &mut [T] = bytemuck::cast_slice_mut(args.writes[0].bytes_mut());
    args.pool.chunks(out, group * runs.len, |g, out| {
        for (out, from) in out.chunks_exact_mut(runs.len).zip(runs.starts(reads, g * group)) {
            out.copy_from_slice(&x[from..from + runs.len]);
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
