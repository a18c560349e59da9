//! NVRTC, with a cache of binaries on disk.
//!
//! A binary is named by everything it depends on: the unit, the files it includes, the options, the
//! compiler's version and the architecture. NVRTC keeps state between compilations with different options, so
//! a process has one set of options.

use super::error::{Error, Result};
use super::library::{Installation, NVRTC};
use super::table::{Handle, Nvrtc};
use crate::text::{HEADERS, unit};
use headwater_launch::Cache;
use sha2::{Digest, Sha256};
use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel to be compiled.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its symbol.
    pub name: String,
    /// Its text, to follow the prelude.
    pub text: String,
}

/// NVRTC for an architecture.
#[derive(Debug)]
pub struct Compiler {
    nvrtc: Arc<Nvrtc>,
    version: (i32, i32),
    arch: String,
    cache: Option<Cache>,
}

/// Binaries, in the order of their sources.
#[derive(Debug)]
pub struct Compiled {
    /// The binaries.
    pub binaries: Vec<Vec<u8>>,
    /// Kernels that were compiled.
    pub fresh: usize,
}

/// Folder of the cache: `HEADWATER_CACHE`, `XDG_CACHE_HOME/headwater` or `~/.cache/headwater`, and `cuda` in
/// it.
pub fn cache_folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let folder = named("HEADWATER_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").map(|p| p.join("headwater")))
        .or_else(|| named("HOME").map(|p| p.join(".cache/headwater")))?;
    Some(folder.join("cuda"))
}

impl Compiler {
    /// NVRTC of an installation, for an architecture such as `sm_90`. Without a folder nothing is cached.
    ///
    /// # Errors
    /// A library that is missing, or lacks functions.
    pub fn find(installation: &Installation, arch: &str, cache: Option<PathBuf>) -> Result<Compiler> {
        let without = "steps run on the host, slowly";
        let path = installation.library(NVRTC).ok_or_else(|| Error::Library {
            name: NVRTC[0],
            problem: "is not found (nor is libnvrtc.so.12)".into(),
            without,
            places: installation.folders().to_vec(),
        })?;
        let nvrtc = Arc::new(Nvrtc::open(&path, NVRTC[0], without)?);
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two numbers.
        checked("nvrtcVersion", unsafe { (nvrtc.version)(&mut major, &mut minor) })?;
        Ok(Compiler { nvrtc, version: (major, minor), arch: arch.into(), cache: cache.map(Cache::new) })
    }

    /// Version of NVRTC.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The options of every compilation.
    pub fn options(&self) -> Vec<String> {
        let arch = format!("--gpu-architecture={}", self.arch);
        let fixed = [
            "--std=c++17",
            "--fmad=false",
            "--ftz=false",
            "--prec-div=true",
            "--prec-sqrt=true",
            "--generate-line-info",
        ];
        std::iter::once(arch).chain(fixed.map(String::from)).collect()
    }

    fn key(&self, text: &str) -> String {
        let mut hash = Sha256::new();
        let (major, minor) = self.version;
        let parts = [format!("{major}.{minor}"), self.options().join(" "), text.into()];
        let headers = HEADERS.iter().map(|(_, text)| text.to_string());
        for part in parts.into_iter().chain(headers) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Compiles kernels, each as a unit of its own, on two threads; those in the cache are taken from there.
    ///
    /// # Errors
    /// A kernel that does not compile; a cache that cannot be written.
    pub fn compile(&self, sources: &[Source]) -> Result<Compiled> {
        let (next, fresh) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let done: Mutex<Vec<Option<Result<Vec<u8>>>>> = Mutex::new(vec![None; sources.len()]);
        std::thread::scope(|scope| {
            for _ in 0..2.min(sources.len()) {
                scope.spawn(|| {
                    while let Some((i, source)) = {
                        let i = next.fetch_add(1, Ordering::SeqCst);
                        sources.get(i).map(|s| (i, s))
                    } {
                        let binary = self.one(source, &fresh);
                        done.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some(binary);
                    }
                });
            }
        });
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let lost = || Err(Error::Usage("a thread that compiles has ended".into()));
        let binaries = done.into_iter().map(|b| b.unwrap_or_else(lost)).collect::<Result<_>>()?;
        Ok(Compiled { binaries, fresh: fresh.into_inner() })
    }

    fn one(&self, source: &Source, fresh: &AtomicUsize) -> Result<Vec<u8>> {
        let text = unit(std::slice::from_ref(&source.text));
        let key = self.key(&text);
        if let Some((_, binary)) = self.cache.as_ref().and_then(|cache| cache.get(&key)) {
            return Ok(binary);
        }
        let binary = self.translate(&source.name, &text)?;
        fresh.fetch_add(1, Ordering::SeqCst);
        if let Some(cache) = &self.cache {
            cache.put(&key, &binary)?;
        }
        Ok(binary)
    }

    fn translate(&self, kernel: &str, text: &str) -> Result<Vec<u8>> {
        let c = |text: &str| {
            CString::new(text).map_err(|_| Error::Usage(format!("`{kernel}` has a zero in its text")))
        };
        let (text, name) = (c(text)?, c(&format!("{kernel}.cu"))?);
        let headers = HEADERS.iter().map(|(_, text)| c(text)).collect::<Result<Vec<_>>>()?;
        let names = HEADERS.iter().map(|(name, _)| c(name)).collect::<Result<Vec<_>>>()?;
        let options = self.options().iter().map(|o| c(o)).collect::<Result<Vec<_>>>()?;
        let pointers = |all: &[CString]| all.iter().map(|s| s.as_ptr()).collect::<Vec<*const c_char>>();
        let (headers, names, options) = (pointers(&headers), pointers(&names), pointers(&options));
        let mut program = Translation { nvrtc: &self.nvrtc, handle: std::ptr::null_mut() };
        // SAFETY: strings end with zeros and live until the program is destroyed.
        let made = unsafe {
            let count = headers.len() as i32;
            (self.nvrtc.create)(
                &mut program.handle,
                text.as_ptr(),
                name.as_ptr(),
                count,
                headers.as_ptr(),
                names.as_ptr(),
            )
        };
        checked("nvrtcCreateProgram", made)?;
        // SAFETY: the program is alive, the options end with zeros.
        let code = unsafe { (self.nvrtc.compile)(program.handle, options.len() as i32, options.as_ptr()) };
        if code != 0 {
            let log = program.text("nvrtcGetProgramLog", self.nvrtc.log_size, self.nvrtc.log)?;
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string();
            return Err(Error::Compile { kernel: kernel.into(), arch: self.arch.clone(), log });
        }
        program.text("nvrtcGetCUBIN", self.nvrtc.cubin_size, self.nvrtc.cubin)
    }
}

struct Translation<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl Translation<'_> {
    /// Something that the compiler made, by the function for its size and that for its bytes.
    fn text(
        &self,
        call: &'static str,
        size: unsafe extern "C" fn(Handle, *mut usize) -> i32,
        get: unsafe extern "C" fn(Handle, *mut c_char) -> i32,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program is alive; writes a number.
        checked(call, unsafe { size(self.handle, &mut bytes) })?;
        let mut text = vec![0u8; bytes];
        // SAFETY: writes as many bytes.
        checked(call, unsafe { get(self.handle, text.as_mut_ptr().cast()) })?;
        Ok(text)
    }
}

impl Drop for Translation<'_> {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.nvrtc.destroy)(&mut self.handle) };
    }
}

fn checked(call: &'static str, code: i32) -> Result<()> {
    let text = "a failure of the compiler".to_string();
    if code == 0 { Ok(()) } else { Err(Error::Call { call, code, text, site: None, near: Vec::new() }) }
}
