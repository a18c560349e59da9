//! Kernel programs: small typed programs of a chip's own instructions.
//!
//! A program is plain data: parameters, buffers with addresses, scalar variables, and for each kind of core a
//! list of statements. It is made by a [`Builder`], checked by [`verify()`], printed and parsed exactly,
//! emitted as Ascend C and executed by the simulator. Nothing here executes anything.

mod builder;
mod check;
mod check_moves;
mod cursor;
mod elem;
mod exists;
pub mod finding;
mod footprint;
mod instr;
mod meaning;
mod op;
mod operand;
mod parse;
mod place;
mod plain;
mod scalar;
mod text;
mod verify;

pub use builder::{Buf, Builder, Gm};
pub use check::{Broken, Known, RAMP_FLAG, check};
pub use elem::{Elem, Pipe, Unit};
pub use exists::{cast_exists, event_exists};
pub(crate) use footprint::plain;
pub use footprint::{Runs, Touch, footprint};
pub use instr::*;
pub use meaning::ReductionKind;
pub use op::*;
pub use operand::{AtomicOp, Base, Compare, Fill, Mask, Order, Over, Round, Scale, UnitFlag, Vector, View};
pub use parse::parse;
pub use place::place;
pub use scalar::{CoreFact, Real, Scalar, ScalarBinary, ScalarType, ScalarUnary, Value};
pub(crate) use text::head;
pub use text::{Show, hash};
pub use verify::verify;

pub use crate::chip::Space;

use crate::chip::Arch;
use headwater_core::graph::Origin;
use std::collections::HashSet;

/// Index of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u32);

/// Index of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Index of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct VarId(pub u32);

/// Index of a source, from 1; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Default)]
pub struct SourceId(pub u32);

/// A kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    /// Symbol: a C identifier.
    pub name: String,
    /// Instructions and memories that it is written for.
    pub arch: Arch,
    /// Lines for people: formula, shapes, method.
    pub doc: Vec<String>,
    /// Parameters in the order of the binary interface.
    pub params: Vec<Param>,
    /// Buffers in the core's memories.
    pub buffers: Vec<Buffer>,
    /// Scalar variables; each part has its own values.
    pub vars: Vec<Var>,
    /// Operators and lines of the model that the program computes.
    pub sources: Vec<Source>,
    /// One part for each kind of core that takes part. With both kinds of A2, two vector cores go with a cube
    /// core.
    pub parts: Vec<Part>,
}

/// A parameter.
#[derive(Clone, PartialEq, Debug)]
pub struct Param {
    /// A C identifier, unique among parameters, buffers and variables.
    pub name: String,
    /// Its kind.
    pub kind: ParamKind,
}

/// Kinds of parameters. In the binary interface pointers, addresses and integers take 8 bytes, floats 4, each
/// aligned to its size.
#[derive(Clone, PartialEq, Debug)]
pub enum ParamKind {
    /// A pointer to `len` elements in GM.
    Pointer {
        /// The kernel's access to it.
        access: Access,
        /// Type of the elements.
        elem: Elem,
        /// Elements that belong to the tensor.
        len: u64,
        /// Elements past their end that may be accessed: whole-block copies on chips without others reach
        /// there.
        slack: u64,
        /// True if reads and writes leave L2 alone (A2): for data that is used once.
        streamed: bool,
    },
    /// `int64_t`
    Int,
    /// `float`
    Float,
    /// Address by which cores of both kinds synchronise (A2), as the runtime gives it. Always the first
    /// parameter.
    Sync,
}

/// Access of a kernel to a pointer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Access {
    /// Reads.
    In,
    /// Writes; the contents before are undefined.
    Out,
    /// Reads and writes.
    InOut,
    /// Workspace of the kernel; contents undefined before and after.
    Workspace,
}

/// A buffer in a memory of the core.
#[derive(Clone, PartialEq, Debug)]
pub struct Buffer {
    /// A C identifier, unique among parameters, buffers and variables.
    pub name: String,
    /// Which memory.
    pub space: Space,
    /// Size in bytes.
    pub bytes: u64,
    /// Offset of the address within 512 bytes, a multiple of 32: operands of one instruction whose phases
    /// differ by 256 meet in no bank. `None`: anywhere.
    pub phase: Option<u32>,
    /// Address; `None` until [`place`](fn@place) has found one.
    pub address: Option<u64>,
}

/// A scalar variable.
#[derive(Clone, PartialEq, Debug)]
pub struct Var {
    /// A C identifier, unique among parameters, buffers and variables.
    pub name: String,
    /// Its type.
    pub ty: ScalarType,
}

/// An operator that the kernel computes, and where the model has it.
#[derive(Clone, PartialEq, Debug)]
pub struct Source {
    /// ATen's name.
    pub op: String,
    /// Node, module, file and line.
    pub origin: Origin,
}

/// The program of the cores of one kind.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// Kind of core.
    pub unit: Unit,
    /// Statements in order.
    pub body: Vec<Stmt>,
}

/// A statement.
#[derive(Clone, PartialEq, Debug)]
pub struct Stmt {
    /// Its kind.
    pub kind: StmtKind,
    /// A comment for people; empty for none.
    pub note: String,
    /// The operator that it belongs to.
    pub source: SourceId,
}

/// Kinds of statements.
#[derive(Clone, PartialEq, Debug)]
pub enum StmtKind {
    /// Issues an instruction.
    Instr(Instr),
    /// Gives a variable a value.
    Let(VarId, Scalar),
    /// Runs `body` with `var` = `from`, `from + step`, … below `to`; the bounds are computed once.
    For {
        /// The variable, an integer.
        var: VarId,
        /// First value.
        from: Scalar,
        /// Bound.
        to: Scalar,
        /// Step, positive.
        step: Scalar,
        /// Statements.
        body: Vec<Stmt>,
    },
    /// Runs one of two lists of statements.
    If {
        /// Not 0: the first.
        cond: Scalar,
        /// Statements.
        then: Vec<Stmt>,
        /// Statements; may be empty.
        otherwise: Vec<Stmt>,
    },
    /// Runs `body` as long as `cond` is not 0.
    While {
        /// Computed before each round.
        cond: Scalar,
        /// Statements.
        body: Vec<Stmt>,
    },
}

impl Param {
    /// Type of a scalar parameter.
    pub const fn scalar(&self) -> Option<ScalarType> {
        match self.kind {
            ParamKind::Int => Some(ScalarType::Int),
            ParamKind::Float => Some(ScalarType::Float),
            ParamKind::Pointer { .. } | ParamKind::Sync => None,
        }
    }

    /// Bytes in the binary interface; also the alignment.
    pub const fn abi_size(&self) -> usize {
        match self.kind {
            ParamKind::Float => 4,
            _ => 8,
        }
    }

    /// Bytes that a pointer's memory must have; 0 for scalars.
    pub const fn bytes(&self) -> u64 {
        match self.kind {
            ParamKind::Pointer { elem, len, slack, .. } => {
                (len.saturating_add(slack)).saturating_mul(elem.size())
            }
            _ => 0,
        }
    }
}

impl Program {
    /// Offset of each parameter in the block of arguments, and the block's size: C's rules for a struct.
    pub fn abi(&self) -> (Vec<usize>, usize) {
        let mut end = 0usize;
        let offsets = self.params.iter().map(|p| {
            let offset = end.next_multiple_of(p.abi_size());
            end = offset + p.abi_size();
            offset
        });
        (offsets.collect(), end.next_multiple_of(8))
    }

    /// Memory that a view's base is in.
    pub fn space(&self, base: Base) -> Space {
        match base {
            Base::Param(_) => Space::Gm,
            Base::Buffer(b) => self.buffers.get(b.0 as usize).map_or(Space::Ub, |b| b.space),
        }
    }

    /// Bytes of a view's base, slack included.
    pub fn size(&self, base: Base) -> u64 {
        match base {
            Base::Param(p) => self.params.get(p.0 as usize).map_or(0, Param::bytes),
            Base::Buffer(b) => self.buffers.get(b.0 as usize).map_or(0, |b| b.bytes),
        }
    }

    /// Name of a view's base.
    pub fn base_name(&self, base: Base) -> &str {
        match base {
            Base::Param(p) => self.params.get(p.0 as usize).map_or("?", |p| &p.name),
            Base::Buffer(b) => self.buffers.get(b.0 as usize).map_or("?", |b| &b.name),
        }
    }

    /// The source of a statement, if it has one.
    pub fn source(&self, id: SourceId) -> Option<&Source> {
        self.sources.get((id.0 as usize).checked_sub(1)?)
    }

    /// True if cores of both kinds take part (A2).
    pub fn mixed(&self) -> bool {
        self.parts.len() > 1
    }

    /// The same without the model's lines: kernels of equal text are one kernel.
    pub fn plain(&self) -> Program {
        let mut plain = self.clone();
        plain.sources.iter_mut().for_each(|source| source.origin = Origin::default());
        plain
    }

    /// True if cores wait for each other: all blocks must run at the same time.
    pub fn cores_meet(&self) -> bool {
        let mut found = false;
        for part in &self.parts {
            Self::walk(&part.body, &mut |stmt| {
                found |= matches!(
                    stmt.kind,
                    StmtKind::Instr(
                        Instr::CrossSet(_)
                            | Instr::CrossWait(_)
                            | Instr::SyncSoft(_)
                            | Instr::Barrier(Barrier::Cores)
                    )
                );
            });
        }
        found
    }

    /// Highest address in use of a memory, in bytes.
    pub fn peak(&self, space: Space) -> u64 {
        let ends = self
            .buffers
            .iter()
            .filter(|b| b.space == space)
            .map(|b| b.address.unwrap_or(0).saturating_add(b.bytes));
        ends.max().unwrap_or(0)
    }

    /// Calls `f` with every part of every scalar.
    pub fn visit_scalars(&self, f: &mut dyn FnMut(&Scalar)) {
        for part in &self.parts {
            Program::walk(&part.body, &mut |stmt| match &stmt.kind {
                StmtKind::Instr(instr) => {
                    let _ = instr.map(&mut |x| -> std::result::Result<Value, ()> {
                        x.visit(f);
                        Ok(Value::Int(0))
                    });
                }
                StmtKind::Let(_, x) | StmtKind::If { cond: x, .. } | StmtKind::While { cond: x, .. } => {
                    x.visit(f)
                }
                StmtKind::For { from, to, step, .. } => [from, to, step].into_iter().for_each(|x| x.visit(f)),
            });
        }
    }

    /// Drops assignments to variables that nothing reads, and then those that only they read.
    pub(super) fn drop_unread(&mut self) {
        fn retain(body: &mut Vec<Stmt>, read: &HashSet<VarId>) -> bool {
            let mut dropped = false;
            body.retain_mut(|stmt| {
                match &mut stmt.kind {
                    StmtKind::For { body, .. } | StmtKind::While { body, .. } => {
                        dropped |= retain(body, read)
                    }
                    StmtKind::If { then, otherwise, .. } => {
                        dropped |= retain(then, read);
                        dropped |= retain(otherwise, read);
                    }
                    StmtKind::Let(var, _) if !read.contains(var) => {
                        dropped = true;
                        return false;
                    }
                    StmtKind::Let(..) | StmtKind::Instr(_) => {}
                }
                true
            });
            dropped
        }
        let mut dropped = true;
        while dropped {
            let mut read = HashSet::new();
            self.visit_scalars(&mut |x| {
                if let Scalar::Var(var) = x {
                    read.insert(*var);
                }
            });
            dropped = false;
            for part in &mut self.parts {
                dropped |= retain(&mut part.body, &read);
            }
        }
    }

    /// Calls `f` with every statement of a list, those inside others after the ones they are in.
    pub fn walk<'a>(body: &'a [Stmt], f: &mut dyn FnMut(&'a Stmt)) {
        for stmt in body {
            f(stmt);
            match &stmt.kind {
                StmtKind::For { body, .. } | StmtKind::While { body, .. } => Self::walk(body, f),
                StmtKind::If { then, otherwise, .. } => {
                    Self::walk(then, f);
                    Self::walk(otherwise, f);
                }
                StmtKind::Instr(_) | StmtKind::Let(..) => {}
            }
        }
    }
}
