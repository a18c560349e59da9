//! The reference as a device: its target, and what it makes.

use crate::executable::Loaded;
use crate::machine::Machine;
use crate::memory::ReferenceBuffer;
use crate::stream::ReferenceStream;
use headwater_core::device::{Buffer, Content, Device, Executable, Foreign, Stream};
use headwater_core::diagnostic::Result;
use headwater_core::expand::{self, ExpandedStep, Expansion};
use headwater_core::ops::{Body, OpCx, OpDef};
use headwater_core::plan::{Plan, Work};
use headwater_core::row::RowProgram;
use headwater_core::target::{
    DTypeSet, DTypeSupport, MemorySpace, Operators, Port, ProductModel, Rates, RecomputeCosts,
    RowProgramLimits, Support, TRANSCENDENTAL, Target, TargetMemory, TransposeCosts,
};
use headwater_core::{DType, TensorType, fail};
use std::sync::Arc;
use std::time::Duration;

/// Time for which a rank waits in a collective for others.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The reference device. See the crate's description.
#[derive(Clone)]
pub struct Reference {
    name: String,
    target: Target,
    machine: Arc<Machine>,
}

impl Reference {
    /// A device without f64 and i64 arithmetic, whose streams are interleaved by a seed.
    pub fn new(seed: u64) -> Reference {
        Reference::of("reference", Kernels { wide: false, expands: false }, seed)
    }

    /// The same, which has kernels for no operator that has an expansion ([`headwater_core::expand`]).
    pub fn expanding(seed: u64) -> Reference {
        Reference::of("reference", Kernels { wide: false, expands: true }, seed)
    }

    /// The same with f64 and i64 arithmetic.
    pub fn wide(seed: u64) -> Reference {
        Reference::of("reference:wide", Kernels { wide: true, expands: false }, seed)
    }

    /// Devices of `ranks` ranks that meet in collectives, with f64 and i64 arithmetic. The seed decides the
    /// order in which all their streams take turns. Work is done while a host waits for some: each rank may
    /// have a thread, or one thread submits the work of all before it waits. A rank that waits in a
    /// collective for longer than [`PATIENCE`] fails, and names those that have not come.
    pub fn world(ranks: usize, seed: u64) -> Vec<Reference> {
        Reference::patient_world(ranks, seed, PATIENCE)
    }

    /// As [`Reference::world`], with another patience.
    pub fn patient_world(ranks: usize, seed: u64, patience: Duration) -> Vec<Reference> {
        let own = |machine: Machine| Reference {
            name: format!("reference:rank{}", machine.rank()),
            target: target(Kernels { wide: true, expands: false }),
            machine: Arc::new(machine),
        };
        Machine::world(ranks, seed, patience).into_iter().map(own).collect()
    }

    fn of(name: &str, kernels: Kernels, seed: u64) -> Reference {
        let machine = Machine::world(1, seed, PATIENCE).swap_remove(0);
        Reference { name: name.into(), target: target(kernels), machine: Arc::new(machine) }
    }
}

/// The target. It has no figures of its own for costs: those of a CPU with caches, so that its plans resemble
/// one's.
fn target(kernels: Kernels) -> Target {
    use DType::{BF16, F16, F32, F64, I64};
    let wide = kernels.wide;
    // Small, so that expansions cut their work.
    let expansion = if kernels.expands { 4 << 10 } else { expand::BUDGET };
    let all = DTypeSet::ALL;
    let narrow = |dtypes: &[DType]| if wide { all } else { all.without(dtypes) };
    let mut products: Vec<ProductModel> =
        [(F16, F32), (BF16, F32), (F32, F32)].map(|(o, sums)| ProductModel::plain(o, sums)).into();
    if wide {
        products.push(ProductModel::plain(F64, F64));
    }
    Target {
        name: "reference".into(),
        dtypes: DTypeSupport {
            storage: narrow(&[F64]),
            rows: narrow(&[F64]),
            arithmetic: narrow(&[F64, I64]),
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
            alignment: 512,
            spaces: vec![MemorySpace { name: "reference".into(), bytes: None, host: false }],
            shared_workspace: 0,
            expansion,
        },
        transpose: TransposeCosts { reductions: true, functions: TRANSCENDENTAL },
        recompute: RecomputeCosts { instructions: 48, reads: 2.5, smallest: 16.0, longer_lives: 3.0 },
        rates: Rates { flops: 1e11, low_flops: 1e11, bytes: 1e10 },
        products,
        saturating: DTypeSet::default(),
        has_host: false,
        operators: Arc::new(kernels),
    }
}

/// Every operator by its interpreter, on contiguous operands, with a little workspace that nobody needs: so
/// that plans are made with some.
#[derive(Clone, Copy, Debug)]
struct Kernels {
    wide: bool,
    /// True if operators that have an expansion have no kernel.
    expands: bool,
}

impl Kernels {
    /// The expansion of an operator, where it has no kernel and all steps of the expansion run.
    fn expansion(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> Option<&'static Expansion> {
        let expansion = expand::find(op).filter(|_| self.expands)?;
        let sequence = expansion.contiguous(cx, outs).ok()?;
        let wide = |program: &RowProgram| program.computes_in_i64() || program.computes_in_f64();
        let runs = |step: &ExpandedStep| !matches!(&step.work, Work::Rows(p) if !self.wide && wide(p));
        sequence.steps.iter().all(runs).then_some(expansion)
    }
}

impl Operators for Kernels {
    fn support(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> Support {
        match cx.present().chain(outs).any(|t| t.dtype == DType::F64) && !self.wide {
            true => Support::Missing("reference has no f64".into()),
            false if self.expansion(op, cx, outs).is_some() => Support::Expand,
            false => Support::Native,
        }
    }

    fn workspace(&self, op: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        // An update in place has none.
        if matches!(op.body, Body::Update(_)) { 0 } else { 64 }
    }

    fn strided(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType], _: Port) -> bool {
        self.expansion(op, cx, outs).is_some_and(|expansion| expansion.strided)
    }
}

impl Device for Reference {
    fn name(&self) -> &str {
        &self.name
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: usize, content: Content) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(ReferenceBuffer::new(self.machine.clone(), bytes, content)))
    }

    fn borrow(&self, _: Box<dyn Foreign>) -> Result<Arc<dyn Buffer>> {
        Err(fail!(Unsupported, "{} does not address host memory: copy it instead", self.name))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(ReferenceStream { machine: self.machine.clone(), id: self.machine.stream() }))
    }

    fn load(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        Ok(Box::new(Loaded::new(self.machine.clone(), &self.target, plan)?))
    }
}
