//! Installations made of the stand-in. Each is a folder as CANN's, in which every library is a copy of this
//! crate's dynamic library, without the functions that the version in question lacks.
//!
//! Each copy is a library of its own to the dynamic linker, with its own state: tests in one process do not
//! meet.

use crate::config::{Config, MARK, ROOM};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

/// A version of CANN, by what it brought.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cann {
    /// No kernels by ACL: libruntime alone.
    V70,
    /// `aclrtLaunchKernel`.
    V80,
    /// Lists of arguments, binaries from files, recordings.
    V81,
    /// Binaries from memory, aclrtc.
    V83,
    /// Arguments in host memory.
    V90,
    /// Arrays of arguments.
    V91,
}

/// Functions by the version that brought them.
const NEW: &[(Cann, &[&str])] = &[
    (
        Cann::V80,
        &[
            "aclrtCreateBinary",
            "aclrtDestroyBinary",
            "aclrtBinaryLoad",
            "aclrtBinaryUnLoad",
            "aclrtBinaryGetFunction",
            "aclrtLaunchKernel",
            "aclSetAclOpExecutorRepeatable",
            "aclDestroyAclOpExecutor",
        ],
    ),
    (
        Cann::V81,
        &[
            "aclrtBinaryLoadFromFile",
            "aclrtKernelArgsInit",
            "aclrtKernelArgsAppend",
            "aclrtKernelArgsFinalize",
            "aclrtLaunchKernelWithConfig",
            "aclmdlRICaptureBegin",
            "aclmdlRICaptureEnd",
            "aclmdlRIExecuteAsync",
            "aclmdlRIDestroy",
        ],
    ),
    (Cann::V83, &["aclrtBinaryLoadFromData", "aclrtGetDeviceInfo"]),
    (Cann::V90, &["aclrtLaunchKernelWithHostArgs", "aclrtGetHardwareSyncAddr", "aclsysGetVersionStr"]),
    (Cann::V91, &["aclrtLaunchKernelWithArgsArray"]),
];

impl Cann {
    /// All of them, oldest first.
    pub const ALL: [Cann; 6] = [Cann::V70, Cann::V80, Cann::V81, Cann::V83, Cann::V90, Cann::V91];

    /// The version as files state it.
    pub const fn text(self) -> &'static str {
        match self {
            Cann::V70 => "7.0.0",
            Cann::V80 => "8.0.0",
            Cann::V81 => "8.1.RC1",
            Cann::V83 => "8.3.RC1",
            Cann::V90 => "9.0.0",
            Cann::V91 => "9.1.0",
        }
    }

    /// Functions that it lacks.
    pub fn lacks(self) -> Vec<&'static str> {
        NEW.iter().filter(|(since, _)| self < *since).flat_map(|(_, names)| names.iter().copied()).collect()
    }
}

/// A folder that looks like an installation; removed when dropped.
#[derive(Debug)]
pub struct StandinInstallation {
    root: TempDir,
}

impl StandinInstallation {
    /// Libraries, version files and, with `compiler`, the executables of a toolkit.
    ///
    /// # Errors
    /// If a file cannot be written, or the dynamic library of this crate is not built.
    pub fn new(cann: Cann, config: &Config, compiler: Option<&Path>) -> io::Result<StandinInstallation> {
        StandinInstallation::without(cann, config, compiler, &[])
    }

    /// The same, with further functions missing.
    ///
    /// # Errors
    /// As [`StandinInstallation::new`]; also if a function to hide does not exist.
    pub fn without(
        cann: Cann,
        config: &Config,
        compiler: Option<&Path>,
        hidden: &[&str],
    ) -> io::Result<StandinInstallation> {
        let this = StandinInstallation { root: tempfile::tempdir()? };
        let config = Config { version: cann.text().into(), ..config.clone() };
        let library = Library::of_this_crate()?;
        let mut bytes = library.bytes.clone();
        bytes[library.settings..library.settings + ROOM].copy_from_slice(&config.to_bytes());
        for name in cann.lacks().into_iter().chain(hidden.iter().copied()) {
            library.hide(&mut bytes, name)?;
        }
        let lib = this.home().join("lib64");
        std::fs::create_dir_all(&lib)?;
        std::fs::write(this.acl(), &bytes)?;
        // The same file under other names: one library to the dynamic linker, one state.
        std::fs::hard_link(this.acl(), lib.join("libruntime.so"))?;
        if cann >= Cann::V80 {
            std::fs::hard_link(this.acl(), lib.join("libopapi.so"))?;
        }
        if cann >= Cann::V83 {
            std::fs::hard_link(this.acl(), lib.join("libacl_rtc.so"))?;
        }
        this.write_versions(cann, &config)?;
        if let Some(compiler) = compiler {
            this.write_toolkit(cann, compiler)?;
        }
        Ok(this)
    }

    /// The folder above everything, `/usr/local/Ascend` on a machine.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// CANN's folder, what `ASCEND_HOME_PATH` names.
    pub fn home(&self) -> PathBuf {
        self.root().join("cann")
    }

    /// `libascendcl.so`.
    pub fn acl(&self) -> PathBuf {
        self.home().join("lib64/libascendcl.so")
    }

    /// `libruntime.so`.
    pub fn runtime(&self) -> PathBuf {
        self.home().join("lib64/libruntime.so")
    }

    fn write_versions(&self, cann: Cann, config: &Config) -> io::Result<()> {
        let write = |path: PathBuf, text: String| {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(path, text)
        };
        let arch = format!("{}-linux", std::env::consts::ARCH);
        let version = cann.text();
        write(
            self.home().join(&arch).join("ascend_toolkit_install.info"),
            format!("package_name=Ascend-cann-toolkit\nversion={version}\n"),
        )?;
        write(self.root().join("driver/version.info"), "Version=25.0.rc1\n".into())?;
        write(self.root().join("firmware/version.info"), "Version=7.7.0.1.231\n".into())?;
        let chip = if config.soc.contains("310P") { "ascend310p" } else { "ascend910b" };
        std::fs::create_dir_all(self.home().join("opp/built-in/op_impl/ai_core/tbe/kernel").join(chip))?;
        write(self.home().join("opp_kernel/version.info"), format!("Version={version}\n"))
    }

    fn write_toolkit(&self, cann: Cann, compiler: &Path) -> io::Result<()> {
        let folder = match cann >= Cann::V90 {
            true => self.home().join("tools/bisheng_compiler/bin"),
            false => self.home().join("compiler/ccec_compiler/bin"),
        };
        std::fs::create_dir_all(&folder)?;
        std::fs::create_dir_all(self.home().join("compiler/tikcpp/tikcfw/interface"))?;
        for name in ["bisheng", "ccec", "ld.lld"] {
            if std::fs::hard_link(compiler, folder.join(name)).is_err() {
                std::fs::copy(compiler, folder.join(name))?;
            }
        }
        Ok(())
    }
}

/// The dynamic library of this crate, and where in it things are.
struct Library {
    bytes: Vec<u8>,
    settings: usize,
    /// Positions of the interface's names in the tables of symbols.
    names: HashMap<Vec<u8>, Vec<usize>>,
}

impl Library {
    /// Read once, from beside the program that is running.
    fn of_this_crate() -> io::Result<&'static Library> {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        let name = "libheadwater_ascend_standin.so";
        let exe = std::env::current_exe()?;
        let folders = exe.ancestors().skip(1).take(2).flat_map(|f| [f.to_owned(), f.join("deps")]);
        let path = folders.map(|folder| folder.join(name)).find(|path| path.exists());
        let path = path.ok_or_else(|| io::Error::other(format!("{name} is not beside {}", exe.display())))?;
        let library = Library::index(std::fs::read(path)?)?;
        Ok(LIBRARY.get_or_init(|| library))
    }

    fn index(bytes: Vec<u8>) -> io::Result<Library> {
        let (mut settings, mut names) = (None, HashMap::<Vec<u8>, Vec<usize>>::new());
        let mut position = 0;
        for text in bytes.split(|byte| *byte == 0) {
            if text.starts_with(b"acl") || text.starts_with(b"rt") {
                names.entry(text.to_vec()).or_default().push(position);
            } else if text.ends_with(MARK) {
                // Constants are contiguous; the settings constant is the one followed by zero padding.
                let begin = position + text.len() - MARK.len();
                let room = bytes.get(begin + MARK.len()..begin + ROOM);
                settings = settings.or(room.filter(|r| r.iter().all(|b| *b == 0)).map(|_| begin));
            }
            position += text.len() + 1;
        }
        let settings = settings.ok_or_else(|| io::Error::other("the library has no settings"))?;
        Ok(Library { bytes, settings, names })
    }

    /// Renames a function in the tables of symbols: the dynamic linker, which compares names, finds it no
    /// more.
    fn hide(&self, bytes: &mut [u8], name: &str) -> io::Result<()> {
        let positions = self.names.get(name.as_bytes());
        let positions =
            positions.ok_or_else(|| io::Error::other(format!("the library has no function {name}")))?;
        for &position in positions {
            bytes[position] = b'-';
        }
        Ok(())
    }
}
