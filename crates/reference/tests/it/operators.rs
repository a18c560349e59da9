//! The conformance suite on the reference device.

use headwater_core::conformance::{graph_of, operator, operators};
use headwater_core::device::Device;
use headwater_core::evaluate::evaluate;
use headwater_core::expand::EXPANSIONS;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::attention::attention::{ATTENTION, ATTENTION_BACKWARD};
use headwater_core::ops::reduce::{cumprod::CUMPROD, cumsum::CUMSUM};
use headwater_core::ops::view::transpose::TRANSPOSE;
use headwater_core::ops::{Case, OpDef, Sample};
use headwater_core::plan::{Bindings, Work};
use headwater_core::{Attrs, Builder, DType, Graph, Registry, Tensor, TensorType, pass};
use headwater_reference::Reference;

#[test]
fn every_operator_conforms_in_every_dtype() {
    let found = operators(&Reference::wide(1), &[DType::F64, DType::F32, DType::F16, DType::BF16]);
    assert!(found.wrong.is_empty(), "{} cases:\n{}", found.wrong.len(), found.wrong.join("\n"));
    assert!(found.refused.is_empty(), "{:?}", found.refused);
    let never: Vec<_> = found.ran.iter().filter(|(_, n)| **n == 0).collect();
    assert!(never.is_empty(), "never ran: {never:?}");
    assert_eq!(found.ran.len(), Registry::standard().operators().len());
}

#[test]
fn without_wide_types_what_needs_them_is_refused_by_name() {
    let found = operators(&Reference::new(2), &[DType::F32, DType::BF16]);
    assert!(found.wrong.is_empty(), "{} cases:\n{}", found.wrong.len(), found.wrong.join("\n"));
    let reasons = ["f64", "i64", "integers that may need more than 32 bits"];
    for (operator, why) in &found.refused {
        assert!(reasons.iter().any(|r| why.contains(r)), "{operator}: {why}");
    }
    let indices = ["arange", "argmax", "cross_entropy_loss", "embedding", "tril", "eq"];
    for operator in ["matmul", "gelu", "layer_norm", "convolution", "softmax"].into_iter().chain(indices) {
        assert!(found.ran[operator] > 0, "{operator} does not run without f64 and i64");
    }
    // Its sums are in f64 whatever it is given.
    let why = found.refused.get("segment_sum in f32").map(String::as_str);
    assert_eq!(why, Some("reference has no f64 in memory"));
}

/// Running sums over long rows, along columns, and of integers whose sums need 64 bits.
fn long_sums() -> Vec<Case> {
    let wide = (0..600).map(|i| f64::from(i * 7 % 23) * 1.8e8 - 2e9 + f64::from(i % 3)).collect();
    vec![
        Case::new("long rows").f(&[2, 1500]).attr("dim", 1).attr("reverse", true),
        Case::new("long columns").f(&[1100, 3]).attr("dim", 0),
        Case::new("columns").f(&[70, 9]).attr("dim", 0).attr("reverse", true),
        Case::new("many integers").index(&[4, 200], 1000).attr("dim", 1).attr("dtype", DType::I32),
        Case::new("wide integers").arg(DType::I64, &[2, 300], Sample::Values(wide)).attr("dim", 1),
    ]
}

fn long_products() -> Vec<Case> {
    vec![Case::new("rows").range(&[3, 40], 0.8, 1.25).attr("dim", 1)]
}

#[test]
fn every_expansion_conforms() {
    let device = Reference::expanding(3);
    for expansion in &EXPANSIONS {
        let op = expansion.op;
        let found = operator(&device, op, &[DType::F32, DType::F16, DType::BF16]);
        assert!(found.wrong.is_empty(), "{} cases:\n{}", found.wrong.len(), found.wrong.join("\n"));
        assert!(found.ran[op.name] > 0, "{} does not run", op.name);
        // It is its steps that ran: some plan has row programs in the place of the operator.
        let expands = (op.cases)().iter().any(|case| {
            let Some(graph) = graph_of(op, case, DType::F32) else { return false };
            let Ok(plan) = pass::plan(&graph, &Bindings::simple(&graph), device.target()) else {
                return false;
            };
            let whole = |work: &Work| matches!(work, Work::Kernel { op: own, .. } if own.name == op.name);
            let mut own = plan.steps.iter().filter(|step| step.op == op.name).peekable();
            own.peek().is_some() && own.all(|step| !whole(&step.work))
        });
        assert!(expands, "{} is never expanded", op.name);
    }
}

/// Attention in blocks of samples, of heads and of queries, with groups of heads, masks and dropout; and with
/// so many queries that early blocks of a causal mask have fewer keys.
fn attentions() -> Vec<Case> {
    let qkv = |name, heads: [usize; 3], [l, s]: [usize; 2], [e, ev]: [usize; 2]| {
        Case::new(name).f(&[2, heads[0], l, e]).f(&[2, heads[1], s, e]).f(&[2, heads[2], s, ev])
    };
    let seen = Sample::Values((0..114).map(|i| f64::from(i % 3 != 0)).collect());
    vec![
        qkv("causal", [1, 1, 1], [130, 17], [4, 4]).none().none().attr("is_causal", true).attr("scale", 0.25),
        qkv("bands", [1, 1, 1], [1100, 40], [2, 2]).none().none().attr("is_causal", true).attr("scale", 0.25),
        qkv("groups", [4, 2, 1], [5, 18], [6, 8]).none().none().attr("scale", 0.2),
        qkv("masked", [2, 1, 2], [3, 19], [8, 16])
            .arg(DType::Bool, &[2, 1, 3, 19], seen)
            .none()
            .attr("scale", 0.3),
        dropped(qkv("dropped", [2, 1, 2], [3, 19], [8, 16]).none()),
        // Queries of each head are drawn by themselves.
        dropped(qkv("dropped in blocks", [2, 2, 1], [55, 17], [8, 8]).none()),
    ]
}

fn dropped(case: Case) -> Case {
    case.index(&[2], 1000).attr("scale", 0.3).attr("dropout_p", 0.3).attr("stream", 5)
}

fn attention_gradients() -> Vec<Case> {
    let case = |name, [heads, hk, hv]: [usize; 3], [l, s]: [usize; 2], [e, ev]: [usize; 2]| {
        let (rows, row) = ([2, heads, l, ev], [2, heads, l]);
        let c = Case::new(name).f(&rows).f(&[2, heads, l, e]).f(&[2, hk, s, e]).f(&[2, hv, s, ev]);
        c.f(&rows).range(&row, 1.0, 2.0).range(&row, 1.0, 4.0)
    };
    let causal =
        |c: Case| c.none().none().attr("is_causal", true).attr("scale", 0.25).attr("mask_grad", false);
    vec![
        causal(case("causal", [2, 1, 2], [130, 17], [4, 4])),
        causal(case("bands", [1, 1, 1], [1100, 40], [2, 2])),
        case("groups", [4, 2, 1], [37, 18], [6, 8]).none().none().attr("scale", 0.2).attr("mask_grad", false),
        case("mask", [2, 2, 1], [30, 19], [4, 6])
            .f(&[2, 1, 30, 19])
            .none()
            .attr("scale", 0.2)
            .attr("mask_grad", true),
        dropped(case("dropped in blocks", [2, 2, 1], [55, 17], [8, 8]).none()).attr("mask_grad", false),
    ]
}

#[test]
fn expansions_conform_in_all_their_ways() {
    static ATTENTIONS: OpDef = OpDef { cases: attentions, ..ATTENTION };
    static GRADIENTS: OpDef = OpDef { cases: attention_gradients, ..ATTENTION_BACKWARD };
    static SUMS: OpDef = OpDef { cases: long_sums, ..CUMSUM };
    static PRODUCTS: OpDef = OpDef { cases: long_products, ..CUMPROD };
    let device = Reference::expanding(4);
    for op in [&SUMS, &PRODUCTS, &ATTENTIONS, &GRADIENTS] {
        let found = operator(&device, op, &[DType::F32, DType::BF16]);
        assert!(found.wrong.is_empty(), "{} cases:\n{}", found.wrong.len(), found.wrong.join("\n"));
        assert!(found.refused.is_empty(), "{:?}", found.refused);
        assert_eq!(found.ran[op.name], 2 * (op.cases)().len());
    }
}

/// The gradients of attention, two heads of queries to each of keys and of values; the heads of the gradient
/// and of the result are within rows of tokens, as products make them, or first.
fn grouped_gradients(tokens_first: bool) -> (Graph, Vec<Tensor>) {
    let [n, heads, own, l, s, e] = [2, 4, 2, 5, 6, 3];
    let mut b = Builder::new();
    let mut given = Vec::new();
    let mut input = |b: &mut Builder, name: &str, shape: &[usize], turned: bool| {
        let order: Vec<usize> =
            if turned { vec![shape[0], shape[2], shape[1], shape[3]] } else { shape.to_vec() };
        let number = |k: usize| ((k * 29 + name.len() * 7) % 23) as f64 / 16.0 + 0.25;
        // Element [i, h, t, c] has the same number in both orders.
        let place = |k: usize| match turned {
            true => {
                let (c, h, t, i) = (k % e, k / e % heads, k / e / heads % l, k / e / heads / l);
                ((i * heads + h) * l + t) * e + c
            }
            false => k,
        };
        let numbers = (0..order.iter().product()).map(|k| number(place(k))).collect();
        given.push(Tensor::float(DType::BF16, order.clone(), numbers).cast(DType::BF16));
        let x = b.input(name, TensorType::new(DType::BF16, &order[..]), InputRole::User);
        let exchange = Attrs::new().with("dim0", 1).with("dim1", 2);
        if turned { b.one(&TRANSPOSE, &[x], exchange).unwrap() } else { x }
    };
    let rows = [n, heads, l, e];
    let g = input(&mut b, "gradient", &rows, tokens_first);
    let q = input(&mut b, "q", &rows, false);
    let [k, v] = ["key", "value"].map(|name| input(&mut b, name, &[n, own, s, e], false));
    let y = input(&mut b, "result", &rows, tokens_first);
    let [most, sum] = ["most", "denominator"].map(|name| {
        let row = TensorType::new(DType::F32, &rows[..3]);
        given.push(Tensor::float(DType::F32, row.shape.clone(), vec![4.0; n * heads * l]));
        b.input(name, row, InputRole::User)
    });
    let attrs = Attrs::new().with("scale", 0.5).with("is_causal", true).with("mask_grad", false);
    let operands = [Some(g), Some(q), Some(k), Some(v), Some(y), Some(most), Some(sum), None, None];
    let results = b.apply(&ATTENTION_BACKWARD, &operands, attrs).unwrap();
    for (name, &v) in ["dq", "dk", "dv"].into_iter().zip(&results) {
        b.output(name, v, OutputRole::User);
    }
    (b.finish(), given)
}

#[test]
fn gradients_whose_heads_are_within_tokens_take_no_step_of_their_own() {
    let device = Reference::expanding(5);
    let run = |tokens_first: bool| {
        let (graph, inputs) = grouped_gradients(tokens_first);
        let plan = pass::plan(&graph, &Bindings::simple(&graph), device.target()).unwrap();
        pass::check_plan(&plan).unwrap();
        let steps = plan.steps.iter().filter(|step| step.op == ATTENTION_BACKWARD.name).count();
        let results = evaluate(&device, &graph, &inputs).unwrap();
        (steps, results.iter().map(Tensor::to_bytes).collect::<Vec<_>>())
    };
    let ((apart, first), (within, second)) = (run(false), run(true));
    // Sums of rows, scores, gradients of weights, of scores, of queries, keys and values; and five copies for
    // products that read no transposed operand here. That of the gradient is made with the sums of rows.
    assert_eq!((apart, within), (12, 12));
    assert!(first.iter().flatten().any(|&byte| byte != 0));
    assert!(first == second, "other bits");
}
