//! Functions of the vendor's libraries, by name. Signatures are our own, after the public references; handles
//! are pointers, and results plain numbers, so that a code we do not know is no fault of ours.

use super::error::{Error, Result};
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

/// A handle of a library's.
pub type Handle = *mut c_void;
/// An address in device memory.
pub type Address = u64;

macro_rules! table {
    ($(#[$meta:meta])* $name:ident { $($field:ident = $symbol:literal ($($ty:ty),*);)* }) => {
        $(#[$meta])*
        #[allow(missing_docs)]
        pub struct $name {
            $(pub $field: unsafe extern "C" fn($($ty),*) -> c_int,)*
            /// Never closed: threads that have called it clear up with its code, when they end.
            _library: ManuallyDrop<Library>,
        }

        impl $name {
            /// Names of the functions.
            pub const NAMES: &[&'static str] = &[$($symbol),*];

            /// Opens a library and finds its functions.
            ///
            /// # Errors
            /// All functions that it lacks; [`Error::Library`] if it cannot be opened.
            pub fn open(path: &Path, name: &'static str, without: &'static str) -> Result<$name> {
                // SAFETY: the vendor's library, whose initialisers have no conditions.
                let library = unsafe { Library::new(path) }.map_err(|e| Error::Library {
                    name, problem: format!("cannot be opened: {e}"), without, places: vec![path.to_owned()],
                })?;
                let mut missing = Vec::new();
                $(
                    // SAFETY: the type is the function's, after the vendor's reference; the library outlives
                    // the table.
                    let $field = unsafe {
                        library.get::<unsafe extern "C" fn($($ty),*) -> c_int>(concat!($symbol, "\0").as_bytes())
                    }.map(|f| *f);
                    if $field.is_err() {
                        missing.push($symbol);
                    }
                )*
                let lacks = Error::Functions { path: path.to_owned(), missing };
                $(let Ok($field) = $field else { return Err(lacks) };)*
                Ok($name { $($field,)* _library: ManuallyDrop::new(library) })
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}

table! {
    /// The driver: `libcuda.so.1`.
    Driver {
        init = "cuInit" (c_uint);
        driver_version = "cuDriverGetVersion" (*mut c_int);
        device_count = "cuDeviceGetCount" (*mut c_int);
        device_get = "cuDeviceGet" (*mut c_int, c_int);
        device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
        device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
        device_memory = "cuDeviceTotalMem_v2" (*mut usize, c_int);
        context_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
        context_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
        context_set = "cuCtxSetCurrent" (Handle);
        memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
        alloc = "cuMemAlloc_v2" (*mut Address, usize);
        free = "cuMemFree_v2" (Address);
        alloc_host = "cuMemAllocHost_v2" (*mut *mut c_void, usize);
        free_host = "cuMemFreeHost" (*mut c_void);
        to_device = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
        to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
        copy = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Handle);
        fill = "cuMemsetD8Async" (Address, u8, usize, Handle);
        stream_create = "cuStreamCreate" (*mut Handle, c_uint);
        stream_destroy = "cuStreamDestroy_v2" (Handle);
        stream_synchronize = "cuStreamSynchronize" (Handle);
        stream_wait = "cuStreamWaitEvent" (Handle, Handle, c_uint);
        capture_begin = "cuStreamBeginCapture_v2" (Handle, c_int);
        capture_end = "cuStreamEndCapture" (Handle, *mut Handle);
        event_create = "cuEventCreate" (*mut Handle, c_uint);
        event_destroy = "cuEventDestroy_v2" (Handle);
        event_record = "cuEventRecord" (Handle, Handle);
        event_query = "cuEventQuery" (Handle);
        event_synchronize = "cuEventSynchronize" (Handle);
        module_load = "cuModuleLoadData" (*mut Handle, *const c_void);
        module_unload = "cuModuleUnload" (Handle);
        module_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
        launch = "cuLaunchKernel" (
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
        );
        graph_instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
        graph_launch = "cuGraphLaunch" (Handle, Handle);
        graph_exec_destroy = "cuGraphExecDestroy" (Handle);
        graph_destroy = "cuGraphDestroy" (Handle);
        error_name = "cuGetErrorName" (c_int, *mut *const c_char);
        error_string = "cuGetErrorString" (c_int, *mut *const c_char);
    }
}

table! {
    /// The run-time compiler: `libnvrtc.so.13` or `.12`.
    Nvrtc {
        version = "nvrtcVersion" (*mut c_int, *mut c_int);
        create = "nvrtcCreateProgram" (
            *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        );
        compile = "nvrtcCompileProgram" (Handle, c_int, *const *const c_char);
        log_size = "nvrtcGetProgramLogSize" (Handle, *mut usize);
        log = "nvrtcGetProgramLog" (Handle, *mut c_char);
        cubin_size = "nvrtcGetCUBINSize" (Handle, *mut usize);
        cubin = "nvrtcGetCUBIN" (Handle, *mut c_char);
        destroy = "nvrtcDestroyProgram" (*mut Handle);
    }
}

table! {
    /// Matrix products: `libcublasLt.so.13` or `.12`.
    CublasLt {
        create = "cublasLtCreate" (*mut Handle);
        destroy = "cublasLtDestroy" (Handle);
        desc_create = "cublasLtMatmulDescCreate" (*mut Handle, c_int, c_int);
        desc_destroy = "cublasLtMatmulDescDestroy" (Handle);
        desc_set = "cublasLtMatmulDescSetAttribute" (Handle, c_int, *const c_void, usize);
        layout_create = "cublasLtMatrixLayoutCreate" (*mut Handle, c_int, u64, u64, i64);
        layout_destroy = "cublasLtMatrixLayoutDestroy" (Handle);
        layout_set = "cublasLtMatrixLayoutSetAttribute" (Handle, c_int, *const c_void, usize);
        preference_create = "cublasLtMatmulPreferenceCreate" (*mut Handle);
        preference_destroy = "cublasLtMatmulPreferenceDestroy" (Handle);
        preference_set = "cublasLtMatmulPreferenceSetAttribute" (Handle, c_int, *const c_void, usize);
        heuristic = "cublasLtMatmulAlgoGetHeuristic" (
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Heuristic, *mut c_int
        );
        matmul = "cublasLtMatmul" (
            Handle, Handle, *const c_void, Address, Handle, Address, Handle, *const c_void, Address, Handle,
            Address, Handle, *const Algorithm, Address, usize, Handle
        );
    }
}

/// `cublasLtMatmulAlgo_t`: opaque.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Algorithm(pub [u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Heuristic {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Bytes of workspace that it needs.
    pub workspace: usize,
    /// 0 if it can be used.
    pub state: c_int,
    /// Waves of blocks.
    pub waves: f32,
    /// Not used.
    pub reserved: [c_int; 4],
}

/// Attributes and values of cuBLASLt, by the names of its header.
#[allow(missing_docs)]
pub mod lt {
    pub const COMPUTE_32F: i32 = 68;
    pub const COMPUTE_32F_PEDANTIC: i32 = 69;
    pub const COMPUTE_64F: i32 = 70;
    pub const R_32F: i32 = 0;
    pub const R_64F: i32 = 1;
    pub const R_16F: i32 = 2;
    pub const R_16BF: i32 = 14;
    pub const DESC_TRANSA: i32 = 3;
    pub const DESC_TRANSB: i32 = 4;
    pub const DESC_EPILOGUE: i32 = 7;
    pub const DESC_BIAS_POINTER: i32 = 8;
    pub const DESC_BIAS_DATA_TYPE: i32 = 26;
    pub const LAYOUT_BATCH_COUNT: i32 = 5;
    pub const LAYOUT_BATCH_OFFSET: i32 = 6;
    pub const PREFERENCE_WORKSPACE: i32 = 1;
    pub const PREFERENCE_REDUCTION: i32 = 3;
    pub const PREFERENCE_ALIGNMENT_A: i32 = 5;
    pub const EPILOGUE_DEFAULT: u32 = 1;
    pub const EPILOGUE_BIAS: u32 = 4;
    /// Parts of a sum are added in the compute type.
    pub const REDUCTION_COMPUTE_TYPE: u32 = 2;
}
