//! The scale that looks ahead. From the exponents of the gradients seen so far it finds the largest at which
//! the next ones should not overflow. It is the largest, because whatever is below f16's range at that scale
//! is so at any other that is safe.

use super::{ScalerRule, ScalerState, Seen};
use serde::{Deserialize, Serialize};

/// Exponent of f16's largest number, rounded down: 65504 is just below 2¹⁶.
const TOP: f64 = 15.9;

/// Binades that are kept free in any case: gradients on the way back may be larger than the final ones.
const MARGIN: f64 = 1.0;

/// The pace at which an old peak is forgotten, in binades a step.
const FADE: f64 = 1.0 / 64.0;

/// Share of the largest rise that is remembered after a step.
const MEMORY: f64 = 0.995;

/// Measurements, in binades (logarithms to base 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Largest exponent of the gradients, fading; `None` before the first finite step.
    pub peak: Option<f64>,
    /// Largest rise above the peak within memory.
    pub rise: f64,
    /// Additional headroom that overflows have shown to be needed.
    pub learned: f64,
}

impl ScalerRule {
    /// Next power of two below what the forecast allows. An overflow says only that something was too large:
    /// the scale falls by four. The headroom that this shows to be needed is unlearned at the pace at which
    /// `dynamic` would grow.
    pub(super) fn predictive(&self, state: &ScalerState, seen: Seen) -> ScalerState {
        let mut f = state.forecast.unwrap_or_default();
        let counter = if seen.found_inf { 0 } else { state.counter.saturating_add(1) };
        if seen.found_inf {
            let below = state.scale / 4.0;
            if let Some(peak) = f.peak {
                f.learned = f.learned.max(TOP - MARGIN - f.rise - peak - below.log2());
            }
            return ScalerState { scale: self.bounded(below), counter, forecast: Some(f) };
        }
        f.learned = (f.learned - 1.0 / self.numbers.interval as f64).max(0.0);
        // All gradients zero show nothing.
        if seen.largest > 0.0 {
            let now = seen.largest.log2();
            f.rise = (f.rise * MEMORY).max(f.peak.map_or(0.0, |p| now - p));
            f.peak = Some(f.peak.map_or(now, |p| now.max(p - FADE)));
        }
        let scale = match f.peak {
            Some(peak) => (TOP - MARGIN - f.rise - f.learned - peak).floor().exp2(),
            None => state.scale,
        };
        ScalerState { scale: self.bounded(scale), counter, forecast: Some(f) }
    }
}
