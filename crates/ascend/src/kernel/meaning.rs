//! Facts about single instructions: pipes, values, results.

use super::instr::*;
use super::op::{Barrier, Reduction, Scaled};
use super::operand::Order;
use super::scalar::Value;
use super::{Base, Elem, Pipe, Program, Space};

impl<S> Instr<S> {
    /// The pipe that the instruction runs on; `None` for barriers of all pipes or cores, which hold the core
    /// up.
    pub fn pipe(&self, program: &Program) -> Option<Pipe> {
        Some(match self {
            Instr::DataCopy(x) => copy_pipe(program.space(x.dst.base), program.space(x.src.base)),
            Instr::DataCopyPad(x) => copy_pipe(program.space(x.dst.base), program.space(x.src.base)),
            Instr::CopyNdToNz(_) => Pipe::Mte2,
            Instr::LoadData2d(x) if program.space(x.src.base) == Space::Gm => Pipe::Mte2,
            Instr::InitConst(x) if program.space(x.dst.base) == Space::L1 => Pipe::Mte2,
            Instr::LoadData2d(_)
            | Instr::LoadDataTransposed(_)
            | Instr::LoadData3d(_)
            | Instr::InitConst(_) => Pipe::Mte1,
            Instr::Mmad(_) => Pipe::M,
            Instr::Fixpipe(_) => Pipe::Fix,
            Instr::Load(_) | Instr::Store(_) | Instr::CacheFlush(_) | Instr::SyncSoft(_) => Pipe::S,
            Instr::SetFlag(x) => x.from,
            Instr::WaitFlag(x) => x.to,
            Instr::CrossSet(x) => x.pipe,
            Instr::CrossWait(x) => x.pipe,
            Instr::Barrier(barrier) => match barrier {
                Barrier::V => Pipe::V,
                Barrier::M => Pipe::M,
                Barrier::Mte1 => Pipe::Mte1,
                Barrier::Mte2 => Pipe::Mte2,
                Barrier::Mte3 => Pipe::Mte3,
                Barrier::Fix => Pipe::Fix,
                Barrier::All | Barrier::Cores => return None,
            },
            _ => Pipe::V,
        })
    }
}

/// The unit that a reduction makes one value of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReductionKind {
    /// A repeat.
    Whole,
    /// A block.
    Block,
    /// Two neighbours.
    Pair,
}

impl Reduction {
    /// The unit that it makes one value of.
    pub const fn kind(self) -> ReductionKind {
        match self {
            Reduction::WholeSum | Reduction::WholeMax | Reduction::WholeMin => ReductionKind::Whole,
            Reduction::BlockSum | Reduction::BlockMax | Reduction::BlockMin => ReductionKind::Block,
            Reduction::PairSum => ReductionKind::Pair,
        }
    }
}

impl<S> Reduce<S> {
    /// Elements that a whole repeat's reduction writes: a value, or a value and its index.
    pub const fn results(&self) -> u64 {
        match self.order {
            Some(Order::ValueIndex | Order::IndexValue) => 2,
            _ => 1,
        }
    }
}

impl GatherMask<Value> {
    /// True if the pattern picks element `i` of a repeat.
    pub const fn picks(&self, i: u64) -> bool {
        match self.pattern {
            1 => i & 1 == 0,
            2 => i & 1 == 1,
            3..=6 => i % 4 == self.pattern as u64 - 3,
            _ => true,
        }
    }

    /// Elements that the pattern picks of a repeat.
    pub fn picked(&self) -> u64 {
        (0..self.count.as_int().max(0) as u64).filter(|&i| self.picks(i)).count() as u64
    }
}

impl<S> Instr<S> {
    /// The scalar that is an element's value, and the element's type; all other scalars are integers.
    pub fn value(&self) -> Option<(&S, Elem)> {
        Some(match self {
            Instr::ScaledOp(x) if !matches!(x.op, Scaled::ShiftLeft | Scaled::ShiftRight) => {
                (&x.scalar, x.dst.view.elem)
            }
            Instr::Duplicate(x) => (&x.value, x.dst.view.elem),
            Instr::CompareScalar(x) => (&x.scalar, x.src.view.elem),
            Instr::SelectScalar(x) => (&x.scalar, x.dst.view.elem),
            Instr::Store(x) => (&x.value, x.dst.elem),
            Instr::InitConst(x) => (&x.value, x.dst.elem),
            Instr::Ramp(x) => (&x.first, x.dst.elem),
            _ => return None,
        })
    }
}

/// The pipe of a copy between two memories.
const fn copy_pipe(dst: Space, src: Space) -> Pipe {
    match (src, dst) {
        (Space::Gm, _) => Pipe::Mte2,
        (Space::L1, _) => Pipe::Mte1,
        (Space::Ub, Space::Ub) => Pipe::V,
        _ => Pipe::Mte3,
    }
}

impl Instr {
    /// The buffer or parameter and element type of every operand in memory.
    pub fn operands(&self) -> Vec<(&'static str, Base, Elem)> {
        let mut out = Vec::new();
        self.views(&mut |name, view| out.push((name, view.base, view.elem)));
        out
    }
}
