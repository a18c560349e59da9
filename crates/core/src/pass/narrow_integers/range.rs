//! Intervals of integers: what shapes, dtypes and constants prove about values.

use crate::attr::Attr;
use crate::dtype::{Class, DType};
use crate::expr::{Binary, Unary};
use crate::graph::{Graph, InputRole, Node};
use crate::ops::{Body, Source};
use crate::tensor::Data;

/// The integers from `low` to `high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub low: i128,
    pub high: i128,
}

/// Magnitude below which i64 buffers of a model stay on a target without i64 arithmetic. A step may move one
/// by less than this.
pub const BUFFER_LIMIT: i64 = 1 << 30;

impl Range {
    /// All 32-bit integers.
    pub const WORD: Range = Range { low: i32::MIN as i128, high: i32::MAX as i128 };
    /// All of 64.
    pub const ALL: Range = Range { low: i64::MIN as i128, high: i64::MAX as i128 };

    pub fn new(low: i128, high: i128) -> Range {
        Range { low, high }
    }

    /// The values of a dtype.
    pub fn of(dtype: DType) -> Range {
        match dtype {
            DType::I64 => Range::ALL,
            DType::Bool => Range::new(0, 1),
            _ if dtype.class() == Class::Int => {
                let (low, high) = dtype.int_range();
                Range::new(low as i128, high as i128)
            }
            _ => Range::WORD,
        }
    }

    /// Indices below `n`.
    pub fn below(n: usize) -> Range {
        Range::new(0, n.saturating_sub(1) as i128)
    }

    pub fn fits(self) -> bool {
        self.low >= Range::WORD.low && self.high <= Range::WORD.high
    }

    pub fn union(self, other: Range) -> Range {
        Range::new(self.low.min(other.low), self.high.max(other.high))
    }

    /// Largest magnitude.
    fn size(self) -> i128 {
        self.low.abs().max(self.high.abs())
    }

    /// Sums of so many.
    pub fn times(self, count: usize) -> Range {
        let count = count as i128;
        Range::new((self.low * count).min(0), (self.high * count).max(0))
    }

    fn corners(self, other: Range, f: impl Fn(i128, i128) -> i128) -> Range {
        let ends =
            [(self.low, other.low), (self.low, other.high), (self.high, other.low), (self.high, other.high)];
        let all = ends.map(|(a, b)| f(a, b));
        Range::new(all.into_iter().min().unwrap_or(0), all.into_iter().max().unwrap_or(0))
    }

    pub fn unary(self, op: Unary) -> Range {
        match op {
            Unary::Neg => Range::new(-self.high, -self.low),
            Unary::Abs => Range::new(
                if self.low <= 0 && self.high >= 0 { 0 } else { self.low.abs().min(self.high.abs()) },
                self.size(),
            ),
            Unary::Sign => Range::new(self.low.signum(), self.high.signum()),
            Unary::Not => Range::new(-1 - self.high, -1 - self.low),
            Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round => self,
            // Functions of floats, which integers are converted to before.
            _ => Range::ALL,
        }
    }

    /// The results of an operation on integers of at most 32 bits.
    pub fn binary(self, op: Binary, other: Range) -> Range {
        let natural = self.low >= 0 && other.low >= 0;
        match op {
            Binary::Add => self.corners(other, |a, b| a + b),
            Binary::Sub => self.corners(other, |a, b| a - b),
            Binary::Mul => self.corners(other, |a, b| a * b),
            Binary::Min => self.corners(other, i128::min),
            Binary::Max => self.corners(other, i128::max),
            Binary::Div if natural => Range::new(0, self.high),
            Binary::FloorDiv if other.low > 0 => self.corners(other, i128::div_euclid),
            Binary::Div | Binary::FloorDiv => Range::new(-self.size(), self.size()),
            Binary::Rem if other.low > 0 => Range::new(0, other.high - 1),
            Binary::Rem => Range::new(-other.size(), other.size()),
            Binary::Fmod if natural => Range::new(0, self.high),
            Binary::Fmod => Range::new(-self.size(), self.size()),
            Binary::And if natural => Range::new(0, self.high.min(other.high)),
            Binary::Or | Binary::Xor if natural => {
                let bits = 128 - self.high.max(other.high).leading_zeros();
                Range::new(0, (1 << bits) - 1)
            }
            Binary::And | Binary::Or | Binary::Xor => Range::WORD,
            Binary::Pow if natural => {
                let power = |b: i128| u32::try_from(b).ok().and_then(|b| self.high.checked_pow(b));
                power(other.high).map_or(Range::ALL, |high| Range::new(0, high.max(1)))
            }
            _ => Range::ALL,
        }
    }
}

/// The range of a graph input, as the host checks it before a run.
pub(super) fn of_input(role: &InputRole, dtype: DType) -> Range {
    match (role, dtype) {
        // A seed is any number.
        (InputRole::Rng, _) => Range::ALL,
        (InputRole::Buffer { .. }, DType::I64) => Range::new(-BUFFER_LIMIT as i128, BUFFER_LIMIT as i128),
        (_, DType::I64) => Range::WORD,
        _ => Range::of(dtype),
    }
}

/// Ranges of a node's integer results, if it is no row program, given those of all values before it.
pub(super) fn of_node(graph: &Graph, node: &Node, ranges: &[Range]) -> Vec<Range> {
    let read = |v: &crate::graph::ValueId| ranges[v.0 as usize];
    let dtype = |i: usize| graph.ty(node.outputs[i]).dtype;
    let alike = |i: usize| {
        let same = node.operands().filter(|v| graph.ty(*v).dtype == dtype(i)).map(|v| read(&v));
        same.reduce(Range::union).unwrap_or(Range::of(dtype(i)))
    };
    let bounded = |i: usize| {
        let ty = graph.ty(node.outputs[i]);
        if ty.dtype != DType::I64 {
            return Range::of(ty.dtype);
        }
        let elements = node.operands().map(|v| graph.ty(v).shape.numel()).max().unwrap_or(0);
        match (node.op.name, i) {
            // Positions in an operand.
            (
                "max_pool2d_with_indices"
                | "adaptive_max_pool2d"
                | "max_pool3d_with_indices"
                | "sort"
                | "topk"
                | "cummax"
                | "cummin",
                1,
            ) => Range::below(elements),
            ("searchsorted", 0) => Range::new(0, elements as i128),
            ("tril_indices" | "triu_indices", 0) => {
                let size = |name| graph.cx(node).int(name).unwrap_or(i64::MAX) as i128;
                Range::new(0, size("row").max(size("col")))
            }
            // Elements of the operands. Those that add up, or that write a number of their own, are not.
            ("sort" | "topk" | "cummax" | "cummin" | "gather" | "index" | "index_select", 0) => alike(i),
            ("scatter", 0) if node.attrs.get("reduce").is_none() && node.attrs.get("value").is_none() => {
                alike(i)
            }
            ("_index_put_impl", 0) if matches!(graph.cx(node).flag("accumulate"), Ok(false)) => alike(i),
            // Negative indices become those from the end.
            ("check_index", 0) => match graph.cx(node).size("limit") {
                Ok(limit) => alike(i).union(Range::below(limit)),
                Err(_) => Range::ALL,
            },
            ("cumsum", 0) => alike(i).times(elements),
            _ => Range::ALL,
        }
    };
    let of = |i: usize| match node.op.body {
        Body::View(_) => alike(i),
        Body::Copies(copies) => {
            let regions = copies(&graph.cx(node), graph.ty(node.outputs[i])).unwrap_or_default();
            let fills = regions.iter().filter_map(|r| match r.source {
                Source::Fill(x) => Some(Range::new(x as i128, x as i128)),
                Source::Input(_) => None,
            });
            fills.fold(alike(i), Range::union)
        }
        Body::Kernel(_) if node.op.name == "constant" => match node.attrs.get("value") {
            Some(Attr::Tensor(t)) => match &t.data {
                Data::Int(v) => Range::new(
                    v.iter().min().copied().unwrap_or(0) as i128,
                    v.iter().max().copied().unwrap_or(0) as i128,
                ),
                Data::Float(_) => Range::WORD,
            },
            _ => Range::of(dtype(i)),
        },
        _ => bounded(i),
    };
    (0..node.outputs.len()).map(of).collect()
}
