//! CANN's installation on this machine: folders, libraries, compilers, and versions as the vendor's files
//! state them. Reads files and environment alone; opens no library.

use crate::chip::Arch;
use std::path::{Path, PathBuf};

/// An installation, as far as it was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Installation {
    /// CANN's folder (`…/Ascend/cann` or `…/Ascend/ascend-toolkit/latest`).
    pub home: Option<PathBuf>,
    /// Folder of the driver.
    pub driver: Option<PathBuf>,
    /// Folder of the firmware.
    pub firmware: Option<PathBuf>,
    /// Further folders of libraries: those of `LD_LIBRARY_PATH`.
    pub libraries: Vec<PathBuf>,
}

/// Folders of CANN below the root of the vendor's installers, newest first.
const HOMES: [&str; 4] = ["cann", "ascend-toolkit/latest", "latest", "nnrt/latest"];

impl Installation {
    /// The installation that the environment names (`ASCEND_HOME_PATH`, `ASCEND_TOOLKIT_HOME`), or else one
    /// at the installers' default places, for all users or this one.
    pub fn find() -> Installation {
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_dir());
        let mut roots = vec![PathBuf::from("/usr/local/Ascend")];
        roots.extend(std::env::var_os("HOME").map(|home| Path::new(&home).join("Ascend")));
        let named = folder("ASCEND_HOME_PATH").or_else(|| folder("ASCEND_TOOLKIT_HOME"));
        if let Some(root) = named.as_ref().and_then(|home| home.parent()) {
            roots.insert(0, root.to_owned());
            roots.extend(root.parent().map(Path::to_owned));
        }
        let home = named.or_else(|| {
            roots.iter().flat_map(|root| HOMES.map(|home| root.join(home))).find(|home| home.is_dir())
        });
        let beside = |name: &str| roots.iter().map(|root| root.join(name)).find(|p| p.is_dir());
        let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let libraries = std::env::split_paths(&listed).filter(|p| !p.as_os_str().is_empty()).collect();
        Installation { home, driver: beside("driver"), firmware: beside("firmware"), libraries }
    }

    /// The installation below one root, such as `/usr/local/Ascend`.
    pub fn below(root: &Path) -> Installation {
        let folder = |name: &str| Some(root.join(name)).filter(|p| p.is_dir());
        let home = HOMES.iter().find_map(|home| folder(home));
        Installation { home, driver: folder("driver"), firmware: folder("firmware"), libraries: Vec::new() }
    }

    /// A library, where the dynamic linker would look for it, then in CANN's and the driver's folders.
    pub fn library(&self, name: &str) -> Option<PathBuf> {
        let arch = format!("{}-linux/lib64", std::env::consts::ARCH);
        let home = self.home.iter().flat_map(|home| [home.join("lib64"), home.join(&arch)]);
        let driver =
            self.driver.iter().flat_map(|d| ["lib64", "lib64/driver", "lib64/common"].map(|s| d.join(s)));
        let folders = self.libraries.iter().cloned().chain(home).chain(driver);
        folders.map(|folder| folder.join(name)).find(|path| path.exists())
    }

    /// Version of the toolkit, e.g. `8.3.RC1`.
    pub fn toolkit_version(&self) -> Option<String> {
        let home = self.home.as_ref()?;
        let arch = format!("{}-linux", std::env::consts::ARCH);
        let stated = home.join(arch).join("ascend_toolkit_install.info");
        value_of(&stated, "version")
            .or_else(|| value_of(&home.join("toolkit/version.info"), "version_dir"))
            .or_else(|| value_of(&home.join("toolkit/version.info"), "version"))
            .or_else(|| value_of(&home.join("version.info"), "version"))
    }

    /// Version of the driver.
    pub fn driver_version(&self) -> Option<String> {
        value_of(&self.driver.as_ref()?.join("version.info"), "version")
    }

    /// Version of the firmware.
    pub fn firmware_version(&self) -> Option<String> {
        value_of(&self.firmware.as_ref()?.join("version.info"), "version")
    }

    /// Chips for which a package of the vendor's operators is installed, as its folders name them
    /// (`ascend910b`).
    pub fn operator_chips(&self) -> Vec<String> {
        let Some(home) = &self.home else { return Vec::new() };
        let folder = home.join("opp/built-in/op_impl/ai_core/tbe/kernel");
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut chips: Vec<_> = entries
            .filter(|e| e.path().is_dir())
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|name| name.starts_with("ascend"))
            .collect();
        chips.sort();
        chips
    }

    /// Version of that package.
    pub fn operators_version(&self) -> Option<String> {
        let home = self.home.as_ref()?;
        let arch = format!("{}-linux", std::env::consts::ARCH);
        value_of(&home.join(arch).join("ascend_ops_install.info"), "version")
            .or_else(|| value_of(&home.join("opp_kernel/version.info"), "version"))
    }

    /// An executable of the compiler: `bisheng`, `ccec` or `ld.lld`.
    pub fn tool(&self, name: &str) -> Option<PathBuf> {
        let home = self.home.as_ref()?;
        ["tools/bisheng_compiler/bin", "compiler/ccec_compiler/bin", "tools/ccec_compiler/bin"]
            .iter()
            .map(|folder| home.join(folder).join(name))
            .find(|path| path.is_file())
    }

    /// True if the compiler takes `--npu-arch`, as those of CANN 8.5 and later do.
    pub fn takes_npu_arch(&self) -> bool {
        let stated = self.toolkit_version().and_then(|v| major_minor(&v));
        stated.map_or_else(
            || self.home.as_ref().is_some_and(|h| h.join("tools/bisheng_compiler/bin").is_dir()),
            |version| version >= (8, 5),
        )
    }
}

/// The folder of the vendor's operators for a generation of chips.
pub fn operators_of(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::A2 => &["ascend910b", "ascend910_93"],
        Arch::P310 => &["ascend310p"],
    }
}

/// The value of a key in a file of lines `key=value`; keys in any case.
fn value_of(file: &Path, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (k, value) = line.split_once('=')?;
        let value = value.trim().trim_matches('"');
        (k.trim().eq_ignore_ascii_case(key) && !value.is_empty()).then(|| value.to_string())
    })
}

/// The first two numbers of a version.
fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_in_any_spelling() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("version.info");
        std::fs::write(&file, "# x\nVersion=24.1.rc2\nversion_dir=8.0\nempty=\n").unwrap();
        assert_eq!(value_of(&file, "version").as_deref(), Some("24.1.rc2"));
        assert_eq!(value_of(&file, "empty"), None);
        assert_eq!(value_of(folder.path(), "version"), None);
        assert_eq!(major_minor("8.3.RC1"), Some((8, 3)));
        assert_eq!(major_minor("Rc"), None);
    }
}
