//! The kernel to be written for a row program: its operands, its name and its formula.

use super::space::IterationSpace;
use crate::chip::{Arch, Chip};
use crate::kernel::{Elem, Source};
use crate::kernels::SumRows;
use headwater_core::DType;
use headwater_core::plan::TensorView;
use headwater_core::row::{Instr, RowProgram};
use sha2::{Digest, Sha256};

/// The division of rows that are summed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Split {
    /// In ranges, if there are enough for several.
    Ranges,
    /// Not at all.
    Whole,
}

/// A kernel to be written.
pub(super) struct Kernel<'a> {
    pub chip: &'a Chip,
    pub p: &'a RowProgram,
    /// Operands: reads, then writes.
    pub views: &'a [&'a TensorView],
    pub source: &'a Source,
    pub split: Split,
    /// Types of the sums over rows, if they are contiguous. Their partial sums are then added by the same
    /// kernel where its cores can meet.
    pub sums: Option<Vec<Elem>>,
}

/// Layout of partial column sums: f32 \[ranges, pitch\].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Partial {
    pub ranges: usize,
    pub pitch: usize,
}

impl Partial {
    /// The sums over it, `dim` of them, to results of some types.
    pub fn added<'a>(&self, dim: usize, outs: &'a [Elem]) -> SumRows<'a> {
        SumRows { rows: self.ranges as u64, pitch: self.pitch as u64, dim: dim as u64, outs }
    }
}

impl Kernel<'_> {
    /// Instructions that there are.
    pub fn arch(&self) -> Arch {
        self.chip.arch
    }

    /// Number of operands that are read.
    pub fn reads(&self) -> usize {
        self.p.reads.len()
    }

    /// Type of an operand.
    pub fn dtype(&self, space: &IterationSpace, o: usize) -> DType {
        if space.words { DType::I32 } else { self.views[o].dtype }
    }

    /// True if a result is a sum over rows.
    pub fn summed(&self, w: usize) -> bool {
        self.columns().contains(&w)
    }

    /// Results that are sums over rows, in the order in which the program states them.
    pub fn columns(&self) -> Vec<usize> {
        let sum = |i: &Instr| if let Instr::Columns(w, _) = i { Some(*w) } else { None };
        self.p.body.iter().filter_map(sum).collect()
    }

    /// Symbol: the operator, and a number of the program, its operands and how it is split.
    pub fn name(&self) -> String {
        let mut text = format!("{} {:?}", self.p, self.split);
        for v in self.views {
            text += &format!(" {:?}", v.layout);
        }
        let hash = Sha256::digest(text.as_bytes());
        let op: String =
            self.source.op.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let words: Vec<&str> = op.split('_').filter(|w| !w.is_empty()).collect();
        let op: String = words.join("_").chars().take(32).collect();
        format!(
            "rows_{}_{:02x}{:02x}{:02x}{:02x}",
            op.trim_end_matches('_'),
            hash[0],
            hash[1],
            hash[2],
            hash[3]
        )
    }

    /// The program for people, an instruction a line.
    pub fn formula(&self) -> Vec<String> {
        let text = self.p.to_string();
        let mut lines: Vec<String> = text.split("; ").map(str::to_string).collect();
        if let Some(first) = lines.first_mut() {
            *first = first.replace('{', ":");
        }
        lines
            .iter()
            .map(|l| l.trim_end_matches(['}', ';', ' ']).to_string())
            .filter(|l| !l.is_empty())
            .collect()
    }
}
