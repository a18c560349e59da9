//! The operators that training spends its time in run by kernels: any other case is listed here with its
//! reason. Cases are small: a table that 310P writes gradients in f16 to is longer than theirs
//! (`embedding_grad`).

use headwater_ascend::device::AscendSim;
use headwater_core::DType::{BF16, F16, F32};
use headwater_core::conformance::graph_of;
use headwater_core::device::Device;
use headwater_core::plan::Bindings;
use headwater_core::{DType, Registry, pass};
use std::collections::BTreeSet;

const OPERATORS: [&str; 46] = [
    "check_index",
    "matmul",
    "linear",
    "embedding",
    "embedding_dense_backward",
    "attention",
    "attention_backward",
    "convolution",
    "convolution_input_grad",
    "convolution_weight_grad",
    "max_pool2d_with_indices",
    "adaptive_max_pool2d",
    "max_pool2d_with_indices_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
    "philox_uniform",
    "constant",
    "gather",
    "index",
    "_index_put_impl",
    "scatter",
    "sort",
    "topk",
    "histc",
    "searchsorted",
    "cumsum",
    "cumprod",
    "cumprod_backward",
    "_grouped_mm",
    "grouped_mm_weight_backward",
    "segment_sum_pair",
    "segment_spread",
    "gather_rows",
    "update_rows",
    "upsample2d",
    "upsample2d_backward",
    "im2col",
    "col2im",
    "lstm_layer",
    "lstm_layer_backward",
    "gru_layer",
    "gru_layer_backward",
    "rnn_layer",
    "rnn_layer_backward",
];

/// Steps of these operators that run on the host, in the plans of all operators' cases: operator, dtype and
/// reason.
fn on_the_host(chip: &str, dtypes: &[DType]) -> BTreeSet<String> {
    let device = AscendSim::from_name(chip, 1).unwrap();
    let (mut host, mut native) = (BTreeSet::new(), BTreeSet::new());
    for op in Registry::standard().operators().iter().filter(|op| OPERATORS.contains(&op.name)) {
        for case in (op.cases)() {
            for &dtype in dtypes {
                let Some(graph) = graph_of(op, &case, dtype) else { continue };
                let plan = pass::plan(&graph, &Bindings::simple(&graph), device.target()).unwrap();
                for (step, used) in plan.steps.iter().zip(device.survey(&plan)) {
                    // Steps of an expansion have the operator's name.
                    if !OPERATORS.contains(&step.op) {
                        continue;
                    }
                    match used.host {
                        Some(why) => host.insert(format!("{} in {dtype}: {why}", step.op)),
                        None => native.insert(format!("{} in {dtype}", step.op)),
                    };
                }
            }
        }
    }
    // No case at all of these runs by kernels.
    for op in OPERATORS {
        for dtype in dtypes.iter().map(|d| format!("{op} in {d}")).filter(|d| !native.contains(d)) {
            host.insert(format!("{dtype}: never"));
        }
    }
    host
}

fn expected(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(|line| line.to_string()).collect()
}

#[test]
fn what_has_no_kernel_is_known() {
    assert_eq!(
        on_the_host("910b1", &[F32, F16, BF16]),
        expected(&[
            "cumprod in bf16: running products of i64 in i64",
            "cumprod in f16: running products of i64 in i64",
            "cumprod in f32: running products of i64 in i64",
            "histc in bf16: a histogram over the range of its data",
            "histc in f16: a histogram over the range of its data",
            "histc in f32: a histogram over the range of its data",
            "searchsorted in bf16: places of i64 among bf16",
            "searchsorted in f16: places of i64 among f16",
            "searchsorted in f32: places of i64 among f32",
        ])
    );
}

#[test]
fn what_has_no_kernel_on_310p_is_known() {
    assert_eq!(
        on_the_host("310p", &[F32, F16]),
        expected(&[
            "embedding_dense_backward in f16: never",
            "embedding_dense_backward in f16: the table has 12 elements, fewer than 16 (32 bytes)",
            "embedding_dense_backward in f16: the table has 8 elements, fewer than 16 (32 bytes)",
            "_grouped_mm in f32: never",
            "_grouped_mm in f32: products of groups in f32",
            "cumprod in f16: running products of i64 in i64",
            "cumprod in f32: running products of i64 in i64",
            "grouped_mm_weight_backward in f32: never",
            "grouped_mm_weight_backward in f32: products of groups in f32",
            "histc in f16: a histogram over the range of its data",
            "histc in f32: a histogram over the range of its data",
            "searchsorted in f16: places of i64 among f16",
            "searchsorted in f32: places of i64 among f32",
            "update_rows in f16: a row has 1 u32, no multiple of 8 (32 bytes)",
            "update_rows in f32: a row has 2 u32, no multiple of 8 (32 bytes)",
        ])
    );
}
