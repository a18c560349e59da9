//! Compilation of emitted sources, by whatever the installation has, with a cache on disk.
//!
//! | way | for | since CANN |
//! |---|---|---|
//! | `libacl_rtc.so` in this process | A2, A3 | 8.3 |
//! | `bisheng --npu-arch=…` as a child process | all | 8.5 |
//! | `ccec` and `ld.lld` as child processes | all; on A2 cube and vector separately | 8.0 |
//!
//! Kernels place their own flags and barriers, which the simulator proves. So `--cce-auto-sync`, by which the
//! compiler adds its own, is passed only on request.

mod child;
mod library;

use super::acl;
use super::error::{Error, Result};
use super::installation::Installation;
use super::launch::{CoreKind, KernelBinary};
use crate::chip::Arch;
use headwater_launch::Cache;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Kernels of one compilation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompileUnit {
    /// Name, of which the files' names are made: letters, digits, `_`.
    pub name: String,
    /// Ascend C.
    pub source: String,
    /// Symbols of its kernels.
    pub kernels: Vec<String>,
    /// Cores it is for.
    pub core: CoreKind,
}

/// Options of a compilation.
#[derive(Clone, PartialEq, Debug)]
pub struct CompilerOptions {
    /// Folder of the cache.
    pub cache: PathBuf,
    /// Child processes at a time.
    pub workers: usize,
    /// The longest that one may run.
    pub limit: Duration,
    /// True if the compiler adds synchronisation of its own.
    pub auto_sync: bool,
    /// True if the library is used where it exists.
    pub in_process: bool,
}

impl CompilerOptions {
    /// The defaults: the user's cache folder (`HEADWATER_CACHE`, `XDG_CACHE_HOME` or `~/.cache`), a child for
    /// each processor.
    pub fn from_env() -> CompilerOptions {
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let cache = folder("HEADWATER_CACHE")
            .or_else(|| folder("XDG_CACHE_HOME").map(|p| p.join("headwater")))
            .or_else(|| folder("HOME").map(|p| p.join(".cache/headwater")))
            .unwrap_or_else(|| std::env::temp_dir().join("headwater"));
        CompilerOptions {
            cache: cache.join("ascend"),
            workers: std::thread::available_parallelism().map_or(1, |n| n.get()),
            limit: Duration::from_secs(600),
            auto_sync: false,
            in_process: true,
        }
    }
}

/// A way to compile.
#[derive(Clone, Debug)]
enum Tool {
    /// The library, in this process.
    Library(acl::symbols::Compilation),
    /// The newer driver, which links too.
    Driver { bisheng: PathBuf },
    /// The older compiler and its linker.
    Parts { ccec: PathBuf, linker: PathBuf, include: PathBuf },
}

/// A compiler for one generation of chips.
#[derive(Debug)]
pub struct Compiler {
    tool: Tool,
    arch: Arch,
    /// Versions of the tools, on which results depend beside source and flags.
    identity: String,
    cache: Cache,
    options: CompilerOptions,
}

/// Result of a compilation.
#[derive(Clone, PartialEq, Debug)]
pub struct Compiled {
    /// A binary for each unit, in their order.
    pub binaries: Vec<KernelBinary>,
    /// Units that were compiled.
    pub fresh: usize,
    /// Units that the cache had.
    pub cached: usize,
    /// Its duration.
    pub time: Duration,
}

impl Compiler {
    /// The compiler of an installation: in the process on A2 where the library exists, else as a child
    /// process.
    ///
    /// # Errors
    /// [`Error::NoCompiler`] with the tools that were searched for.
    pub fn find(installation: &Installation, arch: Arch, options: CompilerOptions) -> Result<Compiler> {
        let library =
            installation.library("libacl_rtc.so").filter(|_| options.in_process && arch == Arch::A2);
        let library = library.and_then(|path| acl::open_compiler(&path).ok());
        let home = installation.home.clone().unwrap_or_default();
        let tool = |name: &str| {
            installation.tool(name).ok_or_else(|| Error::NoCompiler {
                chip: chip_name(arch).into(),
                missing: format!("{name} is not below {}", home.display()),
            })
        };
        let tool = match library {
            Some(functions) => Tool::Library(functions),
            None if installation.takes_npu_arch() => Tool::Driver { bisheng: tool("bisheng")? },
            None => {
                let include = home.join("compiler/tikcpp/tikcfw");
                Tool::Parts { ccec: tool("ccec")?, linker: tool("ld.lld")?, include }
            }
        };
        let version = installation.toolkit_version().unwrap_or_else(|| "unknown".into());
        let stated = match &tool {
            Tool::Library(_) => String::new(),
            Tool::Driver { bisheng: program } | Tool::Parts { ccec: program, .. } => child::version(program),
        };
        let cache = Cache::new(options.cache.clone());
        Ok(Compiler { tool, arch, identity: format!("CANN {version}\n{stated}"), cache, options })
    }

    /// Name of the tool, for people.
    pub fn name(&self) -> String {
        match &self.tool {
            Tool::Library(_) => "aclrtc".into(),
            Tool::Driver { bisheng: program } | Tool::Parts { ccec: program, .. } => {
                program.display().to_string()
            }
        }
    }

    /// True if it compiles kernels that use both cube and vector cores.
    pub fn joins_cores(&self) -> bool {
        self.arch == Arch::A2 && !matches!(self.tool, Tool::Parts { .. })
    }

    /// Compiles units that the cache has not, several at a time.
    ///
    /// # Errors
    /// [`Error::Compile`] of the first unit that fails, with the kernel and the compiler's messages;
    /// [`Error::NoCompiler`] for kernels of cube and vector cores where the compiler cannot; [`Error::File`].
    pub fn compile(&self, units: &[CompileUnit]) -> Result<Compiled> {
        let start = Instant::now();
        let (next, fresh) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let results: Vec<Mutex<Option<Result<KernelBinary>>>> =
            units.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            loop {
                let i = next.fetch_add(1, Ordering::SeqCst);
                let Some(unit) = units.get(i) else { return };
                let result = self.unit(unit, &fresh);
                if result.is_err() {
                    next.store(units.len(), Ordering::SeqCst);
                }
                *results[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            }
        };
        // aclrtc does not say that it may be called from several threads.
        let workers = if matches!(self.tool, Tool::Library(_)) { 1 } else { self.options.workers };
        std::thread::scope(|scope| {
            for _ in 1..workers.min(units.len()) {
                scope.spawn(work);
            }
            work();
        });
        // Units after a failed one may have no result: the first failure is reported.
        let mut binaries = Vec::with_capacity(units.len());
        let results = results.into_iter().map(|r| r.into_inner().unwrap_or_else(PoisonError::into_inner));
        let (mut done, mut failed) = (0, None);
        for result in results.flatten() {
            match result {
                Ok(binary) => binaries.push(binary),
                Err(error) => failed = failed.or(Some(error)),
            }
            done += 1;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let fresh = fresh.into_inner();
        Ok(Compiled { binaries, fresh, cached: done - fresh, time: start.elapsed() })
    }

    fn unit(&self, unit: &CompileUnit, fresh: &AtomicUsize) -> Result<KernelBinary> {
        if unit.name.is_empty() || !unit.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(Error::Usage(format!("`{}` is no name of a unit", unit.name)));
        }
        let flags = self.flags(unit)?;
        let key = self.key(unit, &flags);
        if let Some((path, bytes)) = self.cache.get(&key) {
            return Ok(self.binary(unit, path, bytes));
        }
        let bytes = match &self.tool {
            Tool::Library(functions) => library::compile(functions, unit, &flags)?,
            Tool::Driver { bisheng } => child::drive(bisheng, unit, &flags, self.options.limit)?,
            Tool::Parts { ccec, linker, .. } => {
                child::compile_and_link(ccec, linker, unit, &flags, self.options.limit)?
            }
        };
        fresh.fetch_add(1, Ordering::SeqCst);
        let path = self.cache.put(&key, &bytes)?;
        Ok(self.binary(unit, path, bytes))
    }

    fn binary(&self, unit: &CompileUnit, path: PathBuf, bytes: Vec<u8>) -> KernelBinary {
        let core = if self.arch == Arch::P310 { CoreKind::Mixed } else { unit.core };
        KernelBinary { name: unit.name.clone(), path: Some(path), bytes: bytes.into(), core }
    }

    /// Everything that the result depends on.
    fn key(&self, unit: &CompileUnit, flags: &[String]) -> String {
        let mut hash = Sha256::new();
        let tool = match &self.tool {
            Tool::Library(_) => "library",
            Tool::Driver { .. } => "driver",
            Tool::Parts { .. } => "parts",
        };
        let fixed =
            ["headwater-ascend 1", tool, chip_name(self.arch), &self.identity, &unit.name, &unit.source];
        for part in fixed.into_iter().chain(flags.iter().map(String::as_str)) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Flags of the compiler for a unit.
    fn flags(&self, unit: &CompileUnit) -> Result<Vec<String>> {
        let mut flags: Vec<String> = Vec::new();
        let mut add = |list: &[&str]| flags.extend(list.iter().map(|f| f.to_string()));
        match &self.tool {
            Tool::Library(_) => add(&["--npu-arch=dav-2201", "-O3"]),
            Tool::Driver { .. } => {
                let arch = if self.arch == Arch::A2 { "--npu-arch=dav-2201" } else { "--npu-arch=dav-2002" };
                add(&["-xasc", "-std=c++17", "-O3", arch]);
            }
            Tool::Parts { include, .. } => {
                let of_core = ccec_flags(self.arch, unit.core).ok_or_else(|| {
                    let missing =
                        "this needs aclrtc (CANN 8.3) or a bisheng that takes --npu-arch (CANN 8.5)";
                    let chip = "cube and vector cores together".into();
                    Error::NoCompiler { chip, missing: missing.into() }
                })?;
                add(&of_core);
                for folder in [include.clone(), include.join("interface"), include.join("impl")] {
                    add(&[&format!("-I{}", folder.display())]);
                }
            }
        }
        if self.options.auto_sync {
            add(&["--cce-auto-sync"]);
        }
        Ok(flags)
    }
}

/// Flags of `ccec` for one kind of core: everything but folders of headers, source and output. `None` for
/// cube and vector cores of A2 in one kernel, which it compiles separately.
pub fn ccec_flags(arch: Arch, core: CoreKind) -> Option<Vec<&'static str>> {
    let (target, backend) = match (arch, core) {
        (Arch::P310, _) => ("--cce-aicore-arch=dav-m200", BACKEND_P310),
        (Arch::A2, CoreKind::Vector) => ("--cce-aicore-arch=dav-c220-vec", BACKEND_A2),
        (Arch::A2, CoreKind::Cube) => ("--cce-aicore-arch=dav-c220-cube", BACKEND_A2),
        (Arch::A2, CoreKind::Mixed) => return None,
    };
    let mut flags = vec!["-x", "cce", "-O3", "-std=c++17", "-DTILING_KEY_VAR=0", "--cce-aicore-only", target];
    if arch == Arch::P310 {
        flags.push("--cce-mask-opt");
    }
    flags.extend(backend.iter().flat_map(|option| ["-mllvm", option]));
    Some(flags)
}

/// Options of the older compiler's backend, as the vendor's own builds give them.
const BACKEND_A2: &[&str] = &[
    "-cce-aicore-stack-size=0x8000",
    "-cce-aicore-function-stack-size=0x8000",
    "-cce-aicore-record-overflow=true",
    "-cce-aicore-addr-transform",
    "-cce-aicore-dcci-insert-for-scalar=false",
];
const BACKEND_P310: &[&str] =
    &["-cce-aicore-fp-ceiling=2", "-cce-aicore-record-overflow=false", "-cce-aicore-mask-opt=false"];

/// A generation as the compiler's options name it.
const fn chip_name(arch: Arch) -> &'static str {
    match arch {
        Arch::A2 => "dav-2201",
        Arch::P310 => "dav-2002",
    }
}

/// The error of a unit that did not compile: with the kernel whose lines the log names, if it names any.
fn failed(tool: &str, unit: &CompileUnit, cause: String, log: &str) -> Error {
    const SHOWN: usize = 4000;
    let log = log.trim();
    let begin = log.len().saturating_sub(SHOWN);
    let begin = (begin..=log.len()).find(|&i| log.is_char_boundary(i)).unwrap_or(0);
    let kernels = match kernel_of(unit, log) {
        Some(kernel) => format!("`{kernel}`"),
        None if unit.kernels.len() <= 4 => unit.kernels.join(", "),
        None => format!("{} and {} more", unit.kernels[..3].join(", "), unit.kernels.len() - 3),
    };
    let (tool, unit, log) = (tool.into(), unit.name.clone(), log[begin..].to_string());
    Error::Compile { tool, unit, kernels, cause, log }
}

/// The kernel that holds the first line which a log names: the last one declared above it.
fn kernel_of<'a>(unit: &'a CompileUnit, log: &str) -> Option<&'a str> {
    let line: usize = log.lines().find_map(|text| {
        let (_, rest) = text.split_once(&format!("{}.", unit.name))?;
        rest.split(':').nth(1)?.parse().ok()
    })?;
    let above: Vec<&str> = unit.source.lines().take(line).collect();
    above.iter().rev().find_map(|text| {
        let names = |kernel: &&String| {
            text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == kernel.as_str())
        };
        unit.kernels.iter().find(|k| text.contains('(') && names(k)).map(String::as_str)
    })
}

/// Name of a unit's source file. The suffix tells the compiler the language.
fn file_name(unit: &CompileUnit, suffix: &str) -> String {
    format!("{}.{suffix}", unit.name)
}

/// Writes a file, whole.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(Error::file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_of_an_error_is_found_by_its_line() {
        let source = "// a\nvoid first(int x)\n{\n}\nvoid second(int x)\n{\n  first_thing(x);\n}\n";
        let kernels = vec!["first".to_string(), "second".to_string()];
        let unit = CompileUnit { name: "u".into(), source: source.into(), kernels, core: CoreKind::Vector };
        assert_eq!(kernel_of(&unit, "note\n/tmp/u.cpp:7:3: error: no"), Some("second"));
        assert_eq!(kernel_of(&unit, "u.asc:3:1: error: no"), Some("first"));
        assert_eq!(kernel_of(&unit, "u.asc:1:1: error: no"), None);
        assert_eq!(kernel_of(&unit, "ld.lld: error"), None);
    }
}
