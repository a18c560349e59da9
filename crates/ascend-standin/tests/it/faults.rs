//! Injected failures: every call of the interface, memory, kernels, the device itself. Errors name the
//! call, the kernel and the line of the model; nothing hangs, and nothing is live at the end.

use crate::common::*;
use headwater_ascend::host::acl::symbols::GROUPS;
use headwater_ascend::host::{
    Argument, Device, DeviceMemory, Error, Graph, LiveCounts, PinnedMemory, Result, Runtime, RuntimeSettings,
    Stream,
};
use headwater_ascend_standin::config::Config;
use headwater_ascend_standin::exports::control::LiveHandles;
use headwater_ascend_standin::install::Cann;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A failure of the driver, after which the device is lost, and a refusal, after which it goes on.
const STATUSES: [i32; 2] = [507_899, 107_000];

/// A step as training does it: memory, copies both ways, launches on two streams that wait for each other.
fn step(machine: &Machine, runtime: &Arc<Runtime>) -> Result<()> {
    let device = Device::open(runtime, 0)?;
    device.memory()?;
    device.sync_address()?;
    let module = headwater_ascend::host::Module::load(&device, binary_in(machine, 2201))?;
    let kernel = module.kernel("add_f32")?;
    let (first, second) = (Stream::new(&device)?, Stream::new(&device)?);
    let x = DeviceMemory::alloc(&device, 400)?;
    let y = DeviceMemory::alloc(&device, 400)?;
    y.write(0, &[0; 400])?;
    let mut host = PinnedMemory::alloc(&device, 400)?;
    host.copy_from_slice(&1.0f32.to_le_bytes().repeat(100));
    let sent = first.write(&x, 0, host)?;
    first.fill(&y, 0, 400, 0)?;
    second.wait(&first.record()?)?;
    let memory = |m: &DeviceMemory| Argument::Memory(m.clone(), 0);
    let arguments = [memory(&x), memory(&y), memory(&y), Argument::Word(100)];
    let (add, again) = (launch(&kernel, 8, &arguments)?, launch(&kernel, 8, &arguments)?);
    // Enough launches for marks to be set.
    for _ in 0..70 {
        second.launch(&add)?;
    }
    let recorded = device.unrecorded().is_none();
    if recorded {
        let graph = Graph::record(&Arc::new(Stream::new(&device)?), &[again, add])?;
        second.replay(&graph)?;
        second.replay(&graph)?;
    }
    second.copy((&y, 0), (&x, 0), 400)?;
    let got = second.read(&x, 0, sent.wait(None)?)?.wait(None)?;
    second.synchronize(None)?;
    first.synchronize(None)?;
    let mut bytes = [0; 4];
    x.read(0, &mut bytes)?;
    assert_eq!(f32::from_le_bytes(bytes), if recorded { 74.0 } else { 70.0 });
    assert_eq!(&got[..4], &bytes);
    Ok(())
}

/// Names of a call in an error, of whatever kind.
fn call_of(error: &Error) -> String {
    match error {
        Error::Call { call, .. } | Error::Lost { call, .. } => call.to_string(),
        other => panic!("{other}"),
    }
}

/// Calls that only inform: their failure changes no result, and they may be missing.
const INFORMING: [&str; 5] = [
    "aclrtStreamGetId",
    "aclrtGetThreadLastTaskId",
    "aclrtSetExceptionInfoCallback",
    "aclrtGetDeviceInfo",
    "aclsysGetVersionStr",
];

/// Calls that work also makes in passing, on releases and to see what is done already, where nothing hangs on
/// them.
const ASKED_IN_PASSING: [&str; 2] = ["aclrtSetCurrentContext", "aclrtQueryEventStatus"];

/// Calls that release: their failure is noted, and what they failed to release is all that stays.
const RELEASING: [&str; 11] = [
    "aclFinalize",
    "aclrtResetDevice",
    "aclrtFree",
    "aclrtFreeHost",
    "aclrtDestroyStream",
    "aclrtDestroyStreamForce",
    "aclrtDestroyEvent",
    "aclrtBinaryUnLoad",
    "aclmdlRIDestroy",
    "aclrtDestroyBinary",
    "rtDevBinaryUnRegister",
];

#[test]
fn a_failure_of_every_call_of_every_version_is_named_and_leaves_nothing() {
    let mut injected = 0;
    for cann in Cann::ALL {
        // Functions that a step calls here, with the number of calls.
        let machine = Machine::a2(cann);
        step(&machine, &machine.open(settings()).unwrap()).unwrap();
        assert_eq!(machine.live(), LiveHandles::default());
        let names = GROUPS.iter().flat_map(|(_, names)| names.iter().copied());
        let calls: Vec<_> = names.map(|name| (name, machine.calls(name))).filter(|(_, n)| *n > 0).collect();
        for (name, calls) in calls {
            // Nothing records failures once the runtime is finalised.
            if name == "aclFinalize" {
                continue;
            }
            // The first, one in the middle, the last.
            let places = [1, calls.div_ceil(2), calls];
            for (nth, status) in places.into_iter().flat_map(|nth| STATUSES.map(|status| (nth, status))) {
                injected += 1;
                let context = format!("{cann:?}: call {nth} of {calls} of {name} gives {status}");
                let before = machine.live();
                machine.inject(name, nth, status);
                let start = Instant::now();
                let (outcome, live) = match machine.open(settings()) {
                    Ok(runtime) => (step(&machine, &runtime), runtime.live()),
                    Err(error) => (Err(error), LiveCounts::default()),
                };
                machine.forget();
                assert!(start.elapsed() < Duration::from_secs(15), "{context}: took {:?}", start.elapsed());
                let released = LiveCounts { failed_releases: Vec::new(), ..live.clone() };
                assert_eq!(released, LiveCounts::default(), "{context}");
                if RELEASING.contains(&name) {
                    outcome.unwrap_or_else(|e| panic!("{context}: {e}"));
                    assert_eq!(live.failed_releases, [(name, status)], "{context}");
                } else if INFORMING.contains(&name) {
                    outcome.unwrap_or_else(|e| panic!("{context}: {e}"));
                    assert_eq!(machine.live(), before, "{context}: something stays");
                } else if name == "aclrtCreateBinary" {
                    // It gives no status.
                    assert!(outcome.unwrap_err().to_string().contains(name), "{context}");
                    assert_eq!(machine.live(), before, "{context}: something stays");
                } else if outcome.is_ok() && ASKED_IN_PASSING.contains(&name) {
                    assert_eq!(machine.live(), before, "{context}: something stays");
                } else {
                    let error = outcome.expect_err(&context);
                    assert_eq!(call_of(&error), name, "{context}");
                    assert!(error.to_string().contains("made to fail"), "{context}: {error}");
                    assert_eq!(machine.live(), before, "{context}: something stays");
                }
            }
        }
    }
    assert!(injected > 900, "{injected} failures");
}

#[test]
fn memory_that_is_not_there_is_said_with_figures() {
    let machine = Machine::new(Cann::V91, &Config { memory: 1 << 20, ..Config::default() });
    let device = machine.device(settings());
    let some = DeviceMemory::alloc(&device, 600 << 10).unwrap();
    let error = DeviceMemory::alloc(&device, 600 << 10).unwrap_err();
    let Error::OutOfMemory { bytes, free, total, .. } = &error else { panic!("{error}") };
    assert_eq!((*bytes, *total), (600 << 10, 1 << 20));
    assert!(*free < 424 << 10, "{free}");
    assert!(!error.is_sticky());
    // The device goes on.
    drop(some);
    DeviceMemory::alloc(&device, 600 << 10).unwrap();
    assert!(DeviceMemory::alloc(&device, usize::MAX - 7).is_err());
}

#[test]
fn a_kernel_that_fails_is_named_with_its_line_and_the_device_says_so_again() {
    for cann in Cann::ALL {
        let machine = Machine::a2(cann);
        let device = machine.device(settings());
        let module = module(&machine, &device);
        let (idle, stream) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
        let good = module.kernel("sleep_20").unwrap();
        let bad = module.kernel("fault").unwrap();
        let launch = |kernel, line| {
            headwater_ascend::host::Launch::new(kernel, 1, &[], site("rms_norm_f16", line)).unwrap()
        };
        stream.launch(&launch(&good, 11)).unwrap();
        stream.launch(&launch(&bad, 12)).unwrap();
        stream.launch(&launch(&good, 13)).unwrap();
        let error = stream.synchronize(None).unwrap_err();
        let Error::Kernel { status, sites, others, .. } = &error else { panic!("{error}") };
        assert_eq!((*status, sites.len(), *others), (507_035, 1, 0));
        let text = error.to_string();
        for part in ["rms_norm_f16", "encoder.layer.0", "model.py:12", "VECTOR_CORE_EXCEPTION", "to do"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        // Everything of the device gives the same error from now on.
        assert_eq!(idle.synchronize(None).unwrap_err(), error);
        assert_eq!(DeviceMemory::alloc(&device, 8).unwrap_err(), error);
        assert_eq!(device.first_error(), Some(&error));
        let core: headwater_core::Error = error.into();
        assert_eq!(core.code.as_str(), "HW-C011");
        drop((idle, stream, good, bad, module, device));
        assert_eq!(machine.live(), LiveHandles::default(), "{cann:?}");
    }
}

#[test]
fn without_task_numbers_all_launches_that_may_be_at_fault_are_named() {
    let hidden = ["aclrtSetExceptionInfoCallback"];
    let machine = Machine::without(Cann::V81, &Config::default(), &hidden);
    let device = machine.device(settings());
    let module = module(&machine, &device);
    let stream = Stream::new(&device).unwrap();
    for (i, name) in ["sleep_20", "fault", "sleep_20"].into_iter().enumerate() {
        let kernel = module.kernel(name).unwrap();
        let launch = headwater_ascend::host::Launch::new(&kernel, 1, &[], site(name, i as u32)).unwrap();
        stream.launch(&launch).unwrap();
    }
    let error = stream.synchronize(None).unwrap_err();
    let Error::Kernel { sites, .. } = &error else { panic!("{error}") };
    assert_eq!(sites.len(), 3);
    assert!(error.to_string().contains("HEADWATER_ASCEND_BLOCKING"), "{error}");

    // With blocking launches the one at fault is known.
    let machine = Machine::without(Cann::V81, &Config::default(), &hidden);
    let device = machine.device(RuntimeSettings { blocking: true, ..settings() });
    let module = crate::common::module(&machine, &device);
    let stream = Stream::new(&device).unwrap();
    let kernel = |name| module.kernel(name).unwrap();
    stream.launch(&launch(&kernel("sleep_20"), 1, &[]).unwrap()).unwrap();
    let error = stream.launch(&launch(&kernel("fault"), 1, &[]).unwrap()).unwrap_err();
    let Error::Kernel { sites, others, .. } = &error else { panic!("{error}") };
    assert_eq!((sites.len(), *others, sites[0].kernel.as_str()), (1, 0, "fault"));
}

#[test]
fn a_kernel_that_never_ends_is_timed_out_by_name() {
    for cann in [Cann::V70, Cann::V91] {
        let machine = Machine::a2(cann);
        let device = machine.device(settings());
        let module = module(&machine, &device);
        let stream = Stream::new(&device).unwrap();
        let kernel = |name| module.kernel(name).unwrap();
        // More launches than there are between two marks, so that retired ones are not suspected.
        for line in 0..200 {
            let quick = headwater_ascend::host::Launch::new(
                &kernel("add_f32"),
                1,
                &add_nothing(&device),
                site("quick", line),
            );
            stream.launch(&quick.unwrap()).unwrap();
        }
        stream.synchronize(None).unwrap();
        stream.launch(&launch(&kernel("spin"), 1, &[]).unwrap()).unwrap();
        let start = Instant::now();
        let error = stream.synchronize(Some(Duration::from_millis(100))).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5));
        let Error::Timeout { sites, others, limit, .. } = &error else { panic!("{error}") };
        assert_eq!((sites.len(), *others, limit.as_millis()), (1, 0, 100));
        assert!(error.to_string().contains("`spin`") && error.to_string().contains("model.py:7"), "{error}");
        // An event recorded after it returns the same error.
        assert_eq!(stream.record().unwrap_err(), error);
        drop((stream, module, device));
        assert_eq!(machine.live(), LiveHandles::default());
    }
}

/// Arguments of `add_f32` for no elements.
fn add_nothing(device: &Arc<Device>) -> [Argument; 4] {
    let memory = DeviceMemory::alloc(device, 8).unwrap();
    let memory = || Argument::Memory(memory.clone(), 0);
    [memory(), memory(), memory(), Argument::Word(0)]
}

#[test]
fn launches_that_are_done_are_not_suspected() {
    let machine = Machine::a2(Cann::V91);
    let device = machine.device(settings());
    let module = module(&machine, &device);
    let stream = Stream::new(&device).unwrap();
    let quick = module.kernel("add_f32").unwrap();
    for line in 0..64 {
        let launch =
            headwater_ascend::host::Launch::new(&quick, 1, &add_nothing(&device), site("quick", line));
        stream.launch(&launch.unwrap()).unwrap();
    }
    stream.launch(&launch(&module.kernel("spin").unwrap(), 1, &[]).unwrap()).unwrap();
    for line in 100..103 {
        let launch =
            headwater_ascend::host::Launch::new(&quick, 1, &add_nothing(&device), site("late", line));
        stream.launch(&launch.unwrap()).unwrap();
    }
    let error = stream.record().unwrap().wait(Some(Duration::from_millis(200))).unwrap_err();
    let Error::Timeout { sites, others, .. } = &error else { panic!("{error}") };
    let names: Vec<_> = sites.iter().map(|s| s.kernel.as_str()).collect();
    assert_eq!((names, *others), (vec!["spin", "late", "late", "late"], 0));
}

#[test]
fn the_device_itself_ends_a_kernel_that_is_over_its_limit() {
    let machine = Machine::a2(Cann::V81);
    let device = machine.device(RuntimeSettings { kernel_limit: Some(Duration::from_secs(1)), ..settings() });
    let module = module(&machine, &device);
    let stream = Stream::new(&device).unwrap();
    stream.launch(&launch(&module.kernel("spin").unwrap(), 1, &[]).unwrap()).unwrap();
    let error = stream.synchronize(None).unwrap_err();
    let Error::Kernel { status: 507_034, sites, .. } = &error else { panic!("{error}") };
    assert_eq!(sites[0].kernel, "spin");
}

#[test]
fn a_stream_that_hangs_and_cannot_be_destroyed_keeps_its_memory() {
    let machine = Machine::without(Cann::V81, &Config::default(), &["aclrtDestroyStreamForce"]);
    let runtime = machine.open(settings()).unwrap();
    let device = Device::open(&runtime, 0).unwrap();
    let module = module(&machine, &device);
    let stream = Stream::new(&device).unwrap();
    let memory = DeviceMemory::alloc(&device, 64).unwrap();
    stream.launch(&launch(&module.kernel("spin").unwrap(), 1, &[]).unwrap()).unwrap();
    stream.fill(&memory, 0, 64, 1).unwrap();
    stream.synchronize(Some(Duration::from_millis(50))).unwrap_err();
    let start = Instant::now();
    drop((stream, memory, module));
    assert!(start.elapsed() < Duration::from_secs(5));
    // The device may still write there, so it was not freed.
    assert_eq!(machine.live().device_allocations, 1);
    assert_eq!(runtime.live().failed_releases.len(), 1);
    machine.lose(0, 507_010);
}

#[test]
fn a_lost_device_is_said_once_and_again() {
    let machine = Machine::a2(Cann::V90);
    let device = machine.device(settings());
    let module = module(&machine, &device);
    let stream = Stream::new(&device).unwrap();
    let memory = DeviceMemory::alloc(&device, 64).unwrap();
    stream.launch(&launch(&module.kernel("spin").unwrap(), 1, &[]).unwrap()).unwrap();
    machine.lose(0, 507_010);
    let error = stream.synchronize(None).unwrap_err();
    assert!(matches!(error, Error::Lost { status: 507_010, .. }), "{error}");
    assert_eq!(memory.write(0, &[0; 8]).unwrap_err(), error);
    assert!(error.to_string().contains("npu-smi"), "{error}");
    let start = Instant::now();
    drop((memory, stream, module, device));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn misuse_is_refused_before_it_reaches_the_library() {
    let machine = Machine::new(Cann::V91, &Config { devices: 2, ..Config::default() });
    let runtime = machine.open(settings()).unwrap();
    let device = Device::open(&runtime, 0).unwrap();
    let other = Device::open(&runtime, 1).unwrap();
    assert!(Device::open(&runtime, 2).unwrap_err().to_string().contains("RT_INVALID_DEVICEID"));
    let memory = DeviceMemory::alloc(&device, 64).unwrap();
    let usage = |error: Error| assert_eq!(error.code(), "HW-A110", "{error}");
    usage(memory.write(60, &[0; 8]).unwrap_err());
    usage(memory.write(usize::MAX, &[0; 8]).unwrap_err());
    usage(memory.read(65, &mut []).unwrap_err());
    let stream = Stream::new(&other).unwrap();
    usage(stream.fill(&memory, 0, 8, 0).unwrap_err());
    let own = Stream::new(&device).unwrap();
    usage(own.copy((&memory, 0), (&memory, 8), 16).unwrap_err());
    usage(stream.wait(&own.record().unwrap()).unwrap_err());
    let kernel = module(&machine, &device).kernel("sleep_20").unwrap();
    usage(launch(&kernel, 0, &[]).unwrap_err());
    usage(launch(&kernel, 1, &vec![Argument::Word(0); 129]).unwrap_err());
    usage(launch(&kernel, 1, &[Argument::Memory(memory.clone(), 65)]).unwrap_err());
    usage(stream.launch(&launch(&kernel, 1, &[]).unwrap()).unwrap_err());
    let missing = module(&machine, &device).kernel("nothing").unwrap_err();
    assert!(missing.to_string().contains("nothing"), "{missing}");
    let foreign = headwater_ascend::host::Module::load(&device, binary(2002)).unwrap_err();
    assert!(foreign.to_string().contains("2002"), "{foreign}");
    // None of this has hurt the devices.
    own.launch(&launch(&kernel, 1, &[]).unwrap()).unwrap();
    own.synchronize(None).unwrap();
}

#[test]
fn a_library_that_is_open_already_is_shared_and_finalised_once() {
    let machine = Machine::a2(Cann::V91);
    let first = machine.open(settings()).unwrap();
    let second = machine.open(settings()).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    drop(first);
    assert_eq!(machine.live().initialised, 1);
    drop(second);
    assert_eq!(machine.live().initialised, 0);
    assert_eq!((machine.calls("aclInit"), machine.calls("aclFinalize")), (1, 1));
}

#[test]
fn a_library_that_others_initialised_is_left_to_them() {
    let machine = Machine::a2(Cann::V91);
    machine.inject("aclInit", 1, 100_002);
    drop(machine.open(settings()).unwrap());
    assert_eq!(machine.calls("aclFinalize"), 0);
}
