//! Memory of a training step beside what a machine has, and what would need less: each way is planned, so that its
//! figure is the one that a run would have.

use crate::core::DType;
use crate::core::pass::precision::{Level, Settings};
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

/// A training step as it is asked for.
pub struct Asked<'a> {
    /// The model.
    pub model: &'a Model,
    /// Sizes of symbolic dimensions.
    pub dims: &'a Dims,
    /// Its settings.
    pub settings: &'a Training,
    /// The device's target.
    pub target: &'a Target,
}

impl Asked<'_> {
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

    /// The ways that need less than the `now` bytes of the step as it is asked for, the least first. `room` are the bytes
    /// that it may take, if they are known.
    pub fn ways(&self, now: usize, room: Option<usize>) -> Vec<Way> {
        let mut ways = Vec::new();
        let mut all = (self.dims.clone(), self.settings.clone(), Vec::new());
        let mut add = |what: String, options: &str, dims: &Dims, settings: &Training| {
            let Ok(planned) = self.planned(dims, settings) else { return false };
            let bytes = planned.memory().total();
            if bytes < now {
                ways.push(Way { what, options: options.into(), bytes });
            }
            bytes < now
        };
        if self.settings.precision.level == Level::O0 {
            let precision =
                Settings { level: Level::O2, dtype: Some(DType::BF16), ..self.settings.precision.clone() };
            let settings = Training { precision: precision.clone(), ..self.settings.clone() };
            if add(
                "weights and activations in bf16, masters in f32".into(),
                "--amp O2 --dtype bf16",
                self.dims,
                &settings,
            ) {
                all.1.precision = precision;
                all.2.push("--amp O2 --dtype bf16".to_string());
            }
        }
        for (moments, name) in [(Moments::Bf16, "bf16"), (Moments::Int8, "int8")] {
            if self.settings.moments != Moments::F32 {
                break;
            }
            let settings = Training { moments, ..self.settings.clone() };
            let less = add(
                format!("moments of the optimizer in {name}, rounded stochastically"),
                &format!("--moments {name}"),
                self.dims,
                &settings,
            );
            if less && moments == Moments::Int8 {
                all.1.moments = moments;
                all.2.push("--moments int8".into());
            }
        }
        if !self.settings.recompute {
            let settings = Training { recompute: true, ..self.settings.clone() };
            if add(
                "recomputation of what is cheap to compute".into(),
                "--recompute true",
                self.dims,
                &settings,
            ) {
                all.1.recompute = true;
                all.2.push("--recompute true".into());
            }
        }
        if let Some(batch) = self.batch() {
            let mut divisions: Vec<usize> = (2..batch).filter(|d| batch.is_multiple_of(*d)).take(3).collect();
            divisions.extend((batch > 1).then_some(batch));
            for parts in divisions {
                let size = batch / parts;
                let Ok(dims) = self.model.batch(self.dims.clone(), size) else { continue };
                let accumulate = self.settings.accumulate * parts as u32;
                let settings = Training { accumulate, ..self.settings.clone() };
                let options = format!("--batch {size} --accumulate {accumulate}");
                let what =
                    format!("{parts} micro-batches of {size} a step, the same gradients but for rounding");
                if add(what, &options, &dims, &settings) && parts == batch {
                    (all.0, all.1.accumulate) = (dims, accumulate);
                    all.2.push(options);
                }
            }
        }
        if let Some(room) = room.filter(|room| *room < now && self.settings.memory_budget.is_none()) {
            let budget = Training { memory_budget: Some(room), ..self.settings.clone() };
            let (dims, option) = (self.dims, format!("--memory-budget {}MiB", room >> 20));
            if let Ok(planned) = self.planned(dims, &budget) {
                let cost = planned.rematerialized().map_or(String::new(), |r| {
                    format!(", {:.1} % more operations", 100.0 * r.more_flops / r.flops)
                });
                let bytes = planned.memory().total();
                ways.push(Way {
                    what: format!("recomputation up to that budget{cost}"),
                    options: option,
                    bytes,
                });
            }
        }
        if all.2.len() > 1
            && let Ok(planned) = self.planned(&all.0, &all.1)
        {
            let bytes = planned.memory().total();
            ways.push(Way { what: "all of these together".into(), options: all.2.join(" "), bytes });
        }
        ways.sort_by_key(|w| w.bytes);
        ways
    }
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
