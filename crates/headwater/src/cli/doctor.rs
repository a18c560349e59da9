//! `headwater doctor`.

use super::{Outcome, Talk};
use crate::machine::Machine;
use crate::report::{Table, text};
use anyhow::Result;
use headwater_ascend::host::{Installation, Options, Settings, Survey};
use serde::Serialize;

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  headwater doctor\n  headwater doctor --json")]
pub struct Args {}

/// What was found.
#[derive(Serialize)]
struct Findings {
    #[serde(flatten)]
    machine: Machine,
    /// Absent where there is nothing of Ascend.
    ascend: Option<Survey>,
}

pub fn run(_: &Args, talk: Talk) -> Result<Outcome> {
    let m = Machine::detect();
    let mut t = Table::new("Machine", &["what", "found"]);
    let known = |b: Option<usize>| b.map_or("unknown".to_string(), text::bytes);
    t.row(["processor".into(), format!("{} ({})", m.processor, m.architecture)]);
    t.row([
        "vector instructions".into(),
        if m.features.is_empty() { "none known".into() } else { m.features.join(" ") },
    ]);
    t.row(["threads".into(), m.threads.to_string()]);
    t.row(["memory".into(), format!("{}, {} available", known(m.memory), known(m.available))]);
    t.row(["system".into(), m.system.clone()]);
    talk.table(&t);
    let mut t = Table::new("Devices", &["device", "library", "found"]);
    t.row(["cpu".into(), "(none needed)".into(), "ready".into()]);
    for l in &m.libraries {
        let at = l.path.as_ref().map_or("not found".to_string(), |p| p.display().to_string());
        t.row([l.device.into(), l.library.into(), at]);
    }
    talk.table(&t);
    let ascend = Survey::of(&Installation::find(), Settings::from_env()?, Options::from_env());
    let ascend = Some(ascend).filter(|s| !s.is_empty());
    if let Some(survey) = &ascend {
        show_ascend(survey, talk);
    }
    Outcome::of(&Findings { machine: m, ascend }, true)
}

/// Tables of an Ascend installation: versions, devices, and what is missing.
fn show_ascend(survey: &Survey, talk: Talk) {
    let stated = |text: &Option<String>| text.clone().unwrap_or_else(|| "not found".into());
    let path = |path: &Option<std::path::PathBuf>| stated(&path.as_ref().map(|p| p.display().to_string()));
    let operators = match survey.operators.is_empty() {
        true => "not found".into(),
        false => format!("{} ({})", survey.operators.join(", "), stated(&survey.operators_version)),
    };
    let mut t = Table::new("Ascend", &["what", "found"]);
    t.row(["driver".into(), stated(&survey.driver)]);
    t.row(["firmware".into(), stated(&survey.firmware)]);
    t.row(["CANN".into(), format!("{} in {}", stated(&survey.toolkit), path(&survey.home))]);
    t.row(["runtime".into(), path(&survey.library)]);
    t.row(["launch".into(), stated(&survey.launches.first().map(|f| f.to_string()))]);
    t.row(["compiler for A2, A3".into(), stated(&survey.compiler_a2)]);
    t.row(["compiler for 310P".into(), stated(&survey.compiler_310p)]);
    t.row(["vendor's operators".into(), operators]);
    for d in &survey.devices {
        let cores = d.cores.map_or(String::new(), |(v, c)| format!(", {c} cube and {v} vector cores"));
        let memory = format!("{} of {} free", text::bytes(d.free), text::bytes(d.total));
        t.row([d.name.clone(), format!("{}, {memory}{cores}", d.chip)]);
    }
    talk.table(&t);
    if !survey.missing.is_empty() {
        let mut t = Table::new("Missing for Ascend", &["what", "needed for", "to do"]);
        for m in &survey.missing {
            t.row([m.what.clone(), m.needed_for.clone(), m.advice.clone()]);
        }
        talk.table(&t);
    }
}
