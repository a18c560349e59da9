//! Output of `headwater doctor` for machines: whole ones, and ones that lack something.

use crate::common::*;
use headwater_ascend::host::survey::Survey;
use headwater_ascend::host::{CompilerOptions, Installation};
use headwater_ascend_standin::config::Config;
use headwater_ascend_standin::exports::control::LiveHandles;
use headwater_ascend_standin::install::{Cann, StandinInstallation};
use std::path::Path;

const COMPILER: &str = env!("CARGO_BIN_EXE_headwater-standin-compiler");

fn survey(installation: &StandinInstallation) -> Survey {
    let options = CompilerOptions { cache: installation.root().join("cache"), ..CompilerOptions::from_env() };
    Survey::of(&Installation::below(installation.root()), settings(), options)
}

fn whats(survey: &Survey) -> Vec<&str> {
    survey.missing.iter().map(|m| m.what.as_str()).collect()
}

/// Libraries that the stand-in has not, and Headwater's own kernels do not need.
const ALWAYS: [&str; 1] = ["libhccl.so"];

#[test]
fn a_whole_machine_lacks_nothing_that_kernels_need() {
    let config = Config { devices: 2, ..Config::default() };
    let machine = Machine::with_compiler(Cann::V91, &config, Path::new(COMPILER));
    let survey = survey(&machine.installation);
    assert_eq!(whats(&survey), ALWAYS);
    assert_eq!(survey.driver.as_deref(), Some("25.0.rc1"));
    assert_eq!(survey.firmware.as_deref(), Some("7.7.0.1.231"));
    assert_eq!((survey.toolkit.as_deref(), survey.runtime.as_deref()), (Some("9.1.0"), Some("9.1.0")));
    assert_eq!(survey.launches[0], "aclrtLaunchKernelWithArgsArray");
    assert_eq!(survey.compiler_a2.as_deref(), Some("aclrtc"));
    let devices: Vec<_> = survey.devices.iter().map(|d| (d.name.as_str(), d.chip.as_str())).collect();
    assert_eq!(devices, [("ascend:0", "Ascend910B1"), ("ascend:1", "Ascend910B1")]);
    assert_eq!((survey.devices[0].total, survey.devices[0].cores), (config.memory, Some((48, 24))));
    // Each device has replayed a recording.
    assert_eq!((survey.devices[0].unrecorded.as_deref(), machine.calls("aclmdlRIExecuteAsync")), (None, 2));
    // Nothing stays open.
    assert_eq!(machine.live(), LiveHandles::default());
}

#[test]
fn it_is_said_why_launches_are_not_replayed() {
    let machine = Machine::a2(Cann::V91);
    machine.inject("aclmdlRICaptureEnd", 1, 107_000);
    let first = survey(&machine.installation).devices.remove(0);
    assert!(first.unrecorded.unwrap().contains("aclmdlRICaptureEnd"));
    assert_eq!(machine.live(), LiveHandles::default());
    let old = Machine::a2(Cann::V80);
    let old = survey(&old.installation).devices.remove(0);
    assert!(old.unrecorded.unwrap().contains("CANN 8.1"));
}

#[test]
fn what_is_missing_is_named_with_what_it_is_needed_for() {
    // An older CANN without a toolkit, with another chip's operators.
    let installation = StandinInstallation::new(Cann::V80, &Config::default(), None).unwrap();
    let operators = installation.home().join("opp/built-in/op_impl/ai_core/tbe/kernel");
    std::fs::rename(operators.join("ascend910b"), operators.join("ascend310p")).unwrap();
    let survey = self::survey(&installation);
    assert_eq!(survey.operators, ["ascend310p"]);
    let needed: Vec<_> = survey.missing.iter().map(|m| (m.what.as_str(), m.needed_for.as_str())).collect();
    let operators = "the vendor's operators; Headwater's own kernels do not need it";
    assert_eq!(
        needed[..2],
        [
            ("a compiler for A2 and A3", "compiling kernels"),
            ("the operator package for A2 and A3", operators)
        ]
    );

    // `ccec` does not compile for both kinds of core at once.
    let with = StandinInstallation::new(Cann::V81, &Config::default(), Some(Path::new(COMPILER))).unwrap();
    assert!(whats(&self::survey(&with)).contains(&"a compiler for cube and vector cores together"));
}

#[test]
fn a_machine_that_does_not_start_is_reported_and_not_an_error() {
    let machine = Machine::a2(Cann::V91);
    machine.inject("aclrtGetDeviceCount", 1, 507_899);
    let text = format!("{:?}", survey(&machine.installation).missing);
    assert!(text.contains("internal error of the driver"), "{text}");
    machine.inject("aclrtSetDevice", 1, 507_033);
    let found = survey(&machine.installation);
    assert!(found.devices.is_empty());
    assert!(format!("{:?}", found.missing).contains("ascend:0"));
    let none = Machine::new(Cann::V91, &Config { devices: 0, ..Config::default() });
    assert!(whats(&survey(&none.installation)).contains(&"a device"));
    let empty = tempfile::tempdir().unwrap();
    let options = CompilerOptions { cache: empty.path().into(), ..CompilerOptions::from_env() };
    let nothing = Survey::of(&Installation::below(empty.path()), settings(), options);
    assert!(nothing.is_empty() && nothing.missing.is_empty());
}
