//! Copies between memory and UB, and the flags around them.

use super::body::{Body, Outgoing};
use super::route::{Route, Way};
use super::writer::Writer;
use crate::chip::Arch;
use crate::kernel::{Barrier, Buf, CacheFlush, Gm, Pipe, Scalar};

impl Body<'_> {
    /// Begins to read operands into UB, and lets the vector unit wait for them.
    pub fn fetch(&mut self, reads: &[usize]) {
        if reads.is_empty() {
            return;
        }
        self.u.w.flag(Pipe::V, Pipe::Mte2);
        for &o in reads {
            let Some(len) = self.room(o) else { continue };
            let buf = self.u.w.take(self.operands[o].elem, len);
            self.read(o, buf);
            self.landed[o] = Some(buf);
        }
        self.u.w.flag(Pipe::Mte2, Pipe::V);
    }

    /// The same into the buffer of a set, as soon as the vector unit has finished with its old content.
    pub fn fetch_ahead(&mut self, reads: &[usize], set: usize) {
        if reads.is_empty() {
            return;
        }
        self.u.w.k.wait_flag(Pipe::V, Pipe::Mte2, set);
        for &o in reads {
            if self.operands[o].gm.is_some() {
                let buf = self.boxed((o, set, false));
                self.read(o, buf);
            }
        }
        self.u.w.k.set_flag(Pipe::Mte2, Pipe::V, set);
    }

    /// Waits for operands that were fetched ahead.
    pub fn receive(&mut self, reads: &[usize], set: usize) {
        if !reads.is_empty() {
            self.u.w.k.wait_flag(Pipe::Mte2, Pipe::V, set);
        }
        for &o in reads {
            if let Some(buf) = self.boxes.get(&(o, set, false)) {
                self.u.w.retain(*buf);
                self.landed[o] = Some(*buf);
            }
        }
    }

    /// Elements that an operand takes in UB as it is read: at least a repeat, for whole blocks of narrow
    /// types reach further than 32-bit ones.
    fn room(&self, o: usize) -> Option<u64> {
        let operand = &self.operands[o];
        operand.gm?;
        let len = operand.route.staged.as_ref().map_or(self.u.len(operand.extent), |s| s.len);
        Some(len.max(operand.elem.per_repeat()))
    }

    fn read(&mut self, o: usize, buf: Buf) {
        let Some(gm) = self.operands[o].gm else { return };
        let route = self.operands[o].route.clone();
        let at = self.offset(o);
        self.copy(gm, at, buf, &route, true, None);
    }

    /// Copies the runs of a route, or the last block of each (`tail`).
    fn copy(&mut self, gm: Gm, at: Scalar, buf: Buf, route: &Route, load: bool, tail: Option<()>) {
        let (elem, arch) = (buf.elem, self.u.arch());
        let (size, block) = (elem.size(), elem.per_block());
        let run = route.run.at(&self.lead);
        let others: Vec<(Scalar, i64, u64)> = (route.others.iter())
            .map(|s| {
                (
                    s.size.at(&self.lead),
                    s.memory,
                    if tail.is_some() { s.local / self.pitch(route) * block } else { s.local },
                )
            })
            .collect();
        // 310P copies whole 32-byte blocks: loads round the run up, stores round it down and copy the tail
        // separately.
        let (blocks, at) = match (arch, tail) {
            (Arch::A2, _) => (run.clone(), at),
            (_, Some(())) => (1.into(), at + run.clone() - block),
            (_, None) if load => (run.clone().div_ceil(block as i64), at),
            (_, None) => (run.clone() / block, at),
        };
        let most = route.others.last().map_or(1, |s| s.size.most);
        let joined = route.others.last().is_some_and(|s| {
            let fits = s.memory >= route.run.most as i64 && most <= 4095;
            let gap = s.memory as u64 * size;
            let whole =
                gap.is_multiple_of(32) && gap / 32 >= route.run.most.div_ceil(block) && gap / 32 <= 65535;
            fits && if arch == Arch::A2 { gap < u64::from(u32::MAX) } else { whole }
        });
        let one = move |w: &mut Writer, at: Scalar, local: Scalar, runs: Option<&(Scalar, i64, u64)>| {
            let (number, gm_step, ub_step) = match runs {
                Some((number, memory, local)) => (number.clone(), *memory as u64 * size, *local * size / 32),
                None => (1.into(), 0, 0),
            };
            let (gm, ub) = (gm.at(at), buf.at(local));
            let k = &mut w.k;
            match arch {
                Arch::A2 => {
                    let bytes = blocks.clone() * size;
                    let (gm_gap, ub_gap) = match runs {
                        Some(_) => (
                            Scalar::from(gm_step) - bytes.clone(),
                            Scalar::from(ub_step) - bytes.clone().div_ceil(32),
                        ),
                        None => (0.into(), 0.into()),
                    };
                    match load {
                        true => k.copy_pad(ub, gm, number, bytes, gm_gap, ub_gap),
                        false => k.copy_pad(gm, ub, number, bytes, ub_gap, gm_gap),
                    }
                }
                Arch::P310 => {
                    let (gm_gap, ub_gap) = match runs {
                        Some(_) => (
                            Scalar::from(gm_step / 32) - blocks.clone(),
                            Scalar::from(ub_step) - blocks.clone(),
                        ),
                        None => (0.into(), 0.into()),
                    };
                    match load {
                        true => k.copy_runs(ub, gm, number, blocks.clone(), gm_gap, ub_gap),
                        false => k.copy_runs(gm, ub, number, blocks.clone(), ub_gap, gm_gap),
                    }
                }
            }
        };
        let (loops, last) =
            if joined { others.split_at(others.len() - 1) } else { (&others[..], &others[..0]) };
        nest(&mut self.u.w, loops, at, 0.into(), &mut |w, at, local| one(w, at, local, last.first()));
    }

    /// Elements from one run to the next in UB, at the smallest stride.
    fn pitch(&self, route: &Route) -> u64 {
        route.others.last().map_or(1, |s| s.local)
    }

    /// Writes results. The vector unit waits for it, and with it all that waits for the vector unit.
    pub fn flush(&mut self) {
        let outgoing = std::mem::take(&mut self.outgoing);
        if outgoing.is_empty() {
            return;
        }
        let scalar = outgoing.iter().any(|o| self.singly(o));
        if scalar {
            self.u.w.flag(Pipe::V, Pipe::S);
        }
        self.u.w.flag(Pipe::V, Pipe::Mte3);
        self.write(&outgoing);
        for out in outgoing {
            self.u.w.release(out.buf);
            out.tail.into_iter().for_each(|t| self.u.w.release(t));
        }
        self.u.w.flag(Pipe::Mte3, Pipe::V);
        if scalar {
            self.u.w.flag(Pipe::S, Pipe::V);
        }
    }

    /// The same for results in the buffers of a set, which the next of the set wait for.
    pub fn flush_behind(&mut self, set: usize) {
        let outgoing = std::mem::take(&mut self.outgoing);
        let scalar = outgoing.iter().any(|o| self.singly(o));
        if scalar {
            self.u.w.flag(Pipe::V, Pipe::S);
        }
        self.u.w.k.set_flag(Pipe::V, Pipe::Mte3, set);
        self.u.w.k.wait_flag(Pipe::V, Pipe::Mte3, set);
        self.write(&outgoing);
        self.u.w.k.set_flag(Pipe::Mte3, Pipe::V, set);
        if scalar {
            self.u.w.flag(Pipe::S, Pipe::V);
        }
    }

    fn singly(&self, out: &Outgoing) -> bool {
        self.operands[out.operand].way == Way::Single
    }

    fn write(&mut self, outgoing: &[Outgoing]) {
        for out in outgoing {
            let route = self.operands[out.operand].route.clone();
            let Some(gm) = self.operands[out.operand].gm else { continue };
            let at = self.offset(out.operand);
            if self.singly(out) {
                self.write_singly(gm, at, out.buf, &route);
                continue;
            }
            let short = route.run.most < out.buf.elem.per_block();
            if !(short && out.tail.is_some()) {
                self.copy(gm, at.clone(), out.buf, &route, false, None);
            }
            if let Some(tail) = out.tail {
                self.u.w.k.barrier(Barrier::Mte3);
                self.copy(gm, at, tail, &route, false, Some(()));
            }
        }
    }

    /// Writes elements by the scalar unit, each of them out of its cache at once.
    fn write_singly(&mut self, gm: Gm, at: Scalar, buf: Buf, route: &Route) {
        let mut dims: Vec<(Scalar, i64, u64)> =
            route.others.iter().map(|s| (s.size.at(&self.lead), s.memory, s.local)).collect();
        dims.push((route.run.at(&self.lead), 1, 1));
        nest(&mut self.u.w, &dims, at, 0.into(), &mut |w, at, local| {
            let value = w.k.load("element", buf.at(local));
            w.k.store(gm.at(&at), value);
            w.k.issue(CacheFlush { line: gm.at(at) });
        });
    }
}

/// Loops over dimensions; `each` has the offsets in memory and in UB.
fn nest(
    w: &mut Writer,
    dims: &[(Scalar, i64, u64)],
    at: Scalar,
    local: Scalar,
    each: &mut dyn FnMut(&mut Writer, Scalar, Scalar),
) {
    match dims.split_first() {
        None => each(w, at, local),
        Some(((Scalar::Int(1), ..), rest)) => nest(w, rest, at, local, each),
        Some(((number, memory, step), rest)) => {
            w.for_each("run", 0, number.clone(), 1, |w, i| {
                let (at, local) = (at + i.clone() * *memory, local + i * *step);
                nest(w, rest, at, local, each);
            });
        }
    }
}
