//! The vendor's libraries and GPUs of this machine, for reports.

use super::context::{Context, Settings, count};
use super::library::{CUBLAS_LT, DRIVER, Installation, NVRTC};
use super::table::{CublasLt, Driver, Nvrtc};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A library, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its newest name.
    pub name: &'static str,
    /// The file, if it is found.
    pub path: Option<PathBuf>,
    /// Its version, or what is wrong with it.
    pub state: String,
    /// The consequence of its absence.
    pub without: &'static str,
    /// True if it can be used.
    pub usable: bool,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// As `--device` names it.
    pub name: String,
    /// Name and architecture.
    pub chip: String,
    /// Free and total bytes.
    pub memory: (usize, usize),
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Libraries: the driver, NVRTC, cuBLASLt.
    pub libraries: Vec<Library>,
    /// GPUs that the driver knows.
    pub gpus: Vec<Gpu>,
}

impl Survey {
    /// Looks at an installation. Opens the libraries that it finds, and compiles and runs nothing.
    pub fn of(installation: &Installation) -> Survey {
        let mut survey = Survey::default();
        let mut path = installation.library(DRIVER);
        let mut opened = path.as_ref().map(|path| Driver::open(path, DRIVER[0], ""));
        // In none of the folders: the driver is where the system's own search finds it, as devices do.
        if opened.is_none()
            && let Ok(driver) = Driver::open(Path::new(DRIVER[0]), DRIVER[0], "")
        {
            (path, opened) = (Some(DRIVER[0].into()), Some(Ok(driver)));
        }
        let mut state = opened.as_ref().map_or("not found".to_string(), |d| match d {
            Ok(_) => "found".into(),
            Err(e) => e.to_string(),
        });
        let mut usable = false;
        if let Some(Ok(driver)) = opened {
            let driver = Arc::new(driver);
            let mut version = 0;
            // SAFETY: writes one number.
            let known = unsafe { (driver.driver_version)(&mut version) } == 0;
            match count(&driver) {
                Ok(gpus) => {
                    usable = true;
                    state = format!("for CUDA {}.{}", version / 1000, version % 1000 / 10);
                    survey.gpus = (0..gpus).filter_map(|n| gpu(&driver, n)).collect();
                }
                Err(error) if known => {
                    let first = error.to_string().lines().next().unwrap_or_default().to_string();
                    state = format!("for CUDA {}.{}; {first}", version / 1000, version % 1000 / 10);
                }
                Err(error) => state = error.to_string(),
            }
        }
        let without = "there is no GPU to use";
        survey.libraries.push(Library { name: DRIVER[0], path, state, without, usable });
        let nvrtc = |path: &PathBuf| {
            let table = Nvrtc::open(path, NVRTC[0], "")?;
            let (mut major, mut minor) = (0, 0);
            // SAFETY: writes two numbers.
            unsafe { (table.version)(&mut major, &mut minor) };
            Ok(format!("{major}.{minor}"))
        };
        survey.add(installation, NVRTC, "steps run on the host, slowly", nvrtc);
        let products = |path: &PathBuf| CublasLt::open(path, CUBLAS_LT[0], "").map(|_| "found".to_string());
        survey.add(installation, CUBLAS_LT, "matrix products run on the host, slowly", products);
        survey
    }

    fn add(
        &mut self,
        installation: &Installation,
        names: &[&'static str],
        without: &'static str,
        open: impl FnOnce(&PathBuf) -> super::Result<String>,
    ) {
        let path = installation.library(names);
        let opened = path.as_ref().map(open);
        let usable = matches!(opened, Some(Ok(_)));
        let state = opened.map_or("not found".into(), |o| o.unwrap_or_else(|e| e.to_string()));
        self.libraries.push(Library { name: names[0], path, state, without, usable });
    }

    /// True if nothing of the vendor's is here.
    pub fn is_empty(&self) -> bool {
        self.libraries.iter().all(|l| l.path.is_none())
    }
}

fn gpu(driver: &Arc<Driver>, number: i32) -> Option<Gpu> {
    let context = Context::open(driver, number, Settings::default()).ok()?;
    let chip = format!("{} (sm_{})", context.device_name().ok()?, context.capability().ok()?);
    Some(Gpu { name: format!("cuda:{number}"), chip, memory: context.memory().ok()? })
}
