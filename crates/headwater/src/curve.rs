//! A recorded training run followed step by step: the same batch, the same learning rates, our numbers.

use crate::core::device::Device;
use crate::golden::{Golden, by_own_name};
use crate::model::Model;
use crate::runtime::optim::{Clip, Decay, Group, Optimizer};
use crate::runtime::session::{Session, SessionModel, Training};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::sync::Arc;

/// Our losses beside PyTorch's.
#[derive(Clone, Debug, Serialize)]
pub struct Followed {
    /// Our loss of each step.
    pub ours: Vec<f64>,
    /// PyTorch's.
    pub theirs: Vec<f64>,
    /// Our gradient norm of each step.
    pub norms: Vec<f64>,
}

impl Followed {
    /// As [`worst`] over the first `n` steps.
    pub fn worst(&self, n: usize) -> (usize, f64) {
        worst(&self.ours, &self.theirs, n)
    }
}

/// Largest relative difference of two curves over the first `n` steps: the step (from 0) and the difference.
/// A NaN counts as infinite.
pub fn worst(ours: &[f64], theirs: &[f64], n: usize) -> (usize, f64) {
    let apart = ours.iter().zip(theirs).map(|(a, b)| ((a - b) / b).abs());
    let apart = apart.map(|d| if d.is_nan() { f64::INFINITY } else { d });
    apart.take(n).enumerate().fold((0, 0.0), |worst, (i, d)| if d > worst.1 { (i, d) } else { worst })
}

/// The training settings a golden was recorded with.
///
/// # Errors
/// If the golden does not state them in a form this version knows.
pub fn recorded_training(golden: &Golden) -> Result<Training> {
    let mut settings = by_own_name(golden.json("optimizer")?);
    let map = settings.as_object_mut().context("`optimizer` of the golden is no object")?;
    let mut take = |key: &str| map.remove(key).unwrap_or_default();
    let decay: Decay = match take("decay") {
        serde_json::Value::Null => Decay::All,
        v => serde_json::from_value(v).context("`decay` of the golden")?,
    };
    let groups: Vec<Group> = match take("groups") {
        serde_json::Value::Null => Vec::new(),
        v => serde_json::from_value(v).context("`groups` of the golden")?,
    };
    let accumulate = take("accumulate").as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(1).max(1);
    let clip = Clip { norm: take("clip_norm").as_f64(), value: take("clip_value").as_f64() };
    for key in ["schedule", "warmup", "end", "autocast", "total_steps", "min_lr"] {
        take(key);
    }
    let optimizer: Optimizer =
        serde_json::from_value(settings.clone()).context("the golden's optimizer is not known")?;
    Ok(Training { optimizer, groups, decay, clip, accumulate, ..Training::default() })
}

/// Trains on the golden's own inputs, the same batch in every step, for as many steps as it has recorded.
///
/// # Errors
/// If the golden has no curve, or was recorded on a data set (that is the trainer's work), or something
/// cannot run.
pub fn follow(model: &Model, golden: &Golden, device: Arc<dyn Device>) -> Result<Followed> {
    let curve = golden.curve()?.context("the golden has no recorded curve")?;
    ensure!(curve.order.is_none(), "the curve was recorded on a data set; `headwater migrate` follows it");
    let bound = model.bind_to(golden)?;
    let session_model = SessionModel { graph: &bound.graph, weights: &bound };
    let settings = recorded_training(golden)?;
    let accumulate = settings.accumulate;
    let mut session = Session::new(device, session_model, Some(settings))?;
    let program = session.program()?;
    let inputs = golden.inputs();
    let feeds = bound
        .user_inputs()
        .zip(&bound.positions)
        .map(|((name, ty), position)| {
            let t = inputs
                .get(position)
                .with_context(|| format!("the golden has no input.{position} for {name}"))?;
            Ok(t.cast(ty.dtype).to_bytes())
        })
        .collect::<Result<Vec<_>>>()?;
    let mut out = Followed { ours: vec![], theirs: curve.loss.clone(), norms: vec![] };
    for step in 0..curve.loss.len() {
        session.begin_step()?;
        let mut loss = 0.0;
        for _ in 0..accumulate {
            session.gradients(program, &feeds)?;
            loss += session.output(program, 0)?.to_f64()[0] / accumulate as f64;
        }
        out.ours.push(loss);
        out.norms.push(session.update(curve.lr[step])?.norm);
    }
    Ok(out)
}
