//! The conformance suite on simulated chips, by their kernels where there are any.

use headwater_ascend::device::AscendSim;
use headwater_core::DType::{BF16, F16, F32};
use headwater_core::conformance::operators;

#[test]
fn every_operator_conforms_on_both_chips() {
    for chip in ["910b1", "310p"] {
        let device = AscendSim::from_name(chip, 2).unwrap();
        let found = operators(&device, &[F32, F16, BF16]);
        assert!(found.wrong.is_empty(), "{} cases:\n{}", found.wrong.len(), found.wrong.join("\n"));
        // The host computes where chips do not: in f64 and wide integers.
        assert!(found.refused.is_empty(), "{:?}", found.refused);
        for operator in ["argmax", "cross_entropy_loss", "embedding", "tril", "eq", "segment_sum"] {
            assert!(found.ran[operator] > 0, "{operator} does not run on {chip}");
        }
        assert!(found.ran.values().sum::<usize>() > 1000, "{} cases", found.ran.len());
    }
}
