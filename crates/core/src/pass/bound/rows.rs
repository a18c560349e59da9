//! Row programs with a random rounding at each instruction.
//!
//! Intermediate numbers of an operator may be much larger than its result. A norm's gradient is the
//! difference of a cotangent and its means, and is zero for a constant one. Only roundings inside show how
//! far off such a zero is.

use super::moves;
use crate::dtype::{Class, DType};
use crate::expr::{Binary, Unary};
use crate::graph::{Graph, Node};
use crate::row::{Access, Instr, Operand, Reduce, Reg, RowProgram};
use crate::tensor::TensorType;

/// A program that reads, after its own operands, the factor of all roundings and then uniform random numbers.
pub(super) struct Noisy {
    pub(super) program: RowProgram,
    /// Shape of each operand of random numbers, f64 in [0, 1).
    pub(super) draws: Vec<Vec<i64>>,
}

/// Random numbers of a program may be so many times the elements that it reads and writes.
const SHARE: usize = 8;

/// A node's row program with relative roundings, in multiples of `unit`. Their deviation is `unit` at
/// conversions, `sum` at each arithmetic instruction, and `sum · √n` at the terms and the result of a sum of
/// `n`. `None` if it has no program, computes nothing in floats, or runs over far more places than its
/// operands have.
pub(super) fn noisy(graph: &Graph, node: &Node, unit: f64, sum: f64) -> Option<Noisy> {
    if moves(node) {
        return None;
    }
    let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let program = node.op.row_program(&graph.cx(node), &types).ok()??;
    let elements: usize =
        node.operands().chain(node.outputs.iter().copied()).map(|v| graph.ty(v).shape.numel()).sum();
    let space = program.rows().checked_mul(program.cols())?;
    if !program.computes_in_f64() || space == 0 || space > elements.saturating_mul(SHARE) {
        return None;
    }
    let mut writer = Writer::new(&program, unit);
    let classes = program.classes().ok()?;
    let float = |r: Reg| classes[r] == Some(Class::Float);
    let (rows, cols) = (program.rows() as f64, program.cols() as f64);
    for instr in &program.body {
        let moved = instr.map(|r| writer.regs[r]);
        match *instr {
            Instr::Store(..) => writer.write(moved, None),
            Instr::Columns(w, a) if float(a) => {
                let terms = writer.off(writer.regs[a], a, sum * rows.sqrt());
                writer.write(Instr::Columns(w, terms), None);
            }
            Instr::Columns(..) => writer.write(moved, None),
            Instr::Reduce(Reduce::Sum, a) if float(a) => {
                let terms = writer.off(writer.regs[a], a, sum * cols.sqrt());
                writer.write(Instr::Reduce(Reduce::Sum, terms), Some(sum * cols.sqrt()));
            }
            Instr::Reduce(Reduce::Prod, a) if float(a) => writer.write(moved, Some(sum * cols.sqrt())),
            Instr::Unary(op, a) if float(a) && rounds(op) => writer.write(moved, Some(sum)),
            Instr::Binary(op, a, _) if float(a) && rounds_two(op) => writer.write(moved, Some(sum)),
            Instr::Cast(to, a) if float(a) && to.is_float() => writer.write(moved, Some(unit)),
            _ => writer.write(moved, None),
        }
    }
    let Writer { out, masks, .. } = writer;
    let sizes = || program.outer.iter().chain(&program.inner);
    let draw =
        |mask: &[bool]| mask.iter().zip(sizes()).filter(|(m, _)| **m).map(|(_, &n)| n as i64).collect();
    let draws: Vec<Vec<i64>> = masks.iter().map(|(mask, _)| draw(mask)).collect();
    (!draws.is_empty()).then_some(Noisy { program: out, draws })
}

/// True for functions of floats that round.
fn rounds(op: Unary) -> bool {
    use Unary::*;
    !matches!(op, Neg | Abs | Sign | Floor | Ceil | Trunc | Round | IsNan | IsInf | Not | Bits | FromBits)
}

fn rounds_two(op: Binary) -> bool {
    use Binary::*;
    matches!(op, Add | Sub | Mul | Div | Rem | Pow | Atan2)
}

/// By register, the iteration dimensions along which it differs: a rounding is one for all places that share it.
fn along(program: &RowProgram) -> Vec<Vec<bool>> {
    let outer = program.outer.len();
    let mut all: Vec<Vec<bool>> = Vec::with_capacity(program.body.len());
    for instr in &program.body {
        let mut along = vec![false; outer + program.inner.len()];
        match instr {
            Instr::Load(o) => along = program.reads[*o].access.0.iter().map(Option::is_some).collect(),
            Instr::Iota(c) => along = c.iter().map(|&c| c != 0).collect(),
            other => {
                let _ = other.map(|r| {
                    along.iter_mut().zip(&all[r]).for_each(|(a, b)| *a |= b);
                    r
                });
            }
        }
        if matches!(instr, Instr::Reduce(..)) {
            along[outer..].fill(false);
        }
        all.push(along);
    }
    all
}

/// Writes the new program.
struct Writer {
    out: RowProgram,
    /// By register of the old program: the new one.
    regs: Vec<Reg>,
    /// By register of the old program: see [`along`].
    along: Vec<Vec<bool>>,
    /// Operand of the factor of all roundings; random numbers follow it.
    factor: usize,
    /// Dimensions of each operand of random numbers, and how many roundings were made of it.
    masks: Vec<(Vec<bool>, u64)>,
    unit: f64,
}

impl Writer {
    fn new(program: &RowProgram, unit: f64) -> Writer {
        let mut out = RowProgram { body: Vec::new(), ..program.clone() };
        let still = Access::still(program.outer.len() + program.inner.len());
        out.reads.push(Operand { dtype: DType::F64, access: still });
        let factor = program.reads.len();
        Writer { out, regs: Vec::new(), along: along(program), factor, masks: Vec::new(), unit }
    }

    /// Appends an instruction that stands for the next of the old program; its result is off by a deviation.
    fn write(&mut self, instr: Instr, deviation: Option<f64>) {
        let old = self.regs.len();
        if matches!(instr, Instr::Store(..) | Instr::Columns(..)) {
            self.out.body.push(instr);
            return self.regs.push(usize::MAX);
        }
        let reg = self.out.compute(instr);
        let reg = deviation.map_or(reg, |deviation| self.off(reg, old, deviation));
        self.regs.push(reg);
    }

    /// A register off by a random rounding of this deviation, for each place along which register `old` of the
    /// old program differs.
    fn off(&mut self, reg: Reg, old: Reg, deviation: f64) -> Reg {
        let mask = &self.along[old];
        let which = self.masks.iter().position(|(m, _)| m == mask).unwrap_or_else(|| {
            let mut next = 0..;
            let access = mask.iter().map(|&m| if m { next.next().map(|d| (d, 1)) } else { None }).collect();
            self.out.reads.push(Operand { dtype: DType::F64, access: Access(access) });
            self.masks.push((mask.clone(), 0));
            self.masks.len() - 1
        });
        let made = self.masks[which].1;
        self.masks[which].1 += 1;
        let out = &mut self.out;
        let mut uniform = out.compute(Instr::Load(self.factor + 1 + which));
        if made > 0 {
            // Multiples of 2⁻²⁴ times an odd number, modulo 1. They are the same numbers in another order (a
            // multiplicative hash; Knuth, The Art of Computer Programming 3, 6.4).
            let odd = (made.wrapping_mul(0x9E37_79B1) & 0xFF_FFFF) | 1;
            let odd = out.compute(Instr::Float(odd as f64));
            let product = out.compute(Instr::Binary(Binary::Mul, uniform, odd));
            let whole = out.compute(Instr::Unary(Unary::Floor, product));
            uniform = out.compute(Instr::Binary(Binary::Sub, product, whole));
        }
        // Uniform in ±√3 has the deviation 1. For a factor of roundings of 0 this multiplies by 1.
        let half = out.compute(Instr::Float(0.5));
        let centred = out.compute(Instr::Binary(Binary::Sub, uniform, half));
        let width = out.compute(Instr::Float(12f64.sqrt() * deviation / self.unit));
        let scaled = out.compute(Instr::Binary(Binary::Mul, centred, width));
        let factor = out.compute(Instr::Load(self.factor));
        let relative = out.compute(Instr::Binary(Binary::Mul, scaled, factor));
        let one = out.compute(Instr::Float(1.0));
        let by = out.compute(Instr::Binary(Binary::Add, relative, one));
        out.compute(Instr::Binary(Binary::Mul, reg, by))
    }
}
