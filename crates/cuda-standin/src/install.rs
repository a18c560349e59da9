//! Folders that look like an installation of the vendor's.

use libloading::Library;
use std::ffi::CString;
use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

/// The C++ compiler: that of `CXX`, or `c++`.
pub fn compiler() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        let name = std::env::var("CXX").ok().filter(|c| !c.is_empty()).unwrap_or_else(|| "c++".into());
        let works =
            std::process::Command::new(&name).arg("--version").output().is_ok_and(|o| o.status.success());
        works.then_some(name)
    };
    FOUND.get_or_init(find).as_deref()
}

/// The reason why the stand-in does not work on this machine, if there is one: tests that need it are skipped
/// with this reason.
pub fn missing() -> Option<&'static str> {
    match () {
        () if !cfg!(all(target_arch = "x86_64", target_os = "linux")) => {
            Some("the stand-in runs on x86-64 under Linux")
        }
        () if compiler().is_none() => Some("there is no C++ compiler (`c++`, or that of CXX)"),
        () => None,
    }
}

/// A folder with the libraries; removed when dropped. Each is the same file, and each folder has one of its
/// own: tests in one process do not meet.
#[derive(Debug)]
pub struct Installed {
    folder: TempDir,
    /// Never closed: threads that have called it clear up after themselves with its code.
    control: ManuallyDrop<Library>,
}

/// Names under which the library is found.
pub const NAMES: [&str; 3] = ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"];

impl Installed {
    /// From the dynamic library of this crate, which `cargo` puts beside a test's executable.
    ///
    /// # Errors
    /// A file that is missing or cannot be copied.
    pub fn new(checked: bool, seed: u64, capacity: usize) -> io::Result<Installed> {
        let folder = tempfile::tempdir()?;
        let first = folder.path().join(NAMES[0]);
        std::fs::copy(library()?, &first)?;
        #[cfg(unix)]
        for name in &NAMES[1..] {
            std::os::unix::fs::symlink(&first, folder.path().join(name))?;
        }
        // SAFETY: the stand-in's own library; it has no initialisers.
        let control = unsafe { Library::new(&first) }.map_err(io::Error::other)?;
        let installed = Installed { folder, control: ManuallyDrop::new(control) };
        // SAFETY: the type of the exported function.
        unsafe {
            let f = installed.control.get::<extern "C" fn(bool, u64, usize)>(b"standin_configure\0");
            f.map_err(io::Error::other)?(checked, seed, capacity);
        }
        Ok(installed)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The `nth` further call of a function gives a status.
    pub fn inject(&self, name: &str, nth: u64, status: i32) {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the type of the exported function.
        if let Ok(f) = unsafe {
            self.control.get::<extern "C" fn(*const std::ffi::c_char, u64, i32)>(b"standin_inject\0")
        } {
            f(name.as_ptr(), nth, status);
        }
    }

    /// A device that failed works again, and everything left on it is freed, as in a new process.
    pub fn revive(&self) {
        // SAFETY: the type of the exported function.
        if let Ok(f) = unsafe { self.control.get::<extern "C" fn()>(b"standin_revive\0") } {
            f();
        }
    }

    /// Forgets failures that have not come.
    pub fn forget(&self) {
        // SAFETY: the type of the exported function.
        if let Ok(f) = unsafe { self.control.get::<extern "C" fn()>(b"standin_forget\0") } {
            f();
        }
    }

    /// Plants a fault: a part of a kernel's text is compiled as another one, until [`Installed::replaced`].
    pub fn replace(&self, from: &str, to: &str) {
        let c = |text: &str| CString::new(text).unwrap_or_default();
        let (from, to) = (c(from), c(to));
        type Replace = extern "C" fn(*const std::ffi::c_char, *const std::ffi::c_char);
        // SAFETY: the type of the exported function.
        if let Ok(f) = unsafe { self.control.get::<Replace>(b"standin_replace\0") } {
            f(from.as_ptr(), to.as_ptr());
        }
    }

    /// Kernels that were compiled with the fault.
    pub fn replaced(&self) -> u64 {
        // SAFETY: the type of the exported function.
        unsafe { self.control.get::<extern "C" fn() -> u64>(b"standin_replaced\0") }.map_or(0, |f| f())
    }

    /// Calls of a function so far.
    pub fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the type of the exported function.
        let f =
            unsafe { self.control.get::<extern "C" fn(*const std::ffi::c_char) -> u64>(b"standin_calls\0") };
        f.map_or(0, |f| f(name.as_ptr()))
    }

    /// Handles that are alive: memories, pinned pieces, streams, events, graphs, modules.
    pub fn live(&self) -> [usize; 6] {
        let mut live = [0; 6];
        // SAFETY: the type of the exported function.
        if let Ok(f) = unsafe { self.control.get::<extern "C" fn(*mut [usize; 6])>(b"standin_live\0") } {
            f(&mut live);
        }
        live
    }
}

/// The dynamic library of this crate.
fn library() -> io::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test.parent().unwrap_or(Path::new("."));
    let name = "libheadwater_cuda_standin.so";
    let places = [folder.join(name), folder.join("..").join(name)];
    let newest = places
        .into_iter()
        .filter(|p| p.is_file())
        .max_by_key(|p| p.metadata().and_then(|m| m.modified()).ok());
    newest.ok_or_else(|| io::Error::other(format!("{name} is not beside {}", test.display())))
}
