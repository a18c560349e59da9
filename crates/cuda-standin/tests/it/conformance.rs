//! Operators on the stand-in, in checked mode, within derived bounds.

use crate::common::{device, machine, skipped};
use headwater_core::DType::{BF16, F16, F32};
use headwater_core::Registry;
use headwater_core::conformance::{Conformance, operator, operators};
use headwater_cuda::host::context::Settings;

/// Operators of every way to run a row program, products, and embeddings, with their gradients.
const SOME: &[&str] = &[
    "add",
    "silu",
    "gelu",
    "exp",
    "where",
    "softmax",
    "log_softmax",
    "rms_norm",
    "layer_norm",
    "cross_entropy_loss",
    "sum",
    "mean",
    "amax",
    "prod",
    "matmul",
    "linear",
    "embedding",
    "embedding_dense_backward",
    "cumsum",
    "group_norm",
    "remainder",
];

#[test]
fn operators_conform() {
    if skipped("operators_conform") {
        return;
    }
    for seed in [0, 7] {
        let machine = machine(seed);
        let gpu = device(&machine, Settings { poison: true, ..Settings::default() });
        let mut found = Conformance::default();
        for op in Registry::standard().operators().into_iter().filter(|op| SOME.contains(&op.name)) {
            let one = operator(&gpu, op, &[F32, F16, BF16]);
            found.ran.extend(one.ran);
            found.wrong.extend(one.wrong);
            found.refused.extend(one.refused);
        }
        assert!(found.wrong.is_empty(), "{} cases:\n{}", found.wrong.len(), found.wrong.join("\n"));
        assert!(found.refused.is_empty(), "{:?}", found.refused);
        assert!(found.ran.len() >= 18, "{:?}", found.ran.keys());
        drop(gpu);
        assert_eq!(machine.live(), [0; 6], "handles are left");
    }
}

/// Takes many minutes: thousands of kernels are compiled.
#[test]
#[ignore = "minutes"]
fn every_operator_conforms() {
    if skipped("every_operator_conforms") {
        return;
    }
    let machine = machine(0);
    let found = operators(&device(&machine, Settings::default()), &[F32, F16, BF16]);
    assert!(found.wrong.is_empty(), "{} cases:\n{}", found.wrong.len(), found.wrong.join("\n"));
    assert!(found.refused.is_empty(), "{:?}", found.refused);
    assert!(found.ran.values().sum::<usize>() > 1000, "{} cases", found.ran.len());
}
