//! The conformance suite on the reference device.

use headwater_core::conformance::{graph_of, operator, operators};
use headwater_core::device::Device;
use headwater_core::expand::EXPANSIONS;
use headwater_core::ops::reduce::{cumprod::CUMPROD, cumsum::CUMSUM};
use headwater_core::ops::{Case, OpDef, Sample};
use headwater_core::plan::{Bindings, Work};
use headwater_core::{DType, Registry, pass};
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

#[test]
fn expansions_conform_in_all_their_ways() {
    static SUMS: OpDef = OpDef { cases: long_sums, ..CUMSUM };
    static PRODUCTS: OpDef = OpDef { cases: long_products, ..CUMPROD };
    let device = Reference::expanding(4);
    for op in [&SUMS, &PRODUCTS] {
        let found = operator(&device, op, &[DType::F32, DType::BF16]);
        assert!(found.wrong.is_empty(), "{} cases:\n{}", found.wrong.len(), found.wrong.join("\n"));
        assert!(found.refused.is_empty(), "{:?}", found.refused);
        assert_eq!(found.ran[op.name], 2 * (op.cases)().len());
    }
}
