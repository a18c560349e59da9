//! The CPU as passes see it: every element type, and the figures of its kernels and caches.

use crate::kernels::{Kernels, Site};
use crate::limits::lanes;
use crate::rows::WHOLE;
use crate::tier::Tier;
use headwater_core::ops::OpDef;
use headwater_core::plan::ALIGN;
use headwater_core::target::{
    DTypeSet, DTypeSupport, MemorySpace, Operators, Port, ProductModel, Rates, RecomputeCosts,
    RowProgramLimits, Support, TRANSCENDENTAL, Target, TargetMemory, TransposeCosts,
};
use headwater_core::{DType, OpCx, TensorType};
use std::sync::Arc;

/// Most bytes of workspace, and most for each thread, that have one offset throughout a plan: what packed
/// operands of most products need. Larger ones would leave the caches anyway.
const COMMON: usize = 2 << 20;
const COMMON_EACH: usize = 3 << 20;
const COMMON_MOST: usize = 16 << 20;

/// The target of `threads` threads with the instructions of a tier, and with these kernels.
pub(crate) fn target(threads: usize, tier: Tier, kernels: Arc<Kernels>) -> Target {
    use DType::{BF16, F16, F32, F64};
    Target {
        name: "cpu".into(),
        dtypes: DTypeSupport {
            storage: DTypeSet::ALL,
            rows: DTypeSet::ALL,
            arithmetic: DTypeSet::of(&[F32, F64, DType::I32, DType::I64]),
            accumulator: F32,
        },
        rows: RowProgramLimits {
            instructions: 96,
            operands: 20,
            whole_columns: WHOLE,
            long_columns: WHOLE,
            few_rows: 128,
            column_sums: 1 << 18,
            column_order: true,
        },
        memory: TargetMemory {
            alignment: ALIGN,
            spaces: vec![MemorySpace { name: "host".into(), bytes: None, host: true }],
            shared_workspace: (COMMON + COMMON_EACH * threads).min(COMMON_MOST),
            expansion: headwater_core::expand::BUDGET,
        },
        // Vectors of 4 to 16 lanes load columns that are contiguous; others are gathered one by one.
        transpose: TransposeCosts { reductions: true, functions: TRANSCENDENTAL },
        // Half of a fused program's instructions, the rest are its user's. Reads: two operands, and what is
        // small. Longer lives: the gradient of an MLP's inner layer, four times as wide as the norm before.
        recompute: RecomputeCosts { instructions: 48, reads: 2.5, smallest: 16.0, longer_lives: 4.0 },
        rates: rates(threads, tier),
        products: [(F16, F32), (BF16, F32), (F32, F32), (F64, F64)]
            .map(|(operands, sums)| ProductModel::plain(operands, sums))
            .into(),
        saturating: DTypeSet::default(),
        has_host: true,
        operators: Arc::new(Supported { kernels, threads, tier }),
    }
}

/// Nominal rates. They are two fused multiply-adds of full vectors a cycle at 3 GHz on every thread. Pairs of
/// bf16 double that. Products on AMX were measured at four times the rate of f32's. Memory traffic is 10 GB/s
/// for each of at most 16 threads.
fn rates(threads: usize, tier: Tier) -> Rates {
    let flops = threads as f64 * 3e9 * 4.0 * lanes(tier, 4) as f64;
    let bf16 = match tier {
        #[cfg(target_arch = "x86_64")]
        Tier::Amx => 4.0,
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512Bf16 => 2.0,
        #[cfg(target_arch = "aarch64")]
        Tier::NeonBf16 => 2.0,
        _ => 1.0,
    };
    Rates { flops, low_flops: bf16 * flops, bytes: threads.min(16) as f64 * 1e10 }
}

/// The operators that kernels support, for a number of threads and a tier.
#[derive(Debug)]
struct Supported {
    kernels: Arc<Kernels>,
    threads: usize,
    tier: Tier,
}

impl Supported {
    fn site<'a>(&self, cx: &OpCx<'a>, outs: &'a [TensorType]) -> Site<'a> {
        Site { cx: cx.clone(), outs, threads: self.threads, tier: self.tier }
    }
}

impl Operators for Supported {
    fn support(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> Support {
        match self.kernels.choose(op, &self.site(cx, outs)) {
            Some(_) => Support::Native,
            None => Support::Reference,
        }
    }

    fn workspace(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> usize {
        let site = self.site(cx, outs);
        self.kernels.choose(op, &site).map_or(0, |k| (k.workspace)(&site))
    }

    fn strided(&self, op: &OpDef, _: &OpCx, _: &[TensorType], port: Port) -> bool {
        self.kernels.find(op).is_none_or(|k| (k.strided)(port))
    }
}
