//! A callable computes what its graph says, on buffers of the caller, with several passes in flight.

use crate::halves::model;
use headwater_core::callable::{Callable, Context, Port, Role};
use headwater_core::compile::{Goal, GradientRequest, Options};
use headwater_core::device::{Buffer, Content, Device};
use headwater_core::{Code, random};
use headwater_reference::Reference;
use std::sync::Arc;

const OUTPUTS: [&str; 2] = ["y", "exp"];
const WANTED: [&str; 4] = ["x", "filter", "z", "p"];

struct Caller {
    device: Arc<dyn Device>,
    context: Arc<Context>,
    callable: Callable,
}

type Memory = Vec<Arc<dyn Buffer>>;

impl Caller {
    fn new(seed: u64, options: &Options) -> Caller {
        let device: Arc<dyn Device> = Arc::new(Reference::new(seed));
        let context = Context::new(device.clone()).unwrap();
        let callable = Callable::new(&context, model(), options).unwrap();
        Caller { device, context, callable }
    }

    fn alloc(&self, bytes: usize) -> Arc<dyn Buffer> {
        self.device.alloc(bytes, Content::Undefined).unwrap()
    }

    /// Buffers of ports, with contents that depend on their names and `batch`.
    fn filled(&self, ports: &[Port], batch: i64) -> Memory {
        let one = |port: &Port| {
            let key = port.name.bytes().fold(batch, |k, c| k.wrapping_mul(31).wrapping_add(c as i64));
            let numbers = random::Stream::new(key, 0, 0);
            let data = (0..port.ty.bytes() as u64 / 4)
                .flat_map(|i| (numbers.uniform(i) as f32 + 0.25).to_le_bytes())
                .collect::<Vec<u8>>();
            let buffer = self.alloc(port.ty.bytes());
            self.context.stream().write(&buffer, 0, &data).unwrap();
            buffer
        };
        ports.iter().map(one).collect()
    }

    fn empty(&self, sizes: impl Iterator<Item = usize>) -> Memory {
        sizes.map(|bytes| self.alloc(bytes)).collect()
    }

    fn read(&self, memory: &[Arc<dyn Buffer>]) -> Vec<Vec<u8>> {
        let one = |buffer: &Arc<dyn Buffer>| {
            let mut data = vec![0; buffer.bytes()];
            self.context.stream().read(buffer, 0, &mut data).unwrap();
            data
        };
        memory.iter().map(one).collect()
    }

    /// Contents of the gradients alone: buckets have gaps.
    fn gradients(&self, buckets: &[Arc<dyn Buffer>]) -> Vec<Vec<u8>> {
        let one = |g: &headwater_core::callable::Gradient| {
            let mut data = vec![0; g.ty.bytes()];
            self.context.stream().read(&buckets[g.bucket], g.offset, &mut data).unwrap();
            data
        };
        self.callable.gradients().iter().map(one).collect()
    }

    /// Results and gradients of batches; all forward passes run before the first backward pass.
    fn run(&mut self, batches: &[i64], order: &[usize]) -> Vec<(Vec<Vec<u8>>, Vec<Vec<u8>>)> {
        let mut passes = Vec::new();
        for &batch in batches {
            let inputs = self.filled(self.callable.inputs(), batch);
            let results = self.empty(self.callable.results().iter().map(|p| p.ty.bytes()));
            let activations = self.callable.forward(&inputs, &results).unwrap();
            passes.push((inputs, results, Some(activations)));
        }
        let mut found = vec![Default::default(); batches.len()];
        for &at in order {
            let (inputs, results, activations) = &mut passes[at];
            let cotangents = self.filled(self.callable.cotangents(), batches[at]);
            let buckets = self.empty(self.callable.buckets().iter().map(|b| b.bytes));
            let late = |ports: &[Port], memory: &Memory| -> Vec<Option<Arc<dyn Buffer>>> {
                ports.iter().zip(memory).map(|(p, b)| p.crosses.then(|| b.clone())).collect()
            };
            let inputs = late(self.callable.inputs(), inputs);
            let kept = late(self.callable.results(), results);
            let activations = activations.take().unwrap();
            self.callable.backward(activations, &inputs, &kept, &cotangents, &buckets).unwrap();
            self.callable.finish().unwrap();
            found[at] = (self.read(results), self.gradients(&buckets));
        }
        found
    }
}

fn options() -> Options<'static> {
    let derivative = GradientRequest::Vjp { outputs: &OUTPUTS, inputs: &WANTED };
    Options { derivative, ..Options::default() }
}

#[test]
fn passes_in_flight_do_not_disturb_each_other() {
    let one_by_one: Vec<_> =
        (0..3).map(|batch| Caller::new(1, &options()).run(&[batch], &[0]).remove(0)).collect();
    assert!(one_by_one[0] != one_by_one[1]);
    for (seed, order) in [(2, [0, 1, 2]), (3, [2, 1, 0]), (4, [1, 2, 0])] {
        let mut caller = Caller::new(seed, &options());
        assert!(caller.run(&[0, 1, 2], &order) == one_by_one, "in the order {order:?}");
        // The arenas of three passes are reused by the next.
        assert_eq!(caller.context.idle_bytes(), 3 * caller.callable.arena_bytes());
        assert!(caller.run(&[0, 1, 2], &order) == one_by_one);
        assert_eq!(caller.context.idle_bytes(), 3 * caller.callable.arena_bytes());
    }
}

#[test]
fn a_callable_says_what_it_takes_and_gives() {
    let caller = Caller::new(0, &options());
    let c = &caller.callable;
    let names = |ports: &[Port]| ports.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(c.results()), ["mean", "var", "hidden", "exp", "y", "kept"]);
    assert_eq!(c.results()[0].role, Role::NewContent("mean".into()));
    assert_eq!(names(c.cotangents()), ["cotangent.y", "cotangent.exp"]);
    let depends = |name: &str| c.gradients().iter().find(|g| g.input == name).map(|g| g.depends.clone());
    assert_eq!(depends("x"), Some(vec!["y".to_string()]));
    assert_eq!(depends("z"), Some(vec!["exp".to_string()]));
    assert_eq!(depends("p"), None);
    assert_eq!(c.missing().len(), 1);
    assert!(c.crossing_bytes() > 0 && c.crossing_bytes() <= c.arena_bytes());
    let crosses = |name: &str| c.inputs().iter().find(|p| p.name == name).is_some_and(|p| p.crosses);
    assert!(crosses("filter") && !crosses("mean") && !crosses("z"));
}

#[test]
fn a_forward_pass_alone_has_the_same_results() {
    let forward = Options { goal: Goal::Forward, ..options() };
    let mut alone = Caller::new(5, &forward);
    assert!(alone.callable.gradients().is_empty() && alone.callable.cotangents().is_empty());
    let inputs = alone.filled(alone.callable.inputs(), 0);
    let results = alone.empty(alone.callable.results().iter().map(|p| p.ty.bytes()));
    drop(alone.callable.forward(&inputs, &results).unwrap());
    alone.callable.finish().unwrap();
    assert!(alone.read(&results) == Caller::new(6, &options()).run(&[0], &[0])[0].0);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut caller = Caller::new(7, &options());
    let inputs = caller.filled(caller.callable.inputs(), 0);
    let results = caller.empty(caller.callable.results().iter().map(|p| p.ty.bytes()));
    let refused = caller.callable.forward(&inputs[1..], &results).err().unwrap();
    assert_eq!(refused.code, Code::Device);
    let small = caller.empty(results.iter().map(|_| 0));
    assert_eq!(caller.callable.forward(&inputs, &small).err().unwrap().code, Code::Device);
    let activations = caller.callable.forward(&inputs, &results).unwrap();
    let mut other = Caller::new(7, &options());
    let cotangents = other.filled(other.callable.cotangents(), 0);
    let buckets = other.empty(other.callable.buckets().iter().map(|b| b.bytes));
    let none = |n: usize| vec![None; n];
    let e = other.callable.backward(
        activations,
        &none(inputs.len()),
        &none(results.len()),
        &cotangents,
        &buckets,
    );
    assert!(e.unwrap_err().message.contains("another callable"));
    let activations = caller.callable.forward(&inputs, &results).unwrap();
    let cotangents = caller.filled(caller.callable.cotangents(), 0);
    let buckets = caller.empty(caller.callable.buckets().iter().map(|b| b.bytes));
    let e = caller.callable.backward(
        activations,
        &none(inputs.len()),
        &none(results.len()),
        &cotangents,
        &buckets,
    );
    assert!(e.unwrap_err().message.contains("the backward pass reads"));
    let loss = Options { derivative: GradientRequest::Loss, ..Options::default() };
    let e = Callable::new(&caller.context, model(), &loss).err().unwrap();
    assert_eq!(e.code, Code::Attribute);
}
