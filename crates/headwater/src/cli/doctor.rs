//! `headwater doctor`.

use super::{Outcome, Talk};
use crate::machine::Machine;
use crate::report::{Table, text};
use anyhow::Result;

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  headwater doctor\n  headwater doctor --json")]
pub struct Args {}

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
    Outcome::of(&m, true)
}
