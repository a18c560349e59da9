//! The target of a GPU, for passes.

use crate::host::context::ALIGN;
use crate::lower;
use headwater_core::TensorType;
use headwater_core::expand::{self, ExpandedStep, Expansion, View};
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::plan::Work;
use headwater_core::target::{MemorySpace, Operators, Port, Rates, Support, Target};
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

/// The target of a GPU with so many bytes of memory: f64 and i64 are computed there. Figures are of an H100's
/// data sheet.
pub(crate) fn target(name: &str, bytes: u64, text: bool, products: bool) -> Target {
    let mut target = Target::generic(Arc::new(Kernels { text, products }));
    target.name = name.into();
    target.has_host = true;
    target.rows.whole_columns = lower::WHOLE;
    target.rates = Rates { flops: 6e13, low_flops: 8e14, bytes: 3e12 };
    target.memory.alignment = ALIGN;
    target.memory.spaces = vec![MemorySpace { name: "device".into(), bytes: Some(bytes), host: false }];
    target
}
