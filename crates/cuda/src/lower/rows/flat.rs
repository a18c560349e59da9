//! The flat way: a thread for each group of elements.

use super::super::axes::{Axis, coordinates, count, merge, offset};
use super::{THREADS, Writer};
use crate::program::CudaProgram;
use crate::text::{load, memory, store, value};
use headwater_core::row::Instr;
use headwater_launch::{Lowered, Refusal};
use std::collections::BTreeSet;

impl Writer<'_> {
    /// Elements that a thread of the flat way has: neighbours that all operands have next to each other, or
    /// all the same, at places that are aligned for all of them at once.
    fn group(&self, all: &[Axis]) -> usize {
        let Some(last) = all.last() else { return 1 };
        let widest = self.views.iter().map(|v| v.dtype.size()).max().unwrap_or(1);
        let mut n = (16 / widest).clamp(1, 4);
        let fits = |n: usize| {
            last.size.is_multiple_of(n)
                && self.views.iter().enumerate().all(|(i, view)| {
                    let start =
                        view.place.offset as i64 + view.layout.offset as i64 * view.dtype.size() as i64;
                    let bytes = (n * view.dtype.size()) as i64;
                    match last.steps[i] {
                        0 => i < self.p.reads.len(),
                        1 => {
                            let others = &all[..all.len() - 1];
                            start % bytes == 0 && others.iter().all(|a| a.steps[i] % n as i64 == 0)
                        }
                        _ => false,
                    }
                })
        };
        while n > 1 && !fits(n) {
            n /= 2;
        }
        n
    }

    /// A thread for each group of elements.
    pub(super) fn flat(&mut self, op: &str) -> Result<Lowered<CudaProgram>, Refusal> {
        let all = merge(self.outer.iter().chain(&self.inner).cloned());
        let total = count(&all);
        if total == 0 {
            return Ok(Lowered::default());
        }
        let n = self.group(&all);
        let at = vec![(all.clone(), "c")];
        self.line(&format!("const i64 i = (hw_block() * {THREADS} + hw_thread()) * {n};"));
        self.line(&format!("if (i >= {total}ll) return;"));
        let mut out = std::mem::take(&mut self.out);
        coordinates(&mut out, &all, "i", "c");
        self.out = out;
        let mut needed = BTreeSet::new();
        let stores: Vec<(usize, usize)> = self.stores();
        stores.iter().for_each(|&(_, reg)| self.need(reg, &mut needed));
        if n == 1 {
            self.compute(&needed, &at, "r", false);
            stores.iter().for_each(|&(write, reg)| self.store(write, reg, &at));
        } else {
            self.grouped(&all, n, &needed, &stores);
        }
        let blocks =
            u32::try_from(total.div_ceil(n * THREADS)).map_err(|_| Refusal::new("too many elements"))?;
        let way = format!("{n} elements a thread");
        Ok(self.launched(op, "flat", &way, THREADS, 0, blocks))
    }

    /// The flat way with several elements a thread.
    fn grouped(&mut self, all: &[Axis], n: usize, needed: &BTreeSet<usize>, stores: &[(usize, usize)]) {
        let axes = [(all, "c")];
        let last = all.len() - 1;
        let mut loaded = BTreeSet::new();
        for &reg in needed {
            let Instr::Load(i) = self.p.body[reg] else { continue };
            if !loaded.insert(i) {
                continue;
            }
            let (ty, pointer, at) = (memory(self.views[i].dtype), self.pointer(i), offset(&axes, i));
            match all[last].steps[i] {
                0 => self.line(&format!("const {ty} l{i} = hw_ld({pointer}, {at});")),
                _ => self.line(&format!("const auto l{i} = hw_ldn<{ty}, {n}>({pointer}, {at});")),
            }
        }
        for &(write, _) in stores {
            let ty = memory(self.p.writes[write].dtype);
            self.line(&format!("HwPack<{ty}, {n}> s{write};"));
        }
        for e in 0..n {
            self.line("{");
            self.vectors.clear();
            for &reg in needed {
                let expr = match self.p.body[reg] {
                    Instr::Load(i) => {
                        let raw =
                            if all[last].steps[i] == 0 { format!("l{i}") } else { format!("l{i}.x[{e}]") };
                        load(self.views[i].dtype, &raw, self.classes.wide)
                    }
                    Instr::Iota(_) => {
                        let walk = self.iota(reg);
                        format!("{} + {}ll", offset(&axes, walk), all[last].steps[walk] * e as i64)
                    }
                    _ => value(&self.p.body[reg], &self.classes, |r| self.name(r)).unwrap_or_default(),
                };
                self.line(&format!("const {} r{reg} = {expr};", self.classes.ty(reg)));
                self.vectors.insert(reg, format!("r{reg}"));
            }
            for &(write, reg) in stores {
                let value = store(self.p.writes[write].dtype, &self.name(reg), self.classes.wide);
                self.line(&format!("s{write}.x[{e}] = {value};"));
            }
            self.line("}");
        }
        for &(write, _) in stores {
            let operand = self.p.reads.len() + write;
            let ty = memory(self.p.writes[write].dtype);
            let (pointer, at) = (self.pointer(operand), offset(&axes, operand));
            self.line(&format!("hw_stn<{ty}, {n}>({pointer}, {at}, s{write});"));
        }
    }
}
