//! Every operator on every one of its cases, with its gradients, in every float dtype. It is planned, run on
//! the CPU, and judged against the reference in f64. One, two and seven threads and every tier must give the
//! same bits.

use crate::common::run;
use headwater_core::conformance::{Truth, graph_of, numbers};
use headwater_core::device::Device;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::{Case, OpDef, Sample};
use headwater_core::{Attrs, Builder, DType, Registry, Shape, Tensor, TensorType, reference};
use headwater_cpu::{Cpu, Tier};
use std::collections::BTreeMap;

/// An operator on a case in a dtype, on several numbers of threads and in every tier. Whether it ran.
fn check(op: &'static OpDef, case: &Case, dtype: DType, cpus: &[Cpu], wrong: &mut Vec<String>) -> bool {
    let name = format!("{} ({}) in {dtype}", op.name, case.name);
    let Some(exact) = graph_of(op, case, DType::F64) else {
        wrong.push(format!("{name}: does not take its own case"));
        return false;
    };
    let Some(graph) = graph_of(op, case, dtype) else { return false };
    let inputs = numbers(&graph, case);
    if reference::run(&graph, &inputs).is_err() {
        return false; // The case is about refused numbers.
    }
    let truth = Truth::new(&graph, &exact, &inputs, cpus[0].target()).unwrap();
    let got = match run(&cpus[0], &graph, &inputs) {
        Ok(got) => got,
        Err(e) => {
            wrong.push(format!("{name}: {e}"));
            return false;
        }
    };
    truth.judge(&name, &got, wrong);
    for cpu in &cpus[1..] {
        let again = run(cpu, &graph, &inputs).expect("ran on one thread");
        let bits = |ts: &[Tensor]| ts.iter().map(Tensor::to_bytes).collect::<Vec<_>>();
        if bits(&again) != bits(&got) {
            wrong.push(format!("{name}: {} threads give other bits", cpu.pool().threads()));
        }
    }
    // Pairs and tiles are of bf16.
    let others =
        |t: &Tier| *t < Tier::detect() && (!matches!(t, Tier::Tiles | Tier::Pairs) || dtype == DType::BF16);
    for tier in Tier::ALL.into_iter().filter(others) {
        let cpu = cpus[1].clone().with_tier(tier).expect("detected");
        let again = run(&cpu, &graph, &inputs).expect("ran in another tier");
        truth.judge(&format!("{name}, {}", tier.name()), &again, wrong);
    }
    true
}

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

#[test]
fn every_operator_agrees_with_the_reference_in_every_dtype() {
    let (mut wrong, mut ran) = (Vec::new(), BTreeMap::<&str, usize>::new());
    let cpus = [Cpu::new(1), Cpu::new(2), Cpu::new(7)];
    for op in Registry::standard().operators() {
        for (case, dtype) in (op.cases)().iter().flat_map(|c| FLOATS.map(|d| (c.clone(), d))) {
            *ran.entry(op.name).or_default() += check(op, &case, dtype, &cpus, &mut wrong) as usize;
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    let missing: Vec<_> = ran.iter().filter(|(_, n)| **n == 0).collect();
    assert!(missing.is_empty(), "never ran: {missing:?}");
}

/// Sizes at which kernels divide their work.
#[test]
fn large_operands_agree_with_the_reference() {
    let case = || Case::new("large");
    let values = |n: usize, f: &dyn Fn(usize) -> usize| Sample::Values((0..n).map(|i| f(i) as f64).collect());
    let many =
        || case().f(&[300, 70]).constant().index(&[900, 70], 300).f(&[900, 70]).constant().attr("dim", 0);
    let pairs = |values: &[usize]| case().f(&[400, 9, 9]).none().index(&[50], 9).index(&[50], 9).f(values);
    let apart = || case().f(&[30, 20, 40, 3]).index(&[25, 1], 30).none().index(&[60], 40);
    let heads = |batch: usize, h: usize, shared: usize, l: usize, s: usize, [e, ev]: [usize; 2]| {
        let c = case().f(&[batch, h, l, e]).f(&[batch, shared, s, e]).f(&[batch, shared, s, ev]);
        c.attr("scale", 0.3)
    };
    let conv = |x: &[usize], w: &[usize]| case().f(x).f(w);
    let fourier = |x: &[usize], dims: &[i64]| case().f(x).attr("dim", dims).attr("normalization", 1);
    let groups = |x: &[usize], others: &[&[usize]], ends: &[usize]| {
        let c = others.iter().fold(case().f(x), |c, shape| c.f(shape));
        c.arg(DType::I32, &[ends.len()], values(ends.len(), &|i| ends[i]))
    };
    let cases: Vec<(&str, Case)> = vec![
        ("embedding", case().f(&[500, 64]).index(&[40, 20], 500).attr("padding_idx", 3)),
        (
            "embedding_dense_backward",
            case().f(&[900, 300]).index(&[900], 40).attr("num_weights", 60).attr("padding_idx", 7),
        ),
        ("gather", case().f(&[50, 20, 30]).index(&[50, 25, 30], 20).attr("dim", 1)),
        ("index", case().f(&[30, 20, 40]).none().index(&[50, 1], 20).attr("wrap", true)),
        ("_index_put_impl", case().f(&[30, 600]).index(&[200], 30).f(&[200, 600]).attr("accumulate", true)),
        ("_index_put_impl", case().f(&[20000]).index(&[300], 20000).f(&[1]).attr("accumulate", false)),
        // Single elements of many outer indices; rows, divided by where they are written; dimensions between
        // indexed ones; values that are repeated.
        ("index", case().f(&[400, 9, 9]).none().index(&[50], 9).index(&[50], 9)),
        ("_index_put_impl", pairs(&[400, 50]).attr("accumulate", true)),
        ("_index_put_impl", pairs(&[50]).attr("accumulate", true)),
        ("_index_put_impl", pairs(&[400, 1]).attr("accumulate", false)),
        ("_index_put_impl", case().f(&[300, 128]).index(&[900], 300).f(&[900, 128]).attr("accumulate", true)),
        ("_index_put_impl", case().f(&[300, 128]).index(&[900], 300).f(&[900, 1]).attr("accumulate", false)),
        ("_index_put_impl", case().f(&[6000]).index(&[20000], 6000).f(&[20000]).attr("accumulate", true)),
        ("index", apart()),
        ("_index_put_impl", apart().f(&[25, 60, 20, 3]).attr("accumulate", true)),
        ("_index_put_impl", apart().f(&[60, 20, 1]).attr("accumulate", false)),
        ("gather", case().f(&[300, 40]).index(&[300, 60], 40).attr("dim", -1)),
        ("gather", case().f(&[40, 300]).index(&[70, 250], 40).attr("dim", 0)),
        ("scatter", many().attr("reduce", "sum")),
        ("scatter", many().attr("reduce", "mean").attr("include_self", false)),
        ("scatter", many().attr("reduce", "amax")),
        (
            "scatter",
            case()
                .f(&[70, 300])
                .arg(DType::I64, &[70, 300], values(21000, &|i| i % 300))
                .f(&[70, 300])
                .attr("dim", 1),
        ),
        ("sort", case().distinct(&[40, 500]).attr("dim", -1).attr("descending", true)),
        ("topk", case().distinct(&[400, 50]).attr("k", 7).attr("dim", 0).attr("largest", true)),
        ("cumsum", case().f(&[60, 400]).attr("dim", 1)),
        // Groups of rows and of columns, whole and not; sizes of many factors, of none, and longer than a
        // group.
        ("_fft_c2c", fourier(&[300, 60, 2], &[1]).attr("forward", true)),
        ("_fft_c2c", fourier(&[3, 90, 270, 2], &[1]).attr("forward", false)),
        ("_fft_c2c", fourier(&[2, 1009, 2], &[1]).attr("forward", true)),
        ("_fft_c2c", fourier(&[2, 5000, 3, 2], &[1]).attr("forward", true)),
        ("_fft_c2c", fourier(&[5, 12, 40, 2], &[0, 2, 1]).attr("forward", false)),
        ("_fft_r2c", fourier(&[300, 64], &[1]).attr("onesided", true)),
        ("_fft_r2c", fourier(&[5, 77, 30], &[1]).attr("onesided", false)),
        ("_fft_r2c", fourier(&[4, 45, 48], &[1, 2]).attr("onesided", true)),
        ("_fft_r2c", fourier(&[4, 48, 45], &[0, 2, 1]).attr("onesided", false)),
        ("_fft_c2r", fourier(&[300, 33, 2], &[1]).attr("last_dim_size", 64)),
        ("_fft_c2r", fourier(&[4, 40, 23, 2], &[1, 2]).attr("last_dim_size", 45)),
        ("_fft_c2r", fourier(&[3, 21, 50, 2], &[2, 1]).attr("last_dim_size", 40)),
        ("matmul", case().f(&[3, 1, 130, 70]).f(&[2, 70, 40])),
        ("matmul", case().f(&[4, 300, 33]).f(&[33, 520])),
        // Groups of one row, of none, of some, and of most, by one thread each and by all at once.
        ("_grouped_mm", groups(&[300, 40], &[&[5, 40, 70]], &[1, 1, 40, 280, 297])),
        ("_grouped_mm", groups(&[130, 200], &[&[3, 200, 700]], &[2, 2, 130])),
        ("grouped_mm_weight_backward", groups(&[300, 40], &[&[300, 70]], &[1, 1, 40, 280, 297])),
        ("grouped_mm_weight_backward", groups(&[1300, 90], &[&[1300, 110]], &[0, 1250, 1300])),
        // A small result of a long sum, cut along the sum.
        ("matmul", case().f(&[64, 1300]).f(&[1300, 320])),
        ("linear", case().f(&[5, 100, 64]).f(&[48, 64]).f(&[48])),
        ("attention", heads(1, 2, 1, 300, 300, [20, 13]).none().none().attr("is_causal", true)),
        ("attention", heads(2, 2, 2, 5, 403, [17, 16]).mask(&[2, 1, 1, 403]).none()),
        (
            "attention",
            heads(1, 4, 2, 110, 100, [8, 3])
                .f(&[1, 4, 110, 100])
                .index(&[2], 100)
                .attr("is_causal", true)
                .attr("dropout_p", 0.3)
                .attr("stream", 5),
        ),
        // Dropout over two blocks of keys.
        (
            "attention",
            heads(1, 4, 2, 40, 403, [8, 3]).none().index(&[2], 100).attr("dropout_p", 0.3).attr("stream", 5),
        ),
        ("philox_uniform", case().index(&[2], 1000).attr("size", [50, 777]).attr("stream", 2)),
        (
            "max_pool2d_with_indices",
            case()
                .distinct(&[2, 3, 31, 20])
                .attr("kernel_size", [3, 3])
                .attr("stride", [2, 2])
                .attr("padding", [1, 1]),
        ),
        ("avg_pool2d", case().f(&[5, 3, 20, 21]).attr("kernel_size", [3, 2]).attr("stride", [2, 1])),
        ("convolution", conv(&[2, 37, 20, 30], &[140, 37, 3, 3]).f(&[140]).attr("padding", [1, 1])),
        ("convolution", conv(&[2, 130, 4, 4], &[200, 130, 3, 3]).none().attr("padding", [1, 1])),
        // Five blocks in four sequences: two, two, one, none.
        ("convolution", conv(&[5, 100, 16, 16], &[9, 100, 3, 3]).none().attr("padding", [1, 1])),
        ("convolution", conv(&[5, 100, 15, 17], &[9, 100, 3, 3]).none().attr("padding", [1, 1])),
        ("convolution", conv(&[3, 12, 9, 7], &[20, 6, 3, 2]).none().attr("stride", [2, 3]).attr("groups", 2)),
        (
            "convolution",
            conv(&[1, 3, 40, 41], &[18, 3, 7, 5])
                .none()
                .attr("stride", [2, 2])
                .attr("padding", [3, 1])
                .attr("dilation", [1, 2]),
        ),
        ("convolution", conv(&[2, 3, 32, 32], &[24, 3, 16, 16]).f(&[24]).attr("stride", [16, 16])),
        ("convolution", conv(&[4, 70, 8, 8], &[33, 70, 1, 1]).f(&[33]).attr("stride", [2, 2])),
        (
            "convolution",
            conv(&[2, 5, 6, 7, 9], &[4, 5, 3, 2, 3])
                .none()
                .attr("stride", [2, 1, 1])
                .attr("padding", [1, 0, 2]),
        ),
    ];
    // Several blocks of samples and strips of columns; an odd width, whose last place of a pair has one
    // number.
    let recurrent = |gates: usize, sequence: [usize; 2], batch: usize, h: usize, states: usize| {
        let small = |c: Case, shape: &[usize]| c.range(shape, -0.3, 0.3);
        let c = case().f(&[sequence[0], sequence[1], gates * h]);
        let c = small(small(c, &[gates * h, h]), &[gates * h]);
        (0..states).fold(c, |c, _| c.f(&[batch, h]))
    };
    let cases = cases.into_iter().chain([
        ("lstm_layer", recurrent(4, [3, 50], 50, 71, 2)),
        ("lstm_layer", recurrent(4, [30, 4], 30, 33, 2).attr("batch_first", true).attr("reverse", true)),
        ("gru_layer", recurrent(3, [3, 50], 50, 71, 1)),
        ("gru_layer", recurrent(3, [30, 4], 30, 33, 1).attr("batch_first", true).attr("reverse", true)),
        ("rnn_layer", recurrent(1, [3, 50], 50, 71, 1)),
        ("rnn_layer", recurrent(1, [30, 4], 30, 33, 1).attr("batch_first", true).attr("relu", true)),
    ]);
    let (mut wrong, cpus) = (Vec::new(), [Cpu::new(1), Cpu::new(2), Cpu::new(7)]);
    for (name, case) in cases {
        let op = Registry::standard().by_name(name).expect("a known operator");
        for dtype in [DType::F32, DType::BF16] {
            assert!(check(op, &case, dtype, &cpus, &mut wrong), "{name} did not run: {wrong:?}");
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

/// Batches whose rows do not follow each other are multiplied one by one, in larger blocks than all at once
/// would be.
#[test]
fn rows_of_a_transposed_left_operand_are_multiplied() {
    let cpus = [Cpu::new(1), Cpu::new(2)];
    for (batches, m, k) in [(2, 61, 256), (3, 58, 64), (2, 64, 768)] {
        let graph = |dtype: DType| {
            let mut b = Builder::new();
            let x = b.input("x", TensorType::new(dtype, [m, batches, k]), InputRole::User);
            let w = b.input("w", TensorType::new(dtype, [20, k]), InputRole::User);
            let x = b.permute(x, &[1, 0, 2]).unwrap();
            let linear = Registry::standard().by_name("linear").expect("a known operator");
            let y = b.apply(linear, &[Some(x), Some(w), None], Attrs::new()).unwrap()[0];
            b.output("y", y, OutputRole::User);
            b.finish()
        };
        let (graph, exact) = (graph(DType::F32), graph(DType::F64));
        let number = |i: usize| ((i * 37 + 11) % 64) as f64 / 32.0 - 1.0;
        let inputs = [vec![m, batches, k], vec![20, k]].map(|shape| {
            let n = shape.iter().product();
            Tensor::float(DType::F32, Shape::new(&shape), (0..n).map(number).collect())
        });
        let truth = Truth::new(&graph, &exact, &inputs, cpus[0].target()).unwrap();
        let mut wrong = Vec::new();
        for cpu in &cpus {
            truth.judge("linear", &run(cpu, &graph, &inputs).unwrap(), &mut wrong);
        }
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
