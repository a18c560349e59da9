//! An inspection as tables, for the terminal and for reports.

use super::{BucketUse, Inspection, ModuleTypeUse, StepsUse};
use crate::report::{Table, text};

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The inspection as tables.
pub fn tables(i: &Inspection, device: &str) -> Vec<Table> {
    let mut facts = Table::new("Model", &["what", "found"]);
    for (name, ty) in &i.inputs {
        facts.row([format!("input {name}"), ty.clone()]);
    }
    for (name, size) in &i.sizes {
        let place = i.places.get(name).map_or(String::new(), |p| format!(" ({p})"));
        facts.row([format!("size {name}{place}"), size.to_string()]);
    }
    facts.row([
        "parameters".into(),
        format!("{} in {} tensors", text::count(i.parameters.0 as f64), i.tensors.0),
    ]);
    facts.row([
        "trained".into(),
        format!("{} in {} tensors", text::count(i.parameters.1 as f64), i.tensors.1),
    ]);
    facts.row(["training step".into(), format!("{}FLOP", text::count(i.flops()))]);
    let memory = memory(i);
    let mut ops = Table::new(
        "Operators",
        &["operator", ">forward", ">backward", ">FLOP", ">bytes", &format!("on {device}")],
    );
    for o in &i.operators {
        ops.row([
            o.name.clone(),
            o.forward.to_string(),
            o.backward.to_string(),
            text::count(o.flops),
            text::bytes(o.bytes as usize),
            shown(&o.support, device),
        ]);
    }
    let modules = modules(i);
    let types = types(&i.module_types);
    let peak = peak(i);
    let recomputed = i.recomputed.as_ref().map(|r| {
        let mut t = Table::new("Recomputation for the memory budget", &["what", ">predicted"]);
        t.row(["memory without".into(), text::bytes(r.before)]);
        t.row(["memory".into(), text::bytes(r.after)]);
        t.row(["results computed a second time".into(), r.results.to_string()]);
        t.row(["operations added".into(), percent(r.more_operations)]);
        t.row(["time added, by nominal rates".into(), percent(r.more_time)]);
        t
    });
    let steps = steps(i, device);
    let buckets = buckets(&i.buckets);
    [facts, memory]
        .into_iter()
        .chain(recomputed)
        .chain(buckets)
        .chain([ops])
        .chain(steps)
        .chain(vendor(i, device))
        .chain(step_time(i, device))
        .chain([modules])
        .chain(types)
        .chain([peak])
        .collect()
}

/// The support of an operator: the reference interpreter of a device that has a host is on that host.
fn shown(support: &str, device: &str) -> String {
    match support {
        "reference" if !["cpu", "reference"].iter().any(|own| device.starts_with(own)) => {
            "on the host".into()
        }
        other => other.into(),
    }
}

/// Modules, with the predicted time of their kernels if the device predicts it.
fn modules(i: &Inspection) -> Table {
    let columns = ["module", ">parameters", ">FLOP", ">held at the peak", ">kernels, predicted"];
    let timed = i.modules.iter().any(|u| u.kernels.is_some());
    let mut modules = Table::new("Modules", &columns[..if timed { 5 } else { 4 }]);
    for u in &i.modules {
        let (parameters, flops) = (text::count(u.parameters as f64), text::count(u.flops));
        let row = [u.path.clone(), parameters, flops, text::bytes(u.peak)];
        match (timed, row) {
            (true, [a, b, c, d]) => modules.row([a, b, c, d, u.kernels.map_or("—".into(), text::seconds)]),
            (false, row) => modules.row(row),
        }
    }
    modules
}

/// Steps by type of module, if modules are known.
fn types(types: &[ModuleTypeUse]) -> Option<Table> {
    let columns = ["type", ">modules", ">steps of one", ">launches", ">steps of all", ">launches"];
    let mut table = Table::new("Steps by type of module, forward and backward", &columns);
    for t in types {
        let counts = [t.modules, t.one.0, t.one.1, t.all.0, t.all.1].map(|n| n.to_string());
        let [modules, one, launches, all, launched] = counts;
        table.row([t.class.clone(), modules, one, launches, all, launched]);
    }
    (!types.is_empty()).then_some(table)
}

/// Memory by kind.
pub fn memory(i: &Inspection) -> Table {
    let title = match &i.optimizer {
        Some(optimizer) => format!("Memory of a training step with {optimizer}"),
        None => "Memory of the forward pass".to_string(),
    };
    let mut memory = Table::new(&title, &["kind", ">bytes"]);
    for (kind, bytes) in i.memory.kinds().into_iter().chain([("all", i.memory.total())]) {
        memory.row([kind.into(), text::bytes(bytes)]);
    }
    if let Some(bytes) = i.vendor_workspace {
        memory.row(["beside it, workspace of the vendor's operators".into(), text::bytes(bytes)]);
    }
    if let Some(has) = i.device_memory {
        let need = i.memory.total() + i.vendor_workspace.unwrap_or(0);
        let fits = if need <= has { "it fits" } else { "it does NOT fit" };
        memory.row([format!("memory of the chip: {fits}"), text::bytes(has)]);
    }
    memory
}

/// The largest values at the fullest moment of the plan.
pub fn peak(i: &Inspection) -> Table {
    let title =
        format!("Largest in memory at the fullest moment, step {} of {} of the plan", i.peak.0, i.live.len());
    let mut peak = Table::new(&title, &[">bytes", "made by", "in the model", ">from step", ">to step"]);
    for v in &i.peak.1 {
        let op = if v.workspace { format!("workspace of {}", v.op) } else { v.op.clone() };
        let (first, last) = (v.steps.0.to_string(), v.steps.1.to_string());
        peak.row([text::bytes(v.bytes), op, v.place.clone(), first, last]);
    }
    peak
}

/// Buckets of gradients, if there are any.
pub fn buckets(buckets: &[BucketUse]) -> Option<Table> {
    let mut table = Table::new("Buckets of gradients", &["bucket", ">bytes", ">complete after step", ">of"]);
    for b in buckets {
        table.row([b.name.clone(), text::bytes(b.bytes), b.complete.to_string(), b.steps.to_string()]);
    }
    (!buckets.is_empty()).then_some(table)
}

/// The way steps run, where the device says more than that all are its own.
fn steps(i: &Inspection, device: &str) -> Option<Table> {
    let told = |s: &StepsUse| !s.host.is_empty() || !s.vendor.is_empty() || s.predicted.is_some();
    if !i.steps.iter().any(told) {
        return None;
    }
    let mut table = Table::new(
        &format!("Steps on {device}{}", remark(i)),
        &[
            "operator",
            ">steps",
            ">kernels",
            ">kernels alone, predicted",
            ">with 20 µs a launch",
            ">replayed (assumed: 20 µs a recording)",
            "busy, share of the kernels' time",
            ">on the host",
            "because",
        ],
    );
    let mut total = StepsUse { name: "all".into(), ..StepsUse::default() };
    for s in &i.steps {
        total.steps += s.steps;
        total.launches += s.launches;
        s.host.values().for_each(|n| *total.host.entry(String::new()).or_default() += n);
        for (sum, time) in [
            (&mut total.predicted, s.predicted),
            (&mut total.replayed, s.replayed),
            (&mut total.kernels, s.kernels),
        ] {
            *sum = time.map(|t| t + sum.unwrap_or(0.0)).or(*sum);
        }
        s.busy.iter().for_each(|(unit, t)| *total.busy.entry(unit).or_default() += t);
    }
    let time = |t: Option<f64>| t.map_or("—".into(), text::seconds);
    for s in i.steps.iter().chain([&total]) {
        let reasons: Vec<&str> = s.host.keys().map(String::as_str).collect();
        table.row([
            s.name.clone(),
            s.steps.to_string(),
            s.launches.to_string(),
            time(s.kernels),
            time(s.predicted),
            time(s.replayed),
            busy(s),
            s.host.values().sum::<usize>().to_string(),
            reasons.join("; "),
        ]);
    }
    Some(table)
}

/// Steps by operators of the vendor's library, if they are requested, and the reasons for the others.
fn vendor(i: &Inspection, device: &str) -> Option<Table> {
    let mut table = Table::new(
        &format!("Operators of the vendor's library on {device}"),
        &["operator", ">steps", "computed by", "because"],
    );
    let mut any = false;
    for s in &i.steps {
        for (function, steps) in &s.vendor {
            any = true;
            table.row([s.name.clone(), steps.to_string(), function.clone(), "they are asked for".into()]);
        }
        for (why, steps) in &s.not_vendor {
            any = true;
            table.row([s.name.clone(), steps.to_string(), "Headwater's own kernels".into(), why.clone()]);
        }
    }
    any.then_some(table)
}

/// Units that are busy for at least a hundredth of the kernels' time, the busiest first.
fn busy(s: &StepsUse) -> String {
    let all = s.kernels.unwrap_or(0.0).max(f64::MIN_POSITIVE);
    let mut units: Vec<(&str, f64)> = s.busy.iter().map(|(unit, t)| (*unit, 100.0 * t / all)).collect();
    units.retain(|(_, share)| *share >= 1.0);
    units.sort_by(|a, b| b.1.total_cmp(&a.1));
    let units: Vec<String> = units.iter().map(|(unit, share)| format!("{unit} {share:.0} %")).collect();
    units.join(", ")
}

/// Predicted time of a step.
fn step_time(i: &Inspection, device: &str) -> Option<Table> {
    let time = i.predicted.as_ref()?;
    let mut table = Table::new(&format!("Step on {device}{}", remark(i)), &["what", ">predicted"]);
    table.row(["kernels alone".into(), text::seconds(time.kernels)]);
    table.row(["launching them, 20 µs each".into(), text::seconds(time.launching)]);
    table.row(["step, launched while kernels run".into(), text::seconds(time.seconds)]);
    table.row(["step, its launches replayed (assumed)".into(), text::seconds(time.replayed)]);
    if time.vendor == 0 {
        let rate = text::count(i.flops() / time.seconds);
        table.row(["operations a second".into(), format!("{rate}FLOP/s")]);
    }
    table.row(["memory busy, L2 warm from the same launch before".into(), text::seconds(time.memory)]);
    let bytes = text::bytes(time.operand_bytes as usize);
    table
        .row(["operands of all steps, once each, of which L2 may not hold what it holds here".into(), bytes]);
    if time.host > 0 {
        table.row(["steps on the host, not counted".into(), time.host.to_string()]);
    }
    if time.vendor > 0 {
        table.row(["steps by the vendor's operators, not counted".into(), time.vendor.to_string()]);
    }
    Some(table)
}

/// A remark of the device's, in brackets.
fn remark(i: &Inspection) -> String {
    i.remark.as_deref().map_or(String::new(), |r| format!(" ({r})"))
}
