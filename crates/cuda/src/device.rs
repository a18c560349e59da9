//! A GPU of this machine as a device of the contract.

use crate::host::compile::{Source, cache_folder};
use crate::host::context::{ALIGN, Settings};
use crate::host::graph::Graph;
use crate::host::library::DRIVER;
use crate::host::products::{Products, Ready};
use crate::host::table::Driver as DriverTable;
use crate::host::{self, Compiler, Context, DeviceMemory, Function, Installation, PinnedMemory};
use crate::lower;
use crate::program::{CudaProgram, Work};
use crate::target::target;
use headwater_core::device::{Buffer, Content, Device, Executable, Foreign, Predicted, StepUse, Stream};
use headwater_core::diagnostic::Result;
use headwater_core::fail;
use headwater_core::graph::Origin;
use headwater_core::plan::{Plan, Step};
use headwater_core::target::Target;
use headwater_launch::{
    BoundArgument, BoundLaunch, Driver, Host, HostBuffer, HostStream, LibraryStep, Loaded, Lowered, Program,
    Refusal, Site, Used, memory_of, survey,
};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A GPU of this machine.
#[derive(Debug)]
pub struct Cuda {
    gpu: Arc<Gpu>,
    target: Target,
    /// For memory that must have contents before anybody has a stream.
    setup: host::Stream,
}

/// Shared by the parts of the device.
#[derive(Debug)]
struct Gpu {
    context: Arc<Context>,
    name: String,
    chip: String,
    /// The compiler and the library of products, or why there is none.
    compiler: Result<Compiler, Refusal>,
    products: Result<Arc<Products>, Refusal>,
    untold: Mutex<Untold>,
}

/// Figures and events that [`Device::notes`] tells of.
#[derive(Debug, Default)]
struct Untold {
    fresh: usize,
    cached: usize,
    time: Duration,
    told: bool,
}

/// A kernel that is ready to be launched.
enum Kernel {
    Text { function: Function, threads: u32, shared: u32 },
    Product(Ready),
}

impl Cuda {
    /// Device `ordinal`, with the libraries that the environment names.
    ///
    /// # Errors
    /// `Device` with what is missing or failed.
    pub fn open(ordinal: i32) -> Result<Cuda> {
        Cuda::on(ordinal, &Installation::find(), Settings::from_env(), cache_folder())
    }

    /// Device `ordinal` with the libraries of an installation, and a folder for binaries. Without NVRTC every
    /// step runs on the host, without cuBLASLt products do.
    ///
    /// # Errors
    /// `Device` if there is no driver or no such device.
    pub fn on(
        ordinal: i32,
        installation: &Installation,
        settings: Settings,
        cache: Option<PathBuf>,
    ) -> Result<Cuda> {
        let without = "there is no GPU to use";
        let path = installation.library(DRIVER).unwrap_or_else(|| PathBuf::from(DRIVER[0]));
        let driver = Arc::new(DriverTable::open(&path, DRIVER[0], without)?);
        let context = Context::open(&driver, ordinal, settings)?;
        let arch = format!("sm_{}", context.capability()?);
        let refusal = |e: host::Error| Refusal(e.to_string().lines().next().unwrap_or_default().into());
        let compiler = Compiler::find(installation, &arch, cache).map_err(refusal);
        let products = Products::open(&context, installation).map_err(refusal);
        let name = format!("cuda:{ordinal}");
        let (_, bytes) = context.memory()?;
        let target = target(&name, bytes as u64, compiler.is_ok(), products.is_ok());
        let chip = format!("{} ({arch})", context.device_name()?);
        let setup = host::Stream::new(&context)?;
        let gpu = Gpu { context, name, chip, compiler, products, untold: Mutex::default() };
        Ok(Cuda { gpu: Arc::new(gpu), target, setup })
    }
}

impl Gpu {
    /// A launch's addresses, and the launch.
    fn give(&self, stream: &host::Stream, launch: &BoundLaunch<Self>) -> host::Result<()> {
        let mut pointers = Vec::with_capacity(launch.args.len());
        for arg in &launch.args {
            match arg {
                BoundArgument::Memory(memory, at) => pointers.push(memory.address() + *at as u64),
                _ => return Err(host::Error::Usage(format!("{} takes addresses alone", launch.site))),
            }
        }
        match launch.kernel {
            Kernel::Text { function, threads, shared } => {
                stream.launch(function, (launch.blocks, *threads, *shared), &mut pointers, launch.site)
            }
            Kernel::Product(ready) => ready.give(stream, &pointers, launch.site),
        }
    }
}

impl Driver for Gpu {
    const ALIGN: usize = ALIGN;

    type Program = CudaProgram;
    type Memory = DeviceMemory;
    type Stream = HostStream<Context>;
    type Kernel = Kernel;
    type Graph = Graph;
    /// Products are launches like others.
    type Operator = Infallible;
    type Workspace = ();

    fn name(&self) -> &str {
        &self.name
    }

    fn lower(&self, step: &Step, _: &Origin) -> Result<Lowered<CudaProgram>, Refusal> {
        self.compiler.as_ref().map_err(Refusal::clone)?;
        let lowered = lower::step(step)?;
        if lowered.launches.iter().any(|l| matches!(l.program.work, Work::Product(_))) {
            self.products.as_ref().map_err(Refusal::clone)?;
        }
        Ok(lowered)
    }

    fn library(&self, _: &Step, _: &Origin) -> Option<Result<LibraryStep<Infallible, CudaProgram>, Refusal>> {
        None
    }

    fn predict(&self, _: &Step, _: &Lowered<CudaProgram>) -> Option<Predicted> {
        None
    }

    fn memory<'a>(&self, buffer: &'a Arc<dyn Buffer>) -> Option<&'a DeviceMemory> {
        memory_of(&self.context, buffer)
    }

    fn stream<'a>(&self, stream: &'a dyn Stream) -> Option<&'a HostStream<Context>> {
        HostStream::of(&self.context, stream)
    }

    fn alloc(self: &Arc<Self>, bytes: usize) -> Result<DeviceMemory> {
        Ok(DeviceMemory::alloc(&self.context, bytes)?)
    }

    fn load(&self, programs: &[Arc<CudaProgram>]) -> Result<Vec<Kernel>> {
        let start = Instant::now();
        let text = |p: &Arc<CudaProgram>| match &p.work {
            Work::Text { .. } => Some(Source { name: p.name.clone(), text: p.source() }),
            Work::Product(_) => None,
        };
        let sources: Vec<Source> = programs.iter().filter_map(text).collect();
        let mut binaries = Vec::new().into_iter();
        if !sources.is_empty() {
            let compiler = self.compiler.as_ref().map_err(|Refusal(why)| fail!(Device, "{why}"))?;
            let compiled = compiler.compile(&sources)?;
            let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
            untold.fresh += compiled.fresh;
            untold.cached += sources.len() - compiled.fresh;
            untold.time += start.elapsed();
            binaries = compiled.binaries.into_iter();
        }
        let kernel = |program: &Arc<CudaProgram>| match &program.work {
            Work::Text { threads, shared, .. } => {
                let binary: Vec<u8> = binaries.next().unwrap_or_default();
                let function = Function::load(&self.context, &binary, program.name())?;
                Ok(Kernel::Text { function, threads: *threads, shared: *shared })
            }
            Work::Product(product) => {
                let products = self.products.as_ref().map_err(|Refusal(why)| fail!(Device, "{why}"))?;
                let site = Site::of_kernel(program.name());
                Ok(Kernel::Product(Ready::new(products, product, &site)?))
            }
        };
        programs.iter().map(kernel).collect()
    }

    fn launch(&self, stream: &HostStream<Context>, launch: &BoundLaunch<Self>) -> Result<()> {
        Ok(self.give(&stream.stream, launch)?)
    }

    fn records(&self) -> bool {
        !self.context.settings().blocking
    }

    fn record(&self, launches: &[BoundLaunch<Self>]) -> Result<Option<Graph>> {
        // From a stream of its own: one whose recording did not end goes away with it.
        let stream = host::Stream::new(&self.context)?;
        let work = || launches.iter().try_for_each(|launch| self.give(&stream, launch));
        Ok(Some(Graph::record(&stream, work)?))
    }

    fn replay(&self, stream: &HostStream<Context>, graph: &Graph) -> Result<bool> {
        graph.replay(&stream.stream)?;
        Ok(true)
    }

    fn needs(&self, operator: &Infallible) -> usize {
        match *operator {}
    }

    fn workspace(&self, _: &[&Infallible]) -> Result<()> {
        Ok(())
    }

    fn call(
        &self,
        _: &HostStream<Context>,
        operator: &Infallible,
        _: &[(&DeviceMemory, usize)],
        (): &(),
        _: &Arc<Site>,
    ) -> Result<()> {
        match *operator {}
    }

    fn tell(&self, _: Used, (): &()) {}

    fn address(&self, memory: &DeviceMemory) -> u64 {
        memory.address()
    }

    fn bytes(&self, memory: &DeviceMemory) -> usize {
        memory.bytes()
    }

    fn read(&self, from: &DeviceMemory, offset: usize, data: &mut [u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let stream = host::Stream::new(&self.context)?;
        let pinned = PinnedMemory::alloc(&self.context, data.len())?;
        let pinned = Context::arrived(Context::download(&stream, from, offset, pinned, data.len())?)?;
        data.copy_from_slice(&pinned[..data.len()]);
        Ok(())
    }

    fn write(&self, to: &DeviceMemory, offset: usize, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let mut pinned = PinnedMemory::alloc(&self.context, data.len())?;
        pinned[..data.len()].copy_from_slice(data);
        let stream = host::Stream::new(&self.context)?;
        Context::arrived(Context::upload(&stream, to, offset, pinned, data.len())?)?;
        Ok(())
    }
}

impl Device for Cuda {
    fn name(&self) -> &str {
        &self.gpu.name
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: usize, content: Content) -> Result<Arc<dyn Buffer>> {
        let memory = DeviceMemory::alloc(&self.gpu.context, bytes)?;
        let value = match content {
            Content::Zero => Some(0),
            Content::Undefined => self.gpu.context.settings().poison.then_some(0xff),
        };
        if let Some(value) = value.filter(|_| bytes > 0) {
            Context::fill(&self.setup, &memory, 0, bytes, value)?;
            Context::synchronize(&self.setup)?;
        }
        Ok(Arc::new(HostBuffer::<Context>(memory)))
    }

    fn free_memory(&self) -> Option<usize> {
        self.gpu.context.memory().ok().map(|m| m.0)
    }

    fn borrow(&self, _: Box<dyn Foreign>) -> Result<Arc<dyn Buffer>> {
        Err(fail!(Unsupported, "{} does not address host memory", self.gpu.name))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(HostStream::new(&self.gpu.context)?))
    }

    fn load(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        Ok(Box::new(Loaded::new(&self.gpu, &self.target, plan)?))
    }

    fn survey(&self, plan: &Plan) -> Vec<StepUse> {
        survey(&*self.gpu, plan)
    }

    fn remark(&self) -> Option<&str> {
        Some(
            "not yet confirmed on hardware: the CUDA device has been tested on a stand-in for the vendor's libraries alone",
        )
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut untold = self.gpu.untold.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut untold.told, true) {
            notes.push(format!("{} is {}", self.gpu.name, self.gpu.chip));
            notes.extend(self.gpu.compiler.as_ref().err().map(|Refusal(why)| why.clone()));
            notes.extend(self.gpu.products.as_ref().err().map(|Refusal(why)| why.clone()));
        }
        let (fresh, cached) = (std::mem::take(&mut untold.fresh), std::mem::take(&mut untold.cached));
        if fresh + cached > 0 {
            let seconds = std::mem::take(&mut untold.time).as_secs_f64();
            notes.push(format!("{fresh} kernels compiled, {cached} taken from the cache, in {seconds:.1} s"));
        }
        notes
    }
}
