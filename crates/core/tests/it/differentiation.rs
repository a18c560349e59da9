//! Differentiation as a pass: against central differences on whole graphs, and its promises about parameters.

use headwater_core::graph::{Graph, InputRole, OutputRole, Phase, parse, verify};
use headwater_core::pass::{self, differentiate, differentiate::Differentiated, vjp};
use headwater_core::tensor::Data;
use headwater_core::{Attrs, Builder, Code, DType, Registry, Tensor, TensorType, ValueId, ops, reference};

/// A graph from its text; output 0 is the loss.
fn parsed(nodes: &str) -> Graph {
    let graph = parse(&format!("headwater graph 1\n{nodes}\n@0 = \"here\""), Registry::standard()).unwrap();
    verify(&graph).unwrap();
    graph
}

#[track_caller]
fn differentiated(nodes: &str) -> Differentiated {
    let graph = parsed(nodes);
    let loss = graph.outputs[0].value;
    let d = differentiate(graph, loss).unwrap();
    verify(&d.graph).unwrap();
    d
}

/// Compares every gradient with central differences of output 0, in f64.
///
/// With step h the truncation is h²·f'''/6 and the rounding ε·|f|/h: about 1e-9 for numbers around 1 and h =
/// 1e-5.
#[track_caller]
fn check(d: &Differentiated) {
    let numbers =
        |i: usize, n: usize| (0..n).map(|k| ((i * 31 + k * 17 + 5) % 23) as f64 / 11.5 - 0.9).collect();
    let inputs: Vec<Tensor> = d
        .graph
        .inputs
        .iter()
        .enumerate()
        .map(|(i, input)| {
            let ty = d.graph.ty(input.value);
            Tensor::float(ty.dtype, ty.shape.clone(), numbers(i, ty.shape.numel()))
        })
        .collect();
    let results = reference::run(&d.graph, &inputs).unwrap();
    for (o, got) in d.graph.outputs.iter().zip(&results) {
        let OutputRole::Gradient(target) = o.role else { continue };
        let at = d.graph.input_index(target).unwrap();
        for e in 0..inputs[at].shape().numel() {
            let loss = |x: f64| {
                let mut inputs = inputs.clone();
                let Data::Float(v) = &mut inputs[at].data else { unreachable!() };
                v[e] = x;
                reference::run(&d.graph, &inputs).unwrap()[0].floats()[0]
            };
            let (x, h) = (inputs[at].floats()[e], 1e-5);
            let want = (loss(x + h) - loss(x - h)) / (2.0 * h);
            let got = got.floats()[e];
            assert!((got - want).abs() <= 1e-8 * want.abs().max(1.0), "{}[{e}]: {got}, not {want}", o.name);
        }
    }
}

fn gradients(d: &Differentiated) -> Vec<&str> {
    let is_gradient = |r: OutputRole| matches!(r, OutputRole::Gradient(_));
    d.graph.outputs.iter().filter(|o| is_gradient(o.role)).map(|o| o.name.as_str()).collect()
}

#[test]
fn a_value_used_many_times_sums_its_gradients() {
    let d = differentiated(
        "%0 = parameter \"w\" : f64[2, 3]
        %1 = gelu(%0) : f64[2, 3]
        %2 = mul(%1, %0) : f64[2, 3]
        %3 = add(%2, %1) : f64[2, 3]
        %4 = mul(%3, %1) : f64[2, 3]
        %5 = sum(%4) : f64[]
        output \"loss\" = %5",
    );
    assert_eq!(gradients(&d), ["grad.w"]);
    check(&d);
}

#[test]
fn one_tensor_as_both_operands() {
    check(&differentiated(
        "%0 = parameter \"w\" : f64[3]
        %1 = mul(%0, %0) : f64[3]
        %2 = sum(%1) : f64[]
        output \"loss\" = %2",
    ));
    // w wᵀ, and a product with itself transposed in a batch.
    check(&differentiated(
        "%0 = parameter \"w\" : f64[3, 2]
        %1 = permute(%0, dims=[1, 0]) : f64[2, 3]
        %2 = matmul(%0, %1) : f64[3, 3]
        %3 = softmax(%2, dim=-1) : f64[3, 3]
        %4 = mul(%3, %2) : f64[3, 3]
        %5 = sum(%4) : f64[]
        output \"loss\" = %5",
    ));
    check(&differentiated(
        "%0 = parameter \"w\" : f64[2, 2]
        %1 = cat(%0, %0, %0, dim=1) : f64[2, 6]
        %2 = mul(%1, %1) : f64[2, 6]
        %3 = sum(%2) : f64[]
        output \"loss\" = %3",
    ));
}

#[test]
fn a_tied_parameter_has_one_gradient_from_all_its_uses() {
    let d = differentiated(
        "%0 = parameter \"embed.weight\" also \"head.weight\" : f64[2, 2]
        %1 = user \"x\" : f64[3, 2]
        %2 = matmul(%1, %0) : f64[3, 2]
        %3 = permute(%0, dims=[1, 0]) : f64[2, 2]
        %4 = matmul(%2, %3) : f64[3, 2]
        %5 = sum(%4) : f64[]
        output \"loss\" = %5",
    );
    assert_eq!(gradients(&d), ["grad.embed.weight"]);
    check(&d);
}

#[test]
fn frozen_parameters_get_nothing_and_let_gradients_through() {
    let d = differentiated(
        "%0 = parameter \"w\" : f64[2]
        %1 = frozen \"scale\" : f64[2]
        %2 = mul(%0, %1) : f64[2]
        %3 = sum(%2) : f64[]
        output \"loss\" = %3",
    );
    assert_eq!((gradients(&d), d.missing.len()), (vec!["grad.w"], 0));
    check(&d);
    // With nothing to train there is nothing to do but the seed.
    let d = differentiated(
        "%0 = frozen \"w\" : f64[2]
        %1 = sum(%0) : f64[]
        output \"loss\" = %1",
    );
    assert_eq!((gradients(&d).len(), d.graph.nodes.len()), (0, 2));
}

#[test]
fn a_parameter_without_gradient_is_reported_with_its_reason() {
    let d = differentiated(
        "%0 = parameter \"used\" : f64[2]
        %1 = parameter \"unused\" : f64[2]
        %2 = parameter \"aside\" : f64[2]
        %3 = parameter \"detached\" : f64[2]
        %4 = parameter \"counted\" : f64[2]
        %5 = parameter \"written\" : f64[2]
        %6 = parameter \"ints\" : i64[2]
        %7 = gelu(%2) : f64[2]
        %8 = detach(%3) : f64[2]
        %9 = to(%4, dtype=i64) : i64[2]
        %10 = mul(%0, %8) : f64[2]
        %11 = mul(%10, %9) : f64[2]
        %12 = overwrite(%11, %5) : f64[2]
        %13 = mul(%12, %6) : f64[2]
        %14 = sum(%13) : f64[]
        output \"loss\" = %14
        output \"aside\" = %7",
    );
    assert_eq!(gradients(&d), ["grad.used"]);
    let got: Vec<_> = d.missing.iter().map(|m| (m.parameter.as_str(), m.reason.as_str())).collect();
    assert_eq!(
        got,
        [
            ("unused", "the model never uses it"),
            ("aside", "it is used, first by gelu (here), but the loss does not depend on that"),
            (
                "detached",
                "its way to the loss ends at detach (here): the model turns gradients off here (`detach` or `no_grad`)"
            ),
            ("counted", "its way to the loss ends at to (here), whose result is not of floats"),
            (
                "written",
                "the loss does not change with it, by the derivatives of the operators from overwrite (here) on"
            ),
            ("ints", "it is i64[2], and only floats have gradients"),
        ]
    );
}

#[test]
fn functions_of_steps_have_zero_gradients_not_none() {
    for step in [
        "floor(%0)",
        "ceil(%0)",
        "round(%0)",
        "trunc(%0)",
        "sign(%0)",
        "div(%0, other=0.3, rounding_mode=\"floor\")",
    ] {
        let d = differentiated(&format!(
            "%0 = parameter \"w\" : f64[3]
            %1 = {step} : f64[3]
            %2 = sum(%1) : f64[]
            output \"loss\" = %2"
        ));
        assert_eq!((gradients(&d), d.missing.len()), (vec!["grad.w"], 0), "{step}");
        // Also at a jump, and of what is not a number.
        let w = Tensor::float(DType::F64, [3], vec![0.0, 0.5, f64::NAN]);
        assert_eq!(reference::run(&d.graph, &[w]).unwrap()[1].floats(), [0.0; 3], "{step}");
    }
}

#[test]
fn a_derivative_that_is_not_implemented_is_an_error_also_beside_another_way() {
    let graph = parsed(
        "%0 = parameter \"w\" : f64[]
        %1 = special_zeta(%0, %0) : f64[]
        %2 = add(%1, %0) : f64[]
        output \"loss\" = %2",
    );
    let loss = graph.outputs[0].value;
    let e = differentiate(graph, loss).unwrap_err();
    assert!(e.code == Code::Gradient && e.to_string().contains("special_zeta"), "{e}");
}

#[test]
fn a_second_way_keeps_the_gradient_and_only_that_way() {
    // d/dw (w · detach(w) + w) = detach(w) + 1.
    let d = differentiated(
        "%0 = parameter \"w\" : f64[2]
        %1 = detach(%0) : f64[2]
        %2 = mul(%0, %1) : f64[2]
        %3 = add(%2, %0) : f64[2]
        %4 = sum(%3) : f64[]
        output \"loss\" = %4",
    );
    assert!(d.missing.is_empty());
    let w = Tensor::float(DType::F64, [2], vec![0.25, -3.0]);
    assert_eq!(reference::run(&d.graph, &[w]).unwrap()[1].floats(), [1.25, -2.0]);
}

#[test]
fn the_loss_may_be_the_parameter_itself() {
    let d = differentiated("%0 = parameter \"w\" : f64[1]\noutput \"loss\" = %0");
    let w = Tensor::float(DType::F64, [1], vec![7.0]);
    assert_eq!(reference::run(&d.graph, &[w]).unwrap()[1].floats(), [1.0]);
}

#[test]
fn gradients_have_the_type_of_their_parameter() {
    let d = differentiated(
        "%0 = parameter \"half\" : f16[3]
        %1 = parameter \"scalar\" : f32[]
        %2 = user \"x\" : f64[2, 3]
        %3 = to(%0, dtype=f32) : f32[3]
        %4 = mul(%3, %1) : f32[3]
        %5 = mul(%4, %2) : f64[2, 3]
        %6 = sum(%5) : f64[]
        output \"loss\" = %6",
    );
    // The verifier compares the types; both exist.
    assert_eq!(gradients(&d), ["grad.half", "grad.scalar"]);
}

#[test]
fn the_loss_must_be_one_float() {
    for (ty, code) in [("f64[2]", Code::Gradient), ("i64[]", Code::Gradient)] {
        let graph = parsed(&format!("%0 = user \"x\" : {ty}\noutput \"loss\" = %0"));
        let loss = graph.outputs[0].value;
        assert_eq!(differentiate(graph, loss).unwrap_err().code, code);
    }
}

#[test]
fn operators_must_be_decomposed_first() {
    fn body(b: &mut Builder, _: &ops::OpCx, x: &[Option<ValueId>]) -> headwater_core::Result<Vec<ValueId>> {
        let x = x[0].expect("one input");
        Ok(vec![b.mul(x, x)?])
    }
    static SQUARE: ops::OpDef = ops::OpDef {
        name: "test_square",
        schemas: &[],
        infer: |cx| Ok(vec![cx.ty(0)?.clone()]),
        derivative: ops::Derivative::ByDecomposition,
        precision: ops::Precision::Same,
        cost: ops::Cost::Free,
        body: ops::Body::Decompose(body),
        cases: Vec::new,
    };
    let build = || {
        let mut b = Builder::new();
        let w = b.parameter("w", DType::F64, &[1]);
        let y = b.one(&SQUARE, &[w], Attrs::new()).unwrap();
        b.output("loss", y, OutputRole::User);
        b.finish()
    };
    let graph = build();
    let loss = graph.outputs[0].value;
    let e = differentiate(graph, loss).unwrap_err();
    assert_eq!((e.code, e.op), (Code::Graph, Some("test_square")));
    let graph = headwater_core::pass::decompose(build()).unwrap();
    let loss = graph.outputs[0].value;
    check(&differentiate(graph, loss).unwrap());
}

#[test]
fn it_depends_on_nothing_but_the_graph() {
    let graph = || {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F32, [4, 4]), InputRole::User);
        let ws: Vec<_> = (0..8).map(|i| b.parameter(&format!("w{i}"), DType::F32, &[4, 4])).collect();
        let mut y = x;
        for i in 0..24 {
            let h = b.matmul(y, ws[i % 8]).unwrap();
            y = b.add(h, y).unwrap();
        }
        let loss = b.sum(y, &[0, 1], false).unwrap();
        b.output("loss", loss, OutputRole::User);
        (b.finish(), loss)
    };
    let text = || {
        let (graph, loss) = graph();
        differentiate(graph, loss).unwrap().graph.to_string()
    };
    assert_eq!(text(), text());
}

#[test]
fn fifty_thousand_nodes_deep_takes_no_stack() {
    // On a thread with a stack of 64 KiB: a frame for each node would need far more.
    let deep = || {
        let mut b = Builder::new();
        let w = b.parameter("w", DType::F64, &[]);
        let mut y = w;
        for i in 0..50_000 {
            y = if i % 2 == 0 { b.scale(y, 0.5).unwrap() } else { b.add(y, w).unwrap() };
        }
        b.output("loss", y, OutputRole::User);
        let d = differentiate(b.finish(), y).unwrap();
        verify(&d.graph).unwrap();
        let backward = d.graph.nodes.iter().filter(|n| n.phase == Phase::Backward).count();
        // A product for each scaling, a sum for each further use of w, and the seed.
        assert_eq!(backward, 25_000 + 25_000 + 1);
        let got = reference::run(&d.graph, &[Tensor::float(DType::F64, [], vec![1.0])]).unwrap();
        // y ← y/2 + w gives y = 2 w − 2⁻²⁵⁰⁰⁰ w: the gradient is 2.
        assert_eq!((got[0].floats(), got[1].floats()), (&[2.0][..], &[2.0][..]));
    };
    std::thread::Builder::new().stack_size(64 << 10).spawn(deep).unwrap().join().unwrap();
}

/// Compares the vector-Jacobian product of a graph's outputs, with a further input for each cotangent, with
/// central differences of `Σ cotangent · output`, in f64. Steps and tolerance are those of [`check`].
#[track_caller]
fn check_vjp(nodes: &str, wanted: &[&str]) {
    let mut b = Builder::extend(parsed(nodes));
    let results: Vec<ValueId> = b.graph().outputs.iter().map(|o| o.value).collect();
    let mut cotangents = Vec::new();
    for (i, &v) in results.iter().enumerate() {
        let ty = b.ty(v).clone();
        cotangents.push((v, b.input(format!("c{i}"), ty, InputRole::User)));
    }
    let wanted: Vec<ValueId> = wanted.iter().map(|name| b.graph().input(name).unwrap().value).collect();
    let d = vjp(b.finish(), &cotangents, &wanted).unwrap();
    verify(&d.graph).unwrap();
    assert!(d.missing.is_empty(), "{:?}", d.missing);
    let number = |i: usize, k: usize| ((i * 31 + k * 17 + 5) % 23) as f64 / 11.5 - 0.9;
    let tensor = |(i, input): (usize, &headwater_core::graph::Input)| {
        let ty = d.graph.ty(input.value);
        Tensor::float(ty.dtype, ty.shape.clone(), (0..ty.shape.numel()).map(|k| number(i, k)).collect())
    };
    let inputs: Vec<Tensor> = d.graph.inputs.iter().enumerate().map(tensor).collect();
    let first = d.graph.inputs.len() - results.len();
    let product = |inputs: &[Tensor]| -> f64 {
        let outputs = reference::run(&d.graph, inputs).unwrap();
        let dot =
            |(y, c): (&Tensor, &Tensor)| y.floats().iter().zip(c.floats()).map(|(y, c)| y * c).sum::<f64>();
        outputs.iter().zip(&inputs[first..]).map(dot).sum()
    };
    let got = reference::run(&d.graph, &inputs).unwrap();
    let mut compared = 0;
    for (o, got) in d.graph.outputs.iter().zip(&got) {
        let OutputRole::Gradient(target) = o.role else { continue };
        let at = d.graph.input_index(target).unwrap();
        for (e, got) in got.floats().iter().enumerate() {
            let moved = |x: f64| {
                let mut inputs = inputs.clone();
                let Data::Float(v) = &mut inputs[at].data else { unreachable!() };
                v[e] = x;
                product(&inputs)
            };
            let (x, h) = (inputs[at].floats()[e], 1e-5);
            let want = (moved(x + h) - moved(x - h)) / (2.0 * h);
            assert!((got - want).abs() <= 1e-8 * want.abs().max(1.0), "{}[{e}]: {got}, not {want}", o.name);
            compared += 1;
        }
    }
    assert!(compared >= wanted.len());
}

/// `sin(x²)` with a backward pass that says `g · x²`, in a graph that goes on with `exp`.
#[test]
fn a_function_has_the_derivative_that_it_states() {
    let graph = parsed(
        "%0 = user \"x\" : f64[3]
        %1 = mul(%0, %0) : f64[3]
        %2 = sin(%1) : f64[3]
        %3 = cotangent_of(%2) : f64[3]
        %4 = mul(%3, %1) : f64[3]
        %5 = custom_vjp(%2, %3, %1, %4, outputs=1) : f64[3]
        %6 = exp(%5) : f64[3]
        output \"y\" = %6",
    );
    let (x, y) = (graph.input("x").unwrap().value, graph.outputs[0].value);
    let mut b = Builder::extend(pass::decompose_forward(graph).unwrap());
    let c = b.input("c", b.ty(y).clone(), InputRole::User);
    let d = vjp(b.finish(), &[(y, c)], &[x]).unwrap();
    verify(&d.graph).unwrap();
    let step = pass::simplify(pass::decompose(d.graph).unwrap()).graph;
    assert!(step.nodes.iter().all(|n| !n.op.name.contains("vjp") && n.op.name != "cotangent_of"));
    let numbers = [[0.3, -1.2, 0.7], [1.0, 0.5, -2.0]];
    let inputs = numbers.map(|v| Tensor::float(DType::F64, [3], v.to_vec()));
    let got = reference::run(&step, &inputs).unwrap();
    for (i, (x, c)) in numbers[0].iter().zip(numbers[1]).enumerate() {
        let y = (x * x).sin().exp();
        let want = c * y * (x * x) * 2.0 * x;
        assert_eq!(got[0].floats()[i], y);
        assert!((got[1].floats()[i] - want).abs() <= 1e-15 * want.abs(), "{got:?}, not {want}");
    }
}

#[test]
fn vector_jacobian_products_agree_with_central_differences() {
    // A layer with two results, of which one is made from the other, with respect to input and parameters.
    check_vjp(
        "%0 = parameter \"w\" : f64[3, 2]
        %1 = frozen \"b\" : f64[2]
        %2 = user \"x\" : f64[4, 3]
        %3 = matmul(%2, %0) : f64[4, 2]
        %4 = add(%3, %1) : f64[4, 2]
        %5 = gelu(%4) : f64[4, 2]
        %6 = sum(%5, dim=[1]) : f64[4]
        output \"hidden\" = %5
        output \"sums\" = %6",
        &["x", "w", "b"],
    );
    // An input that is a result itself, and one value returned twice.
    check_vjp(
        "%0 = user \"x\" : f64[3]
        %1 = softmax(%0, dim=0) : f64[3]
        %2 = mul(%1, %0) : f64[3]
        output \"x\" = %0
        output \"y\" = %2
        output \"again\" = %2",
        &["x"],
    );
    // Results with two different ways from one input.
    check_vjp(
        "%0 = user \"q\" : f64[2, 3]
        %1 = permute(%0, dims=[1, 0]) : f64[3, 2]
        %2 = matmul(%0, %1) : f64[2, 2]
        %3 = exp(%1) : f64[3, 2]
        output \"scores\" = %2
        output \"powers\" = %3",
        &["q"],
    );
}

#[test]
fn a_scalar_loss_is_the_product_with_cotangent_one() {
    let nodes = "%0 = parameter \"w\" : f64[3]
        %1 = gelu(%0) : f64[3]
        %2 = mul(%1, %0) : f64[3]
        %3 = sum(%2) : f64[]
        output \"loss\" = %3";
    let loss = differentiated(nodes);
    let mut b = Builder::extend(parsed(nodes));
    let (w, y) = (b.graph().inputs[0].value, b.graph().outputs[0].value);
    b.phase = Phase::Backward;
    let one = b.full(&TensorType::new(DType::F64, [0usize; 0]), 1.0).unwrap();
    let product = vjp(b.finish(), &[(y, one)], &[w]).unwrap();
    assert_eq!(product.graph.to_string(), loss.graph.to_string());
}

#[test]
fn cotangents_and_wanted_inputs_that_do_not_fit_are_refused() {
    let graph = || {
        parsed(
            "%0 = user \"x\" : f64[2]
            %1 = user \"c\" : f32[2]
            %2 = user \"i\" : i64[2]
            %3 = user \"aside\" : f64[2]
            %4 = neg(%0) : f64[2]
            output \"y\" = %4",
        )
    };
    let v = ValueId;
    for (cotangents, wanted, says) in [
        (vec![(v(4), v(1))], vec![v(0)], "it must have the same type"),
        (vec![(v(2), v(2))], vec![v(0)], "only floats have cotangents"),
        (vec![(v(4), v(9))], vec![v(0)], "there is no value %9"),
        (vec![(v(4), v(3))], vec![v(4)], "%4 is no input of the graph"),
        (vec![(v(4), v(3))], vec![v(0), v(0)], "wanted twice"),
    ] {
        let e = vjp(graph(), &cotangents, &wanted).unwrap_err();
        assert!(e.code == Code::Gradient && e.to_string().contains(says), "{e}");
    }
    // No silent zero: an input on no way is reported.
    let d = vjp(graph(), &[(v(4), v(3))], &[v(0), v(2), v(1)]).unwrap();
    assert_eq!(gradients(&d), ["grad.x"]);
    let reasons: Vec<_> = d.missing.iter().map(|m| (m.parameter.as_str(), m.reason.as_str())).collect();
    assert_eq!(
        reasons,
        [("i", "it is i64[2], and only floats have gradients"), ("c", "the model never uses it")]
    );
}
