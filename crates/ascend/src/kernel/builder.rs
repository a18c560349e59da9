//! Writes kernel programs: declarations, then statements in order, with loops and branches as closures.
//!
//! ```
//! use headwater_ascend::chip::Arch;
//! use headwater_ascend::kernel::{Binary, Builder, Elem, Over, Pipe, Scalar, Unit};
//!
//! let mut k = Builder::new("twice", Arch::P310, Unit::Whole);
//! let x = k.input("x", Elem::F16, 4096);
//! let y = k.output("y", Elem::F16, 4096);
//! let tile = k.ub("tile", Elem::F16, 1024);
//! k.for_each("i", Scalar::BLOCK, 4, Scalar::BLOCKS, |k, i| {
//!     k.copy(tile.at(0), x.at(i.clone() * 1024), 1024);
//!     k.flag(Pipe::Mte2, Pipe::V, 0);
//!     k.binary(Binary::Add, tile.at(0), tile.at(0), tile.at(0), Over::count(1024));
//!     k.flag(Pipe::V, Pipe::Mte3, 0);
//!     k.copy(y.at(i * 1024), tile.at(0), 1024);
//!     k.flag(Pipe::Mte3, Pipe::Mte2, 0);
//! });
//! let program = k.finish()?;
//! assert_eq!(headwater_ascend::kernel::parse(&program.to_string())?, program);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::finding::Result;
use super::instr::*;
use super::op::*;
use super::operand::{AtomicOp, Base, Compare, Mask, Over, Round, Vector, View};
use super::scalar::{Scalar, ScalarType};
use super::{
    Access, Buffer, BufferId, Elem, Param, ParamId, ParamKind, Part, Pipe, Program, Source, SourceId, Space,
    Stmt, StmtKind, Unit, Var, VarId, place, verify,
};
use crate::chip::Arch;
use headwater_core::graph::Origin;

/// A pointer parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gm {
    /// Which.
    pub id: ParamId,
    /// Type of its elements.
    pub elem: Elem,
}

/// A buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buf {
    /// Which.
    pub id: BufferId,
    /// Type that it is seen as, unless said otherwise.
    pub elem: Elem,
    /// Elements of that type.
    pub len: u64,
}

impl Gm {
    /// The place `offset` elements from the beginning.
    pub fn at(self, offset: impl Into<Scalar>) -> View {
        View { base: Base::Param(self.id), elem: self.elem, offset: offset.into() }
    }
}

impl Buf {
    /// The place `offset` elements from the beginning.
    pub fn at(self, offset: impl Into<Scalar>) -> View {
        View { base: Base::Buffer(self.id), elem: self.elem, offset: offset.into() }
    }

    /// The same buffer seen as elements of another type.
    pub fn cast(self, elem: Elem) -> Buf {
        Buf { id: self.id, elem, len: self.len * self.elem.size() / elem.size() }
    }
}

/// A program being written.
pub struct Builder {
    program: Program,
    /// Statements of the part, and of the blocks that are open inside it.
    open: Vec<Vec<Stmt>>,
    unit: Unit,
    source: SourceId,
    note: String,
}

impl Builder {
    /// A program with one part so far, for cores of kind `unit`.
    pub fn new(name: &str, arch: Arch, unit: Unit) -> Builder {
        let program = Program {
            name: name.into(),
            arch,
            doc: Vec::new(),
            params: Vec::new(),
            buffers: Vec::new(),
            vars: Vec::new(),
            sources: Vec::new(),
            parts: Vec::new(),
        };
        Builder { program, open: vec![Vec::new()], unit, source: SourceId(0), note: String::new() }
    }

    /// The instructions and memories that it is written for.
    pub const fn arch(&self) -> Arch {
        self.program.arch
    }

    /// A line for people: formula, shapes, method.
    pub fn doc(&mut self, line: impl Into<String>) {
        self.program.doc.push(line.into());
    }

    /// A note after the next statement.
    pub fn note(&mut self, note: impl Into<String>) {
        self.note = note.into();
    }

    /// The operator that the statements from here on belong to.
    pub fn source(&mut self, op: &str, origin: &Origin) {
        let source = Source { op: op.into(), origin: origin.clone() };
        let place = self.program.sources.iter().position(|s| *s == source);
        let place = place.unwrap_or_else(|| {
            self.program.sources.push(source);
            self.program.sources.len() - 1
        });
        self.source = SourceId(place as u32 + 1);
    }

    /// Ends the part and begins one for cores of another kind (A2).
    pub fn part(&mut self, unit: Unit) {
        self.end_part();
        self.unit = unit;
    }

    fn end_part(&mut self) {
        let body = std::mem::replace(&mut self.open, vec![Vec::new()]).swap_remove(0);
        self.program.parts.push(Part { unit: self.unit, body });
    }

    /// Ends the program: drops variables that nothing reads, places its buffers and verifies it.
    ///
    /// # Errors
    /// `Capacity` where buffers do not fit; the first rule that is broken.
    pub fn finish(mut self) -> Result<Program> {
        self.end_part();
        self.program.drop_unread();
        place(&mut self.program)?;
        verify(&self.program).map_err(|mut findings| Box::new(findings.swap_remove(0)))?;
        Ok(self.program)
    }

    // Declarations.

    /// A parameter.
    pub fn param(&mut self, name: &str, kind: ParamKind) -> ParamId {
        let name = self.unique(name);
        self.program.params.push(Param { name, kind });
        ParamId(self.program.params.len() as u32 - 1)
    }

    /// A pointer to `len` elements.
    pub fn pointer(&mut self, name: &str, access: Access, elem: Elem, len: u64) -> Gm {
        let kind = ParamKind::Pointer { access, elem, len, slack: 0, streamed: false };
        Gm { id: self.param(name, kind), elem }
    }

    /// A pointer that is read.
    pub fn input(&mut self, name: &str, elem: Elem, len: u64) -> Gm {
        self.pointer(name, Access::In, elem, len)
    }

    /// A pointer that is written.
    pub fn output(&mut self, name: &str, elem: Elem, len: u64) -> Gm {
        self.pointer(name, Access::Out, elem, len)
    }

    /// Workspace of the kernel in GM.
    pub fn workspace(&mut self, name: &str, elem: Elem, len: u64) -> Gm {
        self.pointer(name, Access::Workspace, elem, len)
    }

    /// Lets copies reach `slack` elements past a pointer's last.
    pub fn slack(&mut self, gm: Gm, elements: u64) {
        if let Some(Param { kind: ParamKind::Pointer { slack, .. }, .. }) =
            self.program.params.get_mut(gm.id.0 as usize)
        {
            *slack = elements;
        }
    }

    /// Lets reads and writes of a pointer leave L2 alone (A2): for what is used once.
    pub fn streamed(&mut self, gm: Gm) {
        if let Some(Param { kind: ParamKind::Pointer { streamed, .. }, .. }) =
            self.program.params.get_mut(gm.id.0 as usize)
        {
            *streamed = true;
        }
    }

    /// An integer parameter.
    pub fn int_param(&mut self, name: &str) -> Scalar {
        Scalar::Param(self.param(name, ParamKind::Int))
    }

    /// A float parameter.
    pub fn float_param(&mut self, name: &str) -> Scalar {
        Scalar::Param(self.param(name, ParamKind::Float))
    }

    /// A buffer of `len` elements in a memory.
    pub fn buffer(&mut self, name: &str, space: Space, elem: Elem, len: u64, phase: Option<u32>) -> Buf {
        let bytes = len.saturating_mul(elem.size()).div_ceil(space.align()).saturating_mul(space.align());
        let name = self.unique(name);
        self.program.buffers.push(Buffer { name, space, bytes, phase, address: None });
        Buf { id: BufferId(self.program.buffers.len() as u32 - 1), elem, len }
    }

    /// A buffer in UB.
    pub fn ub(&mut self, name: &str, elem: Elem, len: u64) -> Buf {
        self.buffer(name, Space::Ub, elem, len, None)
    }

    /// A buffer in UB that begins at `phase` within 512 bytes, near the beginning, or, from 256 on, near the
    /// end.
    pub fn ub_phase(&mut self, name: &str, elem: Elem, len: u64, phase: u32) -> Buf {
        self.buffer(name, Space::Ub, elem, len, Some(phase))
    }

    /// A scalar variable, without a value yet.
    pub fn var(&mut self, name: &str, ty: ScalarType) -> VarId {
        let name = self.unique(name);
        self.program.vars.push(Var { name, ty });
        VarId(self.program.vars.len() as u32 - 1)
    }

    /// `name`, with a number appended if it is taken.
    fn unique(&self, name: &str) -> String {
        let p = &self.program;
        let taken = |name: &str| {
            p.params.iter().any(|x| x.name == name)
                || p.buffers.iter().any(|x| x.name == name)
                || p.vars.iter().any(|x| x.name == name)
        };
        match taken(name) {
            false => name.to_string(),
            true => (2..).map(|i| format!("{name}_{i}")).find(|n| !taken(n)).unwrap_or_default(),
        }
    }

    // Statements.

    fn push(&mut self, kind: StmtKind) {
        let stmt = Stmt { kind, note: std::mem::take(&mut self.note), source: self.source };
        if let Some(open) = self.open.last_mut() {
            open.push(stmt);
        }
    }

    fn block(&mut self, write: impl FnOnce(&mut Self)) -> Vec<Stmt> {
        self.open.push(Vec::new());
        write(self);
        self.open.pop().unwrap_or_default()
    }

    /// Statements that come before all of the part, whenever they are written; not inside a loop or branch.
    pub fn at_start(&mut self, write: impl FnOnce(&mut Self)) {
        let body = self.block(write);
        if let Some(part) = self.open.first_mut() {
            part.splice(0..0, body);
        }
    }

    /// Issues an instruction.
    pub fn issue(&mut self, instr: impl Into<Instr>) {
        self.push(StmtKind::Instr(instr.into()));
    }

    /// A variable with a value; an integer's or a float's, as `value` is.
    pub fn let_(&mut self, name: &str, value: impl Into<Scalar>) -> Scalar {
        let value = value.into();
        let ty = value.ty(&self.program).unwrap_or(ScalarType::Int);
        let var = self.var(name, ty);
        self.set(var, value);
        Scalar::Var(var)
    }

    /// Gives a variable a value.
    pub fn set(&mut self, var: VarId, value: impl Into<Scalar>) {
        self.push(StmtKind::Let(var, value.into()));
    }

    /// A loop over `from`, `from + step`, … below `to`.
    pub fn for_each(
        &mut self,
        name: &str,
        from: impl Into<Scalar>,
        to: impl Into<Scalar>,
        step: impl Into<Scalar>,
        write: impl FnOnce(&mut Self, Scalar),
    ) {
        let var = self.var(name, ScalarType::Int);
        let note = std::mem::take(&mut self.note);
        let body = self.block(|k| write(k, Scalar::Var(var)));
        self.note = note;
        self.push(StmtKind::For { var, from: from.into(), to: to.into(), step: step.into(), body });
    }

    /// Statements that run if `cond` is not 0.
    pub fn if_(&mut self, cond: impl Into<Scalar>, then: impl FnOnce(&mut Self)) {
        self.if_else(cond, then, |_| {});
    }

    /// Statements that run if `cond` is not 0, and others that run if it is.
    pub fn if_else(
        &mut self,
        cond: impl Into<Scalar>,
        then: impl FnOnce(&mut Self),
        otherwise: impl FnOnce(&mut Self),
    ) {
        let note = std::mem::take(&mut self.note);
        let then = self.block(then);
        let otherwise = self.block(otherwise);
        self.note = note;
        self.push(StmtKind::If { cond: cond.into(), then, otherwise });
    }

    /// Statements that run as long as `cond` is not 0.
    pub fn while_(&mut self, cond: impl Into<Scalar>, write: impl FnOnce(&mut Self)) {
        let note = std::mem::take(&mut self.note);
        let body = self.block(write);
        self.note = note;
        self.push(StmtKind::While { cond: cond.into(), body });
    }

    // Instructions, the frequent ones.

    /// Copies `count` contiguous elements, a whole number of blocks of 32 bytes.
    pub fn copy(&mut self, dst: View, src: View, count: impl Into<Scalar>) {
        let len = count.into() / dst.elem.per_block();
        self.copy_runs(dst, src, 1, len, 0, 0);
    }

    /// Copies `blocks` runs of `len` units of 32 bytes, with gaps in the same units.
    pub fn copy_runs(
        &mut self,
        dst: View,
        src: View,
        blocks: impl Into<Scalar>,
        len: impl Into<Scalar>,
        src_gap: impl Into<Scalar>,
        dst_gap: impl Into<Scalar>,
    ) {
        let (blocks, len, src_gap, dst_gap) = (blocks.into(), len.into(), src_gap.into(), dst_gap.into());
        self.issue(DataCopy { dst, src, blocks, len, src_gap, dst_gap, atomic: None });
    }

    /// Copies `count` contiguous elements, whole blocks, from UB onto what is in GM.
    pub fn copy_atomic(&mut self, dst: View, src: View, count: impl Into<Scalar>, op: AtomicOp) {
        let len = count.into() / dst.elem.per_block();
        let zero = Scalar::Int(0);
        self.issue(DataCopy {
            dst,
            src,
            blocks: 1.into(),
            len,
            src_gap: zero.clone(),
            dst_gap: zero,
            atomic: Some(op),
        });
    }

    /// Copies `blocks` rows of `bytes` bytes (A2), with gaps in bytes in GM and in units of 32 bytes in UB.
    pub fn copy_pad(
        &mut self,
        dst: View,
        src: View,
        blocks: impl Into<Scalar>,
        bytes: impl Into<Scalar>,
        src_gap: impl Into<Scalar>,
        dst_gap: impl Into<Scalar>,
    ) {
        self.issue(DataCopyPad {
            dst,
            src,
            blocks: blocks.into(),
            bytes: bytes.into(),
            src_gap: src_gap.into(),
            dst_gap: dst_gap.into(),
            left: 0,
            right: 0,
            fill: None,
            atomic: None,
        });
    }

    /// `dst = op(src)`.
    pub fn unary(&mut self, op: Unary, dst: impl Into<Vector>, src: impl Into<Vector>, over: Over) {
        self.issue(UnaryOp { op, dst: dst.into(), src: src.into(), over });
    }

    /// `dst = op(src0, src1)`.
    pub fn binary(
        &mut self,
        op: Binary,
        dst: impl Into<Vector>,
        src0: impl Into<Vector>,
        src1: impl Into<Vector>,
        over: Over,
    ) {
        self.issue(BinaryOp { op, dst: dst.into(), src0: src0.into(), src1: src1.into(), over });
    }

    /// `dst = op(src, scalar)`.
    pub fn scaled(
        &mut self,
        op: Scaled,
        dst: impl Into<Vector>,
        src: impl Into<Vector>,
        scalar: impl Into<Scalar>,
        over: Over,
    ) {
        self.issue(ScaledOp { op, dst: dst.into(), src: src.into(), scalar: scalar.into(), over });
    }

    /// `dst = value`.
    pub fn duplicate(&mut self, dst: impl Into<Vector>, value: impl Into<Scalar>, over: Over) {
        self.issue(Duplicate { dst: dst.into(), value: value.into(), over });
    }

    /// `dst = src`, converted.
    pub fn cast(&mut self, dst: impl Into<Vector>, src: impl Into<Vector>, round: Round, over: Over) {
        self.issue(Cast { dst: dst.into(), src: src.into(), round, scale: None, over });
    }

    /// Bits of `src0 ? src1`.
    pub fn compare(
        &mut self,
        dst: View,
        src0: impl Into<Vector>,
        src1: impl Into<Vector>,
        cmp: Compare,
        over: Over,
    ) {
        self.issue(CompareOp { dst, src0: src0.into(), src1: src1.into(), cmp, over });
    }

    /// `dst = bit ? src0 : src1`.
    pub fn select(
        &mut self,
        dst: impl Into<Vector>,
        mask: View,
        src0: impl Into<Vector>,
        src1: impl Into<Vector>,
        over: Over,
    ) {
        self.issue(Select { dst: dst.into(), mask, src0: src0.into(), src1: src1.into(), over });
    }

    /// Reduces each of `repeat` repeats, blocks or pairs; results of repeats have stride `dst_repeat`.
    pub fn reduce(
        &mut self,
        op: Reduction,
        dst: View,
        src: impl Into<Vector>,
        mask: impl Into<Scalar>,
        repeat: impl Into<Scalar>,
        dst_repeat: u32,
    ) {
        let mask = Mask::First(mask.into());
        self.issue(Reduce { op, dst, src: src.into(), mask, repeat: repeat.into(), dst_repeat, order: None });
    }

    /// The scalar unit reads an element.
    pub fn load(&mut self, name: &str, src: View) -> Scalar {
        let ty = if src.elem.is_float() { ScalarType::Float } else { ScalarType::Int };
        let into = self.var(name, ty);
        self.issue(Load { into, src });
        Scalar::Var(into)
    }

    /// The scalar unit writes an element.
    pub fn store(&mut self, dst: View, value: impl Into<Scalar>) {
        self.issue(Store { dst, value: value.into() });
    }

    /// Sets a flag.
    pub fn set_flag(&mut self, from: Pipe, to: Pipe, id: impl Into<Scalar>) {
        self.issue(SetFlag { from, to, id: id.into() });
    }

    /// Waits for a flag.
    pub fn wait_flag(&mut self, from: Pipe, to: Pipe, id: impl Into<Scalar>) {
        self.issue(WaitFlag { from, to, id: id.into() });
    }

    /// Sets a flag and waits for it at once: `to` goes on when `from` is done.
    pub fn flag(&mut self, from: Pipe, to: Pipe, id: impl Into<Scalar>) {
        let id = id.into();
        self.set_flag(from, to, id.clone());
        self.wait_flag(from, to, id);
    }

    /// A barrier.
    pub fn barrier(&mut self, barrier: Barrier) {
        self.push(StmtKind::Instr(Instr::Barrier(barrier)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emit::emit;

    #[test]
    fn variables_that_nothing_reads_are_dropped() {
        let mut k = Builder::new("k", Arch::A2, Unit::Vector);
        let input = k.input("x", super::super::Elem::F32, 64);
        let buffer = k.ub("a", super::super::Elem::F32, 64);
        let lonely = k.let_("lonely", Scalar::BLOCK);
        // Read by a variable alone that nothing reads.
        k.let_("last", lonely + 1);
        let used = k.let_("used", Scalar::BLOCK * 8);
        k.for_each("i", 0, used, 8, |k, _| {
            k.let_("inner", Scalar::BLOCKS);
            k.copy_pad(buffer.at(0), input.at(0), 1, 32, 0, 0);
        });
        let program = k.finish().unwrap();
        let mut kept = Vec::new();
        Program::walk(&program.parts[0].body, &mut |stmt| {
            if let StmtKind::Let(var, _) = &stmt.kind {
                kept.push(program.vars[var.0 as usize].name.as_str());
            }
        });
        assert_eq!(kept, ["used"]);
        let source = emit(&program);
        let code = source.split(crate::emit::BEGIN).next().unwrap();
        assert!(code.contains("int64_t used =") && !code.contains("lonely") && !code.contains("inner"));
        // The text form is still exact.
        assert_eq!(super::super::parse(&program.to_string()).unwrap(), program);
    }
}
