//! Row scalars before each phase and after the last, for functions of whole rows: the same in all lanes.

use super::assembler::{Width, op};
use super::ir::{Body, Ins, Nans, Source};
use super::reduction;
use super::select::Builder;
use crate::rows::code::{Code, Reg};
use crate::rows::interpret::loops::LANES;
use crate::rows::types::Ty;
use headwater_core::DType;
use headwater_core::expr::Binary;
use headwater_core::expr::elementary::Ops;

/// Translates what comes before a phase, or after the last. Reductions of the phase before become numbers of
/// the row, of which others are computed, read and stored. As [`super::select::body`].
pub(super) fn row_scalars(
    code: &Code,
    dtypes: &[DType],
    phase: usize,
    kept: &mut Vec<Nans>,
    begun: &Body,
) -> Option<Body> {
    let mut b = Builder::new(code, dtypes, false, kept, begun);
    b.between = true;
    for (i, &fold) in begun.folds.iter().enumerate() {
        b.total(i, fold)?;
    }
    code.scalar[phase].iter().try_for_each(|op| b.op(op))?;
    Some(b.body)
}

impl Builder<'_> {
    /// Makes a number of the row of a reduction, in the order in which lanes are combined everywhere.
    fn total(&mut self, at: usize, fold: usize) -> Option<()> {
        let folding = &self.code.folds[fold];
        let f = reduction(folding.op).0;
        const { assert!(LANES == 32) };
        let width = self.body.width;
        let lanes = |part| self.push(Ins::Lanes(at, part));
        let mut all = match width {
            Width::Eight => {
                let [a, b, c, d] = [0, 1, 2, 3].map(lanes);
                let (low, high) = (self.binary(f, Ty::F32, a, c)?, self.binary(f, Ty::F32, b, d)?);
                self.binary(f, Ty::F32, low, high)?
            }
            Width::Sixteen => {
                let [low, high] = [0, 1].map(lanes);
                let both = self.binary(f, Ty::F32, low, high)?;
                let upper = self.push(Ins::Two(op::QUARTERS, both, both, Some(0b01_00_11_10)));
                self.binary(f, Ty::F32, both, upper)?
            }
        };
        for (op, lanes) in
            [(op::PERMUTE_QUADS, 0b01_00_11_10), (op::PERMUTE, 0b01_00_11_10), (op::PERMUTE, 0b10_11_00_01)]
        {
            let upper = self.push(Ins::One(op, all, Some(lanes)));
            all = self.binary(f, Ty::F32, all, upper)?;
        }
        // Sums begin with 0, which is no -0.
        if f == Binary::Add {
            let zero = self.num(0.0);
            all = self.two(op::ADD, all, zero);
        }
        let all = self.push(Ins::Spread(all));
        self.set(folding.out, all);
        Some(())
    }

    /// Reads the row's element of an operand.
    pub(super) fn load_one(&mut self, operand: usize, out: Reg) -> Option<()> {
        if self.dtypes[operand] != DType::F32 {
            return None;
        }
        let stream = self.stream(Source::Operand(operand), 4);
        self.body.streams[stream].read = true;
        let v = self.push(Ins::LoadOne(stream));
        self.set(out, v);
        Some(())
    }

    /// Writes it.
    pub(super) fn store_one(&mut self, operand: usize, from: Reg) -> Option<()> {
        if self.dtypes[operand] != DType::F32 || self.code.regs[from].ty != Ty::F32 {
            return None;
        }
        let v = self.get(from)?;
        let stream = self.stream(Source::Operand(operand), 4);
        self.body.streams[stream].written = true;
        self.push(Ins::StoreOne(stream, v));
        Some(())
    }
}
