//! Learning rate as a pure function of the step.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Course of the learning rate after the warm-up, as `torch.optim.lr_scheduler` computes it. Steps are
/// optimizer steps: `t` those since the warm-up, `T` all that follow it. In a file a name, `"cosine"`, or a
/// table, `{ name = "step", every = 1000 }`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum Shape {
    /// Stays.
    #[default]
    Constant,
    /// Falls along a line: `1 − t/T`.
    Linear,
    /// Falls along half a cosine: `(1 + cos(π t/T)) / 2`, as `CosineAnnealingLR`.
    Cosine,
    /// Falls along a power: `(1 − t/T)^power`, as `PolynomialLR`.
    Polynomial {
        /// The exponent; 1 is a line.
        #[serde(default = "default::power")]
        power: f64,
    },
    /// Is multiplied by `gamma` every so many steps, as `StepLR`.
    Step {
        /// Steps between two changes.
        every: u64,
        /// The factor.
        #[serde(default = "default::gamma")]
        gamma: f64,
    },
    /// Is multiplied by `gamma` at each milestone, as `MultiStepLR`.
    Multistep {
        /// Steps, counted from the end of the warm-up.
        milestones: Vec<u64>,
        /// The factor.
        #[serde(default = "default::gamma")]
        gamma: f64,
    },
    /// Is multiplied by `gamma` in every step, as `ExponentialLR`.
    Exponential {
        /// The factor.
        gamma: f64,
    },
    /// Rises along half a cosine from `lr / div_factor` to `lr`, then falls along another to
    /// `lr / div_factor / final_div_factor`, as `OneCycleLR`.
    Onecycle {
        /// Share of the steps in which it rises.
        #[serde(default = "default::pct_start")]
        pct_start: f64,
        /// The peak over the first rate.
        #[serde(default = "default::div_factor")]
        div_factor: f64,
        /// The first rate over the last.
        #[serde(default = "default::final_div_factor")]
        final_div_factor: f64,
    },
    /// Falls along half a cosine, again and again, as `CosineAnnealingWarmRestarts`.
    Restarts {
        /// Steps of the first fall.
        t_0: u64,
        /// Length of each fall over that of the one before.
        #[serde(default = "default::t_mult")]
        t_mult: u64,
    },
    /// Falls with the root of the step: `√(w / (step + 1))` after a warm-up of `w` steps, as Vaswani et al.
    /// 2017 have it. Without a warm-up `w` is 1.
    InverseSqrt,
    /// Is multiplied by `factor` when evaluations stop getting better, as `ReduceLROnPlateau` called after
    /// each evaluation. Which metric counts is `eval.metric`.
    Plateau {
        /// The factor.
        #[serde(default = "default::gamma")]
        factor: f64,
        /// Evaluations without a better one that are borne; the next lowers the rate.
        #[serde(default = "default::patience")]
        patience: u64,
        /// By which share of the best an evaluation must be better.
        #[serde(default = "default::threshold")]
        threshold: f64,
        /// Evaluations after a fall that are not counted.
        #[serde(default)]
        cooldown: u64,
        /// The rate is never below this.
        #[serde(default)]
        min_lr: f64,
    },
}

impl Shape {
    /// The name of each.
    pub const NAMES: [&'static str; 11] = [
        "constant",
        "linear",
        "cosine",
        "polynomial",
        "step",
        "multistep",
        "exponential",
        "onecycle",
        "restarts",
        "inverse_sqrt",
        "plateau",
    ];
}

/// Defaults of the shapes' settings: those of `torch.optim.lr_scheduler`.
mod default {
    pub fn power() -> f64 {
        1.0
    }
    pub fn gamma() -> f64 {
        0.1
    }
    pub fn pct_start() -> f64 {
        0.3
    }
    pub fn div_factor() -> f64 {
        25.0
    }
    pub fn final_div_factor() -> f64 {
        1e4
    }
    pub fn t_mult() -> u64 {
        1
    }
    pub fn patience() -> u64 {
        10
    }
    pub fn threshold() -> f64 {
        1e-4
    }
}

/// A shape as files spell it: its name alone, or a table.
pub(crate) mod spelled {
    use super::Shape;
    use serde::de::value::MapAccessDeserializer;
    use serde::de::{Deserializer, Error, MapAccess, Visitor};
    use serde::ser::{Error as _, Serializer};
    use serde::{Deserialize, Serialize};
    use std::fmt;

    pub fn serialize<S: Serializer>(shape: &Shape, s: S) -> Result<S::Ok, S::Error> {
        let table = serde_json::to_value(shape).map_err(S::Error::custom)?;
        match table["name"].as_str() {
            Some(name) if table.as_object().is_some_and(|t| t.len() == 1) => s.serialize_str(name),
            _ => table.serialize(s),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Shape, D::Error> {
        struct Spelling;
        impl<'de> Visitor<'de> for Spelling {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("the name of a schedule, or a table with its `name`")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Shape, E> {
                serde_json::from_value(serde_json::json!({ "name": name })).map_err(E::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Shape, A::Error> {
                Shape::deserialize(MapAccessDeserializer::new(map))
            }
        }
        d.deserialize_any(Spelling)
    }
}

impl Shape {
    /// Refuses settings out of range.
    fn check(&self) -> Result<()> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let refused = match *self {
            Shape::Polynomial { power } if !positive(power) => "`power` must be positive",
            Shape::Step { every: 0, .. } => "`every` must be at least 1",
            Shape::Step { gamma, .. } | Shape::Multistep { gamma, .. } | Shape::Exponential { gamma }
                if !positive(gamma) =>
            {
                "`gamma` must be positive"
            }
            Shape::Onecycle { pct_start, .. } if !(0.0..1.0).contains(&pct_start) => {
                "`pct_start` must be at least 0 and below 1"
            }
            Shape::Onecycle { div_factor: a, final_div_factor: b, .. } if !positive(a) || !positive(b) => {
                "`div_factor` and `final_div_factor` must be positive"
            }
            Shape::Plateau { factor, .. } if !(factor > 0.0 && factor < 1.0) => {
                "`factor` must be above 0 and below 1"
            }
            Shape::Plateau { threshold, .. } if !(0.0..1.0).contains(&threshold) => {
                "`threshold` must be at least 0 and below 1"
            }
            Shape::Plateau { min_lr, .. } if !(min_lr >= 0.0 && min_lr.is_finite()) => {
                "`min_lr` must be 0 or more"
            }
            Shape::Restarts { t_0, t_mult } if t_0 == 0 || t_mult == 0 => {
                "`t_0` and `t_mult` must be at least 1"
            }
            _ => return Ok(()),
        };
        Err(Error::config("schedule", refused))
    }
}

/// A schedule: warm-up, then a shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Peak learning rate.
    pub lr: f64,
    /// The course after the warm-up.
    pub shape: Shape,
    /// Steps of the warm-up: step t (from 0) of it has `lr · (t + 1) / warmup`.
    pub warmup: u64,
    /// All steps of the run.
    pub steps: u64,
    /// Share of `lr` that shapes which fall to 0 end at: linear, cosine, polynomial and restarts.
    pub end: f64,
}

impl Schedule {
    /// A schedule.
    ///
    /// # Errors
    /// `Config` for an `end` outside 0 to 1, and for a shape's settings out of range.
    pub fn new(lr: f64, shape: Shape, warmup: u64, steps: u64, end: f64) -> Result<Schedule> {
        if !(0.0..=1.0).contains(&end) {
            let message = format!("is a share of the learning rate, 0 to 1; it is {end}");
            return Err(Error::config("end", message));
        }
        shape.check()?;
        Ok(Schedule { lr, shape, warmup, steps, end })
    }

    /// The learning rate of a step, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.lr * (step + 1) as f64 / self.warmup as f64;
        }
        let all = self.steps.saturating_sub(self.warmup).max(1);
        let t = step - self.warmup;
        let done = (t as f64 / all as f64).min(1.0);
        let falling = |share: f64| self.end + (1.0 - self.end) * share;
        let half_cosine = |done: f64| (1.0 + (PI * done).cos()) / 2.0;
        let factor = match self.shape {
            // Evaluations, not the step, decide what a plateau leaves of it.
            Shape::Constant | Shape::Plateau { .. } => 1.0,
            Shape::Linear => falling(1.0 - done),
            Shape::Cosine => falling(half_cosine(done)),
            Shape::Polynomial { power } => falling((1.0 - done).powf(power)),
            Shape::Step { every, gamma } => gamma.powf((t / every.max(1)) as f64),
            Shape::Multistep { ref milestones, gamma } => {
                gamma.powf(milestones.iter().filter(|&&m| m <= t).count() as f64)
            }
            Shape::Exponential { gamma } => gamma.powf(t as f64),
            Shape::Onecycle { pct_start, div_factor, final_div_factor } => {
                let first = 1.0 / div_factor;
                let (peak, last) = (pct_start * all as f64 - 1.0, all as f64 - 1.0);
                let t = (t as f64).min(last);
                // From `a` to `b` along half a cosine.
                let along = |a: f64, b: f64, done: f64| b + (a - b) * half_cosine(done);
                match t < peak {
                    true => along(first, 1.0, t / peak),
                    false => along(1.0, first / final_div_factor, (t - peak) / (last - peak)),
                }
            }
            Shape::Restarts { t_0, t_mult } => {
                let (mut since, mut length) = (t, t_0.max(1));
                while t_mult > 1 && since >= length {
                    (since, length) = (since - length, length.saturating_mul(t_mult));
                }
                falling(half_cosine((since % length) as f64 / length as f64))
            }
            Shape::InverseSqrt => (self.warmup.max(1) as f64 / (step + 1) as f64).sqrt(),
        };
        self.lr * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(shape: Shape, warmup: u64, steps: u64, end: f64) -> Schedule {
        Schedule::new(2.0, shape, warmup, steps, end).unwrap()
    }

    #[test]
    fn warms_up_then_falls_to_the_end() {
        let s = |shape| schedule(shape, 4, 12, 0.0);
        let rates: Vec<f64> = (0..6).map(|t| s(Shape::Linear).rate(t)).collect();
        assert_eq!(rates, [0.5, 1.0, 1.5, 2.0, 2.0, 1.75]);
        assert_eq!(s(Shape::Constant).rate(100), 2.0);
        assert_eq!(s(Shape::Cosine).rate(8), 1.0);
        assert!(s(Shape::Cosine).rate(12) < 1e-15);
        let kept = schedule(Shape::Cosine, 4, 12, 0.1);
        assert!((kept.rate(12) - 0.2).abs() < 1e-15 && kept.rate(99) == kept.rate(12));
        // No warm-up, one step.
        assert_eq!(schedule(Shape::Linear, 0, 1, 0.0).rate(0), 2.0);
        // Warm-up and fall meet.
        let s = schedule(Shape::InverseSqrt, 4, 12, 0.0);
        assert_eq!((s.rate(3), s.rate(15)), (2.0, 1.0));
    }

    /// Rates of PyTorch 2.13's schedulers over 12 steps.
    #[test]
    fn shapes_are_those_of_lr_scheduler() {
        let table = |text: &str| serde_json::from_str::<Shape>(text).unwrap();
        let cases: [(&str, f64, [f64; 12]); 6] = [
            (
                r#"{"name": "polynomial", "power": 2.0}"#,
                0.0,
                [
                    2.0,
                    1.6805555555555554,
                    1.388888888888889,
                    1.125,
                    0.888888888888889,
                    0.6805555555555554,
                    0.5,
                    0.3472222222222221,
                    0.2222222222222222,
                    0.125,
                    0.0555555555555555,
                    0.0138888888888889,
                ],
            ),
            (
                r#"{"name": "step", "every": 5}"#,
                0.0,
                [2.0, 2.0, 2.0, 2.0, 2.0, 0.2, 0.2, 0.2, 0.2, 0.2, 0.02, 0.02],
            ),
            (
                r#"{"name": "multistep", "milestones": [3, 8], "gamma": 0.5}"#,
                0.0,
                [2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5],
            ),
            (
                r#"{"name": "exponential", "gamma": 0.9}"#,
                0.0,
                [
                    2.0,
                    1.8,
                    1.62,
                    1.458,
                    1.3122,
                    1.18098,
                    1.062882,
                    0.9565938,
                    0.86093442,
                    0.774840978,
                    0.6973568802,
                    0.62762119218,
                ],
            ),
            (
                r#"{"name": "onecycle"}"#,
                0.0,
                [
                    0.08,
                    0.6995793084391662,
                    1.7585703182442574,
                    1.9888308709018234,
                    1.8660259396828234,
                    1.623491307899526,
                    1.2947579953902066,
                    0.9252742053339501,
                    0.5661219964173985,
                    0.2669550603776612,
                    0.06913397485079044,
                    8e-06,
                ],
            ),
            (
                r#"{"name": "restarts", "t_0": 3, "t_mult": 2}"#,
                0.1,
                [
                    2.0,
                    1.55,
                    0.65,
                    2.0,
                    1.8794228634059948,
                    1.55,
                    1.1,
                    0.65,
                    0.32057713659400516,
                    2.0,
                    1.9693332436601614,
                    1.8794228634059948,
                ],
            ),
        ];
        for (text, end, want) in cases {
            let s = schedule(table(text), 0, 12, end);
            for (step, want) in want.into_iter().enumerate() {
                let got = s.rate(step as u64);
                assert!((got - want).abs() <= 8.0 * f64::EPSILON * want.max(2.0), "{text}: {got} {want}");
            }
        }
    }

    #[test]
    fn shapes_are_written_as_words_or_tables() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct File {
            #[serde(with = "spelled")]
            schedule: Shape,
        }
        for (text, shape) in [
            (r#"{"schedule":"inverse_sqrt"}"#, Shape::InverseSqrt),
            (r#"{"schedule":{"every":7,"gamma":0.1,"name":"step"}}"#, Shape::Step { every: 7, gamma: 0.1 }),
        ] {
            let file: File = serde_json::from_str(text).unwrap();
            assert_eq!(file.schedule, shape);
            assert_eq!(serde_json::to_string(&file).unwrap(), text);
        }
        let word: File = serde_json::from_str(r#"{"schedule": "onecycle"}"#).unwrap();
        assert_eq!(word.schedule, serde_json::from_str(r#"{"name": "onecycle"}"#).unwrap());
        let refused = |text: &str| serde_json::from_str::<File>(text).unwrap_err().to_string();
        assert!(refused(r#"{"schedule": "cosin"}"#).contains("unknown variant `cosin`"));
        assert!(refused(r#"{"schedule": "step"}"#).contains("missing field `every`"));
        assert!(refused(r#"{"schedule": {"name": "step", "evry": 3}}"#).contains("unknown field `evry`"));
        for text in [
            r#"{"name": "step", "every": 0}"#,
            r#"{"name": "exponential", "gamma": -1}"#,
            r#"{"name": "onecycle", "pct_start": 1.0}"#,
            r#"{"name": "restarts", "t_0": 0}"#,
            r#"{"name": "plateau", "factor": 1.0}"#,
            r#"{"name": "plateau", "threshold": 1.0}"#,
            r#"{"name": "plateau", "min_lr": -1}"#,
        ] {
            let shape: Shape = serde_json::from_str(text).unwrap();
            assert!(Schedule::new(1.0, shape, 0, 10, 0.0).is_err(), "{text}");
        }
    }
}
