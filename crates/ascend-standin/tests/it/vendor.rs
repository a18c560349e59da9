//! Operators of the vendor's library instead of our own kernels: results within derived bounds, executors
//! that are kept or not, libraries that lack something, failures of every call, and nothing live at the end.

use crate::common::*;
use headwater::check::{Compared, Verdict, check};
use headwater::golden::Golden;
use headwater::inspect::{inspect, tables::tables};
use headwater::model::Model;
use headwater::report::text::table;
use headwater::runtime::TrainConfig;
use headwater_ascend::aclnn::Function;
use headwater_ascend::device::{Ascend, AscendOps};
use headwater_ascend::host::acl::symbols::GROUPS;
use headwater_ascend::host::{CompilerOptions, Installation, LiveCounts, Runtime, RuntimeSettings};
use headwater_ascend_standin::config::Config;
use headwater_ascend_standin::exports::control::LiveHandles;
use headwater_ascend_standin::install::Cann;
use headwater_core::DType::{BF16, F16, F32, F64};
use headwater_core::conformance::{self, Truth};
use headwater_core::device::{Buffer, Content, Device, Executable, Stream};
use headwater_core::evaluate::evaluate;
use headwater_core::graph::{Builder, InputRole, OutputRole};
use headwater_core::pass;
use headwater_core::plan::{Bindings, Place};
use headwater_core::{Attrs, Code, DType, Error, Graph, Registry, Result, Tensor, TensorType, ValueId};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const REPEATABLE: &str = "aclSetAclOpExecutorRepeatable";

fn on(machine: &Machine, npu: Arc<headwater_ascend::host::Device>, operators: AscendOps) -> Result<Ascend> {
    let found = Installation::below(machine.installation.root());
    let options =
        CompilerOptions { cache: machine.installation.root().join("cache"), ..CompilerOptions::from_env() };
    Ascend::on(npu, &found, options, operators)
}

fn vendor(machine: &Machine) -> Ascend {
    on(machine, machine.device(settings()), AscendOps::Vendor).unwrap()
}

/// Name of a first phase.
fn first(name: &str) -> String {
    format!("{name}GetWorkspaceSize")
}

/// Attention, convolution, a linear map and a product, with gradients of the first two.
fn graph(dtype: DType) -> Graph {
    graph_of(dtype, true, 2)
}

/// The same with attention that is causal or not, and so many heads of keys.
fn graph_of(dtype: DType, causal: bool, heads: usize) -> Graph {
    let mut b = Builder::new();
    let mut input = |name: &str, shape: &[usize]| {
        let ty = TensorType { dtype, shape: shape.into() };
        Some(b.input(name, ty, InputRole::User))
    };
    let [q, g] = ["q", "g"].map(|name| input(name, &[1, 2, 4, 8]));
    let [k, v] = ["k", "v"].map(|name| input(name, &[1, heads, 5, 8]));
    let (image, kernel, shift) =
        (input("image", &[1, 2, 4, 4]), input("kernel", &[2, 2, 3, 3]), input("shift", &[2]));
    let (x, w, bias, z) =
        (input("x", &[3, 8]), input("w", &[5, 8]), input("bias", &[5]), input("z", &[5, 6]));
    let mut apply = |name: &str, inputs: &[Option<ValueId>], attrs: Attrs| -> Vec<Option<ValueId>> {
        let op = Registry::standard().by_name(name).unwrap();
        b.apply(op, inputs, attrs).unwrap().into_iter().map(Some).collect()
    };
    let attrs = Attrs::new().with("is_causal", causal).with("scale", 0.5);
    let seen = apply("attention", &[q, k, v, None, None], attrs.clone());
    let inputs = [g, q, k, v, seen[0], seen[1], seen[2], None, None];
    let grads = apply("attention_backward", &inputs, attrs.with("mask_grad", false));
    let padded = Attrs::new().with("padding", vec![1i64, 1]);
    let y = apply("convolution", &[image, kernel, shift], padded.clone())[0];
    let sizes = |n: &[i64]| n.to_vec();
    let dw = apply(
        "convolution_weight_grad",
        &[y, image],
        padded.clone().with("weight_size", sizes(&[2, 2, 3, 3])),
    );
    let dx = apply("convolution_input_grad", &[y, kernel], padded.with("input_size", sizes(&[1, 2, 4, 4])));
    let line = apply("linear", &[x, w, bias], Attrs::new())[0];
    let product = apply("matmul", &[line, z], Attrs::new());
    // Two kernels of ours, in sequence.
    let pooled = apply("avg_pool2d", &[y], Attrs::new().with("kernel_size", vec![2i64, 2]));
    let soft = apply("softmax", &[pooled[0]], Attrs::new().with("dim", -1i64));
    let outputs = [vec![seen[0]], grads, dw, dx, product, soft].concat();
    for (i, value) in outputs.into_iter().flatten().enumerate() {
        b.output(format!("out{i}"), value, OutputRole::User);
    }
    b.finish()
}

fn inputs(graph: &Graph, round: usize) -> Vec<Tensor> {
    let fill = |(k, ty): (usize, &TensorType)| {
        let number = |i: usize| ((i * 7 + k * 5 + round * 3) % 23) as f64 / 11.0 - 1.0;
        Tensor::float(ty.dtype, ty.shape.clone(), (0..ty.shape.numel()).map(number).collect())
    };
    graph.inputs.iter().map(|i| graph.ty(i.value)).enumerate().map(fill).collect()
}

/// Faults of results, within derived bounds.
fn faults(graph: &Graph, inputs: &[Tensor], got: &[Tensor], device: &dyn Device) -> Vec<String> {
    judged(graph, &self::graph(F64), inputs, got, device)
}

fn judged(
    graph: &Graph,
    exact: &Graph,
    inputs: &[Tensor],
    got: &[Tensor],
    device: &dyn Device,
) -> Vec<String> {
    let mut wrong = Vec::new();
    Truth::new(graph, exact, inputs, device.target()).unwrap().judge("the graph", got, &mut wrong);
    wrong
}

#[test]
fn operators_are_within_their_bounds() {
    let machine = Machine::a2(Cann::V91);
    let device = vendor(&machine);
    for name in [
        "matmul",
        "linear",
        "attention",
        "attention_backward",
        "convolution",
        "convolution_input_grad",
        "convolution_weight_grad",
    ] {
        let op = Registry::standard().by_name(name).unwrap();
        let result = conformance::operator(&device, op, &[F32, F16, BF16]);
        assert!(result.wrong.is_empty(), "{:#?}", result.wrong);
        assert!(result.refused.is_empty() && result.ran[name] > 5, "{name}: {result:?}");
    }
    // Cases of attention have values of other sizes than keys, which the vendor's does not take.
    for (dtype, causal, heads) in [(F32, true, 2), (F32, false, 2), (F16, false, 1), (BF16, true, 1)] {
        let (graph, exact) = (graph_of(dtype, causal, heads), graph_of(F64, causal, heads));
        let inputs = inputs(&graph, 0);
        let got = evaluate(&device, &graph, &inputs).unwrap();
        let wrong = judged(&graph, &exact, &inputs, &got, &device);
        assert!(wrong.is_empty(), "{dtype}, causal: {causal}, {heads} heads of keys: {wrong:#?}");
    }
    for name in Function::NAMES {
        assert!(machine.calls(name) > 0, "{name} is not called");
        assert_eq!(
            machine.calls(&first(name)),
            2 * machine.calls(name),
            "{name}: once at loading, once at running"
        );
    }
    drop(device);
    assert_eq!(machine.live(), LiveHandles::default());
}

#[test]
fn models_agree_with_pytorch() {
    let machine = Machine::new(Cann::V91, &Config { memory: 512 << 20, ..Config::default() });
    let device = vendor(&machine);
    for (family, precision, wanted) in [
        ("vit", F32, &["aclnnAddmm", "aclnnMatmul", "aclnnFlashAttentionScoreGrad"][..]),
        ("vit", BF16, &["aclnnFlashAttentionScore"]),
        ("gpt2", F32, &["aclnnFlashAttentionScoreGrad"]),
        ("resnet", F32, &["aclnnConvolution", "aclnnConvolutionBackward"]),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(family);
        let model = Model::open(&folder.join(format!("{family}.train.pt2"))).unwrap();
        let golden = Golden::read(&folder.join(format!("{family}.train.golden.safetensors"))).unwrap();
        let before: Vec<u64> = wanted.iter().map(|name| machine.calls(name)).collect();
        let report = check(&model, &golden, precision, &device).unwrap_or_else(|e| panic!("{family}: {e:#}"));
        // In f32 all is proved.
        let agrees = |c: &Compared| c.passed() && (precision != F32 || c.verdict == Verdict::Proved);
        let wrong: Vec<_> = report.compared.iter().filter(|c| !agrees(c)).map(|c| &c.name).collect();
        assert!(wrong.is_empty() && report.missing.is_empty(), "{family} in {precision}: {wrong:?}");
        for (name, before) in wanted.iter().zip(before) {
            assert!(machine.calls(name) > before, "{family} in {precision} does not call {name}");
        }
    }
    let notes = device.notes().join("\n");
    for part in ["by aclnnAddmm", "bytes of workspace"] {
        assert!(notes.contains(part), "{part} is not in {notes}");
    }
    assert!(device.remark().is_some_and(|r| r.contains("--ascend-ops vendor") && r.contains("rounding")));
    drop(device);
    assert_eq!(machine.live(), LiveHandles::default());
}

#[test]
fn rounding_is_another_than_that_of_own_kernels() {
    let machine = Machine::a2(Cann::V91);
    let graph = graph(F32);
    let inputs = inputs(&graph, 0);
    let bits = |operators| {
        let device = on(&machine, machine.device(settings()), operators).unwrap();
        evaluate(&device, &graph, &inputs).unwrap()
    };
    assert!(bits(AscendOps::Own) != bits(AscendOps::Vendor));
    assert_eq!(bits(AscendOps::Own), bits(AscendOps::Own));
}

#[test]
fn a_survey_names_the_function_of_each_step() {
    let machine = Machine::without(Cann::V91, &Config::default(), &["aclnnConvolution"]);
    let device = vendor(&machine);
    let graph = graph(F32);
    let plan = pass::plan(&graph, &Bindings::simple(&graph), device.target()).unwrap();
    let used = device.survey(&plan);
    let by = |op: &str| {
        let at = plan.steps.iter().position(|step| step.op == op).unwrap();
        (used[at].vendor.clone().unwrap(), used[at].predicted.is_some())
    };
    assert_eq!(by("matmul"), (Ok("aclnnMatmul"), false));
    assert_eq!(by("convolution_weight_grad"), (Ok("aclnnConvolutionBackward"), false));
    let (why, predicted) = by("convolution");
    assert!(predicted && why.unwrap_err().contains("no function aclnnConvolution"));
    drop(device);
    assert_eq!(machine.live(), LiveHandles::default());
}

/// A loaded plan with its memory.
struct Run {
    graph: Graph,
    executable: Box<dyn Executable>,
    stream: Box<dyn Stream>,
    memory: Vec<Arc<dyn Buffer>>,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    steps: usize,
}

impl Run {
    fn new(device: &dyn Device) -> Run {
        let graph = graph(F32);
        let bindings = Bindings::simple(&graph);
        let plan = pass::plan(&graph, &bindings, device.target()).unwrap();
        let alloc = |bytes| device.alloc(bytes, Content::Zero).unwrap();
        Run {
            executable: device.load(&plan).unwrap(),
            stream: device.stream().unwrap(),
            memory: plan.segments.iter().map(|s| alloc(s.bytes)).collect(),
            inputs: bindings.inputs.iter().map(|place| place.unwrap()).collect(),
            outputs: bindings.outputs.iter().map(|place| place.unwrap()).collect(),
            steps: plan.steps.len(),
            graph,
        }
    }

    fn step(&mut self, round: usize) -> Result<Vec<Tensor>> {
        for (place, tensor) in self.inputs.iter().zip(inputs(&self.graph, round)) {
            self.stream.write(&self.memory[place.segment.0 as usize], place.offset, &tensor.to_bytes())?;
        }
        self.executable.submit(self.stream.as_ref(), &self.memory, 0..self.steps)?;
        self.stream.synchronize()?;
        let read = |(place, output): (&Place, &headwater_core::graph::Output)| {
            let ty = self.graph.ty(output.value);
            let mut data = vec![0; ty.bytes()];
            self.stream.read(&self.memory[place.segment.0 as usize], place.offset, &mut data)?;
            Ok(Tensor::from_bytes(ty, &data))
        };
        self.outputs.iter().zip(&self.graph.outputs).map(read).collect()
    }

    fn check(&mut self, device: &dyn Device, round: usize) {
        let got = self.step(round).unwrap_or_else(|e| panic!("round {round}: {e}"));
        let wrong = faults(&self.graph, &inputs(&self.graph, round), &got, device);
        assert!(wrong.is_empty(), "round {round}: {wrong:#?}");
    }
}

#[test]
fn executors_are_kept_where_they_can_be_and_prepared_for_each_call_where_not() {
    const ROUNDS: u64 = 4;
    for (hidden, refused) in [(&[][..], 0), (&[REPEATABLE][..], 0), (&[][..], 100)] {
        let machine = Machine::without(Cann::V91, &Config::default(), hidden);
        (1..=refused).for_each(|nth| machine.inject(REPEATABLE, nth, 561_000));
        let device = vendor(&machine);
        let mut run = Run::new(&device);
        (0..ROUNDS as usize).for_each(|round| run.check(&device, round));
        let kept = hidden.is_empty() && refused == 0;
        // Once at loading, then once or each time.
        let prepared = 1 + if kept { 1 } else { ROUNDS };
        for (name, steps) in
            [("aclnnMatmul", 1), ("aclnnFlashAttentionScore", 1), ("aclnnConvolutionBackward", 2)]
        {
            assert_eq!(machine.calls(name), steps * ROUNDS, "{name}");
            assert_eq!(machine.calls(&first(name)), steps * prepared, "{name}, kept: {kept}");
        }
        // Other memory is prepared for anew, and its results are right.
        let other: Vec<Arc<dyn Buffer>> =
            run.memory.iter().map(|m| device.alloc(m.bytes(), Content::Zero).unwrap()).collect();
        let mine = std::mem::replace(&mut run.memory, other);
        run.check(&device, 7);
        assert_eq!(machine.calls(&first("aclnnMatmul")), prepared + 1);
        run.memory = mine;
        run.check(&device, 8);
        assert_eq!(machine.calls(&first("aclnnMatmul")), prepared + if kept { 1 } else { 2 });
        drop((run, device));
        assert_eq!(machine.live(), LiveHandles::default(), "{hidden:?} {refused}");
    }
}

#[test]
fn a_kept_executor_that_is_refused_is_replaced_by_both_phases() {
    let machine = Machine::a2(Cann::V91);
    let device = vendor(&machine);
    let mut run = Run::new(&device);
    run.check(&device, 0);
    machine.inject("aclnnMatmul", 1, 561_000);
    (1..4).for_each(|round| run.check(&device, round));
    // Loading, the first round, and each round from the refusal on.
    assert_eq!(machine.calls(&first("aclnnMatmul")), 5);
    drop((run, device));
    assert_eq!(machine.live(), LiveHandles::default());
}

#[test]
fn a_vendors_step_divides_a_recording() {
    let machine = Machine::a2(Cann::V91);
    let npu = machine.device(settings());
    let device = on(&machine, npu.clone(), AscendOps::Vendor).unwrap();
    let mut run = Run::new(&device);
    (0..4).for_each(|round| run.check(&device, round));
    assert_eq!(npu.unrecorded(), None);
    // Kernels of ours are recorded in the second round, and each operator is given in every round.
    assert_eq!((machine.calls("aclmdlRICaptureBegin"), machine.calls("aclmdlRIExecuteAsync")), (1, 3));
    assert_eq!((machine.calls("aclnnAddmm"), machine.calls("aclnnConvolution")), (4, 4));
}

#[test]
fn libraries_that_lack_something_leave_steps_to_own_kernels() {
    // An operator, what operands need, and all of it.
    for (hidden, called, reason) in [
        (&["aclnnAddmm"][..], "aclnnMatmul", "1 step of linear by Headwater's own kernels: HW-A102"),
        (&["aclCreateTensor"][..], "", "no function aclCreateTensor"),
        (&["aclDestroyAclOpExecutor"][..], "", "no function aclDestroyAclOpExecutor"),
        (&[][..], "", "libopapi.so"),
    ] {
        let machine = Machine::without(Cann::V91, &Config::default(), hidden);
        if hidden.is_empty() {
            std::fs::remove_file(machine.installation.home().join("lib64/libopapi.so")).unwrap();
        }
        let device = vendor(&machine);
        let graph = graph(F32);
        let inputs = inputs(&graph, 0);
        let got = evaluate(&device, &graph, &inputs).unwrap();
        let wrong = faults(&graph, &inputs, &got, &device);
        assert!(wrong.is_empty(), "{hidden:?}: {wrong:#?}");
        for name in Function::NAMES {
            let missing = called.is_empty() || hidden.contains(&name);
            assert_eq!(machine.calls(name) == 0, missing, "{hidden:?}: {name}");
        }
        let notes = device.notes();
        assert!(notes.iter().any(|n| n.contains(reason)), "{hidden:?}: {notes:#?}");
        // It is said once.
        assert!(device.notes().is_empty());
        drop(device);
        assert_eq!(machine.live(), LiveHandles::default());
    }
    let machine = Machine::without(Cann::V91, &Config::default(), &["aclrtCtxSetSysParamOpt"]);
    let notes = vendor(&machine).notes().join("\n");
    assert!(
        notes.contains("may change from run to run: the runtime has no aclrtCtxSetSysParamOpt"),
        "{notes}"
    );
}

#[test]
fn the_vendors_operators_are_refused_on_310p_by_name() {
    let machine = Machine::p310(Cann::V91);
    let error = on(&machine, machine.device(settings()), AscendOps::Vendor).unwrap_err();
    assert_eq!(error.code, Code::Unsupported);
    for part in ["Ascend310P3", "aclnnFlashAttentionScoreGrad", "--ascend-ops own"] {
        assert!(error.message.contains(part), "{error}");
    }
    assert_eq!(machine.live(), LiveHandles::default());
}

/// Calls that release: their failure is noted, and what they failed to release is all that stays.
const RELEASING: [&str; 5] = [
    "aclDestroyTensor",
    "aclDestroyScalar",
    "aclDestroyIntArray",
    "aclDestroyBoolArray",
    "aclDestroyAclOpExecutor",
];

/// A failure of the driver, after which the device is lost; refusals of the runtime and of an operator.
const STATUSES: [i32; 3] = [507_899, 107_000, 561_103];

#[test]
fn a_failure_of_every_call_gives_right_results_or_is_named_and_leaves_nothing() {
    let machine = Machine::a2(Cann::V91);
    let graph = graph(F32);
    let inputs = inputs(&graph, 0);
    let run = |runtime: &Arc<Runtime>| -> Result<Vec<String>> {
        let npu = headwater_ascend::host::Device::open(runtime, 0).map_err(Error::from)?;
        let device = on(&machine, npu, AscendOps::Vendor)?;
        let got = evaluate(&device, &graph, &inputs)?;
        Ok(faults(&graph, &inputs, &got, &device))
    };
    let runtime = || machine.open(RuntimeSettings { graphs: false, ..settings() }).unwrap();
    let groups = ["Determinism", "Operands", "Repeatable", "Matmul", "Addmm", "FlashAttention"];
    let groups = groups.into_iter().chain(["FlashAttentionGrad", "Convolution", "ConvolutionGrad"]);
    let names: Vec<&str> = groups
        .flat_map(|group| GROUPS.iter().find(|(name, _)| *name == group).unwrap().1.iter().copied())
        .collect();
    let before: Vec<u64> = names.iter().map(|name| machine.calls(name)).collect();
    assert_eq!(run(&runtime()).unwrap(), Vec::<String>::new());
    let calls: Vec<u64> =
        names.iter().zip(before).map(|(name, before)| machine.calls(name) - before).collect();
    let (mut injected, mut failed) = (0, 0);
    for (name, calls) in names.into_iter().zip(calls) {
        assert!(calls > 0, "{name} is not called");
        let mut places = vec![1, calls.div_ceil(2), calls];
        places.dedup();
        for (nth, status) in places.into_iter().flat_map(|nth| STATUSES.map(|status| (nth, status))) {
            injected += 1;
            let context = format!("call {nth} of {calls} of {name} gives {status}");
            let before = machine.live();
            machine.inject(name, nth, status);
            let runtime = runtime();
            let outcome = run(&runtime);
            machine.forget();
            let live = runtime.live();
            let released = LiveCounts { failed_releases: Vec::new(), ..live.clone() };
            assert_eq!(released, LiveCounts::default(), "{context}");
            drop(runtime);
            match outcome {
                Ok(wrong) => assert!(wrong.is_empty(), "{context}: {wrong:#?}"),
                Err(error) => {
                    failed += 1;
                    assert!(error.to_string().contains(name), "{context}: {error}");
                    assert!(!RELEASING.contains(&name), "{context}: {error}");
                }
            }
            if RELEASING.contains(&name) {
                assert!(live.failed_releases.contains(&(name, status)), "{context}: {live:?}");
            } else {
                assert_eq!(machine.live(), before, "{context}: something stays");
            }
        }
    }
    assert!(injected > 140 && failed > 20, "{injected} failures, {failed} of them errors");
}

#[test]
fn memory_that_is_not_there_is_named_and_leaves_nothing() {
    let machine = Machine::a2(Cann::V91);
    let once = || -> Result<()> {
        let device = on(&machine, machine.device(settings()), AscendOps::Vendor)?;
        let graph = graph(F32);
        evaluate(&device, &graph, &inputs(&graph, 0)).map(drop)
    };
    once().unwrap();
    let calls = machine.calls("aclrtMalloc");
    // Memory of the plan, its constants, scratch memory and the operators' workspace.
    assert!(calls > 3, "{calls} calls");
    for nth in 1..=calls {
        machine.inject("aclrtMalloc", nth, 207_001);
        let error = once().unwrap_err().to_string();
        assert!(error.contains("HW-A104") && error.contains("no room for"), "allocation {nth}: {error}");
        assert_eq!(machine.live(), LiveHandles::default(), "allocation {nth}");
    }
}

#[test]
fn an_operator_that_never_ends_and_a_lost_device_are_named_and_leave_nothing() {
    for lost in [false, true] {
        let machine = Machine::a2(Cann::V91);
        let limit = Duration::from_secs(3);
        // Each launch is waited for, so the one that hangs is distinguished from later ones.
        let npu = machine.device(RuntimeSettings { limit, blocking: true, ..settings() });
        let runtime = npu.runtime().clone();
        let device = on(&machine, npu, AscendOps::Vendor).unwrap();
        let mut run = Run::new(&device);
        run.check(&device, 0);
        if lost {
            machine.lose(0, 507_010);
        } else {
            machine.stall("aclnnFlashAttentionScoreGrad");
        }
        let start = Instant::now();
        let hangs = ["HW-A106", "waiting for kernel `aclnnFlashAttentionScoreGrad`", "--ascend-ops own"];
        let parts = if lost { ["HW-A107", "is lost", "npu-smi"] } else { hangs };
        for round in 1..3 {
            let error = run.step(round).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "lost: {lost}: {error}");
        }
        drop((run, device));
        assert!(start.elapsed() < 3 * limit, "lost: {lost}: {:?}", start.elapsed());
        let released = LiveCounts { failed_releases: Vec::new(), ..runtime.live() };
        assert_eq!(released, LiveCounts::default(), "lost: {lost}");
        drop(runtime);
        // Handles on a lost device are refused and go with it; those of the host do not.
        let LiveHandles { operands, executors, .. } = machine.live();
        assert_eq!((operands, executors), (0, 0), "lost: {lost}");
        assert!(lost || machine.live() == LiveHandles::default(), "{:?}", machine.live());
    }
}

#[test]
fn an_inspection_lists_functions_and_their_workspace() {
    let machine = Machine::without(Cann::V91, &Config::default(), &["aclnnAddmm"]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/vit");
    let model = Model::open(&folder.join("vit.train.pt2")).unwrap();
    let golden = Golden::read(&folder.join("vit.train.golden.safetensors")).unwrap();
    let bound = model.bind_to(&golden).unwrap();
    let found = |operators| {
        let device = on(&machine, machine.device(settings()), operators).unwrap();
        let settings = TrainConfig::default().training(device.target()).unwrap();
        let found = inspect(&model, &bound, &device, &settings).unwrap();
        let text: Vec<String> = tables(&found, device.name()).iter().map(table).collect();
        (found, text.concat())
    };
    let (own, text) = found(AscendOps::Own);
    assert_eq!((own.vendor_workspace, own.remark), (None, None));
    assert!(!text.contains("aclnn"), "{text}");
    let (vendor, text) = found(AscendOps::Vendor);
    // Each of the stand-in's operators requests as much, and steps share it.
    assert_eq!(vendor.vendor_workspace, Some(1000));
    assert_eq!(vendor.memory, own.memory);
    for part in [
        "aclnnFlashAttentionScore",
        "no function aclnnAddmm",
        "workspace of the vendor's",
        "changes rounding",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
