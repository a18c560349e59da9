//! The time of a training run by operator, by module, and inside fused operators.

use crate::bench::step::{Traced, traced};
use crate::core::device::Device;
use crate::cpu::limits::{self, Limits, Workload};
use crate::cpu::{Pool, Tier};
use crate::report::{Bars, Block, Table, text};
use crate::runtime::session::Session;
use crate::runtime::trainer::Trainer;
use std::collections::BTreeMap;

/// The time of all measured steps.
pub(super) struct StepTimes {
    /// Each with its mean seconds, and how often it ran.
    steps: Vec<(Traced, u64)>,
    /// True if the limits of the machine are known.
    limited: bool,
}

/// Seconds of a part: forward, backward with the update, and at the machine's limit.
#[derive(Clone, Copy, Default)]
struct Spent {
    forward: f64,
    backward: f64,
    floor: f64,
}

impl Spent {
    fn all(&self) -> f64 {
        self.forward + self.backward
    }
}

impl StepTimes {
    /// Steps of a trainer's programs beside the machine's limits, if these are known.
    pub(super) fn of(session: &Session, trainer: &Trainer, limits: Option<Limits>) -> StepTimes {
        let mut steps = Vec::new();
        for program in trainer.programs() {
            let (plan, runs) = (session.plan(program), session.runs(program));
            for (step, seconds) in plan.steps.iter().zip(session.seconds(program)) {
                steps.push((traced(plan, step, seconds / runs.max(1) as f64, limits.as_ref()), runs));
            }
        }
        StepTimes { steps, limited: limits.is_some() }
    }

    /// Parts by a name, those that took longest first.
    fn by(&self, name: impl Fn(&Traced) -> Option<String>) -> Vec<(String, Spent)> {
        let mut parts: BTreeMap<String, Spent> = BTreeMap::new();
        for (step, runs) in &self.steps {
            let Some(name) = name(step) else { continue };
            let (part, runs) = (parts.entry(name).or_default(), *runs as f64);
            match step.phase {
                "forward" => part.forward += step.seconds * runs,
                _ => part.backward += step.seconds * runs,
            }
            part.floor += step.floor * runs;
        }
        let mut parts: Vec<_> = parts.into_iter().collect();
        parts.sort_by(|a, b| b.1.all().total_cmp(&a.1.all()));
        parts
    }

    /// Operators as bars; operators, modules, and what is inside fused operators, as tables.
    pub(super) fn blocks(self) -> Vec<Block> {
        let whole: f64 = self.steps.iter().map(|(s, runs)| s.seconds * *runs as f64).sum();
        let share = |of: f64| format!("{:.1} %", if whole > 0.0 { 100.0 * of / whole } else { 0.0 });
        let table = |title: &str, what: &str, parts: Vec<(String, Spent)>| {
            let mut columns = vec![what, ">forward", ">backward, update", ">share"];
            columns.extend(self.limited.then_some(">of the machine's limit"));
            let mut table = Table::new(title, &columns);
            for (name, part) in parts.into_iter().take(SHOWN) {
                let mut row =
                    vec![name, text::seconds(part.forward), text::seconds(part.backward), share(part.all())];
                let limit = || format!("{:.0} %", 100.0 * part.floor / part.all().max(1e-12));
                row.extend(self.limited.then(limit));
                table.rows.push(row);
            }
            Block::Table(table)
        };
        let operators = self.by(|s| Some(s.op.to_string()));
        let title =
            "Time by operator, all steps of this process (fused: neighbouring operators in one row program)";
        let bars = operators.iter().take(SHOWN).map(|(name, part)| (name.clone(), part.all())).collect();
        let root = |module: &str| if module.is_empty() { "(root)".to_string() } else { module.to_string() };
        vec![
            Block::Bars(Bars { title: title.into(), unit: "s".into(), bars }),
            table("Time by operator", "operator", operators),
            table("Time by module", "module", self.by(|s| Some(root(&s.module)))),
            table(
                "Inside fused operators",
                "functions",
                self.by(|s| s.functions.clone().filter(|_| s.op == FUSED)),
            ),
        ]
    }
}

/// The limits of the machine, if the device is its processor.
pub(super) fn yardstick(device: &dyn Device) -> Option<Limits> {
    let workload = Workload::QUICK;
    let measured = || limits::measure(&Pool::from_env(), Tier::current().ok()?, workload).ok();
    (device.name() == "cpu").then(measured).flatten()
}

/// Operators, modules and fused operators that are listed.
const SHOWN: usize = 16;
/// Name of an operator that several were fused into.
const FUSED: &str = "fused";
