//! Launches that are recorded and replayed: the same results as launches given one by one, fewer calls, and
//! what happens when a call of it fails.
#![allow(unsafe_code)]

use crate::common::*;
use headwater_ascend::device::{Ascend, AscendOps, AscendSim, LAUNCH, REPLAY};
use headwater_ascend::host::{
    Argument, CompilerOptions, Device as Npu, DeviceMemory, Error, Graph as Recorded, Installation as Found,
    LaunchRung, RuntimeSettings, Stream,
};
use headwater_ascend_standin::config::Config;
use headwater_ascend_standin::exports::control::LiveHandles;
use headwater_ascend_standin::install::Cann;
use headwater_core::DType::F32;
use headwater_core::device::{Buffer, Content, Device, Executable};
use headwater_core::graph::{Builder, InputRole, OutputRole};
use headwater_core::pass::{self, narrow_integers};
use headwater_core::plan::{Bindings, Place};
use headwater_core::{Attrs, Code, DType, Graph, Registry, Result, TensorType};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// Functions of a recording, in the order of their calls.
const BEGIN: &str = "aclmdlRICaptureBegin";
const END: &str = "aclmdlRICaptureEnd";
const EXECUTE: &str = "aclmdlRIExecuteAsync";
const DESTROY: &str = "aclmdlRIDestroy";

fn ascend(machine: &Machine, npu: &Arc<Npu>) -> Ascend {
    let found = Found::below(machine.installation.root());
    let options =
        CompilerOptions { cache: machine.installation.root().join("cache"), ..CompilerOptions::from_env() };
    Ascend::on(npu.clone(), &found, options, AscendOps::Own).unwrap()
}

/// Rows of a table, through a product, a running sum (which runs on the host), and a softmax.
fn graph() -> Graph {
    let ty = |dtype, shape: &[usize]| TensorType { dtype, shape: shape.into() };
    let mut b = Builder::new();
    let table = b.input("table", ty(F32, &[5, 16]), InputRole::User);
    let rows = b.input("rows", ty(DType::I64, &[4]), InputRole::User);
    let weight = b.input("weight", ty(F32, &[16, 16]), InputRole::User);
    let mut op = |name: &str, inputs: &[_], attrs: Attrs| {
        let op = Registry::standard().by_name(name).unwrap();
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        b.apply(op, &inputs, attrs).unwrap()[0]
    };
    let x = op("embedding", &[table, rows], Attrs::new());
    let x = op("matmul", &[x, weight], Attrs::new());
    let x = op("logcumsumexp", &[x], Attrs::new().with("dim", 1i64));
    let x = op("matmul", &[x, weight], Attrs::new());
    let out = op("softmax", &[x], Attrs::new().with("dim", -1i64));
    b.output("out", out, OutputRole::User);
    b.finish()
}

/// A loaded plan with its memory.
struct Run {
    executable: Box<dyn Executable>,
    stream: Box<dyn headwater_core::device::Stream>,
    memory: Vec<Arc<dyn Buffer>>,
    inputs: Vec<Place>,
    output: (Place, usize),
    steps: usize,
}

impl Run {
    fn new(device: &dyn Device) -> Run {
        let target = device.target();
        let graph = pass::on_host(graph(), target).unwrap();
        let graph = narrow_integers(graph, target).unwrap();
        let bindings = Bindings::simple(&graph);
        let plan = pass::plan(&graph, &bindings, target).unwrap();
        let alloc = |bytes| device.alloc(bytes, Content::Zero).unwrap();
        Run {
            executable: device.load(&plan).unwrap(),
            stream: device.stream().unwrap(),
            memory: plan.segments.iter().map(|s| alloc(s.bytes)).collect(),
            inputs: bindings.inputs.iter().map(|place| place.unwrap()).collect(),
            output: (bindings.outputs[0].unwrap(), graph.ty(graph.outputs[0].value).bytes()),
            steps: plan.steps.len(),
        }
    }

    /// Runs it on inputs that `round` decides; gives the bytes of the result.
    fn step(&mut self, round: usize) -> Result<Vec<u8>> {
        let floats = |n: usize| -> Vec<u8> {
            (0..n).flat_map(|i| ((i * 7 + round * 3) as f32 % 11.0 - 5.0).to_le_bytes()).collect()
        };
        let rows: Vec<u8> = (0..4i64).flat_map(|i| ((i + round as i64) % 5).to_le_bytes()).collect();
        self.with(&[floats(80), rows, floats(256)])
    }

    fn with(&mut self, inputs: &[Vec<u8>]) -> Result<Vec<u8>> {
        for (place, bytes) in self.inputs.iter().zip(inputs) {
            self.stream.write(&self.memory[place.segment.0 as usize], place.offset, bytes)?;
        }
        self.executable.submit(self.stream.as_ref(), &self.memory, 0..self.steps)?;
        self.stream.synchronize()?;
        let (place, bytes) = self.output;
        let mut data = vec![0; bytes];
        self.stream.read(&self.memory[place.segment.0 as usize], place.offset, &mut data)?;
        Ok(data)
    }
}

const ROUNDS: usize = 5;

/// Results of rounds on the simulator.
fn simulated() -> Vec<Vec<u8>> {
    let device = AscendSim::from_name("910b1", 1).unwrap();
    let mut run = Run::new(&device);
    (0..ROUNDS).map(|round| run.step(round).unwrap()).collect()
}

#[test]
fn replayed_launches_give_the_bits_of_single_ones() {
    let want = simulated();
    let config = Config::default();
    let rungs = [None, Some(LaunchRung::HostArgs), Some(LaunchRung::ArgsList), Some(LaunchRung::DeviceArgs)];
    for rung in rungs {
        let launching = rung.unwrap_or(LaunchRung::ArgsArray).function();
        let of = |machine: &Machine, settings: RuntimeSettings| {
            let npu = machine.device(RuntimeSettings { rung, ..settings });
            let device = ascend(machine, &npu);
            let mut run = Run::new(&device);
            let got: Vec<_> = (0..ROUNDS).map(|round| run.step(round).unwrap()).collect();
            assert!(got == want, "{launching}");
            let why = npu.unrecorded();
            drop((run, device, npu));
            assert_eq!(machine.live(), LiveHandles::default());
            why
        };
        let recording = Machine::a2(Cann::V91);
        assert_eq!(of(&recording, settings()), None);
        // The host computes between two parts: each is launched, recorded, and then replayed.
        assert_eq!((recording.calls(BEGIN), recording.calls(END), recording.calls(DESTROY)), (2, 2, 2));
        assert_eq!(recording.calls(EXECUTE), 2 * (ROUNDS as u64 - 1));

        let hidden = Machine::without(Cann::V91, &config, &[END]);
        assert!(of(&hidden, settings()).unwrap().contains(BEGIN));
        let asked = Machine::a2(Cann::V91);
        assert!(of(&asked, RuntimeSettings { graphs: false, ..settings() }).is_some());
        assert!(of(&asked, RuntimeSettings { blocking: true, ..settings() }).is_some());
        assert_eq!((asked.calls(BEGIN), hidden.calls(EXECUTE)), (0, 0));
        // Two of five rounds are launched one by one, and four are not called at all.
        let (few, many) = (recording.calls(launching), hidden.calls(launching));
        assert_eq!(few * ROUNDS as u64, many * 2, "{launching}");
    }
}

#[test]
fn a_version_or_chip_that_does_not_record_launches_one_by_one() {
    let p310 = Config { soc: "Ascend310P3".into(), ..Config::default() };
    let compiler = std::path::Path::new(env!("CARGO_BIN_EXE_headwater-standin-compiler"));
    for (cann, records) in [(Cann::V83, false), (Cann::V90, true)] {
        let machine = Machine::with_compiler(cann, &p310, compiler);
        let npu = machine.device(settings());
        let device = ascend(&machine, &npu);
        let mut run = Run::new(&device);
        let first = run.step(0).unwrap();
        for _ in 0..3 {
            assert!(run.step(0).unwrap() == first);
        }
        assert_eq!(npu.unrecorded().is_none(), records, "{cann:?}: {:?}", npu.unrecorded());
        assert!(records || npu.unrecorded().unwrap().contains("RT_FEATURE_NOT_SUPPORT"));
    }
    let machine = Machine::a2(Cann::V80);
    assert!(machine.device(settings()).unrecorded().unwrap().contains("CANN 8.1"));
}

#[test]
fn a_refusal_of_any_call_goes_on_with_single_launches_and_keeps_the_reason() {
    let want = simulated();
    let launching = LaunchRung::ArgsArray.function();
    // Launches of a round, of which the first is not recorded.
    let each = {
        let machine = Machine::a2(Cann::V91);
        let npu = machine.device(settings());
        let device = ascend(&machine, &npu);
        Run::new(&device).step(0).unwrap();
        machine.calls(launching)
    };
    // The first call, and the one of the second part, which comes when the first is recorded already.
    let calls = [(BEGIN, 1), (BEGIN, 2), (END, 1), (END, 2), (EXECUTE, 1), (EXECUTE, 4)];
    let calls =
        calls.into_iter().chain([(launching, each + 1), (launching, each + 2), (launching, 2 * each)]);
    for ((call, nth), status) in calls.flat_map(|c| [107_000, 207_001].map(|status| (c, status))) {
        let context = format!("call {nth} of {call} gives {status}");
        let machine = Machine::a2(Cann::V91);
        let npu = machine.device(settings());
        let device = ascend(&machine, &npu);
        let mut run = Run::new(&device);
        machine.inject(call, nth, status);
        for (round, want) in want.iter().enumerate() {
            let got = run.step(round).unwrap_or_else(|e| panic!("{context}: round {round}: {e}"));
            assert!(got == *want, "{context}: round {round}");
        }
        let why = npu.unrecorded().expect(&context);
        assert!(why.contains(call) && why.contains("made to fail"), "{context}: {why}");
        drop((run, device, npu));
        assert_eq!(machine.live(), LiveHandles::default(), "{context}");
    }
}

#[test]
fn a_device_that_is_lost_while_recording_is_an_error() {
    for (call, nth) in [(BEGIN, 1), (END, 1), (EXECUTE, 1), (EXECUTE, 3)] {
        let machine = Machine::a2(Cann::V91);
        let npu = machine.device(settings());
        let device = ascend(&machine, &npu);
        let mut run = Run::new(&device);
        machine.inject(call, nth, 507_899);
        let outcomes: Vec<_> = (0..ROUNDS).map(|round| run.step(round)).collect();
        let first = outcomes.iter().find_map(|o| o.as_ref().err()).expect(call);
        assert_eq!(first.code, Code::Device);
        assert!(first.to_string().contains(call), "{first}");
        // It stays.
        assert_eq!(run.step(0).unwrap_err(), *first);
        drop((run, device, npu));
        assert_eq!(machine.live(), LiveHandles::default(), "{call} {nth}");
    }
}

#[test]
fn a_recording_that_is_not_released_is_noted() {
    let machine = Machine::a2(Cann::V91);
    let npu = machine.device(settings());
    let runtime = npu.runtime().clone();
    let device = ascend(&machine, &npu);
    let mut run = Run::new(&device);
    machine.inject(DESTROY, 1, 107_000);
    (0..3).for_each(|round| drop(run.step(round).unwrap()));
    drop((run, device, npu));
    assert_eq!(runtime.live().failed_releases, [(DESTROY, 107_000)]);
    assert_eq!((runtime.live().graphs, machine.live().graphs), (0, 1));
}

#[test]
fn an_index_out_of_range_is_reported_behind_a_replay() {
    let machine = Machine::a2(Cann::V91);
    let npu = machine.device(settings());
    let device = ascend(&machine, &npu);
    let mut run = Run::new(&device);
    let floats = |n: usize| vec![0u8; 4 * n];
    let rows = |rows: [i64; 4]| rows.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<u8>>();
    for _ in 0..3 {
        run.with(&[floats(80), rows([0, 1, 2, 3]), floats(256)]).unwrap();
    }
    let before = machine.calls(EXECUTE);
    let error = run.with(&[floats(80), rows([0, 1, 7, 3]), floats(256)]).unwrap_err();
    assert_eq!(error.code, Code::Value, "{error}");
    assert!(error.to_string().contains("index 7 at position 2"), "{error}");
    assert!(machine.calls(EXECUTE) > before);
    // It is over then.
    run.with(&[floats(80), rows([0, 1, 2, 3]), floats(256)]).unwrap();
}

#[test]
fn memory_that_changes_is_recorded_anew() {
    let want = simulated();
    let machine = Machine::a2(Cann::V91);
    let npu = machine.device(settings());
    let device = ascend(&machine, &npu);
    let mut run = Run::new(&device);
    let mut spare: Vec<_> =
        run.memory.iter().map(|m| device.alloc(m.bytes(), Content::Zero).unwrap()).collect();
    for round in [0, 1, 2] {
        assert!(run.step(round).unwrap() == want[round]);
    }
    std::mem::swap(&mut run.memory, &mut spare);
    drop(spare);
    for round in [3, 4, 0] {
        assert!(run.step(round).unwrap() == want[round], "round {round}");
    }
    assert_eq!((machine.calls(BEGIN), npu.unrecorded()), (4, None));
    drop((run, device, npu));
    assert_eq!(machine.live(), LiveHandles::default());
}

#[test]
fn a_recording_does_not_keep_memory() {
    let want = simulated();
    let machine = Machine::a2(Cann::V91);
    let npu = machine.device(settings());
    let runtime = npu.runtime().clone();
    let device = ascend(&machine, &npu);
    let mut run = Run::new(&device);
    for round in [0, 1, 2] {
        assert!(run.step(round).unwrap() == want[round]);
    }
    let sizes: Vec<usize> = run.memory.iter().map(|m| m.bytes()).collect();
    // The stream lets go of the read.
    run.stream.synchronize().unwrap();
    let before = runtime.live().device_bytes;
    run.memory.clear();
    assert_eq!(before - runtime.live().device_bytes, sizes.iter().sum::<usize>());
    // Memory that takes its place, maybe at the same addresses.
    run.memory = sizes.iter().map(|bytes| device.alloc(*bytes, Content::Zero).unwrap()).collect();
    let replays = machine.calls(EXECUTE);
    for round in [3, 4, 0, 1] {
        assert!(run.step(round).unwrap() == want[round], "round {round}");
    }
    assert!(machine.calls(EXECUTE) > replays);
    assert_eq!(npu.unrecorded(), None);
}

#[test]
fn replays_of_freed_memory_are_refused() {
    let machine = Machine::a2(Cann::V91);
    let device = machine.device(settings());
    let add = module(&machine, &device).kernel("add_f32").unwrap();
    let x = floats(&device, &[1.0; 8]);
    let memory = |m: &DeviceMemory| Argument::Memory(m.clone(), 0);
    let step = launch(&add, 1, &[memory(&x), memory(&x), memory(&x), Argument::Word(8)]).unwrap();
    let graph = Recorded::record(&Arc::new(Stream::new(&device).unwrap()), &[step]).unwrap();
    let stream = Stream::new(&device).unwrap();
    assert!(graph.is_current());
    drop(x);
    assert!(!graph.is_current());
    assert_eq!(stream.replay(&graph).unwrap_err().code(), "HW-A110");
    assert_eq!(machine.calls(EXECUTE), 0);
}

#[test]
fn the_device_says_what_was_compiled_and_how_launches_are_given() {
    let machine = Machine::a2(Cann::V91);
    let told = |settings: RuntimeSettings, fails: bool| {
        let npu = machine.device(settings);
        let device = ascend(&machine, &npu);
        let mut run = Run::new(&device);
        let loaded = device.notes();
        if fails {
            machine.inject(END, 1, 107_000);
        }
        (0..3).for_each(|round| drop(run.step(round).unwrap()));
        let run = device.notes();
        // Each is reported once.
        assert_eq!(device.notes(), [""; 0]);
        (loaded, run)
    };
    let (loaded, run) = told(settings(), false);
    assert!(loaded.len() == 1 && loaded[0].contains(" 0 taken from the cache"), "{loaded:?}");
    let kernels = loaded[0].split(' ').next().unwrap().to_string();
    assert!(run.len() == 1 && run[0].contains("by 4 calls so far"), "{run:?}");
    let (loaded, run) = told(settings(), true);
    assert!(loaded[0].starts_with(&format!("0 kernels compiled, {kernels} taken")), "{loaded:?}");
    assert!(run.len() == 1 && run[0].contains("one by one") && run[0].contains(END), "{run:?}");
    let (loaded, run) = told(RuntimeSettings { graphs: false, ..settings() }, false);
    assert!(loaded.len() == 2 && loaded[1].contains("HEADWATER_ASCEND_GRAPHS"), "{loaded:?}");
    assert_eq!(run, [""; 0]);
}

#[test]
fn predictions_count_one_call_for_each_recording() {
    let device = AscendSim::from_name("910b1", 1).unwrap();
    let graph = pass::on_host(graph(), device.target()).unwrap();
    let graph = narrow_integers(graph, device.target()).unwrap();
    let plan = pass::plan(&graph, &Bindings::simple(&graph), device.target()).unwrap();
    let used = device.survey(&plan);
    let launches = used.iter().map(|u| u.launches).sum::<usize>();
    let predicted: Vec<_> = used.iter().filter_map(|u| u.predicted.as_ref()).collect();
    let launching: f64 = predicted.iter().map(|p| p.launch * p.kernels.len() as f64).sum();
    let replaying: f64 = predicted.iter().map(|p| p.replay).sum();
    assert!(launches > 2 && (launching - launches as f64 * LAUNCH).abs() < 1e-12, "{launching}");
    // The running sum on the host divides the plan in two.
    assert_eq!(replaying, 2.0 * REPLAY);
}

#[test]
fn launches_of_a_recording_that_fails_or_hangs_are_named() {
    let record = |machine: &Machine, kernels: &[&str]| {
        let device = machine.device(settings());
        let module = module(machine, &device);
        let launches = kernels.iter().enumerate().map(|(line, name)| {
            let kernel = module.kernel(name).unwrap();
            headwater_ascend::host::Launch::new(&kernel, 1, &[], site(name, line as u32)).unwrap()
        });
        let launches: Vec<_> = launches.collect();
        let graph = Recorded::record(&Arc::new(Stream::new(&device).unwrap()), &launches).unwrap();
        assert_eq!(graph.launches(), kernels.len());
        let stream = Stream::new(&device).unwrap();
        stream.replay(&graph).unwrap();
        (device, stream)
    };
    let machine = Machine::a2(Cann::V91);
    let (device, stream) = record(&machine, &["sleep_20", "fault", "sleep_20"]);
    let error = stream.synchronize(None).unwrap_err();
    let Error::Kernel { status: 507_035, sites, others: 0, .. } = &error else { panic!("{error}") };
    assert_eq!(
        sites.iter().map(|s| s.kernel.as_str()).collect::<Vec<_>>(),
        ["sleep_20", "fault", "sleep_20"]
    );
    assert!(error.to_string().contains("HEADWATER_ASCEND_BLOCKING=1"), "{error}");
    drop((stream, device));
    assert_eq!(machine.live(), LiveHandles::default());

    let machine = Machine::a2(Cann::V91);
    let (device, stream) = record(&machine, &["sleep_20", "spin", "sleep_20", "sleep_20", "sleep_20"]);
    let error = stream.synchronize(Some(Duration::from_millis(100))).unwrap_err();
    let Error::Timeout { sites, others: 1, .. } = &error else { panic!("{error}") };
    assert_eq!((sites.len(), sites[1].kernel.as_str()), (4, "spin"));
    drop((stream, device));
    assert_eq!(machine.live(), LiveHandles::default());
}

#[test]
fn kernels_of_another_device_are_not_recorded() {
    let machine = Machine::new(Cann::V91, &Config { devices: 2, ..Config::default() });
    let runtime = machine.open(settings()).unwrap();
    let (first, second) = (Npu::open(&runtime, 0).unwrap(), Npu::open(&runtime, 1).unwrap());
    let kernel = module(&machine, &first).kernel("sleep_20").unwrap();
    let sleep = [launch(&kernel, 1, &[]).unwrap()];
    let foreign = Recorded::record(&Arc::new(Stream::new(&second).unwrap()), &sleep).unwrap_err();
    let graph = Recorded::record(&Arc::new(Stream::new(&first).unwrap()), &sleep).unwrap();
    let other = Stream::new(&second).unwrap().replay(&graph).unwrap_err();
    assert_eq!([foreign.code(), other.code()], ["HW-A110"; 2], "{foreign} {other}");
    Recorded::probe(&second).unwrap();
}

#[test]
fn arguments_in_device_memory_live_as_long_as_the_recording() {
    let machine = Machine::a2(Cann::V81);
    let device = machine.device(RuntimeSettings { rung: Some(LaunchRung::DeviceArgs), ..settings() });
    let add = module(&machine, &device).kernel("add_f32").unwrap();
    let (x, y) = (floats(&device, &[1.0; 8]), floats(&device, &[0.5; 8]));
    let memory = |m: &DeviceMemory| Argument::Memory(m.clone(), 0);
    let step = launch(&add, 1, &[memory(&x), memory(&y), memory(&x), Argument::Word(8)]).unwrap();
    let graph = Recorded::record(&Arc::new(Stream::new(&device).unwrap()), &[step]).unwrap();
    let stream = Stream::new(&device).unwrap();
    for _ in 0..100 {
        stream.replay(&graph).unwrap();
    }
    // Its runs go on without us.
    drop((graph, add, y));
    stream.synchronize(None).unwrap();
    assert_eq!(read_floats(&x), [51.0; 8]);
    drop((stream, x, device));
    assert_eq!(machine.live(), LiveHandles::default());
}

#[test]
fn the_stand_in_refuses_what_must_not_be_while_a_stream_is_recorded() {
    type Call<A> = unsafe extern "C" fn(A) -> i32;
    let machine = Machine::a2(Cann::V91);
    let device = machine.device(settings());
    let memory = DeviceMemory::alloc(&device, 64).unwrap();
    // SAFETY: the interface's own types; every handle is one that a call gave.
    unsafe {
        let library = libloading::Library::new(machine.installation.acl()).unwrap();
        let create: libloading::Symbol<Call<*mut *mut c_void>> = library.get(b"aclrtCreateStream\0").unwrap();
        let destroy: libloading::Symbol<Call<*mut c_void>> = library.get(b"aclrtDestroyStream\0").unwrap();
        let wait: libloading::Symbol<unsafe extern "C" fn(*mut c_void, i32) -> i32> =
            library.get(b"aclrtSynchronizeStreamWithTimeout\0").unwrap();
        let begin: libloading::Symbol<unsafe extern "C" fn(*mut c_void, u32) -> i32> =
            library.get(b"aclmdlRICaptureBegin\0").unwrap();
        let end: libloading::Symbol<unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> i32> =
            library.get(b"aclmdlRICaptureEnd\0").unwrap();
        let execute: libloading::Symbol<unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32> =
            library.get(b"aclmdlRIExecuteAsync\0").unwrap();
        let release: libloading::Symbol<Call<*mut c_void>> = library.get(b"aclmdlRIDestroy\0").unwrap();
        let (mut stream, mut other, mut graph) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!((create(&mut stream), create(&mut other)), (0, 0));
        assert_eq!(end(stream, &mut graph), 107_029);
        assert_eq!((begin(stream, 3), begin(stream, 1), begin(stream, 1)), (107_000, 0, 107_027));
        assert_eq!(execute(graph, stream), 107_017);
        // This thread must not wait or copy; the recording is spoiled then.
        assert_eq!(wait(other, 1000), 107_030);
        assert!(memory.write(0, &[1; 4]).unwrap_err().to_string().contains("107030"));
        assert_eq!(end(stream, &mut graph), 107_039);
        // Another thread may, and a relaxed recording forbids only waiting for itself.
        let context = device.clone();
        assert_eq!(begin(stream, 1), 0);
        std::thread::scope(|s| s.spawn(|| memory.write(0, &[1; 4]).map(|()| context)).join().unwrap())
            .unwrap();
        assert_eq!(end(stream, &mut graph), 0);
        assert_eq!(
            (execute(graph, other), wait(other, 1000), release(graph), release(graph)),
            (0, 0, 0, 107_017)
        );
        assert_eq!(begin(stream, 2), 0);
        memory.write(0, &[1; 4]).unwrap();
        assert_eq!((wait(other, 1000), wait(stream, 1000), end(stream, &mut graph)), (0, 107_030, 107_039));
        assert_eq!((destroy(stream), destroy(other)), (0, 0));
    }
}
