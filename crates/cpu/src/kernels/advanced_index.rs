//! Advanced indexing, as `index` reads and `_index_put_impl` writes. The places that indices name are found
//! once in each run, and then rows of neighbouring elements are moved or added.
//!
//! The result is `[outer, picked, beside, row]`: the dimensions before the indexed ones, those of the
//! indices, those between indexed ones, and those after the last. Its row `(o, p, b)` is the row of the
//! tensor that begins at `o · span + places[p] + beside[b]`.

use super::Site;
use super::grid::GRAIN;
use super::grid::{Grid, Indices};
use crate::pool::Pool;
use crate::view::View;
use headwater_core::diagnostic::Result;
use headwater_core::fail;
use headwater_core::ops::index::index_tensor::Indexing;
use std::ops::Range;

/// Rows indexed by tensors.
pub(super) struct AdvancedIndex {
    /// Sizes of the dimensions before the indexed ones, of the indices, and of a row.
    pub outer: usize,
    pub picked: usize,
    pub row: usize,
    /// Offsets in the tensor of the dimensions between indexed ones.
    pub beside: Grid,
    /// Elements of the tensor from one outer index to the next.
    span: usize,
    /// For each index: its input, the offset in it for each pick, limit and stride of its dimension.
    indices: Vec<(usize, Grid, usize, usize)>,
    wrap: bool,
    /// Shape of the result, and how many of its dimensions count rows.
    pub out: Vec<usize>,
    pub lead: usize,
}

impl AdvancedIndex {
    /// The plan of input 0, indexed by inputs `1..end`.
    pub fn new(site: &Site, end: usize) -> Result<AdvancedIndex> {
        let (x, indexing) = (site.cx.shape(0)?, Indexing::of(&site.cx, end)?);
        let strides = x.strides();
        let Indexing { dims, index, first, out, wrap } = indexing;
        // Trailing dimensions that are not indexed keep their order in memory.
        let tail = dims.last().map_or(x.rank(), |&d| x.rank() - 1 - d);
        let lead = out.rank() - tail;
        let between = first + index.rank()..lead;
        let (sizes, steps): (Vec<usize>, Vec<isize>) = (0..x.rank())
            .filter(|d| !dims.contains(d))
            .map(|d| (x[d], strides[d]))
            .skip(first)
            .take(between.len())
            .unzip();
        let indices = dims.iter().map(|&d| {
            let shape = site.cx.shape(d + 1)?;
            let (own, skip) = (shape.strides(), index.rank() - shape.rank());
            let mut walk = vec![0; index.rank()];
            for i in 0..shape.rank() {
                walk[skip + i] = if shape[i] == 1 { 0 } else { own[i] };
            }
            Ok((d + 1, Grid::new(&index, &walk), x[d], strides[d] as usize))
        });
        Ok(AdvancedIndex {
            outer: out[..first].iter().product(),
            picked: index.numel(),
            row: out[lead..].iter().product(),
            beside: Grid::new(&sizes, &steps),
            span: x[first.min(x.rank())..].iter().product(),
            indices: indices.collect::<Result<Vec<_>>>()?,
            wrap,
            out: out.to_vec(),
            lead,
        })
    }

    /// Bytes of workspace for the places.
    pub fn workspace(&self) -> usize {
        (self.picked * size_of::<usize>()).next_multiple_of(64)
    }

    /// Finds the place of every pick.
    ///
    /// # Errors
    /// `Value` for the first index that is out of range.
    pub fn places<'a>(&self, reads: &[Option<View>], workspace: &'a mut [u8]) -> Result<&'a [usize]> {
        let bytes = self.picked * size_of::<usize>();
        // An empty workspace need not be aligned, which the cast would demand.
        let places: &mut [usize] =
            if bytes == 0 { &mut [] } else { bytemuck::cast_slice_mut(&mut workspace[..bytes]) };
        places.fill(0);
        for (input, grid, limit, stride) in &self.indices {
            let view = reads.get(*input).and_then(Option::as_ref);
            let index = Indices::of(view.ok_or_else(|| fail!(Attribute, "input {input} is missing"))?)?;
            index.check(*limit, self.wrap)?;
            match grid.as_is() {
                true => {
                    places.iter_mut().enumerate().for_each(|(at, p)| *p += index.place(at, *limit) * stride)
                }
                false => places
                    .iter_mut()
                    .zip(grid.from(0))
                    .for_each(|(p, at)| *p += index.place(at, *limit) * stride),
            }
        }
        Ok(places)
    }

    /// First element in the tensor of some consecutive rows of the result.
    pub fn starts<'a>(&'a self, places: &'a [usize], rows: Range<usize>) -> impl Iterator<Item = usize> + 'a {
        let each = self.beside.numel().max(1);
        let (mut pick, mut o) =
            (rows.start / each % self.picked.max(1), rows.start / each / self.picked.max(1));
        let mut beside = self.beside.from(rows.start % each);
        (0..rows.len()).map(move |_| {
            let b = beside.next().unwrap_or_else(|| {
                (pick, beside) = (pick + 1, self.beside.from(0));
                if pick == self.picked {
                    (pick, o) = (0, o + 1);
                }
                beside.next().unwrap_or(0)
            });
            o * self.span + places[pick] + b
        })
    }

    /// Calls `f(start of a row in the tensor, row of the result)` for every row. Rows at one place are
    /// visited sequentially, by one thread.
    ///
    /// Threads divide what cannot meet: outer indices if these are many, places otherwise. A thread then
    /// looks at all picks and takes those of its part of the tensor.
    pub fn each(&self, pool: &Pool, places: &[usize], f: impl Fn(usize, usize) + Sync) {
        let (each, beside) = (self.picked * self.beside.numel(), self.beside.numel());
        if each * self.row == 0 {
            return;
        }
        let group = (GRAIN / (each * self.row)).max(1);
        // Looking at a pick costs about as much as adding so many elements.
        const LOOK: usize = 4;
        let parts = match self.outer.div_ceil(group) {
            8.. => 1,
            _ if each * self.row < GRAIN => 1,
            _ => (1 + self.row * beside / LOOK).clamp(2, 16),
        };
        let part = self.span.div_ceil(parts);
        pool.each(self.outer.div_ceil(group) * parts, |at| {
            let (mine, first) = (at % parts * part..(at % parts + 1) * part, at / parts * group);
            for o in first..self.outer.min(first + group) {
                let rows = places.iter().enumerate().filter(|(_, place)| parts == 1 || mine.contains(place));
                for (pick, place) in rows {
                    let row = o * each + pick * beside;
                    match beside {
                        1 => f(o * self.span + place, row),
                        _ => self
                            .beside
                            .from(0)
                            .enumerate()
                            .for_each(|(b, by)| f(o * self.span + place + by, row + b)),
                    }
                }
            }
        });
    }
}
