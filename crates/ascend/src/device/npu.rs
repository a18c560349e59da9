//! An NPU of this machine, over the host side: kernels are compiled by what the installation has and launched
//! by whichever rung the runtime has.

use super::host_side::AscendStream;
use super::survey::predicted;
use super::target;
use super::vendor::AscendOps;
use crate::aclnn;
use crate::chip::{Arch, Chip};
use crate::emit::emit;
use crate::host::graph::REPLAY;
use crate::host::{
    self, Compiled, Compiler, CompilerOptions, CoreKind, DeviceMemory, Installation, Kernel, Module,
    Operators, Runtime, RuntimeSettings,
};
use crate::kernel::{ParamKind, Program, Unit};
use crate::lower::{self, Lowered, Refusal};
use headwater_core::device::{Buffer, Content, Device, Executable, Foreign, Predicted, StepUse, Stream};
use headwater_core::diagnostic::Result;
use headwater_core::fail;
use headwater_core::graph::Origin;
use headwater_core::plan::{Plan, Step};
use headwater_core::target::Target;
use headwater_launch::{
    BoundArgument, BoundLaunch, Driver, HostBuffer, HostStream, LibraryOperand, LibraryStep, Loaded, Used,
    memory_of, survey,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An NPU of this machine.
#[derive(Debug)]
pub struct Ascend {
    npu: Arc<Npu>,
    target: Target,
    /// For memory that must hold zeros before anybody has a stream.
    setup: host::Stream,
}

/// Shared by the parts of the device.
#[derive(Debug)]
pub(super) struct Npu {
    device: Arc<host::Device>,
    name: String,
    /// The chip and a compiler for it, or why there are no kernels.
    kernels: Result<(&'static Chip, Compiler), Refusal>,
    /// The compiler accepts kernels that use cube and vector cores, and the runtime gives the address through
    /// which they synchronise.
    together: bool,
    /// The vendor's operators, if requested, or why there are none.
    operators: Option<Result<Arc<Operators>, Refusal>>,
    untold: Mutex<Untold>,
}

/// Figures and events that [`Device::notes`] tells of.
#[derive(Debug, Default)]
struct Untold {
    /// Kernels that were compiled, and those that an earlier run had compiled.
    fresh: usize,
    cached: usize,
    /// Time that all of it took.
    time: Duration,
    /// Recordings that were replayed, and their launches.
    replays: usize,
    launches: usize,
    /// The way of launching that was logged last.
    told: Option<Way>,
    /// Operators that plans use, and the bytes of their workspaces.
    used: Used,
    workspace: usize,
    /// True once it was logged whether sums of the vendor's operators may change.
    vendor: bool,
}

/// A way to give a step's launches to a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Replayed,
    OneByOne,
}

impl Ascend {
    /// Device `ordinal` of the installation that the environment names.
    ///
    /// # Errors
    /// `Device` with what is missing or failed; `Unsupported` for the vendor's operators on 310P.
    pub fn open(ordinal: u32, operators: AscendOps) -> Result<Ascend> {
        let installation = Installation::find();
        let library = installation.library("libascendcl.so").ok_or_else(|| {
            fail!(
                Device,
                "ascend:{ordinal}: libascendcl.so is not found; install CANN and source its set_env.sh \
                 (`headwater doctor` lists what is missing)"
            )
        })?;
        let below = installation.library("libruntime.so");
        let runtime = Runtime::open(&library, below.as_deref(), RuntimeSettings::from_env()?)?;
        let device = host::Device::open(&runtime, ordinal)?;
        Ascend::on(device, &installation, CompilerOptions::from_env(), operators)
    }

    /// A device that is open already, with the compiler and the operators of an installation. Without a
    /// compiler every step runs on the host; without an operator of the vendor's its steps run by our own
    /// kernels.
    ///
    /// # Errors
    /// `Device` if it makes no stream; `Unsupported` for the vendor's operators on 310P.
    pub fn on(
        device: Arc<host::Device>,
        installation: &Installation,
        options: CompilerOptions,
        operators: AscendOps,
    ) -> Result<Ascend> {
        let operators = match operators {
            AscendOps::Own => None,
            AscendOps::Vendor if device.arch() == Arch::P310 => {
                return Err(fail!(
                    Unsupported,
                    "{} ({}): the vendor's operators are used on Atlas A2 and A3 alone. 310P has no \
                     aclnnFlashAttentionScore and no aclnnFlashAttentionScoreGrad, and its aclnnMatmul and \
                     aclnnConvolution round f32 to f16: use --ascend-ops own",
                    device.name(),
                    device.soc()
                ));
            }
            AscendOps::Vendor => Some(match Operators::open(&device, installation) {
                Ok(operators) => Ok(operators),
                Err(error) if error.is_sticky() => return Err(error.into()),
                Err(error) => Err(refusal(&error)),
            }),
        };
        let setup = host::Stream::new(&device)?;
        let kernels = match device.chip() {
            None => Err(Refusal(format!("kernels for {} are not written", device.soc()))),
            Some(chip) => match Compiler::find(installation, device.arch(), options) {
                Ok(compiler) => Ok((chip, compiler)),
                Err(e) => Err(Refusal(format!("there is no compiler: {e}"))),
            },
        };
        let name = device.name();
        let target = target::target(
            &name,
            device.arch(),
            kernels.as_ref().ok().map(|k| k.0),
            device.memory()?.total as u64,
        );
        let joins = kernels.as_ref().is_ok_and(|(_, compiler)| compiler.joins_cores());
        let together = joins && matches!(device.sync_address(), Ok(Some(_)));
        let npu = Npu { device, name, kernels, together, operators, untold: Mutex::default() };
        Ok(Ascend { npu: Arc::new(npu), target, setup })
    }

    /// Generation of its chip.
    pub fn arch(&self) -> Arch {
        self.npu.device.arch()
    }
}

/// The reason why an operator of the vendor's does not compute: an error without its remedies.
fn refusal(error: &host::Error) -> Refusal {
    let text = error.to_string();
    Refusal::new(text.lines().next().unwrap_or_default())
}

impl Npu {
    /// The chip that kernels are written for, or why none can be run.
    fn chip(&self) -> Result<&'static Chip, Refusal> {
        self.kernels.as_ref().map(|(chip, _)| *chip).map_err(Refusal::clone)
    }

    /// A launch as the host side has it.
    fn ready(&self, launch: &BoundLaunch<Self>) -> host::Result<host::Launch> {
        let (kernel, program) = launch.kernel;
        let mut args = Vec::new();
        if program.params.first().is_some_and(|p| p.kind == ParamKind::Sync) {
            let address = self.device.sync_address()?;
            let missing = || {
                let text = format!("{}: the runtime has no address for cores to meet by", launch.site);
                host::Error::Usage(text)
            };
            args.push(host::Argument::Word(address.ok_or_else(missing)?));
        }
        args.extend(launch.args.iter().map(|arg| match arg {
            BoundArgument::Memory(memory, at) => host::Argument::Memory((*memory).clone(), *at),
            BoundArgument::Int(x) => host::Argument::Word(*x as u64),
            BoundArgument::Float(x) => host::Argument::Float(*x),
        }));
        let mut ready = host::Launch::new(kernel, launch.blocks, &args, launch.site.clone())?;
        if program.cores_meet() {
            let cores = self.chip().map_or(1, |chip| match &program.parts[..] {
                [part] if part.unit == Unit::Vector => chip.vector_cores,
                _ => chip.cube_cores,
            });
            ready = ready.together(cores)?;
        }
        Ok(ready)
    }

    /// Records launches from a stream of their own: one whose recording did not end goes away with it.
    fn recorded(&self, launches: &[BoundLaunch<Self>]) -> host::Result<host::Graph> {
        // All is prepared before: nothing may wait while a stream is recorded.
        let ready: Vec<host::Launch> = launches.iter().map(|l| self.ready(l)).collect::<Result<_, _>>()?;
        host::Graph::record(&Arc::new(host::Stream::new(&self.device)?), &ready)
    }

    /// Goes on without recordings after an error, unless the device does not go on at all.
    fn one_by_one<T>(&self, error: host::Error, without: T) -> Result<T> {
        if error.is_sticky() {
            return Err(error.into());
        }
        self.device.stop_recording(&error);
        Ok(without)
    }

    fn untold(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for Npu {
    const ALIGN: usize = host::memory::ALIGN;

    type Program = Program;
    type Memory = DeviceMemory;
    type Stream = AscendStream;
    /// With the parameters' kinds, which say where the synchronisation address goes.
    type Kernel = (Kernel, Arc<Program>);
    type Graph = host::Graph;
    type Operator = host::Operator;
    type Workspace = host::Workspace;

    fn name(&self) -> &str {
        &self.name
    }

    fn lower(&self, step: &Step, origin: &Origin) -> Result<Lowered, Refusal> {
        lower::step(self.chip()?, self.together, step, origin)
    }

    fn library(
        &self,
        step: &Step,
        origin: &Origin,
    ) -> Option<Result<LibraryStep<host::Operator, Program>, Refusal>> {
        let operators = self.operators.clone()?;
        let vendor = lower::vendor(self.chip().ok()?, step, origin)?;
        Some(vendor.and_then(|lower::VendorStep { call, args, lowered, before }| {
            let function = call.function.name();
            let operand = |(of, arg): (&aclnn::Operand, &lower::LoweredArg)| LibraryOperand {
                arg: *arg,
                bytes: of.bytes(),
                written: of.written,
            };
            let operands = call.operands.iter().zip(&args).map(operand).collect();
            let operator = host::Operator::new(&operators?, call).map_err(|error| refusal(&error))?;
            Ok(LibraryStep { operator, function, operands, lowered, before })
        }))
    }

    fn predict(&self, step: &Step, lowered: &Lowered) -> Option<Predicted> {
        predicted(self.chip().ok()?, step, lowered)
    }

    fn memory<'a>(&self, buffer: &'a Arc<dyn Buffer>) -> Option<&'a DeviceMemory> {
        memory_of(&self.device, buffer)
    }

    fn stream<'a>(&self, stream: &'a dyn Stream) -> Option<&'a AscendStream> {
        HostStream::of(&self.device, stream)
    }

    fn alloc(self: &Arc<Self>, bytes: usize) -> Result<DeviceMemory> {
        Ok(DeviceMemory::alloc(&self.device, bytes)?)
    }

    fn load(&self, programs: &[Arc<Program>]) -> Result<Vec<Self::Kernel>> {
        let Ok((_, compiler)) = &self.kernels else { return Ok(Vec::new()) };
        let unit = |program: &Arc<Program>| host::CompileUnit {
            name: program.name.clone(),
            source: emit(program),
            kernels: vec![program.name.clone()],
            core: match &program.parts[..] {
                [part] if part.unit == Unit::Vector => CoreKind::Vector,
                [part] if part.unit == Unit::Cube => CoreKind::Cube,
                _ => CoreKind::Mixed,
            },
        };
        let units: Vec<host::CompileUnit> = programs.iter().map(unit).collect();
        let Compiled { binaries, fresh, cached, time } = compiler.compile(&units)?;
        {
            let mut untold = self.untold();
            untold.fresh += fresh;
            untold.cached += cached;
            untold.time += time;
        }
        let load = |(binary, program): (host::KernelBinary, &Arc<Program>)| {
            Ok((Module::load(&self.device, binary)?.kernel(&program.name)?, program.clone()))
        };
        binaries.into_iter().zip(programs).map(load).collect()
    }

    fn launch(&self, stream: &AscendStream, launch: &BoundLaunch<Self>) -> Result<()> {
        Ok(stream.stream.launch(&self.ready(launch)?)?)
    }

    fn records(&self) -> bool {
        self.device.unrecorded().is_none()
    }

    fn record(&self, launches: &[BoundLaunch<Self>]) -> Result<Option<host::Graph>> {
        self.recorded(launches).map(Some).or_else(|error| self.one_by_one(error, None))
    }

    fn replay(&self, stream: &AscendStream, graph: &host::Graph) -> Result<bool> {
        if !graph.is_current() {
            return Ok(false);
        }
        match stream.stream.replay(graph) {
            Ok(()) => {
                let mut untold = self.untold();
                untold.replays += 1;
                untold.launches += graph.launches();
                Ok(true)
            }
            // After this call the launches are in flight, and no error may be swallowed.
            Err(error @ host::Error::Call { call: REPLAY, .. }) => self.one_by_one(error, false),
            Err(error) => Err(error.into()),
        }
    }

    fn needs(&self, operator: &host::Operator) -> usize {
        usize::try_from(operator.workspace()).unwrap_or(usize::MAX)
    }

    fn workspace(&self, operators: &[&host::Operator]) -> Result<host::Workspace> {
        let workspace = host::Workspace::new(&self.device);
        workspace.of(operators.iter().map(|o| o.workspace()).max().unwrap_or(0))?;
        Ok(workspace)
    }

    fn call(
        &self,
        stream: &AscendStream,
        operator: &host::Operator,
        operands: &[(&DeviceMemory, usize)],
        workspace: &host::Workspace,
        site: &Arc<host::Site>,
    ) -> Result<()> {
        Ok(operator.run(&stream.stream, operands, workspace, site)?)
    }

    fn tell(&self, used: Used, workspace: &host::Workspace) {
        let mut untold = self.untold();
        untold.used.join(used);
        untold.workspace += workspace.bytes();
    }

    fn address(&self, memory: &DeviceMemory) -> u64 {
        memory.address()
    }

    fn bytes(&self, memory: &DeviceMemory) -> usize {
        memory.bytes()
    }

    fn read(&self, from: &DeviceMemory, offset: usize, data: &mut [u8]) -> Result<()> {
        Ok(from.read(offset, data)?)
    }

    fn write(&self, to: &DeviceMemory, offset: usize, data: &[u8]) -> Result<()> {
        Ok(to.write(offset, data)?)
    }
}

impl Device for Ascend {
    fn name(&self) -> &str {
        &self.npu.name
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: usize, content: Content) -> Result<Arc<dyn Buffer>> {
        let memory = DeviceMemory::alloc(&self.npu.device, bytes)?;
        if content == Content::Zero {
            self.setup.fill(&memory, 0, bytes, 0)?;
            self.setup.synchronize(None)?;
        }
        Ok(Arc::new(HostBuffer::<host::Device>(memory)))
    }

    fn borrow(&self, _: Box<dyn Foreign>) -> Result<Arc<dyn Buffer>> {
        Err(fail!(Unsupported, "{} does not address host memory", self.npu.name))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(HostStream::new(&self.npu.device)?))
    }

    fn load(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        Ok(Box::new(Loaded::new(&self.npu, &self.target, plan)?))
    }

    fn survey(&self, plan: &Plan) -> Vec<StepUse> {
        survey(&*self.npu, plan)
    }

    fn remark(&self) -> Option<&str> {
        self.npu.operators.is_some().then_some(
            "CANN's operators compute where they can (--ascend-ops vendor), which changes rounding: only \
             Headwater's own kernels promise the same bits",
        )
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut untold = self.npu.untold();
        let (fresh, cached) = (std::mem::take(&mut untold.fresh), std::mem::take(&mut untold.cached));
        if fresh + cached > 0 {
            let seconds = std::mem::take(&mut untold.time).as_secs_f64();
            notes.push(format!("{fresh} kernels compiled, {cached} taken from the cache, in {seconds:.1} s"));
        }
        if let Some(operators) = &self.npu.operators {
            if !std::mem::replace(&mut untold.vendor, true) {
                let unordered = operators.as_ref().ok().and_then(|o| o.unordered());
                notes.extend(
                    unordered
                        .map(|why| format!("sums of CANN's operators may change from run to run: {why}")),
                );
            }
            notes.extend(std::mem::take(&mut untold.used).lines());
            match std::mem::take(&mut untold.workspace) {
                0 => {}
                bytes => notes.push(format!(
                    "the vendor's operators take {bytes} bytes of workspace beside the plan's memory"
                )),
            }
        }
        let (replays, launches) = (untold.replays, untold.launches);
        let unrecorded = self.npu.device.unrecorded().filter(|_| self.npu.kernels.is_ok());
        let way = unrecorded.as_ref().map(|_| Way::OneByOne).or((replays > 0).then_some(Way::Replayed));
        if way.is_some() && way != untold.told {
            notes.push(match unrecorded {
                Some(why) => format!("launches are given one by one: {why}"),
                None => format!(
                    "launches are recorded and replayed: {launches} of them by {replays} calls so far"
                ),
            });
            untold.told = way;
        }
        notes
    }
}
