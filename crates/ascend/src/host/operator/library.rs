//! The libraries of the vendor's operators, and the tensors and options that calls are made of.

use super::super::acl;
use super::super::acl::symbols::{self, Operands, Repeatable};
use super::super::acl::types::{
    BoolsHandle, IntsHandle, OPT_DETERMINISTIC, ScalarHandle, TensorHandle, data_type, format,
};
use super::super::device::Device;
use super::super::error::{Error, Result};
use super::super::installation::Installation;
use crate::aclnn::{Format, Function, Operand};
use headwater_core::DType;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Libraries that have operators: one of all, or one for each domain; and the one of operands.
const LIBRARIES: [&str; 5] =
    ["libopapi.so", "libopapi_nn.so", "libopapi_math.so", "libopapi_transformer.so", "libnnopbase.so"];

/// Functions of the vendor's operators, for a device.
#[derive(Debug)]
pub struct Operators {
    pub(super) device: Arc<Device>,
    pub(super) operands: Operands,
    pub(super) repeatable: Option<Repeatable>,
    pub(super) functions: Functions,
    /// Why results may depend on the order in which cores come, if they do.
    unordered: Option<String>,
}

/// Functions of each operator, or what is missing of them.
#[derive(Debug)]
pub(super) struct Functions {
    pub matmul: Result<symbols::Matmul>,
    pub addmm: Result<symbols::Addmm>,
    pub attention: Result<symbols::FlashAttention>,
    pub attention_grad: Result<symbols::FlashAttentionGrad>,
    pub convolution: Result<symbols::Convolution>,
    pub convolution_grad: Result<symbols::ConvolutionGrad>,
}

impl Functions {
    /// The first thing missing for each operator, in the order of [`Function::NAMES`].
    fn missing(&self) -> [Option<&Error>; 6] {
        [
            self.matmul.as_ref().err(),
            self.addmm.as_ref().err(),
            self.attention.as_ref().err(),
            self.attention_grad.as_ref().err(),
            self.convolution.as_ref().err(),
            self.convolution_grad.as_ref().err(),
        ]
    }
}

/// The libraries of the vendor's operators.
struct Libraries {
    path: PathBuf,
    all: Vec<&'static libloading::Library>,
    /// The error of one that exists and does not open.
    closed: Option<Error>,
}

impl Libraries {
    fn open(installation: &Installation) -> Result<Libraries> {
        let (mut path, mut all, mut closed) = (None, Vec::new(), None);
        for found in LIBRARIES.iter().filter_map(|name| installation.library(name)) {
            match acl::open(&found) {
                Ok(library) => {
                    all.push(library);
                    path.get_or_insert(found);
                }
                Err(error) => {
                    closed.get_or_insert(error);
                }
            }
        }
        let Some(path) = path else {
            return Err(closed.unwrap_or_else(|| Error::Library {
                path: LIBRARIES[0].into(),
                cause: "not found; the vendor's operators are part of the CANN toolkit".into(),
            }));
        };
        Ok(Libraries { path, all, closed })
    }

    /// A group of functions, from the library that has it. Where none has, one that does not open is to
    /// blame.
    fn group<T>(&self, find: impl Fn(&libloading::Library) -> Result<T, &'static str>) -> Result<T> {
        let mut lacks = "";
        for library in &self.all {
            match find(library) {
                Ok(found) => return Ok(found),
                Err(name) if lacks.is_empty() => lacks = name,
                Err(_) => {}
            }
        }
        Err(self.closed.clone().unwrap_or_else(|| Error::symbol(&self.path, lacks)))
    }

    fn functions(&self) -> Functions {
        Functions {
            matmul: self.group(symbols::Matmul::find),
            addmm: self.group(symbols::Addmm::find),
            attention: self.group(symbols::FlashAttention::find),
            attention_grad: self.group(symbols::FlashAttentionGrad::find),
            convolution: self.group(symbols::Convolution::find),
            convolution_grad: self.group(symbols::ConvolutionGrad::find),
        }
    }
}

/// The vendor's operators of an installation by name, each with what is missing for it.
///
/// # Errors
/// [`Error::Library`] or [`Error::Symbol`] where all of them are missing.
pub fn offered(installation: &Installation) -> Result<Vec<(&'static str, Option<Error>)>> {
    let libraries = Libraries::open(installation)?;
    libraries.group(Operands::find)?;
    let functions = libraries.functions();
    Ok(Function::NAMES.into_iter().zip(functions.missing().map(|e| e.cloned())).collect())
}

impl Operators {
    /// Opens the libraries of an installation, and requests sums whose order does not depend on cores.
    ///
    /// # Errors
    /// [`Error::Library`] or [`Error::Symbol`] if there is no operator at all, the device's first error.
    pub fn open(device: &Arc<Device>, installation: &Installation) -> Result<Arc<Operators>> {
        let libraries = Libraries::open(installation)?;
        let operands = libraries.group(Operands::find)?;
        let unordered = match device.runtime().acl.determinism {
            None => Some("the runtime has no aclrtCtxSetSysParamOpt".to_string()),
            Some(f) => {
                device.enter()?;
                // SAFETY: takes two numbers.
                let status = unsafe { (f.aclrtCtxSetSysParamOpt)(OPT_DETERMINISTIC, 1) };
                match device.check("aclrtCtxSetSysParamOpt", status) {
                    Ok(()) => None,
                    Err(error) if error.is_sticky() => return Err(error),
                    Err(error) => Some(error.to_string()),
                }
            }
        };
        Ok(Arc::new(Operators {
            device: device.clone(),
            operands,
            repeatable: libraries.group(Repeatable::find).ok(),
            functions: libraries.functions(),
            unordered,
        }))
    }

    /// Why results may depend on the order in which cores come, if they do.
    pub fn unordered(&self) -> Option<&str> {
        self.unordered.as_deref()
    }
}

/// The error of a call that gives a null handle.
pub(super) fn nothing(name: &str) -> Error {
    Error::Usage(format!("{name} gave nothing"))
}

/// `aclDataType` of a type.
fn data_type(dtype: DType) -> Result<i32> {
    Ok(match dtype {
        DType::F32 => data_type::F32,
        DType::F16 => data_type::F16,
        DType::BF16 => data_type::BF16,
        DType::Bool => data_type::BOOL,
        other => return Err(Error::Usage(format!("an operand of {other} for a vendor's operator"))),
    })
}

/// `aclFormat` of a tensor.
fn data_format(format: Format, rank: usize) -> i32 {
    match (format, rank) {
        (Format::Images, 3) => format::NCL,
        (Format::Images, 4) => format::NCHW,
        (Format::Images, 5) => format::NCDHW,
        _ => format::ND,
    }
}

/// A tensor or an option of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Tensor(TensorHandle),
    Scalar(ScalarHandle),
    Ints(IntsHandle),
    Bools(BoolsHandle),
}

/// Tensors and options, destroyed when dropped.
#[derive(Debug)]
pub(super) struct Parts {
    pub operators: Arc<Operators>,
    list: Vec<Part>,
}

impl Parts {
    /// None yet.
    pub fn new(operators: &Arc<Operators>) -> Parts {
        Parts { operators: operators.clone(), list: Vec::new() }
    }

    /// Keeps what a call made, unless that is null.
    fn keep<H: Copy + PartialEq>(
        &mut self,
        name: &str,
        handle: H,
        null: H,
        part: fn(H) -> Part,
    ) -> Result<H> {
        if handle == null {
            return Err(nothing(name));
        }
        self.operators.device.runtime().counts.operands.fetch_add(1, Ordering::SeqCst);
        self.list.push(part(handle));
        Ok(handle)
    }

    /// A tensor at an address.
    pub fn tensor(&mut self, operand: &Operand, address: u64) -> Result<TensorHandle> {
        let integers = |numbers: &[usize]| -> Vec<i64> { numbers.iter().map(|&n| n as i64).collect() };
        let (sizes, strides) = (integers(&operand.shape), integers(&operand.strides));
        // Memory as one row, whatever the dimensions.
        let storage = [operand.span() as i64];
        let (rank, dtype) = (sizes.len(), data_type(operand.dtype)?);
        // SAFETY: the arrays have so many numbers and are copied; the address is not read by this call.
        let handle = unsafe {
            (self.operators.operands.aclCreateTensor)(
                sizes.as_ptr(),
                rank as u64,
                dtype,
                strides.as_ptr(),
                0,
                data_format(operand.format, rank),
                storage.as_ptr(),
                1,
                address as *mut c_void,
            )
        };
        self.keep("aclCreateTensor", handle, TensorHandle::NULL, Part::Tensor)
    }

    /// The number 1.
    pub fn one(&mut self) -> Result<ScalarHandle> {
        let (f, mut one) = (&self.operators.operands, 1f32);
        // SAFETY: the number is copied.
        let handle = unsafe { (f.aclCreateScalar)((&raw mut one).cast(), data_type::F32) };
        self.keep("aclCreateScalar", handle, ScalarHandle::NULL, Part::Scalar)
    }

    /// Integers.
    pub fn integers(&mut self, values: &[i64]) -> Result<IntsHandle> {
        let f = &self.operators.operands;
        // SAFETY: so many numbers, which are copied.
        let handle = unsafe { (f.aclCreateIntArray)(values.as_ptr(), values.len() as u64) };
        self.keep("aclCreateIntArray", handle, IntsHandle::NULL, Part::Ints)
    }

    /// Truths.
    pub fn truths(&mut self, values: &[bool]) -> Result<BoolsHandle> {
        let f = &self.operators.operands;
        // SAFETY: so many truths, which are copied.
        let handle = unsafe { (f.aclCreateBoolArray)(values.as_ptr(), values.len() as u64) };
        self.keep("aclCreateBoolArray", handle, BoolsHandle::NULL, Part::Bools)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let device = &self.operators.device;
        let (runtime, f) = (device.runtime(), &self.operators.operands);
        device.set_context();
        for part in self.list.drain(..).rev() {
            // SAFETY: made by the library and destroyed once; the executor that used it was destroyed.
            let (call, status) = unsafe {
                match part {
                    Part::Tensor(handle) => ("aclDestroyTensor", (f.aclDestroyTensor)(handle)),
                    Part::Scalar(handle) => ("aclDestroyScalar", (f.aclDestroyScalar)(handle)),
                    Part::Ints(handle) => ("aclDestroyIntArray", (f.aclDestroyIntArray)(handle)),
                    Part::Bools(handle) => ("aclDestroyBoolArray", (f.aclDestroyBoolArray)(handle)),
                }
            };
            runtime.released(call, status, &runtime.counts.operands);
        }
    }
}
