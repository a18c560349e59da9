//! A gather's shape, the positions of its tasks, and their reports of wrong indices.

use crate::kernel::{Buf, Builder, Elem, Gm, Pipe, Scalar, ScalarType, VarId};

/// Positions of a task: few enough that all cores have some, many enough that their indices are one copy. The
/// last task has what is left beside.
pub(super) const SHARE: u64 = 256;
/// Shapes of [`gather_rows`](fn@super::gather_rows).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatherRows {
    /// Type of the table's elements, which are moved as they are.
    pub elem: Elem,
    /// Type of indices, i32 or i64.
    pub index: Elem,
    /// Number of indices, n.
    pub indices: u64,
    /// Rows of the table, r.
    pub rows: u64,
    /// Elements of a row, d.
    pub dim: u64,
    /// True if an index outside of the table stands for a row of another, `base`, at the index's own
    /// position.
    pub merged: bool,
}

impl GatherRows {
    /// Reports that the kernel writes: one for each task.
    pub const fn reports(&self) -> u64 {
        let whole = self.indices / SHARE;
        if whole == 0 { 1 } else { whole }
    }

    /// First position of a task, and how many it has.
    pub(super) fn task(&self, k: &mut Builder, task: &Scalar) -> (Scalar, Scalar) {
        let start = k.let_("start", task.clone() * SHARE);
        let rest = self.indices - (self.reports() - 1) * SHARE;
        let is_last = task.clone().eq(self.reports() - 1);
        let len = k.let_("len", is_last * (Scalar::from(rest) - SHARE) + SHARE);
        (start, len)
    }
}

/// The report of a task about wrong indices.
pub(super) struct Report {
    wrong: VarId,
    first: VarId,
    index: VarId,
    near: Buf,
}

impl Report {
    /// Its variables and buffer, which may be written.
    pub fn declare(k: &mut Builder) -> Report {
        let [wrong, first, index] =
            ["wrong", "first", "first_index"].map(|name| k.var(name, ScalarType::Int));
        k.set_flag(Pipe::Mte3, Pipe::S, 0);
        Report { wrong, first, index, near: k.ub("report", Elem::I32, 8) }
    }

    /// Nothing is wrong so far.
    pub fn begin(&self, k: &mut Builder) {
        k.set(self.wrong, 0);
        k.set(self.first, -1);
        k.set(self.index, 0);
    }

    /// One more index is wrong.
    pub fn add(&self, k: &mut Builder, position: &Scalar, index: &Scalar) {
        k.if_(Scalar::Var(self.wrong).eq(0), |k| {
            k.set(self.first, position.clone());
            k.set(self.index, index.clone());
        });
        k.set(self.wrong, self.wrong + 1);
    }

    /// The task is done.
    pub fn write(&self, k: &mut Builder, fault: Gm, task: &Scalar) {
        k.wait_flag(Pipe::Mte3, Pipe::S, 0);
        k.store(self.near.at(0), self.wrong);
        k.store(self.near.at(1), self.first);
        k.store(self.near.cast(Elem::I64).at(1), self.index);
        for word in 4..8 {
            k.store(self.near.at(word), 0);
        }
        k.flag(Pipe::S, Pipe::Mte3, 3);
        k.copy(fault.at(task.clone() * 8), self.near.at(0), 8);
        k.set_flag(Pipe::Mte3, Pipe::S, 0);
    }

    /// All tasks of the core are done.
    pub fn end(&self, k: &mut Builder) {
        k.wait_flag(Pipe::Mte3, Pipe::S, 0);
    }
}
