//! Health of the other ranks: their heartbeat each second, the operating system's view of those on this
//! machine, and the message about one that is lost.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Bytes of a message between the ranks' communication threads.
pub(crate) const MESSAGE: usize = 1024;

/// A heartbeat of a rank to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Word {
    /// It lives: exchanges that it has begun, seconds for which it has been at what it does, and that.
    Alive { begun: u64, seconds: f32, doing: String },
    /// It ends as all do, and says nothing more.
    Bye,
    /// It ends with an error of its own.
    Ends(String),
    /// Another rank is lost: what the sender has printed.
    Gone(String),
}

/// A text cut to so many bytes, between characters.
fn cut(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Word {
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, begun, seconds, text) = match self {
            Word::Alive { begun, seconds, doing } => (0, *begun, *seconds, doing.as_str()),
            Word::Bye => (1, 0, 0.0, ""),
            Word::Ends(why) => (2, 0, 0.0, why.as_str()),
            Word::Gone(line) => (3, 0, 0.0, line.as_str()),
        };
        let mut out = vec![kind];
        out.extend(begun.to_le_bytes());
        out.extend(seconds.to_le_bytes());
        let text = cut(text, MESSAGE - out.len() - 2);
        out.extend((text.len() as u16).to_le_bytes());
        out.extend(text.as_bytes());
        out.resize(MESSAGE, 0);
        out
    }

    /// `None` for bytes that no rank sends.
    pub fn of(bytes: &[u8]) -> Option<Word> {
        let begun = u64::from_le_bytes(bytes.get(1..9)?.try_into().ok()?);
        let seconds = f32::from_le_bytes(bytes.get(9..13)?.try_into().ok()?);
        let length = u16::from_le_bytes(bytes.get(13..15)?.try_into().ok()?) as usize;
        let text = String::from_utf8_lossy(bytes.get(15..15 + length)?).into_owned();
        Some(match bytes[0] {
            0 => Word::Alive { begun, seconds, doing: text },
            1 => Word::Bye,
            2 => Word::Ends(text),
            3 => Word::Gone(text),
            _ => return None,
        })
    }
}

/// A rank as it introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of its machine.
    pub host: String,
    /// Its process there.
    pub process: u32,
    /// Machine and name space of processes: ranks of the same can look at each other's processes.
    pub node: String,
}

impl Identity {
    /// This process.
    pub fn own() -> Identity {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
        let host = read("/proc/sys/kernel/hostname");
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let node = format!("{host} {} {}", read("/proc/sys/kernel/random/boot_id"), space.display());
        Identity { host, process: std::process::id(), node }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let text = format!("{}\n{}\n{}", cut(&self.host, 255), self.process, cut(&self.node, 600));
        let mut out = text.into_bytes();
        out.resize(MESSAGE, 0);
        out
    }

    pub(crate) fn of(bytes: &[u8]) -> Identity {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.trim_end_matches('\0').lines().map(str::to_string);
        let mut next = || lines.next().unwrap_or_default();
        let (host, process) = (next(), next().parse().unwrap_or(0));
        Identity { host, process, node: next() }
    }
}

/// A rank's number with its host and process.
pub(crate) fn named(rank: usize, identity: &Identity) -> String {
    format!("rank {rank} (host {}, process {})", identity.host, identity.process)
}

/// State of a process of this machine, as in `/proc/PID/stat`: `R` runs, `S` sleeps, `T` is stopped, `Z` is
/// dead. `None` if there is no such process.
fn process_state(process: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold anything.
    text.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Another rank, as this one knows it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub identity: Identity,
    /// True if its process can be looked at.
    pub near: bool,
    /// Time of its last message.
    pub heard: Instant,
    /// Its phase at that time.
    pub doing: String,
    /// Seconds for which it had done so.
    seconds: f32,
    /// Exchanges that it had begun.
    begun: u64,
    /// True after it has said goodbye.
    pub left: bool,
}

impl Peer {
    pub fn new(identity: Identity, own: &Identity, now: Instant) -> Peer {
        let seen = || std::path::Path::new(&format!("/proc/{}/stat", identity.process)).exists();
        let near = identity.node == own.node && seen();
        Peer { identity, near, heard: now, doing: "begins".into(), seconds: 0.0, begun: 0, left: false }
    }

    /// Notes what it says.
    pub fn hear(&mut self, word: &Word, now: Instant) {
        self.heard = now;
        match word {
            Word::Alive { begun, seconds, doing } => {
                (self.begun, self.seconds, self.doing) = (*begun, *seconds, doing.clone());
            }
            Word::Bye => self.left = true,
            Word::Ends(_) | Word::Gone(_) => {}
        }
    }

    /// The fault of a rank, if it has one: it is dead, or has sent nothing for `silent`; or it lives, and
    /// others have waited for it for `stalled`. `waiting`: exchanges that this rank has started, and for how
    /// long it has waited for the last.
    pub fn fault(
        &self,
        silent: Duration,
        stalled: Duration,
        waiting: (u64, Duration),
        now: Instant,
    ) -> Option<String> {
        if self.left {
            return None;
        }
        let state = if self.near { Some(process_state(self.identity.process)) } else { None };
        let quiet = now.saturating_duration_since(self.heard);
        if matches!(state, Some(None | Some('Z' | 'X'))) {
            return Some(self.last("has died", quiet));
        }
        if quiet >= silent {
            let stopped = matches!(state, Some(Some('T' | 't')));
            let what = if stopped {
                "is stopped (by a signal or a debugger)"
            } else {
                "is silent: stopped, hung or cut off"
            };
            return Some(self.last(what, quiet));
        }
        let (begun, waited) = waiting;
        let stands = self.begun < begun && waited >= stalled && self.seconds >= stalled.as_secs_f32();
        stands.then(|| {
            format!(
                "is stalled: it lives, but has been at the same for {:.0} s while others wait: {}",
                self.seconds, self.doing
            )
        })
    }

    /// True if this rank waits for it.
    pub fn behind(&self, begun: u64) -> bool {
        !self.left && self.begun < begun
    }

    fn last(&self, what: &str, quiet: Duration) -> String {
        let mut text = format!("{what}; last heard {:.1} s ago", quiet.as_secs_f64());
        let _ = write!(text, ", at: {}", self.doing);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_their_bytes() {
        let long = "é".repeat(MESSAGE);
        for word in [
            Word::Alive { begun: 7, seconds: 1.5, doing: "step 3, gradients of batch 12".into() },
            Word::Bye,
            Word::Ends("HW-R002: the file".into()),
            Word::Gone("rank 2 has died".into()),
        ] {
            assert_eq!(Word::of(&word.to_bytes()), Some(word));
        }
        let Some(Word::Ends(text)) = Word::of(&Word::Ends(long.clone()).to_bytes()) else { panic!() };
        assert!(long.starts_with(&text) && text.len() > MESSAGE - 20);
        assert_eq!(Word::of(&[9; MESSAGE]), None);
        assert_eq!(Word::of(&[0; 3]), None);
        let own = Identity::own();
        assert_eq!(Identity::of(&own.to_bytes()), own);
    }

    #[test]
    fn ranks_that_are_gone_silent_or_stalled_are_told_apart() {
        let (now, own) = (Instant::now(), Identity::own());
        let (silent, stalled) = (Duration::from_secs(8), Duration::from_secs(60));
        let none = (0, Duration::ZERO);
        let mut far = Peer::new(Identity { node: "elsewhere".into(), ..own.clone() }, &own, now);
        assert!(!far.near && far.fault(silent, stalled, none, now).is_none());
        far.hear(&Word::Alive { begun: 4, seconds: 70.0, doing: "step 1, waits for data".into() }, now);
        let later = now + Duration::from_secs(9);
        let quiet = far.fault(silent, stalled, none, later).unwrap();
        assert!(
            quiet.starts_with("is silent") && quiet.ends_with("9.0 s ago, at: step 1, waits for data"),
            "{quiet}"
        );
        // It lives, and is waited for.
        let waits = far.fault(silent, stalled, (5, stalled), now).unwrap();
        assert!(waits.contains("stalled") && waits.contains("70 s"), "{waits}");
        assert!(far.fault(silent, stalled, (4, stalled), now).is_none());
        assert!(far.behind(5) && !far.behind(4));
        far.hear(&Word::Bye, now);
        assert!(far.fault(silent, stalled, (9, stalled), later).is_none());
        // A process of this machine that ends is noticed at once.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let near = Peer::new(Identity { process: child.id(), ..own.clone() }, &own, now);
        assert!(near.near && near.fault(silent, stalled, none, now).is_none());
        child.kill().unwrap();
        let died = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            near.fault(silent, stalled, none, now)
        });
        assert!(died.unwrap().starts_with("has died"));
        child.wait().unwrap();
        assert!(near.fault(silent, stalled, none, now).unwrap().starts_with("has died"));
    }
}
