//! The CPU as a device.

use crate::executor;
use crate::kernels::{self, Site};
use crate::memory::CpuMemory;
use crate::pool::Pool;
use crate::tier::Tier;
use headwater_core::device::{Caps, Device, Executable, Memory, Port, Support};
use headwater_core::diagnostic::Result;
use headwater_core::ops::{Body, OpDef};
use headwater_core::plan::Plan;
use headwater_core::{OpCx, TensorType, ensure};

/// The CPU: its threads and instructions.
#[derive(Clone, Debug)]
pub struct Cpu {
    pool: Pool,
    /// Chosen, or else [`Tier::current`].
    tier: Option<Tier>,
}

impl Default for Cpu {
    /// All cores, or as many threads as the environment variable `HEADWATER_THREADS` says.
    fn default() -> Self {
        Cpu { pool: Pool::from_env(), tier: None }
    }
}

impl Cpu {
    /// The CPU with a chosen number of threads (at least one). Results do not depend on it.
    pub fn new(threads: usize) -> Self {
        Cpu { pool: Pool::new(threads), tier: None }
    }

    /// The same threads with the instructions of a tier. Results are the same but for matrix products.
    ///
    /// # Errors
    /// `Device` if this processor has no such instructions.
    pub fn with_tier(self, tier: Tier) -> Result<Self> {
        ensure!(tier <= Tier::detect(), Device, "this processor has no {}", tier.name());
        Ok(Cpu { tier: Some(tier), ..self })
    }

    /// Its threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The tier to use; one asked for wrongly is refused when a plan is loaded.
    fn tier(&self) -> Tier {
        self.tier.or_else(|| Tier::current().ok()).unwrap_or(Tier::Portable)
    }

    fn site<'a>(&self, cx: &OpCx<'a>, outs: &'a [TensorType]) -> Site<'a> {
        Site { cx: cx.clone(), outs, threads: self.pool.threads(), tier: self.tier() }
    }
}

/// Most bytes of workspace, and most for each thread, that lie in one place all through a plan: what packed
/// operands of most products need. Larger ones would leave the caches anyway.
const COMMON: usize = 2 << 20;
const COMMON_EACH: usize = 3 << 20;
const COMMON_MOST: usize = 16 << 20;

impl Caps for Cpu {
    fn support(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> Support {
        match op.body {
            Body::Kernel(_) if kernels::choose(op.name, &self.site(cx, outs)).is_none() => Support::Reference,
            _ => Support::Native,
        }
    }

    fn workspace(&self, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> usize {
        let site = self.site(cx, outs);
        kernels::choose(op.name, &site).map_or(0, |k| (k.workspace)(&site))
    }

    fn common_workspace(&self) -> usize {
        (COMMON + COMMON_EACH * self.pool.threads()).min(COMMON_MOST)
    }

    fn strided(&self, op: &OpDef, port: Port) -> bool {
        kernels::find(op.name).is_none_or(|k| (k.strided)(port))
    }
}

impl Device for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn caps(&self) -> &dyn Caps {
        self
    }

    fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(CpuMemory::new(bytes)?))
    }

    fn load(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        Ok(Box::new(executor::Loaded::new(plan, &self.pool, self.tier.map_or_else(Tier::current, Ok)?)?))
    }
}
