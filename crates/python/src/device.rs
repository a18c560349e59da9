//! The devices of the process.

use crate::error::Failure;
use headwater_cpu::Cpu;
use std::sync::{Arc, Mutex};

/// The CPU, one pool of threads for all plans with as many. A forked child makes its own.
pub(crate) fn device(threads: usize) -> Result<Arc<Cpu>, Failure> {
    static OPEN: Mutex<Option<(u32, usize, Arc<Cpu>)>> = Mutex::new(None);
    let key = (std::process::id(), threads);
    let mut open = OPEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some((process, count, cpu)) = &*open
        && (*process, *count) == key
    {
        return Ok(cpu.clone());
    }
    let cpu = Arc::new(Cpu::start(threads)?);
    *open = Some((key.0, key.1, cpu.clone()));
    Ok(cpu)
}
