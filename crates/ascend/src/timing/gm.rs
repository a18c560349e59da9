//! Global memory as all cores share it: which lines L2 holds, and how bandwidth is divided.
//!
//! L2 writes back: a result stays there until its line is replaced, and only then costs HBM bandwidth. Reads
//! and writes that leave L2 alone replace nothing, but use a line that is cached. Bandwidth is shared max–min
//! fairly between the transfers that run at the same time, each limited by its core's port as well.

/// Bytes of a line, as far as traffic is concerned. Assumed: shorter runs are not seen to fetch more.
const LINE: u64 = 128;

/// No line.
const NONE: u32 = u32::MAX;

/// L2: the least recently used line is replaced.
#[derive(Debug)]
pub struct L2 {
    /// For each line of GM its neighbours in the order of use, newest first; itself where it is not held.
    newer: Vec<u32>,
    older: Vec<u32>,
    held: Vec<bool>,
    dirty: Vec<bool>,
    newest: u32,
    oldest: u32,
    free: u64,
}

/// Traffic of a transfer: what crosses HBM's interface, beside what L2 serves.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Traffic {
    /// Bytes read from HBM or, evicted, written to it.
    pub hbm: u64,
    /// Bytes of the transfer that L2 did not hold.
    pub missed: u64,
}

impl L2 {
    /// A cache of `bytes` bytes over a GM of `gm` bytes, empty.
    pub fn new(bytes: u64, gm: u64) -> L2 {
        let lines = gm.div_ceil(LINE) as usize;
        L2 {
            newer: vec![NONE; lines],
            older: vec![NONE; lines],
            held: vec![false; lines],
            dirty: vec![false; lines],
            newest: NONE,
            oldest: NONE,
            free: bytes / LINE,
        }
    }

    /// Reads or writes `bytes` bytes at `address`; `streamed` ones do not stay.
    pub fn access(&mut self, address: u64, bytes: u64, write: bool, streamed: bool) -> Traffic {
        let mut traffic = Traffic::default();
        let (mut at, end) = (address, address + bytes);
        while at < end {
            let line = (at / LINE) as usize;
            let next = ((line as u64 + 1) * LINE).min(end);
            let part = next - at;
            at = next;
            let Some(&held) = self.held.get(line) else { continue };
            if held {
                self.remove(line as u32);
                self.insert(line as u32);
                self.dirty[line] |= write;
                continue;
            }
            traffic.missed += part;
            // A whole line that is written need not be read; part of one is merged in L2.
            traffic.hbm += if write && !streamed { 0 } else { part };
            if !streamed {
                if self.free == 0 {
                    let victim = self.oldest;
                    self.remove(victim);
                    self.held[victim as usize] = false;
                    traffic.hbm += if self.dirty[victim as usize] { LINE } else { 0 };
                } else {
                    self.free -= 1;
                }
                self.held[line] = true;
                self.dirty[line] = write;
                self.insert(line as u32);
            }
        }
        traffic
    }

    fn remove(&mut self, line: u32) {
        let (newer, older) = (self.newer[line as usize], self.older[line as usize]);
        match newer {
            NONE => self.newest = older,
            _ => self.older[newer as usize] = older,
        }
        match older {
            NONE => self.oldest = newer,
            _ => self.newer[older as usize] = newer,
        }
    }

    fn insert(&mut self, line: u32) {
        (self.newer[line as usize], self.older[line as usize]) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = line,
            newest => self.newer[newest as usize] = line,
        }
        self.newest = line;
    }
}

/// A transfer under way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Flow {
    /// Who waits for it.
    pub owner: usize,
    /// Bytes left.
    pub left: f64,
    /// Most bytes a cycle that the core's port takes.
    pub port: f64,
    /// Bytes that cross HBM's interface for each byte.
    pub hbm: f64,
    /// Bytes a cycle now.
    rate: f64,
}

/// Transfers of all cores that run at the same time.
#[derive(Debug)]
pub struct Bandwidth {
    flows: Vec<Flow>,
    /// Bytes a cycle of HBM and of L2.
    hbm: f64,
    l2: f64,
    /// Time up to which `left` holds.
    now: f64,
    next: Option<f64>,
}

impl Bandwidth {
    /// Memory of `hbm` and `l2` bytes a cycle.
    pub fn new(hbm: f64, l2: f64) -> Bandwidth {
        Bandwidth { flows: Vec::new(), hbm, l2, now: 0.0, next: None }
    }

    /// When the next transfer ends.
    pub fn next(&self) -> Option<f64> {
        self.next
    }

    /// Begins a transfer of `bytes` bytes at time `now`.
    pub fn begin(&mut self, now: f64, owner: usize, bytes: f64, port: f64, hbm: f64) {
        self.advance(now);
        self.flows.push(Flow { owner, left: bytes, port, hbm, rate: 0.0 });
        self.share();
    }

    /// Ends the transfers that are done at time `now`, and gives their owners.
    pub fn end(&mut self, now: f64) -> Vec<usize> {
        self.advance(now);
        let mut done = Vec::new();
        // A thousandth of a byte is rounding.
        self.flows.retain(|f| {
            f.left > 1e-3 || {
                done.push(f.owner);
                false
            }
        });
        self.share();
        done
    }

    fn advance(&mut self, now: f64) {
        for flow in &mut self.flows {
            flow.left -= flow.rate * (now - self.now);
        }
        self.now = now;
    }

    /// Raises all rates alike until a port, HBM or L2 is full; those that are limited stay, the others go on.
    fn share(&mut self) {
        let (mut hbm, mut l2) = (self.hbm, self.l2);
        let mut open: Vec<usize> = (0..self.flows.len()).collect();
        self.flows.iter_mut().for_each(|f| f.rate = 0.0);
        while !open.is_empty() {
            let demand: f64 = open.iter().map(|&i| self.flows[i].hbm).sum();
            let port = open.iter().map(|&i| self.flows[i].port - self.flows[i].rate).fold(f64::MAX, f64::min);
            let by_hbm = if demand > 0.0 { hbm / demand } else { f64::MAX };
            let step = port.min(by_hbm).min(l2 / open.len() as f64).max(0.0);
            for &i in &open {
                self.flows[i].rate += step;
            }
            hbm -= step * demand;
            l2 -= step * open.len() as f64;
            let full = |left: f64, all: f64| left <= 1e-9 * all;
            if full(l2, self.l2) {
                break;
            }
            let no_hbm = full(hbm, self.hbm);
            let before = open.len();
            open.retain(|&i| {
                let f = &self.flows[i];
                f.rate < f.port * (1.0 - 1e-9) && !(no_hbm && f.hbm > 0.0)
            });
            if open.len() == before {
                break;
            }
        }
        let ends = self.flows.iter().map(|f| self.now + (f.left / f.rate.max(1e-12)).max(0.0));
        self.next = ends.min_by(f64::total_cmp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_shared_max_min_fairly() {
        let mut all = Bandwidth::new(100.0, 1000.0);
        all.begin(0.0, 0, 100.0, 10.0, 1.0);
        all.begin(0.0, 1, 900.0, 1000.0, 1.0);
        // The first is limited by its port, the second has the rest of HBM.
        assert_eq!(all.next(), Some(10.0));
        let mut done = all.end(10.0);
        done.sort_unstable();
        assert_eq!(done, [0, 1]);
    }

    #[test]
    fn results_stay_in_l2_until_they_are_replaced() {
        let mut l2 = L2::new(4 * LINE, 64 * LINE);
        assert_eq!(l2.access(0, 4 * LINE, true, false), Traffic { hbm: 0, missed: 4 * LINE });
        assert_eq!(l2.access(0, 4 * LINE, true, false), Traffic { hbm: 0, missed: 0 });
        // Streamed reads replace nothing.
        assert_eq!(l2.access(8 * LINE, LINE, false, true), Traffic { hbm: LINE, missed: LINE });
        assert_eq!(l2.access(0, 4 * LINE, false, false), Traffic { hbm: 0, missed: 0 });
        // One line read, one written back.
        assert_eq!(l2.access(8 * LINE, LINE, false, false), Traffic { hbm: 2 * LINE, missed: LINE });
    }
}
