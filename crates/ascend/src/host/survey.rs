//! Ascend's parts on this machine, and those that are missing, with their purpose: for `headwater doctor`.

use super::acl::LaunchRung;
use super::compile::{Compiler, CompilerOptions};
use super::device::Device;
use super::error::Error;
use super::graph::Graph;
use super::installation::{Installation, operators_of};
use super::operator;
use super::runtime::{Runtime, RuntimeSettings};
use crate::chip::Arch;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Purpose of parts that kernels for both kinds of cores of A2 need.
const TOGETHER: &str = "kernels on cube and vector cores together: attention in one launch";

/// Everything that was found.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Survey {
    /// Version of the driver.
    pub driver: Option<String>,
    /// Version of the firmware.
    pub firmware: Option<String>,
    /// Version of the toolkit, by its files.
    pub toolkit: Option<String>,
    /// CANN's folder.
    pub home: Option<PathBuf>,
    /// `libascendcl.so`.
    pub library: Option<PathBuf>,
    /// Version of the runtime, where the library states it.
    pub runtime: Option<String>,
    /// Functions that launch kernels, newest first; the first is used.
    pub launches: Vec<&'static str>,
    /// Chips that have the vendor's operators.
    pub operators: Vec<String>,
    /// Operators of the vendor's (aclnn) that could be used instead of our own kernels of products, attention
    /// and convolutions.
    pub vendor: Vec<&'static str>,
    /// Version of that package.
    pub operators_version: Option<String>,
    /// The compiler for A2 and A3.
    pub compiler_a2: Option<String>,
    /// The compiler for 310P.
    pub compiler_310p: Option<String>,
    /// Devices.
    pub devices: Vec<Found>,
    /// Parts that are missing.
    pub missing: Vec<Missing>,
}

/// A device that was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Found {
    /// Name on the command line.
    pub name: String,
    /// Name of the chip.
    pub chip: String,
    /// Free bytes.
    pub free: usize,
    /// Bytes in all.
    pub total: usize,
    /// Vector cores and cube (or AI) cores, where the runtime counts them.
    pub cores: Option<(u32, u32)>,
    /// Why launches that come again are not recorded and replayed, where they are not.
    pub unrecorded: Option<String>,
}

/// Something that is missing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Missing {
    /// The part.
    pub what: String,
    /// Its purpose.
    pub needed_for: String,
    /// A remedy.
    pub advice: String,
}

impl Survey {
    /// Looks at an installation. Opens the runtime and every device for a moment.
    pub fn of(installation: &Installation, settings: RuntimeSettings, options: CompilerOptions) -> Survey {
        let mut survey = Survey {
            driver: installation.driver_version(),
            firmware: installation.firmware_version(),
            toolkit: installation.toolkit_version(),
            home: installation.home.clone(),
            library: installation.library("libascendcl.so"),
            operators: installation.operator_chips(),
            operators_version: installation.operators_version(),
            ..Survey::default()
        };
        let compiler = |arch| Compiler::find(installation, arch, options.clone());
        survey.compiler_a2 = compiler(Arch::A2).ok().map(|c| c.name());
        survey.compiler_310p = compiler(Arch::P310).ok().map(|c| c.name());
        if !survey.is_empty() {
            let archs = survey.run(installation, settings);
            survey.list_missing(installation, &archs);
        }
        survey
    }

    /// True if there is nothing of Ascend at all.
    pub fn is_empty(&self) -> bool {
        self.home.is_none() && self.driver.is_none() && self.library.is_none()
    }

    fn lack(&mut self, what: impl Into<String>, needed_for: &str, advice: &str) {
        let (what, needed_for, advice) = (what.into(), needed_for.into(), advice.into());
        self.missing.push(Missing { what, needed_for, advice });
    }

    /// Opens what can be opened; gives the generations of the devices.
    fn run(&mut self, installation: &Installation, settings: RuntimeSettings) -> Vec<Arch> {
        const RUNNING: &str = "running on a device";
        let Some(library) = &self.library else {
            self.lack("libascendcl.so", RUNNING, "install CANN and source its set_env.sh");
            return Vec::new();
        };
        let below = installation.library("libruntime.so");
        let runtime = match Runtime::open(library, below.as_deref(), settings) {
            Ok(runtime) => runtime,
            Err(error) => {
                self.lack(error.to_string(), RUNNING, "see the message");
                return Vec::new();
            }
        };
        self.runtime = runtime.version("runtime");
        self.launches = runtime.launch_rungs().into_iter().map(LaunchRung::function).collect();
        let count = match runtime.device_count() {
            Ok(0) => {
                let advice =
                    "check `npu-smi info`, and that /dev/davinci* can be read by this user or container";
                self.lack("a device", RUNNING, advice);
                0
            }
            Ok(count) => count,
            Err(error) => {
                self.lack(error.to_string(), RUNNING, "check driver and firmware with `npu-smi info`");
                0
            }
        };
        let mut archs = Vec::new();
        for ordinal in 0..count {
            if let Err(error) = self.device(&runtime, ordinal, &mut archs) {
                self.lack(error.to_string(), &format!("running on ascend:{ordinal}"), "see the message");
            }
        }
        archs
    }

    fn device(
        &mut self,
        runtime: &Arc<Runtime>,
        ordinal: u32,
        archs: &mut Vec<Arch>,
    ) -> super::error::Result<()> {
        let device = Device::open(runtime, ordinal)?;
        let memory = device.memory()?;
        if device.unrecorded().is_none()
            && let Err(error) = Graph::probe(&device)
        {
            device.stop_recording(&error);
        }
        self.devices.push(Found {
            name: device.name(),
            chip: device.soc().to_string(),
            free: memory.free,
            total: memory.total,
            cores: device.cores(),
            unrecorded: device.unrecorded(),
        });
        if !archs.contains(&device.arch()) {
            archs.push(device.arch());
            if device.arch() == Arch::A2 && device.sync_address()?.is_none() {
                let advice = "CANN 9.0 gives it, or libruntime.so of an older one";
                self.lack("the synchronisation address", TOGETHER, advice);
            }
        }
        Ok(())
    }

    fn list_missing(&mut self, installation: &Installation, archs: &[Arch]) {
        if self.driver.is_none() {
            let advice = "install the driver and firmware, or mount the driver's folder into the container";
            self.lack("the driver's version.info", "checking that driver and CANN fit each other", advice);
        }
        let kernels = "install the CANN toolkit (compiler and headers) of the same version as the runtime";
        for &arch in archs {
            let (chip, compiler) = match arch {
                Arch::A2 => ("A2 and A3", self.compiler_a2.clone()),
                Arch::P310 => ("310P", self.compiler_310p.clone()),
            };
            match compiler {
                None => self.lack(format!("a compiler for {chip}"), "compiling kernels", kernels),
                Some(name) if arch == Arch::A2 && name.ends_with("ccec") => self.lack(
                    "a compiler for cube and vector cores together",
                    TOGETHER,
                    "CANN 8.3 or later has one",
                ),
                Some(_) => {}
            }
            if !operators_of(arch).iter().any(|chip| self.operators.iter().any(|o| o == chip)) {
                self.lack(
                    format!("the operator package for {chip}"),
                    "the vendor's operators; Headwater's own kernels do not need it",
                    "install Ascend-cann-kernels (or -ops) for this very chip",
                );
            }
        }
        if let (Some(a), Some(b)) = (&self.toolkit, &self.operators_version)
            && a != b
        {
            let what = format!("one version: the toolkit is {a}, the operator package {b}");
            self.lack(what, "the vendor's operators", "install both of one version");
        }
        const VENDOR: &str = "the vendor's operators (--ascend-ops vendor)";
        match operator::offered(installation) {
            Ok(operators) => {
                for (name, missing) in operators {
                    match missing {
                        None => self.vendor.push(name),
                        Some(_) => self.lack(name, VENDOR, "install CANN 8.0 or later, with its operators"),
                    }
                }
            }
            Err(Error::Symbol { symbol, .. }) => {
                self.lack(format!("{symbol} in libopapi.so"), VENDOR, "install CANN 8.0 or later");
            }
            Err(_) => self.lack("libopapi.so", VENDOR, "install the whole CANN toolkit"),
        }
        if installation.library("libhccl.so").is_none() {
            self.lack("libhccl.so", "training on several devices", "install the whole CANN toolkit");
        }
    }
}
