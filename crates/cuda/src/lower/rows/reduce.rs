//! The ways with reductions: a warp for each row, or a block for each long one.

use super::super::axes::coordinates;
use super::{KEPT, WARP, WHOLE, Writer};
use crate::program::CudaProgram;
use headwater_core::dtype::Class;
use headwater_core::row::{Instr, Reduce};
use headwater_launch::{Lowered, Refusal};
use std::collections::{BTreeMap, BTreeSet};

impl Writer<'_> {
    /// The part of a row that lanes sum in one go, in columns, and how many there are: the CPU's cut.
    pub(super) fn parts(&self) -> (usize, usize) {
        let cols = self.p.cols();
        if cols <= WHOLE {
            return (cols.max(1), 1);
        }
        let part = cols.div_ceil(cols.div_ceil(WHOLE)).next_multiple_of(64).min(cols);
        (part, cols.div_ceil(part))
    }

    /// The reductions at a level, as operation, argument and register.
    fn reductions(&self, level: usize) -> Vec<(usize, Reduce, usize)> {
        let at = |(reg, i): (usize, &Instr)| match *i {
            Instr::Reduce(op, a) if self.level[reg] == level + 1 => Some((reg, op, a)),
            _ => None,
        };
        self.p.body.iter().enumerate().filter_map(at).collect()
    }

    pub(super) fn levels(&self) -> usize {
        self.level.iter().copied().max().unwrap_or(0)
    }

    /// Type of a reduction's accumulators, and of its total.
    fn accumulators(&self, reg: usize, op: Reduce) -> (&'static str, &'static str) {
        match (self.classes.of[reg], op) {
            (Some(Class::Float), Reduce::Prod) => ("double", "double"),
            (Some(Class::Float), _) => (self.classes.float(), "double"),
            _ => ("i64", "i64"),
        }
    }

    /// Writes a phase that reduces: over the columns of each part of a row that is this warp's. `kept` are
    /// vectors that stay in registers, `steps` of each.
    pub(super) fn reduce_phase(
        &mut self,
        level: usize,
        warps: usize,
        kept: &mut BTreeSet<usize>,
        steps: usize,
    ) {
        let (part, parts) = self.parts();
        let (cols, folds) = (self.p.cols(), self.reductions(level));
        let names = ["sum", "prod", "max", "min"];
        for &(reg, op, _) in &folds {
            let (_, total) = self.accumulators(reg, op);
            self.line(&format!("{total} t{reg} = hw_init({}, ({total})0);", op as usize));
        }
        let (before, step) = if warps > 1 { ("warp", warps) } else { ("0", 1) };
        self.line(&format!("for (i32 part = {before}; part < {parts}; part += {step}) {{"));
        for &(reg, op, _) in &folds {
            let (lanes, _) = self.accumulators(reg, op);
            self.line(&format!("{lanes} a{reg} = hw_init({}, ({lanes})0);", op as usize));
        }
        let end = format!("(part + 1) * {part}ll < {cols}ll ? (part + 1) * {part}ll : {cols}ll");
        self.line(&format!("const i64 end = {end};"));
        self.columns_loop(steps, part, |w| {
            let mut needed = BTreeSet::new();
            folds.iter().for_each(|&(_, _, arg)| w.need(arg, &mut needed));
            w.vector_body(&needed, kept, steps);
            for &(reg, op, arg) in &folds {
                let (lanes, _) = w.accumulators(reg, op);
                let (f, arg) = (["add", "mul", "max", "min"][op as usize], w.name(arg));
                w.line(&format!("a{reg} = hw_{f}(a{reg}, ({lanes}){arg});"));
            }
            w.vectors.clear();
        });
        for &(reg, op, _) in &folds {
            let (_, total) = self.accumulators(reg, op);
            let (f, name) = (["add", "mul", "max", "min"][op as usize], names[op as usize]);
            match warps {
                1 => self.line(&format!("t{reg} = hw_{f}(t{reg}, ({total})hw_warp_{name}(a{reg}));")),
                _ => {
                    let at = self.slot(&folds, reg) * parts;
                    self.line(&format!("{{ const {total} all = ({total})hw_warp_{name}(a{reg}); if (lane == 0) hw_st(({total}*)room, {at} + part, all); }}"));
                }
            }
        }
        self.line("}");
        if warps > 1 {
            self.line("hw_sync();");
            self.line(&format!("for (i32 part = 0; part < {parts}; part++) {{"));
            for &(reg, op, _) in &folds {
                let (_, total) = self.accumulators(reg, op);
                let (f, at) = (["add", "mul", "max", "min"][op as usize], self.slot(&folds, reg) * parts);
                self.line(&format!("t{reg} = hw_{f}(t{reg}, hw_ld((const {total}*)room, {at} + part));"));
            }
            self.line("}");
            // The next phase writes there again.
            if level + 1 < self.levels() {
                self.line("hw_sync();");
            }
        }
        for (reg, _, _) in folds {
            let ty = self.classes.ty(reg);
            self.line(&format!("const {ty} q{reg} = ({ty})t{reg};"));
            self.scalars.insert(reg, format!("q{reg}"));
        }
    }

    fn slot(&self, folds: &[(usize, Reduce, usize)], reg: usize) -> usize {
        folds.iter().position(|f| f.0 == reg).unwrap_or(0)
    }

    /// A loop over the columns of a part that are this lane's. `steps` is not 0 where it is unrolled.
    fn columns_loop(&mut self, steps: usize, part: usize, body: impl FnOnce(&mut Self)) {
        match steps {
            0 => self.line(&format!("for (i64 c = part * {part}ll + lane; c < end; c += {WARP}) {{")),
            _ => {
                self.line("#pragma unroll");
                self.line(&format!("for (i32 it = 0; it < {steps}; it++) {{"));
                self.line(&format!("const i64 c = (i64)it * {WARP} + lane;"));
                self.line("if (c < end) {");
            }
        }
        let mut out = std::mem::take(&mut self.out);
        coordinates(&mut out, &self.inner, "c", "d");
        self.out = out;
        body(self);
        self.line(if steps == 0 { "}" } else { "} }" });
    }

    /// Writes the vectors of a column; those of an earlier phase come from registers, and all that are
    /// computed stay there.
    fn vector_body(&mut self, needed: &BTreeSet<usize>, kept: &mut BTreeSet<usize>, steps: usize) {
        let at = [(self.outer.clone(), "o"), (self.inner.clone(), "d")];
        if steps == 0 {
            return self.compute(needed, &at, "r", false);
        }
        // Values that an earlier phase kept are read; their operands are not recomputed.
        let mut ready: BTreeMap<usize, String> = BTreeMap::new();
        for reg in needed.iter().filter(|r| kept.contains(r)) {
            ready.insert(*reg, format!("k{reg}[it]"));
        }
        self.vectors.extend(ready);
        let mut fresh = BTreeSet::new();
        needed.iter().filter(|r| !kept.contains(r)).for_each(|r| {
            fresh.insert(*r);
        });
        self.compute(&fresh, &at, "r", false);
        for reg in &fresh {
            if self.keeps(*reg) {
                self.line(&format!("k{reg}[it] = r{reg};"));
                kept.insert(*reg);
            }
        }
    }

    /// True for a vector that stays in registers: one that is read from memory and needed in more than one
    /// phase.
    fn keeps(&self, reg: usize) -> bool {
        matches!(self.p.body[reg], Instr::Load(_)) && !self.scalar[reg] && self.phases(reg) > 1
    }

    /// Phases that need a vector.
    fn phases(&self, reg: usize) -> usize {
        let levels = self.levels();
        let needs = |roots: Vec<usize>| {
            let mut needed = BTreeSet::new();
            let mut open = roots;
            while let Some(r) = open.pop() {
                if needed.insert(r) && !matches!(self.p.body[r], Instr::Reduce(..)) {
                    open.extend(self.args(r));
                }
            }
            usize::from(needed.contains(&reg))
        };
        let folds = |level| self.reductions(level).into_iter().map(|(_, _, a)| a).collect::<Vec<_>>();
        let last = self.stores().into_iter().map(|(_, r)| r).collect::<Vec<_>>();
        (0..levels).map(|l| needs(folds(l))).sum::<usize>() + needs(last)
    }

    /// A warp for each row, or a block for each long one.
    pub(super) fn by_rows(&mut self, op: &str) -> Result<Lowered<CudaProgram>, Refusal> {
        let (rows, cols) = (self.p.rows(), self.p.cols());
        if rows == 0 {
            return Ok(Lowered::default());
        }
        let (part, parts) = self.parts();
        let warps = if parts > 1 { parts.min(16) } else { 1 };
        let most = (0..self.levels()).map(|l| self.reductions(l).len()).max().unwrap_or(0);
        let shared = if warps > 1 { most * parts * 8 } else { 0 };
        if shared > 32 << 10 {
            return Err(Refusal::new("a reduction of rows of very many columns"));
        }
        let each = if warps > 1 { 1 } else { 4 };
        let vectors: Vec<usize> = (0..self.p.body.len()).filter(|&r| self.keeps(r)).collect();
        let mut steps = if parts == 1 { cols.div_ceil(WARP) } else { 0 };
        if vectors.is_empty() || steps * vectors.len() > KEPT {
            steps = 0;
        }
        self.line("const i32 lane = hw_thread() % 32;");
        match warps {
            1 => self.line(&format!("const i64 row = hw_block() * {each} + hw_thread() / 32;")),
            _ => {
                self.line("const i32 warp = hw_thread() / 32;");
                self.line("u8* const room = hw_shared();");
                self.line("const i64 row = hw_block();");
            }
        }
        self.line(&format!("if (row >= {rows}ll) return;"));
        let mut out = std::mem::take(&mut self.out);
        coordinates(&mut out, &self.outer, "row", "o");
        self.out = out;
        let mut kept = BTreeSet::new();
        if steps > 0 {
            for reg in &vectors {
                self.line(&format!("{} k{reg}[{steps}];", self.classes.ty(*reg)));
            }
        }
        self.row_scalars(0, None);
        for level in 0..self.levels() {
            self.reduce_phase(level, warps, &mut kept, steps);
            self.row_scalars(level + 1, None);
        }
        let (of_rows, of_columns): (Vec<_>, Vec<_>) =
            self.stores().into_iter().partition(|&(w, _)| self.is_row_store(w));
        if !of_columns.is_empty() {
            let (before, step) = if warps > 1 { ("warp", warps) } else { ("0", 1) };
            self.line(&format!("for (i32 part = {before}; part < {parts}; part += {step}) {{"));
            let end = format!("(part + 1) * {part}ll < {cols}ll ? (part + 1) * {part}ll : {cols}ll");
            self.line(&format!("const i64 end = {end};"));
            self.columns_loop(steps, part, |w| {
                let mut needed = BTreeSet::new();
                of_columns.iter().for_each(|&(_, reg)| w.need(reg, &mut needed));
                w.vector_body(&needed, &mut kept, steps);
                let at = [(w.outer.clone(), "o"), (w.inner.clone(), "d")];
                of_columns.iter().for_each(|&(write, reg)| w.store(write, reg, &at));
                w.vectors.clear();
            });
            self.line("}");
        }
        if !of_rows.is_empty() {
            // All lanes have read what is written here in place: an exchange orders them.
            self.line(if warps > 1 { "hw_sync();" } else { "hw_lane_xor(0, 1);" });
            let first = if warps > 1 { "hw_thread() == 0" } else { "lane == 0" };
            self.line(&format!("if ({first}) {{"));
            let at = [(self.outer.clone(), "o")];
            of_rows.iter().for_each(|&(write, reg)| self.store(write, reg, &at));
            self.line("}");
        }
        let (threads, about) = match warps {
            1 => (each * WARP, "a warp for each row"),
            _ => (warps * WARP, "a block for each row"),
        };
        let about = if steps > 0 { format!("{about}, kept in registers") } else { about.into() };
        let blocks = u32::try_from(rows.div_ceil(each)).map_err(|_| Refusal::new("too many rows"))?;
        Ok(self.launched(op, "rows", &about, threads, shared, blocks))
    }
}
