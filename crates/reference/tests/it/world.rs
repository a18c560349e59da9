//! Several reference devices that meet in collectives: every operator on worlds of its cases, and steps whose
//! buckets the stage `reduce` sums. The same bits whatever the seed, every wait that is left out found, and
//! ranks that do not meet named.

use headwater_core::compile::{CompiledGraph, Options, compile};
use headwater_core::device::{Buffer, Content, Device};
use headwater_core::graph::{Graph, InputRole, OutputRole};
use headwater_core::ops::collective::{self, all_gather::ALL_GATHER, all_reduce::ALL_REDUCE, on};
use headwater_core::ops::pointwise::gelu::GELU;
use headwater_core::ops::{Case, OpDef};
use headwater_core::origin::Origin;
use headwater_core::pass::{self, check_plan};
use headwater_core::plan::{Bindings, Place, Plan};
use headwater_core::ranks::{DATA, Mesh, halving};
use headwater_core::train::{self, BucketLayout, BucketSize};
use headwater_core::{Builder, Code, DType, Error, Result, Tensor, TensorType, reference};
use headwater_reference::Reference;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const SEEDS: Range<u64> = 0..12;
const LAYERS: usize = 3;

/// A plan with memory on each rank. One thread submits for all.
struct World {
    devices: Vec<Reference>,
    plans: Vec<Plan>,
    memory: Vec<Vec<Arc<dyn Buffer>>>,
}

impl World {
    fn new(devices: Vec<Reference>, plans: Vec<Plan>) -> World {
        let own = |(d, p): (&Reference, &Plan)| {
            p.segments.iter().map(|s| d.alloc(s.bytes, Content::Zero).unwrap()).collect()
        };
        let memory = devices.iter().zip(&plans).map(own).collect();
        World { devices, plans, memory }
    }

    /// Feeds each rank, runs all, and reads the named segments of each rank, or its failure.
    fn run(&self, feed: impl Fn(usize, &str, usize) -> Option<Vec<u8>>, read: &str) -> Vec<Result<Vec<u8>>> {
        let streams: Vec<_> = self.devices.iter().map(|d| d.stream().unwrap()).collect();
        for (rank, plan) in self.plans.iter().enumerate() {
            for (segment, memory) in plan.segments.iter().zip(&self.memory[rank]) {
                if let Some(bytes) = feed(rank, &segment.name, segment.bytes) {
                    streams[rank].write(memory, 0, &bytes).unwrap();
                }
            }
            let mut loaded = self.devices[rank].load(plan).unwrap();
            loaded.submit(streams[rank].as_ref(), &self.memory[rank], 0..plan.steps.len()).unwrap();
        }
        let results = self.plans.iter().enumerate().map(|(rank, plan)| {
            let mut out = Vec::new();
            for (segment, memory) in plan.segments.iter().zip(&self.memory[rank]) {
                if segment.name.starts_with(read) {
                    let mut bytes = vec![0; segment.bytes];
                    streams[rank].read(memory, 0, &mut bytes)?;
                    out.extend(bytes);
                }
            }
            streams[rank].synchronize()?;
            Ok(out)
        });
        results.collect()
    }
}

/// A graph of one operator, at a line of a model, with the tensors of a case for each rank.
fn alone(op: &'static OpDef, case: &Case, line: u32) -> (Graph, Vec<Vec<Tensor>>) {
    let ranks = collective::ranks(&case.attrs);
    let inputs: Vec<Vec<Tensor>> =
        (0..ranks).map(|r| case.draw(7 + r as u64).into_iter().flatten().collect()).collect();
    let mut b = Builder::new();
    b.origin = b.at(Origin { node: op.name.into(), file: "model.py".into(), line, ..Origin::default() });
    let input = |(i, t): (usize, &Tensor)| Some(b.input(format!("x{i}"), t.ty.clone(), InputRole::User));
    let ids: Vec<_> = inputs[0].iter().enumerate().map(input).collect();
    let out = b.apply(op, &ids, case.attrs.clone()).unwrap();
    b.output("y", out[0], OutputRole::User);
    (b.finish(), inputs)
}

fn planned(graph: &Graph, device: &Reference) -> Plan {
    let plan = pass::plan(graph, &Bindings::simple(graph), device.target()).unwrap();
    check_plan(&plan).unwrap();
    plan
}

#[test]
fn every_collective_gives_the_reference_s_bits_on_every_world() {
    let mut worlds = std::collections::BTreeSet::new();
    for op in collective::ALL {
        for case in (op.cases)() {
            let ranks = collective::ranks(&case.attrs);
            worlds.insert(ranks);
            let (graph, inputs) = alone(op, &case, 1);
            let want: Vec<Vec<u8>> =
                reference::run_ranks(&graph, &inputs).unwrap().iter().map(|o| o[0].to_bytes()).collect();
            for seed in SEEDS {
                let devices = Reference::world(ranks, seed);
                let plan = planned(&graph, &devices[0]);
                let world = World::new(devices, vec![plan; ranks]);
                let bindings = Bindings::simple(&graph);
                let name = |p: &Option<Place>| &bindings.segments[p.unwrap().segment.0 as usize - 1].name;
                let fed: Vec<&String> = bindings.inputs.iter().map(name).collect();
                let given = |r: usize, name: &str| {
                    fed.iter().position(|x| *x == name).map(|i| inputs[r][i].to_bytes())
                };
                let y = &bindings.segments[bindings.outputs[0].unwrap().segment.0 as usize - 1].name;
                let got = world.run(|r, name, _| given(r, name), y);
                let got: Vec<Vec<u8>> = got.into_iter().map(|g| g.unwrap()).collect();
                for (r, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert_eq!(
                        &got[..want.len()],
                        &want[..],
                        "{} {}, rank {r}, seed {seed}",
                        op.name,
                        case.name
                    );
                }
            }
        }
    }
    assert_eq!(worlds.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 8]);
}

#[test]
fn sums_are_stored_after_each_addition_in_the_order_of_halving() {
    // In f32, 2²⁴ + 1 is 2²⁴: (2²⁴ + 1) + (1 + 1) is 2²⁴ + 2, one wide sum would be 2²⁴ + 3 or + 4.
    let big = 16777216.0;
    let numbers = [big, 1.0, 1.0, 1.0];
    let inputs: Vec<Vec<Tensor>> =
        numbers.iter().map(|x| vec![Tensor::float(DType::F32, [1], vec![*x])]).collect();
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [1]), InputRole::User);
    let sum = b.one(&ALL_REDUCE, &[x], on(DATA, 4)).unwrap();
    b.output("y", sum, OutputRole::User);
    let all = reference::run_ranks(&b.finish(), &inputs).unwrap();
    assert!(all.iter().all(|o| o[0].floats() == [big + 2.0]));
}

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

/// The plan of a step of a world, with a bucket for each parameter.
fn step(ranks: usize) -> Plan {
    let bind = |c: &CompiledGraph| {
        let parameters = c.gradients.iter().map(|g| (g.parameter.as_str(), &g.ty, 0));
        Ok::<_, Error>(train::bind(&c.graph, &BucketLayout::new(parameters, BucketSize::of(1))))
    };
    let options = Options { mesh: Mesh::data(ranks, 0), reduce: true, ..Options::default() };
    compile(model(), &options, Reference::world(1, 0)[0].target(), bind).unwrap().into_plan().unwrap()
}

/// The batch of a rank, and parameters that are the same on all.
fn fed(rank: usize, name: &str, bytes: usize) -> Option<Vec<u8>> {
    let numbers = |from: usize| {
        (0..bytes / 4).flat_map(|i| (((i + from) * 7 + bytes) as f32).sin().to_le_bytes()).collect()
    };
    match name {
        "x" => Some(numbers(1000 * (rank + 1))),
        name if name.starts_with("parameters") => Some(numbers(0)),
        _ => None,
    }
}

/// Segments of buckets begin with this.
const BUCKETS: &str = "gradients";

#[test]
fn the_stage_sums_every_bucket_over_the_ranks_while_the_backward_pass_goes_on() {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
    };
    let single = step(1);
    assert_eq!(single.collectives().count(), 0);
    for ranks in [2, 3, 4] {
        // Each rank's own gradients, added up by hand.
        let own = |rank: usize| {
            let world = World::new(Reference::world(1, 0), vec![single.clone()]);
            floats(world.run(|_, name, bytes| fed(rank, name, bytes), BUCKETS)[0].as_ref().unwrap())
        };
        let mut want: Vec<Vec<f32>> = (0..ranks).map(own).collect();
        assert!(!want[0].is_empty() && want[0] != want[1]);
        for (into, from) in halving(ranks) {
            let other = want[from].clone();
            want[into].iter_mut().zip(other).for_each(|(a, b)| *a += b);
        }
        let plan = step(ranks);
        assert_eq!(plan.collectives().count(), LAYERS);
        // In place, in the order of buckets, and beside the rest of the backward pass.
        let places: Vec<_> = plan.collectives().map(|(_, s, _)| s.writes[0].place.segment).collect();
        assert!(places.is_sorted(), "{places:?}");
        assert!(
            plan.collectives().all(|(_, s, _)| s.reads[0].as_ref() == Some(&s.writes[0]) && s.stream == 1)
        );
        let first = plan.collectives().next().unwrap().0;
        assert!(first < plan.steps.iter().rposition(|s| s.stream == 0).unwrap());
        assert!(plan.completions.iter().all(|c| plan.steps[c.step].op == ALL_REDUCE.name));
        for seed in SEEDS {
            let world = World::new(Reference::world(ranks, seed), vec![plan.clone(); ranks]);
            for (rank, got) in world.run(fed, BUCKETS).into_iter().enumerate() {
                assert_eq!(floats(&got.unwrap()), want[0], "{ranks} ranks, rank {rank}, seed {seed}");
            }
        }
    }
}

#[test]
fn every_wait_that_is_missing_is_found_in_a_world() {
    let plan = step(2);
    assert!(!plan.waits.is_empty());
    for i in 0..plan.waits.len() {
        let mut broken = plan.clone();
        broken.waits.remove(i);
        assert!(check_plan(&broken).unwrap_err().message.contains("a wait is missing"));
        for seed in SEEDS {
            let world = World::new(Reference::world(2, seed), vec![broken.clone(), plan.clone()]);
            let found = world.run(fed, BUCKETS);
            let e = found[0].as_ref().unwrap_err();
            assert!(e.message.contains("a wait is missing"), "{seed}: {e}");
        }
    }
}

/// A plan that sums `x`, or gathers it, at a line.
fn issuing(op: &'static OpDef, shape: usize, line: u32) -> Plan {
    let case = Case::new("").f(&[shape]).attr("axis", DATA).attr("ranks", 2i64);
    planned(&alone(op, &case, line).0, &Reference::world(1, 0)[0])
}

#[test]
fn ranks_that_issue_different_collectives_are_named_with_both_lines() {
    for (one, other) in [
        (issuing(&ALL_REDUCE, 4, 3), issuing(&ALL_REDUCE, 6, 8)),
        (issuing(&ALL_REDUCE, 4, 3), issuing(&ALL_GATHER, 4, 8)),
    ] {
        for seed in SEEDS {
            let world = World::new(Reference::world(2, seed), vec![one.clone(), other.clone()]);
            for found in world.run(|_, name, bytes| (name == "x").then(|| vec![0; bytes]), "y") {
                let e = found.unwrap_err();
                assert_eq!(e.code, Code::Device);
                for part in ["rank 0", "rank 1", "model.py:3", "model.py:8"] {
                    assert!(e.message.contains(part), "{part}: {e}");
                }
            }
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let devices = Reference::patient_world(3, 1, Duration::from_millis(50));
    let case = Case::new("").f(&[4]).attr("axis", DATA).attr("ranks", 3i64);
    let plan = planned(&alone(&ALL_REDUCE, &case, 5).0, &devices[0]);
    let mut devices = devices;
    devices.pop();
    let world = World::new(devices, vec![plan.clone(), plan]);
    let found = world.run(|_, name, bytes| (name == "x").then(|| vec![0; bytes]), "y");
    let e = found[0].as_ref().unwrap_err().to_string();
    assert!(e.contains("rank 2 has come to no collective") && e.contains("model.py:5"), "{e}");
}

#[test]
fn a_rank_that_fails_takes_the_others_along_by_name() {
    // Rank 1's operand was never written.
    let plan = issuing(&ALL_REDUCE, 4, 3);
    for seed in SEEDS {
        let devices = Reference::world(2, seed);
        let mut world = World::new(devices, vec![plan.clone(), plan.clone()]);
        let unwritten =
            |s: &headwater_core::plan::Segment| world.devices[1].alloc(s.bytes, Content::Undefined).unwrap();
        let memory = plan.segments.iter().map(unwritten).collect();
        world.memory[1] = memory;
        let fed = |r: usize, name: &str, bytes| (name == "x" && r == 0).then(|| vec![0; bytes]);
        for found in world.run(fed, "y") {
            let e = found.unwrap_err();
            assert!(e.message.contains("rank 1 has nothing to give"), "seed {seed}: {e}");
        }
    }
}

#[test]
fn ranks_may_have_threads_of_their_own() {
    let plan = step(4);
    for seed in SEEDS {
        let joined: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let run = |(rank, device): (usize, Reference)| {
                let plan = plan.clone();
                scope.spawn(move || {
                    let world = World::new(vec![device], vec![plan]);
                    world.run(|_, name, bytes| fed(rank, name, bytes), BUCKETS).remove(0).unwrap()
                })
            };
            let threads: Vec<_> = Reference::world(4, seed).into_iter().enumerate().map(run).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(joined.iter().all(|own| *own == joined[0]) && !joined[0].is_empty());
    }
}

#[test]
fn a_device_that_reaches_no_others_refuses_a_plan_with_collectives() {
    let plan = issuing(&ALL_REDUCE, 4, 3);
    let e = Reference::wide(0).load(&plan).err().unwrap();
    assert_eq!(e.code, Code::Unsupported);
    assert!(e.to_string().contains("without a transport") && e.to_string().contains("model.py:3"), "{e}");
    let e = Reference::world(3, 0)[0].load(&plan).err().unwrap();
    assert!(e.message.contains("of 2 ranks, and the device reaches 3"), "{e}");
}
