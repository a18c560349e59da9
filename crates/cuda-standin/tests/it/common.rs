//! Devices over the stand-in.

use headwater_cuda::Cuda;
use headwater_cuda::host::Installation;
use headwater_cuda::host::context::Settings;
use headwater_cuda_standin::install::{Installed, missing};
use std::path::PathBuf;

/// Bytes of memory of a device.
const CAPACITY: usize = 4 << 30;

/// Folder in which binaries of earlier runs are kept: they are named by their text.
pub fn cache() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda-binaries")
}

/// True, with a line that says so, where the stand-in cannot run here.
pub fn skipped(test: &str) -> bool {
    if let Some(why) = missing() {
        eprintln!("{test} is skipped: {why}");
    }
    missing().is_some()
}

/// A machine with the libraries, checked, with an order of threads, blocks and streams.
pub fn machine(seed: u64) -> Installed {
    Installed::new(true, seed, CAPACITY).unwrap()
}

/// Its device.
pub fn device(machine: &Installed, settings: Settings) -> Cuda {
    Cuda::on(0, &Installation::of(vec![machine.path().to_owned()]), settings, Some(cache())).unwrap()
}
