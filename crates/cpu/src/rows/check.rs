//! Checks a row program against its operands. Every element it will touch is in its segment, results are
//! disjoint, and an operand written in place is the very elements that were read. The unsafe code of
//! `interpret` and `x86` rests on these checks.

use super::space::{Axis, injective, merge};
use super::types::Ty;
use crate::view::{Place, View, ViewMut, reach};
use headwater_core::diagnostic::Result;
use headwater_core::plan::Plan;
use headwater_core::row::{Instr, RowProgram};
use headwater_core::{Class, DType, ensure, fail};

/// A program over axes shared by all operands: reads, then writes, then one for each `Iota`, which only
/// counts.
#[derive(Debug)]
pub(super) struct Checked<'a> {
    pub program: &'a RowProgram,
    /// Class of each instruction's register.
    pub classes: Vec<Option<Class>>,
    /// Type floats are computed in: f64 if an f64 takes part, else f32.
    pub float: Ty,
    pub rows: Vec<Axis>,
    pub cols: Vec<Axis>,
    /// Places of reads and writes.
    pub sites: Vec<Site>,
    /// Number of operands, counters included.
    pub operands: usize,
    /// Operand number of each `Iota`, by instruction.
    pub counters: Vec<Option<usize>>,
    /// True if an operand moves along the columns.
    pub moves: Vec<bool>,
}

/// The place of an operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    pub place: Place,
    pub dtype: DType,
    /// Overlaps an operand of the other kind (read against written).
    pub shared: bool,
}

impl<'a> Checked<'a> {
    /// Checks a program against its operands.
    ///
    /// # Errors
    /// `Plan`: ill-formed, outside a segment, or overlapping.
    pub fn new(plan: &Plan, p: &'a RowProgram, reads: &[&View], writes: &[ViewMut]) -> Result<Checked<'a>> {
        let classes = p.classes().map_err(|m| fail!(Plan, "{m}"))?;
        let counts = (reads.len(), writes.len());
        ensure!(
            counts == (p.reads.len(), p.writes.len()),
            Plan,
            "the program has other operands than its step"
        );
        let views: Vec<&View> = reads.iter().copied().chain(writes.iter().map(|w| &**w)).collect();
        let stated = || p.reads.iter().chain(&p.writes);
        for (o, v) in stated().zip(&views) {
            ensure!(o.dtype == v.dtype(), Plan, "an operand is {}, the program says {}", v.dtype(), o.dtype);
        }
        let double = stated().any(|o| o.dtype == DType::F64)
            || p.body.iter().any(|i| matches!(i, Instr::Cast(DType::F64, _)));

        // Steps of every operand along every iteration dimension.
        let dims: Vec<usize> = p.outer.iter().chain(&p.inner).copied().collect();
        let mut axes: Vec<Axis> = dims.iter().map(|&size| Axis { size, steps: Vec::new() }).collect();
        for (o, v) in stated().zip(&views) {
            for (axis, access) in axes.iter_mut().zip(&o.access.0) {
                let step = match *access {
                    None => 0,
                    Some((dim, times)) => v
                        .strides()
                        .get(dim)
                        .and_then(|s| s.checked_mul(isize::try_from(times).ok()?))
                        .ok_or_else(|| fail!(Plan, "an access names dimension {dim} of {}", v.ty()))?,
                };
                axis.steps.push(if axis.size == 1 { 0 } else { step });
            }
        }
        let mut counters = vec![None; p.body.len()];
        for (at, instr) in p.body.iter().enumerate() {
            if let Instr::Iota(coefficients) = instr {
                counters[at] = axes.first().map(|a| a.steps.len());
                for (axis, &c) in axes.iter_mut().zip(coefficients) {
                    axis.steps.push(if axis.size == 1 { 0 } else { c as isize });
                }
            }
        }
        let operands = axes.first().map_or(views.len(), |a| a.steps.len());
        let cols = axes.split_off(p.outer.len());
        let moves = (0..operands).map(|o| cols.iter().any(|a| a.steps[o] != 0)).collect();
        let mut source = Checked {
            program: p,
            classes,
            float: if double { Ty::F64 } else { Ty::F32 },
            rows: axes,
            cols,
            sites: Vec::new(),
            operands,
            counters,
            moves,
        };
        source.check_bounds(plan, &views)?;
        source.check_writes()?;
        let shared = source.check_overlaps(&views, reads.len())?;
        let site = |(v, shared): (&&View, bool)| Site { place: v.place(), dtype: v.dtype(), shared };
        source.sites = views.iter().zip(shared).map(site).collect();
        source.arrange();
        Ok(source)
    }

    /// Every element that the iteration reaches is in its operand's segment.
    fn check_bounds(&self, plan: &Plan, views: &[&View]) -> Result<()> {
        for (o, v) in views.iter().enumerate() {
            // An operand that moves along empty axes is never touched.
            let touched: Vec<&Axis> =
                self.rows.iter().chain(self.cols.iter().filter(|_| self.moves[o])).collect();
            let sizes: Vec<usize> = touched.iter().map(|a| a.size).collect();
            let steps: Vec<isize> = touched.iter().map(|a| a.steps[o]).collect();
            if sizes.contains(&0) {
                continue;
            }
            let place = v.place();
            let size = v.dtype().size() as isize;
            let inside = reach(&sizes, &steps).and_then(|(lo, hi)| {
                let first = isize::try_from(place.byte).ok()?;
                let low = first.checked_add(lo.checked_mul(size)?)?;
                let end = first.checked_add(hi.checked_add(1)?.checked_mul(size)?)?;
                Some(low >= 0 && end as usize <= plan.segments[place.segment].bytes)
            });
            ensure!(inside == Some(true), Plan, "the program reaches outside of operand {o}, {}", v.ty());
        }
        Ok(())
    }

    /// Stores name every element once, and vectors are stored to vectors.
    fn check_writes(&self) -> Result<()> {
        let scalars = self.program.scalars();
        for instr in &self.program.body {
            let (w, axes): (usize, Vec<&Axis>) = match *instr {
                Instr::Store(w, r) => {
                    let o = self.program.reads.len() + w;
                    // A row scalar is stored even where there are no columns.
                    let one = !self.moves[o] && super::space::count(&self.cols) != 1;
                    ensure!(scalars[r] || !one, Plan, "a vector is stored to one element for each row");
                    (w, self.rows.iter().chain(self.cols.iter().filter(|_| !one)).collect())
                }
                Instr::Columns(w, r) => {
                    let class = self.classes[r];
                    ensure!(class != Some(Class::Bool), Plan, "bools have no column sums");
                    (w, self.cols.iter().collect())
                }
                _ => continue,
            };
            // What stores nothing overlaps nothing.
            let apart = axes.iter().any(|a| a.size == 0) || injective(&axes, self.program.reads.len() + w);
            ensure!(apart, Plan, "result {w} of the program overlaps itself");
        }
        Ok(())
    }

    /// Results have no element in common with each other, nor with what is read unless they are the same
    /// elements in the same order.
    fn check_overlaps(&self, views: &[&View], reads: usize) -> Result<Vec<bool>> {
        let mut shared = vec![false; views.len()];
        for w in reads..views.len() {
            for o in 0..w {
                if !views[o].meets(views[w]) {
                    continue;
                }
                if o >= reads {
                    ensure!(self.interleave(views, o, w), Plan, "two results of the program overlap");
                    continue;
                }
                let axes = || self.rows.iter().chain(&self.cols);
                let same = views[o].place() == views[w].place()
                    && views[o].dtype() == views[w].dtype()
                    && axes().all(|a| a.steps[o] == a.steps[w]);
                ensure!(
                    same,
                    Plan,
                    "result {} of the program overlaps other elements of input {o}",
                    w - reads
                );
                (shared[o], shared[w]) = (true, true);
            }
        }
        Ok(shared)
    }

    /// True if two results that cover the same bytes take turns there, as the two halves of each row do: the
    /// choice between them is then one more axis along which no element repeats. (Sufficient, as
    /// [`injective`].)
    fn interleave(&self, views: &[&View], o: usize, w: usize) -> bool {
        let (a, b) = (views[o].place(), views[w].place());
        let apart = a.byte.abs_diff(b.byte);
        let size = views[o].dtype().size();
        let axes: Vec<&Axis> = self.rows.iter().chain(&self.cols).collect();
        let alike = views[o].dtype() == views[w].dtype() && axes.iter().all(|x| x.steps[o] == x.steps[w]);
        let Ok(step) = isize::try_from(apart / size) else { return false };
        let choice = Axis { size: 2, steps: vec![step; self.operands] };
        alike && apart.is_multiple_of(size) && injective(&[&axes[..], &[&choice]].concat(), w)
    }

    /// True if no element of the space depends on another: rows and columns are then all alike.
    fn pointwise(&self) -> bool {
        let reads = self.program.reads.len();
        self.program.body.iter().all(|i| match i {
            Instr::Reduce(..) | Instr::Columns(..) => false,
            Instr::Store(w, _) => {
                self.rows.iter().chain(&self.cols).all(|a| a.size == 1 || a.steps[reads + w] != 0)
            }
            _ => true,
        })
    }

    /// The operand whose order in memory matters most: the first that names the most elements.
    fn primary(&self) -> Option<usize> {
        let named = |o: usize| -> usize {
            let axes = self.rows.iter().chain(&self.cols);
            axes.filter(|a| a.steps[o] != 0).map(|a| a.size).product()
        };
        (0..self.sites.len()).max_by_key(|&o| (named(o), std::cmp::Reverse(o)))
    }

    /// Orders the axes by memory, joins them, and for pointwise programs divides them into rows and columns
    /// anew.
    fn arrange(&mut self) {
        let empty = |axes: &[Axis]| axes.iter().any(|a| a.size == 0);
        if empty(&self.rows) || empty(&self.cols) {
            // An empty space has no order. If only the columns are empty, row scalars are still computed.
            for axes in [&mut self.rows, &mut self.cols] {
                let void = vec![Axis { size: 0, steps: vec![0; self.operands] }];
                *axes = if empty(axes) { void } else { merge(std::mem::take(axes)) };
            }
            return;
        }
        let by_memory = |mut axes: Vec<Axis>, operand: Option<usize>| {
            if let Some(o) = operand {
                axes.sort_by_key(|a| std::cmp::Reverse(a.steps[o].unsigned_abs()));
            }
            merge(axes)
        };
        let (pointwise, primary) = (self.pointwise(), self.primary());
        let (rows, cols) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.cols));
        if pointwise {
            let reads = self.program.reads.len();
            let result = (self.sites.len() > reads).then_some(reads);
            self.rows = by_memory(rows.into_iter().chain(cols).collect(), result.or(primary));
            self.cols = self.rows.pop().into_iter().collect();
            // A transposition reads along another axis than it writes: that one becomes the last of the rows,
            // so that a tile spans both.
            let step = |a: &Axis, o: usize| a.steps[o].unsigned_abs();
            let crosswise = (0..reads)
                .filter(|&o| self.cols.first().is_some_and(|c| step(c, o) > 1))
                .find_map(|o| self.rows.iter().position(|a| step(a, o) == 1));
            if let Some(at) = crosswise {
                let axis = self.rows.remove(at);
                self.rows.push(axis);
            }
        } else {
            self.rows = by_memory(rows, primary);
            self.cols = by_memory(cols, primary);
        }
        self.moves = (0..self.operands).map(|o| self.cols.iter().any(|a| a.steps[o] != 0)).collect();
    }

    /// Bytes of all elements that the program names.
    pub fn bytes(&self) -> usize {
        let axes = || self.rows.iter().chain(&self.cols);
        let named = |o: usize| axes().filter(|a| a.steps[o] != 0).map(|a| a.size).product::<usize>();
        self.sites.iter().enumerate().map(|(o, s)| named(o) * s.dtype.size()).sum()
    }

    /// True if a tile should span rows and columns because an operand is read along one and written along the
    /// other.
    pub fn crosswise(&self) -> bool {
        let reads = self.program.reads.len();
        let (Some(row), Some(col)) = (self.rows.last(), self.cols.last()) else { return false };
        (0..reads).any(|o| row.steps[o].unsigned_abs() == 1 && col.steps[o].unsigned_abs() > 1)
    }

    /// True if rows, not columns, are contiguous in the operand that matters most.
    pub fn across(&self) -> bool {
        let (Some(row), Some(col), Some(o)) = (self.rows.last(), self.cols.last(), self.primary()) else {
            return false;
        };
        let sums = self.program.body.iter().any(|i| matches!(i, Instr::Columns(..)));
        !sums && !self.pointwise() && row.steps[o].unsigned_abs() == 1 && col.steps[o].unsigned_abs() > 1
    }

    /// True if each instruction's register is a row scalar over the axes as arranged.
    pub fn scalars(&self) -> Vec<bool> {
        let mut s: Vec<bool> = Vec::with_capacity(self.program.body.len());
        for (at, instr) in self.program.body.iter().enumerate() {
            s.push(match *instr {
                Instr::Load(i) => !self.moves[i],
                Instr::Iota(_) => self.counters[at].is_none_or(|o| !self.moves[o]),
                Instr::Float(_) | Instr::Int(_) | Instr::Bool(_) | Instr::Reduce(..) => true,
                Instr::Unary(_, a) | Instr::Cast(_, a) => s[a],
                Instr::Binary(_, a, b) => s[a] && s[b],
                Instr::Select(c, a, b) => s[c] && s[a] && s[b],
                Instr::Store(..) | Instr::Columns(..) => false,
            });
        }
        s
    }
}
