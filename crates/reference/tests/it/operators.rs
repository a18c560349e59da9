//! The conformance suite on the reference device.

use headwater_core::conformance::operators;
use headwater_core::{DType, Registry};
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
