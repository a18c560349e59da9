//! Work that breaks the device contract is found, whatever the seed; work that keeps it is not disturbed.

use headwater_core::device::{Buffer, Content, Device, Foreign, Stream};
use headwater_core::graph::{Origin, parse};
use headwater_core::pass::{check_plan, plan};
use headwater_core::plan::{Bindings, Plan};
use headwater_core::target::Target;
use headwater_core::{Code, DType, Error, Graph, Registry, Tensor, reference};
use headwater_reference::Reference;
use std::ptr::NonNull;
use std::sync::Arc;

const SEEDS: std::ops::Range<u64> = 0..24;

fn buffer(device: &Reference, bytes: usize) -> Arc<dyn Buffer> {
    device.alloc(bytes, Content::Undefined).unwrap()
}

/// The failure that a stream reports, which must be the device's and stay.
fn failure(stream: &dyn Stream) -> Error {
    let e = stream.synchronize().unwrap_err();
    assert_eq!(e.code, Code::Device);
    assert_eq!(stream.synchronize().unwrap_err(), e, "a failure of the device is sticky");
    e
}

#[test]
fn a_missing_wait_between_two_streams_is_found() {
    let mut late = 0;
    for seed in SEEDS {
        let device = Reference::new(seed);
        let memory = device.alloc(16, Content::Zero).unwrap();
        let (one, two) = (device.stream().unwrap(), device.stream().unwrap());
        one.write(&memory, 0, &[1; 16]).unwrap();
        let _ = two.fill(&memory, 8, 8, 2);
        let results = [one.synchronize(), two.synchronize()];
        let e = results.into_iter().find_map(Result::err).expect("nothing orders the two");
        assert!(e.message.contains("a wait is missing"), "{e}");
        late += e.message.contains("of stream 0") as usize;
    }
    assert!((1..SEEDS.count()).contains(&late), "the seed decides who comes first: {late} times the second");
}

#[test]
fn an_event_orders_two_streams_and_so_does_the_host() {
    for seed in SEEDS {
        let device = Reference::new(seed);
        let memory = buffer(&device, 16);
        let (one, two) = (device.stream().unwrap(), device.stream().unwrap());
        one.write(&memory, 0, &[1; 16]).unwrap();
        two.wait(&one.record().unwrap()).unwrap();
        two.fill(&memory, 8, 8, 2).unwrap();
        let back = two.record().unwrap();
        back.synchronize().unwrap();
        assert!(back.is_done());
        // The host has waited: later work on any stream comes after.
        let mut data = [0; 16];
        one.read(&memory, 0, &mut data).unwrap();
        assert_eq!(data, [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
        two.synchronize().unwrap();
    }
}

#[test]
fn two_streams_may_read_the_same_bytes() {
    let device = Reference::new(3);
    let memory = device.alloc(8, Content::Zero).unwrap();
    let (one, two) = (device.stream().unwrap(), device.stream().unwrap());
    let fetched = [&one, &two].map(|s| s.fetch(&memory, 0, 8).unwrap());
    for f in fetched {
        assert_eq!(f.wait().unwrap(), [0; 8]);
    }
}

#[test]
fn work_is_delayed_and_host_memory_is_taken_at_once() {
    let mut waiting = 0;
    for seed in SEEDS {
        let device = Reference::new(seed);
        let memory = buffer(&device, 4);
        let stream = device.stream().unwrap();
        let mut data = [1, 2, 3, 4];
        stream.write(&memory, 0, &data).unwrap();
        data.fill(9);
        let event = stream.record().unwrap();
        waiting += !event.is_done() as usize;
        assert_eq!(stream.fetch(&memory, 0, 4).unwrap().wait().unwrap(), [1, 2, 3, 4]);
        assert!(event.is_done());
    }
    assert!(waiting > SEEDS.count() / 2, "only {waiting} times was work delayed");
}

#[test]
fn bytes_that_nobody_wrote_cannot_be_read() {
    let device = Reference::new(0);
    let stream = device.stream().unwrap();
    let memory = buffer(&device, 8);
    stream.write(&memory, 0, &[0; 5]).unwrap();
    let e = stream.read(&memory, 0, &mut [0; 8]).unwrap_err();
    assert!(e.message.contains("reads byte 5, which nothing has written"), "{e}");
    assert_eq!(failure(stream.as_ref()), e);
    assert!(stream.write(&memory, 0, &[0; 5]).is_err(), "nothing more is taken");
}

#[test]
fn ranges_and_foreign_memory_are_refused_at_once() {
    struct Lent(Vec<u8>);
    // SAFETY: the device refuses the memory without a look at it.
    #[allow(unsafe_code)]
    unsafe impl Foreign for Lent {
        fn memory(&self) -> NonNull<[u8]> {
            NonNull::from(&self.0[..])
        }
    }
    let (device, other) = (Reference::new(0), Reference::new(0));
    let stream = device.stream().unwrap();
    let memory = buffer(&device, 8);
    assert!(stream.write(&memory, 4, &[0; 5]).is_err() && stream.fetch(&memory, usize::MAX, 1).is_err());
    assert!(stream.write(&buffer(&other, 8), 0, &[0]).is_err());
    assert!(stream.wait(&other.stream().unwrap().record().unwrap()).is_err());
    assert_eq!(device.borrow(Box::new(Lent(vec![0; 8]))).unwrap_err().code, Code::Unsupported);
    stream.synchronize().unwrap();
}

/// Rows of `tanh(x) · xᵀ`, chosen by `ids`: values between steps are in the arena, and an index may be out of
/// range.
fn model() -> (Graph, Bindings, Plan) {
    let text = r#"headwater graph 1
%0 = user "x" : f32[8, 16]
%1 = user "ids" : i32[3]
%2 = tanh(%0) : f32[8, 16]  @1
%3 = transpose(%0, dim0=0, dim1=1) : f32[16, 8]  @2
%4 = matmul(%2, %3) : f32[8, 8]  @3
%5 = embedding(%4, %1) : f32[3, 8]  @4
output "y" = %5
@0 = ""
@1 = "tanh" module "first"
@2 = "t" module "first"
@3 = "mm" module "second"
@4 = "embedding" module "third"
"#;
    let graph = parse(text, Registry::standard()).unwrap();
    let bindings = Bindings::simple(&graph);
    let plan = plan(&graph, &bindings, Reference::new(0).target()).unwrap();
    check_plan(&plan).unwrap();
    assert!(plan.steps.len() >= 4, "the transposed operand is copied");
    (graph, bindings, plan)
}

/// A run's memory, its inputs written but for those that are left out.
struct Run {
    device: Reference,
    stream: Box<dyn Stream>,
    memory: Vec<Arc<dyn Buffer>>,
}

impl Run {
    fn new(seed: u64, plan: &Plan, ids: Option<[i32; 3]>) -> Run {
        let device = Reference::new(seed);
        let memory: Vec<_> = plan.segments.iter().map(|s| buffer(&device, s.bytes)).collect();
        let stream = device.stream().unwrap();
        let x: Vec<u8> = (0..128).flat_map(|i| (i as f32 / 64.0 - 1.0).to_le_bytes()).collect();
        stream.write(&memory[1], 0, &x).unwrap();
        if let Some(ids) = ids {
            stream.write(&memory[2], 0, &ids.map(i32::to_le_bytes).concat()).unwrap();
        }
        Run { device, stream, memory }
    }

    fn run(&self, plan: &Plan, parts: &[usize]) -> headwater_core::Result<()> {
        let mut loaded = self.device.load(plan)?;
        let ends = parts.iter().copied().chain([plan.steps.len()]);
        let starts = std::iter::once(0).chain(parts.iter().copied());
        for (start, end) in starts.zip(ends) {
            loaded.submit(self.stream.as_ref(), &self.memory, start..end)?;
        }
        self.stream.synchronize()
    }

    fn result(&self) -> Vec<u8> {
        let mut data = vec![0; 3 * 8 * 4];
        self.stream.read(&self.memory[3], 0, &mut data).unwrap();
        data
    }
}

#[test]
fn plans_give_the_interpreters_bits_whole_and_in_parts() {
    let (graph, _, plan) = model();
    let x = Tensor::float(DType::F32, [8, 16], (0..128).map(|i| i as f64 / 64.0 - 1.0).collect());
    let ids = Tensor::int(DType::I32, [3], vec![7, 0, 3]);
    let want = reference::run(&graph, &[x, ids]).unwrap()[0].to_bytes();
    for seed in SEEDS {
        for parts in [&[][..], &[1], &[2, 3]] {
            let run = Run::new(seed, &plan, Some([7, 0, 3]));
            run.run(&plan, parts).unwrap();
            assert!(run.result() == want, "seed {seed}, parts {parts:?}");
        }
    }
}

#[test]
fn a_plan_that_reads_before_anything_is_written_names_operator_and_line() {
    let (_, _, plan) = model();
    let run = Run::new(1, &plan, None);
    let e = run.run(&plan, &[]).unwrap_err();
    assert!(e.message.contains("nothing has written"), "{e}");
    assert_eq!((e.code, e.op), (Code::Device, Some("embedding")));
    assert_eq!(e.origin.as_deref().map(|o: &Origin| o.to_string().contains("third")), Some(true), "{e}");
}

#[test]
fn a_buffer_used_after_its_last_step_is_found_by_device_and_checker() {
    let (_, _, mut plan) = model();
    // The result of tanh ends a step too early.
    let first = plan.placements.iter().position(|p| p.first == 0).unwrap();
    plan.placements[first].last = 0;
    assert!(check_plan(&plan).is_err());
    let run = Run::new(1, &plan, Some([0, 1, 2]));
    let e = run.run(&plan, &[]).unwrap_err();
    assert!(e.message.contains("free again"), "{e}");
    assert_eq!((e.code, e.op), (Code::Device, Some("matmul")));
}

#[test]
fn workspaces_are_undefined_behind_their_step() {
    let (_, _, mut plan) = model();
    // The last step reads its table from where the product had its workspace.
    let product = plan.steps.iter().position(|s| s.op == "matmul" && s.workspace.is_some()).unwrap();
    let (room, _) = plan.steps[product].workspace.unwrap();
    let table = plan.steps.last_mut().unwrap().reads[0].as_mut().unwrap();
    table.layout.strides.iter_mut().for_each(|s| *s = 0);
    table.layout.shape = [8, 8].into();
    table.place = room;
    let e = Run::new(1, &plan, Some([0, 1, 2])).run(&plan, &[]);
    assert!(check_plan(&plan).is_err() && e.is_err());
}

#[test]
fn an_error_in_data_is_reported_once_and_what_is_behind_it_is_dropped() {
    let (_, _, plan) = model();
    for seed in SEEDS {
        let run = Run::new(seed, &plan, Some([0, 99, 2]));
        let mut loaded = run.device.load(&plan).unwrap();
        loaded.submit(run.stream.as_ref(), &run.memory, 0..plan.steps.len()).unwrap();
        run.stream.fill(&run.memory[1], 0, 4, 0).unwrap();
        let e = run.stream.synchronize().unwrap_err();
        assert_eq!((e.code, e.op), (Code::Value, Some("embedding")), "{e}");
        run.stream.synchronize().unwrap();
        let mut first = [0; 4];
        run.stream.read(&run.memory[1], 0, &mut first).unwrap();
        assert_eq!(f32::from_le_bytes(first), -1.0, "the fill behind the error was dropped");
        // The stream and the plan go on.
        run.stream.write(&run.memory[2], 0, &[0, 1, 2].map(i32::to_le_bytes).concat()).unwrap();
        loaded.submit(run.stream.as_ref(), &run.memory, 0..plan.steps.len()).unwrap();
        run.stream.synchronize().unwrap();
    }
}

#[test]
fn memory_that_does_not_fit_a_plan_is_refused_at_once() {
    let (_, _, plan) = model();
    let run = Run::new(1, &plan, Some([0, 1, 2]));
    let mut loaded = run.device.load(&plan).unwrap();
    let mut submit = |memory: &[Arc<dyn Buffer>], steps| loaded.submit(run.stream.as_ref(), memory, steps);
    assert!(submit(&run.memory[1..], 0..1).is_err(), "too few segments");
    let mut small = run.memory.clone();
    small[1] = buffer(&run.device, 4);
    assert!(submit(&small, 0..1).is_err(), "a segment is too small");
    small[1] = small[0].clone();
    assert!(submit(&small, 0..1).is_err(), "two segments are one buffer");
    assert!(submit(&run.memory, 0..plan.steps.len() + 1).is_err(), "there are no such steps");
    assert!(submit(&run.memory, 0..plan.steps.len()).is_ok());
}

#[test]
fn plans_for_another_target_are_refused() {
    let (graph, bindings, _) = model();
    let other = plan(&graph, &bindings, &Target::default()).unwrap();
    assert_eq!(Reference::new(0).load(&other).err().map(|e| e.code), Some(Code::Plan), "its alignment is 64");
}
