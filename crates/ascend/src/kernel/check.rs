//! Rules of single instructions: which chip has them, for which types, in which memories, with which fields.
//!
//! One statement of each rule serves twice: on a program, where only constants are known, and on what a core
//! issues, where everything is. Sources: asc-devkit's pages on each call, and its page on alignment and
//! overlap.

use super::exists::{cast_exists, event_exists};
use super::finding::Rule;
use super::instr::*;
use super::meaning::ReductionKind;
use super::op::*;
use super::operand::{AtomicOp, Base, Compare, Mask, Order, Over, Vector, View};
use super::scalar::{Scalar, Value};
use super::{Elem, Pipe, Program, Space, Unit};
use crate::chip::Arch;

/// A scalar that may be known.
pub trait Known {
    /// Its value, if it is.
    fn known(&self) -> Option<Value>;
}

impl Known for Scalar {
    fn known(&self) -> Option<Value> {
        self.constant()
    }
}

impl Known for Value {
    fn known(&self) -> Option<Value> {
        Some(*self)
    }
}

/// A broken rule: which, the buffer, and what is wrong.
pub struct Broken {
    /// The rule.
    pub rule: Rule,
    /// Name of the buffer or parameter; empty if none is concerned.
    pub buffer: String,
    /// Expected and got.
    pub message: String,
}

pub(super) type Checked = Result<(), Broken>;

macro_rules! broken {
    ($rule:ident, $($arg:tt)+) => {
        Err($crate::kernel::Broken { rule: $crate::kernel::finding::Rule::$rule, buffer: String::new(), message: format!($($arg)+) })
    };
}

pub(super) use broken;

/// Checks one instruction of a part for cores of kind `unit`.
///
/// # Errors
/// The first rule that it breaks.
pub fn check<S: Known>(program: &Program, unit: Unit, instr: &Instr<S>) -> Checked {
    let c = Check { program, arch: program.arch, unit };
    let mut views = Ok(());
    instr.views(&mut |name, view| {
        if views.is_ok() {
            views = c.view(name, view);
        }
    });
    views?;
    c.instr(instr)
}

pub(super) struct Check<'a> {
    program: &'a Program,
    pub(super) arch: Arch,
    unit: Unit,
}

pub(super) fn int<S: Known>(x: &S) -> Option<i64> {
    x.known().map(Value::as_int)
}

pub(super) fn range<S: Known>(name: &str, x: &S, low: i64, high: i64) -> Checked {
    match int(x) {
        Some(x) if !(low..=high).contains(&x) => broken!(Range, "{name} is {x}, outside {low} to {high}"),
        _ => Ok(()),
    }
}

pub(super) fn within(name: &str, x: u32, low: u32, high: u32) -> Checked {
    range(name, &Value::Int(x.into()), low.into(), high.into())
}

/// The flag from the vector to the scalar unit that a ramp's text takes: there it begins on the scalar unit.
pub const RAMP_FLAG: i64 = 5;
/// Types of arithmetic in the vector unit.
const ARITHMETIC: [Elem; 4] = [Elem::I16, Elem::F16, Elem::I32, Elem::F32];
const FLOATS: [Elem; 2] = [Elem::F16, Elem::F32];
const INTEGERS: [Elem; 2] = [Elem::I16, Elem::I32];
const BITS16: [Elem; 2] = [Elem::I16, Elem::U16];
const SHIFTS: [Elem; 4] = [Elem::I16, Elem::U16, Elem::I32, Elem::U32];

impl Check<'_> {
    fn name(&self, base: Base) -> String {
        self.program.base_name(base).to_string()
    }

    pub(super) fn space(&self, base: Base) -> Space {
        self.program.space(base)
    }

    pub(super) fn about<S>(&self, view: &View<S>, result: Checked) -> Checked {
        result.map_err(|mut b| {
            if b.buffer.is_empty() {
                b.buffer = self.name(view.base);
            }
            b
        })
    }

    /// Rules of every operand: the type exists, the core reaches the memory.
    fn view<S: Known>(&self, name: &str, view: &View<S>) -> Checked {
        let space = self.space(view.base);
        if view.elem == Elem::BF16 && self.arch == Arch::P310 {
            return self.about(view, broken!(Unsupported, "{name} is bf16, which 310P does not have"));
        }
        let reached = match (self.unit, space) {
            (_, Space::Gm) | (Unit::Whole, _) => true,
            (Unit::Vector, space) => space == Space::Ub,
            (Unit::Cube, space) => space != Space::Ub,
        };
        match reached {
            true => Ok(()),
            false => {
                self.about(view, broken!(Memory, "{name} is in {space}, which a {} core has not", self.unit))
            }
        }
    }

    pub(super) fn only(&self, arch: Arch, what: &str) -> Checked {
        match self.arch == arch {
            true => Ok(()),
            false => broken!(Unsupported, "{what} does not exist on architecture {}", self.arch),
        }
    }

    pub(super) fn unit(&self, wanted: Unit, what: &str) -> Checked {
        match self.unit == wanted || self.unit == Unit::Whole {
            true => Ok(()),
            false => broken!(Unsupported, "{what} does not exist on a {} core", self.unit),
        }
    }

    pub(super) fn elem<S>(&self, view: &View<S>, allowed: &[Elem]) -> Checked {
        if allowed.contains(&view.elem) {
            return Ok(());
        }
        let names: Vec<_> = allowed.iter().map(|e| e.name()).collect();
        self.about(view, broken!(Unsupported, "type {} is none of {}", view.elem, names.join(", ")))
    }

    pub(super) fn same<S, T>(&self, a: &View<S>, b: &View<T>) -> Checked {
        match a.elem == b.elem {
            true => Ok(()),
            false => self.about(b, broken!(Unsupported, "types {} and {} differ", a.elem, b.elem)),
        }
    }

    pub(super) fn is_in<S>(&self, view: &View<S>, spaces: &[Space]) -> Checked {
        let space = self.space(view.base);
        match spaces.contains(&space) {
            true => Ok(()),
            false => {
                let names: Vec<_> = spaces.iter().map(|s| s.name()).collect();
                self.about(view, broken!(Memory, "the operand is in {space}, not in {}", names.join(" or ")))
            }
        }
    }

    /// The address is a multiple of `align` bytes within its memory; buffers begin at multiples of 32 at
    /// least.
    pub(super) fn aligned<S: Known>(&self, view: &View<S>, align: i64) -> Checked {
        let Some(offset) = int(&view.offset) else { return Ok(()) };
        let start = match view.base {
            Base::Param(_) => 0,
            Base::Buffer(b) => self.program.buffers.get(b.0 as usize).and_then(|b| b.address).unwrap_or(0),
        };
        let byte = offset.saturating_mul(view.elem.size() as i64).saturating_add(start as i64);
        match byte.rem_euclid(align) {
            0 => Ok(()),
            _ => self.about(view, broken!(Alignment, "address {byte} is no multiple of {align} bytes")),
        }
    }

    /// An operand of the vector unit.
    fn vector<S: Known>(&self, v: &Vector<S>, over: Option<&Over<S>>, result: bool) -> Checked {
        self.is_in(&v.view, &[Space::Ub])?;
        self.aligned(&v.view, 32)?;
        let about = |r: Checked| self.about(&v.view, r);
        about(within("the block stride", v.block, u32::from(result), 255))?;
        about(within("the repeat stride", v.repeat, 0, 255))?;
        let counted = matches!(over, Some(Over::Count(_)));
        if counted && (v.block, v.repeat) != (1, 8) && (v.block, v.repeat) != (1, 4) {
            return about(broken!(
                Range,
                "counted elements are contiguous: strides are not {}, {}",
                v.block,
                v.repeat
            ));
        }
        Ok(())
    }

    fn over<S: Known>(&self, over: &Over<S>, wide: Elem) -> Checked {
        self.unit(Unit::Vector, "a vector instruction")?;
        match over {
            Over::Count(n) => range("count", n, 0, i64::from(u32::MAX)),
            Over::Repeats { mask, repeat } => {
                range("repeat", repeat, 0, 255)?;
                self.mask(mask, wide)
            }
        }
    }

    /// Types that are compared.
    fn compared(&self, cmp: Compare) -> &'static [Elem] {
        match (self.arch, cmp) {
            (Arch::A2, Compare::Eq) => &[Elem::F16, Elem::F32, Elem::I32],
            _ => &FLOATS,
        }
    }

    fn mask<S: Known>(&self, mask: &Mask<S>, wide: Elem) -> Checked {
        // For elements of one byte the mask counts pairs.
        let lanes = wide.per_repeat().min(128);
        match mask {
            Mask::First(n) => range("mask", n, 1, lanes as i64),
            Mask::Bits([0, 0]) => broken!(Range, "the mask is empty"),
            Mask::Bits([low, high]) => {
                let too_high = match lanes {
                    128 => false,
                    64 => *high != 0,
                    lanes => *high != 0 || low >> lanes != 0,
                };
                match too_high {
                    true => broken!(Range, "the mask has bits beyond the {lanes} elements of a repeat"),
                    false => Ok(()),
                }
            }
        }
    }

    pub(super) fn atomic(&self, op: Option<AtomicOp>, elem: Elem, dst: Space) -> Checked {
        let Some(op) = op else { return Ok(()) };
        if dst != Space::Gm {
            return broken!(Memory, "atomic writes go to gm, not to {dst}");
        }
        let has = match self.arch {
            Arch::A2 => matches!(elem, Elem::I8 | Elem::I16 | Elem::F16 | Elem::BF16 | Elem::I32 | Elem::F32),
            Arch::P310 => op == AtomicOp::Add && matches!(elem, Elem::I16 | Elem::F16 | Elem::F32),
        };
        match has {
            true => Ok(()),
            false => broken!(Unsupported, "there is no atomic {op} of {elem} on architecture {}", self.arch),
        }
    }

    fn whole_vector<S: Known>(
        &self,
        dst: &Vector<S>,
        src: &[&Vector<S>],
        over: &Over<S>,
        types: &[Elem],
    ) -> Checked {
        self.elem(&dst.view, types)?;
        self.over(over, dst.view.elem)?;
        self.vector(dst, Some(over), true)?;
        for v in src {
            self.same(&dst.view, &v.view)?;
            self.vector(v, Some(over), false)?;
        }
        Ok(())
    }

    fn bits<S: Known>(&self, view: &View<S>, over: &Over<S>, elem: Elem) -> Checked {
        self.elem(view, &[Elem::U8])?;
        self.is_in(view, &[Space::Ub])?;
        self.aligned(view, if matches!(over, Over::Count(_)) { 32 } else { elem.per_repeat() as i64 / 8 })?;
        match over {
            Over::Count(n) => match int(n) {
                Some(n) if n % elem.per_repeat() as i64 != 0 => {
                    broken!(Range, "count is {n}, no multiple of {} elements (256 bytes)", elem.per_repeat())
                }
                _ => Ok(()),
            },
            Over::Repeats { mask: Mask::First(n), .. } => match int(n) {
                Some(n) if n % 8 != 0 => broken!(Range, "the mask is {n}; bits are written in whole bytes"),
                _ => Ok(()),
            },
            Over::Repeats { mask: Mask::Bits(_), .. } => {
                broken!(Range, "bits are written for the first elements of a repeat, not by a mask of bits")
            }
        }
    }

    fn instr<S: Known>(&self, instr: &Instr<S>) -> Checked {
        use Elem::{BF16, F16, F32, I8, I16, I32, U8, U16, U32};
        use Space::{Gm, L0a, L0b, L0c, L1, Ub};
        match instr {
            Instr::DataCopy(x) => self.data_copy(x),
            Instr::DataCopyPad(x) => self.data_copy_pad(x),
            Instr::CopyNdToNz(x) => {
                self.only(Arch::A2, "a copy from rows to fractals")?;
                self.is_in(&x.dst, &[L1])?;
                self.is_in(&x.src, &[Gm])?;
                self.same(&x.dst, &x.src)?;
                self.aligned(&x.dst, 32)?;
                range("matrices", &x.matrices, 0, 4095)?;
                range("n", &x.n, 0, 16384)?;
                range("d", &x.d, 0, 65535)?;
                range("src_row", &x.src_row, 1, 65535)?;
                range("dst_c0", &x.dst_c0, 1, 16384)?;
                range("dst_row", &x.dst_row, 1, 16384)?;
                range("dst_matrix", &x.dst_matrix, 0, 65535)
            }
            Instr::LoadData2d(x) => {
                self.unit(Unit::Cube, "a load into L0")?;
                self.same(&x.dst, &x.src)?;
                self.is_in(&x.src, &[L1, Gm])?;
                let to: &[Space] = if self.space(x.src.base) == Gm { &[L1, L0a, L0b] } else { &[L0a, L0b] };
                self.is_in(&x.dst, to)?;
                self.aligned(&x.dst, if self.space(x.dst.base) == L1 { 32 } else { 512 })?;
                self.aligned(&x.src, if self.space(x.src.base) == L1 { 32 } else { 1 })?;
                if x.transpose && (x.src.elem.size() != 2 || self.space(x.src.base) == Gm) {
                    return broken!(Unsupported, "fractals are transposed from l1, of 16-bit types");
                }
                range("start", &x.start, 0, 65535)?;
                range("repeat", &x.repeat, 0, 255)?;
                range("src_stride", &x.src_stride, 0, 65535)?;
                range("dst_gap", &x.dst_gap, 0, 65535)
            }
            Instr::LoadDataTransposed(x) => {
                self.only(Arch::A2, "a transposing load of blocks")?;
                self.same(&x.dst, &x.src)?;
                self.elem(&x.dst, &[I8, U8, F16, BF16, I32, U32, F32])?;
                self.is_in(&x.src, &[L1])?;
                self.is_in(&x.dst, &[L0a, L0b])?;
                self.aligned(&x.dst, 512)?;
                range("start", &x.start, 0, 65535)?;
                range("repeat", &x.repeat, 0, 255)?;
                range("src_stride", &x.src_stride, 0, 65535)?;
                range("dst_gap", &x.dst_gap, 0, 65535)?;
                range("dst_fractal_gap", &x.dst_fractal_gap, 0, 65535)
            }
            Instr::LoadData3d(x) => self.load_data_3d(x),
            Instr::InitConst(x) => {
                self.only(Arch::A2, "filling of l1 and l0")?;
                self.is_in(&x.dst, &[L1, L0a, L0b])?;
                self.elem(&x.dst, &[F16, BF16, I16, U16, F32, I32, U32])?;
                self.aligned(&x.dst, if self.space(x.dst.base) == L1 { 32 } else { 512 })?;
                range("repeat", &x.repeat, 0, 32767)?;
                range("len", &x.len, 0, 32767)?;
                range("gap", &x.gap, 0, 32767)
            }
            Instr::Mmad(x) => self.mmad(x),
            Instr::Fixpipe(x) => {
                self.only(Arch::A2, "fixpipe")?;
                self.is_in(&x.src, &[L0c])?;
                self.is_in(&x.dst, &[Gm, L1])?;
                let to = match x.quant {
                    Quant::Off => x.src.elem,
                    Quant::F16 => F16,
                    Quant::BF16 => BF16,
                };
                self.elem(&x.src, if x.quant == Quant::Off { &[F32, I32] } else { &[F32] })?;
                self.elem(&x.dst, &[to])?;
                self.aligned(&x.src, 64)?;
                self.atomic(x.atomic, x.dst.elem, self.space(x.dst.base))?;
                range("n", &x.n, 1, 4095)?;
                range("m", &x.m, 1, if x.layout == Layout::Nd { 8192 } else { 65535 })?;
                range("src_stride", &x.src_stride, 1, 65535)?;
                range("dst_stride", &x.dst_stride, 1, i64::from(u32::MAX))?;
                match int(&x.n) {
                    Some(n) if x.layout == Layout::Nz && n % 16 != 0 => {
                        broken!(Range, "n is {n}, no multiple of 16")
                    }
                    _ => Ok(()),
                }
            }
            Instr::CopyL0c(x) => {
                self.only(Arch::P310, "a copy from l0c to ub")?;
                self.is_in(&x.src, &[L0c])?;
                self.is_in(&x.dst, &[Ub])?;
                let fits = matches!((x.src.elem, x.dst.elem), (F32, F32 | F16) | (F16, F16) | (I32, I32));
                if !fits {
                    return broken!(
                        Unsupported,
                        "there is no conversion of {} to {}",
                        x.src.elem,
                        x.dst.elem
                    );
                }
                self.aligned(&x.src, 512)?;
                self.aligned(&x.dst, 32)?;
                range("blocks", &x.blocks, 1, 4095)?;
                range("len", &x.len, 1, 65535)?;
                range("src_gap", &x.src_gap, 0, 65535)?;
                range("dst_gap", &x.dst_gap, 0, 65535)
            }
            Instr::UnaryOp(x) => {
                let types: &[Elem] = match x.op {
                    Unary::Not => &BITS16,
                    Unary::Relu if self.arch == Arch::A2 => &[F16, F32, I32],
                    _ => &FLOATS,
                };
                self.whole_vector(&x.dst, &[&x.src], &x.over, types)
            }
            Instr::BinaryOp(x) => {
                let types: &[Elem] = match x.op {
                    Binary::Div | Binary::MulAddDst => &FLOATS,
                    Binary::And | Binary::Or => &BITS16,
                    Binary::AddWrapping | Binary::SubWrapping | Binary::MulWrapping => &INTEGERS,
                    _ => &ARITHMETIC,
                };
                self.whole_vector(&x.dst, &[&x.src0, &x.src1], &x.over, types)
            }
            Instr::ScaledOp(x) => {
                let types: &[Elem] = match x.op {
                    Scaled::LeakyRelu => &FLOATS,
                    Scaled::ShiftLeft | Scaled::ShiftRight => &SHIFTS,
                    Scaled::Axpy => &FLOATS,
                    Scaled::AddsWrapping | Scaled::MulsWrapping => &INTEGERS,
                    _ => &ARITHMETIC,
                };
                if matches!(x.op, Scaled::ShiftLeft | Scaled::ShiftRight) {
                    self.only(Arch::A2, "a shift")?;
                    range("scalar", &x.scalar, 0, x.dst.view.elem.size() as i64 * 8)?;
                }
                if INTEGERS.contains(&x.dst.view.elem) {
                    let half = 1i64 << (x.dst.view.elem.size() * 8 - 1);
                    range("the scalar", &x.scalar, -half, half - 1)?;
                }
                if x.op == Scaled::Axpy && (x.dst.view.elem, x.src.view.elem) == (F32, F16) {
                    self.over(&x.over, F32)?;
                    self.vector(&x.dst, Some(&x.over), true)?;
                    return self.vector(&x.src, Some(&x.over), false);
                }
                self.whole_vector(&x.dst, &[&x.src], &x.over, types)
            }
            Instr::Duplicate(x) => {
                self.whole_vector(&x.dst, &[], &x.over, &[I16, U16, F16, BF16, I32, U32, F32])
            }
            Instr::Cast(x) => {
                let (from, to) = (x.src.view.elem, x.dst.view.elem);
                if !cast_exists(self.arch, from, to, x.round, x.scale.is_some()) {
                    return broken!(
                        Unsupported,
                        "there is no cast from {from} to {to} with rounding {} on architecture {}",
                        x.round,
                        self.arch
                    );
                }
                self.over(&x.over, super::footprint::wider(from, to))?;
                self.vector(&x.dst, Some(&x.over), true)?;
                self.vector(&x.src, Some(&x.over), false)
            }
            Instr::CompareOp(x) => {
                self.elem(&x.src0.view, self.compared(x.cmp))?;
                self.same(&x.src0.view, &x.src1.view)?;
                self.over(&x.over, x.src0.view.elem)?;
                self.bits(&x.dst, &x.over, x.src0.view.elem)?;
                self.vector(&x.src0, Some(&x.over), false)?;
                self.vector(&x.src1, Some(&x.over), false)
            }
            Instr::CompareScalar(x) => {
                self.elem(&x.src.view, self.compared(x.cmp))?;
                self.over(&x.over, x.src.view.elem)?;
                self.bits(&x.dst, &x.over, x.src.view.elem)?;
                self.vector(&x.src, Some(&x.over), false)
            }
            Instr::Select(x) => {
                self.elem(&x.mask, &[U8])?;
                self.is_in(&x.mask, &[Ub])?;
                self.aligned(&x.mask, 32)?;
                self.whole_vector(&x.dst, &[&x.src0, &x.src1], &x.over, &FLOATS)
            }
            Instr::SelectScalar(x) => {
                self.elem(&x.mask, &[U8])?;
                self.is_in(&x.mask, &[Ub])?;
                self.aligned(&x.mask, 32)?;
                self.whole_vector(&x.dst, &[&x.src], &x.over, &FLOATS)
            }
            Instr::Reduce(x) => self.reduce(x),
            Instr::Gather(x) => {
                self.unit(Unit::Vector, "a vector instruction")?;
                self.elem(&x.dst, &[I16, U16, F16, BF16, I32, U32, F32])?;
                self.same(&x.dst, &x.src)?;
                self.elem(&x.offsets, &[U32])?;
                for view in [&x.dst, &x.src, &x.offsets] {
                    self.is_in(view, &[Ub])?;
                    self.aligned(view, 32)?;
                }
                range("base", &x.base, 0, 256 << 10)?;
                range("count", &x.count, 0, i64::from(u32::MAX))
            }
            Instr::GatherMask(x) => {
                self.unit(Unit::Vector, "a vector instruction")?;
                self.elem(&x.dst, &[I16, U16, F16, I32, U32, F32])?;
                self.same(&x.dst, &x.src.view)?;
                self.is_in(&x.dst, &[Ub])?;
                self.aligned(&x.dst, 32)?;
                self.vector(&x.src, None, false)?;
                within("pattern", x.pattern, 1, 7)?;
                range("count", &x.count, 1, x.dst.elem.per_repeat() as i64)?;
                range("repeat", &x.repeat, 0, 65535)
            }
            Instr::Brcb(x) => {
                self.unit(Unit::Vector, "a vector instruction")?;
                self.elem(&x.src, &[I16, U16, F16, I32, U32, F32])?;
                self.same(&x.dst.view, &x.src)?;
                self.is_in(&x.src, &[Ub])?;
                self.aligned(&x.src, 32)?;
                self.vector(&x.dst, None, true)?;
                range("repeat", &x.repeat, 0, 254)
            }
            Instr::Ramp(x) => {
                self.unit(Unit::Vector, "a vector instruction")?;
                self.elem(&x.dst, &ARITHMETIC)?;
                self.is_in(&x.dst, &[Ub])?;
                self.aligned(&x.dst, 32)?;
                range("count", &x.count, 0, i64::from(u32::MAX))?;
                match int(&x.first).zip(int(&x.count)).filter(|_| !x.dst.elem.is_float()) {
                    Some((first, count))
                        if first.saturating_add(count) > 1 << (x.dst.elem.size() * 8 - 1) =>
                    {
                        broken!(Overflow, "the last of {count} numbers from {first} is beyond {}", x.dst.elem)
                    }
                    _ => Ok(()),
                }
            }
            Instr::Transpose(x) => {
                self.unit(Unit::Vector, "a vector instruction")?;
                self.elem(&x.dst, &[I16, U16, F16])?;
                self.same(&x.dst, &x.src)?;
                for view in [&x.dst, &x.src] {
                    self.is_in(view, &[Ub])?;
                    self.aligned(view, 32)?;
                }
                Ok(())
            }
            Instr::TransposeRows(x) => {
                self.unit(Unit::Vector, "a vector instruction")?;
                if x.dst.len() != 16 || x.src.len() != 16 {
                    return broken!(Range, "rows are sixteen, not {} and {}", x.dst.len(), x.src.len());
                }
                for view in x.dst.iter().chain(&x.src) {
                    self.elem(view, &[I16, U16, F16, I32, U32, F32])?;
                    self.same(&x.dst[0], view)?;
                    self.is_in(view, &[Ub])?;
                    self.aligned(view, 32)?;
                }
                range("repeat", &x.repeat, 1, 255)?;
                within("dst_repeat", x.dst_repeat, 0, 65535)?;
                within("src_repeat", x.src_repeat, 0, 65535)
            }
            Instr::Sort32(x) => {
                self.only(Arch::A2, "sort32")?;
                self.unit(Unit::Vector, "a vector instruction")?;
                self.elem(&x.score, &FLOATS)?;
                self.same(&x.score, &x.dst)?;
                self.elem(&x.index, &[U32])?;
                for view in [&x.dst, &x.score, &x.index] {
                    self.is_in(view, &[Ub])?;
                    self.aligned(view, 32)?;
                }
                range("repeat", &x.repeat, 0, 255)
            }
            Instr::MergeSort(x) => {
                self.only(Arch::A2, "merge_sort")?;
                self.unit(Unit::Vector, "a vector instruction")?;
                self.elem(&x.dst, &FLOATS)?;
                if !(2..=4).contains(&x.src.len()) || x.src.len() != x.lengths.len() {
                    return broken!(Range, "lists are two to four, with a length each");
                }
                x.lengths.iter().try_for_each(|&l| within("a length", l, 0, 4095))?;
                for view in x.src.iter().chain([&x.dst]) {
                    self.same(&x.dst, view)?;
                    self.is_in(view, &[Ub])?;
                    self.aligned(view, 8)?;
                }
                range("repeat", &x.repeat, 1, 255)?;
                let equal = x.lengths.iter().all(|&l| l == x.lengths[0]) && x.src.len() == 4;
                match int(&x.repeat) {
                    Some(r) if r > 1 && !equal => broken!(Range, "repeats take four lists of equal length"),
                    _ => Ok(()),
                }
            }
            Instr::Load(x) => self.is_in(&x.src, &[Gm, Ub]),
            Instr::Store(x) => self.is_in(&x.dst, &[Gm, Ub]),
            Instr::CacheFlush(x) => self.is_in(&x.line, &[Gm]),
            Instr::SetFlag(SetFlag { from, to, id }) | Instr::WaitFlag(WaitFlag { from, to, id }) => {
                // A2's cube cores hold flags 0 to 2 from M to MTE1 while a kernel's `TPipe` lives.
                let (low, high) = match (*from, *to) {
                    (Pipe::M, Pipe::Mte1) if self.arch == Arch::A2 => (3, 5),
                    (Pipe::V, Pipe::S) => (0, RAMP_FLAG - 1),
                    _ => (0, 5),
                };
                range("the flag", id, low, high)?;
                self.pipe(*from)?;
                self.pipe(*to)?;
                match event_exists(self.arch, *from, *to) {
                    true => Ok(()),
                    false => broken!(Unsupported, "there is no flag from {from} to {to} on {}", self.arch),
                }
            }
            Instr::CrossSet(CrossSet { mode, pipe, id }) | Instr::CrossWait(CrossWait { mode, pipe, id }) => {
                self.only(Arch::A2, "a flag between cores")?;
                self.pipe(*pipe)?;
                within("mode", *mode, 0, 2)?;
                if *mode == 1 && self.unit == Unit::Cube {
                    return broken!(Unsupported, "mode 1 is for the vector cores of a pair");
                }
                if *mode > 0 && !self.program.mixed() {
                    return broken!(Unsupported, "mode {mode} needs cores of both kinds");
                }
                range("the flag", id, 0, 10)
            }
            Instr::SyncSoft(x) => {
                self.elem(&x.gm, &[I32])?;
                self.elem(&x.ub, &[I32])?;
                self.is_in(&x.gm, &[Gm])?;
                self.is_in(&x.ub, &[Ub])?;
                self.aligned(&x.ub, 32)?;
                range("cores", &x.cores, 1, 1024)
            }
            Instr::Barrier(Barrier::Cores) => self.only(Arch::A2, "sync_all"),
            Instr::Barrier(Barrier::All) => Ok(()),
            Instr::Barrier(barrier) => match barrier {
                Barrier::V => self.pipe(Pipe::V),
                Barrier::M => self.pipe(Pipe::M),
                Barrier::Mte1 => self.pipe(Pipe::Mte1),
                Barrier::Mte3 => self.pipe(Pipe::Mte3),
                Barrier::Fix => self.pipe(Pipe::Fix),
                Barrier::Mte2 | Barrier::All | Barrier::Cores => Ok(()),
            },
        }
    }

    /// Checks that the core has a pipe.
    fn pipe(&self, pipe: Pipe) -> Checked {
        let has = match (self.unit, pipe) {
            (Unit::Whole, pipe) => pipe != Pipe::Fix,
            (Unit::Vector, pipe) => !matches!(pipe, Pipe::M | Pipe::Mte1 | Pipe::Fix),
            (Unit::Cube, pipe) => pipe != Pipe::V,
        };
        match has {
            true => Ok(()),
            false => broken!(Unsupported, "a {} core has no pipe {pipe}", self.unit),
        }
    }

    fn reduce<S: Known>(&self, x: &Reduce<S>) -> Checked {
        self.unit(Unit::Vector, "a vector instruction")?;
        self.elem(&x.dst, &FLOATS)?;
        self.same(&x.dst, &x.src.view)?;
        self.is_in(&x.dst, &[Space::Ub])?;
        self.vector(&x.src, None, false)?;
        range("repeat", &x.repeat, 0, 255)?;
        self.mask(&x.mask, x.src.view.elem)?;
        within("dst_repeat", x.dst_repeat, 1, 65535)?;
        let size = x.dst.elem.size() as i64;
        let align = match x.op.kind() {
            ReductionKind::Whole => size * x.results() as i64,
            ReductionKind::Block => 8 * size,
            ReductionKind::Pair => 32,
        };
        self.aligned(&x.dst, align)?;
        let ordered = matches!(x.op, Reduction::WholeMax | Reduction::WholeMin);
        match (ordered, x.order) {
            (false, Some(_)) => broken!(Unsupported, "{} has no order of results", x.op),
            (true, None) => broken!(Form, "{} needs `order`", x.op),
            (true, Some(Order::OnlyValue | Order::OnlyIndex)) => self.only(Arch::A2, "a single result"),
            _ => Ok(()),
        }
    }
}
