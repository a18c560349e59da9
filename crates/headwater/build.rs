//! Tells the program the revision that it is built from, where there is a repository and git.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A debug build is not built anew for every commit, and so has no revision to name.
    if std::env::var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    // A package that was unpacked inside somebody else's repository is no revision of that one.
    if git(&["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return;
    }
    if let Some(revision) = git(&["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo::rustc-env=HEADWATER_REVISION={revision}");
    }
    // `HEAD` changes with the branch, its log with every commit. Cargo would build anew each time for a file that is absent.
    for name in ["HEAD", "logs/HEAD"] {
        match git(&["rev-parse", "--git-path", name]) {
            Some(path) if Path::new(&path).exists() => println!("cargo::rerun-if-changed={path}"),
            _ => {}
        }
    }
}

/// A line that git prints in this folder; `None` without git, without a repository, or for a failure.
fn git(args: &[&str]) -> Option<String> {
    let done = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(done.stdout).ok()?.trim().to_string())
}
