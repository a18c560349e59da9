//! The device of the core's contract over the stand-in: every operator, errors in data, failures of the
//! device.

use crate::common::*;
use headwater_ascend::device::{Ascend, AscendOps, AscendSim};
use headwater_ascend::host::{CompilerOptions, Installation};
use headwater_ascend_standin::config::Config;
use headwater_ascend_standin::exports::control::LiveHandles;
use headwater_ascend_standin::install::Cann;
use headwater_core::DType::{BF16, F16, F32};
use headwater_core::conformance;
use headwater_core::device::{Content, Device};
use headwater_core::evaluate::evaluate;
use headwater_core::graph::{Builder, InputRole, OutputRole};
use headwater_core::plan::Bindings;
use headwater_core::{Attrs, Code, DType, Registry, Tensor, TensorType, pass};

fn ascend(machine: &Machine) -> Ascend {
    let found = Installation::below(machine.installation.root());
    let options =
        CompilerOptions { cache: machine.installation.root().join("cache"), ..CompilerOptions::from_env() };
    Ascend::on(machine.device(settings()), &found, options, AscendOps::Own).unwrap()
}

#[test]
fn every_operator_gives_its_results() {
    let config = Config { soc: "Ascend310P3".into(), ..Config::default() };
    // Without a toolkit 310P has no compiler: there the host computes everything.
    for machine in [Machine::a2(Cann::V91), Machine::new(Cann::V70, &config)] {
        let result = conformance::operators(&ascend(&machine), &[F32, F16, BF16]);
        assert!(result.wrong.is_empty(), "{:#?}", result.wrong);
        // The host computes where chips do not: in f64 and wide integers.
        assert!(result.refused.is_empty(), "{:?}", result.refused);
        for operator in ["matmul", "attention", "convolution", "argmax", "cross_entropy_loss", "embedding"] {
            assert!(result.ran[operator] > 0, "{operator} does not run");
        }
        assert!(result.ran.values().sum::<usize>() > 1000, "{} cases", result.ran.len());
        assert_eq!(machine.live(), LiveHandles::default());
    }
}

/// Operators of several launches, of products and of kernels that report to the host.
const LAUNCHED: [&str; 11] = [
    "matmul",
    "linear",
    "attention",
    "attention_backward",
    "convolution",
    "convolution_input_grad",
    "convolution_weight_grad",
    "check_index",
    "max_pool2d_with_indices",
    "avg_pool2d",
    "philox_uniform",
];

#[test]
fn kernels_give_the_bits_of_the_simulated_device() {
    let config = Config { soc: "Ascend310P3".into(), ..Config::default() };
    let compiler = std::path::Path::new(env!("CARGO_BIN_EXE_headwater-standin-compiler"));
    let machines = [
        (Machine::a2(Cann::V91), "910b1", &[F32, F16, BF16][..]),
        // Kernels of 310P are compiled by the toolkit's executables.
        (Machine::with_compiler(Cann::V91, &config, compiler), "310p", &[F32, F16][..]),
    ];
    for (machine, chip, dtypes) in machines {
        let (npu, simulated) = (ascend(&machine), AscendSim::from_name(chip, 1).unwrap());
        for op in Registry::standard().operators().iter().filter(|op| LAUNCHED.contains(&op.name)) {
            let mut launches = 0;
            for case in (op.cases)() {
                for &dtype in dtypes {
                    let Some(graph) = conformance::graph_of(op, &case, dtype) else { continue };
                    let inputs = conformance::numbers(&graph, &case);
                    let bits = |device: &dyn Device| -> Vec<Vec<u8>> {
                        let name = format!("{} ({}) in {dtype} on {}", op.name, case.name, device.name());
                        let out = evaluate(device, &graph, &inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
                        out.iter().map(Tensor::to_bytes).collect()
                    };
                    assert!(bits(&npu) == bits(&simulated), "{} ({}) in {dtype}", op.name, case.name);
                    let plan = pass::plan(&graph, &Bindings::simple(&graph), npu.target()).unwrap();
                    launches += npu.survey(&plan).iter().map(|step| step.launches).sum::<usize>();
                }
            }
            assert!(launches > 0, "{} runs by no kernel on {chip}", op.name);
        }
        drop(npu);
        assert_eq!(machine.live(), LiveHandles::default());
    }
}

/// Attention is one kernel of cube and vector cores where the runtime gives the address by which they
/// synchronise, and several launches elsewhere.
#[test]
fn cores_of_both_kinds_need_an_address() {
    let op = Registry::standard().by_name("attention").unwrap();
    let types = [[1, 1, 128, 16], [1, 1, 520, 16], [1, 1, 520, 16]]
        .map(|shape| TensorType { dtype: F16, shape: shape.as_slice().into() });
    let mut b = Builder::new();
    let names = ["query", "key", "value"];
    let input = |(name, ty): (&str, &TensorType)| Some(b.input(name, ty.clone(), InputRole::User));
    let mut inputs: Vec<_> = names.into_iter().zip(&types).map(input).collect();
    inputs.extend([None, None]);
    let outs = b.apply(op, &inputs, Attrs::new().with("scale", 0.25)).unwrap();
    for (name, &out) in ["out", "log"].into_iter().zip(&outs) {
        b.output(name, out, OutputRole::User);
    }
    let graph = b.finish();
    let values: Vec<Tensor> = (types.iter())
        .map(|ty| {
            let numbers = (0..ty.shape.numel()).map(|i| half::f16::from_f64((i * 37 % 101) as f64 / 101.0));
            Tensor::from_bytes(ty, &numbers.flat_map(half::f16::to_le_bytes).collect::<Vec<u8>>())
        })
        .collect();
    let bits = |device: &dyn Device| -> Vec<Vec<u8>> {
        evaluate(device, &graph, &values).unwrap().iter().map(Tensor::to_bytes).collect()
    };
    let hidden = ["aclrtGetHardwareSyncAddr", "rtGetC2cCtrlAddr"];
    let lacking = Machine::without(Cann::V91, &Config::default(), &hidden);
    let refusing = Machine::a2(Cann::V91);
    refusing.inject(hidden[0], 1, 107_000);
    let simulated = AscendSim::from_name("910b1", 1).unwrap();
    for (machine, launches) in [(Machine::a2(Cann::V91), 1), (lacking, 3), (refusing, 3)] {
        let npu = ascend(&machine);
        let plan = pass::plan(&graph, &Bindings::simple(&graph), npu.target()).unwrap();
        let steps = npu.survey(&plan);
        assert_eq!(steps.iter().map(|step| step.launches).sum::<usize>(), launches);
        assert_eq!(bits(&npu) == bits(&simulated), launches == 1);
    }
}

/// `embedding(weight, indices)` of three rows.
fn lookup(indices: &[i64]) -> (headwater_core::Graph, [Tensor; 2]) {
    let mut b = Builder::new();
    let weight = TensorType { dtype: F32, shape: [3, 2].as_slice().into() };
    let index = TensorType { dtype: DType::I64, shape: [indices.len()].as_slice().into() };
    let inputs = [
        Some(b.input("weight", weight.clone(), InputRole::User)),
        Some(b.input("indices", index.clone(), InputRole::User)),
    ];
    let op = Registry::standard().by_name("embedding").unwrap();
    let out = b.apply(op, &inputs, Attrs::default()).unwrap();
    b.output("out", out[0], OutputRole::User);
    let bytes: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
    let rows: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    (b.finish(), [Tensor::from_bytes(&weight, &rows), Tensor::from_bytes(&index, &bytes)])
}

#[test]
fn an_index_out_of_range_is_reported_and_over() {
    let machine = Machine::a2(Cann::V91);
    let device = ascend(&machine);
    let (graph, inputs) = lookup(&[2, 3]);
    let error = evaluate(&device, &graph, &inputs).unwrap_err();
    assert_eq!(error.code, Code::Value, "{error}");
    let (graph, inputs) = lookup(&[2, 0]);
    assert_eq!(evaluate(&device, &graph, &inputs).unwrap()[0].floats(), [4.0, 5.0, 0.0, 1.0]);
}

#[test]
fn work_is_ordered_on_streams_and_by_events() {
    let machine = Machine::a2(Cann::V83);
    let device = ascend(&machine);
    let buffer = device.alloc(1000, Content::Zero).unwrap();
    let other = device.alloc(1000, Content::Undefined).unwrap();
    let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
    let zeros = a.fetch(&buffer, 0, 1000).unwrap().wait().unwrap();
    assert_eq!(zeros, vec![0; 1000]);
    for round in 0..50u8 {
        let data: Vec<u8> = (0..1000).map(|i| (i % 251) as u8 ^ round).collect();
        a.write(&buffer, 0, &data).unwrap();
        let event = a.record().unwrap();
        b.wait(&event).unwrap();
        b.copy(&buffer, 0, &other, 0, 1000).unwrap();
        b.fill(&other, 10, 5, 7).unwrap();
        let fetched = b.fetch(&other, 8, 9).unwrap();
        // Later work on the first stream must not overtake the second's copy.
        a.wait(&b.record().unwrap()).unwrap();
        let mut want = data[8..17].to_vec();
        want[2..7].fill(7);
        assert_eq!(fetched.wait().unwrap(), want);
        event.synchronize().unwrap();
        assert!(event.is_done());
    }
    for refused in [a.write(&buffer, 999, &[0; 2]), a.fill(&buffer, usize::MAX, 2, 0)] {
        assert_eq!(refused.unwrap_err().code, Code::Device);
    }
}

#[test]
fn a_lost_device_is_reported_by_everything() {
    let machine = Machine::a2(Cann::V90);
    let device = ascend(&machine);
    let buffer = device.alloc(64, Content::Zero).unwrap();
    let stream = device.stream().unwrap();
    machine.lose(0, 507_010);
    let first = stream.synchronize().unwrap_err();
    assert_eq!(first.code, Code::Device);
    assert_eq!(stream.write(&buffer, 0, &[1]).unwrap_err(), first);
    assert_eq!(device.alloc(64, Content::Zero).unwrap_err(), first);
    let (graph, inputs) = lookup(&[0]);
    assert_eq!(evaluate(&device, &graph, &inputs).unwrap_err(), first);
}
