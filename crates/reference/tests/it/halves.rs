//! A step in halves computes the bits of the whole, with nothing between the two but what its plan lists.

use headwater_core::compile::{CompiledGraph, GradientRequest, Options, compile};
use headwater_core::device::{Buffer, Content, Device, Stream};
use headwater_core::graph::{InputRole, OutputRole, Phase};
use headwater_core::ops;
use headwater_core::plan::{Bindings, Plan, SegmentKind};
use headwater_core::random;
use headwater_core::{Attrs, Builder, Code, DType, Graph, TensorType};
use headwater_reference::Reference;
use std::ops::Range;
use std::sync::Arc;

const OUTPUTS: [&str; 3] = ["y", "hidden", "exp"];
const WANTED: [&str; 7] = ["x", "filter", "scale", "shift", "weight", "z", "p"];

/// Convolution, batch norm, which changes its buffers, and a product, with results in the middle. One is
/// through a permuting view, one (`exp`) is read by its own derivative alone, and one (`kept`) has no
/// cotangent.
pub(crate) fn model() -> Graph {
    let mut b = Builder::new();
    let user = |b: &mut Builder, name: &str, shape: &[usize]| {
        b.input(name, TensorType::new(DType::F32, shape), InputRole::User)
    };
    let (x, z) = (user(&mut b, "x", &[2, 3, 6, 6]), user(&mut b, "z", &[5]));
    let filter = b.parameter("filter", DType::F32, &[4, 3, 3, 3]);
    let [scale, shift, p] = ["scale", "shift", "p"].map(|n| b.parameter(n, DType::F32, &[4]));
    let weight = b.parameter("weight", DType::F32, &[36, 5]);
    let [mean, var] = ["mean", "var"]
        .map(|n| b.input(n, TensorType::new(DType::F32, [4]), InputRole::Buffer { persistent: true }));
    let attrs = Attrs::new()
        .with("stride", [1, 1])
        .with("padding", [1, 1])
        .with("dilation", [1, 1])
        .with("groups", 1);
    let inputs = [Some(x), Some(filter), None];
    let h = b.apply(&ops::conv::convolution::CONVOLUTION, &inputs, attrs).unwrap()[0];
    let attrs = Attrs::new().with("eps", 1e-5).with("momentum", 0.1);
    let inputs = [h, scale, shift, mean, var].map(Some);
    let out = b.apply(&ops::norm::batch_norm::BATCH_NORM_TRAIN, &inputs, attrs).unwrap();
    b.output("mean", out[3], OutputRole::Mutation(mean));
    b.output("var", out[4], OutputRole::Mutation(var));
    let h = b.call(&ops::pointwise::gelu::GELU, &[out[0]]).unwrap();
    let hidden = b.permute(h, &[0, 2, 3, 1]).unwrap();
    b.output("hidden", hidden, OutputRole::User);
    let flat = b.reshape(h, &[8, 36]).unwrap();
    let y = b.matmul(flat, weight).unwrap();
    let e = b.call(&ops::pointwise::exp::EXP, &[z]).unwrap();
    b.output("exp", e, OutputRole::User);
    b.output("y", y, OutputRole::User);
    let square = b.mul(p, p).unwrap();
    b.output("kept", square, OutputRole::User);
    b.finish()
}

fn compiled(graph: Graph, options: &Options) -> headwater_core::Result<CompiledGraph> {
    let target = Reference::new(0).target().clone();
    compile(graph, options, &target, |c| Ok(Bindings::simple(&c.graph)))
}

fn options(halves: bool, recompute: bool) -> Options<'static> {
    let derivative = GradientRequest::Vjp { outputs: &OUTPUTS, inputs: &WANTED };
    Options { derivative, halves, recompute, ..Options::default() }
}

/// Memory of a run on a device of its own.
struct Run {
    device: Reference,
    stream: Box<dyn Stream>,
    memory: Vec<Arc<dyn Buffer>>,
}

impl Run {
    /// Inputs have contents that depend on their names alone; cotangents are not written.
    fn new(seed: u64, plan: &Plan) -> Run {
        let device = Reference::new(seed);
        let alloc = |bytes| device.alloc(bytes, Content::Undefined).unwrap();
        let memory = plan.segments.iter().map(|s| alloc(s.bytes)).collect();
        let stream = device.stream().unwrap();
        let run = Run { device, stream, memory };
        run.feed(plan, |name| !name.starts_with("cotangent."));
        run
    }

    fn feed(&self, plan: &Plan, asked: impl Fn(&str) -> bool) {
        for (s, segment) in plan.segments.iter().enumerate() {
            if segment.kind == SegmentKind::State && asked(&segment.name) {
                let key = segment.name.bytes().fold(7i64, |k, c| k.wrapping_mul(31).wrapping_add(c as i64));
                let numbers = random::Stream::new(key, 0, 0);
                let data = (0..segment.bytes as u64 / 4)
                    .flat_map(|i| (numbers.uniform(i) as f32 + 0.25).to_le_bytes())
                    .collect::<Vec<u8>>();
                self.stream.write(&self.memory[s], 0, &data).unwrap();
            }
        }
    }

    fn submit(&self, plan: &Plan, steps: Range<usize>) {
        let mut loaded = self.device.load(plan).unwrap();
        loaded.submit(self.stream.as_ref(), &self.memory, steps).unwrap();
        self.stream.synchronize().unwrap();
    }

    fn read(&self, plan: &Plan, name: &str) -> Vec<u8> {
        let s = plan.segments.iter().position(|s| s.name == name).unwrap();
        let mut data = vec![0; plan.segments[s].bytes];
        self.stream.read(&self.memory[s], 0, &mut data).unwrap();
        data
    }

    /// Overwrites all memory with NaN but `kept`: segment, first byte and bytes.
    fn overwrite(&self, plan: &Plan, kept: &[(usize, usize, usize)]) {
        for (s, segment) in plan.segments.iter().enumerate() {
            let mut free = vec![true; segment.bytes];
            for &(_, at, bytes) in kept.iter().filter(|k| k.0 == s) {
                free[at..at + bytes].fill(false);
            }
            let mut at = 0;
            for run in free.chunk_by(|a, b| a == b) {
                if run[0] {
                    self.stream.fill(&self.memory[s], at, run.len(), 0xff).unwrap();
                }
                at += run.len();
            }
        }
    }
}

/// Names of the results of the forward half, and of the backward half.
fn results(plan: &Plan) -> (Vec<&str>, Vec<&str>) {
    let outputs = plan.segments.iter().filter(|s| s.kind == SegmentKind::Output).map(|s| s.name.as_str());
    let (gradients, mut forward): (Vec<&str>, Vec<&str>) = outputs.partition(|n| n.starts_with("grad."));
    forward.extend(["mean", "var"]);
    (forward, gradients)
}

fn whole(plan: &Plan) -> Vec<Vec<u8>> {
    let run = Run::new(1, plan);
    run.feed(plan, |name| name.starts_with("cotangent."));
    run.submit(plan, 0..plan.steps.len());
    let (forward, gradients) = results(plan);
    forward.iter().chain(&gradients).map(|name| run.read(plan, name)).collect()
}

/// As `whole`, in two runs; between them all memory is overwritten but the crossing values, without `lost`.
fn in_two(seed: u64, plan: &Plan, lost: Option<usize>) -> Vec<Vec<u8>> {
    let halves = plan.halves.as_ref().unwrap();
    let run = Run::new(seed, plan);
    run.submit(plan, 0..halves.boundary);
    let (forward, gradients) = results(plan);
    let mut got: Vec<Vec<u8>> = forward.iter().map(|name| run.read(plan, name)).collect();
    let crossing = halves.crossing.iter().enumerate().filter(|(i, _)| lost != Some(*i));
    let kept: Vec<_> =
        crossing.map(|(_, c)| (c.place.segment.0 as usize, c.place.offset, c.ty.bytes())).collect();
    run.overwrite(plan, &kept);
    run.feed(plan, |name| name.starts_with("cotangent."));
    run.submit(plan, halves.boundary..plan.steps.len());
    got.extend(gradients.iter().map(|name| run.read(plan, name)));
    got
}

#[test]
fn two_halves_have_the_bits_of_the_whole_and_need_only_what_crosses() {
    for recompute in [false, true] {
        let plain = compiled(model(), &options(false, recompute)).unwrap();
        let mut moved = plain.graph.outputs.iter().filter(|o| {
            let producer = plain.graph.producer(o.value);
            o.role == OutputRole::User && producer.is_some_and(|(n, _)| n.phase == Phase::Backward)
        });
        assert!(moved.any(|o| o.name == "exp"), "the fence has nothing to hold");
        let plain = plain.into_plan().unwrap();
        let plan = compiled(model(), &options(true, recompute)).unwrap().into_plan().unwrap();
        let halves = plan.halves.as_ref().unwrap();
        assert!((1..plan.steps.len()).contains(&halves.boundary));
        assert_eq!(halves.returned.len(), 4 + 2, "four results and two buffers: {:?}", halves.returned);
        let (forward, gradients) = results(&plan);
        assert_eq!((forward.len(), gradients.len()), (6, WANTED.len() - 1), "`p` has no gradient");
        let want = whole(&plan);
        assert!(
            want.iter()
                .flat_map(|b| b.chunks(4))
                .all(|b| { f32::from_le_bytes(b.try_into().unwrap()).is_finite() })
        );
        assert!(whole(&plain) == want, "the fence changes no bits");
        for seed in 0..4 {
            assert!(in_two(seed, &plan, None) == want, "seed {seed}");
        }
        assert!(halves.crossing.iter().any(|c| c.place.segment.0 == 0), "{:?}", halves.crossing);
        for (i, c) in halves.crossing.iter().enumerate() {
            let got = in_two(0, &plan, Some(i));
            assert!(got[..6] == want[..6] && got != want, "nothing needs {c:?}");
        }
    }
}

#[test]
fn state_whose_old_content_the_backward_pass_reads_is_refused_by_name() {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [4]), InputRole::User);
    let s = b.input("state", TensorType::new(DType::F32, [4]), InputRole::Buffer { persistent: true });
    let y = b.mul(x, s).unwrap();
    b.output("y", y, OutputRole::User);
    b.output("state", y, OutputRole::Mutation(s));
    let derivative = GradientRequest::Vjp { outputs: &["y"], inputs: &["x"] };
    let options = Options { derivative, halves: true, ..Options::default() };
    let e = compiled(b.graph().clone(), &options).unwrap_err();
    assert_eq!(e.code, Code::Unsupported);
    assert!(e.message.contains("writes `state` over `state`"), "{e}");
    let whole = Options { halves: false, ..options };
    assert!(compiled(b.finish(), &whole).unwrap().into_plan().is_ok());
}
