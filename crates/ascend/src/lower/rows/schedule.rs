//! The division of a program's instructions into those before all tiles, those of tiles and those between
//! them.

use super::body::operand;
use super::kernel::Kernel;
use super::space::{IterationSpace, Tile};
use crate::lower::Refusal;
use headwater_core::row::{Instr, RowProgram};

/// The places of computations: instructions in order.
pub(super) struct Schedule {
    /// Instructions with the same result in all tiles.
    pub fixed: Vec<usize>,
    /// The others, pass by pass; a single pass unless rows come in several tiles that depend on each other.
    pub passes: Vec<Pass>,
}

/// A pass over the tiles of a row, or over single tiles.
#[derive(Default)]
pub(super) struct Pass {
    /// Row values that are computed before its tiles.
    pub row: Vec<usize>,
    /// Instructions of each tile.
    pub tile: Vec<usize>,
    /// Reductions that its tiles make.
    pub reductions: Vec<usize>,
}

/// The register that a reduction reduces.
pub(super) fn reduced(p: &RowProgram, at: usize) -> Option<usize> {
    if let Instr::Reduce(_, r) = p.body[at] { Some(r) } else { None }
}

/// Operands that instructions load.
pub(super) fn operands_of(p: &RowProgram, list: &[usize]) -> Vec<usize> {
    let loads = list.iter().filter_map(|&at| if let Instr::Load(o) = p.body[at] { Some(o) } else { None });
    loads.collect()
}

impl Schedule {
    pub fn new(
        kernel: &Kernel,
        space: &IterationSpace,
        tile: &Tile,
        several: bool,
    ) -> Result<Schedule, Refusal> {
        let p = kernel.p;
        let n = p.body.len();
        // The same in all tiles: loads that do not move outside of them, and functions of such.
        let mut fixed = vec![false; n];
        for at in 0..n {
            fixed[at] = match &p.body[at] {
                Instr::Load(o) => {
                    operand(space, tile, *o, kernel.dtype(space, *o), None, false, kernel.arch())?.fixed
                }
                Instr::Iota(_) | Instr::Store(..) | Instr::Columns(..) | Instr::Reduce(..) => false,
                Instr::Float(_) | Instr::Int(_) | Instr::Bool(_) => true,
                instr => instr.args().all(|r| fixed[r]),
            };
        }
        let fixed_list: Vec<usize> = (0..n).filter(|&at| fixed[at]).collect();
        let rest: Vec<usize> = (0..n).filter(|&at| !fixed[at]).collect();
        if !several {
            let pass = Pass { tile: rest, ..Pass::default() };
            return Ok(Schedule { fixed: fixed_list, passes: vec![pass] });
        }
        // Passes: reductions that depend on those of the passes before.
        let scalars = p.scalars();
        let level = p.levels();
        let number = level.iter().max().copied().unwrap_or(0) + 1;
        let mut passes = Vec::new();
        for pass in 0..number {
            let last = pass + 1 == number;
            let reductions: Vec<usize> = rest
                .iter()
                .copied()
                .filter(|&at| matches!(p.body[at], Instr::Reduce(..)) && level[at] == pass + 1)
                .collect();
            let mut wanted = vec![false; n];
            for &at in &reductions {
                p.body[at].args().for_each(|r| wanted[r] = true);
            }
            for &at in rest.iter().filter(|_| last) {
                wanted[at] |= match p.body[at] {
                    Instr::Store(w, _) => {
                        let o = p.reads.len() + w;
                        space.cols.iter().any(|a| a.size > 1 && a.steps[o] != 0)
                    }
                    Instr::Columns(..) => true,
                    _ => false,
                };
            }
            for at in (0..n).rev() {
                if wanted[at] && !(scalars[at] || fixed[at]) {
                    p.body[at].args().for_each(|r| wanted[r] = true);
                }
            }
            let in_tile = |at: &usize| wanted[*at] && !scalars[*at] && !fixed[*at];
            let row = rest.iter().copied().filter(|&at| match p.body[at] {
                Instr::Reduce(..) => false,
                Instr::Store(w, _) => {
                    let o = p.reads.len() + w;
                    last && space.cols.iter().all(|a| a.size == 1 || a.steps[o] == 0)
                }
                _ => scalars[at] && level[at] == pass,
            });
            passes.push(Pass {
                row: row.collect(),
                tile: rest.iter().copied().filter(in_tile).collect(),
                reductions,
            });
        }
        Ok(Schedule { fixed: fixed_list, passes })
    }
}
