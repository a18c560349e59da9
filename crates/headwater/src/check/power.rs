//! The power of a check: mutations of a golden, and the share that it finds.

use super::judge::{Value, norm};
use super::measure::Measured;
use super::{Compared, Verdict};
use crate::core::Tensor;
use crate::core::target::Target;
use crate::golden::{Golden, Kind};
use anyhow::Result;
use serde::Serialize;

/// A way in which a golden is made wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mutation {
    /// A value times -1.
    Sign,
    /// Half of a value.
    Half,
    /// Zeros in the place of a value.
    Zero,
    /// The largest element of a value times -1.
    Element,
    /// Two gradients of one shape in each other's place.
    Exchange,
    /// Numbers of the size of other gradients, in the place of a value that is zero but for rounding.
    Nonzero,
}

impl Mutation {
    /// Every mutation.
    pub const ALL: [Mutation; 6] = [
        Mutation::Sign,
        Mutation::Half,
        Mutation::Zero,
        Mutation::Element,
        Mutation::Exchange,
        Mutation::Nonzero,
    ];

    fn changed(self, want: &[f64], ordinary: f64) -> Vec<f64> {
        let largest = want.iter().enumerate().fold((0, 0.0f64), |most, (i, x)| match x.abs() > most.1 {
            true if x.is_finite() => (i, x.abs()),
            _ => most,
        });
        let each = want.iter().enumerate();
        each.map(|(i, &x)| match self {
            Mutation::Sign => -x,
            Mutation::Half => x / 2.0,
            Mutation::Element if i == largest.0 => -x,
            Mutation::Nonzero => {
                if i % 2 == 0 {
                    ordinary
                } else {
                    -ordinary
                }
            }
            Mutation::Element | Mutation::Exchange => x,
            Mutation::Zero => 0.0,
        })
        .collect()
    }
}

/// How many mutations of a kind a check finds.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The kind.
    pub mutation: Mutation,
    /// Mutations tried, one at a time.
    pub tried: usize,
    /// Mutations after which a value differs.
    pub found: usize,
    /// Those of them that what the device computed shows, without the step in f64: what is found if the
    /// device is wrong in this way.
    pub by_device: usize,
    /// Mutations of values that are proved, of two gradients if both are.
    pub proved: usize,
    /// Mutations that are found by the device's own value.
    pub proved_by_device: usize,
    /// Names of the values whose mutation was not found.
    pub missed: Vec<String>,
    /// Names of the values whose mutation what the device computed does not show.
    pub unseen: Vec<String>,
}

impl Found {
    fn none(mutation: Mutation) -> Found {
        let (missed, unseen) = (vec![], vec![]);
        Found { mutation, tried: 0, found: 0, by_device: 0, proved: 0, proved_by_device: 0, missed, unseen }
    }
}

impl Measured {
    /// Mutates outputs, gradients and buffers of a golden, one at a time, and compares each with what was run
    /// once. Values that are zero except for rounding have no sign; two gradients that are equal within their
    /// bounds cannot be distinguished. Neither counts.
    ///
    /// # Errors
    /// If a shape differs from the golden's.
    pub fn power(&self, golden: &Golden, target: &Target) -> Result<Vec<Found>> {
        let mut found: Vec<Found> = Mutation::ALL.map(Found::none).into();
        let mut count = |mutation: Mutation, name: String, proved: bool, changed: &[Compared]| {
            let is_found = changed.iter().any(|c| c.verdict == Verdict::Differs);
            let seen = changed.iter().any(|c| !c.within);
            let entry = found.iter_mut().find(|f| f.mutation == mutation).expect("all are there");
            entry.tried += 1;
            entry.found += usize::from(is_found);
            entry.by_device += usize::from(seen);
            entry.proved += usize::from(proved);
            entry.proved_by_device += usize::from(proved && seen);
            entry.unseen.extend((!seen).then(|| name.clone()));
            entry.missed.extend((!is_found).then_some(name));
        };
        let compared = |v: &Value, want: &Tensor| -> Result<Compared> {
            v.judge(want, self.ordinary(v.kind, golden), &self.precision, target)
        };
        let mut gradients: Vec<(&Value, &Tensor, bool)> = Vec::new();
        for v in self.values.iter().filter(|v| v.kind != Kind::Node && v.result.dtype.is_float()) {
            let truth = golden.values(v.kind);
            let Some(&want) = truth.get(v.name.as_str()) else { continue };
            let numbers = want.to_f64();
            let honest = compared(v, want)?;
            if numbers.is_empty() || !norm(numbers.iter().copied()).is_finite() {
                continue;
            }
            let ordinary = self.ordinary(v.kind, golden);
            let proved = honest.verdict == Verdict::Proved;
            for mutation in Mutation::ALL {
                let counts = match mutation {
                    Mutation::Exchange => false,
                    Mutation::Nonzero => honest.zero && ordinary > 0.0,
                    Mutation::Element => !honest.zero && numbers.len() > 1,
                    _ => !honest.zero,
                };
                if counts {
                    let changed = mutation.changed(&numbers, ordinary);
                    let changed = Tensor::float(want.dtype(), want.shape().clone(), changed);
                    count(mutation, v.name.clone(), proved, &[compared(v, &changed)?]);
                }
            }
            if v.kind == Kind::Gradient && !honest.zero {
                // With the last one of the same shape.
                let same = gradients.iter().rev().find(|(_, t, _)| t.shape() == want.shape());
                if let Some(&(other, its, too)) = same {
                    let apart =
                        its.to_f64().into_iter().zip(&numbers).map(|(a, b)| a - b).collect::<Vec<_>>();
                    if norm(apart.iter().copied()) > 2.0 * v.bound.norm.max(other.bound.norm) {
                        let exchanged = [compared(v, its)?, compared(other, want)?];
                        let names = format!("{} and {}", other.name, v.name);
                        count(Mutation::Exchange, names, proved && too, &exchanged);
                    }
                }
                gradients.push((v, want, proved));
            }
        }
        Ok(found)
    }
}
