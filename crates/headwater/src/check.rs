//! Comparison of an imported model with PyTorch's recorded results: outputs, every gradient, every recorded
//! intermediate.

mod judge;
mod measure;
mod power;
mod scale;
mod step;
pub mod tables;
mod ties;

pub use judge::{HALF, PROVED};
pub use measure::Measured;
pub use power::{Found, Mutation};
pub use scale::Scale;
pub use step::Precision;

use crate::core::DType;
use crate::core::device::Device;
use crate::core::target::Target;
use crate::golden::{Golden, Kind};
use crate::model::Model;
use crate::report::text;
use anyhow::Result;
use serde::Serialize;
use std::collections::HashMap;

/// The verdict of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Within its bound, which is smaller than the value by [`CheckReport::proved_by`].
    Proved,
    /// Within its bound, which is too wide to prove it.
    NotProved,
    /// Outside of its bound.
    #[default]
    Differs,
}

/// One value compared with its truth.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Compared {
    /// Its kind.
    pub kind: Kind,
    /// Its name: output index, parameter, buffer, or node of the exported graph.
    pub name: String,
    /// `‖got − want − shift‖ / size`, with the mean error of runs with random roundings as the shift; for
    /// integers the share of elements that differ.
    pub error: f64,
    /// `‖shift‖ / size`; 0 in f64.
    pub shift: f64,
    /// The bound of that, as `pass::bound` derives it; 0 for integers.
    pub bound: f64,
    /// The bound over the root mean square of runs with random roundings, beside what rounding does in all of
    /// them.
    pub factor: f64,
    /// Elements that are outside of the bound of one element.
    pub elements: usize,
    /// NaNs of PyTorch's value and of this one.
    pub nans: (usize, usize),
    /// Euclidean norm of the truth.
    pub norm: f64,
    /// The size that error and bound are relative to: the norm of the truth; for a zero, that of an ordinary
    /// value of its kind and shape.
    pub size: f64,
    /// True if the truth is zero up to the rounding of f64: its terms cancel.
    pub zero: bool,
    /// True if something in it is no finite number, and neither is it where the exact step is rounded to the
    /// dtypes of this one: a constant that they lack, or a sum that passes their range.
    pub lost: bool,
    /// True if its dtype saturates on the device, and it has numbers where the truth has NaN or infinity.
    pub saturated: bool,
    /// The verdict.
    pub verdict: Verdict,
    /// True if what the device computed is within the bound, whatever the step in f64 has.
    #[serde(skip)]
    pub within: bool,
    /// Place in the model where the value is computed.
    pub origin: String,
    /// Operator of a node, as `headwater op` names it; empty for other kinds.
    pub operator: String,
}

impl Compared {
    /// True if it is within its bound, proved or not.
    pub fn passed(&self) -> bool {
        self.verdict != Verdict::Differs
    }
}

/// Everything a check found.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Precision that was run.
    pub precision: String,
    /// A value is proved where its bound is smaller than its size by this.
    pub proved_by: f64,
    /// Runs with random roundings from which bounds are derived.
    pub runs: usize,
    /// The loss scale of a step in f16; gradients are compared without it.
    pub scale: Option<Scale>,
    /// Every comparison: outputs, gradients and buffers by name, nodes in the order they are computed.
    pub compared: Vec<Compared>,
    /// Gradients PyTorch has and we do not, or the other way round, with the reason.
    pub missing: Vec<String>,
    /// Recorded nodes that have no counterpart in the imported graph.
    pub unmatched: Vec<String>,
    /// Recorded nodes whose elements are in another order, because they follow the order in which a sort that
    /// is not stable leaves equal keys: PyTorch does not specify it. What is computed from them is compared.
    pub reordered: Vec<String>,
    /// Operators whose result or gradient PyTorch is known to get wrong, or may, with the place and what it
    /// does.
    pub departures: Vec<String>,
    /// Nodes that order equal keys, where a value differs that depends on the order: operator and place.
    pub ties: Vec<String>,
    /// The archive that the golden was recorded from, if it is another one.
    pub foreign: Option<String>,
    /// A remark, if the golden does not state that the archive computes what its PyTorch module computes.
    pub module: Option<String>,
    /// The archive that was checked.
    pub archive: String,
    /// The file of the golden.
    pub golden: String,
}

/// Beginnings of the reasons in [`CheckReport::missing`].
const NO_GRADIENT: &str = "PyTorch has a gradient of";
const OWN_GRADIENT: &str = "we have a gradient of";
const NO_BUFFER: &str = "PyTorch writes buffer";

impl CheckReport {
    /// True if everything is within its bound and nothing is missing, proved or not.
    pub fn passed(&self) -> bool {
        self.missing.is_empty() && self.compared.iter().all(Compared::passed)
    }

    /// True if everything is proved and nothing is missing.
    pub fn proved(&self) -> bool {
        self.missing.is_empty() && self.count(Verdict::Proved) == self.compared.len()
    }

    /// Number of values with a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.compared.iter().filter(|c| c.verdict == verdict).count()
    }

    /// The end of the check in words.
    pub fn conclusion(&self) -> String {
        let open = self.count(Verdict::NotProved);
        if !self.passed() {
            return "the numbers differ from PyTorch's".into();
        }
        let saturated = self.compared.iter().filter(|c| c.saturated).count();
        let said = match open {
            0 => return format!("all {} values are proved", self.compared.len()),
            n => format!(
                "{} values proved, {n} not proved: they are within their bounds, which are wider than the values over {}",
                self.count(Verdict::Proved),
                self.proved_by
            ),
        };
        let said = match saturated {
            0 => said,
            n => format!(
                "{said}; {n} have numbers where PyTorch has NaN or infinity, because {} saturates here",
                self.precision
            ),
        };
        let lost: Vec<&Compared> = self.compared.iter().filter(|c| c.lost).collect();
        match lost.first() {
            None => said,
            Some(first) => format!(
                "{said}; {} are not finite in {}, as the exact step is not where it is rounded so, first {} at {}: a constant \
                 that it lacks is 0, or a sum passes its range",
                lost.len(),
                self.precision,
                first.name,
                first.origin
            ),
        }
    }

    /// The first node, in the order of computation, that differs.
    pub fn first_difference(&self) -> Option<&Compared> {
        self.of(Kind::Node).find(|c| !c.passed())
    }

    /// The comparisons of one kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Compared> {
        self.compared.iter().filter(move |c| c.kind == kind)
    }

    /// Differences that the comparison shows, their likely cause, and what to try next, in sentences;
    /// nothing where all agree.
    pub fn evidence(&self) -> Vec<String> {
        if self.passed() {
            return vec![];
        }
        let mut said = Vec::new();
        let wrong = |kind: Kind| self.of(kind).filter(|c| !c.passed()).count();
        let counts = Kind::ALL.iter().filter(|(k, _)| wrong(*k) > 0).map(|(k, _)| {
            format!("{} of {} {}s", wrong(*k), self.of(*k).count(), format!("{k:?}").to_lowercase())
        });
        let counts: Vec<String> = counts.collect();
        if !counts.is_empty() {
            said.push(format!("out of their bounds in {}: {}", self.precision, counts.join(", ")));
        }
        said.extend(self.departures.iter().map(|d| format!("PyTorch may be wrong here: {d}")));
        let forward = wrong(Kind::Output) + wrong(Kind::Node) + wrong(Kind::Buffer);
        let again = |precision: &str| {
            let (archive, golden) = (text::word(&self.archive), text::word(&self.golden));
            format!("`headwater check {archive} {golden} --precision {precision} --all`")
        };
        if self.foreign.is_none() {
            said.extend(self.absence());
        }
        if let Some(foreign) = &self.foreign {
            said.push(format!("likely cause: {foreign}. Next: record the golden of this archive"));
        } else if counts.is_empty() {
            // All that was compared agrees: no operator is suspected.
        } else if !self.ties.is_empty() {
            said.push(format!(
                "{} orders equal keys: PyTorch leaves open which of them comes first, and what is computed from the order \
                 differs with it. Next: record with inputs that have no equal keys there",
                self.ties.join(" and ")
            ));
        } else if let Some(c) = self.compared.iter().find(|c| !c.passed() && c.nans.0 != c.nans.1) {
            said.push(format!(
                "{}: PyTorch has NaN in {} elements, this has it in {}, computed at {}",
                c.name, c.nans.0, c.nans.1, c.origin
            ));
        } else if self.precision != DType::F64.to_string() {
            said.push(format!(
                "next: run the check in f64, {}. If that agrees, the operators are right and the model magnifies rounding",
                again("f64")
            ));
        } else if let Some(first) = self.first_difference() {
            let alone = match first.operator.as_str() {
                "" => "run it alone with `headwater op`".to_string(),
                op => format!(
                    "run it alone, `headwater op {op} --in in.safetensors --out out.safetensors` (`headwater op {op} \
                     --schema` lists its tensors)"
                ),
            };
            said.push(format!(
                "likely cause: the operator of {}, the first that differs, at {}; what follows from it differs too ({} lists \
                 it). Next: {alone}, or record with intermediates=\"all\" if it stands for a whole module",
                first.name,
                first.origin,
                again("f64")
            ));
        } else if forward == 0 && wrong(Kind::Gradient) > 0 {
            said.push(
                "outputs and intermediates agree: likely cause is the derivative of an operator between these parameters and \
                 the loss. Next: record with intermediates=\"all\", and take the operators beside the parameters through \
                 `headwater op --grad`"
                    .into(),
            );
        } else if forward > 0 {
            said.push(
                "next: record with intermediates=\"modules\", which shows where the first difference is"
                    .into(),
            );
        }
        said
    }

    /// The likely cause of gradients and buffers that one side alone has, and what to try next: a sentence
    /// for each kind.
    fn absence(&self) -> Vec<String> {
        let archive = text::word(&self.archive);
        let causes = [
            (
                NO_BUFFER,
                "the archive was exported in eval mode, in which no buffer is written, and recorded in train mode. Next: \
                 export and record in the same mode"
                    .to_string(),
            ),
            (
                NO_GRADIENT,
                format!(
                    "the way from the loss to these parameters is cut: they were frozen when the model was exported, a \
                     detach lies between, or an operator has no derivative here. Next: `headwater inspect {archive}` \
                     lists operators and trained parameters; export with the requires_grad that PyTorch trains with, and \
                     record again"
                ),
            ),
            (
                OWN_GRADIENT,
                "PyTorch recorded with these parameters frozen or unused. Next: record the golden again with the model as \
                 it was exported"
                    .to_string(),
            ),
        ];
        let found =
            causes.into_iter().filter(|(begin, _)| self.missing.iter().any(|m| m.starts_with(*begin)));
        found.map(|(_, cause)| format!("likely cause: {cause}")).collect()
    }

    /// The comparison of a kind with the largest error.
    pub fn worst(&self, kind: Kind) -> Option<&Compared> {
        self.of(kind).max_by(|a, b| a.error.total_cmp(&b.error))
    }
}

/// Operators of a model whose result or gradient PyTorch is known to get wrong.
fn departures(graph: &crate::core::Graph) -> Vec<String> {
    let said = graph.nodes.iter().filter_map(|node| {
        let what = crate::core::ops::departures::of(graph, node)?;
        Some(format!("{}, at {}: {what}", node.op.name, graph.origin(node)))
    });
    said.collect()
}

/// Runs forward and backward at `precision` and compares with the golden. The proof in f64 and the runs that
/// bounds are derived from are computed on the CPU, whatever the device: it is judged in its own dtypes.
///
/// # Errors
/// If the golden does not belong to the model, or something cannot run.
pub fn check(
    model: &Model,
    golden: &Golden,
    precision: impl Into<Precision>,
    device: &dyn Device,
) -> Result<CheckReport> {
    Measured::new(model, golden, &precision.into(), device)?.report(model, golden, device.target())
}

impl Measured {
    /// The comparison with a golden that was recorded of the same values.
    ///
    /// # Errors
    /// If a shape differs from the golden's, or the archive cannot be read.
    pub fn report(&self, model: &Model, golden: &Golden, target: &Target) -> Result<CheckReport> {
        let mut report = CheckReport {
            precision: self.precision.to_string(),
            proved_by: self.precision.proved(),
            runs: self.runs,
            scale: self.scale.clone(),
            compared: vec![],
            missing: golden.incomplete(),
            unmatched: self.unmatched.clone(),
            reordered: vec![],
            ties: vec![],
            departures: departures(&self.bound.graph),
            foreign: golden.of_another(&model.path)?,
            module: golden.unstated(),
            archive: model.path.display().to_string(),
            golden: golden.path().display().to_string(),
        };
        let truth: HashMap<Kind, _> = Kind::ALL.iter().map(|(k, _)| (*k, golden.values(*k))).collect();
        let ordinary: HashMap<Kind, f64> =
            Kind::ALL.iter().map(|(k, _)| (*k, self.ordinary(*k, golden))).collect();
        let mut tied = false;
        for v in &self.values {
            let want = truth[&v.kind][v.name.as_str()];
            let c = v.judge(want, ordinary[&v.kind], &self.precision, target)?;
            tied |= !c.passed() && v.tied;
            // Keys that are exchanged move elements by more than rounding does, by as much as a bound that
            // says nothing allows.
            let bound = v.bound.elements.iter().fold(0.0f64, |a, b| a.max(*b));
            let bound = bound.min(c.norm / (v.got.len().max(1) as f64).sqrt() / self.precision.proved());
            if v.kind == Kind::Node
                && !c.passed()
                && v.tied
                && judge::same_multiset(&v.got, &want.to_f64(), bound)
            {
                report.reordered.push(v.name.clone());
            } else {
                report.compared.push(c);
            }
        }
        if tied {
            report.ties = ties::found(&self.bound, golden)?;
        }
        for name in truth[&Kind::Gradient].keys().filter(|n| !self.gradients.iter().any(|g| g == *n)) {
            let without = self.without.iter().find(|m| m.parameter == *name);
            let reason = without.map_or("no such parameter", |m| &m.reason);
            report.missing.push(format!("{NO_GRADIENT} {name}, we have none: {reason}"));
        }
        for name in self.gradients.iter().filter(|n| !truth[&Kind::Gradient].contains_key(n.as_str())) {
            report.missing.push(format!("{OWN_GRADIENT} {name}, PyTorch has none"));
        }
        let written = |name: &str| self.values.iter().any(|v| v.kind == Kind::Buffer && v.name == name);
        for name in truth[&Kind::Buffer].keys().filter(|n| !written(n)) {
            report.missing.push(format!("{NO_BUFFER} {name}, we do not"));
        }
        Ok(report)
    }

    /// The size of an element of an ordinary value of a kind: the median of the root mean squares of those
    /// that are not zero; 0 if all are.
    fn ordinary(&self, kind: Kind, golden: &Golden) -> f64 {
        let truth = golden.values(kind);
        let of_kind = self.values.iter().filter(|v| v.kind == kind && v.result.dtype.is_float());
        let sizes: Vec<(f64, bool)> = of_kind
            .filter_map(|v| {
                let want = truth.get(v.name.as_str())?.to_f64();
                let size = judge::norm(want.iter().copied());
                let counts = size.is_finite() && !v.is_zero(size, &self.precision);
                counts.then(|| (size / (want.len() as f64).sqrt(), v.bound.norm > 0.0))
            })
            .collect();
        // Nor do those count that are rounding of f64 beside the largest.
        let most = judge::CANCELLED * sizes.iter().fold(0.0, |most: f64, s| most.max(s.0));
        let mut sizes: Vec<f64> =
            sizes.into_iter().filter(|(size, drawn)| *drawn || *size > most).map(|s| s.0).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.get(sizes.len() / 2).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests;
