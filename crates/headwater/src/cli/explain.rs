//! `headwater explain`: the entry of an error code in the page of error codes, which is part of the binary.

use super::{Outcome, Printer};
use anyhow::{Result, bail};

/// The page of error codes; one `## CODE Title` heading for each code.
const PAGE: &str = include_str!("../../../../docs/errors.md");

/// Arguments of `explain`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater explain HW-I015     operators that are not supported, and the ways out
  headwater explain R005        the prefix may be left out
  headwater explain             all codes")]
pub(crate) struct Args {
    /// An error code, such as HW-C007 (default: list all codes).
    code: Option<String>,
}

pub(crate) fn run(args: &Args, printer: Printer) -> Result<Outcome> {
    let Some(code) = &args.code else {
        let mut codes = serde_json::Map::new();
        for (code, title, _) in entries() {
            printer.line(format!("{code}  {title}"));
            codes.insert(code.into(), title.into());
        }
        return Outcome::of(codes, true);
    };
    let wanted = code.trim().to_uppercase();
    let wanted = if wanted.starts_with("HW-") { wanted } else { format!("HW-{wanted}") };
    let Some((code, title, text)) = entries().find(|(code, ..)| *code == wanted) else {
        bail!("there is no error code {wanted:?}; `headwater explain` lists all of them");
    };
    printer.line(format!("{code}  {title}\n\n{text}"));
    Outcome::of(serde_json::json!({ "code": code, "title": title, "text": text }), true)
}

/// Code, title and text of each entry, in the page's order.
fn entries() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    PAGE.split("\n## ").skip(1).map(|entry| {
        let (heading, text) = entry.split_once('\n').unwrap_or((entry, ""));
        let (code, title) = heading.split_once(' ').unwrap_or((heading, ""));
        (code, title, text.trim())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Codes such as `HW-C001` in a text.
    fn codes(text: &str, found: &mut BTreeSet<String>) {
        for (at, _) in text.match_indices("HW-") {
            let code = text[at..].get(..7).unwrap_or("");
            let (kind, number) = (code.as_bytes().get(3), code.get(4..).unwrap_or(""));
            if kind.is_some_and(u8::is_ascii_uppercase) && number.bytes().all(|b| b.is_ascii_digit()) {
                found.insert(code.into());
            }
        }
    }

    fn walk(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("explain.rs") {
                codes(&std::fs::read_to_string(path).unwrap(), found);
            }
        }
    }

    #[test]
    fn every_code_in_the_sources_has_an_entry_and_every_entry_a_code() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut used = BTreeSet::new();
        for entry in std::fs::read_dir(crates).unwrap() {
            let sources = entry.unwrap().path().join("src");
            if sources.is_dir() {
                walk(&sources, &mut used);
            }
        }
        let explained: BTreeSet<String> = super::entries().map(|(code, ..)| code.to_owned()).collect();
        assert_eq!(used, explained, "docs/errors.md and the error types disagree");
        assert!(super::entries().all(|(_, title, text)| !title.is_empty() && text.len() > 20));
    }
}
