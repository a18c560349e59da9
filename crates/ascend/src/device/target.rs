//! The target of a chip, for passes.

use crate::chip::{Arch, Chip};
use crate::host::memory::ALIGN;
use crate::lower;
use headwater_core::DType::{BF16, F16, F32, F64, I64};
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::target::{DTypeSet, MemorySpace, Operators, Port, Support, Target};
use headwater_core::{TensorType, expand};
use std::sync::Arc;

/// Operators of a chip.
#[derive(Debug)]
struct Kernels {
    /// `None` where no kernel can be run: all steps run on the host.
    chip: Option<&'static Chip>,
}

impl Operators for Kernels {
    fn support(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> Support {
        match self.chip {
            Some(chip) if lower::expands(chip, op, cx, outs) => Support::Expand,
            Some(chip) if lower::has_kernel(chip, op, cx, outs) => Support::Native,
            _ => Support::Reference,
        }
    }

    /// Kernels have their scratch memory from the executable.
    fn workspace(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        0
    }

    /// Kernels have contiguous operands, but for products; the host reads and writes any.
    fn strided(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType], _: Port) -> bool {
        match expand::find(op) {
            Some(expansion) if expansion.strided => true,
            None if lower::takes_strides(op) => true,
            _ => self.support(op, cx, outs) == Support::Reference,
        }
    }
}

/// The target of a device with so many bytes of memory. No chip computes in f64 or i64: updates are computed in pairs of
/// f32, and integers in i32 where they are proved to fit. Memory holds both; what has to compute in them otherwise does so
/// on the host. 310P has no bf16, multiplies f32 in parts of f16,
/// and saturates f16.
pub(super) fn target(name: &str, arch: Arch, chip: Option<&'static Chip>, bytes: u64) -> Target {
    let space = if arch == Arch::P310 { "ddr" } else { "hbm" };
    let mut target = Target::generic(Arc::new(Kernels { chip }));
    target.name = name.into();
    target.dtypes.arithmetic = target.dtypes.arithmetic.without(&[F64, I64]);
    if arch == Arch::P310 {
        target.products.retain(|p| !matches!(p.operands, BF16 | F32));
        target.products.push(lower::SPLIT);
    }
    if arch.saturates() {
        target.saturating = DTypeSet::of(&[F16]);
    }
    target.has_host = true;
    target.memory.alignment = ALIGN;
    target.memory.spaces = vec![MemorySpace { name: space.into(), bytes: Some(bytes), host: false }];
    target
}
