//! Optimizers: their settings (`table`), their state for each parameter, the numbers of each step, and the
//! update of a bucket. The latter is made of operators of the core (`ops::update`). The graph of one step
//! over all buckets is `core::train::update_graph`. Everything that lists optimizers is made from
//! [`Optimizer::all`].

mod by_step;
mod groups;
mod table;

pub(crate) use groups::matches;
pub use groups::{Decay, Group, Groups, ListedGroup};
pub use table::{Range, Rates, Setting, SettingTable};

use crate::error::{Error, Result};
pub use headwater_core::train::{Clip, Moment, Span, UpdateRule};
use serde::{Deserialize, Serialize};

/// Declares the optimizers, one a row: file, type, and name as papers and PyTorch spell it.
macro_rules! optimizers {
    ($($file:ident: $Type:ident = $name:literal;)+) => {
        $(mod $file;)+
        $(pub use $file::$Type;)+

        /// An optimizer by name, with its settings.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "name", rename_all = "lowercase", expecting = "a table [optimizer] with its `name`")]
        pub enum Optimizer {
            $(
                #[doc = concat!("See [`", stringify!($Type), "`].")]
                #[serde(alias = $name)]
                $Type($Type),
            )+
        }

        impl Optimizer {
            /// Every optimizer with its defaults, in the order of their names.
            pub fn all() -> Vec<Optimizer> {
                vec![$(Optimizer::$Type($Type::default())),+]
            }

            /// Its rule.
            pub fn rule(&self) -> &dyn Rule {
                match self {
                    $(Optimizer::$Type(o) => o,)+
                }
            }

            /// Its name as papers and PyTorch spell it.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Optimizer::$Type(_) => $name,)+
                }
            }
        }
    };
}

optimizers! {
    adadelta: Adadelta = "Adadelta";
    adagrad: Adagrad = "Adagrad";
    adam: Adam = "Adam";
    adamax: Adamax = "Adamax";
    adamp: AdamP = "AdamP";
    adamw: AdamW = "AdamW";
    bert_adam: BertAdam = "BertAdam";
    lamb: Lamb = "LAMB";
    larc: Larc = "LARC";
    lion: Lion = "Lion";
    nadam: NAdam = "NAdam";
    novograd: NovoGrad = "NovoGrad";
    radam: RAdam = "RAdam";
    rmsprop: RmsProp = "RMSprop";
    rmsprop_tf: RmsPropTf = "RMSpropTF";
    sgd: Sgd = "SGD";
}

impl Default for Optimizer {
    fn default() -> Self {
        Optimizer::AdamW(AdamW::default())
    }
}

/// An optimizer by its settings: the update of a bucket, and the numbers of each step.
pub trait Rule: UpdateRule + SettingTable + Rates {
    /// Values of [`UpdateRule::scalars`] at optimizer step `t`, counted from 1.
    fn values(&self, _: u64, lr: f64) -> Vec<f64> {
        vec![lr]
    }

    /// Settings that may be numbers of the step in place of constants of its plan, as scalars after those of
    /// [`UpdateRule::scalars`]: see [`ListedGroup`]. With none, settings that change plan the update anew.
    fn changing(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Refuses settings out of range, or that exclude each other.
    ///
    /// # Errors
    /// `Config`, naming the setting.
    fn check(&self) -> Result<()> {
        self.in_range()
    }
}

impl Optimizer {
    /// Its name in settings.
    pub fn key(&self) -> String {
        self.name().to_ascii_lowercase()
    }

    /// The same with other settings, by name.
    ///
    /// # Errors
    /// `Config` for a setting it does not have, or of another type.
    pub fn with(&self, settings: impl IntoIterator<Item = (String, serde_json::Value)>) -> Result<Optimizer> {
        let wrong = |e: serde_json::Error| Error::config("optimizer", e.to_string());
        let mut all = serde_json::to_value(self).map_err(wrong)?;
        for (name, value) in settings {
            // A wrapper passes on what it does not have.
            let own = all.get("optimizer").is_none() || all.get(&name).is_some();
            let target = if own { &mut all } else { &mut all["optimizer"] };
            target[name] = value;
        }
        serde_json::from_value(all).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_name_optimizers_by_key_and_by_name() {
        for optimizer in Optimizer::all() {
            for name in [optimizer.key(), optimizer.name().to_string()] {
                let named = serde_json::json!({ "name": name });
                assert_eq!(serde_json::from_value::<Optimizer>(named).unwrap(), optimizer);
            }
            let written = serde_json::to_value(&optimizer).unwrap();
            assert_eq!(written["name"], optimizer.key());
            let names: Vec<&str> = optimizer.rule().settings().iter().map(|s| s.name).collect();
            assert_eq!(written.as_object().unwrap().len(), 1 + names.len());
            assert!(names.iter().all(|name| !written[name].is_null()), "{written}");
        }
    }

    #[test]
    fn defaults_are_in_range_and_the_ends_of_ranges_are_not() {
        for optimizer in Optimizer::all() {
            optimizer.rule().check().unwrap();
            for setting in optimizer.rule().settings() {
                let Some(range) = setting.range else { continue };
                let with = |x: f64| {
                    let pair = setting.ty == "(f64, f64)";
                    let value = if pair { serde_json::json!([x, x]) } else { serde_json::json!(x) };
                    optimizer.with([(setting.name.to_string(), value)]).unwrap().rule().check()
                };
                let (below, above) = match range.to_string().as_str() {
                    "[0, 1)" => (-0.5, 1.0),
                    "[0, ∞)" => (-0.5, -1e-300),
                    "(0, ∞)" => (-0.5, 0.0),
                    "(−∞, ∞)" => continue,
                    other => panic!("`{}` has another range, {other}", setting.name),
                };
                for x in [below, above] {
                    let refused = with(x).unwrap_err().to_string();
                    assert!(
                        refused.contains(setting.name) && refused.contains(&range.to_string()),
                        "{refused}"
                    );
                }
                with(0.5).unwrap();
            }
        }
        for (range, inside, outside) in [
            (table::FINITE, [-1e300, 0.0], [f64::NEG_INFINITY, f64::NAN]),
            (table::NOT_NEGATIVE, [0.0, 1e300], [f64::INFINITY, f64::NAN]),
        ] {
            assert!(inside.into_iter().all(|x| range.check("x", x).is_ok()));
            assert!(outside.into_iter().all(|x| range.check("x", x).is_err()));
        }
    }
}
