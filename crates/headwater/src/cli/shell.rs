//! `headwater completions` and `headwater man`: what shells and manuals know of the command line, made of its
//! definition.

use super::{Cli, Outcome, Printer, Status};
use anyhow::{Context, Result, ensure};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater completions bash > ~/.local/share/bash-completion/completions/headwater
  headwater completions zsh > ~/.zfunc/_headwater
  headwater completions fish > ~/.config/fish/completions/headwater.fish")]
pub struct CompletionsArgs {
    /// The shell: bash, zsh, fish, elvish or powershell.
    shell: Shell,
}

/// Prints a script that completes commands and options in a shell.
pub fn completions(args: &CompletionsArgs, printer: Printer) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "headwater", &mut script);
    let script = String::from_utf8(script)?;
    printer.text(&script);
    Outcome::of(json!({ "shell": args.shell.to_string(), "script": script }), Status::Done)
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater man > headwater.1
  headwater man --out ~/.local/share/man/man1

Without --out the page of the program is printed; man reads it by `man -l headwater.1`. With it, a page for each command is
written too: headwater-train.1 and so on.")]
pub struct ManArgs {
    /// Folder for the pages.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints the manual page of the program, or writes those of all commands.
pub fn man(args: &ManArgs, printer: Printer) -> Result<Outcome> {
    let mut command = Cli::command();
    command.build();
    let Some(out) = &args.out else {
        let page = String::from_utf8(page(command)?)?;
        printer.text(&page);
        return Outcome::of(json!({ "page": page }), Status::Done);
    };
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut files = Vec::new();
    write(command, out, &mut files)?;
    printer.line(format!("wrote {} pages to {}", files.len(), out.display()));
    Outcome::of(json!({ "files": files }), Status::Done)
}

/// Writes the pages of a command and of those below it.
fn write(command: Command, out: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for below in command.get_subcommands().filter(|c| c.get_name() != "help") {
        write(below.clone(), out, files)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = out.join(format!("{name}.1"));
    ensure!(!path.is_dir(), "{} is a folder", path.display());
    std::fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))?;
    files.push(path);
    Ok(())
}

fn page(command: Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}
