//! A device as passes see it: its dtypes, limits and costs, as plain data. Facts that depend on the operator
//! are answered by [`Operators`].
//!
//! No pass knows a device in any other way. A number that belongs to a device is a field here, so that every
//! device states its own. A rewrite whose exactness rests on such a number reads it from here.

use crate::dtype::{Class, DType};
use crate::expr::Unary;
use crate::ops::{Body, OpCx, OpDef};
use crate::plan::{Step, Work};
use crate::row::RowProgram;
use crate::tensor::TensorType;
use std::fmt::Debug;
use std::sync::Arc;

/// A device's support of an operator on given types.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Support {
    /// By its own kernel, or as a row program.
    Native,
    /// As the steps of its expansion ([`crate::expand`]), all of which are native. Not for row programs.
    Expand,
    /// Through the slow reference, correctly.
    Reference,
    /// Not at all, and why.
    Missing(String),
}

/// An operand of a node, by its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    /// An input.
    Read(usize),
    /// An output.
    Write(usize),
}

/// Facts that depend on an operator and its types. The operators concerned have a `Kernel` body, except in
/// [`Operators::program`].
pub trait Operators: Debug + Send + Sync {
    /// The device's support of the operator.
    fn support(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> Support;

    /// Bytes of scratch memory that its kernel needs; exact.
    fn workspace(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> usize;

    /// True if its kernel reads an input through any strides; otherwise the planner makes it contiguous
    /// first. Of an output, true if it writes through any strides but the last dimension's, which is 1.
    fn strided(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType], port: Port) -> bool;

    /// The device's support of a row program that keeps the limits of its [`Target`].
    fn program(&self, _: &RowProgram) -> Support {
        Support::Native
    }
}

/// A set of element types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DTypeSet(u16);

impl DTypeSet {
    /// Every element type.
    pub const ALL: DTypeSet = DTypeSet::of(&DType::ALL);

    /// The set of some types.
    pub const fn of(dtypes: &[DType]) -> DTypeSet {
        let (mut bits, mut i) = (0, 0);
        while i < dtypes.len() {
            bits |= 1 << dtypes[i] as u16;
            i += 1;
        }
        DTypeSet(bits)
    }

    /// The set less some types.
    pub const fn without(self, dtypes: &[DType]) -> DTypeSet {
        DTypeSet(self.0 & !DTypeSet::of(dtypes).0)
    }

    /// True if a type is in the set.
    pub const fn contains(self, dtype: DType) -> bool {
        self.0 >> dtype as u16 & 1 == 1
    }
}

/// Element types by class of operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DTypeSupport {
    /// Types that memory holds, and that views and copies of whole buffers move.
    pub storage: DTypeSet,
    /// Types that row programs load and store.
    pub rows: DTypeSet,
    /// Types that row programs compute in: of floats F32 and F64, of integers I32 and I64. Boolean logic is
    /// always there. Without F64, updates are computed in pairs of f32 (`pass::split_wide`). Without I64,
    /// integers are computed in i32 where ranges prove that they fit (`pass::narrow_integers`), and i64 is
    /// storage alone.
    pub arithmetic: DTypeSet,
    /// Narrowest type in which row programs sum f32 and narrower floats.
    pub accumulator: DType,
}

/// Limits of row programs, and sizes on which their speed turns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RowProgramLimits {
    /// Most instructions of a fused program: beyond, a tile no longer fits the registers and the nearest
    /// memory. A single operator may have more; a device that cannot run it says so in
    /// [`Operators::program`].
    pub instructions: usize,
    /// Most operands, read and written, of a fused program.
    pub operands: usize,
    /// Rows of at most so many columns are reduced in one piece, in an order that nothing else in the program
    /// changes. Horizontal fusion is exact because of it.
    pub whole_columns: usize,
    /// Longer rows are divided among cores where rows are fewer than `few_rows`. A program that also sums
    /// over rows cannot be divided so, hence such two are not fused.
    pub long_columns: usize,
    /// See `long_columns`.
    pub few_rows: usize,
    /// Most columns of a program that sums over rows: partial sums of all columns exist for each block of
    /// rows.
    pub column_sums: usize,
    /// True if sums over rows are added in an order of the sizes alone. Otherwise the order depends on what
    /// else the program computes, and recomputation leaves programs with such sums as they are.
    pub column_order: bool,
}

/// Memory of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetMemory {
    /// Alignment in bytes of segments and of every buffer in them: a power of two, at least
    /// [`crate::plan::ALIGN`].
    pub alignment: usize,
    /// Spaces that hold segments of plans; the first is where plans live.
    pub spaces: Vec<MemorySpace>,
    /// Workspaces of at most so many bytes share one place in the arena, from the first step that has one to
    /// the last. They stay in the caches. Each kernel is given all of that place.
    pub shared_workspace: usize,
    /// Bytes of temporaries for a block of an expansion's work ([`crate::expand::Sequence::budget`]).
    pub expansion: usize,
}

/// One kind of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemorySpace {
    /// Name, e.g. `host`, `hbm`.
    pub name: String,
    /// Size in bytes, if it is known.
    pub bytes: Option<u64>,
    /// True if the host addresses it directly.
    pub host: bool,
}

/// When an operand of a row program is transposed before, so that its columns become contiguous.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TransposeCosts {
    /// True if one reduction of a strided operand costs more than its transposition.
    pub reductions: bool,
    /// Functions of one strided operand that cost more than its transposition.
    pub functions: &'static [Unary],
}

/// The worth of recomputation in the backward pass.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RecomputeCosts {
    /// Most instructions that recompute one value.
    pub instructions: usize,
    /// Most bytes read to recompute one value, in multiples of its own bytes.
    pub reads: f64,
    /// A value smaller than the mean of all stashed ones by more than this factor is kept.
    pub smallest: f64,
    /// Most bytes that may live longer so that a recomputation is fused, in multiples of what it makes.
    pub longer_lives: f64,
}

/// Rounding of products (matrix products, convolutions, attention) of one operand type. All three are unit
/// roundoffs, relative to what is rounded; 0 where nothing is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ProductModel {
    /// Type of the operands.
    pub operands: DType,
    /// Rounding of an operand before it is multiplied, such as f32 taken as one bf16.
    pub operand: f64,
    /// Rounding of a product before it is added, and terms left out by split products.
    pub product: f64,
    /// Rounding of each addition.
    pub accumulator: f64,
}

impl ProductModel {
    /// Exact products of unrounded operands, summed in `accumulator`.
    pub const fn plain(operands: DType, accumulator: DType) -> ProductModel {
        ProductModel { operands, operand: 0.0, product: 0.0, accumulator: accumulator.epsilon() / 2.0 }
    }
}

/// Nominal rates, for predictions of time before anything runs. They are those of a device's data sheet or of
/// its instructions, not measured; only ratios of predictions are meant to be used.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// Floating-point operations a second on f32 and wider operands.
    pub flops: f64,
    /// The same on f16 and bf16.
    pub low_flops: f64,
    /// Bytes a second read and written.
    pub bytes: f64,
}

impl Rates {
    /// Seconds of some work on operands of a type: the longer of arithmetic and memory traffic.
    pub fn seconds(&self, operands: Option<DType>, flops: f64, bytes: f64) -> f64 {
        let low = matches!(operands, Some(DType::F16 | DType::BF16));
        (flops / if low { self.low_flops } else { self.flops }).max(bytes / self.bytes)
    }
}

/// A device, for passes.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name, e.g. `cpu`.
    pub name: String,
    /// Element types.
    pub dtypes: DTypeSupport,
    /// Row programs.
    pub rows: RowProgramLimits,
    /// Memory.
    pub memory: TargetMemory,
    /// Transposition of operands.
    pub transpose: TransposeCosts,
    /// Recomputation.
    pub recompute: RecomputeCosts,
    /// Predictions of time.
    pub rates: Rates,
    /// Products, by the type of their operands; a type that is missing has no products.
    pub products: Vec<ProductModel>,
    /// Floats that saturate: an infinite result becomes the largest number of its sign, NaN becomes 0.
    pub saturating: DTypeSet,
    /// True if row programs that it does not compute run on the host, through the reference definition, as
    /// operators without a kernel do (`pass::on_host`). Otherwise they are refused.
    pub has_host: bool,
    /// Facts that depend on an operator.
    pub operators: Arc<dyn Operators>,
}

impl Target {
    /// A device of cores with caches that computes in every type, for tests of graphs alone. Devices state
    /// all their figures themselves, so that a new field is a question to each of them.
    pub fn generic(operators: Arc<dyn Operators>) -> Target {
        use DType::{BF16, F16, F32, F64};
        Target {
            name: "generic".into(),
            dtypes: DTypeSupport {
                storage: DTypeSet::ALL,
                rows: DTypeSet::ALL,
                arithmetic: DTypeSet::of(&[DType::I32, DType::I64, F32, F64]),
                accumulator: F32,
            },
            rows: RowProgramLimits {
                instructions: 96,
                operands: 20,
                whole_columns: 4096,
                long_columns: 4096,
                few_rows: 128,
                column_sums: 1 << 18,
                column_order: true,
            },
            memory: TargetMemory {
                alignment: crate::plan::ALIGN,
                spaces: vec![MemorySpace { name: "host".into(), bytes: None, host: true }],
                shared_workspace: 0,
                expansion: crate::expand::BUDGET,
            },
            transpose: TransposeCosts { reductions: true, functions: TRANSCENDENTAL },
            recompute: RecomputeCosts { instructions: 48, reads: 2.5, smallest: 16.0, longer_lives: 3.0 },
            rates: Rates { flops: 1e11, low_flops: 1e11, bytes: 1e10 },
            products: [(F16, F32), (BF16, F32), (F32, F32), (F64, F64)]
                .map(|(operands, sums)| ProductModel::plain(operands, sums))
                .into(),
            saturating: DTypeSet::default(),
            has_host: false,
            operators,
        }
    }

    /// The device's support of an operator of any body on given types. Errors of the operator's own rules
    /// count as missing.
    pub fn support(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> Support {
        if let Some(t) = cx.present().chain(outs).find(|t| !self.dtypes.storage.contains(t.dtype)) {
            return Support::Missing(format!("{} has no {} in memory", self.name, t.dtype));
        }
        match op.row_program(cx, outs) {
            Ok(Some(program)) => self.program(&program),
            Ok(None) if matches!(op.body, Body::Kernel(_) | Body::Update(_) | Body::Collective(_)) => {
                self.operators.support(op, cx, outs)
            }
            Ok(None) => Support::Native,
            Err(e) => Support::Missing(e.message),
        }
    }

    /// True if it computes in every element type that row programs have.
    pub fn computes_all(&self) -> bool {
        let computes = |dtype| self.dtypes.arithmetic.contains(dtype);
        self.dtypes.rows == DTypeSet::ALL && computes(DType::F64) && computes(DType::I64)
    }

    /// The device's support of a row program.
    pub fn program(&self, p: &RowProgram) -> Support {
        let missing = |what: String| Support::Missing(format!("{} has no {what}", self.name));
        for o in p.reads.iter().chain(&p.writes) {
            if !self.dtypes.rows.contains(o.dtype) {
                return missing(format!("{} in row programs", o.dtype));
            }
        }
        if p.computes_in_f64() && !self.dtypes.arithmetic.contains(DType::F64) {
            return missing("f64 arithmetic".into());
        }
        let integers = p.classes().is_ok_and(|c| c.contains(&Some(Class::Int)));
        let missing_in = |dtype| integers && !self.dtypes.arithmetic.contains(dtype);
        match p.computes_in_i64() {
            true if missing_in(DType::I64) => return missing("i64 arithmetic".into()),
            false if missing_in(DType::I64) && missing_in(DType::I32) => {
                return missing("integer arithmetic".into());
            }
            _ => {}
        }
        self.operators.program(p)
    }

    /// The support for a step of a plan.
    pub fn step(&self, step: &Step) -> Support {
        match &step.work {
            Work::Rows(program) => self.program(program),
            Work::Kernel { op, attrs } => {
                let types = step.types();
                match self.operators.support(op, &types.cx(attrs), &types.outs) {
                    // It is still whole: its layouts have no expansion.
                    Support::Expand => Support::Reference,
                    support => support,
                }
            }
        }
    }

    /// A result of a type as the device has it.
    pub fn result(&self, dtype: DType, x: f64) -> f64 {
        match self.saturating.contains(dtype) {
            true if x.is_nan() => 0.0,
            true => x.clamp(-dtype.max_value(), dtype.max_value()),
            false => x,
        }
    }

    /// The 16-bit floats that it multiplies, for mixed precision: first the one to take unless told
    /// otherwise. That is bf16 for its range, which is f32's.
    pub fn low_dtypes(&self) -> impl Iterator<Item = DType> {
        [DType::BF16, DType::F16].into_iter().filter(|&dtype| self.product(dtype).is_some())
    }

    /// Rounding of products of operands of a type.
    pub fn product(&self, operands: DType) -> Option<&ProductModel> {
        self.products.iter().find(|p| p.operands == operands)
    }
}

/// Functions that take tens of instructions on a vector unit without hardware for them.
pub const TRANSCENDENTAL: &[Unary] = {
    use Unary::*;
    &[Exp, ExpNonpos, Expm1, Log, Log1p, Sin, Cos, Tan, Tanh, Atan, Erf, Ndtr, Sigmoid]
};

/// Everything as it is, natively and without workspace; for [`Target::generic`] where kernels do not matter.
#[derive(Clone, Copy, Debug)]
pub struct AnyOperator;

impl Operators for AnyOperator {
    fn support(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> Support {
        Support::Native
    }
    fn workspace(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        0
    }
    fn strided(&self, _: &OpDef, _: &OpCx, _: &[TensorType], _: Port) -> bool {
        true
    }
}

impl Default for Target {
    /// The generic target with [`AnyOperator`].
    fn default() -> Target {
        Target::generic(Arc::new(AnyOperator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Access, RowBuilder};

    fn copy_and_add(dtype: DType) -> RowProgram {
        let mut b = RowBuilder::new(&[4], &[8]);
        let x = b.read(dtype, Access::identity(2));
        let sum = b.expr(&(crate::expr::input(0) + crate::expr::input(0)), &[x]);
        b.store(dtype, Access::identity(2), sum);
        b.finish()
    }

    #[test]
    fn a_target_refuses_what_it_does_not_compute_in() {
        let mut target = Target::default();
        target.dtypes.arithmetic = DTypeSet::of(&[DType::I32, DType::F32]);
        target.dtypes.rows = DTypeSet::ALL.without(&[DType::BF16]);
        let missing = |dtype| match target.program(&copy_and_add(dtype)) {
            Support::Missing(why) => why,
            other => panic!("{dtype} is {other:?}"),
        };
        assert_eq!(target.program(&copy_and_add(DType::F32)), Support::Native);
        assert_eq!(missing(DType::F64), "generic has no f64 arithmetic");
        assert_eq!(missing(DType::I64), "generic has no i64 arithmetic");
        assert_eq!(missing(DType::BF16), "generic has no bf16 in row programs");
    }

    #[test]
    fn sets_hold_what_they_were_made_of() {
        let set = DTypeSet::of(&[DType::I32, DType::F64]);
        let held: Vec<DType> = DType::ALL.into_iter().filter(|&d| set.contains(d)).collect();
        assert_eq!(held, [DType::I32, DType::F64]);
        assert_eq!(DTypeSet::ALL.without(&[DType::F64]).without(&DType::ALL[..9]), DTypeSet::default());
    }
}
