//! The CPU as a device.

use crate::buffer::CpuBuffer;
use crate::executor;
use crate::kernels::{Kernel, Kernels};
use crate::pool::Pool;
use crate::stream::CpuStream;
use crate::target::target;
use crate::tier::Tier;
use headwater_core::device::{Buffer, Content, Device, Executable, Foreign, Stream};
use headwater_core::diagnostic::Result;
use headwater_core::plan::Plan;
use headwater_core::ranks::Transport;
use headwater_core::target::Target;
use headwater_core::{ensure, fail};
use std::fmt;
use std::sync::Arc;

/// The CPU: its threads, instructions and kernels.
#[derive(Clone)]
pub struct Cpu {
    target: Target,
    pool: Pool,
    /// Chosen, or else [`Tier::current`].
    tier: Option<Tier>,
    kernels: Arc<Kernels>,
    /// The other ranks, if there are any.
    transport: Option<Arc<dyn Transport>>,
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.transport.as_ref().map_or(1, |t| t.ranks());
        f.debug_struct("Cpu").field("threads", &self.pool.threads()).field("ranks", &ranks).finish()
    }
}

impl Default for Cpu {
    /// All cores, or as many threads as the environment variable `HEADWATER_THREADS` says.
    fn default() -> Self {
        Cpu::on(Pool::from_env(), None, Kernels::standard())
    }
}

impl Cpu {
    /// The CPU with a chosen number of threads (at least one). Results do not depend on it.
    ///
    /// # Panics
    /// If the system does not start so many; see [`Cpu::start`].
    pub fn new(threads: usize) -> Self {
        Cpu::on(Pool::new(threads), None, Kernels::standard())
    }

    /// As [`Cpu::new`], for a number of threads from outside.
    ///
    /// # Errors
    /// `Device` if the system does not start so many.
    pub fn start(threads: usize) -> Result<Self> {
        let pool = Pool::start(threads).map_err(|e| {
            fail!(Device, "the system does not start {threads} threads: {e}; ask for fewer, or raise its limits (ulimit -u, ulimit -v)")
        })?;
        Ok(Cpu::on(pool, None, Kernels::standard()))
    }

    /// The same threads with the instructions of a tier. Results are the same but for matrix products.
    ///
    /// # Errors
    /// `Device` if this processor has no such instructions.
    pub fn with_tier(self, tier: Tier) -> Result<Self> {
        ensure!(tier <= Tier::detect(), Device, "this processor has no {}", tier.name());
        Ok(Cpu { transport: self.transport, ..Cpu::on(self.pool, Some(tier), self.kernels) })
    }

    /// The same threads with further kernels, such as those of a user's operators.
    ///
    /// # Errors
    /// `Unsupported` for an operator that has a kernel already, or whose body runs without one.
    pub fn with_kernels(self, kernels: &[&'static Kernel]) -> Result<Self> {
        let mut all = Kernels::clone(&self.kernels);
        kernels.iter().try_for_each(|&kernel| all.register(kernel))?;
        Ok(Cpu { transport: self.transport, ..Cpu::on(self.pool, self.tier, Arc::new(all)) })
    }

    /// The same threads, as a rank among others: its plans may have collectives.
    pub fn with_transport(self, transport: Arc<dyn Transport>) -> Self {
        Cpu { transport: Some(transport), ..self }
    }

    /// Its threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    fn on(pool: Pool, tier: Option<Tier>, kernels: Arc<Kernels>) -> Cpu {
        // An invalid tier setting is refused when a plan is loaded.
        let known = tier.or_else(|| Tier::current().ok()).unwrap_or(Tier::Portable);
        Cpu {
            target: target(pool.threads(), known, Arc::clone(&kernels)),
            pool,
            tier,
            kernels,
            transport: None,
        }
    }
}

impl Device for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: usize, content: Content) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(CpuBuffer::new(bytes, content)?))
    }

    fn free_memory(&self) -> Option<usize> {
        crate::free::free()
    }

    fn borrow(&self, memory: Box<dyn Foreign>) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(CpuBuffer::lent(memory)?))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(CpuStream::default()))
    }

    fn load(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        let tier = self.tier.map_or_else(Tier::current, Ok)?;
        let transport = self.transport.clone();
        Ok(Box::new(executor::Loaded::new(plan, &self.pool, tier, &self.kernels, transport)?))
    }

    fn transport(&self) -> Option<Arc<dyn Transport>> {
        self.transport.clone()
    }

    fn arithmetic(&self) -> String {
        let tier = self.tier.or_else(|| Tier::current().ok()).unwrap_or(Tier::Portable);
        format!("cpu with {}", tier.name())
    }
}
