//! Sequences of loss scales against those recorded from `torch.amp.GradScaler` and apex's rule over 10,000
//! steps.

use headwater_runtime::scaler::{
    Flavor, LossScale, ScalerAction, ScalerKind, ScalerNumbers, ScalerRule, ScalerState, Seen,
};
use safetensors::SafeTensors;
use std::path::Path;

#[derive(serde::Deserialize)]
struct Case {
    case: String,
    rule: Flavor,
    pattern: String,
    settings: Settings,
}

/// Settings by their names in PyTorch and apex.
#[derive(serde::Deserialize)]
struct Settings {
    init_scale: Option<f64>,
    growth_factor: Option<f64>,
    backoff_factor: Option<f64>,
    growth_interval: Option<u32>,
    scale_window: Option<u32>,
    min_loss_scale: Option<f64>,
}

fn rule(case: &Case) -> ScalerRule {
    let (s, d) = (&case.settings, ScalerNumbers::default());
    let numbers = ScalerNumbers {
        rule: case.rule,
        init: s.init_scale.unwrap_or(d.init),
        growth: s.growth_factor.unwrap_or(d.growth),
        backoff: s.backoff_factor.unwrap_or(d.backoff),
        interval: s.growth_interval.or(s.scale_window).unwrap_or(d.interval),
        min: s.min_loss_scale.unwrap_or(0.0),
        max: None,
    };
    ScalerRule { scale: LossScale::Adaptive(ScalerKind::Dynamic), numbers }
}

#[test]
fn sequences_equal_the_recorded_ones_also_after_a_resume() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/precision/scales.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let metadata = SafeTensors::read_metadata(&bytes).unwrap().1;
    let cases: Vec<Case> = serde_json::from_str(&metadata.metadata().as_ref().unwrap()["cases"]).unwrap();
    let data = SafeTensors::deserialize(&bytes).unwrap();
    let mut kinds = [0, 0];
    for case in &cases {
        kinds[(case.rule == Flavor::Apex) as usize] += 1;
        let of = |name: String| data.tensor(&name).unwrap().data().to_vec();
        let found = of(format!("{}.found_inf", case.pattern));
        let scale = of(format!("{}.scale", case.case));
        let counter = of(format!("{}.counter", case.case));
        let rule = rule(case);
        let mut state = rule.start();
        assert_eq!(found.len(), 10_000);
        for (i, &inf) in found.iter().enumerate() {
            // Saved and loaded in the middle of rows of all lengths.
            if i % 997 == 0 {
                let saved = serde_json::to_string(&[state]).unwrap();
                let loaded: Vec<ScalerState> = serde_json::from_str(&saved).unwrap();
                state = rule.resumed(&loaded)[0];
            }
            let (next, action) = rule.next(&state, Seen { found_inf: inf != 0, largest: 1.0 });
            assert_eq!(action == ScalerAction::Apply, inf == 0);
            state = next;
            let want = f32::from_le_bytes(scale[4 * i..][..4].try_into().unwrap());
            let count = i16::from_le_bytes(counter[2 * i..][..2].try_into().unwrap());
            assert_eq!((state.scale as f32, state.counter as i16), (want, count), "{} step {i}", case.case);
        }
    }
    assert!(kinds.iter().all(|&n| n >= 4), "{kinds:?}");
}

#[test]
fn a_scale_at_its_floor_stops() {
    let numbers = ScalerNumbers { min: 4.0, init: 16.0, ..ScalerNumbers::default() };
    let rule = ScalerRule { scale: LossScale::Adaptive(ScalerKind::Dynamic), numbers };
    let mut state = rule.start();
    let mut actions = Vec::new();
    for _ in 0..3 {
        let (next, action) = rule.next(&state, Seen { found_inf: true, largest: f64::INFINITY });
        actions.push((action, next.scale));
        state = next;
    }
    assert_eq!(actions, [(ScalerAction::Skip, 8.0), (ScalerAction::Skip, 4.0), (ScalerAction::Stop, 4.0)]);
}

/// Steps skipped, and the mean of log₂(scale), while the largest gradient goes along `largest` and overflow
/// is at 65504.
fn follow(kind: ScalerKind, steps: usize, largest: impl Fn(usize) -> f64) -> (usize, f64) {
    let rule = ScalerRule { scale: LossScale::Adaptive(kind), numbers: ScalerNumbers::default() };
    let (mut state, mut skipped, mut sum) = (rule.start(), 0, 0.0);
    for i in 0..steps {
        let found_inf = largest(i) * state.scale > 65504.0;
        skipped += found_inf as usize;
        sum += state.scale.log2();
        state = rule.next(&state, Seen { found_inf, largest: largest(i) }).0;
    }
    (skipped, sum / steps as f64)
}

#[test]
fn the_predictive_rule_finds_the_range_without_crashing_into_it() {
    // Gradients that shrink by 2⁻¹⁰ over the run with a swing of two binades every seven steps.
    let shrinking = |i: usize| 8.0 * (-(i as f64) / 600.0).exp2() * ((i % 7) as f64 / 3.0).exp2();
    let dynamic = follow(ScalerKind::Dynamic, 6000, shrinking);
    let predictive = follow(ScalerKind::Predictive, 6000, shrinking);
    assert!(predictive.0 < dynamic.0, "{predictive:?} against {dynamic:?}");
    // And the range of f16 is used better: the scale is higher on average.
    assert!(predictive.1 > dynamic.1, "{predictive:?} against {dynamic:?}");
    // Gradients too small for any scale that `dynamic` reaches in time.
    let tiny = |_| 1e-9;
    assert_eq!(follow(ScalerKind::Predictive, 100, tiny).0, 0);
    assert!(follow(ScalerKind::Predictive, 100, tiny).1 > follow(ScalerKind::Dynamic, 100, tiny).1 + 20.0);
}
