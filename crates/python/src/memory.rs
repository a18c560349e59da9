//! Memory that Python holds: tensors by their addresses, and segments of state that it lends.

use crate::error::Failure;
use headwater_core::device::Foreign;
use headwater_core::plan::Segment;
use headwater_core::{Tensor, TensorType};
use headwater_runtime::session::Weights;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ptr::NonNull;

/// The bytes of a contiguous tensor.
///
/// # Safety
/// `address` is that of a contiguous tensor of `bytes` bytes, which lives and is not written during `'a`. An
/// empty tensor has no address.
pub(crate) unsafe fn view<'a>(address: usize, bytes: usize) -> &'a [u8] {
    match NonNull::new(address as *mut u8) {
        // SAFETY: the caller's promise.
        Some(at) if bytes > 0 => unsafe { std::slice::from_raw_parts(at.as_ptr(), bytes) },
        _ => &[],
    }
}

/// The same, to write.
///
/// # Safety
/// As [`view`], and nobody else touches the tensor during `'a`.
pub(crate) unsafe fn view_mut<'a>(address: usize, bytes: usize) -> &'a mut [u8] {
    match NonNull::new(address as *mut u8) {
        // SAFETY: the caller's promise.
        Some(at) if bytes > 0 => unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), bytes) },
        _ => &mut [],
    }
}

/// Contiguous tensors by name, which Python keeps alive and unchanged for the call that they are given to.
pub(crate) struct Contents {
    tensors: HashMap<String, (usize, usize)>,
}

impl Contents {
    /// `tensors`: addresses and sizes in bytes.
    pub fn new(tensors: HashMap<String, (usize, usize)>) -> Contents {
        Contents { tensors }
    }

    /// A tensor of this type.
    pub fn tensor(&self, name: &str, ty: &TensorType) -> Result<Tensor, Failure> {
        let bytes = self.bytes(name).filter(|b| b.len() == ty.bytes());
        let wrong = || Failure::new("HW-R007", format!("the tensor {name}, {ty}, was not given"));
        Ok(Tensor::from_bytes(ty, &bytes.ok_or_else(wrong)?))
    }
}

impl Weights for Contents {
    fn bytes(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let &(address, bytes) = self.tensors.get(name)?;
        // SAFETY: Python gave the address and size of a contiguous tensor for the call in which this value
        // lives.
        Some(unsafe { view(address, bytes) }.into())
    }
}

/// A segment in memory of Python's.
struct Lent {
    memory: NonNull<[u8]>,
    /// Holds the memory; without it, who lent it does.
    _owner: Option<Py<PyAny>>,
}

// SAFETY: the memory is an anonymous mapping that `owner` keeps, or a tensor's that the caller of `lent`
// keeps; any thread may use it.
unsafe impl Send for Lent {}

// SAFETY: tensors are as the caller of `lent` promises. A mapping is never closed or resized while `owner`
// lives, and was zeroed by the system. PyTorch's tensors are stored in it, and are read and written by Python
// code. `Step` works on it only inside of its methods, which wait for the work that they submit; a script
// that writes a model's weights from another thread meanwhile races, as it does with PyTorch's own.
unsafe impl Foreign for Lent {
    fn memory(&self) -> NonNull<[u8]> {
        self.memory
    }
}

/// The memory of a contiguous tensor. An empty one has no address.
///
/// # Safety
/// `address` is that of `bytes` bytes, which live, and are touched by nobody else, until the value and all
/// buffers made of it are dropped.
pub(crate) unsafe fn lent(address: usize, bytes: usize) -> Result<Box<dyn Foreign>, Failure> {
    let none = || Failure::new("HW-R003", "a tensor was given without an address");
    let base = match bytes {
        0 => NonNull::<Aligned>::dangling().cast(),
        _ => NonNull::new(address as *mut u8).ok_or_else(none)?,
    };
    Ok(Box::new(Lent { memory: NonNull::slice_from_raw_parts(base, bytes), _owner: None }))
}

/// Carries the alignment of an empty tensor's address.
#[repr(align(64))]
struct Aligned;

/// Asks Python for the memory of a segment: `lend(name, bytes)` gives an address and the object that holds
/// the memory.
pub(crate) fn lend(asked: &Py<PyAny>, segment: &Segment) -> PyResult<Box<dyn Foreign>> {
    Python::attach(|py| {
        let (address, owner): (usize, Py<PyAny>) =
            asked.call1(py, (&segment.name, segment.bytes))?.extract(py)?;
        let none = || PyValueError::new_err(format!("the memory lent for {} has no address", segment.name));
        let base = NonNull::new(address as *mut u8).ok_or_else(none)?;
        let memory = NonNull::slice_from_raw_parts(base, segment.bytes);
        Ok(Box::new(Lent { memory, _owner: Some(owner) }) as Box<dyn Foreign>)
    })
}
