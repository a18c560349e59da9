//! Properties of this machine, read from the operating system. Absence of anything is a fact to report, not
//! an error.

use serde::Serialize;
use std::path::{Path, PathBuf};

/// A vendor library that a device needs at run time.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceLibrary {
    /// Device it belongs to.
    pub device: &'static str,
    /// File name searched for.
    pub library: &'static str,
    /// Path at which it was found.
    pub path: Option<PathBuf>,
}

/// A machine as far as training on it is concerned.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub processor: String,
    /// Architecture, e.g. `x86_64`.
    pub architecture: &'static str,
    /// Vector instructions that matter here and are present.
    pub features: Vec<&'static str>,
    /// Logical processors available to this process.
    pub threads: usize,
    /// Total memory in bytes, if known.
    pub memory: Option<usize>,
    /// Memory that this process can still take, in bytes, if known.
    pub available: Option<usize>,
    /// Operating system and kernel.
    pub system: String,
    /// Libraries of other devices.
    pub libraries: Vec<DeviceLibrary>,
}

/// Libraries that devices open, by the names their vendors install.
const LIBRARIES: &[(&str, &str)] = &[
    ("cuda", "libcuda.so.1"),
    ("cuda", "libcublasLt.so"),
    ("cuda", "libnvrtc.so"),
    ("ascend", "libascendcl.so"),
];

impl Machine {
    /// Looks at the machine this runs on.
    pub fn detect() -> Machine {
        let proc = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let cpuinfo = proc("/proc/cpuinfo");
        let named = |key: &str| {
            let line = cpuinfo.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        let meminfo = proc("/proc/meminfo");
        let memory = |key: &str| {
            let line = meminfo.lines().find(|l| l.starts_with(key))?;
            line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib * 1024)
        };
        Machine {
            processor: named("model name").unwrap_or_else(|| "unknown".into()),
            architecture: std::env::consts::ARCH,
            features: features(),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory: memory("MemTotal:"),
            available: crate::cpu::free::free(),
            system: format!("{} {}", std::env::consts::OS, proc("/proc/sys/kernel/osrelease").trim()),
            libraries: LIBRARIES
                .iter()
                .map(|&(device, library)| DeviceLibrary { device, library, path: find_library(library) })
                .collect(),
        }
    }
}

/// Bytes of this process in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Now.
    pub now: usize,
    /// At the most since it began.
    pub peak: usize,
}

/// Memory of this process, as the system says; `None` where it does not.
pub fn resident() -> Option<Resident> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |key: &str| {
        let line = status.lines().find(|l| l.starts_with(key))?;
        Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? * 1024)
    };
    Some(Resident { now: field("VmRSS:")?, peak: field("VmHWM:")? })
}

/// Vector extensions of this processor, by the names under which the standard library detects them.
fn features() -> Vec<&'static str> {
    #[allow(unused_mut)] // nothing is detected on other architectures
    let mut out = Vec::new();
    #[allow(unused_macros)]
    macro_rules! probe {
        ($detected:ident: $($name:tt)*) => { $(if std::arch::$detected!($name) { out.push($name); })* };
    }
    #[cfg(target_arch = "x86_64")]
    probe!(is_x86_feature_detected:
        "sse4.2" "avx" "avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512vl" "avx512dq" "avx512bf16" "avx512vnni" "avx512fp16");
    // The standard library detects AMX for nightly compilers alone.
    #[cfg(target_arch = "x86_64")]
    if headwater_cpu::Tier::detect() == headwater_cpu::Tier::Amx {
        out.push("amx-bf16");
    }
    #[cfg(target_arch = "aarch64")]
    probe!(is_aarch64_feature_detected: "neon" "fp16" "fhm" "dotprod" "bf16" "i8mm" "sve" "sve2");
    out
}

/// Looks for a library where the dynamic linker would, and in the vendors' default folders.
fn find_library(name: &str) -> Option<PathBuf> {
    let listed = |var: &str| std::env::var(var).unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        listed("LD_LIBRARY_PATH").split(':').filter(|s| !s.is_empty()).map(PathBuf::from).collect();
    for (var, sub) in
        [("CUDA_HOME", "lib64"), ("ASCEND_HOME_PATH", "lib64"), ("ASCEND_TOOLKIT_HOME", "lib64")]
    {
        let home = listed(var);
        if !home.is_empty() {
            folders.push(Path::new(&home).join(sub));
        }
    }
    for fixed in [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
        "/usr/local/cuda/lib64",
        "/usr/local/nvidia/lib64",
        "/usr/local/Ascend/ascend-toolkit/latest/lib64",
        "/usr/local/Ascend/driver/lib64",
    ] {
        folders.push(fixed.into());
    }
    folders.into_iter().map(|f| f.join(name)).find(|p| p.exists())
}
