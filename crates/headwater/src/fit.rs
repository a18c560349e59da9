//! Memory of a training step beside that of a machine, and options that would need less. Each option is
//! planned, so that its figure is the one that a run would have.

use crate::core::pass::precision::Level;
use crate::core::target::Target;
use crate::import::Dims;
use crate::model::Model;
use crate::report::{Table, text};
use crate::runtime::session::{Moments, Planned, Training};
use anyhow::Result;
use serde::Serialize;

/// A way to need less memory.
#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// In words, with what it costs.
    pub what: String,
    /// Options of `headwater train`.
    pub options: String,
    /// Bytes that a training step then takes.
    pub bytes: usize,
}

/// A training step as requested.
pub struct FitRequest<'a> {
    /// The model.
    pub model: &'a Model,
    /// Sizes of symbolic dimensions.
    pub dims: &'a Dims,
    /// Its settings.
    pub settings: &'a Training,
    /// The device's target.
    pub target: &'a Target,
}

impl FitRequest<'_> {
    fn planned(&self, dims: &Dims, settings: &Training) -> Result<Planned> {
        let bound = self.model.bind(&dims.clone().or_exported())?;
        Ok(Planned::training(&bound.graph, settings, self.target, None)?)
    }

    /// Samples in a batch, if it can be another one.
    fn batch(&self) -> Option<usize> {
        self.model.batch(self.dims.clone(), 1).ok()?;
        let bound = self.model.bind(&self.dims.clone().or_exported()).ok()?;
        let (_, ty) = bound.user_inputs().next()?;
        ty.shape.first().copied()
    }

    /// Changes that can need less. Those that join can be made all at once.
    fn changes(&self) -> Vec<Change> {
        let asked = self.settings;
        let mut changes = Vec::new();
        let mut add = |what: &str, options: &str, joins, apply: Box<dyn Fn(&mut Dims, &mut Training)>| {
            changes.push(Change { what: what.into(), options: options.into(), joins, apply });
        };
        if let (Level::O0, Some(low)) = (asked.precision.level, self.target.low_dtypes().next()) {
            add(
                &format!("weights and activations in {low}, masters in f32"),
                &format!("--amp O2 --dtype {low}"),
                true,
                Box::new(move |_, t| (t.precision.level, t.precision.dtype) = (Level::O2, Some(low))),
            );
        }
        if asked.moments == Moments::F32 {
            for (moments, name) in [(Moments::Bf16, "bf16"), (Moments::Int8, "int8")] {
                add(
                    &format!("moments of the optimizer in {name}, rounded stochastically"),
                    &format!("--moments {name}"),
                    moments == Moments::Int8,
                    Box::new(move |_, t| t.moments = moments),
                );
            }
        }
        if !asked.recompute {
            let what = "recomputation of what is cheap to compute";
            add(what, "--recompute true", true, Box::new(|_, t| t.recompute = true));
        }
        let batch = self.batch().unwrap_or(1);
        let parts = (2..batch.min(64))
            .filter(|d| batch.is_multiple_of(*d))
            .take(3)
            .chain((batch > 1).then_some(batch));
        for parts in parts {
            let size = batch / parts;
            let accumulate = u32::try_from(parts).ok().and_then(|p| asked.accumulate.checked_mul(p));
            let (Ok(dims), Some(accumulate)) = (self.model.batch(self.dims.clone(), size), accumulate) else {
                continue;
            };
            add(
                &format!("{parts} micro-batches of {size} a step; batch norm sees each of them alone"),
                &format!("--batch {size} --accumulate {accumulate}"),
                parts == batch,
                Box::new(move |d, t| (*d, t.accumulate) = (dims.clone(), accumulate)),
            );
        }
        changes
    }

    /// The ways that need less than the `now` bytes of the step as requested, the least first. `room` are the
    /// bytes that it may take, if they are known.
    pub fn ways(&self, now: usize, room: Option<usize>) -> Vec<Way> {
        let bytes =
            |dims: &Dims, settings: &Training| Some(self.planned(dims, settings).ok()?.memory().total());
        let (mut ways, mut together) = (Vec::new(), Vec::new());
        let (mut all_dims, mut all) = (self.dims.clone(), self.settings.clone());
        for Change { what, options, joins, apply } in self.changes() {
            let (mut dims, mut settings) = (self.dims.clone(), self.settings.clone());
            apply(&mut dims, &mut settings);
            let Some(bytes) = bytes(&dims, &settings).filter(|bytes| *bytes < now) else { continue };
            if joins {
                apply(&mut all_dims, &mut all);
                together.push(options.clone());
            }
            ways.push(Way { what, options, bytes });
        }
        if let Some(room) = room.filter(|room| *room < now && self.settings.memory_budget.is_none()) {
            let budget = Training { memory_budget: Some(room), ..self.settings.clone() };
            if let Ok(planned) = self.planned(self.dims, &budget) {
                let cost = planned.rematerialized().map_or(String::new(), |r| {
                    format!(", {:.1} % more operations", 100.0 * r.more_flops / r.flops)
                });
                let what = format!("recomputation up to that budget{cost}");
                let options = format!("--memory-budget {}MiB", room >> 20);
                ways.push(Way { what, options, bytes: planned.memory().total() });
            }
        }
        if together.len() > 1
            && let Some(bytes) = bytes(&all_dims, &all)
        {
            ways.push(Way {
                what: "mixed precision, moments, recomputation and micro-batches together".into(),
                options: together.join(" "),
                bytes,
            });
        }
        ways.sort_by_key(|w| w.bytes);
        ways
    }
}

/// A change of the request.
struct Change {
    what: String,
    options: String,
    joins: bool,
    apply: Box<dyn Fn(&mut Dims, &mut Training)>,
}

/// The ways as a table; `room` are the bytes that a step may take.
pub fn table(ways: &[Way], now: usize, room: Option<usize>) -> Table {
    let mut table = Table::new("What needs less", &["way", "options of train", ">memory", ">less", "fits"]);
    for w in ways {
        let fits = room.map_or("unknown", |room| if w.bytes <= room { "yes" } else { "no" });
        let less = text::bytes(now.saturating_sub(w.bytes));
        table.row([w.what.clone(), w.options.clone(), text::bytes(w.bytes), less, fits.into()]);
    }
    table
}
