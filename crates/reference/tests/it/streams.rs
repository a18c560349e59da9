//! Plans on several streams: each gradient is sent off by a collective, on a stream of its own, while the
//! backward pass goes on. The same bits whatever the seed; every wait that is left out is found, by the
//! checker and by the device. Collectives of several ranks are in `world`.

use headwater_core::compile::{CompiledGraph, Instrument, Options, compile, optimize};
use headwater_core::device::{Buffer, Content, Device};
use headwater_core::graph::{Def, Graph, InputRole, Node, NodeId, OutputRole, Phase};
use headwater_core::ops::pointwise::gelu::GELU;
use headwater_core::ops::{Body, Cost, Derivative, OpDef, Precision};
use headwater_core::pass::{self, check_plan};
use headwater_core::plan::{self, ARENA, Place, Plan, Segment, SegmentId, SegmentKind};
use headwater_core::train::{self, BLOCK, BucketLayout, BucketSize};
use headwater_core::{Attrs, Builder, Code, DType, Error, Registry, Result, TensorType, fail};
use headwater_reference::Reference;
use std::ops::Range;
use std::sync::Arc;

const SEEDS: Range<u64> = 0..12;
const LAYERS: usize = 3;

/// A collective of one rank: the same tensor, elsewhere. Refuses NaN.
static SEND: OpDef = OpDef {
    name: "send",
    schemas: &[],
    infer: |cx| Ok(vec![cx.ty(0)?.clone()]),
    derivative: Derivative::NotDifferentiable("it is what gradients are given to"),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Collective(|_, given, _| {
        let sent = given[0][0].ok_or_else(|| fail!(Attribute, "nothing to send"))?.clone();
        match sent.floats().iter().any(|x| x.is_nan()) {
            true => Err(fail!(Value, "a NaN is not sent")),
            false => Ok(vec![vec![sent]]),
        }
    }),
    cases: Vec::new,
};

fn model() -> Graph {
    let mut b = Builder::new();
    let mut x = b.input("x", TensorType::new(DType::F32, [4, 6]), InputRole::User);
    for i in 0..LAYERS {
        let w = b.parameter(&format!("{i}"), DType::F32, &[6, 6]);
        let h = b.matmul(x, w).unwrap();
        x = b.call(&GELU, &[h]).unwrap();
    }
    let loss = b.sum(x, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

/// Sends each gradient, or bucket of them, twice, right after its producer.
fn sending(graph: Graph) -> Result<Graph> {
    let made = graph.nodes.len();
    let mut behind = Vec::new();
    let mut b = Builder::extend(graph);
    b.phase = Phase::Backward;
    for o in b.graph().outputs.clone() {
        let (OutputRole::Gradient(_) | OutputRole::Gradients) = o.role else { continue };
        let Def::Node(n, _) = b.graph().value(o.value).def else { continue };
        let once = b.one(&SEND, &[o.value], Attrs::new())?;
        let twice = b.one(&SEND, &[once], Attrs::new())?;
        b.output(format!("sent.{}", o.name), twice, OutputRole::User);
        behind.resize(b.graph().nodes.len() - made, n.0 as usize);
    }
    let mut graph = b.finish();
    let mut nodes: Vec<(usize, Node)> = graph.nodes.drain(..).enumerate().collect();
    nodes.sort_by_key(|(n, _)| n.checked_sub(made).map_or((*n, 0), |new| (behind[new], 1)));
    graph.nodes = nodes.into_iter().map(|(_, node)| node).collect();
    for (n, node) in graph.nodes.iter().enumerate() {
        for (i, v) in node.outputs.iter().enumerate() {
            graph.values[v.0 as usize].def = Def::Node(NodeId(n as u32), i as u32);
        }
    }
    Ok(graph)
}

/// A plan with all steps on one stream, in their order.
fn in_order(mut plan: Plan) -> Plan {
    plan.steps.iter_mut().for_each(|s| s.stream = 0);
    plan.waits.clear();
    plan
}

/// The plan of a step whose gradients are in buckets and are sent.
fn planned() -> Plan {
    let bind = |c: &CompiledGraph| {
        let parameters = c.gradients.iter().map(|g| (g.parameter.as_str(), &g.ty, 0));
        Ok::<_, Error>(train::bind(&c.graph, &BucketLayout::new(parameters, BucketSize::of(1))))
    };
    let options = Options { instrument: Instrument::Custom(&sending), ..Options::default() };
    compile(model(), &options, Reference::new(0).target(), bind).unwrap().into_plan().unwrap()
}

/// The plan of a step whose buckets are sent, each as one value.
fn planned_buckets() -> Plan {
    let target = Reference::new(0).target().clone();
    let done = optimize(model(), &Options::default(), &target).unwrap();
    let parameters = done.gradients.iter().map(|g| (g.parameter.as_str(), &g.ty, 0));
    let mut bindings = train::bind(&done.graph, &BucketLayout::new(parameters, BucketSize::of(1)));
    let graph = sending(pass::pack(done.graph, &mut bindings).unwrap()).unwrap();
    for o in &graph.outputs[bindings.outputs.len()..] {
        let (name, bytes) = (o.name.clone(), graph.ty(o.value).bytes());
        bindings.segments.push(Segment { name, bytes, kind: SegmentKind::Output });
        let segment = SegmentId(bindings.segments.len() as u32);
        bindings.outputs.push(Some(Place { segment, offset: 0 }));
    }
    let plan = pass::plan(&graph, &bindings, &target).unwrap();
    check_plan(&plan).unwrap();
    plan
}

/// A run on a device of its own.
struct Run {
    device: Reference,
    memory: Vec<Arc<dyn Buffer>>,
}

impl Run {
    fn new(seed: u64, plan: &Plan) -> Run {
        let device = Reference::new(seed);
        // As state is: to read it too early is no use of undefined memory.
        let alloc = |bytes| device.alloc(bytes, Content::Zero).unwrap();
        let memory = plan.segments.iter().map(|s| alloc(s.bytes)).collect();
        Run { device, memory }
    }

    /// Runs the plan in parts on inputs times a factor, and returns all results and gradients.
    fn step(&self, plan: &Plan, factor: f32, parts: &[Range<usize>]) -> Result<Vec<(String, Vec<u8>)>> {
        let stream = self.device.stream()?;
        let segments = || plan.segments.iter().zip(&self.memory);
        let fed = |name: &str| name == "x" || name.parse::<usize>().is_ok();
        for (segment, memory) in segments().filter(|(s, _)| fed(&s.name)) {
            let numbers = (0..segment.bytes / 4).map(|i| ((i * 7 + segment.bytes) as f32).sin() * factor);
            stream.write(memory, 0, &numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())?;
        }
        let mut loaded = self.device.load(plan)?;
        for steps in parts {
            loaded.submit(stream.as_ref(), &self.memory, steps.clone())?;
        }
        // Work that is submitted after the plan is ordered after all of its streams.
        let result = |name: &str| name == "loss" || name.starts_with("sent.");
        let mut out = Vec::new();
        for (segment, memory) in segments().filter(|(s, _)| result(&s.name)) {
            out.push((segment.name.clone(), stream.fetch(memory, 0, segment.bytes)?));
        }
        stream.synchronize()?;
        out.into_iter().map(|(name, fetched)| Ok((name, fetched.wait()?))).collect()
    }
}

#[test]
fn several_streams_give_the_bits_of_one() {
    let two = planned();
    let one = in_order(two.clone());
    assert!(!one.to_string().contains(" stream "));
    assert_eq!(two.steps.iter().filter(|s| s.stream == 1).count(), 2 * LAYERS);
    assert!(two.steps.iter().any(|s| s.stream == 1 && s.writes.iter().any(|w| w.place.segment == ARENA)));
    // Each stream waits for what it reads of the other and for nothing else.
    assert_eq!(two.waits.len(), LAYERS, "{:?}", two.waits);
    let mut registry = Registry::standard().clone();
    registry.register(&SEND).unwrap();
    let text = two.to_string();
    assert_eq!(plan::parse(&text, &registry).unwrap().to_string(), text);
    let all = |p: &Plan| 0..p.steps.len();
    let want = Run::new(0, &one).step(&one, 1.0, &[all(&one)]).unwrap();
    assert_eq!(want.len(), 1 + LAYERS);
    for seed in SEEDS {
        assert_eq!(Run::new(seed, &two).step(&two, 1.0, &[all(&two)]).unwrap(), want, "seed {seed}");
        let cut = 1 + seed as usize % (two.steps.len() - 1);
        let parts = [0..cut, cut..two.steps.len()];
        assert_eq!(Run::new(seed, &two).step(&two, 1.0, &parts).unwrap(), want, "in two parts, cut at {cut}");
    }
}

#[test]
fn buckets_are_sent_whole_while_the_backward_pass_goes_on() {
    let two = planned_buckets();
    let one = in_order(two.clone());
    assert_eq!(two.steps.iter().filter(|s| s.stream == 1).count(), 2 * LAYERS);
    assert_eq!(two.waits.len(), LAYERS, "{:?}", two.waits);
    assert!(two.waits[0].on + 1 < two.steps.iter().rposition(|s| s.stream == 0).unwrap());
    let all = |p: &Plan| 0..p.steps.len();
    let want = Run::new(0, &one).step(&one, 1.0, &[all(&one)]).unwrap();
    // A bucket is its gradient, followed by zeros.
    let apart = in_order(planned());
    let mut gradients: Vec<Vec<u8>> =
        Run::new(0, &apart).step(&apart, 1.0, &[all(&apart)]).unwrap().into_iter().map(|(_, b)| b).collect();
    gradients[1..].iter_mut().for_each(|bytes| bytes.resize(4 * BLOCK, 0));
    let sorted = |mut all: Vec<Vec<u8>>| {
        all.sort();
        all
    };
    assert_eq!(sorted(want.iter().map(|(_, b)| b.clone()).collect()), sorted(gradients));
    for seed in SEEDS {
        assert_eq!(Run::new(seed, &two).step(&two, 1.0, &[all(&two)]).unwrap(), want, "seed {seed}");
    }
}

#[test]
fn every_wait_that_is_missing_is_found() {
    every_missing_wait_is_found(planned());
    every_missing_wait_is_found(planned_buckets());
}

fn every_missing_wait_is_found(plan: Plan) {
    for i in 0..plan.waits.len() {
        let mut broken = plan.clone();
        let wait = broken.waits.remove(i);
        let e = check_plan(&broken).unwrap_err();
        assert!(e.message.contains("a wait is missing"), "{wait:?}: {e}");
        for seed in SEEDS {
            let whole = 0..broken.steps.len();
            let e = Run::new(seed, &broken).step(&broken, 1.0, &[whole]).unwrap_err();
            assert!(
                e.code == Code::Device && e.message.contains("a wait is missing"),
                "{wait:?}, {seed}: {e}"
            );
        }
    }
    // A step that leaves its stream is not ordered with what it reads and with who reads it.
    for i in 0..plan.steps.len() {
        let mut broken = plan.clone();
        broken.steps[i].stream = 2;
        let e = check_plan(&broken).unwrap_err();
        assert!(e.message.contains("a wait is missing"), "step {i}: {e}");
    }
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut broken = plan.clone();
        change(&mut broken);
        check_plan(&broken).unwrap_err().message
    };
    assert!(refused(&|p| p.steps[0].stream = 16).contains("stream 16"));
    assert!(refused(&|p| p.waits[0].on = p.waits[0].step).contains("does not come earlier"));
}

#[test]
fn memory_that_another_stream_still_uses_is_not_given_away() {
    // Sent values in the arena, and other values at the same bytes, are separated in time by waits alone.
    let plan = planned();
    let side = |p: &&plan::Placement| plan.steps[p.first].stream == 1;
    assert!(plan.placements.iter().filter(side).count() > 0);
    let mut found = 0;
    for (i, p) in plan.placements.iter().enumerate().filter(|(_, p)| side(p)) {
        for (j, q) in plan.placements.iter().enumerate() {
            // Onto the bytes of one that lives next on the main stream.
            if i == j || q.first <= p.first || q.bytes > p.bytes || plan.steps[q.first].stream != 0 {
                continue;
            }
            let mut broken = plan.clone();
            let (from, to) = (q.place, p.place);
            for step in &mut broken.steps {
                let views = step.reads.iter_mut().flatten().chain(&mut step.writes).map(|v| &mut v.place);
                let places = views.chain(step.workspace.as_mut().map(|w| &mut w.0));
                places.filter(|place| **place == from).for_each(|place| *place = to);
            }
            broken.placements[j].place = to;
            // Lives as the order of steps alone would have them.
            broken.placements[i].last = broken.placements[i].last.min(q.first - 1);
            found += check_plan(&broken).is_err_and(|e| e.message.contains("a wait is missing")) as usize;
        }
    }
    assert!(found > 0);
}

#[test]
fn a_failure_on_a_stream_of_the_plan_is_reported_where_it_was_submitted() {
    let plan = planned();
    let whole = 0..plan.steps.len();
    for seed in SEEDS {
        let run = Run::new(seed, &plan);
        let e = run.step(&plan, f32::NAN, std::slice::from_ref(&whole)).unwrap_err();
        assert_eq!((e.code, e.message.as_str()), (Code::Value, "a NaN is not sent"), "seed {seed}");
        // An error in data is over.
        let again = run.step(&plan, 1.0, std::slice::from_ref(&whole)).unwrap();
        let fresh = Run::new(seed, &plan).step(&plan, 1.0, std::slice::from_ref(&whole)).unwrap();
        assert_eq!(again, fresh);
    }
}
