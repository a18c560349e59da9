//! TensorBoard event files: scalars only. Records are framed as TFRecord
//! (<https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details>); the messages are
//! `Event` of tensorboard/compat/proto/event.proto, few enough fields to be written by hand.

use crate::error::{Error, Result};
use crate::score::Metric;
use crate::trainer::{Event, Observer};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes the numbers of a run for TensorBoard.
#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    out: File,
}

impl TensorBoard {
    /// Adds an event file to a directory, which is made if it does not exist. `step`: steps done before, 0
    /// for a new run; TensorBoard then forgets what earlier files say of later steps.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(dir: &Path, step: u64) -> Result<TensorBoard> {
        fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let seconds = now();
        let path = dir.join(format!("events.out.tfevents.{:.6}.{}.headwater", seconds, std::process::id()));
        let out = File::create_new(&path).map_err(Error::io(&path))?;
        let mut board = TensorBoard { path, out };
        board.record(&message(seconds, 0, |m| m.bytes(3, b"brain.Event:2")))?;
        if step > 0 {
            // session_log { status: START }
            board.record(&message(seconds, step + 1, |m| m.bytes(7, &Message::default().varint(1, 1).0)))?;
        }
        Ok(board)
    }

    fn scalars(&mut self, step: u64, values: &[(&str, Option<f64>)]) -> Result<()> {
        let mut summary = Message::default();
        for (tag, value) in values {
            if let Some(x) = value {
                summary =
                    summary.bytes(1, &Message::default().bytes(1, tag.as_bytes()).float(2, *x as f32).0);
            }
        }
        self.record(&message(now(), step, |m| m.bytes(5, &summary.0)))
    }

    fn record(&mut self, data: &[u8]) -> Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let mut out = Vec::with_capacity(data.len() + 16);
        out.extend(length);
        out.extend(masked(&length).to_le_bytes());
        out.extend(data);
        out.extend(masked(data).to_le_bytes());
        self.out.write_all(&out).map_err(Error::io(&self.path))
    }
}

impl Observer for TensorBoard {
    fn essential(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Step(s) => {
                let norm = Some(s.norm);
                let rate = Some(s.samples as f64 / s.seconds);
                let values = [
                    ("train/loss", Some(s.loss)),
                    ("train/lr", Some(s.lr)),
                    ("train/norm", norm),
                    ("train/scale", Some(s.scale)),
                    ("train/largest", Some(s.largest)),
                    ("train/skipped", Some(!s.applied as u8 as f64)),
                    ("train/underflow", s.underflow.as_ref().map(|u| u.share())),
                    ("train/rate", rate),
                ];
                self.scalars(s.step, &values)
            }
            Event::Evaluation(e) => {
                let values = Metric::ALL.map(|m| (format!("eval/{}", m.name()), m.of(&e.scores)));
                let values: Vec<(&str, Option<f64>)> = values.iter().map(|(tag, x)| (&**tag, *x)).collect();
                self.scalars(e.step, &values)
            }
            _ => Ok(()),
        }
    }
}

fn now() -> f64 {
    // A clock before 1970 is wrong, not a reason to stop a run.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// An `Event` of a time and a step, and what `fill` adds.
fn message(seconds: f64, step: u64, fill: impl FnOnce(Message) -> Message) -> Vec<u8> {
    fill(Message::default().double(1, seconds).varint(2, step)).0
}

/// A protobuf message, field after field.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn key(&mut self, field: u8, wire: u8) {
        self.0.push(field << 3 | wire);
    }

    fn raw_varint(&mut self, mut x: u64) {
        while x >= 0x80 {
            self.0.push(x as u8 | 0x80);
            x >>= 7;
        }
        self.0.push(x as u8);
    }

    fn varint(mut self, field: u8, x: u64) -> Self {
        self.key(field, 0);
        self.raw_varint(x);
        self
    }

    fn double(mut self, field: u8, x: f64) -> Self {
        self.key(field, 1);
        self.0.extend(x.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u8, x: &[u8]) -> Self {
        self.key(field, 2);
        self.raw_varint(x.len() as u64);
        self.0.extend(x);
        self
    }

    fn float(mut self, field: u8, x: f32) -> Self {
        self.key(field, 5);
        self.0.extend(x.to_le_bytes());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_framed_and_checked() {
        // Known answer of CRC-32C (RFC 3720, B.4): 32 zero bytes.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        let dir = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::create(dir.path(), 0).unwrap();
        board.scalars(300, &[("a", Some(1.0)), ("b", None)]).unwrap();
        let bytes = fs::read(&board.path).unwrap();
        let mut rest = &bytes[..];
        let mut records = Vec::new();
        while !rest.is_empty() {
            let n = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(rest[8..12], masked(&rest[..8]).to_le_bytes());
            assert_eq!(rest[12 + n..16 + n], masked(&rest[12..12 + n]).to_le_bytes());
            records.push(&rest[12..12 + n]);
            rest = &rest[16 + n..];
        }
        assert_eq!(records.len(), 2);
        assert!(records[0].ends_with(b"\x1a\x0dbrain.Event:2"));
        // step 300, summary { value { tag: "a" simple_value: 1 } }
        assert_eq!(records[1][9..], *b"\x10\xac\x02\x2a\x0a\x0a\x08\x0a\x01a\x15\x00\x00\x80\x3f");
    }
}
