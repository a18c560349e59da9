//! Kernel programs from the builder to the emitted source, through a compiler, the binary and the launch, to
//! the simulator that the stand-in runs. They give the same bits as the simulator by itself.

use crate::common::*;
use headwater_ascend::emit::emit;
use headwater_ascend::host::{
    Argument, CompileUnit, Compiler, CompilerOptions, CoreKind, DeviceMemory, Error, Installation, Module,
    Stream,
};
use headwater_ascend::kernel::{Elem, Instr, ParamKind, Program, StmtKind};
use headwater_ascend::kernels::add;
use headwater_ascend::sim::{self, Arg, Launch, Mode};
use headwater_ascend::{Arch, Chip};
use headwater_ascend_standin::config::Config;
use headwater_ascend_standin::exports::control::LiveHandles;
use headwater_ascend_standin::install::Cann;
use std::path::Path;

const COMPILER: &str = env!("CARGO_BIN_EXE_headwater-standin-compiler");
const LEN: usize = 5003;

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b3" } else { "310p" }).unwrap()
}

fn machine(cann: Cann, arch: Arch) -> Machine {
    let config = Config { soc: chip(arch).soc.into(), ..Config::default() };
    Machine::with_compiler(cann, &config, Path::new(COMPILER))
}

/// Bytes of the tensors before: f16 numbers of no pattern that adding hides.
fn contents(program: &Program) -> Vec<Vec<u8>> {
    let bytes = |i: usize| program.params[i].bytes() as usize;
    let number =
        |i: usize, seed: usize| half::f16::from_f32(((i * 37 + seed * 101) % 2039) as f32 / 16.0 - 60.0);
    let tensor = |seed: usize| (0..bytes(seed) / 2).flat_map(|i| number(i, seed).to_le_bytes()).collect();
    vec![tensor(0), tensor(1), vec![0; bytes(2)]]
}

/// The result by the simulator alone.
fn simulated(program: &Program, blocks: u32) -> Vec<u8> {
    let tensors = contents(program);
    let stride = tensors[0].len().next_multiple_of(512);
    let mut memory = vec![0; 3 * stride];
    for (place, tensor) in memory.chunks_mut(stride).zip(&tensors) {
        place[..tensor.len()].copy_from_slice(tensor);
    }
    let args = [0, 1, 2].map(|i| Arg::Pointer((i * stride) as u64));
    let launch = Launch::new(program, chip(program.arch), blocks, &args, Mode::Fast);
    sim::launch(&launch, &mut memory).unwrap();
    memory[2 * stride..][..2 * LEN].to_vec()
}

/// The result by way of the host side.
fn launched(machine: &Machine, program: &Program, blocks: u32) -> Result<Vec<u8>, Error> {
    let found = Installation::below(machine.installation.root());
    let options =
        CompilerOptions { cache: machine.installation.root().join("cache"), ..CompilerOptions::from_env() };
    let unit = CompileUnit {
        name: "sums".into(),
        source: emit(program),
        kernels: vec![program.name.clone()],
        core: CoreKind::Vector,
    };
    let compiled = Compiler::find(&found, program.arch, options)?.compile(&[unit])?;
    let device = machine.device(settings());
    let module = Module::load(&device, compiled.binaries[0].clone())?;
    let stream = Stream::new(&device)?;
    let mut arguments = Vec::new();
    for (param, tensor) in program.params.iter().zip(contents(program)) {
        assert!(matches!(param.kind, ParamKind::Pointer { .. }));
        let memory = DeviceMemory::alloc(&device, tensor.len())?;
        memory.write(0, &tensor)?;
        arguments.push(Argument::Memory(memory, 0));
    }
    stream.launch(&launch(&module.kernel(&program.name)?, blocks, &arguments)?)?;
    stream.synchronize(None)?;
    let mut out = vec![0; 2 * LEN];
    let Some(Argument::Memory(sum, _)) = arguments.get(2) else { panic!("three pointers") };
    sum.read(0, &mut out)?;
    Ok(out)
}

#[test]
fn kernels_give_the_simulators_bits_by_every_rung() {
    for arch in Arch::ALL {
        let program = add(arch, Elem::F16, LEN as u64, 1024).unwrap();
        for cann in Cann::ALL {
            let machine = machine(cann, arch);
            let got = launched(&machine, &program, 3).unwrap_or_else(|e| panic!("{cann:?} {arch}: {e}"));
            assert_eq!(got, simulated(&program, 3), "{cann:?} {arch}");
            assert_eq!(machine.live(), LiveHandles::default(), "{cann:?} {arch}: something stays");
        }
    }
}

#[test]
fn a_finding_comes_back_as_an_exception_of_the_kernel() {
    for arch in Arch::ALL {
        let mut program = add(arch, Elem::F16, LEN as u64, 1024).unwrap();
        // Without the last wait before the end, flags are left over.
        let last = program.parts[0]
            .body
            .iter()
            .rposition(|stmt| matches!(&stmt.kind, StmtKind::Instr(Instr::WaitFlag { .. })));
        program.parts[0].body.remove(last.unwrap());
        let error = launched(&machine(Cann::V90, arch), &program, 2).unwrap_err();
        let Error::Kernel { sites, detail, .. } = &error else { panic!("{error}") };
        assert_eq!(sites[0].kernel, program.name);
        assert!(detail.contains("HW-A011"), "{error}");
        assert!(error.to_string().contains("model.py:7"), "{error}");
    }
}

#[test]
fn memory_that_is_too_small_is_an_exception() {
    let machine = machine(Cann::V91, Arch::A2);
    let program = add(Arch::A2, Elem::F16, LEN as u64, 1024).unwrap();
    let device = machine.device(settings());
    let options =
        CompilerOptions { cache: machine.installation.root().join("cache"), ..CompilerOptions::from_env() };
    let found = Installation::below(machine.installation.root());
    let name = program.name.clone();
    let unit =
        CompileUnit { name: "u".into(), source: emit(&program), kernels: vec![name], core: CoreKind::Vector };
    let compiled = Compiler::find(&found, Arch::A2, options).unwrap().compile(&[unit]).unwrap();
    let module = Module::load(&device, compiled.binaries[0].clone()).unwrap();
    let memory = DeviceMemory::alloc(&device, 64).unwrap();
    let arguments = [0, 1, 2].map(|_| Argument::Memory(memory.clone(), 0));
    let stream = Stream::new(&device).unwrap();
    stream.launch(&launch(&module.kernel(&program.name).unwrap(), 1, &arguments).unwrap()).unwrap();
    let error = stream.synchronize(None).unwrap_err();
    assert!(error.to_string().contains("are not device memory"), "{error}");
}
