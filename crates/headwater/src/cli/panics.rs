//! A panic is a bug of Headwater's: said so, with what a report of it needs. Panics of decoders at damaged
//! files are caught where they happen and never come here.

use super::console::{print, say};
use crate::report::facts;
use std::backtrace::Backtrace;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::sync::Mutex;

/// Exit status of a program that panicked, as Rust's own.
pub(super) const STATUS: u8 = 101;

/// Error code of a panic.
const CODE: &str = "HW-P001";

/// The message of the first panic.
static SAID: Mutex<Option<String>> = Mutex::new(None);

/// Lets a panic end in a message with version, command and place.
pub(super) fn explain() {
    set_hook(Box::new(|info| {
        let text = message(info);
        say(format!("error: {text}\n\nStack, for the report:\n{}", Backtrace::force_capture()));
        if let Ok(mut said) = SAID.lock() {
            said.get_or_insert(text);
        }
    }));
}

/// The status of `work`; of one that panics, [`STATUS`], after its message as JSON under `--json`.
pub(super) fn guarded(json: bool, work: impl FnOnce() -> u8) -> u8 {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        if json {
            let said = SAID.lock().ok().and_then(|mut said| said.take());
            print(&as_json(&said.unwrap_or_else(|| format!("{CODE}: this is a bug of Headwater"))));
        }
        STATUS
    })
}

fn as_json(text: &str) -> String {
    serde_json::json!({ "error": text, "code": CODE }).to_string()
}

/// The message for people.
fn message(info: &PanicHookInfo) -> String {
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().map(|s| s.to_string());
    let what = what.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    let place =
        info.location().map_or("an unknown place".to_string(), |l| format!("{}:{}", l.file(), l.line()));
    let facts = facts::run();
    let of = |name: &str| facts.iter().find(|f| f.0 == name).map_or("unknown", |f| f.1.as_str());
    format!(
        "{CODE}: this is a bug of Headwater, and not of your files: `{what}` at {place}. Please report it with this whole message, \
         and with the model or the file that it happened at, if you may give it away. Version {}, {} {}; command: {}",
        of("headwater"),
        std::env::consts::OS,
        std::env::consts::ARCH,
        of("command")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_message_and_a_status() {
        // The hook of the test's own process is put back: other tests panic too.
        let before = std::panic::take_hook();
        explain();
        let status = guarded(false, || panic!("no entry {}", 7));
        std::panic::set_hook(before);
        assert_eq!(status, STATUS);
        let said = SAID.lock().unwrap().take().unwrap();
        for part in ["HW-P001: this is a bug", "`no entry 7` at", "panics.rs:", "Version 0.", "command: "] {
            assert!(said.contains(part), "{said}");
        }
        let json: serde_json::Value = serde_json::from_str(&as_json(&said)).unwrap();
        assert_eq!((&json["code"], &json["error"]), (&"HW-P001".into(), &said.into()));
        assert_eq!(guarded(true, || 3), 3);
    }
}
