//! The vendor's libraries on this machine.

use std::path::{Path, PathBuf};

/// The search path of libraries, first to last: the folders of `HEADWATER_CUDA_PATH` and of
/// `LD_LIBRARY_PATH`, `/usr/local/cuda`, and the packages of a Python environment (`VIRTUAL_ENV`,
/// `nvidia/*/lib`). What is in none of them is left to the system's own search.
#[derive(Clone, Debug, Default)]
pub struct Installation {
    folders: Vec<PathBuf>,
}

/// The driver's file.
pub const DRIVER: &[&str] = &["libcuda.so.1"];
/// Files of NVRTC, newest first.
pub const NVRTC: &[&str] = &["libnvrtc.so.13", "libnvrtc.so.12"];
/// Files of cuBLASLt, newest first.
pub const CUBLAS_LT: &[&str] = &["libcublasLt.so.13", "libcublasLt.so.12"];

impl Installation {
    /// By the environment.
    pub fn find() -> Installation {
        let listed = |name: &str| {
            let value = std::env::var_os(name).unwrap_or_default();
            std::env::split_paths(&value).filter(|p| !p.as_os_str().is_empty()).collect::<Vec<_>>()
        };
        let mut folders = Vec::new();
        for folder in listed("HEADWATER_CUDA_PATH") {
            folders.extend([folder.join("lib64"), folder.join("lib"), folder]);
        }
        folders.extend(listed("LD_LIBRARY_PATH"));
        folders.extend(["/usr/local/cuda/lib64", "/usr/local/cuda/lib"].map(PathBuf::from));
        listed("VIRTUAL_ENV").iter().for_each(|root| folders.extend(packages(root)));
        Installation { folders }
    }

    /// In these folders alone.
    pub fn of(folders: Vec<PathBuf>) -> Installation {
        Installation { folders }
    }

    /// Folders that are searched.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// The first file of some names.
    pub fn library(&self, names: &[&str]) -> Option<PathBuf> {
        let in_folder = |folder: &PathBuf| names.iter().map(|name| folder.join(name)).find(|p| p.is_file());
        self.folders.iter().find_map(in_folder)
    }
}

/// Folders of libraries that Python packages of the vendor's bring.
pub fn packages(root: &Path) -> Vec<PathBuf> {
    let below = |path: PathBuf| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|e| e.path()).collect();
        paths.sort();
        paths
    };
    let versions = below(root.join("lib")).into_iter().map(|python| python.join("site-packages/nvidia"));
    versions.flat_map(below).map(|package| package.join("lib")).filter(|lib| lib.is_dir()).collect()
}
