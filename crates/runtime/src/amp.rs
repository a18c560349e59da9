//! Settings of mixed precision: the level and what of it is overridden, and the loss scale.

use crate::error::{Error, Result};
use crate::scaler::{LossScale, ScalerKind, ScalerNumbers, ScalerRule};
use headwater_core::DType;
use headwater_core::pass::precision::{Level, Policy, PrecisionSettings, Properties};
use headwater_core::target::Target;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Mixed precision of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table [amp] with `level`")]
pub struct AmpConfig {
    /// O0 (f32), O1 (casts around operators), O2 (low-precision weights with f32 masters), O3 (low precision
    /// alone).
    #[serde(with = "text")]
    pub level: Level,
    /// The low precision: f16 or bf16. Default: bf16 where the device multiplies it, else f16.
    #[serde(with = "text::option", skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
    /// Lists of operators that O1 goes by: apex (default), torch or torch-cuda.
    #[serde(with = "text::option", skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// In place of a policy: names of the exported graph's nodes that run low; all others that round run in
    /// f32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<BTreeSet<String>>,
    /// True if batch norm stays in f32 at O2 (default: yes) and O3 (default: no).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_batchnorm: Option<bool>,
    /// True if there are f32 master weights at O2 (default: yes) and O3 (default: no).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_weights: Option<bool>,
    /// True if low-precision weights without masters (O3) are rounded up or down by chance, so that steps too
    /// small for them count on average.
    pub stochastic_rounding: bool,
    /// A number, `dynamic` or `predictive`. Default: dynamic for f16 at O1 and O2, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Name the first node that was not finite in every skipped step, not only in the one that ends the run.
    /// It costs another run of the step, unfused, and its memory.
    pub trace_skips: bool,
    /// Steps between counts of the gradients' elements that f16 flushes to zero; 0: never. Default: 100 for
    /// f16, where such a step takes about twice as long; bf16 has the range of f32 and needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underflow_every: Option<u64>,
    /// Numbers of the rule that adapts the scale.
    pub scaler: ScalerNumbers,
}

/// Default of [`AmpConfig::underflow_every`].
const UNDERFLOW_EVERY: u64 = 100;

impl AmpConfig {
    /// The level and what of it is overridden.
    pub fn settings(&self) -> PrecisionSettings {
        PrecisionSettings {
            level: self.level,
            dtype: self.dtype,
            policy: self.low.clone().map(|low| Policy::Chosen(Arc::new(low))).or_else(|| self.policy.clone()),
            keep_batchnorm: self.keep_batchnorm,
            masters: self.master_weights,
        }
    }

    /// The properties that they come to on a target.
    ///
    /// # Errors
    /// `Config` for combinations without meaning, and for a low precision that the target does not multiply.
    pub fn properties(&self, target: &Target) -> Result<Properties> {
        if let (Some(policy), true) = (&self.policy, self.low.is_some()) {
            return Err(Error::config(
                "amp.low",
                format!("takes the place of a policy, but policy {policy} is given"),
            ));
        }
        self.settings().properties(target).map_err(|e| Error::config("amp", e.message))
    }

    /// True if underflow is counted in a step, counted from 0.
    pub fn counts_underflow(&self, step: u64) -> bool {
        match self.underflow_every.unwrap_or(UNDERFLOW_EVERY) {
            0 => false,
            every => step.is_multiple_of(every),
        }
    }

    /// The rule of the loss scale on a target.
    ///
    /// # Errors
    /// `Config` for numbers without meaning, and as [`AmpConfig::properties`].
    pub fn rule(&self, target: &Target) -> Result<ScalerRule> {
        let p = self.properties(target)?;
        let adapts = p.dtype == DType::F16 && matches!(p.level, Level::O1 | Level::O2);
        let default = if adapts { LossScale::Adaptive(ScalerKind::Dynamic) } else { LossScale::Static(1.0) };
        let rule = ScalerRule { scale: self.loss_scale.unwrap_or(default), numbers: self.scaler };
        rule.check()?;
        if let (LossScale::Static(_), true) = (rule.scale, self.scaler != ScalerNumbers::default()) {
            let message = "adapts a scale, but loss_scale is one number: choose dynamic or predictive";
            return Err(Error::config("amp.scaler", message));
        }
        Ok(rule)
    }
}

/// Values that are written as they print.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    /// The message on a text that does not parse.
    fn parse<T: FromStr, E: Error>(s: &str) -> Result<T, E> {
        s.parse().map_err(|_| E::custom(format!("{s:?} is not known here")))
    }

    pub fn serialize<T: Display, S: Serializer>(x: &T, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(x)
    }

    pub fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        parse(&String::deserialize(d)?)
    }

    pub mod option {
        use super::*;

        pub fn serialize<T: Display, S: Serializer>(x: &Option<T>, s: S) -> Result<S::Ok, S::Error> {
            match x {
                Some(x) => s.collect_str(x),
                None => s.serialize_none(),
            }
        }

        pub fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(d: D) -> Result<Option<T>, D::Error> {
            Option::<String>::deserialize(d)?.map(|s| parse(&s)).transpose()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> AmpConfig {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn levels_have_their_loss_scales() {
        let dynamic = LossScale::Adaptive(ScalerKind::Dynamic);
        let scale = |text: &str| read(text).rule(&Target::default()).unwrap().scale;
        assert_eq!(scale("{}"), LossScale::Static(1.0));
        for (level, want) in [("O1", dynamic), ("O2", dynamic), ("O3", LossScale::Static(1.0))] {
            assert_eq!(scale(&format!(r#"{{"level": "{level}", "dtype": "f16"}}"#)), want);
            assert_eq!(scale(&format!(r#"{{"level": "{level}"}}"#)), LossScale::Static(1.0));
        }
        assert_eq!(
            scale(r#"{"level": "O3", "loss_scale": "predictive"}"#),
            LossScale::Adaptive(ScalerKind::Predictive)
        );
        assert_eq!(scale(r#"{"loss_scale": 128}"#), LossScale::Static(128.0));
    }

    #[test]
    fn settings_survive_and_nonsense_is_refused() {
        let text = r#"{"level": "O2", "dtype": "f16", "keep_batchnorm": false, "loss_scale": "dynamic", "scaler": {"init": 1024.0}}"#;
        let c = read(text);
        assert_eq!(read(&serde_json::to_string(&c).unwrap()), c);
        let refused = |text: &str| read(text).rule(&Target::default()).unwrap_err().to_string();
        assert!(refused(r#"{"level": "O1", "keep_batchnorm": true}"#).contains("all weights are f32"));
        assert!(refused(r#"{"loss_scale": 0}"#).contains("must be a positive number"));
        assert!(
            refused(r#"{"loss_scale": 8, "scaler": {"init": 2.0}}"#).contains("choose dynamic or predictive")
        );
        assert!(
            refused(r#"{"loss_scale": "dynamic", "scaler": {"min": 4.0, "max": 2.0}}"#)
                .contains("not above amp.scaler.max")
        );
        assert!(
            refused(r#"{"loss_scale": "dynamic", "scaler": {"backoff": 1.5}}"#).contains("between 0 and 1")
        );
        assert!(serde_json::from_str::<AmpConfig>(r#"{"level": "O7"}"#).is_err());
    }
}
