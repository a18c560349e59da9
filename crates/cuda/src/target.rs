//! The target of a GPU, for passes.

use crate::host::context::ALIGN;
use crate::lower;
use headwater_core::DType::{BF16, F16, F32, F64, I32, I64};
use headwater_core::TensorType;
use headwater_core::expand::{self, ExpandedStep, Expansion, View};
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::plan::Work;
use headwater_core::target::{
    DTypeSet, DTypeSupport, MemorySpace, Operators, Port, ProductModel, Rates, RecomputeCosts,
    RowProgramLimits, Support, TRANSCENDENTAL, Target, TargetMemory, TransposeCosts,
};
use std::sync::Arc;

/// Operators of a GPU. Without a compiler, or without cuBLASLt, steps run on the host.
#[derive(Debug)]
struct Kernels {
    text: bool,
    products: bool,
}

impl Kernels {
    fn native(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> bool {
        let here = if lower::takes_strides(op) { self.products && self.text } else { self.text };
        here && lower::has_kernel(op, cx, outs)
    }

    /// The expansion of an operator whose steps all have kernels.
    fn expansion(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> Option<&'static Expansion> {
        let expansion = expand::find(op).filter(|_| self.text)?;
        let sequence = expansion.contiguous(cx, outs).ok()?;
        let runs = |step: &ExpandedStep| {
            let Work::Kernel { op, attrs } = &step.work else { return true };
            let types: Vec<_> = step.reads.iter().map(|v| v.as_ref().map(View::ty)).collect();
            let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs };
            let outs: Vec<TensorType> = step.writes.iter().map(View::ty).collect();
            self.native(op, &cx, &outs)
        };
        sequence.steps.iter().all(runs).then_some(expansion)
    }
}

impl Operators for Kernels {
    fn support(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> Support {
        match self.native(op, cx, outs) {
            true => Support::Native,
            false if self.expansion(op, cx, outs).is_some() => Support::Expand,
            false => Support::Reference,
        }
    }

    /// Kernels have their scratch memory from the executable.
    fn workspace(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        0
    }

    /// Products read and write matrices with any pitch, and copy those that the library does not take; the
    /// host reads and writes any.
    fn strided(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType], port: Port) -> bool {
        match self.native(op, cx, outs) {
            true => lower::takes_strides(op) && port != Port::Read(2),
            false => self.expansion(op, cx, outs).is_none_or(|expansion| expansion.strided),
        }
    }
}

/// The target of a GPU with so many bytes of memory: f64 and i64 are computed there. Rates are of an H100's
/// data sheet.
pub(crate) fn target(name: &str, bytes: u64, text: bool, products: bool) -> Target {
    Target {
        name: name.into(),
        dtypes: DTypeSupport {
            storage: DTypeSet::ALL,
            rows: DTypeSet::ALL,
            arithmetic: DTypeSet::of(&[I32, I64, F32, F64]),
            accumulator: F32,
        },
        // Registers of a thread hold the values of one column; longer programs spill.
        rows: RowProgramLimits {
            instructions: 96,
            operands: 20,
            whole_columns: lower::WHOLE,
            long_columns: 4096,
            few_rows: 128,
            column_sums: 1 << 18,
            column_order: true,
        },
        memory: TargetMemory {
            alignment: ALIGN,
            spaces: vec![MemorySpace { name: "device".into(), bytes: Some(bytes), host: false }],
            shared_workspace: 0,
            expansion: expand::BUDGET,
        },
        // Accesses across rows are not coalesced: each takes a sector of 32 bytes for one element.
        transpose: TransposeCosts { reductions: true, functions: TRANSCENDENTAL },
        recompute: RecomputeCosts { instructions: 48, reads: 2.5, smallest: 16.0, longer_lives: 3.0 },
        rates: Rates { flops: 6e13, low_flops: 8e14, bytes: 3e12 },
        products: [(F16, F32), (BF16, F32), (F32, F32), (F64, F64)]
            .map(|(operands, sums)| ProductModel::plain(operands, sums))
            .into(),
        saturating: DTypeSet::default(),
        has_host: true,
        operators: Arc::new(Kernels { text, products }),
    }
}
