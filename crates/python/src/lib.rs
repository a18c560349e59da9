//! The Python module `headwater._headwater`: the part of the package that computes. `python/headwater` is the
//! rest of it.
//!
//! A forward graph arrives as PyTorch's JSON, tensors by their addresses. State is in memory that Python
//! lends, so PyTorch sees the bytes that plans write. Nothing of PyTorch is linked. Every call goes through
//! [`error::guarded`]: the interpreter lock is free while it runs, errors become exceptions with their code,
//! and a panic becomes a `RuntimeError`.
#![deny(clippy::print_stderr, clippy::print_stdout)]
#![allow(unsafe_code)]

mod check;
mod command;
mod device;
mod error;
mod halves;
mod memory;
mod program;
mod scaler;
mod step;

use pyo3::prelude::*;

/// Fails on purpose, to try out what a caller sees.
#[pyfunction]
fn _fail(py: Python, message: String) -> PyResult<()> {
    error::guarded(py, || panic!("{message}"))
}

#[pymodule]
fn _headwater(module: &Bound<PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(_fail, module)?)?;
    module.add_function(wrap_pyfunction!(halves::compare, module)?)?;
    module.add_function(wrap_pyfunction!(command::command, module)?)?;
    module.add_function(wrap_pyfunction!(command::command_json, module)?)?;
    module.add_function(wrap_pyfunction!(command::interrupt, module)?)?;
    module.add_function(wrap_pyfunction!(device::open_device, module)?)?;
    module.add_function(wrap_pyfunction!(step::planned_memory, module)?)?;
    module.add_class::<program::Program>()?;
    module.add_class::<scaler::Scaler>()?;
    module.add_class::<halves::Context>()?;
    module.add_class::<halves::Activations>()?;
    module.add_class::<halves::Halves>()?;
    module.add_class::<step::Step>()
}
