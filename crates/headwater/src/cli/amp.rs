//! Options of mixed precision, for the commands that have them.

use super::Usage;
use super::op::parse_dtype;
use crate::core::pass::precision::Level;
use crate::runtime::amp::AmpConfig;
use crate::runtime::scaler::LossScale;
use crate::words::meant;
use anyhow::{Context, Result};

#[derive(clap::Args, Debug)]
pub struct Amp {
    /// Mixed precision: O0 (none), O1 (casts around operators), O2 (low-precision weights with f32 masters), O3
    /// (low precision without masters), or a policy file. `train --amp auto` measures and writes one.
    #[arg(long = "amp", value_name = "LEVEL|FILE", help_heading = "Mixed precision")]
    level: Option<String>,
    /// The low precision: f16 or bf16 (default: bf16 where the device multiplies it, else f16).
    #[arg(long, value_name = "DTYPE", help_heading = "Mixed precision")]
    dtype: Option<String>,
    /// Whose lists say which operators O1 runs in low precision: apex (default), torch (PyTorch's autocast on CPUs) or
    /// torch-cuda (autocast on GPUs). A policy file is given to --amp instead.
    #[arg(long, value_name = "LISTS", help_heading = "Mixed precision")]
    policy: Option<String>,
    /// Keep batch norm in f32 (default: true at O2, false at O3).
    #[arg(long, value_name = "BOOL", help_heading = "Mixed precision")]
    keep_batchnorm: Option<bool>,
    /// Keep f32 master weights (default: true at O2, false at O3).
    #[arg(long, value_name = "BOOL", help_heading = "Mixed precision")]
    master_weights: Option<bool>,
    /// Loss scale: a number, dynamic (as PyTorch's GradScaler), or predictive (default: dynamic for f16 at O1 and O2,
    /// else 1).
    #[arg(long, value_name = "SCALE", help_heading = "Mixed precision")]
    loss_scale: Option<LossScale>,
}

/// The level that is found by measuring.
const AUTO: &str = "auto";

impl Amp {
    /// True if the precision of each node is to be chosen by measuring.
    pub fn is_auto(&self) -> bool {
        self.level.as_deref() == Some(AUTO)
    }

    /// Lays what was given over the settings.
    pub fn over(&self, c: &mut AmpConfig) -> Result<()> {
        match self.level.as_deref() {
            None => {}
            Some(file) if file.ends_with(".toml") => {
                let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
                *c = toml::from_str(&text).with_context(|| format!("{file} is no policy file"))?;
            }
            // The choice by measuring comes later; it is a form of O1.
            Some(AUTO) => c.level = Level::O1,
            Some(level) => {
                c.level = level.parse().map_err(|_| {
                    let all = ["O0", "O1", "O2", "O3", AUTO];
                    Usage(format!("--amp {level}: {}, or a policy file .toml", meant(level, all)))
                })?;
            }
        }
        if let Some(dtype) = &self.dtype {
            c.dtype = Some(parse_dtype(dtype).map_err(|e| Usage(format!("--dtype {dtype}: {e}")))?);
        }
        if let Some(policy) = &self.policy {
            c.policy = Some(policy.parse().map_err(|m| Usage(format!("--policy {policy}: {m}")))?);
        }
        c.keep_batchnorm = self.keep_batchnorm.or(c.keep_batchnorm);
        c.master_weights = self.master_weights.or(c.master_weights);
        c.loss_scale = self.loss_scale.or(c.loss_scale);
        Ok(())
    }
}
