//! Compilers as child processes: in a folder of their own, with a limit to their time, their words in files.

use super::{CompileUnit, failed, file_name, write};
use crate::host::error::{Error, Result};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A compiler's version as it prints it; empty if it prints none within ten seconds.
pub(super) fn version(program: &Path) -> String {
    let Ok(folder) = TempDir::new() else { return String::new() };
    let arguments = ["--version".to_string()];
    match run(program, &arguments, folder.path(), Duration::from_secs(10)) {
        Ok((Some(status), log)) if status.success() => log,
        _ => String::new(),
    }
}

/// By the newer driver, which links too.
pub(super) fn drive(
    bisheng: &Path,
    unit: &CompileUnit,
    flags: &[String],
    limit: Duration,
) -> Result<Vec<u8>> {
    let folder = folder()?;
    let source = file_name(unit, "asc");
    write(&folder.path().join(&source), unit.source.as_bytes())?;
    let output = file_name(unit, "o");
    let arguments = [flags, &["-c".into(), source, "-o".into(), output.clone()]].concat();
    step(bisheng, &arguments, folder.path(), unit, limit)?;
    result(bisheng, unit, &folder.path().join(output))
}

/// By the older compiler and its linker.
pub(super) fn compile_and_link(
    ccec: &Path,
    linker: &Path,
    unit: &CompileUnit,
    flags: &[String],
    limit: Duration,
) -> Result<Vec<u8>> {
    let folder = folder()?;
    let source = file_name(unit, "cpp");
    write(&folder.path().join(&source), unit.source.as_bytes())?;
    let (object, output) = (file_name(unit, "o"), file_name(unit, "bin.o"));
    let arguments = [flags, &["-c".into(), source, "-o".into(), object.clone()]].concat();
    step(ccec, &arguments, folder.path(), unit, limit)?;
    let arguments = ["-m", "aicorelinux", "-Ttext=0", object.as_str(), "-static", "-o", output.as_str()];
    step(linker, &arguments.map(String::from), folder.path(), unit, limit)?;
    result(linker, unit, &folder.path().join(output))
}

fn folder() -> Result<TempDir> {
    TempDir::with_prefix("headwater-ascend-").map_err(Error::file(&std::env::temp_dir()))
}

fn result(program: &Path, unit: &CompileUnit, output: &Path) -> Result<Vec<u8>> {
    match std::fs::read(output) {
        Ok(bytes) if !bytes.is_empty() => Ok(bytes),
        _ => Err(failed(&program.display().to_string(), unit, "it wrote no output".into(), "")),
    }
}

fn step(
    program: &Path,
    arguments: &[String],
    folder: &Path,
    unit: &CompileUnit,
    limit: Duration,
) -> Result<()> {
    let (status, log) = run(program, arguments, folder, limit)?;
    let cause = match status {
        Some(status) if status.success() => return Ok(()),
        Some(status) => status.to_string(),
        None => format!("it ran for more than {limit:?} and was ended"),
    };
    Err(failed(&program.display().to_string(), unit, cause, &log))
}

/// Runs a program to its end or its limit, and gives what it said. No status: it was ended.
fn run(
    program: &Path,
    arguments: &[String],
    folder: &Path,
    limit: Duration,
) -> Result<(Option<ExitStatus>, String)> {
    // A file takes whatever is said; a pipe would have to be read meanwhile.
    let words = folder.join("log");
    let log = File::create(&words).map_err(Error::file(&words))?;
    let also = log.try_clone().map_err(Error::file(&words))?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(also)
        .spawn()
        .map_err(Error::file(program))?;
    let status = wait(&mut child, limit).map_err(Error::file(program))?;
    let said = std::fs::read(&words).unwrap_or_default();
    Ok((status, String::from_utf8_lossy(&said).into_owned()))
}

fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
