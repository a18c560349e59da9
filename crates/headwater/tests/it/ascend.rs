//! Training on simulated NPUs: whole steps without a finding, and overflow where f16 saturates.

use crate::common::train_on;
use headwater::core::DType::{BF16, F16};
use headwater::core::pass::precision::Level;
use headwater::devices;
use headwater::runtime::amp::AmpConfig;
use headwater::runtime::scaler::{LossScale, ScalerKind};

fn low(level: Level, dtype: Option<headwater::core::DType>) -> AmpConfig {
    AmpConfig { level, dtype, ..AmpConfig::default() }
}

/// A step in full and in low precision on both chips: with every check of the simulator, to the bits of runs
/// without.
fn steps_have_no_findings(batch: usize) {
    for (chip, amp) in [
        ("910b1", low(Level::O0, None)),
        ("910b1", low(Level::O2, Some(BF16))),
        ("310p", low(Level::O0, None)),
        ("310p", low(Level::O2, None)),
    ] {
        let run = |name: &str| {
            let device = devices::open(name, 2).unwrap();
            train_on(device, |c| {
                (c.steps, c.batch, c.accumulate) = (Some(1), Some(batch), 1);
                c.amp = amp.clone();
            })
        };
        let (checked, fast) =
            (run(&format!("ascend-sim:{chip},checked")), run(&format!("ascend-sim:{chip}")));
        assert!(checked.same_losses(&fast) && checked.tensors == fast.tensors, "{chip} {amp:?}");
    }
}

#[test]
fn steps_of_a_small_batch_have_no_findings() {
    steps_have_no_findings(4);
}

#[test]
#[ignore = "minutes"]
fn steps_of_a_whole_batch_have_no_findings() {
    steps_have_no_findings(64);
}

/// 310P makes 65504 of what is infinite in f16. Its gradients count as infinite then: parameters stay as they
/// are, and the loss scale falls.
#[test]
fn an_overflow_that_saturates_skips_the_step() {
    for accumulate in [1, 2] {
        let run = |steps: u64, init: f64| {
            train_on(devices::open("ascend-sim:310p", 2).unwrap(), |c| {
                (c.steps, c.batch, c.accumulate) = (Some(steps), Some(4), accumulate);
                c.amp = low(Level::O2, Some(F16));
                c.amp.loss_scale = Some(LossScale::Adaptive(ScalerKind::Dynamic));
                (c.amp.scaler.init, c.amp.scaler.backoff) = (init, f64::exp2(-14.0));
            })
        };
        // A run whose only step is skipped is an error.
        let (skipped, stepped) = (run(2, f64::exp2(24.0)), run(2, 1024.0));
        assert!(skipped.losses[0].is_finite() && stepped.losses[0].is_finite());
        assert_eq!(skipped.applied, [false, true], "{accumulate} micro-batches");
        assert_eq!(stepped.applied, [true, true], "{accumulate} micro-batches");
        assert!(skipped.tensors != stepped.tensors);
    }
}

/// 310P has no bf16, and says so.
#[test]
fn the_low_precision_is_the_chips() {
    let device = devices::open("ascend-sim:310p", 1).unwrap();
    let refused = low(Level::O2, Some(BF16)).properties(device.target()).unwrap_err().to_string();
    assert!(refused.contains("ascend-sim:310p has no products of bf16: take f16"), "{refused}");
    assert_eq!(low(Level::O2, None).properties(device.target()).unwrap().dtype, F16);
    let a2 = devices::open("ascend-sim:910b1", 1).unwrap();
    assert_eq!(low(Level::O2, None).properties(a2.target()).unwrap().dtype, BF16);
}
