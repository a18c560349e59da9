//! The target of a chip, for passes.

use crate::chip::{Arch, CHIPS, Chip};
use crate::host::memory::ALIGN;
use crate::{lower, timing};
use headwater_core::DType::{BF16, F16, F32, F64, I32};
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::target::{
    DTypeSet, DTypeSupport, MemorySpace, Operators, Port, ProductModel, Rates, RecomputeCosts,
    RowProgramLimits, Support, TRANSCENDENTAL, Target, TargetMemory, TransposeCosts,
};
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
            Some(chip) if lower::has_kernel(chip, op, cx, outs) => Support::Native,
            Some(chip) if lower::expands(chip, op, cx, outs) => Support::Expand,
            _ => Support::Reference,
        }
    }

    /// Kernels have their scratch memory from the executable.
    fn workspace(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        0
    }

    /// Kernels have contiguous operands, but for products; the host reads and writes any.
    fn strided(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType], _: Port) -> bool {
        let expansion = expand::find(op).is_some_and(|expansion| expansion.strided);
        expansion || lower::takes_strides(op) || self.support(op, cx, outs) == Support::Reference
    }
}

/// The target of a device with so many bytes of memory. No chip computes in f64 or i64: updates are computed
/// in pairs of f32, and integers in i32 where they are proved to fit. Memory holds both; what has to compute
/// in them otherwise does so on the host. 310P has no bf16, multiplies f32 in parts of f16, and saturates
/// f16.
pub(super) fn target(name: &str, arch: Arch, chip: Option<&'static Chip>, bytes: u64) -> Target {
    let space = if arch == Arch::P310 { "ddr" } else { "hbm" };
    // Products of f64 run on the host.
    let plain = |operands, sums| ProductModel::plain(operands, sums);
    let mut products = vec![plain(F16, F32)];
    products.extend(match arch {
        Arch::A2 => vec![plain(BF16, F32), plain(F32, F32), plain(F64, F64)],
        Arch::P310 => vec![plain(F64, F64), lower::SPLIT],
    });
    Target {
        name: name.into(),
        dtypes: DTypeSupport {
            storage: DTypeSet::ALL,
            rows: DTypeSet::ALL,
            arithmetic: DTypeSet::of(&[I32, F32]),
            accumulator: F32,
        },
        // A program has as many values as UB holds tiles of: 96 instructions keep tiles of some hundred
        // elements. Rows that are longer than a tile are read again for each reduction. A tile of several
        // rows has a pitch of at most 2040 elements, and its height, by which sums over rows are divided,
        // follows from what the program keeps in UB.
        rows: RowProgramLimits {
            instructions: 96,
            operands: 20,
            whole_columns: 2016,
            long_columns: 4096,
            few_rows: 128,
            column_sums: 1 << 18,
            column_order: false,
        },
        memory: TargetMemory {
            alignment: ALIGN,
            spaces: vec![MemorySpace { name: space.into(), bytes: Some(bytes), host: false }],
            shared_workspace: 0,
            expansion: expand::BUDGET,
        },
        // Operands across rows are read by gathers of 32-byte blocks, which cost more than a transposition.
        transpose: TransposeCosts { reductions: true, functions: TRANSCENDENTAL },
        recompute: RecomputeCosts { instructions: 48, reads: 2.5, smallest: 16.0, longer_lives: 3.0 },
        rates: rates(arch, chip),
        products,
        saturating: if arch.saturates() { DTypeSet::of(&[F16]) } else { DTypeSet::default() },
        has_host: true,
        operators: Arc::new(Kernels { chip }),
    }
}

/// Rates of a chip, or of the first of its generation: of the cube, a product of 16 × 16 × 16 elements of 16
/// bits a cycle and core, and of the memory. Products of f32 take four cycles on A2, and three products of
/// f16 on 310P.
fn rates(arch: Arch, chip: Option<&'static Chip>) -> Rates {
    let chip = chip.or_else(|| CHIPS.iter().find(|chip| chip.arch == arch)).unwrap_or(&CHIPS[0]);
    let low_flops = 2.0 * 4096.0 * f64::from(chip.cube_cores) * f64::from(chip.mhz) * 1e6;
    let narrower = if arch == Arch::P310 { 3.0 } else { 4.0 };
    Rates { flops: low_flops / narrower, low_flops, bytes: timing::bandwidth(chip)[0] }
}
