//! Functions of the vendor's libraries, found by name and grouped by what they make possible. A group exists
//! completely or not at all, so that a caller never meets half a rung.

use super::types::*;
use crate::host::codes::Status;
use libloading::Library;
use std::ffi::{c_char, c_int, c_void};

macro_rules! functions {
    ($($(#[$doc:meta])* $group:ident { $(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)* })*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case, missing_docs)]
            #[derive(Clone, Copy, Debug)]
            pub struct $group {
                $(pub $name: unsafe extern "C" fn($($arg: $ty),*) $(-> $ret)?,)*
            }

            impl $group {
                /// Names of its functions.
                pub const NAMES: &[&str] = &[$(stringify!($name)),*];

                /// Looks all of them up; gives the first that is missing.
                pub(in crate::host) fn find(library: &Library) -> Result<$group, &'static str> {
                    Ok($group {
                        $($name: {
                            let name = concat!(stringify!($name), "\0").as_bytes();
                            // SAFETY: the type is the one that CANN's reference states for a function of this
                            // name, unchanged since the first version that has it. The pointer stays good
                            // because libraries are never closed.
                            *unsafe { library.get(name) }.map_err(|_| stringify!($name))?
                        },)*
                    })
                }
            }
        )*

        /// Names of every function that is looked up, by group.
        pub const GROUPS: &[(&str, &[&str])] = &[$((stringify!($group), $group::NAMES)),*];
    };
}

functions! {
    /// Functions that every use needs; in every CANN since 7.0.
    Base {
        fn aclInit(config: *const c_char) -> Status;
        fn aclFinalize() -> Status;
        fn aclrtGetDeviceCount(count: *mut u32) -> Status;
        fn aclrtGetSocName() -> *const c_char;
        fn aclrtSetDevice(device: i32) -> Status;
        fn aclrtResetDevice(device: i32) -> Status;
        fn aclrtGetCurrentContext(context: *mut ContextHandle) -> Status;
        fn aclrtSetCurrentContext(context: ContextHandle) -> Status;
        fn aclrtGetMemInfo(kind: u32, free: *mut usize, total: *mut usize) -> Status;
        fn aclrtMalloc(address: *mut *mut c_void, bytes: usize, policy: u32) -> Status;
        fn aclrtFree(address: *mut c_void) -> Status;
        fn aclrtMallocHost(address: *mut *mut c_void, bytes: usize) -> Status;
        fn aclrtFreeHost(address: *mut c_void) -> Status;
        fn aclrtMemcpy(to: *mut c_void, room: usize, from: *const c_void, bytes: usize, kind: u32) -> Status;
        fn aclrtMemcpyAsync(
            to: *mut c_void, room: usize, from: *const c_void, bytes: usize, kind: u32, stream: StreamHandle
        ) -> Status;
        fn aclrtMemsetAsync(
            address: *mut c_void, room: usize, byte: i32, bytes: usize, stream: StreamHandle
        ) -> Status;
        fn aclrtCreateStream(stream: *mut StreamHandle) -> Status;
        fn aclrtDestroyStream(stream: StreamHandle) -> Status;
        fn aclrtSynchronizeStreamWithTimeout(stream: StreamHandle, milliseconds: i32) -> Status;
        fn aclrtCreateEvent(event: *mut EventHandle) -> Status;
        fn aclrtDestroyEvent(event: EventHandle) -> Status;
        fn aclrtRecordEvent(event: EventHandle, stream: StreamHandle) -> Status;
        fn aclrtStreamWaitEvent(stream: StreamHandle, event: EventHandle) -> Status;
        fn aclrtQueryEventStatus(event: EventHandle, status: *mut u32) -> Status;
    }

    /// The vendor's own text for the last failure of the thread.
    Messages {
        fn aclGetRecentErrMsg() -> *const c_char;
    }

    /// Versions of installed packages (9.x); older ones are read from files.
    Versions {
        fn aclsysGetVersionStr(package: *const c_char, version: *mut c_char) -> Status;
    }

    /// Exceptions of kernels, told to a function of ours on a thread of CANN's.
    Exceptions {
        fn aclrtSetExceptionInfoCallback(callback: Option<extern "C" fn(*const c_void)>) -> Status;
        fn aclrtGetTaskIdFromExceptionInfo(info: *const c_void) -> u32;
        fn aclrtGetStreamIdFromExceptionInfo(info: *const c_void) -> u32;
        fn aclrtGetDeviceIdFromExceptionInfo(info: *const c_void) -> u32;
        fn aclrtGetErrorCodeFromExceptionInfo(info: *const c_void) -> u32;
    }

    /// Numbers of streams and tasks, by which an exception is matched with its launch.
    Tasks {
        fn aclrtStreamGetId(stream: StreamHandle, id: *mut i32) -> Status;
        fn aclrtGetThreadLastTaskId(task: *mut u32) -> Status;
    }

    /// A limit to the time of one kernel, kept by the device.
    TimeLimit {
        fn aclrtSetOpExecuteTimeOut(seconds: u32) -> Status;
    }

    /// Release of a stream whose work will never end.
    Force {
        fn aclrtDestroyStreamForce(stream: StreamHandle) -> Status;
    }

    /// Numbers of cores (8.3 and later).
    DeviceInfo {
        fn aclrtGetDeviceInfo(device: u32, attribute: u32, value: *mut i64) -> Status;
    }

    /// Address through which cube and vector cores of A2 and A3 synchronise (9.0 and later).
    SyncAddress {
        fn aclrtGetHardwareSyncAddr(address: *mut *mut c_void) -> Status;
    }

    /// Work that is recorded from a stream and run again by one call (8.1 and later on A2 and A3, 9.0 on
    /// 310P).
    Capture {
        fn aclmdlRICaptureBegin(stream: StreamHandle, mode: u32) -> Status;
        fn aclmdlRICaptureEnd(stream: StreamHandle, graph: *mut GraphHandle) -> Status;
        fn aclmdlRIExecuteAsync(graph: GraphHandle, stream: StreamHandle) -> Status;
        fn aclmdlRIDestroy(graph: GraphHandle) -> Status;
    }

    /// Kernels of a loaded binary.
    Binaries {
        fn aclrtBinaryGetFunction(binary: BinHandle, name: *const c_char, kernel: *mut FuncHandle) -> Status;
        fn aclrtBinaryUnLoad(binary: BinHandle) -> Status;
    }

    /// Binaries from memory (8.3 and later).
    FromData {
        fn aclrtBinaryLoadFromData(
            data: *const c_void, bytes: usize, options: *const LoadOptions, binary: *mut BinHandle
        ) -> Status;
    }

    /// Binaries from a file (8.1 and later).
    FromFile {
        fn aclrtBinaryLoadFromFile(
            path: *const c_char, options: *mut LoadOptions, binary: *mut BinHandle
        ) -> Status;
    }

    /// Binaries described first and loaded then (8.0).
    Described {
        fn aclrtCreateBinary(data: *const c_void, bytes: usize) -> BinaryHandle;
        fn aclrtDestroyBinary(binary: BinaryHandle) -> Status;
        fn aclrtBinaryLoad(binary: BinaryHandle, loaded: *mut BinHandle) -> Status;
    }

    /// Launch with an array of pointers to arguments (9.1 and later).
    ArgsArray {
        fn aclrtLaunchKernelWithArgsArray(
            kernel: FuncHandle, blocks: u32, stream: StreamHandle, config: *mut LaunchConfig, args: *mut *mut c_void
        ) -> Status;
    }

    /// Launch with a block of arguments in host memory (9.0 and later).
    HostArgs {
        fn aclrtLaunchKernelWithHostArgs(
            kernel: FuncHandle, blocks: u32, stream: StreamHandle, config: *mut LaunchConfig, args: *mut c_void,
            bytes: usize, placeholders: *mut c_void, placeholder_count: usize
        ) -> Status;
    }

    /// Launch with a list of arguments that the runtime keeps (8.1 and later).
    ArgsList {
        fn aclrtKernelArgsInit(kernel: FuncHandle, list: *mut ArgsHandle) -> Status;
        fn aclrtKernelArgsAppend(
            list: ArgsHandle, value: *mut c_void, bytes: usize, parameter: *mut ParamHandle
        ) -> Status;
        fn aclrtKernelArgsFinalize(list: ArgsHandle) -> Status;
        fn aclrtLaunchKernelWithConfig(
            kernel: FuncHandle, blocks: u32, stream: StreamHandle, config: *mut LaunchConfig, list: ArgsHandle,
            reserved: *mut c_void
        ) -> Status;
    }

    /// Launch with a block of arguments in device memory (8.0).
    DeviceArgs {
        fn aclrtLaunchKernel(
            kernel: FuncHandle, blocks: u32, args: *const c_void, bytes: usize, stream: StreamHandle
        ) -> Status;
    }

    /// Load and launch by libruntime, below ACL: for versions whose ACL has neither.
    RuntimeCalls {
        fn rtDevBinaryRegister(binary: *const RuntimeBinary, handle: *mut *mut c_void) -> Status;
        fn rtDevBinaryUnRegister(handle: *mut c_void) -> Status;
        fn rtFunctionRegister(
            binary: *mut c_void, stub: *const c_void, stub_name: *const c_char, kernel: *const c_void, mode: u32
        ) -> Status;
        fn rtKernelLaunch(
            stub: *const c_void, blocks: u32, args: *mut c_void, bytes: u32, memory: *mut c_void, stream: StreamHandle
        ) -> Status;
    }

    /// The synchronisation address, as libruntime gives it.
    RuntimeSyncAddress {
        fn rtGetC2cCtrlAddr(address: *mut u64, bytes: *mut u32) -> Status;
    }

    /// Compilation in the process (8.3 and later, A2 and A3).
    Compilation {
        fn aclrtcCreateProg(
            program: *mut ProgHandle, source: *const c_char, name: *const c_char, header_count: c_int,
            headers: *const *const c_char, include_names: *const *const c_char
        ) -> Status;
        fn aclrtcCompileProg(program: ProgHandle, option_count: c_int, options: *const *const c_char) -> Status;
        fn aclrtcGetBinDataSize(program: ProgHandle, bytes: *mut usize) -> Status;
        fn aclrtcGetBinData(program: ProgHandle, data: *mut c_char) -> Status;
        fn aclrtcGetCompileLogSize(program: ProgHandle, bytes: *mut usize) -> Status;
        fn aclrtcGetCompileLog(program: ProgHandle, log: *mut c_char) -> Status;
        fn aclrtcDestroyProg(program: *mut ProgHandle) -> Status;
    }

    /// Results of the vendor's operators that do not depend on the order in which cores come.
    Determinism {
        fn aclrtCtxSetSysParamOpt(option: u32, value: i64) -> Status;
    }

    /// Operands and prepared calls of the vendor's operators (8.0 and later).
    Operands {
        fn aclCreateTensor(
            sizes: *const i64, rank: u64, dtype: i32, strides: *const i64, offset: i64, format: i32,
            storage: *const i64, storage_rank: u64, data: *mut c_void
        ) -> TensorHandle;
        fn aclDestroyTensor(tensor: TensorHandle) -> Status;
        fn aclCreateScalar(value: *mut c_void, dtype: i32) -> ScalarHandle;
        fn aclDestroyScalar(scalar: ScalarHandle) -> Status;
        fn aclCreateIntArray(values: *const i64, count: u64) -> IntsHandle;
        fn aclDestroyIntArray(values: IntsHandle) -> Status;
        fn aclCreateBoolArray(values: *const bool, count: u64) -> BoolsHandle;
        fn aclDestroyBoolArray(values: BoolsHandle) -> Status;
        fn aclDestroyAclOpExecutor(executor: ExecutorHandle) -> Status;
    }

    /// Prepared calls that may be made many times (8.0 and later).
    Repeatable {
        fn aclSetAclOpExecutorRepeatable(executor: ExecutorHandle) -> Status;
    }

    /// Products of matrices.
    Matmul {
        fn aclnnMatmulGetWorkspaceSize(
            a: TensorHandle, b: TensorHandle, out: TensorHandle, cube_math: i8, bytes: *mut u64,
            executor: *mut ExecutorHandle
        ) -> Status;
        fn aclnnMatmul(
            workspace: *mut c_void, bytes: u64, executor: ExecutorHandle, stream: StreamHandle
        ) -> Status;
    }

    /// Products of matrices with a summand.
    Addmm {
        fn aclnnAddmmGetWorkspaceSize(
            summand: TensorHandle, a: TensorHandle, b: TensorHandle, beta: ScalarHandle, alpha: ScalarHandle,
            out: TensorHandle, cube_math: i8, bytes: *mut u64, executor: *mut ExecutorHandle
        ) -> Status;
        fn aclnnAddmm(
            workspace: *mut c_void, bytes: u64, executor: ExecutorHandle, stream: StreamHandle
        ) -> Status;
    }

    /// Attention.
    FlashAttention {
        fn aclnnFlashAttentionScoreGetWorkspaceSize(
            query: TensorHandle, key: TensorHandle, value: TensorHandle, shift: TensorHandle,
            drop_mask: TensorHandle, padding_mask: TensorHandle, mask: TensorHandle, prefix: IntsHandle,
            scale: f64, keep: f64, before: i64, behind: i64, heads: i64, layout: *mut c_char, precise: i64,
            sparse_mode: i64, largest: TensorHandle, sum: TensorHandle, weights: TensorHandle,
            out: TensorHandle, bytes: *mut u64, executor: *mut ExecutorHandle
        ) -> Status;
        fn aclnnFlashAttentionScore(
            workspace: *mut c_void, bytes: u64, executor: ExecutorHandle, stream: StreamHandle
        ) -> Status;
    }

    /// Gradients of attention.
    FlashAttentionGrad {
        fn aclnnFlashAttentionScoreGradGetWorkspaceSize(
            query: TensorHandle, key: TensorHandle, value: TensorHandle, grad: TensorHandle,
            shift: TensorHandle, drop_mask: TensorHandle, padding_mask: TensorHandle, mask: TensorHandle,
            largest: TensorHandle, sum: TensorHandle, weights: TensorHandle, out: TensorHandle,
            prefix: IntsHandle, scale: f64, keep: f64, before: i64, behind: i64, heads: i64,
            layout: *mut c_char, precise: i64, sparse_mode: i64, query_grad: TensorHandle,
            key_grad: TensorHandle, value_grad: TensorHandle, shift_grad: TensorHandle, bytes: *mut u64,
            executor: *mut ExecutorHandle
        ) -> Status;
        fn aclnnFlashAttentionScoreGrad(
            workspace: *mut c_void, bytes: u64, executor: ExecutorHandle, stream: StreamHandle
        ) -> Status;
    }

    /// Convolutions.
    Convolution {
        fn aclnnConvolutionGetWorkspaceSize(
            input: TensorHandle, weight: TensorHandle, bias: TensorHandle, stride: IntsHandle,
            padding: IntsHandle, dilation: IntsHandle, transposed: bool, output_padding: IntsHandle,
            groups: i64, out: TensorHandle, cube_math: i8, bytes: *mut u64, executor: *mut ExecutorHandle
        ) -> Status;
        fn aclnnConvolution(
            workspace: *mut c_void, bytes: u64, executor: ExecutorHandle, stream: StreamHandle
        ) -> Status;
    }

    /// Gradients of convolutions.
    ConvolutionGrad {
        fn aclnnConvolutionBackwardGetWorkspaceSize(
            grad: TensorHandle, input: TensorHandle, weight: TensorHandle, bias_sizes: IntsHandle,
            stride: IntsHandle, padding: IntsHandle, dilation: IntsHandle, transposed: bool,
            output_padding: IntsHandle, groups: c_int, wanted: BoolsHandle, cube_math: i8,
            input_grad: TensorHandle, weight_grad: TensorHandle, bias_grad: TensorHandle, bytes: *mut u64,
            executor: *mut ExecutorHandle
        ) -> Status;
        fn aclnnConvolutionBackward(
            workspace: *mut c_void, bytes: u64, executor: ExecutorHandle, stream: StreamHandle
        ) -> Status;
    }
}
