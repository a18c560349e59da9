//! Mixed precision: the dtype in which each operator computes, as casts in the graph. Runs on the forward
//! graph as imported, before decomposition and differentiation: the lists speak of ATen's operators, and the
//! backward pass inherits the casts.
//!
//! Levels are those of NVIDIA apex. O0 is all f32. O1 is casts around operators, by lists. O2 has weights and
//! activations in low precision, batch norm in f32, and f32 master weights. O3 is low precision alone. Knows
//! no loss scale: that is the runtime's.

mod cast;
mod policy;
mod sensitivity;
mod spelled;

pub use cast::{Decision, Mixed, Reason, apply};
pub use policy::Policy;
pub use sensitivity::{Sensitivity, SensitivityProbe, rounds, sensitivity};

use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::target::Target;
use std::fmt;
use std::str::FromStr;

/// Optimization level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As exported.
    #[default]
    O0,
    /// f32 weights, casts around operators by a [`Policy`].
    O1,
    /// Weights, inputs and activations in low precision, batch norm in f32, f32 master weights.
    O2,
    /// Everything in low precision, no master weights.
    O3,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl FromStr for Level {
    type Err = String;
    fn from_str(s: &str) -> std::result::Result<Self, String> {
        let all = [Level::O0, Level::O1, Level::O2, Level::O3];
        let found = all.into_iter().find(|l| l.to_string() == s);
        found.ok_or_else(|| format!("levels are O0, O1, O2 and O3, not {s:?}"))
    }
}

/// A level, and what of it is overridden.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrecisionSettings {
    /// The level.
    pub level: Level,
    /// The low precision, f16 or bf16. Default: the first that the target multiplies
    /// ([`Target::low_dtypes`]).
    pub dtype: Option<DType>,
    /// The lists of O1. Default: apex's.
    pub policy: Option<Policy>,
    /// True if batch norm's weights and statistics stay in f32. Default: at O2, not at O3.
    pub keep_batchnorm: Option<bool>,
    /// True if the optimizer keeps f32 master copies of low-precision weights. Default: at O2, not at O3.
    pub masters: Option<bool>,
}

/// A level's properties.
#[derive(Clone, Debug, PartialEq)]
pub struct Properties {
    /// The level they come from.
    pub level: Level,
    /// The low precision.
    pub dtype: DType,
    /// Casts around operators, by whose lists.
    pub lists: Option<Policy>,
    /// True if weights are stored in low precision and activations follow them.
    pub weights: bool,
    /// True if batch norm's weights and statistics stay in f32.
    pub keep_batchnorm: bool,
    /// True if the optimizer keeps f32 master copies of low-precision weights.
    pub masters: bool,
}

impl Default for Properties {
    /// The properties of [`PrecisionSettings::default`]: O0, all as the model has it.
    fn default() -> Self {
        Properties {
            level: Level::O0,
            dtype: DType::BF16,
            lists: None,
            weights: false,
            keep_batchnorm: false,
            masters: false,
        }
    }
}

impl PrecisionSettings {
    /// The properties of the level on a target, with what is overridden.
    ///
    /// # Errors
    /// `Attribute` for combinations that have no meaning, and for a low precision whose products the target
    /// lacks.
    pub fn properties(&self, target: &Target) -> Result<Properties> {
        let refuse = |m: String| Err(Error::new(Code::Attribute, m));
        let level = self.level;
        let dtype = self.dtype.or(target.low_dtypes().next()).unwrap_or(DType::BF16);
        if !matches!(dtype, DType::F16 | DType::BF16) {
            return refuse(format!("the low precision is f16 or bf16, not {dtype}; O0 is all f32"));
        }
        if level != Level::O0 && target.product(dtype).is_none() {
            let name = &target.name;
            return refuse(match target.low_dtypes().next() {
                Some(has) => format!("{name} has no products of {dtype}: take {has}"),
                None => format!("{name} has no products of 16-bit floats: take O0, which is all f32"),
            });
        }
        if let (Some(policy), true) = (&self.policy, level != Level::O1) {
            return refuse(format!(
                "policy {policy} lists operators to cast around, which is what O1 does: at {level} there are no such casts"
            ));
        }
        if level < Level::O2 {
            if let Some(keep) = self.keep_batchnorm {
                return refuse(format!(
                    "keep_batchnorm = {keep} is about weights stored in low precision: at {level} all weights are f32"
                ));
            }
            if self.masters == Some(true) {
                return refuse(format!(
                    "master weights are f32 copies of low-precision weights: at {level} the weights are f32 themselves"
                ));
            }
        }
        Ok(Properties {
            level,
            dtype,
            lists: (level == Level::O1).then(|| self.policy.clone().unwrap_or_default()),
            weights: level >= Level::O2,
            keep_batchnorm: self.keep_batchnorm.unwrap_or(level == Level::O2),
            masters: self.masters.unwrap_or(level == Level::O2),
        })
    }
}

#[cfg(test)]
mod tests;
