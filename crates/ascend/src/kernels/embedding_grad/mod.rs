//! Gradient of an embedding's table, dense: ATen's `embedding_dense_backward`.
//!
//! Positions are sorted by row first, so that each core visits only the positions of rows that it sums. Sums
//! are f32 in UB, rounded once. Rows and positions are divided evenly over the cores as in merge-based
//! products of sparse matrices (Merrill and Garland 2016): also a row of many positions is summed by several
//! cores, whose partial sums are added in order. No sum is atomic, so the bits are the same for any number of
//! blocks.
//!
//! The alternatives to it are the rungs of a ladder, from a row at a time with atomic sums on ([`Rung`]);
//! benchmarks climb it.

mod atomic;
mod join;
mod lists;
mod part;
mod rows;
mod sort;
mod sum;

use super::refusal;
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{Elem, Program};
use part::Partition;

/// Words of a report of wrong indices.
const REPORT: u64 = 8;

/// Shapes of [`embedding_grad`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmbeddingGrad {
    /// Type of gradients: f32, f16 or, on A2, bf16. Sums are f32, rounded once at the end.
    pub elem: Elem,
    /// Type of indices, i32 or i64.
    pub index: Elem,
    /// Number of indices, n.
    pub indices: u64,
    /// Rows of the table, r.
    pub rows: u64,
    /// Elements of a row, d.
    pub dim: u64,
    /// The row whose gradient is zero.
    pub padding: Option<u64>,
    /// True if each row's sum is divided by the number of its indices.
    pub by_frequency: bool,
    /// Cores that the work is divided for. The sum of a row of many indices depends on it in its last bits.
    pub cores: u32,
}

/// A rung of the ladder of kernels: how the sums are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rung {
    /// One row a copy, added atomically to a table in f32, which is rounded at the end.
    Naive,
    /// The same, many rows a copy.
    Vectorised,
    /// Positions sorted by row, each row summed once in UB; one copy at a time.
    Grouped,
    /// The same with copies that overlap with sums and with each other.
    Pipelined,
}

impl Rung {
    /// The rungs, bottom first.
    pub const ALL: [Rung; 4] = [Rung::Naive, Rung::Vectorised, Rung::Grouped, Rung::Pipelined];
}

/// An argument of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// The indices \[n\].
    Index,
    /// Their gradients \[n, d\].
    Grad,
    /// The result \[r, d\].
    Table,
    /// Reports of wrong indices, eight i32 each.
    Fault,
    /// Offset in bytes from the beginning of the workspace.
    Workspace(u64),
}

/// A launch: a kernel, an argument for each parameter, and its blocks.
#[derive(Clone, PartialEq, Debug)]
pub struct Stage {
    /// The kernel.
    pub program: Program,
    /// Its arguments.
    pub operands: Vec<Operand>,
    /// Blocks that have work.
    pub blocks: u32,
}

/// A sequence of launches.
#[derive(Clone, PartialEq, Debug)]
pub struct Stages {
    /// The launches.
    pub stages: Vec<Stage>,
    /// Bytes of workspace that they share.
    pub workspace: u64,
}

impl Stages {
    /// Adds a launch.
    fn push(&mut self, program: Program, operands: &[Operand], blocks: u64) {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).max(1);
        self.stages.push(Stage { program, operands: operands.to_vec(), blocks });
    }

    /// Takes `bytes` bytes of the workspace, from a multiple of 512 on.
    fn take(&mut self, bytes: u64) -> Operand {
        let start = self.workspace.next_multiple_of(512);
        self.workspace = start + bytes;
        Operand::Workspace(start)
    }
}

/// `grad_table[index[i], :] += grad[i, :]` for i = 0, 1, … below n, onto zeros.
///
/// Indices outside 0 to r - 1 add nothing. Reports of them ([`Operand::Fault`]) have their number, the
/// position of the first or -1, that index as i64 or 0, then zeros. The host has to look at them. The rungs
/// below [`Rung::Grouped`] make none. Without indices the table is zeros, and there is no report either.
///
/// # Errors
/// `Unsupported` for other types. `Range` for a table without elements, or more rows or indices than keys of
/// 31 bits and the kernels' buffers can hold. `Alignment` on 310P, which has no copy of part of 32 bytes: for
/// a table of less than 32 bytes, and for rows that are no multiple of them on the rungs below
/// [`Rung::Grouped`].
pub fn embedding_grad(arch: Arch, shape: &EmbeddingGrad, rung: Rung) -> Result<Stages> {
    check(arch, shape)?;
    let mut stages = Stages { stages: Vec::new(), workspace: 0 };
    let cores = u64::from(shape.cores);
    if shape.indices == 0 {
        let zeros = atomic::zeros(arch, shape.elem, shape.rows * shape.dim, atomic::LARGE)?;
        stages.push(zeros, &[Operand::Table], cores);
        return Ok(stages);
    }
    match rung {
        Rung::Naive => atomic::stages(arch, shape, atomic::Copies::Rows, &mut stages)?,
        Rung::Vectorised => atomic::stages(arch, shape, atomic::Copies::Many, &mut stages)?,
        Rung::Grouped | Rung::Pipelined => {
            let part = Partition::new(arch, shape, rung == Rung::Pipelined)?;
            grouped(&part, &mut stages)?;
        }
    }
    Ok(stages)
}

/// The launches of the upper rungs.
fn grouped(part: &Partition, stages: &mut Stages) -> Result<()> {
    let units = part.tasks * part.tiles;
    let cores = u64::from(part.shape.cores);
    if part.ragged {
        // Rows that are not a multiple of a block are added to zeros.
        let zeros =
            atomic::zeros(part.arch, part.shape.elem, part.shape.rows * part.shape.dim, atomic::LARGE)?;
        stages.push(zeros, &[Operand::Table], cores);
    }
    let mut operands = match part.own {
        true => vec![Operand::Index, Operand::Fault],
        false => {
            let lists = stages.take(part.list_bytes());
            let edges = stages.take(part.edge_bytes());
            let sort = sort::program(part)?;
            stages.push(sort, &[Operand::Index, lists, edges, Operand::Fault], part.slices.min(cores));
            vec![lists, edges]
        }
    };
    operands.extend([Operand::Grad, Operand::Table]);
    let shared = part.heavy.map(|_| [stages.take(part.partial_bytes()), stages.take(part.cut_bytes())]);
    operands.extend(shared.into_iter().flatten());
    stages.push(sum::program(part)?, &operands, units.min(cores));
    if let Some([partials, cuts]) = shared {
        let units = units * part.pieces();
        stages.push(join::program(part)?, &[partials, cuts, Operand::Table], units.min(cores));
    }
    Ok(())
}

/// A kernel of these shapes cannot be written.
fn refuse(shape: &EmbeddingGrad, rule: Rule, message: String) -> Box<crate::kernel::finding::Finding> {
    refusal(&format!("embedding_grad_{}", shape.elem), "embedding_dense_backward", rule, message)
}

fn check(arch: Arch, shape: &EmbeddingGrad) -> Result<()> {
    let EmbeddingGrad { elem, index, indices, rows, dim, padding, .. } = *shape;
    let fail = |rule, message| Err(refuse(shape, rule, message));
    let types = matches!(elem, Elem::F32 | Elem::F16) || (elem == Elem::BF16 && arch == Arch::A2);
    if !types {
        return fail(Rule::Unsupported, format!("gradients are {elem}, which the kernel has not on {arch}"));
    }
    if !matches!(index, Elem::I32 | Elem::I64) {
        return fail(Rule::Unsupported, format!("indices are {index}; i32 and i64 are supported"));
    }
    let limit = i32::MAX as u64;
    for (what, size) in [("rows", rows), ("elements of a row", dim)] {
        if !(1..=limit).contains(&size) {
            return fail(Rule::Range, format!("there are {size} {what}, outside 1 to {limit}"));
        }
    }
    if indices > limit {
        return fail(Rule::Range, format!("there are {indices} indices, more than {limit}"));
    }
    if let Some(padding) = padding.filter(|&p| p >= rows) {
        return fail(Rule::Range, format!("the padding row is {padding}, the table has {rows} rows"));
    }
    let block = elem.per_block();
    if arch == Arch::P310 && rows * dim < block {
        let message = format!("the table has {} elements, fewer than {block} (32 bytes)", rows * dim);
        return fail(Rule::Alignment, message);
    }
    Ok(())
}
