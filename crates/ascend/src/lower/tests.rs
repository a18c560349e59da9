//! Operators that are composed of several kernels, on every one of their cases and on larger ones, with every
//! check of the simulator. There is no finding, and results are within the derived bounds of f64. Fast runs
//! give the same bits. Blocks of scratch memory are small here, so that larger cases are cut.

use crate::device::AscendSim;
use headwater_core::DType::{BF16, Bool, F16, F32, F64};
use headwater_core::conformance::{Truth, graph_of, numbers};
use headwater_core::device::Device;
use headwater_core::evaluate::evaluate;
use headwater_core::ops::attention::attention::{ATTENTION, ATTENTION_BACKWARD};
use headwater_core::ops::conv::avg_pool2d::{
    ADAPTIVE_AVG_POOL2D, ADAPTIVE_AVG_POOL2D_BACKWARD, AVG_POOL2D, AVG_POOL2D_BACKWARD,
};
use headwater_core::ops::conv::convolution::{CONVOLUTION, CONVOLUTION_INPUT_GRAD, CONVOLUTION_WEIGHT_GRAD};
use headwater_core::ops::conv::max_pool2d::{ADAPTIVE_MAX_POOL2D, MAX_POOL2D};
use headwater_core::ops::{Case, OpDef, Sample};
use headwater_core::{DType, Registry};

/// Cases of an operator run in each dtype, and the gradients with them.
fn conforms(chip: &str, op: &str, more: Vec<Case>, dtypes: &[DType]) {
    let checked = AscendSim::from_name(&format!("{chip},checked"), 1).unwrap();
    let fast = AscendSim::from_name(chip, 2).unwrap();
    let op: &'static OpDef = Registry::standard().operators().iter().find(|o| o.name == op).unwrap();
    let mut wrong = Vec::new();
    for case in (op.cases)().into_iter().chain(more) {
        let exact = graph_of(op, &case, F64).unwrap();
        for &dtype in dtypes {
            let name = format!("{} ({}) in {dtype} on {chip}", op.name, case.name);
            let graph = graph_of(op, &case, dtype).unwrap();
            let inputs = numbers(&graph, &case);
            let truth = Truth::new(&graph, &exact, &inputs, checked.target()).unwrap();
            let got = match evaluate(&checked, &graph, &inputs) {
                Ok(got) => got,
                Err(e) => {
                    wrong.push(format!("{name}: {e}"));
                    continue;
                }
            };
            truth.judge(&name, &got, &mut wrong);
            let again = evaluate(&fast, &graph, &inputs).unwrap();
            let bits = |all: &[headwater_core::Tensor]| all.iter().map(|t| t.to_bytes()).collect::<Vec<_>>();
            if bits(&got) != bits(&again) {
                wrong.push(format!("{name}: a fast run gives other bits"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

fn on_both(op: &'static OpDef, more: fn() -> Vec<Case>) {
    conforms("910b1", op.name, more(), &[F32, F16, BF16]);
    conforms("310p", op.name, more(), &[F32, F16]);
}

/// Two tiles of the cube, tails, groups of heads of two sizes, masks of both kinds.
fn attentions() -> Vec<Case> {
    let qkv = |name, heads: [usize; 3], [l, s]: [usize; 2], [e, ev]: [usize; 2]| {
        Case::new(name).f(&[2, heads[0], l, e]).f(&[2, heads[1], s, e]).f(&[2, heads[2], s, ev])
    };
    vec![
        qkv("tiles", [1, 1, 1], [130, 17], [16, 16])
            .none()
            .none()
            .attr("is_causal", true)
            .attr("scale", 0.25),
        qkv("groups", [4, 2, 1], [5, 18], [24, 8]).none().none().attr("scale", 0.2),
        qkv("masked", [2, 1, 2], [3, 19], [8, 16])
            .arg(Bool, &[2, 1, 3, 19], Sample::Values((0..114).map(|i| f64::from(i % 3 != 0)).collect()))
            .none()
            .attr("scale", 0.3),
        dropped(qkv("dropped", [2, 1, 2], [3, 19], [8, 16])),
        // Queries of each head are drawn separately.
        dropped(qkv("dropped in blocks", [2, 2, 1], [25, 17], [8, 8])),
    ]
}

fn dropped(case: Case) -> Case {
    case.none().index(&[2], 1000).attr("scale", 0.3).attr("dropout_p", 0.3).attr("stream", 5)
}

#[test]
fn attention() {
    on_both(&ATTENTION, attentions);
}

/// Shapes of the kernel that uses cube and vector cores: tails of keys and queries, groups of heads.
fn long_attentions() -> Vec<Case> {
    let qkv = |name, heads: [usize; 3], [l, s]: [usize; 2], [e, ev]: [usize; 2]| {
        let case = Case::new(name).f(&[1, heads[0], l, e]).f(&[1, heads[1], s, e]).f(&[1, heads[2], s, ev]);
        case.none().none().attr("scale", 0.25)
    };
    vec![
        qkv("long", [2, 1, 2], [128, 523], [16, 32]),
        qkv("long and causal", [1, 1, 1], [515, 512], [16, 16]).attr("is_causal", true),
    ]
}

#[test]
fn long_attention() {
    conforms("910b1", ATTENTION.name, long_attentions(), &[F16, BF16]);
}

#[test]
fn gradients_of_attention() {
    on_both(&ATTENTION_BACKWARD, Vec::new);
}

/// Several channels and samples, strides and padding, groups.
fn convolutions() -> Vec<Case> {
    vec![
        Case::new("images").f(&[3, 3, 9, 11]).f(&[20, 3, 3, 3]).f(&[20]).attr("padding", [1, 1]),
        Case::new("strided images")
            .f(&[2, 4, 9, 8])
            .f(&[6, 2, 3, 2])
            .none()
            .attr("groups", 2)
            .attr("stride", [2, 3])
            .attr("padding", [2, 1])
            .attr("dilation", [2, 1]),
        Case::new("patches").f(&[2, 3, 8, 8]).f(&[17, 3, 4, 4]).f(&[17]).attr("stride", [4, 4]),
    ]
}

#[test]
fn convolution() {
    on_both(&CONVOLUTION, convolutions);
}

#[test]
fn gradients_of_convolutions() {
    on_both(&CONVOLUTION_INPUT_GRAD, Vec::new);
    on_both(&CONVOLUTION_WEIGHT_GRAD, Vec::new);
}

/// Windows that overlap, are cut by padding, leave gaps, are dilated; results of several tasks.
fn poolings() -> Vec<Case> {
    let pool = |name, shape: &[usize], kernel: i64, stride: i64, padding: i64| {
        let case = Case::new(name).distinct(shape).attr("kernel_size", [kernel, kernel]);
        case.attr("stride", [stride, stride]).attr("padding", [padding, padding])
    };
    vec![
        pool("halves", &[2, 3, 8, 20], 2, 2, 0),
        pool("overlapping", &[2, 2, 11, 9], 3, 2, 1),
        pool("every place", &[1, 2, 9, 10], 3, 1, 1),
        pool("gaps", &[1, 2, 10, 17], 2, 3, 0),
        pool("ceil", &[1, 2, 10, 7], 3, 2, 1).attr("ceil_mode", true),
    ]
}

fn adaptive_poolings() -> Vec<Case> {
    let pool =
        |name, shape: &[usize], size: [i64; 2]| Case::new(name).distinct(shape).attr("output_size", size);
    vec![
        pool("whole planes", &[2, 5, 7, 6], [1, 1]),
        pool("even", &[2, 3, 8, 12], [4, 3]),
        pool("uneven", &[1, 2, 10, 11], [7, 4]),
    ]
}

/// Dilated windows; equal numbers, of which the first wins, and NaN, of which the last does.
fn maxima() -> Vec<Case> {
    let case = Case::new("dilated").distinct(&[1, 2, 9, 12]).attr("kernel_size", [3, 2]);
    let dilated = case.attr("dilation", [2, 3]).attr("padding", [1, 1]);
    let values = (0..96).map(|i| if i % 7 == 3 { f64::NAN } else { f64::from(i / 5 % 4) }).collect();
    let equal = Case::new("equal numbers and NaN").arg(F64, &[2, 1, 6, 8], Sample::Values(values));
    let more =
        vec![dilated, equal.attr("kernel_size", [3, 3]).attr("stride", [2, 2]).attr("padding", [1, 1])];
    poolings().into_iter().chain(more).collect()
}

#[test]
fn maxima_of_windows() {
    on_both(&MAX_POOL2D, maxima);
    on_both(&ADAPTIVE_MAX_POOL2D, adaptive_poolings);
}

#[test]
fn means_of_windows() {
    on_both(&AVG_POOL2D, || {
        let uncounted = poolings().into_iter().map(|case| case.attr("count_include_pad", false));
        uncounted.chain(poolings()).collect()
    });
    on_both(&ADAPTIVE_AVG_POOL2D, adaptive_poolings);
}

#[test]
fn gradients_of_means_of_windows() {
    on_both(&AVG_POOL2D_BACKWARD, Vec::new);
    on_both(&ADAPTIVE_AVG_POOL2D_BACKWARD, Vec::new);
}
