//! The C interface of CANN, as far as this machine has it.
//!
//! Versions differ in their capabilities, and the version number does not state them: 310P, custom builds and
//! mixed installations all deviate. So every function is looked up by name, once, and each complete group of
//! functions is a rung of a ladder. The newest available rung of launching and of loading is used:
//!
//! | rung | functions | since CANN |
//! |---|---|---|
//! | [`LaunchRung::ArgsArray`] | `aclrtLaunchKernelWithArgsArray` | 9.1 |
//! | [`LaunchRung::HostArgs`] | `aclrtLaunchKernelWithHostArgs` | 9.0 |
//! | [`LaunchRung::ArgsList`] | `aclrtKernelArgs…`, `aclrtLaunchKernelWithConfig` | 8.1 |
//! | [`LaunchRung::DeviceArgs`] | `aclrtLaunchKernel`, arguments in device memory | 8.0 |
//! | [`LaunchRung::Runtime`] | `rtKernelLaunch` of libruntime | before |
//!
//! Launches are also captured and replayed by `aclmdlRI…` where it exists (8.1; on 310P 9.0).
//!
//! This module and its siblings that call through the table hold all `unsafe` of the host side.
#![allow(unsafe_code)]

pub mod symbols;
pub mod types;

use super::error::{Error, Result};
use libloading::Library;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use symbols::*;

/// A way to launch a kernel, newest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum LaunchRung {
    /// An array of pointers to arguments.
    ArgsArray,
    /// A block of arguments in host memory.
    HostArgs,
    /// A list of arguments that the runtime keeps.
    ArgsList,
    /// A block of arguments in device memory.
    DeviceArgs,
    /// libruntime, below ACL.
    Runtime,
}

/// A way to load a binary, in the order in which they are tried on A2 and A3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum LoadRung {
    /// From memory, with the kind of core stated.
    FromData,
    /// From a file; the only documented way to what 310P launches with an argument list.
    FromFile,
    /// Described, then loaded.
    Described,
    /// libruntime, below ACL.
    Runtime,
}

impl LaunchRung {
    /// All of them, newest first.
    pub const ALL: [LaunchRung; 5] = [
        LaunchRung::ArgsArray,
        LaunchRung::HostArgs,
        LaunchRung::ArgsList,
        LaunchRung::DeviceArgs,
        LaunchRung::Runtime,
    ];

    /// The function that launches.
    pub const fn function(self) -> &'static str {
        match self {
            LaunchRung::ArgsArray => "aclrtLaunchKernelWithArgsArray",
            LaunchRung::HostArgs => "aclrtLaunchKernelWithHostArgs",
            LaunchRung::ArgsList => "aclrtLaunchKernelWithConfig",
            LaunchRung::DeviceArgs => "aclrtLaunchKernel",
            LaunchRung::Runtime => "rtKernelLaunch",
        }
    }
}

impl LoadRung {
    /// The function that loads.
    pub const fn function(self) -> &'static str {
        match self {
            LoadRung::FromData => "aclrtBinaryLoadFromData",
            LoadRung::FromFile => "aclrtBinaryLoadFromFile",
            LoadRung::Described => "aclrtBinaryLoad",
            LoadRung::Runtime => "rtDevBinaryRegister",
        }
    }
}

/// Functions of the libraries of one installation.
#[derive(Debug)]
pub struct Acl {
    /// The library of `acl…` functions.
    pub path: PathBuf,
    /// Functions that every use needs.
    pub base: Base,
    /// Texts of failures.
    pub messages: Option<Messages>,
    /// Versions of packages.
    pub versions: Option<Versions>,
    /// Exceptions of kernels.
    pub exceptions: Option<Exceptions>,
    /// Numbers of streams and tasks.
    pub tasks: Option<Tasks>,
    /// A limit to the time of a kernel.
    pub time_limit: Option<TimeLimit>,
    /// Release of streams that hang.
    pub force: Option<Force>,
    /// Numbers of cores.
    pub device_info: Option<DeviceInfo>,
    /// Synchronisation address by ACL.
    pub sync_address: Option<SyncAddress>,
    /// Recordings of work.
    pub capture: Option<Capture>,
    /// Results that do not depend on the order of cores.
    pub determinism: Option<Determinism>,
    /// Kernels of binaries.
    pub binaries: Option<Binaries>,
    /// Load from memory.
    pub from_data: Option<FromData>,
    /// Load from a file.
    pub from_file: Option<FromFile>,
    /// Load of a described binary.
    pub described: Option<Described>,
    /// Launch with an array of pointers.
    pub args_array: Option<ArgsArray>,
    /// Launch with a block in host memory.
    pub host_args: Option<HostArgs>,
    /// Launch with a list.
    pub args_list: Option<ArgsList>,
    /// Launch with a block in device memory.
    pub device_args: Option<DeviceArgs>,
    /// Load and launch by libruntime.
    pub runtime: Option<RuntimeCalls>,
    /// Synchronisation address by libruntime.
    pub runtime_sync_address: Option<RuntimeSyncAddress>,
}

impl Acl {
    /// Opens `libascendcl.so`, and `libruntime.so` if there is one, and looks up every function.
    ///
    /// # Errors
    /// [`Error::Library`] if the first cannot be opened, [`Error::Symbol`] if it lacks what everything needs.
    pub fn open(acl: &Path, runtime: Option<&Path>) -> Result<Acl> {
        let library = open(acl)?;
        let base = Base::find(library).map_err(|name| Error::symbol(acl, name))?;
        let below = runtime.and_then(|path| open(path).ok());
        Ok(Acl {
            path: acl.to_owned(),
            base,
            messages: Messages::find(library).ok(),
            versions: Versions::find(library).ok(),
            exceptions: Exceptions::find(library).ok(),
            tasks: Tasks::find(library).ok(),
            time_limit: TimeLimit::find(library).ok(),
            force: Force::find(library).ok(),
            device_info: DeviceInfo::find(library).ok(),
            sync_address: SyncAddress::find(library).ok(),
            capture: Capture::find(library).ok(),
            determinism: Determinism::find(library).ok(),
            binaries: Binaries::find(library).ok(),
            from_data: FromData::find(library).ok(),
            from_file: FromFile::find(library).ok(),
            described: Described::find(library).ok(),
            args_array: ArgsArray::find(library).ok(),
            host_args: HostArgs::find(library).ok(),
            args_list: ArgsList::find(library).ok(),
            device_args: DeviceArgs::find(library).ok(),
            runtime: below.and_then(|l| RuntimeCalls::find(l).ok()),
            runtime_sync_address: below.and_then(|l| RuntimeSyncAddress::find(l).ok()),
        })
    }

    /// Available ways to load a binary, in the order of [`LoadRung`].
    pub fn load_rungs(&self) -> Vec<LoadRung> {
        let acl = self.binaries.is_some();
        [
            (LoadRung::FromData, acl && self.from_data.is_some()),
            (LoadRung::FromFile, acl && self.from_file.is_some()),
            (LoadRung::Described, acl && self.described.is_some()),
            (LoadRung::Runtime, self.runtime.is_some()),
        ]
        .into_iter()
        .filter_map(|(rung, there)| there.then_some(rung))
        .collect()
    }

    /// Available ways to launch a kernel, newest first.
    pub fn launch_rungs(&self) -> Vec<LaunchRung> {
        let loads = self.load_rungs().iter().any(|&r| r != LoadRung::Runtime);
        let there = |rung: LaunchRung| match rung {
            LaunchRung::ArgsArray => loads && self.args_array.is_some(),
            LaunchRung::HostArgs => loads && self.host_args.is_some(),
            LaunchRung::ArgsList => loads && self.args_list.is_some(),
            LaunchRung::DeviceArgs => loads && self.device_args.is_some(),
            LaunchRung::Runtime => self.runtime.is_some(),
        };
        LaunchRung::ALL.into_iter().filter(|&r| there(r)).collect()
    }

    /// The vendor's text for the last failure of this thread; empty where there is none.
    pub(super) fn recent_message(&self) -> String {
        let Some(messages) = self.messages else { return String::new() };
        // SAFETY: takes nothing; gives null or a string that ends with 0 and is good until the next such call
        // of this thread, and the text is copied at once.
        let text = unsafe {
            let text = (messages.aclGetRecentErrMsg)();
            if text.is_null() {
                return String::new();
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        };
        text.trim().to_string()
    }
}

/// Functions of `libacl_rtc.so`.
///
/// # Errors
/// [`Error::Library`] or [`Error::Symbol`].
pub(super) fn open_compiler(path: &Path) -> Result<Compilation> {
    Compilation::find(open(path)?).map_err(|name| Error::symbol(path, name))
}

/// Opens a library for the rest of the process: threads that it starts may outlive the last call into it.
pub(super) fn open(path: &Path) -> Result<&'static Library> {
    // SAFETY: runs the initialisers of the vendor's library, as linking with it would.
    match unsafe { Library::new(path) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(cause) => Err(Error::Library { path: path.to_owned(), cause: cause.to_string() }),
    }
}
