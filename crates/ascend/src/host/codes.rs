//! Status codes of CANN: name, meaning, and what a failure of that kind means for the process.

/// Value of every `aclError`: 0 is success.
pub type Status = i32;

/// State of the device after a failed call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// This call was refused; the device goes on.
    Refused,
    /// Device memory is exhausted; the device goes on.
    OutOfMemory,
    /// A wait ended before the work did.
    Timeout,
    /// A kernel failed: no result of work queued after it is valid.
    KernelFault,
    /// The device, its memory or the way to it failed.
    DeviceLost,
}

/// A status code that is known.
#[derive(Debug)]
pub struct KnownStatus {
    /// Its number.
    pub code: Status,
    /// The vendor's name, without the prefix `ACL_ERROR_` or `ACLNN_ERR_`.
    pub name: &'static str,
    /// The meaning, in a few words.
    pub meaning: &'static str,
    /// State of the device after it.
    pub severity: Severity,
    /// A remedy for the reader.
    pub advice: &'static str,
}

/// A second `aclInit` in one process: no failure, another part of the process initialised the library.
pub const REPEAT_INITIALIZE: Status = 100_002;
/// Parameter refused by the runtime.
pub const PARAM_INVALID: Status = 107_000;
/// The device has no more memory.
pub const MEMORY_ALLOCATION: Status = 207_001;
/// Work of a stream was not done in the time given.
pub const STREAM_SYNC_TIMEOUT: Status = 507_046;
/// Work before an event was not done in the time given.
pub const EVENT_SYNC_TIMEOUT: Status = 507_047;

macro_rules! known {
    ($($code:literal $name:ident $severity:ident $meaning:literal $advice:expr;)*) => {
        &[$(KnownStatus {
            code: $code,
            name: stringify!($name),
            meaning: $meaning,
            severity: Severity::$severity,
            advice: $advice,
        },)*]
    };
}

const OURS: &str = "this is a fault in Headwater: report it with this message";
const SETUP: &str =
    "run `headwater doctor`, and compare driver, firmware and CANN with the vendor's table of versions";
const MEMORY: &str =
    "see with `npu-smi info` what else uses the device; a smaller batch or recomputation needs less";
const RESET: &str = "look at `npu-smi info` and the vendor's logs (~/ascend/log), then restart the process";
const KERNEL: &str = "run the same step on the simulator in checked mode (`--device ascend-sim:CHIP`), which names the instruction";
const HANG: &str = "run the same step on the simulator in checked mode, which finds a missing flag or barrier; raise the limit if the kernel is only slow";
const OPERATORS: &str =
    "install the operator package of this very chip and of CANN's version, or use --ascend-ops own";
const HARDWARE: &str = "the device reports a hardware fault: take it out of use and tell its administrator";

/// Every code that is distinguished; CANN's reference lists them all under `aclError`.
pub const KNOWN: &[KnownStatus] = known! {
    100000 INVALID_PARAM Refused "invalid parameter" OURS;
    100001 UNINITIALIZE Refused "the library is not initialised" OURS;
    100002 REPEAT_INITIALIZE Refused "initialised twice" OURS;
    100003 INVALID_FILE Refused "invalid file" "check that the file can be read";
    100024 OP_NOT_FOUND Refused "operator not found" SETUP;
    100037 REPEAT_FINALIZE Refused "finalised twice" OURS;
    100039 COMPILING_STUB_MODE Refused "the library found is the one for linking, which has no content"
        "put the lib64 folder before the devlib or stub folder in LD_LIBRARY_PATH";
    148049 INVALID_OPP_PATH Refused "ASCEND_OPP_PATH is not set, or wrong" "source CANN's set_env.sh";
    107000 RT_PARAM_INVALID Refused "invalid parameter" OURS;
    107001 RT_INVALID_DEVICEID Refused "there is no such device" "`headwater doctor` lists the devices";
    107002 RT_CONTEXT_NULL Refused "no context is set" OURS;
    107003 RT_STREAM_CONTEXT Refused "a stream of another context" OURS;
    107008 RT_ADDR_UNALIGNED Refused "an address is not aligned" OURS;
    107016 RT_INVALID_MEMORY_TYPE Refused "the wrong kind of memory" OURS;
    107017 RT_INVALID_HANDLE Refused "an invalid handle" OURS;
    107019 RT_WAIT_TIMEOUT Timeout "a wait timed out" HANG;
    107020 RT_TASK_TIMEOUT Timeout "a task timed out" HANG;
    107022 RT_DEVICE_TASK_ABORT DeviceLost "the device's tasks were aborted" RESET;
    107023 RT_STREAM_ABORT DeviceLost "the stream's tasks were aborted" RESET;
    107027 RT_STREAM_CAPTURED Refused "the stream is being recorded" OURS;
    107029 RT_STREAM_NOT_CAPTURED Refused "the stream is not being recorded" OURS;
    107030 RT_CAPTURE_MODE_NOT_SUPPORT Refused "not while a stream is being recorded" OURS;
    107037 RT_MODEL_RUNNING Refused "the recording is still running" OURS;
    200000 BAD_ALLOC OutOfMemory "memory could not be allocated" MEMORY;
    200001 API_NOT_SUPPORT Refused "this chip or version has no such call" SETUP;
    207000 RT_FEATURE_NOT_SUPPORT Refused "this chip or version has no such feature" SETUP;
    207001 RT_MEMORY_ALLOCATION OutOfMemory "memory could not be allocated" MEMORY;
    207002 RT_MEMORY_FREE Refused "memory could not be freed" RESET;
    207004 RT_NO_DEVICE DeviceLost "the device is not available" RESET;
    207005 RT_RESOURCE_ALLOC_FAIL Refused "a resource could not be allocated" RESET;
    207006 RT_NO_PERMISSION Refused "no permission"
        "add the user to the group of /dev/davinci* (by default HwHiAiUser)";
    207007 RT_NO_EVENT_RESOURCE Refused "no event is left" RESET;
    207008 RT_NO_STREAM_RESOURCE Refused "no stream is left" RESET;
    207018 RT_DEVICE_OOM OutOfMemory "the device's memory is exhausted" MEMORY;
    507000 RT_INTERNAL_ERROR DeviceLost "internal error of the runtime" RESET;
    507001 RT_TS_ERROR DeviceLost "internal error of the device's task scheduler" RESET;
    507008 RT_SOC_VERSION Refused "the chip's version could not be read" SETUP;
    507010 RT_LOST_HEARTBEAT DeviceLost "the device's task scheduler does not answer" RESET;
    507013 RT_SYS_DMA DeviceLost "the system DMA failed" HARDWARE;
    507014 RT_AICORE_TIMEOUT KernelFault "a kernel on an AI core ran over the time limit" HANG;
    507015 RT_AICORE_EXCEPTION KernelFault "exception on an AI core" KERNEL;
    507016 RT_AICORE_TRAP_EXCEPTION KernelFault "trap on an AI core" KERNEL;
    507033 RT_DEV_SETUP_ERROR DeviceLost "the device did not start" RESET;
    507034 RT_VECTOR_CORE_TIMEOUT KernelFault "a kernel on a vector core ran over the time limit" HANG;
    507035 RT_VECTOR_CORE_EXCEPTION KernelFault "exception on a vector core" KERNEL;
    507036 RT_VECTOR_CORE_TRAP_EXCEPTION KernelFault "trap on a vector core" KERNEL;
    507042 RT_AICORE_TRAP_READ_OVERFLOW KernelFault "an AI core read outside of memory" KERNEL;
    507043 RT_AICORE_TRAP_WRITE_OVERFLOW KernelFault "an AI core wrote outside of memory" KERNEL;
    507044 RT_VECTOR_CORE_TRAP_READ_OVERFLOW KernelFault "a vector core read outside of memory" KERNEL;
    507045 RT_VECTOR_CORE_TRAP_WRITE_OVERFLOW KernelFault "a vector core wrote outside of memory" KERNEL;
    507046 RT_STREAM_SYNC_TIMEOUT Timeout "the work of a stream was not done in time" HANG;
    507047 RT_EVENT_SYNC_TIMEOUT Timeout "the work before an event was not done in time" HANG;
    507048 RT_FFTS_PLUS_TIMEOUT KernelFault "a task ran over the time limit" HANG;
    507049 RT_FFTS_PLUS_EXCEPTION KernelFault "exception in a task" KERNEL;
    507053 RT_DEVICE_MEM_ERROR DeviceLost "uncorrectable error in device memory" HARDWARE;
    507054 RT_HBM_MULTI_BIT_ECC_ERROR DeviceLost "multi-bit error in HBM" HARDWARE;
    507056 RT_LINK_ERROR DeviceLost "the link between devices broke" HARDWARE;
    507057 RT_SUSPECT_REMOTE_ERROR DeviceLost "memory of another device may have failed" HARDWARE;
    507899 RT_DRV_INTERNAL_ERROR DeviceLost "internal error of the driver" SETUP;
    507901 RT_SOCKET_CLOSE DeviceLost "the connection to the device was closed" RESET;
    161001 PARAM_NULLPTR Refused "an operand that must be there is not" OURS;
    161002 PARAM_INVALID Refused "the operator does not take these types, shapes or options" OPERATORS;
    361001 RUNTIME_ERROR Refused "the operator's call of the runtime failed" RESET;
    561000 INNER Refused "internal error of the operator" OPERATORS;
    561001 INNER_INFERSHAPE_ERROR Refused "the operator's shapes could not be inferred" OPERATORS;
    561002 INNER_TILING_ERROR Refused "the operator could not be cut into tiles" OPERATORS;
    561003 INNER_FIND_KERNEL_ERROR Refused "the operator has no kernel for this chip" OPERATORS;
    561103 INNER_NULLPTR Refused "the operator could not be prepared" OPERATORS;
    561107 INNER_OPP_PATH_NOT_FOUND Refused "ASCEND_OPP_PATH is not set" "source CANN's set_env.sh";
    561112 INNER_OPP_KERNEL_PKG_NOT_FOUND Refused "the operator package is not installed" OPERATORS;
};

/// Codes of the vendor's operators, whose names have another prefix.
const OPERATORS_CODES: [std::ops::RangeInclusive<Status>; 3] =
    [161_000..=161_999, 361_000..=361_999, 561_000..=561_999];

/// True for a code of the vendor's operators.
fn is_of_operators(code: Status) -> bool {
    OPERATORS_CODES.iter().any(|range| range.contains(&code))
}

/// The entry of a code.
pub fn lookup(code: Status) -> Option<&'static KnownStatus> {
    KNOWN.iter().find(|k| k.code == code)
}

/// State of the device after a code. Unknown codes go by the vendor's ranges: 5xxxxx are failures inside of
/// the stack.
pub fn severity(code: Status) -> Severity {
    match lookup(code) {
        Some(known) => known.severity,
        None if is_of_operators(code) => Severity::Refused,
        None if (500_000..600_000).contains(&code) => Severity::DeviceLost,
        None => Severity::Refused,
    }
}

/// The code with its meaning and name, e.g.
/// `exception on a vector core (507035, ACL_ERROR_RT_VECTOR_CORE_EXCEPTION)`.
pub fn describe(code: Status) -> String {
    match lookup(code) {
        Some(known) => {
            let prefix = if is_of_operators(code) { "ACLNN_ERR" } else { "ACL_ERROR" };
            format!("{} ({code}, {prefix}_{})", known.meaning, known.name)
        }
        None if is_of_operators(code) => format!("status {code} of the vendor's operators"),
        None => format!("status {code}, which CANN's table of aclError explains"),
    }
}

/// The remedy for a code.
pub fn advice(code: Status) -> &'static str {
    lookup(code).map_or(RESET, |known| known.advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_and_names_are_unique() {
        let codes: HashSet<_> = KNOWN.iter().map(|k| k.code).collect();
        let names: HashSet<_> = KNOWN.iter().map(|k| k.name).collect();
        assert_eq!((codes.len(), names.len()), (KNOWN.len(), KNOWN.len()));
    }

    #[test]
    fn unknown_codes_go_by_their_range() {
        assert_eq!(severity(507_777), Severity::DeviceLost);
        assert_eq!(severity(107_777), Severity::Refused);
        assert_eq!(severity(561_119), Severity::Refused);
        assert_eq!(severity(507_035), Severity::KernelFault);
        assert!(describe(507_035).contains("VECTOR_CORE_EXCEPTION"));
        assert!(describe(561_103).contains("ACLNN_ERR_INNER_NULLPTR"));
    }
}
