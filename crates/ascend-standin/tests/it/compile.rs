//! Every way to compile, as versions and chips have them. The same kernels come out, are found again in the
//! cache, and failures are named.

use crate::common::*;
use headwater_ascend::chip::Arch;
use headwater_ascend::host::{
    Argument, CompileUnit, Compiler, CompilerOptions, CoreKind, DeviceMemory, Error, Installation, Module,
    Stream,
};
use headwater_ascend_standin::config::Config;
use headwater_ascend_standin::exports::control::LiveHandles;
use headwater_ascend_standin::install::{Cann, StandinInstallation};
use std::path::Path;
use std::time::{Duration, Instant};

const COMPILER: &str = env!("CARGO_BIN_EXE_headwater-standin-compiler");

fn machine(cann: Cann, arch: Arch) -> Machine {
    let soc = if arch == Arch::P310 { "Ascend310P3" } else { "Ascend910B3" };
    let config = Config { soc: soc.into(), ..Config::default() };
    Machine::with_compiler(cann, &config, Path::new(COMPILER))
}

fn options(installation: &StandinInstallation) -> CompilerOptions {
    CompilerOptions {
        cache: installation.root().join("cache"),
        workers: 4,
        limit: Duration::from_secs(20),
        auto_sync: false,
        in_process: true,
    }
}

fn compiler(installation: &StandinInstallation, arch: Arch) -> Result<Compiler, Error> {
    Compiler::find(&Installation::below(installation.root()), arch, options(installation))
}

/// A source as it is emitted: code, then the programs in comments.
fn source(kernels: &[(&str, &str)]) -> String {
    let mut text = String::from("#include \"kernel_operator.h\"\n");
    for (name, _) in kernels {
        text += &format!("extern \"C\" __global__ __aicore__ void {name}()\n{{\n}}\n");
    }
    for (name, program) in kernels {
        text += &format!("// headwater-program {name}\n");
        program.lines().for_each(|line| text += &format!("// {line}\n"));
        text += "// headwater-program-end\n";
    }
    text
}

fn unit(name: &str, kernels: &[(&str, &str)]) -> CompileUnit {
    let names = kernels.iter().map(|(name, _)| name.to_string()).collect();
    CompileUnit { name: name.into(), source: source(kernels), kernels: names, core: CoreKind::Vector }
}

#[test]
fn what_is_compiled_runs_on_every_version_and_chip() {
    for cann in Cann::ALL {
        for arch in [Arch::A2, Arch::P310] {
            let context = format!("{cann:?} {arch:?}");
            let machine = machine(cann, arch);
            let compiler = compiler(&machine.installation, arch).unwrap();
            let name = compiler.name();
            let expected = match (cann, arch) {
                (Cann::V83 | Cann::V90 | Cann::V91, Arch::A2) => "aclrtc",
                (Cann::V90 | Cann::V91, Arch::P310) => "bisheng",
                _ => "ccec",
            };
            assert!(name.ends_with(expected), "{context}: {name}");

            let units = [unit("first", KERNELS), unit("second", &KERNELS[..1])];
            let compiled = compiler.compile(&units).unwrap();
            assert_eq!((compiled.fresh, compiled.cached), (2, 0), "{context}");
            assert_eq!(compiled.binaries[1].name, "second");

            // Another process would find them in the cache.
            let again = self::compiler(&machine.installation, arch).unwrap().compile(&units).unwrap();
            assert_eq!((again.fresh, again.cached), (0, 2), "{context}");
            assert_eq!(again.binaries, compiled.binaries, "{context}");

            {
                let device = machine.device(settings());
                let module = Module::load(&device, compiled.binaries[0].clone()).unwrap();
                let stream = Stream::new(&device).unwrap();
                let x = floats(&device, &[1.5; 8]);
                let memory = |m: &DeviceMemory| Argument::Memory(m.clone(), 0);
                let arguments = [memory(&x), memory(&x), memory(&x), Argument::Word(8)];
                let add = launch(&module.kernel("add_f32").unwrap(), 2, &arguments).unwrap();
                stream.launch(&add).unwrap();
                stream.synchronize(None).unwrap();
                assert_eq!(read_floats(&x), [3.0; 8], "{context}");
            }
            assert_eq!(machine.live(), LiveHandles::default(), "{context}: something stays");
        }
    }
}

#[test]
fn anything_that_matters_is_part_of_the_key() {
    let machine = machine(Cann::V91, Arch::P310);
    let fresh = |unit: CompileUnit, options: CompilerOptions| {
        let found = Installation::below(machine.installation.root());
        Compiler::find(&found, Arch::P310, options).unwrap().compile(&[unit]).unwrap().fresh
    };
    let base = unit("u", KERNELS);
    let options = || options(&machine.installation);
    assert_eq!(fresh(base.clone(), options()), 1);
    assert_eq!(fresh(base.clone(), options()), 0);
    let source = format!("{}// one line more\n", base.source);
    assert_eq!(fresh(CompileUnit { source, ..base.clone() }, options()), 1);
    assert_eq!(fresh(base.clone(), CompilerOptions { auto_sync: true, ..options() }), 1);
    // A newer toolkit in the same place.
    let arch = format!("{}-linux", std::env::consts::ARCH);
    let info = machine.installation.home().join(arch).join("ascend_toolkit_install.info");
    std::fs::write(info, "version=9.1.1\n").unwrap();
    assert_eq!(fresh(base.clone(), options()), 1);
    assert_eq!(fresh(base, options()), 0);
}

#[test]
fn a_damaged_cache_is_compiled_over() {
    let machine = machine(Cann::V91, Arch::P310);
    let compiler = compiler(&machine.installation, Arch::P310).unwrap();
    let units = [unit("u", KERNELS)];
    let compiled = compiler.compile(&units).unwrap();
    let path = compiled.binaries[0].path.clone().unwrap();
    std::fs::write(&path, b"half").unwrap();
    let again = compiler.compile(&units).unwrap();
    assert_eq!((again.fresh, &again.binaries), (1, &compiled.binaries));
    assert_eq!(std::fs::read(path).unwrap(), *compiled.binaries[0].bytes);
}

#[test]
fn a_source_that_does_not_compile_is_named_with_its_kernel() {
    for (cann, arch) in [(Cann::V91, Arch::A2), (Cann::V91, Arch::P310), (Cann::V81, Arch::P310)] {
        let machine = machine(cann, arch);
        let compiler = compiler(&machine.installation, arch).unwrap();
        let mut bad = unit("bad", KERNELS);
        let inside = "void add_f32()\n{\n#error no such intrinsic\n";
        bad.source = bad.source.replace("void add_f32()\n{\n", inside);
        let units = [unit("good", KERNELS), bad, unit("late", KERNELS)];
        let error = compiler.compile(&units).unwrap_err();
        let Error::Compile { unit, kernels, log, .. } = &error else { panic!("{error}") };
        assert_eq!((unit.as_str(), kernels.as_str()), ("bad", "`add_f32`"), "{cann:?} {arch:?}: {error}");
        assert!(log.contains("no such intrinsic"), "{error}");
        assert_eq!(machine.live(), LiveHandles::default());
    }
}

#[test]
fn a_compiler_that_hangs_or_writes_nothing_is_an_error() {
    let machine = machine(Cann::V81, Arch::A2);
    let found = Installation::below(machine.installation.root());
    let limited = CompilerOptions { limit: Duration::from_millis(200), ..options(&machine.installation) };
    let compiler = Compiler::find(&found, Arch::A2, limited).unwrap();
    let with =
        |line: &str| CompileUnit { source: format!("{line}\n{}", source(KERNELS)), ..unit("u", KERNELS) };
    let start = Instant::now();
    let error = compiler.compile(&[with("// standin: sleep 60000")]).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(error.to_string().contains("200ms"), "{error}");
    let error = compiler.compile(&[with("// standin: no output")]).unwrap_err();
    assert_eq!(error.code(), "HW-A108", "{error}");
}

#[test]
fn units_are_compiled_at_the_same_time() {
    let machine = machine(Cann::V81, Arch::A2);
    let folder = machine.installation.root().join("meeting");
    std::fs::create_dir(&folder).unwrap();
    // Compilers that run sequentially would wait for each other in vain.
    let meeting = |i: usize| {
        let unit = unit(&format!("u{i}"), KERNELS);
        CompileUnit { source: format!("// standin: meet {} 4\n{}", folder.display(), unit.source), ..unit }
    };
    let units: Vec<_> = (0..4).map(meeting).collect();
    let limited = CompilerOptions { limit: Duration::from_secs(60), ..options(&machine.installation) };
    let found = Installation::below(machine.installation.root());
    let compiled = Compiler::find(&found, Arch::A2, limited).unwrap().compile(&units).unwrap();
    let names: Vec<_> = compiled.binaries.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(names, ["u0", "u1", "u2", "u3"]);
}

#[test]
fn what_there_is_no_compiler_for_is_said() {
    let without = StandinInstallation::new(Cann::V81, &Config::default(), None).unwrap();
    let error = compiler(&without, Arch::P310).unwrap_err();
    assert!(error.to_string().contains("ccec is not below"), "{error}");
    assert_eq!(error.code(), "HW-A109");
    // Kernels of cube and vector cores need a newer compiler than `ccec`.
    let machine = machine(Cann::V81, Arch::A2);
    let mixed = CompileUnit { core: CoreKind::Mixed, ..unit("u", KERNELS) };
    let error = compiler(&machine.installation, Arch::A2).unwrap().compile(&[mixed]).unwrap_err();
    assert_eq!(error.code(), "HW-A109", "{error}");
}

#[test]
fn every_call_of_the_compiler_library_may_fail() {
    let machine = machine(Cann::V91, Arch::A2);
    let compiler = compiler(&machine.installation, Arch::A2).unwrap();
    let names = headwater_ascend::host::acl::symbols::Compilation::NAMES;
    for (i, name) in names.iter().enumerate() {
        // The log is read only after a failure, and the program is destroyed in either case.
        let expected = !name.contains("Log") && !name.contains("Destroy");
        machine.inject(name, 1, 576_000);
        let outcome = compiler.compile(&[unit(&format!("u{i}"), KERNELS)]);
        machine.forget();
        assert_eq!(outcome.is_err(), expected, "{name}");
        if let Err(error) = outcome {
            assert!(error.to_string().contains("576000"), "{name}: {error}");
        }
    }
    assert_eq!(machine.live().programs, 1, "of the failed release");
}

#[test]
fn an_installation_says_what_it_is() {
    let machine = machine(Cann::V83, Arch::P310);
    let found = Installation::below(machine.installation.root());
    assert_eq!(found.toolkit_version().as_deref(), Some("8.3.RC1"));
    assert_eq!(found.driver_version().as_deref(), Some("25.0.rc1"));
    assert_eq!(found.firmware_version().as_deref(), Some("7.7.0.1.231"));
    assert_eq!(found.operator_chips(), ["ascend310p"]);
    assert_eq!(found.operators_version().as_deref(), Some("8.3.RC1"));
    assert_eq!(found.library("libascendcl.so"), Some(machine.installation.acl()));
    assert_eq!(found.library("libhccl.so"), None);
    assert!(!found.takes_npu_arch());
    assert_eq!(Installation::below(Path::new("/nonexistent")), Installation::default());
}
