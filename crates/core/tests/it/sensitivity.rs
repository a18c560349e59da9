//! Measuring what low precision does to single nodes: against the nodes themselves run in low precision, by
//! hand.

use headwater_core::graph::{Graph, InputRole, OutputRole, parse, verify};
use headwater_core::ops::{linear::linear::LINEAR, norm::rms_norm::RMS_NORM, reduce::mean::MEAN};
use headwater_core::pass::precision::sensitivity;
use headwater_core::{Attrs, Builder, DType, OpDef, Registry, Tensor, TensorType, ValueId, reference};

/// A hidden layer with a norm, and the mean square of its result, in f64; `linear` and `norm` run in the
/// given dtypes.
fn model(linear: DType, norm: DType) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F64, [3usize, 4]), InputRole::User);
    let (w, g) = (b.parameter("w", DType::F64, &[5, 4]), b.parameter("g", DType::F64, &[5]));
    let run = |b: &mut Builder, op: &'static OpDef, inputs: [ValueId; 2], dtype: DType, attrs: Attrs| {
        let inputs = inputs.map(|v| b.cast(v, dtype).unwrap());
        let y = b.apply(op, &inputs.map(Some), attrs).unwrap()[0];
        b.cast(y, DType::F64).unwrap()
    };
    let h = run(&mut b, &LINEAR, [x, w], linear, Attrs::new());
    let h =
        run(&mut b, &RMS_NORM, [h, g], norm, Attrs::new().with("normalized_shape", [5]).with("eps", 0.01));
    let h = b.reshape(h, &[15]).unwrap();
    let square = b.mul(h, h).unwrap();
    let loss = b.one(&MEAN, &[square], Attrs::new()).unwrap();
    b.output("loss", loss, OutputRole::User);
    let graph = b.finish();
    verify(&graph).unwrap();
    graph
}

fn inputs() -> Vec<Tensor> {
    let numbers = |shape: &[usize], seed: usize| {
        let n: usize = shape.iter().product();
        let x = (0..n).map(|k| ((k * 37 + seed * 11 + 3) % 41) as f64 / 20.7 - 0.97).collect();
        Tensor::float(DType::F64, shape.to_vec(), x)
    };
    vec![numbers(&[3, 4], 1), numbers(&[5, 4], 2), numbers(&[5], 3)]
}

#[test]
fn a_probe_says_how_far_a_node_is_off_and_what_that_does_to_the_loss() {
    let exact = model(DType::F64, DType::F64);
    for low in [DType::BF16, DType::F16] {
        let s = sensitivity(&exact, low).unwrap();
        verify(&s.graph).unwrap();
        let measured = reference::run(&s.graph, &inputs()).unwrap();
        let number = |i: usize| measured[i].floats()[0];
        let truth = reference::run(&exact, &inputs()).unwrap()[0].floats()[0];
        assert_eq!(number(0), truth);
        assert_eq!(s.graph.outputs.iter().filter(|o| matches!(o.role, OutputRole::Gradient(_))).count(), 2);
        // Views are not measured: linear, norm, product, mean are.
        let names: Vec<&str> = s.probes.iter().map(|p| exact.nodes[p.node].op.name).collect();
        assert_eq!(names, ["linear", "rms_norm", "mul", "mean"]);
        for (probe, alone) in [(0, model(low, DType::F64)), (1, model(DType::F64, low))] {
            let p = &s.probes[probe];
            let (result, mut twin) = (exact.nodes[p.node].outputs[0], alone.nodes.iter());
            let twin = twin.rfind(|n| n.op.name == names[probe]).unwrap().outputs[0];
            let want = reference::trace(&exact, &inputs()).unwrap()[result.0 as usize].to_f64();
            let got = reference::trace(&alone, &inputs()).unwrap()[twin.0 as usize].to_f64();
            let error: f64 = want.iter().zip(&got).map(|(w, g)| (g - w).powi(2)).sum();
            assert!(error > 0.0);
            assert!((number(p.error[0]) - error).abs() <= 1e-12 * error, "{} {error}", number(p.error[0]));
            // To first order: what remains is of the order of the relative error squared, times a few.
            let change = reference::run(&alone, &inputs()).unwrap()[0].floats()[0] - truth;
            let size: f64 = want.iter().map(|w| w * w).sum();
            assert!((number(p.size[0]) - size).abs() <= 1e-12 * size);
            let second = 10.0 * error / size * truth.abs();
            let effect = number(p.effect[0]);
            assert!((change - effect).abs() <= second, "{}: {change}, not {effect} ± {second}", names[probe]);
            assert!(second < 0.5 * change.abs().max(effect.abs()), "the test must be able to fail");
        }
    }
}

#[test]
fn the_loss_must_be_one_float() {
    let text = "headwater graph 1\n%0 = user \"x\" : f32[3]\n%1 = mul(%0, %0) : f32[3]\noutput \"y\" = %1\n@0 = \"\"";
    let graph = parse(text, Registry::standard()).unwrap();
    let e = sensitivity(&graph, DType::BF16).unwrap_err();
    assert!(e.to_string().contains("one float"), "{e}");
}
