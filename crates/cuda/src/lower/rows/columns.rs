//! Sums over rows: partial sums by blocks of rows, and a second kernel that adds them.

use super::super::axes::{coordinates, offset};
use super::{SUMMED, THREADS, WARP, Writer, span, symbol};
use crate::program::{CudaProgram, Param, Work};
use crate::text::{indented, memory, store};
use headwater_core::DType;
use headwater_core::dtype::Class;
use headwater_core::row::Instr;
use headwater_launch::{Lowered, LoweredArg, LoweredLaunch, Refusal};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Writer<'_> {
    /// A block for some rows: its warps reduce a row each, then its threads have a column each, and sum it
    /// over those rows.
    pub(super) fn column_sums(&mut self, op: &str) -> Result<Lowered<CudaProgram>, Refusal> {
        let (rows, cols) = (self.p.rows(), self.p.cols());
        if cols == 0 {
            return match self.stores_of_rows() {
                true => Err(Refusal::new("a sum over rows without columns")),
                false => Ok(Lowered::default()),
            };
        }
        let sums: Vec<(usize, usize)> = (self.p.body.iter())
            .filter_map(|i| match *i {
                Instr::Columns(w, r) => Some((w, r)),
                _ => None,
            })
            .collect();
        let each = rows.div_ceil(32).clamp(8, SUMMED);
        let blocks = rows.div_ceil(each);
        let by_rows = self.levels() > 0 || self.stores_of_rows();
        let tile = if by_rows { THREADS / WARP } else { each };
        let groups = if by_rows { 1 } else { cols.div_ceil(THREADS) };
        let size = |w: &Self, reg: usize| if w.classes.ty(reg) == "float" { 4 } else { 8 };
        // Partial sums are adjacent arrays, aligned.
        let (mut starts, mut scratch) = (Vec::new(), 0u64);
        for &(_, reg) in &sums {
            starts.push(scratch);
            scratch += ((blocks * cols * size(self, reg)) as u64).next_multiple_of(512);
        }
        let mut lowered = Lowered { scratch: scratch.max(512), ..Lowered::default() };
        if rows > 0 {
            self.partial_sums(op, &sums, (each, tile, groups), &mut lowered, &starts)?;
        }
        for (&(write, reg), &start) in sums.iter().zip(&starts) {
            self.total(op, (write, reg), (start, blocks), &mut lowered)?;
        }
        Ok(lowered)
    }

    fn partial_sums(
        &mut self,
        op: &str,
        sums: &[(usize, usize)],
        (each, tile, groups): (usize, usize, usize),
        lowered: &mut Lowered<CudaProgram>,
        starts: &[u64],
    ) -> Result<(), Refusal> {
        let (rows, cols) = (self.p.rows(), self.p.cols());
        let (blocks, by_rows) =
            (rows.div_ceil(each), tile != each || self.levels() > 0 || self.stores_of_rows());
        let reads = self.views.len();
        self.line(&format!("const i64 block = hw_block() / {groups}, first = block * {each};"));
        self.line(&format!("const i64 last = first + {each} < {rows}ll ? first + {each} : {rows}ll;"));
        self.line("u8* const room = hw_shared();");
        let stores = self.stores();
        let mut exported = BTreeSet::new();
        let used = |w: &Self, exported: &mut BTreeSet<usize>| {
            let mut open: Vec<usize> = stores.iter().chain(sums).map(|s| s.1).collect();
            while let Some(reg) = open.pop() {
                match w.scalar[reg] {
                    true if w.is_constant(reg) => {}
                    true => drop(exported.insert(reg)),
                    false => open.extend(w.args(reg)),
                }
            }
        };
        used(self, &mut exported);
        let exported: Vec<usize> = exported.into_iter().collect();
        self.line(&format!("for (i64 tile = first; tile < last; tile += {tile}) {{"));
        if by_rows {
            self.line("const i32 lane = hw_thread() % 32;");
            self.line("{ const i64 row = tile + hw_thread() / 32;");
            self.line("if (row < last) {");
            let mut out = std::mem::take(&mut self.out);
            coordinates(&mut out, &self.outer, "row", "o");
            self.out = out;
            self.row_scalars(0, None);
            let mut kept = BTreeSet::new();
            for level in 0..self.levels() {
                self.reduce_phase(level, 1, &mut kept, 0);
                self.row_scalars(level + 1, None);
            }
            self.line("if (lane == 0) {");
            for (i, reg) in exported.iter().enumerate() {
                let (ty, name) = (self.classes.ty(*reg), self.name(*reg));
                let at = format!("(hw_thread() / 32 * {} + {i}) * 8", exported.len());
                self.line(&format!("hw_st(({ty}*)(room + {at}), 0, {name});"));
            }
            self.line("} } }");
            self.line("hw_sync();");
            self.scalars.clear();
        }
        let start = match groups {
            1 => "hw_thread()".to_string(),
            _ => format!("(hw_block() % {groups}) * {THREADS} + hw_thread()"),
        };
        let step = groups * THREADS;
        self.line(&format!("for (i64 c = {start}; c < {cols}ll; c += {step}) {{"));
        for (i, &(_, reg)) in sums.iter().enumerate() {
            let ty = self.classes.ty(reg);
            let at = format!("({ty}*)hw_a.p[{}], block * {cols}ll + c", reads + i);
            let before = format!("tile == first ? ({ty})0 : hw_ld({at})");
            let before = if each <= tile { format!("({ty})0") } else { before };
            self.line(&format!("{ty} s{i} = {before};"));
        }
        let mut out = std::mem::take(&mut self.out);
        coordinates(&mut out, &self.inner, "c", "d");
        self.out = out;
        self.line(&format!("for (i64 row = tile; row < tile + {tile} && row < last; row++) {{"));
        let mut out = std::mem::take(&mut self.out);
        coordinates(&mut out, &self.outer, "row", "o");
        self.out = out;
        match by_rows {
            true => {
                for (i, &reg) in exported.iter().enumerate() {
                    let ty = self.classes.ty(reg);
                    let at = format!("((row - tile) * {} + {i}) * 8", exported.len());
                    self.line(&format!("const {ty} q{reg} = hw_ld((const {ty}*)(room + {at}), 0);"));
                    self.scalars.insert(reg, format!("q{reg}"));
                }
            }
            false => self.row_scalars(0, None),
        }
        let mut needed = BTreeSet::new();
        let (of_rows, of_columns): (Vec<_>, Vec<_>) =
            stores.iter().copied().partition(|&(w, _)| self.is_row_store(w));
        of_columns.iter().chain(sums).for_each(|&(_, reg)| self.need(reg, &mut needed));
        let at = [(self.outer.clone(), "o"), (self.inner.clone(), "d")];
        self.compute(&needed, &at, "r", false);
        of_columns.iter().for_each(|&(write, reg)| self.store(write, reg, &at));
        for (i, &(_, reg)) in sums.iter().enumerate() {
            let value = self.name(reg);
            self.line(&format!("s{i} = hw_add(s{i}, {value});"));
        }
        if !of_rows.is_empty() {
            self.line("if (c == 0) {");
            of_rows.iter().for_each(|&(write, reg)| self.store(write, reg, &at[..1]));
            self.line("}");
        }
        self.line("}");
        for (i, &(_, reg)) in sums.iter().enumerate() {
            let ty = self.classes.ty(reg);
            self.line(&format!("hw_st(({ty}*)hw_a.p[{}], block * {cols}ll + c, s{i});", reads + i));
        }
        self.line("}");
        // The next tile writes the row scalars anew.
        if by_rows && each > tile {
            self.line("hw_sync();");
        }
        self.line("}");
        let about = format!("{each} rows a block, {tile} at a time; sums over rows to scratch memory");
        let shared = if by_rows { tile * exported.len() * 8 } else { 0 };
        let launches = blocks.checked_mul(groups).and_then(|n| u32::try_from(n).ok());
        let launches = launches.ok_or_else(|| Refusal::new("too many columns"))?;
        let mut launch = self.launched(op, "columns", &about, THREADS, shared, launches).launches.remove(0);
        let program = Arc::make_mut(&mut launch.program);
        // Results of sums are the second kernel's.
        for (i, &(_, reg)) in sums.iter().enumerate() {
            let size = if self.classes.ty(reg) == "float" { 4 } else { 8 };
            let bytes = (blocks * cols * size) as u64;
            program.params.push(Param { name: format!("partial{i}"), writes: true, bytes });
            launch.args.push(LoweredArg::Scratch { bytes: starts[i] });
        }
        self.scalars.clear();
        self.vectors.clear();
        lowered.launches.push(launch);
        Ok(())
    }

    /// The kernel that adds the partial sums of a result.
    fn total(
        &mut self,
        op: &str,
        (write, reg): (usize, usize),
        (start, blocks): (u64, usize),
        lowered: &mut Lowered<CudaProgram>,
    ) -> Result<(), Refusal> {
        let cols = self.p.cols();
        let operand = self.p.reads.len() + write;
        let (ty, dtype) = (self.classes.ty(reg), self.views[operand].dtype);
        let float = self.classes.of[reg] == Some(Class::Float);
        let total = if float { "double" } else { "i64" };
        self.line(&format!("const i64 c = hw_block() * {THREADS} + hw_thread();"));
        self.line(&format!("if (c >= {cols}ll) return;"));
        let mut out = std::mem::take(&mut self.out);
        coordinates(&mut out, &self.inner, "c", "d");
        self.out = out;
        self.line(&format!("{total} t = 0;"));
        if blocks > 0 {
            let at = format!("(const {ty}*)hw_a.p[0], b * {cols}ll + c");
            self.line(&format!("for (i64 b = 0; b < {blocks}; b++) t = hw_add(t, ({total})hw_ld({at}));"));
        }
        let axes = [(self.inner.as_slice(), "d")];
        let value = match dtype {
            DType::Bool => "(u8)(t != 0)".into(),
            _ => store(dtype, "t", float),
        };
        let (memory, at) = (memory(dtype), offset(&axes, operand));
        self.line(&format!("hw_st(({memory}*)hw_a.p[1], {at}, {value});"));
        let body = indented(&std::mem::take(&mut self.out));
        let doc = vec![format!("{op}: sums over rows, from {blocks} partial sums of each of {cols} columns")];
        let size = if ty == "float" { 4 } else { 8 };
        let params = vec![
            Param { name: "partial".into(), writes: false, bytes: (blocks * cols * size) as u64 },
            Param { name: format!("y{write}"), writes: true, bytes: span(self.views[operand]) },
        ];
        let work = Work::Text { doc, body, threads: THREADS as u32, shared: 0 };
        let program = CudaProgram { name: symbol(op, "total"), params, work };
        let args = vec![LoweredArg::Scratch { bytes: start }, LoweredArg::Write { operand: write, bytes: 0 }];
        let count = u32::try_from(cols.div_ceil(THREADS)).map_err(|_| Refusal::new("too many columns"))?;
        lowered.launches.push(LoweredLaunch { program: Arc::new(program), args, blocks: count });
        Ok(())
    }
}
