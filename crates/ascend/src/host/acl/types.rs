//! Types, constants and structures of the C interface, as CANN's reference documents them.

use std::ffi::c_void;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// No handle.
            pub const NULL: $name = $name(std::ptr::null_mut());
        }

        // SAFETY: a token that is never dereferenced on this side. CANN takes it on every thread whose
        // current context is the one it was made in, and wrappers set that context before each call.
        unsafe impl Send for $name {}
        // SAFETY: as above; a shared reference gives only a copy of the token.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// `aclrtContext`.
    ContextHandle;
    /// `aclrtStream`.
    StreamHandle;
    /// `aclrtEvent`.
    EventHandle;
    /// `aclrtBinary`: bytes of a binary, described (CANN 8.0).
    BinaryHandle;
    /// `aclrtBinHandle`: a loaded binary; also the handle that `rtDevBinaryRegister` gives.
    BinHandle;
    /// `aclrtFuncHandle`: a kernel of a loaded binary.
    FuncHandle;
    /// `aclrtArgsHandle`: a list of kernel arguments.
    ArgsHandle;
    /// `aclrtParamHandle`: one entry of that list.
    ParamHandle;
    /// `aclrtcProg`: a compilation.
    ProgHandle;
    /// `aclmdlRI`: recorded work.
    GraphHandle;
    /// `aclTensor *`: an operand of the vendor's operators.
    TensorHandle;
    /// `aclScalar *`: a number.
    ScalarHandle;
    /// `aclIntArray *`: integers.
    IntsHandle;
    /// `aclBoolArray *`: truths.
    BoolsHandle;
    /// `aclOpExecutor *`: a call of an operator, prepared.
    ExecutorHandle;
}

/// `aclrtMemcpyKind`.
pub mod memcpy_kind {
    /// From host memory to device memory.
    pub const HOST_TO_DEVICE: u32 = 1;
    /// From device memory to host memory.
    pub const DEVICE_TO_HOST: u32 = 2;
    /// Inside of a device.
    pub const DEVICE_TO_DEVICE: u32 = 3;
}

/// `aclmdlRICaptureMode`: other threads go on as ever while one records; it may not wait or ask itself.
pub const CAPTURE_THREAD_LOCAL: u32 = 1;

/// `aclrtMemMallocPolicy`: huge pages where they fit, else normal ones.
pub const MALLOC_HUGE_FIRST: u32 = 0;

/// `aclrtMemAttr`: memory that kernels see as GM, on chips with HBM and (as the alias) on those with DDR.
pub mod mem_attr {
    /// `ACL_DDR_MEM`, which 310P has.
    pub const DDR: u32 = 0;
    /// `ACL_HBM_MEM`, which 910B and 910_93 have.
    pub const HBM: u32 = 1;
}

/// `aclrtEventRecordedStatus`: everything before the event is done.
pub const EVENT_COMPLETE: u32 = 1;

/// Magic word of a binary, by the kind of core it runs on.
pub mod magic {
    /// Cube and vector cores in one kernel, and every binary of 310P.
    pub const AICORE: u32 = 0x4355_4245;
    /// Vector cores alone.
    pub const VECTOR: u32 = 0x4141_5246;
    /// Cube cores alone.
    pub const CUBE: u32 = 0x4149_4343;
}

/// `aclrtBinaryLoadOption`: one option of a load.
#[repr(C)]
pub struct LoadOption {
    /// Which option.
    pub kind: u32,
    /// Its value; 16 bytes, of which the options used here read the first word.
    pub value: [u32; 4],
}

/// Option of a load: the binary's magic word, [`magic`].
pub const LOAD_MAGIC: u32 = 2;

/// `aclrtBinaryLoadOptions`.
#[repr(C)]
pub struct LoadOptions {
    /// First of them.
    pub options: *mut LoadOption,
    /// Number of them.
    pub count: usize,
}

/// `aclrtLaunchKernelAttr`: one attribute of a launch.
#[repr(C)]
pub struct LaunchAttribute {
    /// Which attribute.
    pub kind: u32,
    /// Its value; 16 bytes.
    pub value: [u32; 4],
}

/// Attribute of a launch: 1 starts all blocks simultaneously, which a barrier over all of them needs.
pub const LAUNCH_SCHEDULE: u32 = 1;

/// `aclrtLaunchKernelCfg`.
#[repr(C)]
pub struct LaunchConfig {
    /// First attribute.
    pub attributes: *mut LaunchAttribute,
    /// Number of them.
    pub count: usize,
}

/// `rtDevBinary_t`: a binary as libruntime takes it.
#[repr(C)]
pub struct RuntimeBinary {
    /// Kind of core, [`magic`].
    pub magic: u32,
    /// 0.
    pub version: u32,
    /// The bytes, which must outlive the registration.
    pub data: *const c_void,
    /// Their number.
    pub length: u64,
}

/// `aclrtDevAttr`: cores and memory of a device, by `aclrtGetDeviceInfo`.
pub mod device_attr {
    /// AI cores; cube cores where cube and vector are separate.
    pub const AI_CORES: u32 = 101;
    /// Vector cores.
    pub const VECTOR_CORES: u32 = 201;
}

/// `aclDataType`, as far as used.
pub mod data_type {
    /// `ACL_FLOAT`.
    pub const F32: i32 = 0;
    /// `ACL_FLOAT16`.
    pub const F16: i32 = 1;
    /// `ACL_BOOL`.
    pub const BOOL: i32 = 12;
    /// `ACL_BF16`.
    pub const BF16: i32 = 27;
}

/// `aclFormat`, as far as used.
pub mod format {
    /// `ACL_FORMAT_NCHW`.
    pub const NCHW: i32 = 0;
    /// `ACL_FORMAT_ND`.
    pub const ND: i32 = 2;
    /// `ACL_FORMAT_NCDHW`.
    pub const NCDHW: i32 = 30;
    /// `ACL_FORMAT_NCL`.
    pub const NCL: i32 = 47;
}

/// `cubeMathType`: products in the operands' own type.
pub const KEEP_DTYPE: i8 = 0;

/// `aclSysParamOpt`: sums in one order, whatever the number of cores.
pub const OPT_DETERMINISTIC: u32 = 0;

/// Bytes that `aclsysGetVersionStr` writes at most.
pub const VERSION_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_interface() {
        assert_eq!((size_of::<LoadOption>(), size_of::<LoadOptions>()), (20, 16));
        assert_eq!((size_of::<LaunchAttribute>(), size_of::<LaunchConfig>()), (20, 16));
        assert_eq!(size_of::<RuntimeBinary>(), 24);
        assert_eq!(size_of::<StreamHandle>(), size_of::<*mut c_void>());
    }
}
