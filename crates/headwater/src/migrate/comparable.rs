//! Settings of a recorded curve and of a run, compared: two curves can only agree if both train the same
//! thing.

use crate::core::pass::precision::Level;
use crate::curve::recorded_training;
use crate::golden::{Curve, Golden};
use crate::model::Model;
use crate::report::text;
use crate::runtime::TrainConfig;
use crate::runtime::optim::{Decay, Group, Optimizer};
use crate::runtime::schedule::Shape;
use crate::runtime::trainer::Trainer;
use anyhow::Result;
use serde_json::Value;

/// Learning rates that differ by less, relative, are the same number computed in another order.
const SAME_RATE: f64 = 1e-9;

/// Everything in which a run differs from the recorded one over its first `steps` steps, in words. Nothing:
/// the curves must agree. The model must be bound as it was recorded, dropout included.
///
/// # Errors
/// If the golden's files cannot be read.
pub(super) fn differences(
    golden: &Golden,
    curve: &Curve,
    config: &TrainConfig,
    model: &Model,
    trainer: &Trainer,
    steps: usize,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    optimizer(golden, config, &mut found);
    let rates = curve.lr.iter().take(steps).enumerate();
    let apart = |a: f64, b: f64| (a - b).abs() > SAME_RATE * a.abs().max(b.abs());
    if let Some((i, &lr)) = rates.into_iter().find(|(i, lr)| apart(**lr, trainer.rate(*i as u64))) {
        let ours = text::number(trainer.rate(i as u64));
        found.push(format!("the learning rate of step {} is {} there, {ours} here", i + 1, text::number(lr)));
    }
    if let Some(weights) = &config.init.weights {
        found.push(format!(
            "the run begins with the archive's weights there, with {} here",
            weights.display()
        ));
    }
    if matches!(config.schedule, Shape::Plateau { .. }) {
        found.push("the learning rate follows the held-out data here (`plateau`)".into());
    }
    if config.data.augment.changes() {
        found.push("images are changed at random here (`data.augment`)".into());
    }
    if config.data.balance.is_some() || config.data.weights.is_some() {
        found.push("samples are drawn by weight here (`data.balance`, `data.weights`)".into());
    }
    if config.data.class_weights.is_some() {
        found.push("classes have weights in the loss here (`data.class_weights`)".into());
    }
    if !config.freeze.is_empty() {
        found.push("parameters are frozen by the settings here (`freeze`)".into());
    }
    let autocast = golden.autocast();
    let low = (config.amp.level != Level::O0).then(|| config.amp.level.to_string());
    if autocast.is_some() || low.is_some() {
        let (there, here) = (autocast.unwrap_or("full".into()), low.unwrap_or("full".into()));
        found.push(format!("the precision is {there} there, {here} here"));
    }
    batches(golden, curve, config, model, trainer, steps, &mut found)?;
    Ok(found)
}

/// The optimizer and the settings around it. The learning rate is compared step by step, not here.
fn optimizer(golden: &Golden, config: &TrainConfig, found: &mut Vec<String>) {
    let theirs = match recorded_training(golden) {
        Ok(t) => t,
        Err(_) => {
            let name = golden.json("optimizer").ok().and_then(|o| o["name"].as_str().map(str::to_string));
            let name = name.unwrap_or("not stated".into());
            found.push(format!(
                "the optimizer is {name} there, which Headwater has not; {} here",
                spelled(&config.optimizer)
            ));
            return;
        }
    };
    let rate_left_out = |o: &Optimizer| {
        let lr = ("lr".to_string(), serde_json::json!(0.0));
        o.with([lr]).unwrap_or_else(|_| o.clone())
    };
    if rate_left_out(&theirs.optimizer) != rate_left_out(&config.optimizer) {
        let (there, here) = (spelled(&theirs.optimizer), spelled(&config.optimizer));
        found.push(format!("the optimizer is {there} there, {here} here"));
    }
    let decays =
        theirs.optimizer.rule().weight_decay() != 0.0 || config.optimizer.rule().weight_decay() != 0.0;
    if decays && theirs.decay != config.decay {
        let word = |d: Decay| format!("{d:?}").to_lowercase();
        found.push(format!(
            "weight decay is for `{}` there, `{}` here",
            word(theirs.decay),
            word(config.decay)
        ));
    }
    for (what, there, here) in [
        ("clip_norm", theirs.clip.norm, config.clip_norm),
        ("clip_value", theirs.clip.value, config.clip_value),
    ] {
        if there != here {
            let word = |x: Option<f64>| x.map_or("none".to_string(), text::number);
            found.push(format!("{what} is {} there, {} here", word(there), word(here)));
        }
    }
    // A number is the same one in TOML and in JSON, with or without a point.
    let number = |v: &Value| v.as_f64().map_or(v.to_string(), |x| x.to_string());
    let settings = |g: &Group| g.settings.iter().map(|(k, v)| (k.clone(), number(v))).collect::<Vec<_>>();
    let all =
        |groups: &[Group]| groups.iter().map(|g| (g.parameters.clone(), settings(g))).collect::<Vec<_>>();
    if all(&theirs.groups) != all(&config.groups) {
        let word = |groups: &[Group]| match groups.len() {
            0 => "none".to_string(),
            _ => groups.iter().map(|g| format!("`{}`", g.parameters)).collect::<Vec<_>>().join(", "),
        };
        let (there, here) = (word(&theirs.groups), word(&config.groups));
        found.push(format!(
            "parameters with settings of their own (`groups`) are {there} there, {here} here, or their settings differ"
        ));
    }
    let (there, here) = (u64::from(theirs.accumulate), config.batches().per_step());
    if there != here {
        found.push(format!("a step averages the gradients of {there} batches there, of {here} here"));
    }
}

/// An optimizer's name and settings but for the learning rate.
fn spelled(o: &Optimizer) -> String {
    let Ok(serde_json::Value::Object(mut all)) = serde_json::to_value(o) else { return "unknown".into() };
    let name = all.remove("name").and_then(|n| n.as_str().map(str::to_string)).unwrap_or_default();
    all.remove("lr");
    let quiet = |v: &serde_json::Value| matches!(v, serde_json::Value::Bool(false) | serde_json::Value::Null);
    let settings: Vec<_> = all.iter().filter(|(_, v)| !quiet(v)).map(|(k, v)| format!("{k} {v}")).collect();
    if settings.is_empty() { name } else { format!("{name} ({})", settings.join(", ")) }
}

/// The samples of each step.
fn batches(
    golden: &Golden,
    curve: &Curve,
    config: &TrainConfig,
    model: &Model,
    trainer: &Trainer,
    steps: usize,
    found: &mut Vec<String>,
) -> Result<()> {
    if let Some(recorded) = golden.fact("data_sha256") {
        let file = &config.data.train;
        // Folders and patterns are never one recorded file.
        if !file.is_file() || crate::tensors::sha256(file)? != recorded {
            let name = golden.fact("data").unwrap_or("a data file");
            found.push(format!("the data was {name} there, {} here: their contents differ", file.display()));
            return Ok(());
        }
    }
    let Some(order) = &curve.order else {
        // Without an order the recorded run took the golden's own inputs in every step.
        let inputs = golden.inputs();
        let first = inputs.values().next().and_then(|t| t.shape().first().copied());
        let same = |batch: &crate::runtime::data::Batch| {
            model.program.inputs().iter().zip(&batch.inputs).all(|(i, bytes)| {
                inputs.get(&i.position).is_some_and(|t| t.cast(i.dtype).to_bytes() == *bytes)
            })
        };
        let mut batches = trainer.batches()?.take(steps.saturating_mul(config.batches().per_step() as usize));
        if !batches.all(|b| b.is_ok_and(|b| same(&b))) {
            let size = first.map_or(String::new(), |n| format!(" of {n} samples"));
            found.push(format!(
                "every step takes the golden's one batch{size} there, batches of {} here",
                config.data.train.display()
            ));
        }
        return Ok(());
    };
    let mut sampler = trainer.sampler();
    let batches = steps.saturating_mul(config.batches().per_step() as usize);
    for (i, theirs) in order.iter().take(batches).enumerate() {
        let ours = sampler.batch(i as u64).unwrap_or_default();
        if ours.len() != theirs.len() {
            found.push(format!("a batch has {} samples there, {} here", theirs.len(), ours.len()));
            break;
        }
        if !ours.iter().zip(theirs).all(|(a, b)| i64::from(*a) == *b) {
            found.push(format!("batch {} takes other samples there than here", i + 1));
            break;
        }
    }
    Ok(())
}
