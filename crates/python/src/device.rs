//! The devices of the process.

use crate::error::{Failure, guarded};
use headwater_core::device::Device;
use headwater_cpu::Cpu;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};

/// The device of this name, as the command line has it.
pub(crate) fn device(name: &str, threads: usize) -> Result<Arc<dyn Device>, Failure> {
    if name == "cpu" {
        return Ok(cpu(threads)?);
    }
    headwater::devices::open(name, threads).map_err(|e| Failure::new("", format!("{e:#}")))
}

/// Refuses names of devices that there are not.
#[pyfunction]
pub(crate) fn open_device(py: Python, name: String, threads: usize) -> PyResult<()> {
    guarded(py, || device(&name, threads).map(|_| ()))
}

/// The CPU, one pool of threads for all plans with as many. A forked child makes its own.
pub(crate) fn cpu(threads: usize) -> Result<Arc<Cpu>, Failure> {
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
