//! `docs/settings.md` is made from the settings' own documentation and defaults, and must be what the code
//! says. `HEADWATER_WRITE_DOCS=1 cargo test -p headwater --test it settings::` writes it anew.

use headwater::runtime::TrainConfig;
use headwater::runtime::optim::{Moment, Optimizer, Rule, Setting};
use headwater::runtime::schedule::Shape;
use headwater::runtime::score::Metric;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A field of a struct or a variant of an enum: its name as files spell it, its type in words, its
/// documentation.
struct Item {
    name: String,
    kind: String,
    doc: String,
    /// Fields of a variant.
    fields: Vec<Item>,
}

/// The public fields of a struct, or the variants of an enum, in a file of `crates/`.
fn items(file: &str, name: &str) -> (String, Vec<Item>) {
    let text = std::fs::read_to_string(root().join("crates").join(file)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let opens = |l: &&str| [" struct ", " enum "].iter().any(|k| l.contains(&format!("pub{k}{name} {{")));
    let begin = lines.iter().position(opens).unwrap_or_else(|| panic!("{file} has no {name}"));
    let mut above: Vec<&str> = Vec::new();
    for l in lines[..begin].iter().rev().take_while(|l| l.starts_with("///") || l.starts_with("#[")) {
        above.extend(l.strip_prefix("///").map(str::trim));
    }
    above.reverse();
    let rename = |n: &str| {
        let before = lines[..begin].iter().rev().take_while(|l| !l.is_empty());
        let snake = before.clone().any(|l| l.contains("rename_all = \"snake_case\""));
        let lower = before.clone().any(|l| l.contains("rename_all = \"lowercase\""));
        let mut out = String::new();
        for (i, c) in n.chars().enumerate() {
            if snake && i > 0 && c.is_uppercase() {
                out.push('_');
            }
            out.push(if snake || lower { c.to_ascii_lowercase() } else { c });
        }
        out
    };
    let (mut found, mut doc, mut skip): (Vec<Item>, Vec<&str>, bool) = (Vec::new(), Vec::new(), false);
    let mut inside = false;
    for l in lines[begin + 1..].iter().take_while(|l| **l != "}") {
        let t = l.trim();
        if let Some(d) = t.strip_prefix("///") {
            doc.push(d.trim());
            continue;
        }
        if t.starts_with("#[") {
            skip |= t.contains("serde(skip)");
            continue;
        }
        if t == "}," {
            inside = false;
            continue;
        }
        let text = std::mem::take(&mut doc).join(" ");
        let item = match t.strip_prefix("pub ").unwrap_or(t).trim_end_matches(',').split_once(": ") {
            Some((n, ty)) => Item { name: n.into(), kind: kind(ty), doc: text, fields: vec![] },
            None => {
                let variant: String = t.chars().take_while(|c| c.is_alphanumeric()).collect();
                if variant.is_empty() {
                    continue;
                }
                Item { name: rename(&variant), kind: String::new(), doc: text, fields: vec![] }
            }
        };
        let opened = t.ends_with('{');
        match inside {
            true => found.last_mut().unwrap().fields.push(item),
            false if !std::mem::take(&mut skip) => found.push(item),
            false => {}
        }
        inside |= opened;
    }
    (above.join(" "), found)
}

/// A type in words.
fn kind(ty: &str) -> String {
    let inner = ty.strip_prefix("Option<").map_or(ty, |t| t.trim_end_matches('>'));
    match inner {
        "u64" | "u32" | "usize" => "whole number".into(),
        "f64" => "number".into(),
        "bool" => "true or false".into(),
        "PathBuf" => "path".into(),
        "String" => "text".into(),
        "(f64, f64)" => "two numbers".into(),
        "Vec<u64>" => "whole numbers".into(),
        "Vec<String>" => "texts".into(),
        "Buckets" => "`\"auto\"` or whole numbers".into(),
        "ClassWeights" => "`\"balanced\"`, numbers, or a table of numbers".into(),
        "Bytes" => "size, as `\"8GiB\"`".into(),
        "DType" => "bf16 or f16".into(),
        t if t.starts_with("BTreeMap<String, String") => "table of texts".into(),
        t if t.starts_with("BTreeSet<String") => "texts".into(),
        _ => "see below".into(),
    }
}

/// Rows of a table of settings, `default` being their values by default.
fn rows(out: &mut String, items: &[Item], default: &Value, without: &[&str]) {
    out.push_str("| setting | value | default | meaning |\n|---|---|---|---|\n");
    for i in items.iter().filter(|i| !without.contains(&i.name.as_str())) {
        let value = match &default[&i.name] {
            Value::Null => "none".to_string(),
            Value::String(s) if s.is_empty() => "none".to_string(),
            Value::Object(o) if o.is_empty() => "none".to_string(),
            Value::Object(_) => "see below".to_string(),
            v => format!("`{v}`"),
        };
        let doc = i.doc.replace('|', "\\|");
        let _ = writeln!(out, "| `{}` | {} | {value} | {doc} |", i.name, i.kind);
    }
    out.push('\n');
}

fn page() -> String {
    let defaults = serde_json::to_value(TrainConfig::default()).unwrap();
    let mut out = String::from(
        "# Settings\n\n\
         [简体中文](zh-CN/settings.md)\n\n\
         Made from the code by `HEADWATER_WRITE_DOCS=1 cargo test -p headwater --test it settings::`, and checked against it by the same test.\n\n\
         `headwater train --config FILE` reads the settings of a training run from a TOML file. The same settings are under `[train]` in the\n\
         `migrate.toml` of a job, which `headwater migrate --new MODEL` writes; `train --config` takes that file too. Options of the command line win\n\
         over the file. Paths are relative to the file. A setting that is not known is refused.\n\n",
    );
    let (config, data) = ("runtime/src/config.rs", "runtime/src/data/settings.rs");
    let tables =
        ["optimizer", "groups", "amp", "data", "init", "ranks", "eval", "checkpoint", "log", "alert"];
    out.push_str("## A training run\n\nAt the top of `train.toml`, or under `[train]`. Either `steps` or `epochs` must be given, and `data.train`.\n\n");
    rows(&mut out, &items(config, "TrainConfig").1, &defaults, &tables);
    for (table, name) in [
        ("data", "DataConfig"),
        ("init", "InitConfig"),
        ("ranks", "RanksConfig"),
        ("eval", "EvalConfig"),
        ("checkpoint", "CheckpointConfig"),
        ("log", "LogConfig"),
        ("alert", "AlertConfig"),
    ] {
        let file = if table == "data" { data } else { config };
        let (doc, fields) = items(file, name);
        let _ = write!(out, "## `[{table}]`\n\n{doc}\n\n");
        rows(&mut out, &fields, &defaults[table], &["augment"]);
        if table == "data" {
            let (doc, fields) = items(data, "AugmentConfig");
            let _ = write!(out, "## `[data.augment]`\n\n{doc}\n\n");
            rows(&mut out, &fields, &defaults["data"]["augment"], &[]);
        }
    }
    out.push_str("## `[amp]`\n\nMixed precision; `docs/mixed-precision.md` explains the levels.\n\n");
    rows(&mut out, &items("runtime/src/amp.rs", "AmpConfig").1, &defaults["amp"], &["scaler"]);
    out.push_str(
        "## `[amp.scaler]`\n\nThe rule by which a loss scale that is `dynamic` or `predictive` changes.\n\n",
    );
    rows(&mut out, &items("runtime/src/scaler/mod.rs", "ScalerNumbers").1, &defaults["amp"]["scaler"], &[]);
    out.push_str("## `schedule`\n\nThe learning rate after the warm-up: a name, or a table with settings.\n\n    schedule = \"cosine\"\n    schedule = { name = \"step\", every = 1000, gamma = 0.1 }\n\n| name | meaning | settings |\n|---|---|---|\n");
    for shape in items("runtime/src/schedule.rs", "Shape").1 {
        let whole = complete(&shape);
        let settings: Vec<String> = shape
            .fields
            .iter()
            .map(|f| {
                let default = whole[&f.name].clone();
                let given =
                    if default.is_null() { "must be given".into() } else { format!("default {default}") };
                format!("`{}`: {} ({given})", f.name, f.doc.trim_end_matches('.'))
            })
            .collect();
        let settings = if settings.is_empty() { "none".into() } else { settings.join("; ") };
        let _ = writeln!(out, "| `{}` | {} | {settings} |", shape.name, shape.doc);
    }
    out.push('\n');
    for (setting, file, name) in [
        ("decay", "runtime/src/optim/groups.rs", "Decay"),
        ("data.last", "runtime/src/data/order.rs", "LastBatch"),
        ("eval.metric", "runtime/src/score/metric.rs", "Metric"),
        ("sparse_embeddings", "runtime/src/session/settings.rs", "Sparse"),
        ("moments", "runtime/src/session/settings.rs", "Moments"),
        ("nonfinite", config, "NonFinite"),
        ("ranks.engine", config, "EngineChoice"),
        ("ranks.reduce", config, "Reduce"),
        ("ranks.lane_log", config, "LaneLog"),
        ("amp.scaler.rule", "runtime/src/scaler/mod.rs", "Flavor"),
    ] {
        let (doc, variants) = items(file, name);
        let _ = write!(out, "## `{setting}`\n\n{doc}\n\n| value | meaning |\n|---|---|\n");
        for v in variants {
            let _ = writeln!(out, "| `{}` | {} |", v.name, v.doc);
        }
        out.push('\n');
    }
    out.push_str("## `[optimizer]`\n\n`name` says which; its other settings are those below. Defaults are those of `torch.optim` where it has the optimizer.\n\n");
    for optimizer in Optimizer::all() {
        let (key, rule) = (optimizer.key(), optimizer.rule());
        let _ = write!(out, "### `name = \"{key}\"`\n\n{} {}\n\n", rule.doc(), state(rule));
        let items: Vec<Item> = rule.settings().iter().map(setting).collect();
        rows(&mut out, &items, &serde_json::to_value(&optimizer).unwrap(), &[]);
    }
    let (doc, fields) = items("runtime/src/optim/groups.rs", "Group");
    let _ = write!(
        out,
        "## `[[groups]]`\n\n{doc} A parameter is of the first group that names it; `lr = 0` freezes.\n\n| setting | meaning |\n|---|---|\n"
    );
    for f in &fields {
        let name =
            if f.name == "settings" { "any of the optimizer's".into() } else { format!("`{}`", f.name) };
        let _ = writeln!(out, "| {name} | {} |", f.doc);
    }
    out.push_str("\n## `migrate.toml`\n\nBeside `[train]`, a job has:\n\n| setting | meaning |\n|---|---|\n");
    let job = "headwater/src/migrate/job.rs";
    for f in items(job, "Job").1.iter().filter(|f| ["export", "golden"].contains(&f.name.as_str())) {
        let _ = writeln!(out, "| `model.{}` | {} |", f.name, f.doc);
    }
    for metric in Metric::ALL {
        let limit = if metric.falls() { "Highest" } else { "Lowest" };
        let _ = writeln!(
            out,
            "| `accept.{}` | {limit} {} on the held-out samples. |",
            metric.name(),
            metric.word()
        );
    }
    out.push_str("| `[amp]` | The settings of `[amp]` above for the step that trains a second time; the level is O1 if none is named. |\n");
    out
}

/// A shape with all of its settings, those with a default filled in.
fn complete(shape: &Item) -> Value {
    // Settings without a default are found by their absence.
    let mut given = serde_json::Map::from_iter([("name".to_string(), Value::from(shape.name.clone()))]);
    let mut needed: Vec<String> = Vec::new();
    loop {
        match serde_json::from_value::<Shape>(Value::Object(given.clone())) {
            Ok(found) => {
                let mut whole = serde_json::to_value(found).unwrap();
                needed.iter().for_each(|n| whole[n] = Value::Null);
                return whole;
            }
            Err(e) => {
                let text = e.to_string();
                let missing = text.split('`').nth(1).unwrap_or_else(|| panic!("{text}")).to_string();
                assert!(text.contains("missing field") && !needed.contains(&missing), "{text}");
                let value =
                    if missing == "milestones" { serde_json::json!([1]) } else { serde_json::json!(1) };
                given.insert(missing.clone(), value);
                needed.push(missing);
            }
        }
    }
}

/// A row of an optimizer's table.
fn setting(s: &Setting) -> Item {
    let kind = s.range.map_or_else(|| kind(s.ty), |range| format!("{} in {range}", kind(s.ty)));
    Item { name: s.name.into(), kind, doc: s.doc.into(), fields: vec![] }
}

/// A sentence on an optimizer's state and another on what it steps by itself.
fn state(rule: &dyn Rule) -> String {
    let moments: Vec<Moment> = rule.moments().into_iter().flatten().collect();
    let name =
        |m: &Moment| format!("`{}`{}", m.name, if m.single { " (a number for each parameter)" } else { "" });
    let names: Vec<String> = moments.iter().map(name).collect();
    let kept = if names.is_empty() { "nothing".to_string() } else { names.join(" and ") };
    let by_element = match rule.by_element() {
        true => "It steps each element by itself.",
        false => "It does not step each element by itself.",
    };
    format!("By default it keeps {kept}. {by_element}")
}

#[test]
fn the_page_is_what_the_code_says() {
    let (file, page) = (root().join("docs/settings.md"), page());
    if std::env::var_os("HEADWATER_WRITE_DOCS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = written.lines().zip(page.lines()).find(|(a, b)| a != b);
    assert!(
        written == page,
        "docs/settings.md is not what the code says; HEADWATER_WRITE_DOCS=1 writes it anew. First difference: {differs:?}"
    );
}

#[test]
fn every_setting_is_on_the_page() {
    let page = page();
    let mut missing = Vec::new();
    let mut look = |at: &str, value: &Value| {
        for key in value.as_object().unwrap().keys() {
            let shown = page.contains(&format!("| `{key}` |")) || page.contains(&format!("`[{key}]`"));
            let tables = ["groups", "name", "scaler", "augment"];
            if !shown && !tables.contains(&key.as_str()) {
                missing.push(format!("{at}{key}"));
            }
        }
    };
    let defaults = serde_json::to_value(TrainConfig::default()).unwrap();
    look("", &defaults);
    for table in ["data", "init", "eval", "checkpoint", "log", "alert", "amp"] {
        look(&format!("{table}."), &defaults[table]);
    }
    look("data.augment.", &defaults["data"]["augment"]);
    for optimizer in Optimizer::all() {
        look(&format!("{}.", optimizer.name()), &serde_json::to_value(&optimizer).unwrap());
    }
    assert!(missing.is_empty(), "{missing:?}");
    assert!(!page.contains("|  |"), "a setting has no documentation");
}
