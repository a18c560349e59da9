//! Row programs as kernels. The way is chosen by sizes and strides alone:
//!
//! | way | for | cut |
//! |---|---|---|
//! | flat | no reduction | a thread for each group of neighbouring elements |
//! | rows | reductions | a warp for each row; what a later phase needs stays in registers where rows are short |
//! | long rows | reductions over more than 4096 columns | a block for each row, a warp for each part of it |
//! | column sums | sums over rows | a block for at most 128 rows; the parts are added by a second kernel |
//!
//! The order of sums is the CPU's: 32 lanes of a part of a row, of at most 4096 columns, combined by halves;
//! parts are added in f64. Sums over rows run in f32 over the rows of a block, and in f64 over blocks. So
//! results have the CPU's bits where the functions of a program do.

mod columns;
mod flat;
mod reduce;

use super::axes::{Axis, axes, offset};
use crate::program::{CudaProgram, Param, Work};
use crate::text::{Classes, constant, indented, load, memory, store, value};
use headwater_core::Layout;
use headwater_core::plan::TensorView;
use headwater_core::row::{Instr, RowProgram};
use headwater_launch::{Lowered, LoweredArg, LoweredLaunch, Refusal};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Threads of a block.
const THREADS: usize = 256;
/// Threads of a warp, and lanes of a sum.
const WARP: usize = 32;
/// Most columns that lanes sum before they are combined: the CPU's, and the target's `whole_columns`.
pub(crate) const WHOLE: usize = 4096;
/// Most rows that a block sums in f32: the CPU's.
const SUMMED: usize = 128;
/// Most steps of a warp along a row whose vectors stay in registers, times the vectors.
const KEPT: usize = 64;

struct Writer<'a> {
    p: &'a RowProgram,
    views: &'a [&'a TensorView],
    outer: Vec<Axis>,
    inner: Vec<Axis>,
    classes: Classes,
    scalar: Vec<bool>,
    /// Reductions that a register depends on, one inside the other.
    level: Vec<usize>,
    out: String,
    /// Names of what is at hand: row scalars, and vectors of the column at hand.
    scalars: BTreeMap<usize, String>,
    vectors: BTreeMap<usize, String>,
}

/// The launches of a row program. `op` is the operator's name; operands are in their order, reads first.
///
/// # Errors
/// Programs that have no kernel, with the reason.
pub fn rows(op: &str, p: &RowProgram, views: &[&TensorView]) -> Result<Lowered<CudaProgram>, Refusal> {
    // A kernel's operand begins at its first element.
    let reversed = |l: &Layout| l.strides.iter().zip(l.shape.iter()).any(|(&s, &n)| s < 0 && n > 1);
    if views.iter().any(|v| reversed(&v.layout)) {
        return Err(Refusal::new("an operand with negative strides"));
    }
    let of = p.classes().map_err(Refusal)?;
    let classes = Classes { of, wide: p.computes_in_f64() };
    let (outer, inner) = axes(p, views);
    let scalar = p.scalars();
    let mut level: Vec<usize> = Vec::with_capacity(p.body.len());
    for instr in &p.body {
        let mut most = 0;
        let _ = instr.map(|r| {
            most = most.max(level[r]);
            r
        });
        level.push(most + usize::from(matches!(instr, Instr::Reduce(..))));
    }
    let (scalars, vectors) = Default::default();
    let mut w =
        Writer { p, views, outer, inner, classes, scalar, level, out: String::new(), scalars, vectors };
    if p.body.iter().any(|i| matches!(i, Instr::Columns(..))) {
        return w.column_sums(op);
    }
    let folds = p.body.iter().any(|i| matches!(i, Instr::Reduce(..)));
    if folds || w.stores_of_rows() && p.cols() != 1 {
        return w.by_rows(op);
    }
    w.flat(op)
}

/// Bytes from a view's first element to its last one's end.
pub(crate) fn span(view: &TensorView) -> u64 {
    let last: i64 = (view.layout.shape.iter().zip(&view.layout.strides))
        .map(|(&n, &s)| (s as i64 * (n as i64 - 1)).max(0))
        .sum();
    if view.layout.shape.contains(&0) { 0 } else { (last as u64 + 1) * view.dtype.size() as u64 }
}

/// A symbol from an operator's name.
pub(crate) fn symbol(op: &str, way: &str) -> String {
    let clean = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("hw_{}_{way}", op.chars().map(clean).collect::<String>())
}

impl Writer<'_> {
    fn line(&mut self, text: &str) {
        self.out.push_str("    ");
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// True if a store writes one element for each row.
    fn is_row_store(&self, write: usize) -> bool {
        let split = self.p.outer.len();
        self.p.writes[write].access.0[split..].iter().all(Option::is_none)
    }

    fn stores_of_rows(&self) -> bool {
        self.p.body.iter().any(|i| matches!(*i, Instr::Store(w, _) if self.is_row_store(w)))
    }

    /// Number of the walk of an index.
    fn iota(&self, reg: usize) -> usize {
        let before = self.p.body[..reg].iter().filter(|i| matches!(i, Instr::Iota(_))).count();
        self.p.reads.len() + self.p.writes.len() + before
    }

    /// An operand's memory.
    fn pointer(&self, operand: usize) -> String {
        format!("({}*)hw_a.p[{operand}]", memory(self.views[operand].dtype))
    }

    /// A name of a constant or of what is at hand.
    fn name(&self, reg: usize) -> String {
        if let Some(name) = self.vectors.get(&reg).or_else(|| self.scalars.get(&reg)) {
            return name.clone();
        }
        match self.p.body[reg] {
            Instr::Float(x) => format!("({})", constant(x, self.classes.wide)),
            _ => value(&self.p.body[reg], &self.classes, |_| String::new())
                .map_or_else(|| format!("q{reg}"), |v| format!("({v})")),
        }
    }

    fn is_constant(&self, reg: usize) -> bool {
        matches!(self.p.body[reg], Instr::Float(_) | Instr::Int(_) | Instr::Bool(_))
    }

    /// The registers that one is computed from.
    fn args(&self, reg: usize) -> Vec<usize> {
        let mut args = Vec::new();
        let _ = self.p.body[reg].map(|r| {
            args.push(r);
            r
        });
        args
    }

    /// Adds registers that must be computed for one, as far as they are not at hand.
    fn need(&self, reg: usize, needed: &mut BTreeSet<usize>) {
        let mut open = vec![reg];
        while let Some(reg) = open.pop() {
            let known = self.scalars.contains_key(&reg) || self.vectors.contains_key(&reg);
            if known || self.is_constant(reg) || !needed.insert(reg) {
                continue;
            }
            if !matches!(self.p.body[reg], Instr::Reduce(..)) {
                open.extend(self.args(reg));
            }
        }
    }

    /// Writes registers at coordinates, under a prefix.
    fn compute(&mut self, needed: &BTreeSet<usize>, at: &[(Vec<Axis>, &str)], prefix: &str, row: bool) {
        for &reg in needed {
            let axes: Vec<(&[Axis], &str)> = at.iter().map(|(a, n)| (a.as_slice(), *n)).collect();
            let expr = match self.p.body[reg] {
                Instr::Load(i) => {
                    let raw = format!("hw_ld({}, {})", self.pointer(i), offset(&axes, i));
                    load(self.views[i].dtype, &raw, self.classes.wide)
                }
                Instr::Iota(_) => offset(&axes, self.iota(reg)),
                _ => value(&self.p.body[reg], &self.classes, |r| self.name(r)).unwrap_or_default(),
            };
            let name = format!("{prefix}{reg}");
            let text = format!("const {} {name} = {expr};", self.classes.ty(reg));
            self.line(&text);
            if row { &mut self.scalars } else { &mut self.vectors }.insert(reg, name);
        }
    }

    /// Writes the row scalars of at most a level of reductions that are not at hand. Reductions are.
    fn row_scalars(&mut self, level: usize, only: Option<&BTreeSet<usize>>) {
        let needed = |reg: &usize| {
            let stores =
                matches!(self.p.body[*reg], Instr::Store(..) | Instr::Columns(..) | Instr::Reduce(..));
            let asked = only.is_none_or(|only| only.contains(reg));
            let known = self.scalars.contains_key(reg) || self.is_constant(*reg);
            self.scalar[*reg] && !stores && !known && asked && self.level[*reg] <= level
        };
        let needed: BTreeSet<usize> = (0..self.p.body.len()).filter(needed).collect();
        let at = [(self.outer.clone(), "o")];
        self.compute(&needed, &at, "q", true);
    }

    /// Stores a register.
    fn store(&mut self, write: usize, reg: usize, at: &[(Vec<Axis>, &str)]) {
        let operand = self.p.reads.len() + write;
        let axes: Vec<(&[Axis], &str)> = at.iter().map(|(a, n)| (a.as_slice(), *n)).collect();
        let value = store(self.views[operand].dtype, &self.name(reg), self.classes.wide);
        let text = format!("hw_st({}, {}, {value});", self.pointer(operand), offset(&axes, operand));
        self.line(&text);
    }

    fn params(&self) -> Vec<Param> {
        let reads = self.p.reads.len();
        let param = |(i, view): (usize, &&TensorView)| Param {
            name: if i < reads { format!("x{i}") } else { format!("y{}", i - reads) },
            writes: i >= reads,
            bytes: span(view),
        };
        self.views.iter().enumerate().map(param).collect()
    }

    fn operands(&self) -> Vec<LoweredArg> {
        let reads = self.p.reads.len();
        let arg = |i| match i < reads {
            true => LoweredArg::Read { operand: i, bytes: 0 },
            false => LoweredArg::Write { operand: i - reads, bytes: 0 },
        };
        (0..self.views.len()).map(arg).collect()
    }

    fn doc(&self, op: &str, way: &str) -> Vec<String> {
        let (rows, cols) = (self.p.rows(), self.p.cols());
        vec![format!("{op}: {}", self.p.functions()), format!("{rows} rows of {cols} columns, {way}")]
    }

    /// Stores of the program: result and register.
    fn stores(&self) -> Vec<(usize, usize)> {
        let store = |i: &Instr| match *i {
            Instr::Store(w, r) => Some((w, r)),
            _ => None,
        };
        self.p.body.iter().filter_map(store).collect()
    }

    fn launched(
        &mut self,
        op: &str,
        way: &str,
        about: &str,
        threads: usize,
        shared: usize,
        blocks: u32,
    ) -> Lowered<CudaProgram> {
        let body = indented(&std::mem::take(&mut self.out));
        let work =
            Work::Text { doc: self.doc(op, about), body, threads: threads as u32, shared: shared as u32 };
        let program = CudaProgram { name: symbol(op, way), params: self.params(), work };
        let launch = LoweredLaunch { program: Arc::new(program), args: self.operands(), blocks };
        Lowered { launches: vec![launch], ..Lowered::default() }
    }
}
