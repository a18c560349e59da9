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
        let (start, length) = (s.start * 1e6, s.seconds.max(0.0) * 1e6);
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
        assert_eq!((&found[0]["tid"], &found[0]["dur"]), (&json!(1), &json!(5e5)));
        assert_eq!((&found[1]["tid"], &found[1]["ts"]), (&json!(3), &json!(125_000.0)));
        assert_eq!(found[1]["args"]["model"], "model.py:7");
        assert_eq!(events.iter().filter(|e| e["name"] == "thread_name").count(), 3);
    }
}
