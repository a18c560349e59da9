//! Fuzzing inside an ordinary test: mutated inputs for so many seconds, each iteration a function of its
//! seed.
//!
//! `HEADWATER_FUZZ_SECONDS` is the time of each target (default: 1). `HEADWATER_FUZZ_SEED` is the seed of the
//! first iteration: a number, to repeat a finding, or `random`. The seed of the iteration that runs is stored
//! in `fuzz-<target>.seed` in the target directory's `tmp`, for those that end the process.
#![allow(dead_code)]

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(u64);

impl Random {
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`, 0 if that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Changes a JSON document in a few places.
    pub fn json(&mut self, doc: &mut serde_json::Value) {
        for _ in 0..1 + self.below(3) {
            super::mutate::mutate(doc, &mut || self.number() as u32);
        }
    }

    /// Changes bytes in a few places: bits, numbers, cuts, copies.
    pub fn bytes(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(4) {
            if bytes.is_empty() {
                return;
            }
            let at = self.below(bytes.len());
            match self.below(6) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.number() as u8,
                2 => {
                    let extreme = *self.pick(&[0, 1, -1, i64::MAX, i64::MIN, 1 << 31, 1 << 40, 255]);
                    let width = *self.pick(&[1, 2, 4, 8]);
                    let end = (at + width).min(bytes.len());
                    bytes[at..end].copy_from_slice(&extreme.to_le_bytes()[..end - at]);
                }
                3 => bytes.truncate(at),
                4 => drop(bytes.drain(at..(at + 1 + self.below(16)).min(bytes.len()))),
                _ => {
                    let end = (at + 1 + self.below(64)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    let to = self.below(bytes.len());
                    bytes.splice(to..to, copy);
                }
            }
        }
    }
}

/// Says which iteration it was, should it panic.
struct Iteration<'a>(&'a str, u64);

impl Drop for Iteration<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("found by fuzzing {}: HEADWATER_FUZZ_SEED={} repeats it", self.0, self.1);
        }
    }
}

/// Runs iterations until the time is over; at least one. Returns how many. `one` is true where the mutated
/// input was accepted: of all iterations some must be, and some must not.
pub fn run(target: &str, mut one: impl FnMut(&mut Random) -> bool) -> u64 {
    let setting = |name: &str| std::env::var(name).ok();
    let seconds = setting("HEADWATER_FUZZ_SECONDS").and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let given = setting("HEADWATER_FUZZ_SEED");
    let first = match given.as_deref() {
        Some("random") => SystemTime::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64),
        Some(seed) => seed.parse().expect("HEADWATER_FUZZ_SEED is a number or `random`"),
        None => 1,
    };
    #[cfg(unix)]
    limit_memory();
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{target}.seed"));
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let (mut done, mut accepted) = (0u64, 0u64);
    while done == 0 || Instant::now() < end {
        let seed = first.wrapping_add(done);
        std::fs::write(&place, seed.to_string()).unwrap();
        let guard = Iteration(target, seed);
        accepted += one(&mut Random(seed.wrapping_mul(0xD1B5_4A32_D192_ED03))) as u64;
        drop(guard);
        done += 1;
    }
    eprintln!("{target}: {done} inputs, {accepted} accepted, seeds from {first}");
    if done > 100 {
        assert!(accepted > 0 && accepted < done, "{target}: {accepted} of {done} inputs were accepted");
    }
    done
}

/// Memory that the process may claim: a larger claim is a finding, and ends the process.
#[cfg(unix)]
fn limit_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const MOST: u64 = 6 << 30;
    let now = getrlimit(Resource::As);
    if now.current.is_none_or(|c| c > MOST) {
        setrlimit(Resource::As, Rlimit { current: Some(MOST), maximum: now.maximum }).unwrap();
    }
}
