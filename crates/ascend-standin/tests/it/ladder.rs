//! Every way of loading and launching, as each version of CANN has them. Kernels get the same arguments and
//! give the same results, and nothing is live at the end.

use crate::common::*;
use headwater_ascend::host::{Argument, DeviceMemory, LaunchRung, LoadRung, RuntimeSettings, Stream};
use headwater_ascend_standin::exports::control::LiveHandles;
use headwater_ascend_standin::install::Cann;

/// Loads, launches and checks by whatever the machine has.
fn work(machine: &Machine, settings: RuntimeSettings) -> (LaunchRung, u64) {
    let device = machine.device(settings);
    let module = module(machine, &device);
    let stream = Stream::new(&device).unwrap();

    // Two adjacent floats share one word; an integer after them is in the next.
    let out = DeviceMemory::alloc(&device, 5 * 8).unwrap();
    let arguments = [
        Argument::Memory(out.clone(), 0),
        Argument::Word(0x0123_4567_89ab_cdef),
        Argument::Float(1.5),
        Argument::Float(-2.0),
        Argument::Word(u64::MAX),
    ];
    let probe = module.kernel("probe").unwrap();
    stream.launch(&launch(&probe, 40, &arguments).unwrap()).unwrap();
    stream.synchronize(None).unwrap();
    let mut bytes = [0; 40];
    out.read(0, &mut bytes).unwrap();
    let words: Vec<u64> = bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
    let (a, b) = (u64::from(1.5f32.to_bits()), u64::from((-2.0f32).to_bits()));
    assert_eq!(words, [40, 0x0123_4567_89ab_cdef, a, b, u64::MAX]);

    // One launch many times, and two that follow each other on a stream.
    let (x, y) = (floats(&device, &[1.0; 100]), floats(&device, &[0.25; 100]));
    let add = module.kernel("add_f32").unwrap();
    let arguments = |x: &DeviceMemory, y: &DeviceMemory| {
        let memory = |m: &DeviceMemory| Argument::Memory(m.clone(), 0);
        [memory(x), memory(y), memory(x), Argument::Word(100)]
    };
    let step = launch(&add, 1, &arguments(&x, &y)).unwrap();
    for _ in 0..200 {
        stream.launch(&step).unwrap();
    }
    let twice = launch(&add, 1, &arguments(&x, &x)).unwrap();
    stream.launch(&twice).unwrap();
    // Handles may be dropped while queued work still uses their resources.
    drop((step, twice, add, probe, module));
    stream.synchronize(None).unwrap();
    assert_eq!(read_floats(&x), [2.0 * (1.0 + 0.25 * 200.0); 100]);
    let rung = device.runtime().launch_rung();
    (rung, machine.calls(rung.function()))
}

#[test]
fn every_version_runs_kernels_on_both_chips() {
    let rung = |cann| match cann {
        Cann::V70 => LaunchRung::Runtime,
        Cann::V80 => LaunchRung::DeviceArgs,
        Cann::V81 | Cann::V83 => LaunchRung::ArgsList,
        Cann::V90 => LaunchRung::HostArgs,
        Cann::V91 => LaunchRung::ArgsArray,
    };
    for cann in Cann::ALL {
        for machine in [Machine::a2(cann), Machine::p310(cann)] {
            assert_eq!(work(&machine, settings()), (rung(cann), 202), "{cann:?}");
            assert_eq!(machine.live(), LiveHandles::default(), "{cann:?}: something stays");
        }
    }
}

#[test]
fn every_rung_of_one_version_can_be_asked_for() {
    let machine = Machine::a2(Cann::V91);
    for rung in LaunchRung::ALL {
        let settings = RuntimeSettings { rung: Some(rung), ..settings() };
        assert_eq!(work(&machine, settings).0, rung);
        assert_eq!(machine.live(), LiveHandles::default(), "{rung:?}: something stays");
    }
}

#[test]
fn a_rung_that_is_not_there_is_refused_by_name() {
    let machine = Machine::a2(Cann::V83);
    let asked = RuntimeSettings { rung: Some(LaunchRung::ArgsArray), ..settings() };
    let error = machine.open(asked).unwrap_err();
    assert_eq!(error.code(), "HW-A110");
    assert!(error.to_string().contains("aclrtLaunchKernelWithArgsArray"), "{error}");
}

#[test]
fn half_a_rung_is_none() {
    // 8.3 whose argument lists lack one function launches as 8.0 does.
    let machine = Machine::without(Cann::V83, &Default::default(), &["aclrtKernelArgsFinalize"]);
    assert_eq!(work(&machine, settings()).0, LaunchRung::DeviceArgs);
    // Without libruntime, and without any way to load, nothing launches.
    let machine = Machine::without(Cann::V80, &Default::default(), &["aclrtBinaryLoad", "rtKernelLaunch"]);
    let error = machine.open(settings()).unwrap_err();
    assert_eq!(error.code(), "HW-A102", "{error}");
}

#[test]
fn binaries_are_loaded_as_launches_need_them() {
    use headwater_ascend::chip::Arch::{A2, P310};
    let rungs = |cann, arch| Machine::a2(cann).open(settings()).unwrap().load_rungs(arch)[0];
    assert_eq!(rungs(Cann::V91, A2), LoadRung::FromData);
    assert_eq!(rungs(Cann::V91, P310), LoadRung::FromFile);
    assert_eq!(rungs(Cann::V81, A2), LoadRung::FromFile);
    assert_eq!(rungs(Cann::V80, P310), LoadRung::Described);
    assert_eq!(rungs(Cann::V70, P310), LoadRung::Runtime);
}

#[test]
fn a_library_without_its_base_is_named() {
    let machine = Machine::without(Cann::V91, &Default::default(), &["aclrtMalloc"]);
    let error = machine.open(settings()).unwrap_err();
    assert!(error.to_string().contains("aclrtMalloc"), "{error}");
    let missing = machine.installation.root().join("nowhere.so");
    let error = headwater_ascend::host::Runtime::open(&missing, None, settings()).unwrap_err();
    assert_eq!(error.code(), "HW-A101");
}
