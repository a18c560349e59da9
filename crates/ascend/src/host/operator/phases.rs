//! Both phases of each operator, by the signatures of CANN's reference.

use super::super::acl::types::{ExecutorHandle, IntsHandle, KEEP_DTYPE, TensorHandle};
use super::super::codes::Status;
use super::super::error::{Error, Result};
use super::super::memory::DeviceMemory;
use super::super::stream::Stream;
use super::Executor;
use super::library::Parts;
use crate::aclnn::{Attention, Call, Function, Window};
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// `preTokens` and `nextTokens` of attention: no key is too far away.
const ANY_DISTANCE: i64 = i32::MAX as i64;

/// Layout of attention's operands: batch, heads, length, size.
const LAYOUT: &std::ffi::CStr = c"BNSD";

impl Executor {
    /// The second phase: gives the work to a stream. An executor for one call is used up, whatever comes of
    /// it.
    pub(super) fn call(
        &mut self,
        call: &Call,
        stream: &Stream,
        workspace: Option<&DeviceMemory>,
    ) -> Result<Status> {
        let operators = self.parts.operators.clone();
        let functions = &operators.functions;
        let memory = workspace.map_or(std::ptr::null_mut(), |m| m.address() as *mut c_void);
        let (handle, stream) = (self.handle, stream.handle());
        if !self.repeatable {
            self.handle = ExecutorHandle::NULL;
            operators.device.runtime().counts.executors.fetch_sub(1, Ordering::SeqCst);
        }
        macro_rules! second {
            ($group:ident, $name:ident) => {{
                let f = functions.$group.as_ref().map_err(Error::clone)?;
                // SAFETY: executor and stream are alive. The workspace has as many bytes as the prepare call
                // requested; the stream's notes hold it, the operands' memory and the executor until the work
                // is done.
                unsafe { (f.$name)(memory, self.workspace, handle, stream) }
            }};
        }
        Ok(match &call.function {
            Function::Matmul => second!(matmul, aclnnMatmul),
            Function::Addmm => second!(addmm, aclnnAddmm),
            Function::Attention(_) => second!(attention, aclnnFlashAttentionScore),
            Function::AttentionGrad(_) => second!(attention_grad, aclnnFlashAttentionScoreGrad),
            Function::Convolution { .. } => second!(convolution, aclnnConvolution),
            Function::ConvolutionGrad { .. } => second!(convolution_grad, aclnnConvolutionBackward),
        })
    }
}

/// The first phase of an operator on tensors, and what it returned.
pub(super) fn first(
    function: &Function,
    parts: &mut Parts,
    t: &[TensorHandle],
    bytes: &mut u64,
    executor: &mut ExecutorHandle,
) -> Result<(&'static str, Status)> {
    let operators = parts.operators.clone();
    let functions = &operators.functions;
    let none = TensorHandle::NULL;
    let wrong = || Error::Usage(format!("{} of {} operands", function.name(), t.len()));
    // SAFETY, of each call: tensors, scalars and arrays are alive as long as the executor. One number and one
    // handle are written. Operands that the operator does not use are null, as its reference has it.
    Ok(match (function, t) {
        (Function::Matmul, &[a, b, out]) => {
            let f = functions.matmul.as_ref().map_err(Error::clone)?;
            // SAFETY: as above.
            let status = unsafe { (f.aclnnMatmulGetWorkspaceSize)(a, b, out, KEEP_DTYPE, bytes, executor) };
            ("aclnnMatmulGetWorkspaceSize", status)
        }
        (Function::Addmm, &[summand, a, b, out]) => {
            let f = functions.addmm.as_ref().map_err(Error::clone)?;
            let (beta, alpha) = (parts.one()?, parts.one()?);
            // SAFETY: as above.
            let status = unsafe {
                (f.aclnnAddmmGetWorkspaceSize)(summand, a, b, beta, alpha, out, KEEP_DTYPE, bytes, executor)
            };
            ("aclnnAddmmGetWorkspaceSize", status)
        }
        (Function::Attention(of), &[query, key, value, ref rest @ ..]) => {
            let f = functions.attention.as_ref().map_err(Error::clone)?;
            let (mask, rest) = masked(of, rest).ok_or_else(wrong)?;
            let &[largest, sum, out] = rest else { return Err(wrong()) };
            // SAFETY: as above; the layout is a text that ends with 0, and is not written.
            let status = unsafe {
                (f.aclnnFlashAttentionScoreGetWorkspaceSize)(
                    query,
                    key,
                    value,
                    none,
                    none,
                    none,
                    mask,
                    IntsHandle::NULL,
                    of.scale,
                    1.0,
                    ANY_DISTANCE,
                    ANY_DISTANCE,
                    of.heads as i64,
                    LAYOUT.as_ptr().cast_mut(),
                    0,
                    of.sparse_mode,
                    largest,
                    sum,
                    none,
                    out,
                    bytes,
                    executor,
                )
            };
            ("aclnnFlashAttentionScoreGetWorkspaceSize", status)
        }
        (Function::AttentionGrad(of), &[query, key, value, grad, ref rest @ ..]) => {
            let f = functions.attention_grad.as_ref().map_err(Error::clone)?;
            let (mask, rest) = masked(of, rest).ok_or_else(wrong)?;
            let &[largest, sum, out, query_grad, key_grad, value_grad] = rest else { return Err(wrong()) };
            // SAFETY: as above; the layout is a text that ends with 0, and is not written.
            let status = unsafe {
                (f.aclnnFlashAttentionScoreGradGetWorkspaceSize)(
                    query,
                    key,
                    value,
                    grad,
                    none,
                    none,
                    none,
                    mask,
                    largest,
                    sum,
                    none,
                    out,
                    IntsHandle::NULL,
                    of.scale,
                    1.0,
                    ANY_DISTANCE,
                    ANY_DISTANCE,
                    of.heads as i64,
                    LAYOUT.as_ptr().cast_mut(),
                    0,
                    of.sparse_mode,
                    query_grad,
                    key_grad,
                    value_grad,
                    none,
                    bytes,
                    executor,
                )
            };
            ("aclnnFlashAttentionScoreGradGetWorkspaceSize", status)
        }
        (Function::Convolution { window, bias }, &[input, weight, ref rest @ ..]) => {
            let f = functions.convolution.as_ref().map_err(Error::clone)?;
            let (bias, out) = match (bias, rest) {
                (true, &[bias, out]) => (bias, out),
                (false, &[out]) => (none, out),
                _ => return Err(wrong()),
            };
            let steps = Steps::of(parts, window)?;
            // SAFETY: as above.
            let status = unsafe {
                (f.aclnnConvolutionGetWorkspaceSize)(
                    input,
                    weight,
                    bias,
                    steps.stride,
                    steps.padding,
                    steps.dilation,
                    false,
                    steps.output_padding,
                    window.groups,
                    out,
                    KEEP_DTYPE,
                    bytes,
                    executor,
                )
            };
            ("aclnnConvolutionGetWorkspaceSize", status)
        }
        (Function::ConvolutionGrad { window, of_weight }, &[grad, input, weight, out]) => {
            let f = functions.convolution_grad.as_ref().map_err(Error::clone)?;
            let steps = Steps::of(parts, window)?;
            let wanted = parts.truths(&[!of_weight, *of_weight, false])?;
            let groups = i32::try_from(window.groups).map_err(|_| wrong())?;
            let (of_input, of_weight) = if *of_weight { (none, out) } else { (out, none) };
            // SAFETY: as above.
            let status = unsafe {
                (f.aclnnConvolutionBackwardGetWorkspaceSize)(
                    grad,
                    input,
                    weight,
                    IntsHandle::NULL,
                    steps.stride,
                    steps.padding,
                    steps.dilation,
                    false,
                    steps.output_padding,
                    groups,
                    wanted,
                    KEEP_DTYPE,
                    of_input,
                    of_weight,
                    none,
                    bytes,
                    executor,
                )
            };
            ("aclnnConvolutionBackwardGetWorkspaceSize", status)
        }
        _ => return Err(wrong()),
    })
}

/// The mask among attention's operands, and those after it.
fn masked<'a>(of: &Attention, rest: &'a [TensorHandle]) -> Option<(TensorHandle, &'a [TensorHandle])> {
    if of.masked {
        rest.split_first().map(|(mask, rest)| (*mask, rest))
    } else {
        Some((TensorHandle::NULL, rest))
    }
}

/// A window as the library has it.
struct Steps {
    stride: IntsHandle,
    padding: IntsHandle,
    dilation: IntsHandle,
    output_padding: IntsHandle,
}

impl Steps {
    fn of(parts: &mut Parts, window: &Window) -> Result<Steps> {
        Ok(Steps {
            stride: parts.integers(&window.stride)?,
            padding: parts.integers(&window.padding)?,
            dilation: parts.integers(&window.dilation)?,
            output_padding: parts.integers(&vec![0; window.stride.len()])?,
        })
    }
}
