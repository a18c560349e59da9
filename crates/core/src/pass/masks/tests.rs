use super::*;
use crate::graph::{InputRole, OutputRole, verify};
use crate::{Builder, Tensor, pass, reference};

type Recipe = fn(&mut Builder, ValueId) -> crate::diagnostic::Result<ValueId>;

fn op(name: &str) -> &'static OpDef {
    crate::ops::Registry::standard().by_name(name).unwrap_or_else(|| panic!("no operator {name}"))
}

fn rows() -> Attrs {
    Attrs::new().with("size", [4, 1]).with("dtype", DType::F64)
}

fn number(x: f64) -> Attrs {
    Attrs::new().with("other", x)
}

/// The recipe's result for x with masks as their means, and the number of masks.
fn means(recipe: Recipe) -> (Vec<f64>, usize) {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F64, [4, 3]), InputRole::User);
    let y = recipe(&mut b, x).unwrap();
    b.output("y", y, OutputRole::User);
    let mut graph = b.finish();
    let before = graph.ty(y).clone();
    let count = masks_as_means(&mut graph).count;
    assert_eq!((graph.outputs[0].value, graph.ty(y)), (y, &before), "ids and types stay");
    verify(&graph).unwrap();
    (computed(graph), count)
}

/// The graph's result for x from 0 to 11, [4, 3].
fn computed(graph: Graph) -> Vec<f64> {
    let graph = pass::simplify(pass::decompose(graph).unwrap()).graph;
    let x = Tensor::float(DType::F64, [4, 3], (0..12).map(f64::from).collect::<Vec<_>>());
    let key = Tensor::int(DType::I64, [2], vec![1, 2]);
    let inputs: Vec<Tensor> =
        graph.inputs.iter().map(|i| if i.role == InputRole::Rng { key.clone() } else { x.clone() }).collect();
    reference::run(&graph, &inputs).unwrap()[0].floats().to_vec()
}

fn close(found: &[f64], expected: impl Fn(f64) -> f64) {
    for (i, y) in found.iter().enumerate() {
        let e = expected(i as f64);
        assert!((y - e).abs() < 1e-14, "{i}: {y} and not {e}");
    }
}

#[test]
fn stochastic_depth_becomes_the_identity() {
    // timm and torchvision.
    let (y, count) = means(|b, x| {
        let empty = b.one(op("empty"), &[], rows())?;
        let mask = b.one(op("bernoulli"), &[empty], Attrs::new().with("p", 0.9))?;
        let mask = b.one(op("div"), &[mask], number(0.9))?;
        b.mul(x, mask)
    });
    assert_eq!(count, 1);
    close(&y, |x| x);
    // transformers.
    let (y, count) = means(|b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let u = b.one(op("add"), &[u], number(0.7))?;
        let mask = b.call(op("floor"), &[u])?;
        let x = b.one(op("div"), &[x], number(0.7))?;
        b.mul(x, mask)
    });
    assert_eq!(count, 1);
    close(&y, |x| x);
}

#[test]
fn evaluation_draws_nothing() {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F64, [4, 3]), InputRole::User);
    let u = b.apply(op("rand"), &[], rows()).unwrap()[0];
    let u = b.one(op("add"), &[u], number(0.7)).unwrap();
    let mask = b.call(op("floor"), &[u]).unwrap();
    let y = b.mul(x, mask).unwrap();
    b.output("y", y, OutputRole::User);
    close(&computed(pass::evaluation(&b.finish()).unwrap()), |x| 0.7 * x);
}

#[test]
fn masks_by_comparison_have_their_probability() {
    let (y, count) = means(|b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let mask = b.one(op("gt"), &[u], number(0.25))?;
        let y = b.mul(x, mask)?;
        b.one(op("div"), &[y], number(0.75))
    });
    assert_eq!(count, 1);
    close(&y, |x| x);
    // 0.4 + 2u < 1 where u < 0.3; dropped is what is not.
    let (y, _) = means(|b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let u = b.one(op("mul"), &[u], number(2.0))?;
        let u = b.one(op("add"), &[u], number(0.4))?;
        let mask = b.one(op("lt"), &[u], number(1.0))?;
        let mask = b.call(op("bitwise_not"), &[mask])?;
        b.one(op("masked_fill"), &[x, mask], Attrs::new().with("value", 10.0))
    });
    close(&y, |x| 0.3 * x + 0.7 * 10.0);
    // 1 - bernoulli(0.9), as truth values.
    let (y, _) = means(|b, x| {
        let p = b.full(&TensorType::new(DType::F64, [4, 3]), 0.9)?;
        let mask = b.one(op("bernoulli"), &[p], Attrs::new().with("p", 0.9))?;
        let mask = b.one(op("rsub"), &[mask], number(1.0))?;
        let mask = b.one(op("to"), &[mask], Attrs::new().with("dtype", DType::Bool))?;
        let zeros = b.full(&TensorType::new(DType::F64, [4, 3]), 0.0)?;
        b.one(op("where"), &[mask, zeros, x], Attrs::new())
    });
    close(&y, |x| 0.9 * x);
}

#[test]
fn numbers_of_a_mask_are_followed_to_truth_values() {
    let (y, count) = means(|b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let u = b.one(op("add"), &[u], number(0.25))?;
        let mask = b.call(op("floor"), &[u])?;
        let mask = b.one(op("to"), &[mask], Attrs::new().with("dtype", DType::Bool))?;
        let mask = b.one(op("to"), &[mask], Attrs::new().with("dtype", DType::F64))?;
        let mask = b.one(op("gt"), &[mask], number(0.5))?;
        b.one(op("masked_fill"), &[x, mask], Attrs::new().with("value", 8.0))
    });
    assert_eq!(count, 1);
    close(&y, |x| 0.75 * x + 0.25 * 8.0);
}

#[test]
fn probabilities_may_be_a_tensor() {
    let (y, count) = means(|b, x| {
        let p = b.full(&TensorType::new(DType::F64, [3]), 0.5)?;
        let mask = b.one(op("bernoulli"), &[x, p], Attrs::new())?;
        b.mul(x, mask)
    });
    assert_eq!(count, 1);
    close(&y, |x| 0.5 * x);
}

#[test]
fn other_random_numbers_stay() {
    let noise: Recipe = |b, x| {
        let u = b.one(op("rand"), &[x], Attrs::new())?;
        b.add(x, u)
    };
    let order: Recipe = |b, x| {
        let u = b.one(op("rand"), &[x], Attrs::new())?;
        let mask = b.one(op("lt"), &[u], number(0.5))?;
        let sorted = b.one(op("sort"), &[u], Attrs::new().with("dim", 1).with("descending", false))?;
        let y = b.mul(x, mask)?;
        b.mul(y, sorted)
    };
    // Integers have no mean: 0.5 would be 0.
    let integers: Recipe = |b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let u = b.one(op("add"), &[u], number(0.5))?;
        let mask = b.call(op("floor"), &[u])?;
        let mask = b.one(op("to"), &[mask], Attrs::new().with("dtype", DType::I64))?;
        b.mul(x, mask)
    };
    for recipe in [noise, order, integers] {
        assert_eq!(means(recipe).1, 0);
    }
}

#[test]
fn a_mask_counts_once_in_a_product() {
    let mask = |b: &mut Builder| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        b.one(op("lt"), &[u], number(0.25))
    };
    let floats = |b: &mut Builder, m| b.one(op("to"), &[m], Attrs::new().with("dtype", DType::F64));
    // m · m = m, by itself, as a square, and scaled: (4 m)² = 16 m.
    let square: Recipe = |b, x| {
        let empty = b.one(op("empty"), &[], rows())?;
        let m = b.one(op("bernoulli"), &[empty], Attrs::new().with("p", 0.25))?;
        let m = b.mul(m, m)?;
        b.mul(x, m)
    };
    close(&means(square).0, |x| 0.25 * x);
    let power: Recipe = |b, x| {
        let empty = b.one(op("empty"), &[], rows())?;
        let m = b.one(op("bernoulli"), &[empty], Attrs::new().with("p", 0.25))?;
        let m = b.one(op("div"), &[m], number(0.25))?;
        let m = b.one(op("pow"), &[m], Attrs::new().with("exponent", 2.0))?;
        b.mul(x, m)
    };
    close(&means(power).0, |x| 4.0 * x);
    // m · (1 - m) = 0.
    let complement: Recipe = |b, x| {
        let empty = b.one(op("empty"), &[], rows())?;
        let m = b.one(op("bernoulli"), &[empty], Attrs::new().with("p", 0.25))?;
        let not = b.one(op("rsub"), &[m], number(1.0))?;
        let m = b.mul(m, not)?;
        b.add(x, m)
    };
    close(&means(complement).0, |x| x);
    // x · m · m, with probabilities that are a tensor.
    let twice: Recipe = |b, x| {
        let p = b.full(&TensorType::new(DType::F64, [3]), 0.5)?;
        let m = b.one(op("bernoulli"), &[x, p], Attrs::new())?;
        let y = b.mul(x, m)?;
        let y = b.one(op("neg"), &[y], Attrs::new())?;
        b.mul(m, y)
    };
    close(&means(twice).0, |x| -0.5 * x);
    // By truth values, and by their floats.
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F64, [4, 3]), InputRole::User);
    let m = mask(&mut b).unwrap();
    let y = b.mul(x, m).unwrap();
    let y = b.mul(y, m).unwrap();
    let f = floats(&mut b, m).unwrap();
    let y = b.mul(y, f).unwrap();
    b.output("y", y, OutputRole::User);
    let mut graph = b.finish();
    assert_eq!(masks_as_means(&mut graph), Means { count: 1, undivided: 1 });
    close(&computed(graph), |x| 0.25 * x);
    // Independent ones count both, of truth values and of floats too.
    let both: Recipe = |b, x| {
        let empty = b.one(op("empty"), &[], rows())?;
        let one = b.one(op("bernoulli"), &[empty], Attrs::new().with("p", 0.25))?;
        let u = b.apply(op("rand"), &[], rows())?[0];
        let two = b.one(op("lt"), &[u], number(0.5))?;
        let m = b.mul(two, one)?;
        b.mul(x, m)
    };
    let (y, count) = means(both);
    assert_eq!(count, 2);
    close(&y, |x| 0.125 * x);
    // Places that do not match, and a quotient, have no mean that is known.
    let outer: Recipe = |b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let m = b.one(op("lt"), &[u], number(0.5))?;
        let m = b.one(op("to"), &[m], Attrs::new().with("dtype", DType::F64))?;
        let row = b.one(op("reshape"), &[m], Attrs::new().with("shape", [1, 4]))?;
        let square = b.mul(m, row)?;
        let sum = b.one(op("sum"), &[square], Attrs::new().with("dim", [1]).with("keepdim", true))?;
        b.mul(x, sum)
    };
    let quotient: Recipe = |b, x| {
        let empty = b.one(op("empty"), &[], rows())?;
        let m = b.one(op("bernoulli"), &[empty], Attrs::new().with("p", 0.25))?;
        let m = b.call(op("div"), &[m, m])?;
        b.mul(x, m)
    };
    assert_eq!((means(outer).1, means(quotient).1), (0, 0));
}

#[test]
fn a_mask_may_lend_its_type_and_shape() {
    let (y, count) = means(|b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let m = b.one(op("lt"), &[u], number(0.5))?;
        let f = b.one(op("type_as"), &[m, x], Attrs::new())?;
        let x = b.one(op("type_as"), &[x, f], Attrs::new())?;
        b.mul(x, m)
    });
    assert_eq!(count, 1);
    close(&y, |x| 0.5 * x);
}

#[test]
fn masks_that_nothing_divides_are_counted() {
    let undivided = |recipe: Recipe| {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F64, [4, 3]), InputRole::User);
        let y = recipe(&mut b, x).unwrap();
        b.output("y", y, OutputRole::User);
        let found = masks_as_means(&mut b.finish());
        assert_eq!(found.count, 1);
        found.undivided
    };
    // Divided before the product, in the mask, after it.
    let before: Recipe = |b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let u = b.one(op("add"), &[u], number(0.7))?;
        let m = b.call(op("floor"), &[u])?;
        let x = b.one(op("div"), &[x], number(0.7))?;
        b.mul(x, m)
    };
    let within: Recipe = |b, x| {
        let empty = b.one(op("empty"), &[], rows())?;
        let m = b.one(op("bernoulli"), &[empty], Attrs::new().with("p", 0.9))?;
        let m = b.one(op("div"), &[m], number(0.9))?;
        b.mul(x, m)
    };
    let after: Recipe = |b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let m = b.one(op("lt"), &[u], number(0.2))?;
        let x = b.one(op("masked_fill"), &[x, m], Attrs::new().with("value", 0.0))?;
        b.one(op("mul"), &[x], number(1.25))
    };
    let never: Recipe = |b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let m = b.one(op("lt"), &[u], number(0.2))?;
        b.mul(x, m)
    };
    let chosen: Recipe = |b, x| {
        let u = b.apply(op("rand"), &[], rows())?[0];
        let m = b.one(op("lt"), &[u], number(0.2))?;
        b.one(op("masked_fill"), &[x, m], Attrs::new().with("value", 9.0))
    };
    assert_eq!([before, within, after, never, chosen].map(undivided), [0, 0, 0, 1, 1]);
}
