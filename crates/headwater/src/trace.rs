//! Traces in Chrome's trace event format, which Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing` open:
//! <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.

use crate::report::live::replace;
use crate::runtime::trainer::Span;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;

/// The tracks of a trace, from the top: category of a span to its track and the track's name.
const TRACKS: [(&[&str], &str); 3] = [
    (&["step"], "training steps"),
    (&["host"], "parts of a step"),
    (&["forward", "backward", "update"], "device"),
];

/// The trace of some spans. Times are in microseconds.
pub fn chrome(spans: &[Span]) -> Value {
    let names = TRACKS.iter().enumerate().map(|(track, (_, name))| {
        json!({ "ph": "M", "name": "thread_name", "pid": 1, "tid": track + 1, "args": { "name": name } })
    });
    let events = spans.iter().map(|s| {
        let track = TRACKS.iter().position(|(kinds, _)| kinds.contains(&s.category)).unwrap_or(TRACKS.len());
        let (start, length) = within(s.start, s.start + s.seconds.max(0.0));
        let mut event = json!({
            "ph": "X", "name": s.name, "cat": s.category, "ts": start, "dur": length, "pid": 1, "tid": track + 1,
        });
        if !s.args.is_empty() {
            event["args"] = s.args.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        }
        event
    });
    let process = json!({ "ph": "M", "name": "process_name", "pid": 1, "args": { "name": "headwater" } });
    let events: Vec<Value> = std::iter::once(process).chain(names).chain(events).collect();
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

/// Start and length in microseconds of what lasts from `start` to `end`, in seconds: whole nanoseconds within
/// these, less one. Perfetto computes in truncated nanoseconds and drops an event that then begins before
/// another of its track ends.
fn within(start: f64, end: f64) -> (f64, f64) {
    let (start, end) = ((start * 1e9).ceil(), (end * 1e9).floor());
    (start / 1e3, (end - start - 1.0).max(0.0) / 1e3)
}

/// Writes a trace.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, spans: &[Span]) -> Result<()> {
    let bytes = serde_json::to_vec(&chrome(spans))?;
    replace(path, &bytes).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_do_not_overlap_in_truncated_nanoseconds() {
        let truncated = |x: f64| (x * 1e3) as i64;
        let mut begin = 0.1;
        for i in 0..10_000 {
            let end = begin + 1e-6 + i as f64 * 1.37e-10;
            let ((at, length), (next, _)) = (within(begin, end), within(end, end + 1e-6));
            assert!(truncated(at) + truncated(length) <= truncated(next), "{begin} {end}");
            assert!(length >= 0.997 && (at - begin * 1e6).abs() < 0.0011, "{at} {length}");
            begin = end;
        }
    }

    #[test]
    fn spans_become_complete_events_on_their_tracks() {
        let span = |name: &str, category, start: f64, seconds: f64| Span {
            name: name.into(),
            category,
            args: if category == "forward" { vec![("model", json!("model.py:7"))] } else { vec![] },
            start,
            seconds,
        };
        let spans = [span("step 1", "step", 0.0, 0.5), span("linear", "forward", 0.125, 0.25)];
        let trace = chrome(&spans);
        let events = trace["traceEvents"].as_array().unwrap();
        let found = events.iter().filter(|e| e["ph"] == "X").collect::<Vec<_>>();
        assert_eq!((&found[0]["tid"], &found[0]["dur"]), (&json!(1), &json!(499_999.999)));
        assert_eq!((&found[1]["tid"], &found[1]["ts"]), (&json!(3), &json!(125_000.0)));
        assert_eq!(found[1]["args"]["model"], "model.py:7");
        assert_eq!(events.iter().filter(|e| e["name"] == "thread_name").count(), 3);
    }
}
