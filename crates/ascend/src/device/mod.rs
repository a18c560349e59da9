//! The Ascend device of the core's contract: plans on NPUs, over the host side.
//!
//! Steps without a kernel run through the reference interpreter on the host, on bytes that are fetched for them and
//! written back: correct and slow, and `inspect` says so.

mod executable;
mod stream;
mod target;

use crate::chip::Arch;
use crate::host::{self, DeviceMemory, Installation, Runtime, Settings};
use executable::Loaded;
use headwater_core::device::{Buffer, Content, Device, Executable, Foreign, Stream};
use headwater_core::diagnostic::Result;
use headwater_core::fail;
use headwater_core::plan::Plan;
use headwater_core::target::Target;
use std::any::Any;
use std::sync::Arc;
use stream::AscendStream;

/// An NPU of this machine.
#[derive(Debug)]
pub struct Ascend {
    device: Arc<host::Device>,
    name: String,
    target: Target,
    /// For memory that must hold zeros before anybody has a stream.
    setup: host::Stream,
}

impl Ascend {
    /// Device `ordinal` of the installation that the environment names.
    ///
    /// # Errors
    /// `Device` with what is missing or failed.
    pub fn open(ordinal: u32) -> Result<Ascend> {
        let installation = Installation::find();
        let library = installation.library("libascendcl.so").ok_or_else(|| {
            fail!(
                Device,
                "ascend:{ordinal}: libascendcl.so is not found; install CANN and source its set_env.sh \
                 (`headwater doctor` lists what is missing)"
            )
        })?;
        let below = installation.library("libruntime.so");
        let runtime = Runtime::open(&library, below.as_deref(), Settings::from_env()?)?;
        Ascend::on(host::Device::open(&runtime, ordinal)?)
    }

    /// A device that is open already.
    ///
    /// # Errors
    /// `Device` if it makes no stream.
    pub fn on(device: Arc<host::Device>) -> Result<Ascend> {
        let setup = host::Stream::new(&device)?;
        let target = target::target(&device.name(), device.arch(), device.memory()?.total);
        Ok(Ascend { name: device.name(), device, target, setup })
    }

    /// Generation of its chip.
    pub fn arch(&self) -> Arch {
        self.device.arch()
    }
}

/// Memory of the device as a buffer.
#[derive(Debug)]
struct AscendBuffer(DeviceMemory);

impl Buffer for AscendBuffer {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The device memory of a buffer.
fn memory_of<'a>(device: &Arc<host::Device>, buffer: &'a Arc<dyn Buffer>) -> Result<&'a DeviceMemory> {
    let own = buffer.as_any().downcast_ref::<AscendBuffer>().map(|b| &b.0);
    let own = own.filter(|memory| Arc::ptr_eq(memory.device(), device));
    own.ok_or_else(|| fail!(Device, "a buffer is not one of {}", device.name()))
}

impl Device for Ascend {
    fn name(&self) -> &str {
        &self.name
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: usize, content: Content) -> Result<Arc<dyn Buffer>> {
        let memory = DeviceMemory::alloc(&self.device, bytes)?;
        if content == Content::Zero {
            self.setup.fill(&memory, 0, bytes, 0)?;
            self.setup.synchronize(None)?;
        }
        Ok(Arc::new(AscendBuffer(memory)))
    }

    fn borrow(&self, _: Box<dyn Foreign>) -> Result<Arc<dyn Buffer>> {
        Err(fail!(Unsupported, "{} does not address host memory", self.name))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(AscendStream::new(&self.device)?))
    }

    fn load(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        Ok(Box::new(Loaded::new(&self.device, &self.target, plan)?))
    }
}
