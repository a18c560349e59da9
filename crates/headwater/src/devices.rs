//! The registry of devices, by name. Everything else knows a device by its trait; only the benchmarks of the
//! CPU's own kernels open the CPU directly.

use crate::core::device::Device;
use crate::core::ranks::Transport;
use crate::cpu::Cpu;
use crate::words::meant;
use anyhow::{Context, Result, anyhow, bail, ensure};
use headwater_ascend::Chip;
use headwater_ascend::device::{Ascend, AscendOps, AscendSim};
use headwater_cuda::{Cuda, Offline};
use headwater_reference::Reference;
use std::sync::Arc;

/// Options of devices, beside their qualifiers.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Threads of the host, for devices that use them.
    pub threads: usize,
    /// Kernels of products, attention and convolutions on an NPU.
    pub ascend_ops: AscendOps,
}

impl From<usize> for DeviceOptions {
    fn from(threads: usize) -> DeviceOptions {
        DeviceOptions { threads, ascend_ops: AscendOps::Own }
    }
}

/// A kind of device.
pub struct DeviceKind {
    /// Name, e.g. `cpu`.
    pub name: &'static str,
    /// Qualifiers that may follow the name and a colon; empty if none may.
    pub qualifier: &'static str,
    /// A description in a line.
    pub about: &'static str,
    /// Opens one: with the qualifier, empty if there is none, and options.
    open: fn(&str, DeviceOptions) -> Result<Arc<dyn Device>>,
}

/// Every kind that is built in.
pub static DEVICES: &[DeviceKind] = &[
    DeviceKind {
        name: "cpu",
        qualifier: "",
        about: "this machine's processor",
        open: |_, options| Ok(Arc::new(cpu(options.threads)?)),
    },
    DeviceKind {
        name: "reference",
        qualifier: "wide",
        about: "plans by the interpreter: slow, asynchronous, finds what breaks the device contract; computes in f64 and \
                i64 only as `reference:wide`",
        open: |qualifier, _| match qualifier {
            "" => Ok(Arc::new(Reference::new(0))),
            "wide" => Ok(Arc::new(Reference::wide(0))),
            other => Err(anyhow!("`reference` has no form `{other}`: use `reference` or `reference:wide`")),
        },
    },
    DeviceKind {
        name: "cuda",
        qualifier: "N|sm_XY",
        about: "an NVIDIA GPU of this machine, by its number from 0; needs the driver, NVRTC and cuBLASLt of CUDA 12.4 or \
                later. Not yet measured on hardware. A kind of GPU, such as `cuda:sm_90`, is for `inspect` and `compile` alone",
        open: |qualifier, _| {
            if qualifier.starts_with("sm_") {
                return Ok(Arc::new(Offline::new(qualifier)?));
            }
            let number = if qualifier.is_empty() { "0" } else { qualifier };
            let number =
                number.parse().with_context(|| format!("`cuda:{number}` is no number of a device"))?;
            Ok(Arc::new(Cuda::open(number)?))
        },
    },
    DeviceKind {
        name: "ascend",
        qualifier: "N",
        about: "an NPU of this machine, by its number from 0 (Atlas A2, A3, 300I/V Pro); needs CANN 8.0 or later",
        open: |qualifier, options| {
            let number = if qualifier.is_empty() { "0" } else { qualifier };
            let number =
                number.parse().with_context(|| format!("`ascend:{number}` is no number of a device"))?;
            Ok(Arc::new(Ascend::open(number, options.ascend_ops)?))
        },
    },
    DeviceKind {
        name: "ascend-sim",
        qualifier: "CHIP[,checked]",
        about: "an NPU simulated: runs the same kernels as `ascend`; 910b1 to 910b4, 910_9391 or 310p; `checked` \
                reports what hardware would punish, slowly",
        open: |qualifier, options| {
            let chip = qualifier.split(',').next().unwrap_or(qualifier);
            let all = headwater_ascend::chip::CHIPS.iter().map(|c| c.name);
            ensure!(
                Chip::from_name(chip).is_some(),
                "there is no chip `{chip}` to simulate: {}",
                meant(chip, all)
            );
            Ok(Arc::new(AscendSim::from_name(qualifier, options.threads)?))
        },
    },
];

/// Bytes of memory of the chip that a device's name has, if it is one of a table.
pub fn chip_memory(device: &str) -> Option<usize> {
    let chip = device.split_once(':')?.1;
    Chip::from_name(chip.split(',').next()?).map(|chip| chip.memory as usize)
}

/// Opens the device that `NAME` or `NAME:QUALIFIER` names, with options, or a number of threads.
///
/// # Errors
/// If there is none of that name, or it has no such qualifier or option.
pub fn open(device: &str, options: impl Into<DeviceOptions>) -> Result<Arc<dyn Device>> {
    let options = options.into();
    let (name, qualifier) = device.split_once(':').unwrap_or((device, ""));
    let Some(kind) = DEVICES.iter().find(|d| d.name == name) else {
        let near = match name {
            "npu" => "; an NPU is `ascend`, or `ascend:N`",
            "gpu" | "nvidia" => "; an NVIDIA GPU is `cuda`, or `cuda:N`",
            _ => "",
        };
        let known = DEVICES.iter().map(|d| d.name);
        bail!("there is no device `{name}`: {}{near}", meant(name, known));
    };
    let none = kind.qualifier.is_empty() && device.contains(':');
    ensure!(!none, "the device `{name}` takes no qualifier: use --device {name}");
    if options.ascend_ops == AscendOps::Vendor {
        let simulated = "the simulator runs Headwater's own kernels, and none of the vendor's";
        let why = if name == "ascend-sim" { simulated } else { "it is no NPU" };
        ensure!(name == "ascend", "--ascend-ops vendor is for --device ascend:N, not for `{device}`: {why}");
    }
    (kind.open)(qualifier, options)
}

/// Opens a device as a rank among others.
///
/// # Errors
/// As [`open`]; for devices whose plans have no collectives yet.
pub fn open_rank(
    device: &str,
    options: DeviceOptions,
    transport: Arc<dyn Transport>,
) -> Result<Arc<dyn Device>> {
    ensure!(
        device == "cpu",
        "{} ranks were started, and the device `{device}` does not train together with others yet: use --device cpu, or start \
         one process",
        transport.ranks()
    );
    Ok(Arc::new(cpu(options.threads)?.with_transport(transport)))
}

/// The chip that a device name such as `ascend-sim:910b1` simulates.
pub fn simulated(device: &str) -> Option<&'static Chip> {
    let chip = device.strip_prefix("ascend-sim:")?;
    Chip::from_name(chip.split_once(',').map_or(chip, |(chip, _)| chip))
}

/// The CPU.
///
/// # Errors
/// If the system does not start so many threads.
pub fn cpu(threads: usize) -> Result<Cpu> {
    Ok(Cpu::start(threads)?)
}

/// The device that proofs in f64 run on: the one given if it is the CPU, else the CPU with all threads. A
/// device is judged in its own dtypes, and what judges it does not depend on it.
pub fn prover(device: &dyn Device) -> Option<Cpu> {
    (device.name() != "cpu").then(Cpu::default)
}

/// A precision in words, with the place where it is computed if that is not the device: f64 is, by
/// [`prover`].
pub fn proved(precision: &str, device: &dyn Device) -> String {
    match precision == "f64" && device.name() != "cpu" {
        true => format!("{precision} (on the host's CPU)"),
        false => precision.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_open_by_name_and_qualifier() {
        let simulated = ["ascend-sim:910b1", "ascend-sim:310p,checked"];
        for name in ["cpu", "reference", "reference:wide"].into_iter().chain(simulated) {
            assert_eq!(open(name, 1).unwrap().name(), name);
        }
        let refused = |name: &str| open(name, 1).err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(
            refused("tpu"),
            "there is no device `tpu`: it is cpu, reference, cuda, ascend or ascend-sim; did you mean cpu?"
        );
        assert!(refused("cpu:0").contains("takes no qualifier"));
        assert!(refused("reference:narrow").contains("no form `narrow`"));
        assert!(refused("ascend:x").contains("no number") && refused("cuda:x").contains("no number"));
        assert_eq!(open("cuda:sm_90", 1).unwrap().name(), "cuda:sm_90");
        assert!(
            refused("cuda:sm_70").contains("from sm_80 on")
                && refused("cuda:sm_x").contains("no kind of GPU")
        );
        assert!(refused("ascend-sim:tpu").contains("it is 910b1, 910b2"));
        assert!(refused("ascend-sim:310p,quick").contains("use `ascend-sim:310p`"));
        let vendor = DeviceOptions { threads: 1, ascend_ops: AscendOps::Vendor };
        for (name, why) in [("ascend-sim:910b1", "none of the vendor's"), ("cpu", "no NPU")] {
            let error = open(name, vendor).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(
                error.contains("--ascend-ops vendor is for --device ascend:N") && error.contains(why),
                "{error}"
            );
        }
    }

    #[test]
    fn what_judges_a_device_is_the_cpu() {
        assert!(prover(&*open("cpu", 1).unwrap()).is_none());
        assert_eq!(proved("f64", &*open("cpu", 1).unwrap()), "f64");
        let simulated = open("ascend-sim:310p", 1).unwrap();
        assert_eq!(proved("f64", &*simulated), "f64 (on the host's CPU)");
        assert_eq!(proved("f32", &*simulated), "f32");
        assert_eq!(prover(&*open("reference", 1).unwrap()).unwrap().name(), "cpu");
    }
}
