//! The loss scale: a pure function of its state and what a step has shown. Owns the rules; knows no session
//! and no device.
//!
//! The loss is multiplied by the scale before it is differentiated, so that small gradients do not vanish in
//! f16; the update divides it out. A step whose final gradients are not finite is skipped.
//!
//! A graph has one loss, its first result, and so a run has one scale. NVIDIA's apex keeps a scaler for each
//! of several losses (`num_losses`) because each has a `backward` of its own, at a scale of its own. Losses
//! that are trained jointly are summed in the exported model here and differentiated at once. The gradient of
//! the sum is checked. Losses that are trained alternately are runs of their own, each with its scale in its
//! checkpoints.

mod predict;

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The rule by which the scale is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LossScale {
    /// One number for the whole run; 1: none.
    Static(f64),
    /// By a rule that adapts it.
    Adaptive(ScalerKind),
}

/// Rules that adapt the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScalerKind {
    /// Halved at an overflow, doubled after a row of steps without one.
    Dynamic,
    /// Chosen from the measured exponents of the gradients, before they overflow.
    Predictive,
}

impl std::str::FromStr for LossScale {
    type Err = String;
    fn from_str(s: &str) -> std::result::Result<Self, String> {
        match s {
            "dynamic" => Ok(LossScale::Adaptive(ScalerKind::Dynamic)),
            "predictive" => Ok(LossScale::Adaptive(ScalerKind::Predictive)),
            _ => s
                .parse()
                .map(LossScale::Static)
                .map_err(|_| format!("the loss scale is a number, dynamic or predictive, not {s:?}")),
        }
    }
}

/// Library whose rule `dynamic` follows, where the two differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavor {
    /// `torch.amp.GradScaler`: f32 arithmetic, no ceiling but the largest finite scale.
    #[default]
    Torch,
    /// apex's `LossScaler`: never above 2²⁴.
    Apex,
}

/// A rule with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalerRule {
    /// The way of choosing.
    pub scale: LossScale,
    /// Numbers of an adaptive rule.
    pub numbers: ScalerNumbers,
}

/// Numbers of an adaptive rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table [amp.scaler]")]
pub struct ScalerNumbers {
    /// Library whose dynamic rule is followed.
    pub rule: Flavor,
    /// First scale.
    pub init: f64,
    /// Factor after `interval` steps without overflow.
    pub growth: f64,
    /// Factor at an overflow.
    pub backoff: f64,
    /// Steps without overflow before the scale grows.
    pub interval: u32,
    /// The scale is never below this, and an overflow there ends the run. 0: it may sink to 0, as PyTorch's
    /// and apex's.
    pub min: f64,
    /// The scale is never above this. Default: the rule's own limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// A scale of 2⁻¹⁴ holds gradients of 2³⁰ in f16: whatever still overflows is no matter of scale.
const MIN: f64 = 1.0 / 16384.0;

/// apex's largest scale.
const APEX_MAX: f64 = 16777216.0;

impl Default for ScalerNumbers {
    fn default() -> Self {
        ScalerNumbers {
            rule: Flavor::default(),
            init: 65536.0,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
            min: MIN,
            max: None,
        }
    }
}

/// The memory of a rule, of one loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalerState {
    /// The scale of the next step.
    pub scale: f64,
    /// Steps without overflow since the scale was last changed or could have grown: PyTorch's growth tracker,
    /// apex's `unskipped`.
    pub counter: u32,
    /// Measurements of the predictive rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<predict::Forecast>,
}

/// Observations of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// True if an element of the final (summed, reduced) gradients is inf or NaN.
    pub found_inf: bool,
    /// Largest magnitude of a gradient's element, the scale divided out.
    pub largest: f64,
}

/// The decision on a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalerAction {
    /// The optimizer steps.
    Apply,
    /// Nothing is changed but the scale.
    Skip,
    /// The scale cannot be lowered further: nothing is changed, and the run ends.
    Stop,
}

impl ScalerRule {
    /// The state before the first step.
    pub fn start(&self) -> ScalerState {
        let scale = match self.scale {
            LossScale::Static(scale) => scale,
            LossScale::Adaptive(_) => self.bounded(self.numbers.init),
        };
        let predicts = self.scale == LossScale::Adaptive(ScalerKind::Predictive);
        ScalerState { scale, counter: 0, forecast: predicts.then(predict::Forecast::default) }
    }

    /// The states to go on with after a resume: those saved, unless this rule is another than they were made
    /// by.
    pub fn resumed(&self, saved: &[ScalerState]) -> Vec<ScalerState> {
        let start = self.start();
        let fits =
            |s: &ScalerState| self.scale == LossScale::Adaptive(ScalerKind::Dynamic) || s.forecast.is_some();
        let adapts = matches!(self.scale, LossScale::Adaptive(_));
        match saved.first().filter(|s| adapts && fits(s)) {
            Some(_) => saved.to_vec(),
            None => vec![start],
        }
    }

    /// True if the loss has to be scaled at all.
    pub fn scales(&self) -> bool {
        self.scale != LossScale::Static(1.0)
    }

    fn bounded(&self, scale: f64) -> f64 {
        let max = match (self.numbers.max, self.numbers.rule) {
            (Some(max), _) => max,
            (None, Flavor::Apex) => APEX_MAX,
            (None, Flavor::Torch) => f32::MAX as f64,
        };
        scale.min(max).max(self.numbers.min)
    }

    /// The state after a step, and what to do with it. Sequences of `Dynamic` equal those of
    /// `GradScaler.update` and of apex's `update_scale`, where `min` and `max` do not interfere.
    pub fn next(&self, state: &ScalerState, seen: Seen) -> (ScalerState, ScalerAction) {
        let kind = match self.scale {
            LossScale::Static(_) => {
                return (*state, if seen.found_inf { ScalerAction::Skip } else { ScalerAction::Apply });
            }
            LossScale::Adaptive(kind) => kind,
        };
        let action = match seen.found_inf {
            false => ScalerAction::Apply,
            true if state.scale <= self.numbers.min => ScalerAction::Stop,
            true => ScalerAction::Skip,
        };
        let next = match kind {
            ScalerKind::Dynamic => self.dynamic(state, seen.found_inf),
            ScalerKind::Predictive => self.predictive(state, seen),
        };
        (next, action)
    }

    fn dynamic(&self, state: &ScalerState, found_inf: bool) -> ScalerState {
        // PyTorch keeps the scale in f32, apex in Python's f64.
        let kept = |x: f64| if self.numbers.rule == Flavor::Torch { x as f32 as f64 } else { x };
        if found_inf {
            return ScalerState {
                scale: self.bounded(kept(state.scale * self.numbers.backoff)),
                counter: 0,
                ..*state
            };
        }
        if state.counter + 1 < self.numbers.interval {
            return ScalerState { counter: state.counter + 1, ..*state };
        }
        let grown = kept(state.scale * self.numbers.growth);
        // PyTorch leaves the scale where growth would make it infinite.
        let scale = if grown.is_finite() { self.bounded(grown) } else { state.scale };
        ScalerState { scale, counter: 0, ..*state }
    }

    /// Refuses numbers without meaning.
    ///
    /// # Errors
    /// `Config`, naming the setting.
    pub fn check(&self) -> Result<()> {
        let refuse = |setting, m: String| Err(Error::config(setting, m));
        let positive = |x: f64| x > 0.0 && x.is_finite();
        if let LossScale::Static(scale) = self.scale
            && !positive(scale)
        {
            return refuse("amp.loss_scale", format!("must be a positive number, it is {scale}"));
        }
        let n = &self.numbers;
        for (setting, x) in [("amp.scaler.init", Some(n.init)), ("amp.scaler.max", n.max)] {
            if let Some(x) = x.filter(|&x| !positive(x)) {
                return refuse(setting, format!("must be a positive number, it is {x}"));
            }
        }
        let max = n.max.unwrap_or(f64::INFINITY);
        if !(n.min >= 0.0 && n.min <= max) {
            let m =
                format!("must be at least 0 and not above amp.scaler.max, which is {max}; it is {}", n.min);
            return refuse("amp.scaler.min", m);
        }
        if !(n.growth >= 1.0 && n.growth.is_finite()) {
            return refuse("amp.scaler.growth", format!("must be at least 1, it is {}", n.growth));
        }
        if !(n.backoff > 0.0 && n.backoff < 1.0) {
            return refuse("amp.scaler.backoff", format!("must be between 0 and 1, it is {}", n.backoff));
        }
        if n.interval == 0 {
            return refuse("amp.scaler.interval", "must be at least 1".into());
        }
        Ok(())
    }
}
