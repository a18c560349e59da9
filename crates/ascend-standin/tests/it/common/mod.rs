//! A machine of the stand-in's, with what tests do to it.
#![allow(dead_code, unsafe_code)]

use headwater_ascend::host::acl::types::magic;
use headwater_ascend::host::codes::Status;
use headwater_ascend::host::{
    Argument, CoreKind, Device, DeviceMemory, Kernel, KernelBinary, Launch, Module, Result, Runtime,
    RuntimeSettings, Site,
};
use headwater_ascend_standin::binary::{KernelText, StandinBinary};
use headwater_ascend_standin::config::Config;
use headwater_ascend_standin::exports::control::LiveHandles;
use headwater_ascend_standin::install::{Cann, StandinInstallation};
use headwater_core::graph::Origin;
use libloading::Library;
use std::ffi::{CString, c_char};
use std::sync::Arc;
use std::time::Duration;

pub struct Machine {
    pub installation: StandinInstallation,
    control: Library,
}

impl Machine {
    pub fn new(cann: Cann, config: &Config) -> Machine {
        Machine::without(cann, config, &[])
    }

    pub fn without(cann: Cann, config: &Config, hidden: &[&str]) -> Machine {
        Machine::of(StandinInstallation::without(cann, config, None, hidden).unwrap())
    }

    /// With the executables of a toolkit.
    pub fn with_compiler(cann: Cann, config: &Config, compiler: &std::path::Path) -> Machine {
        Machine::of(StandinInstallation::new(cann, config, Some(compiler)).unwrap())
    }

    fn of(installation: StandinInstallation) -> Machine {
        // SAFETY: the stand-in's own library; it has no initialisers.
        let control = unsafe { Library::new(installation.acl()) }.unwrap();
        Machine { installation, control }
    }

    pub fn a2(cann: Cann) -> Machine {
        Machine::new(cann, &Config::default())
    }

    pub fn p310(cann: Cann) -> Machine {
        Machine::new(cann, &Config { soc: "Ascend310P3".into(), ..Config::default() })
    }

    pub fn open(&self, settings: RuntimeSettings) -> Result<Arc<Runtime>> {
        Runtime::open(&self.installation.acl(), Some(&self.installation.runtime()), settings)
    }

    pub fn device(&self, settings: RuntimeSettings) -> Arc<Device> {
        Device::open(&self.open(settings).unwrap(), 0).unwrap()
    }

    /// The `nth` further call of a function fails.
    pub fn inject(&self, call: &str, nth: u64, status: Status) {
        let call = CString::new(call).unwrap();
        // SAFETY: the type of the exported function.
        unsafe {
            let f = self.control.get::<extern "C" fn(*const c_char, u64, Status)>(b"standin_inject\0");
            f.unwrap()(call.as_ptr(), nth, status);
        }
    }

    /// Forgets failures that have not come.
    pub fn forget(&self) {
        // SAFETY: the type of the exported function.
        unsafe { self.control.get::<extern "C" fn()>(b"standin_forget\0").unwrap()() };
    }

    pub fn calls(&self, call: &str) -> u64 {
        let call = CString::new(call).unwrap();
        // SAFETY: the type of the exported function.
        unsafe {
            let f = self.control.get::<extern "C" fn(*const c_char) -> u64>(b"standin_calls\0");
            f.unwrap()(call.as_ptr())
        }
    }

    /// Lets the work of an operator never end.
    pub fn stall(&self, call: &str) {
        let call = CString::new(call).unwrap();
        // SAFETY: the type of the exported function.
        unsafe {
            let f = self.control.get::<extern "C" fn(*const c_char)>(b"standin_stall\0");
            f.unwrap()(call.as_ptr());
        }
    }

    pub fn lose(&self, device: u32, status: Status) {
        // SAFETY: the type of the exported function.
        unsafe {
            let f = self.control.get::<extern "C" fn(u32, Status)>(b"standin_lose\0");
            f.unwrap()(device, status);
        }
    }

    /// Handles that the stand-in holds for the host side.
    pub fn live(&self) -> LiveHandles {
        let mut live = LiveHandles::default();
        // SAFETY: the type of the exported function.
        unsafe {
            let f = self.control.get::<extern "C" fn(*mut LiveHandles)>(b"standin_live\0");
            f.unwrap()(&mut live);
        }
        live
    }
}

/// Settings of tests: nothing waits for long.
pub fn settings() -> RuntimeSettings {
    RuntimeSettings { limit: Duration::from_secs(20), ..RuntimeSettings::default() }
}

/// The kernels of the tests.
pub const KERNELS: &[(&str, &str)] = &[
    ("probe", "standin 1\nparameters 8 8 4 4 8\nprobe\n"),
    ("add_f32", "standin 1\nparameters 8 8 8 8\nadd_f32\n"),
    ("sleep_20", "standin 1\nparameters\nsleep 20\n"),
    ("spin", "standin 1\nparameters\nspin\n"),
    ("fault", "standin 1\nparameters\nfault 507035\n"),
];

/// A binary with them, for the chip of a device.
pub fn binary(arch: u32) -> KernelBinary {
    let kernels = KERNELS
        .iter()
        .map(|(name, program)| KernelText { name: name.to_string(), program: program.to_string() });
    let magic = if arch == 2002 { magic::AICORE } else { magic::VECTOR };
    let bytes = StandinBinary { arch, magic, linked: true, kernels: kernels.collect() }.to_bytes();
    let core = if arch == 2002 { CoreKind::Mixed } else { CoreKind::Vector };
    KernelBinary { name: "test_unit".into(), path: None, bytes: bytes.into(), core }
}

/// The same, with a file.
pub fn binary_in(machine: &Machine, arch: u32) -> KernelBinary {
    let path = machine.installation.root().join("test_unit.o");
    let binary = binary(arch);
    std::fs::write(&path, &binary.bytes).unwrap();
    KernelBinary { path: Some(path), ..binary }
}

pub fn module(machine: &Machine, device: &Arc<Device>) -> Arc<Module> {
    let arch = if device.soc().contains("310P") { 2002 } else { 2201 };
    Module::load(device, binary_in(machine, arch)).unwrap()
}

/// A place in a model.
pub fn site(kernel: &str, line: u32) -> Arc<Site> {
    let origin = Origin {
        node: format!("{kernel}_node"),
        module: "encoder.layer.0".into(),
        class: "Block".into(),
        file: "model.py".into(),
        line,
        code: String::new(),
    };
    Arc::new(Site { kernel: kernel.into(), op: Some("rms_norm"), origin: Some(origin) })
}

pub fn launch(kernel: &Kernel, blocks: u32, arguments: &[Argument]) -> Result<Launch> {
    Launch::new(kernel, blocks, arguments, site(kernel.name(), 7))
}

/// Device memory with the bytes of floats.
pub fn floats(device: &Arc<Device>, values: &[f32]) -> DeviceMemory {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let memory = DeviceMemory::alloc(device, bytes.len()).unwrap();
    memory.write(0, &bytes).unwrap();
    memory
}

pub fn read_floats(memory: &DeviceMemory) -> Vec<f32> {
    let mut bytes = vec![0; memory.bytes()];
    memory.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}
