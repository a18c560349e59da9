//! `headwater bench`.

use super::{Outcome, Talk};
use crate::bench::machine::{self, Measured};
use crate::cpu::Cpu;
use crate::cpu::limits::Effort;
use anyhow::Result;

#[derive(clap::Args, Debug)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Every time is the median of single runs, beside the time that arithmetic and memory traffic would take at the machine's
measured limit: its share is 100 % where nothing could be faster.

Examples:
  headwater bench machine
  headwater bench machine --threads 1 --json"
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// What this machine can do: multiply-adds, copies, reads.
    Machine,
}

pub fn run(args: &Args, device: &Cpu, talk: Talk) -> Result<Outcome> {
    let limits = machine::measure(device, Effort::default())?;
    let measured = Measured::new(&limits);
    talk.table(&measured.table());
    match &args.what {
        What::Machine => Outcome::of(measured, true),
    }
}
