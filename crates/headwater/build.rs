//! Tells the program the revision that it is built from: that of the repository, of an archive that git has
//! made of one, or the one in `HEADWATER_REVISION`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=revision.txt");
    println!("cargo::rerun-if-env-changed=HEADWATER_REVISION");
    // A debug build is not built anew for every commit, and so has no revision to name.
    if std::env::var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    // A package that was unpacked inside somebody else's repository is no revision of that one.
    let repository = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let head = || if repository { git(&["rev-parse", "--short=12", "HEAD"]) } else { None };
    let given = std::env::var("HEADWATER_REVISION").ok();
    if let Some(revision) = given.or_else(archived).or_else(head) {
        println!("cargo::rustc-env=HEADWATER_REVISION={revision}");
    }
    if !repository {
        return;
    }
    // `HEAD` changes with the branch, its log with every commit. Cargo would build anew each time for a file
    // that is absent.
    for name in ["HEAD", "logs/HEAD"] {
        match git(&["rev-parse", "--git-path", name]) {
            Some(path) if Path::new(&path).exists() => println!("cargo::rerun-if-changed={path}"),
            _ => {}
        }
    }
}

/// The revision that `git archive` has written into a file, as `export-subst` in `.gitattributes` asks it to.
fn archived() -> Option<String> {
    let text = std::fs::read_to_string("revision.txt").ok()?;
    let revision = text.trim();
    let known = revision.len() >= 12 && revision.chars().all(|c| c.is_ascii_hexdigit());
    known.then(|| revision[..12].to_string())
}

/// A line that git prints in this folder; `None` without git, without a repository, or for a failure.
fn git(args: &[&str]) -> Option<String> {
    let done = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(done.stdout).ok()?.trim().to_string())
}
