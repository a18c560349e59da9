//! The loss scale of a step in mixed precision, by the rule of its settings. Casts are in the graph that
//! Python captures.

use crate::error::{Failure, guarded};
use headwater_core::device::Device;
use headwater_cpu::Cpu;
use headwater_runtime::amp::AmpConfig;
use headwater_runtime::scaler::{ScalerAction, ScalerRule, ScalerState, Seen};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[pyclass(frozen, module = "headwater._headwater")]
pub(crate) struct Scaler {
    rule: ScalerRule,
    state: Mutex<ScalerState>,
}

impl Scaler {
    fn locked(&self) -> MutexGuard<'_, ScalerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Scaler {
    /// `amp`: settings of `[amp]`, in JSON.
    #[new]
    fn new(py: Python, amp: String) -> PyResult<Scaler> {
        guarded(py, move || {
            let amp: AmpConfig =
                serde_json::from_str(&amp).map_err(|e| Failure::new("HW-R004", format!("amp: {e}")))?;
            let rule = amp.rule(Cpu::start(1)?.target())?;
            Ok(Scaler { rule, state: Mutex::new(rule.start()) })
        })
    }

    /// True if the loss has to be scaled at all.
    #[getter]
    fn scales(&self) -> bool {
        self.rule.scales()
    }

    /// The scale of the next step, and the steps without overflow that count towards its growth.
    #[getter]
    fn state(&self) -> (f64, u32) {
        let state = self.locked();
        (state.scale, state.counter)
    }

    /// Goes on from a state that was read before; HW-R004 for a scale by which nothing can be multiplied and
    /// divided again.
    fn resume(&self, py: Python, scale: f64, counter: u32) -> PyResult<()> {
        guarded(py, || {
            if !(scale.is_finite() && scale > 0.0) {
                let message = format!(
                    "the loss scale is {scale}: it is a finite number above 0, as state_dict returns it; load such a one, or none \
                     to begin with that of the settings"
                );
                return Err(Failure::new("HW-R004", message));
            }
            let mut state = self.locked();
            *state = ScalerState { scale, counter, ..*state };
            Ok(())
        })
    }

    /// Notes a step: whether a gradient was not finite, and the largest magnitude of one, without the scale.
    /// False if the scale cannot be lowered further.
    fn next(&self, found_inf: bool, largest: f64) -> bool {
        let mut state = self.locked();
        let (next, action) = self.rule.next(&state, Seen { found_inf, largest });
        *state = next;
        action != ScalerAction::Stop
    }
}
