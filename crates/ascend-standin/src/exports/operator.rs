//! Operands of the vendor's operators, executors, and both phases of the operators that are used.

use super::{exports, put, text};
use crate::operator::{Function, Operand, Prepared, Tensor, Window, Work};
use crate::outcome::{HANDLE, Outcome, PARAM, fail};
use crate::stream::Task;
use crate::world::{LAST_TASK, WORLD, call};
use headwater_ascend::host::codes::Status;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A parameter that the operator does not take.
const INVALID: Status = 161_002;
/// An operand that must be there and is not.
const NULL: Status = 161_001;

/// Bytes of workspace that every call requests and uses; deliberately not a multiple of an alignment.
const WORKSPACE: usize = 1000;

fn array<T: Copy>(values: *const T, count: u64) -> Outcome<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if values.is_null() {
        return fail(PARAM, "an array is null");
    }
    // SAFETY: not null, and by the interface's contract so many values.
    Ok(unsafe { std::slice::from_raw_parts(values, count as usize) }.to_vec())
}

/// Makes an operand; null where that fails.
fn create(name: &'static str, make: impl FnOnce() -> Outcome<Operand>) -> *mut c_void {
    let mut made = std::ptr::null_mut();
    call(name, || {
        let operand = make()?;
        let token = WORLD.token();
        WORLD.state().operands.insert(token, operand);
        made = token as *mut c_void;
        Ok(())
    });
    made
}

/// Destroys an operand that no executor uses.
fn destroy(handle: *mut c_void) -> Outcome {
    let mut state = WORLD.state();
    if state.executors.values().any(|e| e.uses.contains(&(handle as usize))) {
        return fail(PARAM, "an executor uses the operand");
    }
    match state.operands.remove(&(handle as usize)) {
        Some(_) => Ok(()),
        None => fail(HANDLE, "no such operand"),
    }
}

/// `aclCreateTensor`.
#[unsafe(no_mangle)]
pub extern "C" fn aclCreateTensor(
    sizes: *const i64,
    rank: u64,
    dtype: i32,
    strides: *const i64,
    offset: i64,
    format: i32,
    storage: *const i64,
    storage_rank: u64,
    data: *mut c_void,
) -> *mut c_void {
    create("aclCreateTensor", || {
        let storage = array(storage, storage_rank)?;
        let tensor = Tensor::new(&array(sizes, rank)?, &array(strides, rank)?, dtype, format, data as usize)?;
        if offset != 0 || data.is_null() || storage.iter().product::<i64>() < tensor.span() as i64 {
            return fail(PARAM, "a tensor that leaves its storage");
        }
        Ok(Operand::Tensor(tensor))
    })
}

/// `aclCreateScalar`, of f32.
#[unsafe(no_mangle)]
pub extern "C" fn aclCreateScalar(value: *mut c_void, dtype: i32) -> *mut c_void {
    create("aclCreateScalar", || match dtype {
        0 => Ok(Operand::Scalar(array(value.cast::<f32>(), 1)?[0])),
        other => fail(PARAM, format!("a number of type {other}")),
    })
}

/// `aclCreateIntArray`.
#[unsafe(no_mangle)]
pub extern "C" fn aclCreateIntArray(values: *const i64, count: u64) -> *mut c_void {
    create("aclCreateIntArray", || Ok(Operand::Ints(array(values, count)?)))
}

/// `aclCreateBoolArray`.
#[unsafe(no_mangle)]
pub extern "C" fn aclCreateBoolArray(values: *const bool, count: u64) -> *mut c_void {
    create("aclCreateBoolArray", || Ok(Operand::Bools(array(values, count)?)))
}

exports! {
    /// `aclDestroyTensor`.
    fn aclDestroyTensor(handle: *mut c_void) { destroy(handle) }
    /// `aclDestroyScalar`.
    fn aclDestroyScalar(handle: *mut c_void) { destroy(handle) }
    /// `aclDestroyIntArray`.
    fn aclDestroyIntArray(handle: *mut c_void) { destroy(handle) }
    /// `aclDestroyBoolArray`.
    fn aclDestroyBoolArray(handle: *mut c_void) { destroy(handle) }

    /// `aclSetAclOpExecutorRepeatable`.
    fn aclSetAclOpExecutorRepeatable(executor: *mut c_void) {
        match WORLD.state().executors.get_mut(&(executor as usize)) {
            Some(executor) => {
                executor.repeatable = true;
                Ok(())
            }
            None => fail(PARAM, "no such executor"),
        }
    }

    /// `aclDestroyAclOpExecutor`.
    fn aclDestroyAclOpExecutor(executor: *mut c_void) {
        match WORLD.state().executors.remove(&(executor as usize)) {
            Some(_) => Ok(()),
            None => fail(HANDLE, "no such executor"),
        }
    }

    /// `aclrtCtxSetSysParamOpt`: the order of sums.
    fn aclrtCtxSetSysParamOpt(option: u32, value: i64) {
        let mut state = WORLD.state();
        state.current()?;
        if option != 0 || !(0..=1).contains(&value) {
            return fail(PARAM, format!("option {option} is {value}"));
        }
        Ok(())
    }
}

/// Operands of a call, as they are looked up.
#[derive(Default)]
struct Taken {
    uses: Vec<usize>,
}

impl Taken {
    fn operand<T>(&mut self, handle: *mut c_void, of: impl FnOnce(&Operand) -> Option<T>) -> Outcome<T> {
        if handle.is_null() {
            return fail(NULL, "an operand is null");
        }
        self.uses.push(handle as usize);
        let state = WORLD.state();
        let found = state.operands.get(&(handle as usize));
        found.and_then(of).ok_or((HANDLE, "no such operand".into()))
    }

    fn tensor(&mut self, handle: *mut c_void) -> Outcome<Tensor> {
        self.operand(handle, |o| if let Operand::Tensor(t) = o { Some(t.clone()) } else { None })
    }

    fn optional(&mut self, handle: *mut c_void) -> Outcome<Option<Tensor>> {
        if handle.is_null() { Ok(None) } else { self.tensor(handle).map(Some) }
    }

    fn one(&mut self, handle: *mut c_void) -> Outcome {
        match self.operand(handle, |o| if let Operand::Scalar(x) = o { Some(*x) } else { None })? {
            1.0 => Ok(()),
            other => fail(INVALID, format!("a factor of {other}")),
        }
    }

    fn ints(&mut self, handle: *mut c_void) -> Outcome<Vec<i64>> {
        self.operand(handle, |o| if let Operand::Ints(x) = o { Some(x.clone()) } else { None })
    }

    fn bools(&mut self, handle: *mut c_void) -> Outcome<Vec<bool>> {
        self.operand(handle, |o| if let Operand::Bools(x) = o { Some(x.clone()) } else { None })
    }

    fn window(&mut self, steps: [*mut c_void; 4], transposed: bool, groups: i64) -> Outcome<Window> {
        let [stride, padding, dilation, output_padding] = steps;
        if transposed || self.ints(output_padding)?.iter().any(|n| *n != 0) {
            return fail(INVALID, "a transposed convolution");
        }
        Ok(Window {
            stride: self.ints(stride)?,
            padding: self.ints(padding)?,
            dilation: self.ints(dilation)?,
            groups,
        })
    }

    /// The executor of a call.
    fn prepare(
        self,
        name: &'static str,
        function: Function,
        reads: Vec<Option<Tensor>>,
        writes: Vec<Tensor>,
        (workspace, executor): (*mut u64, *mut *mut c_void),
    ) -> Outcome {
        let work = Work { function, reads, writes };
        work.check().map_err(|text| (INVALID, text))?;
        let token = WORLD.token();
        let mut state = WORLD.state();
        state.current()?;
        let prepared =
            Prepared { name, work: Arc::new(work), workspace: WORKSPACE, repeatable: false, uses: self.uses };
        state.executors.insert(token, prepared);
        put(workspace, WORKSPACE as u64)?;
        put(executor, token as *mut c_void)
    }
}

/// Refuses products in another type than the operands'.
fn kept(cube_math: i8) -> Outcome {
    if cube_math == 0 { Ok(()) } else { fail(INVALID, format!("cubeMathType {cube_math}")) }
}

/// Refuses operands of attention that the stand-in does not know.
fn absent(handles: &[*mut c_void]) -> Outcome {
    if handles.iter().all(|h| h.is_null()) { Ok(()) } else { fail(INVALID, "an operand of another kind") }
}

/// Options of attention that are always the same.
fn plain(keep: f64, distances: [i64; 2], layout: *const c_char, precise: i64) -> Outcome {
    let whole = distances.iter().all(|d| *d == i64::from(i32::MAX));
    if keep == 1.0 && whole && text(layout)? == "BNSD" && precise == 0 {
        return Ok(());
    }
    fail(INVALID, "options of another kind")
}

exports! {
    /// `aclnnMatmulGetWorkspaceSize`.
    fn aclnnMatmulGetWorkspaceSize(
        a: *mut c_void,
        b: *mut c_void,
        out: *mut c_void,
        cube_math: i8,
        bytes: *mut u64,
        executor: *mut *mut c_void,
    ) {
        kept(cube_math)?;
        let mut t = Taken::default();
        let (reads, writes) = (vec![Some(t.tensor(a)?), Some(t.tensor(b)?)], vec![t.tensor(out)?]);
        t.prepare("aclnnMatmul", Function::Matmul, reads, writes, (bytes, executor))
    }

    /// `aclnnAddmmGetWorkspaceSize`.
    fn aclnnAddmmGetWorkspaceSize(
        summand: *mut c_void,
        a: *mut c_void,
        b: *mut c_void,
        beta: *mut c_void,
        alpha: *mut c_void,
        out: *mut c_void,
        cube_math: i8,
        bytes: *mut u64,
        executor: *mut *mut c_void,
    ) {
        kept(cube_math)?;
        let mut t = Taken::default();
        t.one(beta)?;
        t.one(alpha)?;
        let reads = vec![Some(t.tensor(a)?), Some(t.tensor(b)?), Some(t.tensor(summand)?)];
        let writes = vec![t.tensor(out)?];
        t.prepare("aclnnAddmm", Function::Addmm, reads, writes, (bytes, executor))
    }

    /// `aclnnFlashAttentionScoreGetWorkspaceSize`.
    fn aclnnFlashAttentionScoreGetWorkspaceSize(
        query: *mut c_void,
        key: *mut c_void,
        value: *mut c_void,
        shift: *mut c_void,
        drop_mask: *mut c_void,
        padding_mask: *mut c_void,
        mask: *mut c_void,
        prefix: *mut c_void,
        scale: f64,
        keep: f64,
        before: i64,
        behind: i64,
        heads: i64,
        layout: *mut c_char,
        precise: i64,
        sparse_mode: i64,
        largest: *mut c_void,
        sum: *mut c_void,
        weights: *mut c_void,
        out: *mut c_void,
        bytes: *mut u64,
        executor: *mut *mut c_void,
    ) {
        absent(&[shift, drop_mask, padding_mask, prefix, weights])?;
        plain(keep, [before, behind], layout, precise)?;
        let mut t = Taken::default();
        let reads =
            vec![Some(t.tensor(query)?), Some(t.tensor(key)?), Some(t.tensor(value)?), t.optional(mask)?];
        let writes = vec![t.tensor(largest)?, t.tensor(sum)?, t.tensor(out)?];
        let function = Function::Attention { scale, heads, sparse_mode };
        t.prepare("aclnnFlashAttentionScore", function, reads, writes, (bytes, executor))
    }

    /// `aclnnFlashAttentionScoreGradGetWorkspaceSize`.
    fn aclnnFlashAttentionScoreGradGetWorkspaceSize(
        query: *mut c_void,
        key: *mut c_void,
        value: *mut c_void,
        grad: *mut c_void,
        shift: *mut c_void,
        drop_mask: *mut c_void,
        padding_mask: *mut c_void,
        mask: *mut c_void,
        largest: *mut c_void,
        sum: *mut c_void,
        weights: *mut c_void,
        out: *mut c_void,
        prefix: *mut c_void,
        scale: f64,
        keep: f64,
        before: i64,
        behind: i64,
        heads: i64,
        layout: *mut c_char,
        precise: i64,
        sparse_mode: i64,
        query_grad: *mut c_void,
        key_grad: *mut c_void,
        value_grad: *mut c_void,
        shift_grad: *mut c_void,
        bytes: *mut u64,
        executor: *mut *mut c_void,
    ) {
        absent(&[shift, drop_mask, padding_mask, prefix, weights, shift_grad])?;
        plain(keep, [before, behind], layout, precise)?;
        let mut t = Taken::default();
        let mut reads = vec![Some(t.tensor(query)?), Some(t.tensor(key)?), Some(t.tensor(value)?)];
        reads.push(t.optional(mask)?);
        for handle in [grad, largest, sum, out] {
            reads.push(Some(t.tensor(handle)?));
        }
        let writes = vec![t.tensor(query_grad)?, t.tensor(key_grad)?, t.tensor(value_grad)?];
        let function = Function::AttentionGrad { scale, heads, sparse_mode };
        t.prepare("aclnnFlashAttentionScoreGrad", function, reads, writes, (bytes, executor))
    }

    /// `aclnnConvolutionGetWorkspaceSize`.
    fn aclnnConvolutionGetWorkspaceSize(
        input: *mut c_void,
        weight: *mut c_void,
        bias: *mut c_void,
        stride: *mut c_void,
        padding: *mut c_void,
        dilation: *mut c_void,
        transposed: bool,
        output_padding: *mut c_void,
        groups: i64,
        out: *mut c_void,
        cube_math: i8,
        bytes: *mut u64,
        executor: *mut *mut c_void,
    ) {
        kept(cube_math)?;
        let mut t = Taken::default();
        let window = t.window([stride, padding, dilation, output_padding], transposed, groups)?;
        let reads = vec![Some(t.tensor(input)?), Some(t.tensor(weight)?), t.optional(bias)?];
        let writes = vec![t.tensor(out)?];
        t.prepare("aclnnConvolution", Function::Convolution(window), reads, writes, (bytes, executor))
    }

    /// `aclnnConvolutionBackwardGetWorkspaceSize`.
    fn aclnnConvolutionBackwardGetWorkspaceSize(
        grad: *mut c_void,
        input: *mut c_void,
        weight: *mut c_void,
        bias_sizes: *mut c_void,
        stride: *mut c_void,
        padding: *mut c_void,
        dilation: *mut c_void,
        transposed: bool,
        output_padding: *mut c_void,
        groups: c_int,
        wanted: *mut c_void,
        cube_math: i8,
        input_grad: *mut c_void,
        weight_grad: *mut c_void,
        bias_grad: *mut c_void,
        bytes: *mut u64,
        executor: *mut *mut c_void,
    ) {
        kept(cube_math)?;
        absent(&[bias_sizes, bias_grad])?;
        let mut t = Taken::default();
        let window = t.window([stride, padding, dilation, output_padding], transposed, i64::from(groups))?;
        let reads = vec![Some(t.tensor(grad)?), Some(t.tensor(input)?), Some(t.tensor(weight)?)];
        let (of_weight, out) = match t.bools(wanted)?[..] {
            [true, false, false] => (false, input_grad),
            [false, true, false] => (true, weight_grad),
            _ => return fail(INVALID, "other results"),
        };
        let writes = vec![t.tensor(out)?];
        let function = Function::ConvolutionGrad { window, of_weight };
        t.prepare("aclnnConvolutionBackward", function, reads, writes, (bytes, executor))
    }
}

/// The executor of a second phase. One for a single call is used up, whatever comes of the call.
fn take(executor: *mut c_void) -> Option<(Arc<Work>, &'static str, usize)> {
    let mut state = WORLD.state();
    let of = |e: &Prepared| (e.work.clone(), e.name, e.workspace);
    let found = state.executors.get(&(executor as usize)).map(|e| (of(e), e.repeatable))?;
    if !found.1 {
        state.executors.remove(&(executor as usize));
    }
    Some(found.0)
}

/// The second phase: gives the work to a stream.
fn give(
    name: &str,
    taken: Option<(Arc<Work>, &'static str, usize)>,
    workspace: *mut c_void,
    bytes: u64,
    stream: *mut c_void,
) -> Outcome {
    let Some((work, name, wanted)) = taken.filter(|(_, of, _)| *of == name) else {
        return fail(PARAM, "no such executor");
    };
    let mut state = WORLD.state();
    let device = state.current()?.0;
    if bytes as usize != wanted || !state.is_device(workspace as usize, wanted) {
        return fail(INVALID, format!("{bytes} bytes of workspace, not {wanted}"));
    }
    let stream = state.stream(stream)?;
    if stream.device != device {
        return fail(107_003, "a stream of another context");
    }
    let task = WORLD.next_task.fetch_add(1, Ordering::Relaxed);
    LAST_TASK.set(task);
    stream.give(Task::Operator { name, work, workspace: (workspace as usize, wanted), task });
    Ok(())
}

macro_rules! second {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(
            workspace: *mut c_void,
            bytes: u64,
            executor: *mut c_void,
            stream: *mut c_void,
        ) -> Status {
            let taken = take(executor);
            call(stringify!($name), || give(stringify!($name), taken, workspace, bytes, stream))
        }
    )*};
}

second! {
    /// `aclnnMatmul`.
    aclnnMatmul;
    /// `aclnnAddmm`.
    aclnnAddmm;
    /// `aclnnFlashAttentionScore`.
    aclnnFlashAttentionScore;
    /// `aclnnFlashAttentionScoreGrad`.
    aclnnFlashAttentionScoreGrad;
    /// `aclnnConvolution`.
    aclnnConvolution;
    /// `aclnnConvolutionBackward`.
    aclnnConvolutionBackward;
}
