//! Row programs in f64 that round where others round, by a random function: the grids of dtypes, and
//! instructions that take a number to one of its neighbours there.

use crate::dtype::DType;
use crate::expr::{Binary, Unary};
use crate::row::{Access, Instr, Operand, Reduce, Reg, RowProgram};
use crate::target::Target;

/// Bits of significand that stand for the 53 of f64, so that roundings of f64 arithmetic itself do not count.
pub(super) const VIRTUAL_BITS: i32 = 40;

/// The unit roundoff of a dtype, as [`super::rounded()`] has it.
pub(super) fn unit(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::exp2(-f64::from(VIRTUAL_BITS)) } else { dtype.epsilon() / 2.0 }
}

/// The numbers of a dtype, among those of f64.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Grid {
    dtype: DType,
    /// True if what is beyond the largest number becomes it.
    saturates: bool,
}

impl Grid {
    pub(super) fn of(dtype: DType, target: &Target) -> Grid {
        Grid { dtype, saturates: target.saturating.contains(dtype) }
    }
}

/// Whole numbers up to this have exact sums of 4096 of them in f32.
const WHOLE: f64 = 4096.0;

/// Writes a program in f64 that rounds.
pub(super) struct Writer {
    pub(super) out: RowProgram,
    /// Operand of the number of the rounding function; its width follows.
    by: usize,
    /// By register of `out`, a grid that all it can be is on; and true if it is a constant.
    pub(super) grids: Vec<Option<Grid>>,
    constants: Vec<bool>,
}

impl Writer {
    pub(super) fn new(program: &RowProgram) -> Writer {
        let mut out = RowProgram { body: Vec::new(), ..program.clone() };
        for o in out.reads.iter_mut().chain(&mut out.writes).filter(|o| o.dtype.is_float()) {
            o.dtype = DType::F64;
        }
        let still = Access::still(program.outer.len() + program.inner.len());
        let by = out.reads.len();
        out.reads.extend([0, 1].map(|_| Operand { dtype: DType::F64, access: still.clone() }));
        Writer { out, by, grids: Vec::new(), constants: Vec::new() }
    }

    pub(super) fn store(&mut self, instr: Instr) -> Reg {
        self.out.body.push(instr);
        usize::MAX
    }

    pub(super) fn constant(&mut self, x: f64) -> Reg {
        let reg = self.write(Instr::Float(x));
        self.constants[reg] = true;
        reg
    }

    /// The register of an instruction that stands for one of the old program, and what is known of it.
    pub(super) fn write(&mut self, instr: Instr) -> Reg {
        let (grid, constant) = {
            let grid = |r: Reg| self.grids.get(r).copied().flatten();
            let constant = |r: Reg| self.constants.get(r).copied().unwrap_or(false);
            let both = |a: Reg, b: Reg| grid(a).filter(|g| grid(b) == Some(*g));
            match instr {
                Instr::Unary(Unary::Neg | Unary::Abs, a) | Instr::Reduce(Reduce::Max | Reduce::Min, a) => {
                    (grid(a), constant(a))
                }
                Instr::Cast(DType::F64, a) => (grid(a), constant(a)),
                Instr::Unary(_, a) => (None, constant(a)),
                Instr::Binary(Binary::Min | Binary::Max, a, b) => (both(a, b), constant(a) && constant(b)),
                Instr::Select(_, a, b) => (both(a, b), false),
                Instr::Binary(_, a, b) => (None, constant(a) && constant(b)),
                _ => (None, false),
            }
        };
        let reg = self.out.compute(instr);
        self.know(reg);
        self.grids[reg] = self.grids[reg].or(grid);
        self.constants[reg] |= constant;
        reg
    }

    fn know(&mut self, reg: Reg) {
        if self.grids.len() <= reg {
            self.grids.resize(reg + 1, None);
            self.constants.resize(reg + 1, false);
        }
    }

    fn unary(&mut self, op: Unary, a: Reg) -> Reg {
        self.out.compute(Instr::Unary(op, a))
    }

    fn binary(&mut self, op: Binary, a: Reg, b: Reg) -> Reg {
        self.out.compute(Instr::Binary(op, a, b))
    }

    fn float(&mut self, x: f64) -> Reg {
        self.out.compute(Instr::Float(x))
    }

    /// A random number for each magnitude but for powers of two, uniform in ±1/2 times the width: the
    /// fraction of its 24 bits times the number of the rounding function, times `stream` (multiplicative
    /// hashing; Knuth, The Art of Computer Programming 3, 6.4). With a `place`, numbers that are equal have
    /// other random numbers in other places.
    fn random(&mut self, x: Reg, stream: f64, place: Option<Reg>) -> Reg {
        let bits = self.unary(Unary::Bits, x);
        let mask = self.out.compute(Instr::Int(0x7F_FFFF));
        let bits = self.binary(Binary::And, bits, mask);
        let bits = self.out.compute(Instr::Cast(DType::F64, bits));
        let one = self.float(f64::exp2(23.0));
        let significand = self.binary(Binary::Add, bits, one);
        let mut number = self.out.compute(Instr::Load(self.by));
        if stream != 1.0 {
            let stream = self.float(stream);
            let product = self.binary(Binary::Mul, number, stream);
            let whole = self.unary(Unary::Floor, product);
            number = self.binary(Binary::Sub, product, whole);
        }
        let mut product = self.binary(Binary::Mul, significand, number);
        if let Some(place) = place {
            let by = self.binary(Binary::Mul, place, number);
            let far = self.float(0.618_033_988_749_894_9);
            let by = self.binary(Binary::Mul, by, far);
            product = self.binary(Binary::Add, product, by);
        }
        let whole = self.unary(Unary::Floor, product);
        let uniform = self.binary(Binary::Sub, product, whole);
        let half = self.float(0.5);
        let centred = self.binary(Binary::Sub, uniform, half);
        let width = self.out.compute(Instr::Load(self.by + 1));
        self.binary(Binary::Mul, centred, width)
    }

    /// The number of a place, along all dimensions of the iteration, or along the outer ones, of which there
    /// is one for each result of a row.
    pub(super) fn place(&mut self, inner: bool) -> Reg {
        let sizes: Vec<usize> = self.out.outer.iter().chain(&self.out.inner).copied().collect();
        let along = if inner { sizes.len() } else { self.out.outer.len() };
        let step =
            |d: usize| if d < along { sizes[d + 1..along].iter().product::<usize>() as i64 } else { 0 };
        let place = self.out.compute(Instr::Iota((0..sizes.len()).map(step).collect()));
        self.out.compute(Instr::Cast(DType::F64, place))
    }

    /// A term of a sum off by a random share of itself of some standard deviation; whole numbers stay.
    pub(super) fn off(&mut self, x: Reg, deviation: f64) -> Reg {
        self.off_at(x, deviation, None)
    }

    /// The same of a result. Sums of equal terms in another order are rounded otherwise, so a result is off
    /// by another share in each place.
    pub(super) fn off_at(&mut self, x: Reg, deviation: f64, place: Option<Reg>) -> Reg {
        if deviation == 0.0 {
            return x;
        }
        let (share, one) = (self.share(x, deviation, place), self.float(1.0));
        let factor = self.binary(Binary::Add, share, one);
        let moved = self.binary(Binary::Mul, x, factor);
        self.unless_whole(x, moved)
    }

    /// A number off by a random share of 1, as `Φ` is where it is computed as `(1 + erf) / 2`, in PyTorch
    /// too, or is 0 below some number.
    pub(super) fn off_one(&mut self, x: Reg, deviation: f64) -> Reg {
        let share = self.share(x, deviation, None);
        let moved = self.binary(Binary::Add, x, share);
        self.unless_whole(x, moved)
    }

    /// A random number of some standard deviation.
    fn share(&mut self, x: Reg, deviation: f64, place: Option<Reg>) -> Reg {
        let random = self.random(x, 12_582_917.0, place);
        // Uniform in ±√3 has the deviation 1.
        let width = self.float(12f64.sqrt() * deviation);
        self.binary(Binary::Mul, random, width)
    }

    /// A number where it is whole, and its neighbour where it is not.
    fn unless_whole(&mut self, x: Reg, moved: Reg) -> Reg {
        let whole = self.unary(Unary::Round, x);
        let whole = self.binary(Binary::Eq, whole, x);
        let (size, most) = (self.unary(Unary::Abs, x), self.float(WHOLE));
        let small = self.binary(Binary::Le, size, most);
        let exact = self.binary(Binary::And, whole, small);
        let reg = self.out.compute(Instr::Select(exact, x, moved));
        self.know(reg);
        reg
    }

    /// A register on a grid: itself where it is, else a neighbour, the nearest of the number moved by at most
    /// a quarter of the spacing.
    pub(super) fn round(&mut self, x: Reg, grid: Grid) -> Reg {
        self.know(x);
        if self.grids[x] == Some(grid) {
            return x;
        }
        let nearest = self.nearest(x, grid);
        let reg = if self.constants[x] {
            nearest
        } else {
            let random = self.random(x, 1.0, None);
            let sign = self.unary(Unary::Sign, x);
            let random = self.binary(Binary::Mul, random, sign);
            let bits = self.unary(Unary::Bits, x);
            let mask = self.out.compute(Instr::Int(0x7F80_0000));
            let power = self.binary(Binary::And, bits, mask);
            let power = self.unary(Unary::FromBits, power);
            let (least, most) = (self.float(smallest(grid.dtype)), self.float(f64::exp2(127.0)));
            let power = self.binary(Binary::Max, power, least);
            let power = self.binary(Binary::Min, power, most);
            let spacing = self.float(unit(grid.dtype));
            let spacing = self.binary(Binary::Mul, power, spacing);
            let by = self.binary(Binary::Mul, random, spacing);
            let moved = self.binary(Binary::Add, x, by);
            let moved = self.nearest(moved, grid);
            // Rounding to nearest takes to infinity what is half a spacing beyond the largest number, and so
            // does this.
            let [kept, over] = [nearest, moved].map(|v| self.finite(v, grid));
            let fits = self.binary(Binary::Eq, kept, over);
            let moved = self.out.compute(Instr::Select(fits, moved, nearest));
            let exact = self.binary(Binary::Eq, nearest, x);
            self.out.compute(Instr::Select(exact, x, moved))
        };
        self.know(reg);
        self.grids[reg] = Some(grid);
        self.constants[reg] = self.constants[x];
        reg
    }

    /// True for a number that is not infinite.
    fn finite(&mut self, x: Reg, grid: Grid) -> Reg {
        let (size, largest) = (self.unary(Unary::Abs, x), self.float(grid.dtype.max_value()));
        self.binary(Binary::Le, size, largest)
    }

    /// The nearest number of a grid.
    fn nearest(&mut self, x: Reg, grid: Grid) -> Reg {
        if grid.dtype == DType::F64 {
            // Veltkamp's splitting (Dekker, "A floating-point technique for extending the available
            // precision", 1971).
            let factor = self.float(f64::exp2(f64::from(53 - VIRTUAL_BITS)) + 1.0);
            let product = self.binary(Binary::Mul, x, factor);
            let rest = self.binary(Binary::Sub, product, x);
            let high = self.binary(Binary::Sub, product, rest);
            let (size, huge) = (self.unary(Unary::Abs, x), self.float(f64::exp2(1000.0)));
            let fits = self.binary(Binary::Lt, size, huge);
            return self.out.compute(Instr::Select(fits, high, x));
        }
        let mut x = x;
        if grid.saturates {
            let largest = grid.dtype.max_value();
            let (low, high) = (self.float(-largest), self.float(largest));
            x = self.binary(Binary::Max, x, low);
            x = self.binary(Binary::Min, x, high);
        }
        self.out.compute(Instr::Cast(grid.dtype, x))
    }
}

/// The smallest number of full precision.
fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f64::exp2(-14.0),
        _ => f64::exp2(-126.0),
    }
}
