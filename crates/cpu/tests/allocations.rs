//! A training step allocates nothing and starts no thread, from the second run on.

use headwater_core::compile::{Goal, Options, optimize};
use headwater_core::device::{Content, Device};
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::loss::cross_entropy::CROSS_ENTROPY_LOSS;
use headwater_core::ops::norm::layer_norm::LAYER_NORM;
use headwater_core::ops::pointwise::gelu::GELU;
use headwater_core::ops::update::adamw::ADAMW;
use headwater_core::ops::{index::embedding::EMBEDDING, linear::linear::LINEAR};
use headwater_core::plan::{Bindings, Work};
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType, pass};
use headwater_cpu::Cpu;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting.
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator as they are.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TOKENS: usize = 96;
const VOCABULARY: usize = 70;
const WIDTH: usize = 48;

/// Embedding, two layers with norm and GELU, cross-entropy; backward; AdamW on every parameter, in place.
fn step(dtype: DType) -> Graph {
    let mut b = Builder::new();
    let table = b.parameter("table", dtype, &[VOCABULARY, WIDTH]);
    let gamma = b.parameter("gamma", dtype, &[WIDTH]);
    let up = b.parameter("up", dtype, &[4 * WIDTH, WIDTH]);
    let bias = b.parameter("bias", dtype, &[4 * WIDTH]);
    let down = b.parameter("down", dtype, &[VOCABULARY, 4 * WIDTH]);
    let ids = b.input("ids", TensorType::new(DType::I64, [TOKENS]), InputRole::User);
    let labels = b.input("labels", TensorType::new(DType::I64, [TOKENS]), InputRole::User);
    let attrs = Attrs::new().with("padding_idx", -1).with("scale_grad_by_freq", false);
    let x = b.one(&EMBEDDING, &[table, ids], attrs).unwrap();
    let attrs = Attrs::new().with("normalized_shape", vec![WIDTH as i64]).with("eps", 1e-5);
    let x = b.apply(&LAYER_NORM, &[Some(x), Some(gamma), None], attrs).unwrap()[0];
    let x = b.one(&LINEAR, &[x, up, bias], Attrs::new()).unwrap();
    let x = b.one(&GELU, &[x], Attrs::new()).unwrap();
    let x = b.apply(&LINEAR, &[Some(x), Some(down), None], Attrs::new()).unwrap()[0];
    let attrs = Attrs::new().with("reduction", 1).with("ignore_index", -100).with("label_smoothing", 0.0);
    let loss = b.apply(&CROSS_ENTROPY_LOSS, &[Some(x), Some(labels), None], attrs).unwrap()[0];
    b.output("loss", loss, OutputRole::User);
    let target = Cpu::new(2).target().clone();
    let options = Options { stop_after: Some("differentiate"), ..Options::default() };
    let d = optimize(b.finish(), &options, &target).unwrap();
    assert!(d.missing.is_empty());
    let mut b = Builder::extend(d.graph);
    let scalars: Vec<_> = ["scale", "decay", "step_size", "correction"]
        .map(|n| b.input(n, TensorType::new(DType::F32, []), InputRole::State))
        .into();
    let apply = b.input("apply", TensorType::new(DType::Bool, []), InputRole::State);
    for i in 0..b.graph().outputs.len() {
        let output = b.graph().outputs[i].clone();
        let OutputRole::Gradient(p) = output.role else { continue };
        let ty = b.ty(p).clone();
        let moment = |b: &mut Builder, name: &str| {
            b.input(format!("{name}.{p}"), TensorType::new(DType::F32, ty.shape.clone()), InputRole::State)
        };
        let (m, v) = (moment(&mut b, "m"), moment(&mut b, "v"));
        let (master, gradient) = (b.cast(p, DType::F32).unwrap(), b.cast(output.value, DType::F32).unwrap());
        let attrs = Attrs::new().with("beta1", 0.9).with("beta2", 0.999).with("eps", 1e-8);
        let [scale, decay, step_size, correction] = scalars[..] else { unreachable!("four scalars") };
        let moments = [Some(master), Some(gradient), Some(m), Some(v), None];
        let scalars = [scale, apply, decay, step_size, correction].map(Some);
        let inputs: Vec<_> = moments.into_iter().chain(scalars).collect();
        let new = b.apply(&ADAMW, &inputs, attrs).unwrap();
        let low = b.cast(new[0], ty.dtype).unwrap();
        b.output(format!("new.{p}"), low, OutputRole::Mutation(p));
        b.output(format!("new.m.{p}"), new[1], OutputRole::Mutation(m));
        b.output(format!("new.v.{p}"), new[2], OutputRole::Mutation(v));
    }
    let options = Options { goal: Goal::Step, ..Options::default() };
    optimize(b.finish(), &options, &target).unwrap().graph
}

/// Numbers for an input.
fn fill(name: &str, ty: &TensorType) -> Tensor {
    let n = ty.shape.numel();
    let at = |i: usize| (i * 7919 % 1000) as f64 / 1000.0 - 0.5;
    match ty.dtype {
        DType::I64 => {
            let ids = (0..n).map(|i| (i * 31 % VOCABULARY) as i64).collect();
            Tensor { ty: ty.clone(), data: headwater_core::tensor::Data::Int(ids) }
        }
        DType::Bool => Tensor { ty: ty.clone(), data: headwater_core::tensor::Data::Int(vec![1; n]) },
        dtype if name.starts_with("m.") || name.starts_with("v.") => {
            Tensor::float(dtype, ty.shape.clone(), vec![0.0; n])
        }
        dtype if n == 1 => {
            Tensor::float(dtype, ty.shape.clone(), vec![if name == "step_size" { 0.01 } else { 1.0 }])
        }
        dtype => Tensor::float(dtype, ty.shape.clone(), (0..n).map(at).collect()).cast(dtype),
    }
}

/// Without the test harness, whose own thread allocates as well.
fn main() {
    later_steps_allocate_nothing();
    println!("later steps allocate nothing ... ok");
}

fn later_steps_allocate_nothing() {
    for dtype in [DType::F32, DType::BF16] {
        let (graph, device) = (step(dtype), Cpu::new(2));
        let bindings = Bindings::simple(&graph);
        let plan = pass::plan(&graph, &bindings, device.target()).unwrap();
        pass::check_plan(&plan).unwrap();
        let kernels = plan.steps.iter().filter(|s| matches!(s.work, Work::Kernel { .. })).count();
        assert!(kernels >= 7, "matrix products and index kernels belong to the step: {kernels}");
        let alloc = |bytes| device.alloc(bytes, Content::Undefined).unwrap();
        let memory: Vec<_> = plan.segments.iter().map(|s| alloc(s.bytes)).collect();
        let stream = device.stream().unwrap();
        for (input, place) in graph.inputs.iter().zip(&bindings.inputs) {
            let (place, ty) = (place.unwrap(), graph.ty(input.value));
            let memory = &memory[place.segment.0 as usize];
            stream.write(memory, place.offset, &fill(&input.name, ty).to_bytes()).unwrap();
        }
        let mut loaded = device.load(&plan).unwrap();
        let place = bindings.outputs[0].unwrap();
        let loss = || {
            let mut bytes = [0; 8];
            let ty = graph.ty(graph.outputs[0].value);
            let memory = &memory[place.segment.0 as usize];
            stream.read(memory, place.offset, &mut bytes[..ty.bytes()]).unwrap();
            Tensor::from_bytes(ty, &bytes[..ty.bytes()]).to_f64()[0]
        };
        let steps = plan.steps.len();
        let mut run = || {
            loaded.submit(stream.as_ref(), &memory, 0..steps).unwrap();
            stream.synchronize().unwrap();
        };
        run();
        let first = loss();
        for step in 2..12 {
            let before = COUNT.load(Ordering::SeqCst);
            run();
            let made = COUNT.load(Ordering::SeqCst) - before;
            assert_eq!(made, 0, "step {step} in {dtype} allocated {made} times");
        }
        let last = loss();
        assert!(last < 0.9 * first, "the steps are real: the loss went from {first} to {last}");
    }
}
