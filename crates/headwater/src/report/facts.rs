//! The facts that make a report a record: when, by which command and version, on which files, with which
//! settings.

use super::{Table, text};
use crate::core::device::Device;
use crate::machine::Machine;
use crate::runtime::TrainConfig;
use crate::tensors::{sha256, sha256_of};
use serde_json::Value;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// The version, and the revision it was built from where the build knew one.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let revision = option_env!("HEADWATER_REVISION").map_or(String::new(), |r| format!(", revision {r}"));
        format!("{}{revision}", env!("CARGO_PKG_VERSION"))
    });
    &VERSION
}

/// Device, processor, threads and memory.
pub fn machine(device: &dyn Device, m: &Machine) -> Vec<(String, String)> {
    let remark = device.remark().map_or(String::new(), |remark| format!(" ({remark})"));
    vec![
        ("device".to_string(), format!("{}{remark}", device.name())),
        ("processor".to_string(), m.processor.clone()),
        ("threads".to_string(), m.threads.to_string()),
        ("memory".to_string(), m.memory.map_or("unknown".to_string(), text::bytes)),
    ]
}

/// Date, command and version.
pub fn run() -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_string(), value);
    vec![fact("date", now()), fact("command", command()), fact("headwater", version().into())]
}

/// The name of the fact that has PyTorch's version of the exported model.
pub const PYTORCH: &str = "PyTorch of the export";

/// Bytes of a folder whose files' contents are hashed; of a larger one, their sizes are.
const FOLDER: u64 = 4 << 30;

/// A file and its SHA-256; one that cannot be read says so. That of a folder is of a line for each of its
/// files, sorted.
pub fn file(what: &str, path: &Path) -> (String, String) {
    if path.is_dir() {
        let hash = folder(path, FOLDER).unwrap_or_else(|e| format!("hash unknown: {e:#}"));
        return (what.to_string(), format!("{} · {hash}", path.display()));
    }
    // A pattern is hashed as its files' hashes, in the order of their names.
    let files = crate::runtime::data::files(path).unwrap_or_else(|_| vec![path.to_owned()]);
    if files.len() > 1 || files.first().is_some_and(|f| f != path) {
        let hashes = files.iter().map(|f| sha256(f)).collect::<anyhow::Result<Vec<_>>>();
        let hash =
            hashes.map(|h| sha256_of(h.concat().as_bytes())).unwrap_or_else(|e| format!("unknown: {e:#}"));
        return (
            what.to_string(),
            format!("{} · {} files · SHA-256 of theirs {hash}", path.display(), files.len()),
        );
    }
    let hash = sha256(path).unwrap_or_else(|e| format!("unknown: {e:#}"));
    (what.to_string(), format!("{} · SHA-256 {hash}", path.display()))
}

/// The hash of a folder: of a line "hash  name" for each file below it, as `sha256sum` prints them, sorted by
/// name. If it has more than `most` bytes, sizes replace hashes.
fn folder(path: &Path, most: u64) -> anyhow::Result<String> {
    let mut files: Vec<(String, std::path::PathBuf, u64)> = Vec::new();
    let mut open = vec![path.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let file = entry.path();
            // Links to folders could lead in circles; what they name is followed as a file alone.
            if entry.file_type()?.is_dir() {
                open.push(file);
                continue;
            }
            let name = file.strip_prefix(path).unwrap_or(&file).to_string_lossy().into_owned();
            let bytes = std::fs::metadata(&file)?.len();
            files.push((name, file, bytes));
        }
    }
    files.sort();
    let total = files.iter().fold(0u64, |sum, f| sum.saturating_add(f.2));
    let whole = total <= most;
    let mut lines = String::new();
    for (name, file, bytes) in &files {
        let of = if whole && file.is_file() { sha256(file)? } else { bytes.to_string() };
        lines += &format!("{of}  {name}\n");
    }
    let hash = sha256_of(lines.as_bytes());
    let what = if whole { "names and contents" } else { "names and sizes, not of contents" };
    Ok(format!("{} files, {total} bytes · SHA-256 of their {what} {hash}", files.len()))
}

/// All settings of a run that are given, or have a default, by the names that files use.
pub fn settings(config: &TrainConfig) -> Table {
    let mut table = Table::new("Settings of the run", &["setting", "value"]);
    for (name, value) in named(&serde_json::to_value(config).unwrap_or_default()) {
        table.row([name, value]);
    }
    table
}

/// The settings of a JSON object as texts by names such as `optimizer.lr`; those that are `null` are left
/// out.
pub fn named(settings: &Value) -> Vec<(String, String)> {
    fn walk(at: &str, value: &Value, found: &mut Vec<(String, String)>) {
        match value {
            Value::Null => {}
            Value::Object(fields) => {
                for (name, value) in fields {
                    let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                    walk(&at, value, found);
                }
            }
            Value::String(text) => found.push((at.to_string(), text.clone())),
            other => found.push((at.to_string(), other.to_string())),
        }
    }
    let mut found = Vec::new();
    walk("", settings, &mut found);
    found
}

/// The time in UTC, as RFC 3339 has it.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    utc(seconds)
}

/// Seconds since 1970 as a date, in the proleptic Gregorian calendar.
fn utc(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    // 400 years have 146,097 days, whichever they are.
    let (mut year, mut month) = (1970 + days / 146_097 * 400, 1);
    days %= 146_097;
    while days >= 365 + leap(year) as u64 {
        days -= 365 + leap(year) as u64;
        year += 1;
    }
    for length in [31, 28 + leap(year) as u64, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

/// The command line, with words quoted that a shell would split.
fn command() -> String {
    let quoted = |w: std::ffi::OsString| text::word(&w.to_string_lossy());
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default().to_os_string();
    std::iter::once(name).chain(words).map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_the_revision_it_was_built_from() {
        let version = version();
        let (number, revision) = version.split_once(", revision ").unwrap_or((version, "abcdef012345"));
        assert_eq!(number, env!("CARGO_PKG_VERSION"));
        assert!(revision.len() >= 12 && revision.chars().all(|c| c.is_ascii_hexdigit()), "{version}");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        // As `date -u -d @N` prints them.
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (978_307_199, "2000-12-31T23:59:59Z"),
            (1_764_028_800, "2025-11-25T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), date);
        }
    }

    #[test]
    fn a_folder_is_hashed_by_names_and_contents() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("b")).unwrap();
        std::fs::write(dir.path().join("b/x"), "one").unwrap();
        std::fs::write(dir.path().join("a"), "two").unwrap();
        let hash = |most| folder(dir.path(), most).unwrap();
        // `printf two | sha256sum`, `printf one | sha256sum`, and `sha256sum` of these two lines.
        let lines = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3  a\n\
                     7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed  b/x\n";
        assert_eq!(
            hash(6),
            format!("2 files, 6 bytes · SHA-256 of their names and contents {}", sha256_of(lines.as_bytes()))
        );
        let sizes = hash(5);
        assert!(sizes.contains("names and sizes"), "{sizes}");
        let before = hash(6);
        std::fs::write(dir.path().join("b/x"), "One").unwrap();
        assert_ne!(hash(6), before);
        assert_eq!(hash(5), sizes);
    }

    #[test]
    fn settings_are_listed_by_their_names() {
        let rows = settings(&TrainConfig::default()).rows;
        let value = |name: &str| rows.iter().find(|r| r[0] == name).map(|r| r[1].as_str());
        assert_eq!((value("optimizer.name"), value("optimizer.lr")), (Some("adamw"), Some("0.001")));
        assert_eq!((value("schedule"), value("clip_norm")), (Some("constant"), None));
    }
}
