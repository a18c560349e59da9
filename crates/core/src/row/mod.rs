//! Row programs: the one form of every pointwise chain, norm, softmax, loss and reduction.
//!
//! A program runs over an index space `outer × inner`. For each outer index (a *row*) its straight-line body
//! runs once over all inner indices (the *columns*). It has loads, scalar operations on vectors, reductions
//! to row scalars, stores. Everything is stated in the operands' logical dimensions, so that one program
//! serves any memory layout. Owns the form and its rules; evaluation belongs to the devices and the
//! reference.

pub mod evaluate;

use crate::dtype::{Class, DType};
use crate::expr::{Binary, Expr, Unary};
use crate::shape::Shape;
use crate::tensor::TensorType;
use std::fmt;

/// The walk over one operand: for every iteration dimension, `outer` then `inner`, the operand's dimension it
/// moves along and the indices per step. `None` has stride 0 (broadcast).
///
/// A dimension of the operand may be shared by two iteration dimensions (group norm's channel = group ×
/// member).
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Access(pub Vec<Option<(usize, usize)>>);

/// A register: the index of the instruction that computed it.
pub type Reg = usize;

crate::expr::named! {
/// Row reductions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Reduce {
    /// Sum, in f32 or wider (Int: i64).
    Sum,
    /// Product.
    Prod,
    /// Largest; NaN wins. Of nothing: -inf (Int: i64::MIN).
    Max,
    /// Smallest; NaN wins. Of nothing: +inf (Int: i64::MAX).
    Min,
}
}

/// One instruction. Every instruction but the stores defines a register.
///
/// A register is a *vector* over the columns, or a *row scalar*. The latter come from constants, reductions,
/// loads that do not move along `inner`, and operations on row scalars.
#[derive(Clone, PartialEq, Debug)]
pub enum Instr {
    /// Reads operand `i` of the program, converted to its class's computing type.
    Load(usize),
    /// Integer index: `Σ coefficient[d] · index[d]` over the iteration dimensions.
    Iota(Vec<i64>),
    /// Float constant.
    Float(f64),
    /// Int constant.
    Int(i64),
    /// Bool constant.
    Bool(bool),
    /// Function of one register.
    Unary(Unary, Reg),
    /// Function of two registers of one class.
    Binary(Binary, Reg, Reg),
    /// `select(cond, a, b)`.
    Select(Reg, Reg, Reg),
    /// Conversion with rounding or wrapping to a dtype.
    Cast(DType, Reg),
    /// Reduction of a register over the columns to a row scalar.
    Reduce(Reduce, Reg),
    /// Writes a register, rounded to the operand's dtype. A row scalar may be written through an access whose
    /// stride along `inner` is 0.
    Store(usize, Reg),
    /// Adds a vector register over all rows into an operand whose access moves along `inner` only, in an
    /// order fixed by the sizes alone. The operand receives the sum, rounded once.
    Columns(usize, Reg),
}

impl Instr {
    /// Registers that the instruction reads, in order; one that it reads twice comes twice.
    pub fn args(&self) -> impl Iterator<Item = Reg> + use<> {
        let list = match *self {
            Instr::Load(_) | Instr::Iota(_) | Instr::Float(_) | Instr::Int(_) | Instr::Bool(_) => [None; 3],
            Instr::Unary(_, a)
            | Instr::Cast(_, a)
            | Instr::Reduce(_, a)
            | Instr::Store(_, a)
            | Instr::Columns(_, a) => [Some(a), None, None],
            Instr::Binary(_, a, b) => [Some(a), Some(b), None],
            Instr::Select(c, a, b) => [Some(c), Some(a), Some(b)],
        };
        list.into_iter().flatten()
    }

    /// The registers of [`Instr::args`], to be changed.
    pub fn args_mut(&mut self) -> impl Iterator<Item = &mut Reg> {
        let list = match self {
            Instr::Load(_) | Instr::Iota(_) | Instr::Float(_) | Instr::Int(_) | Instr::Bool(_) => {
                [None, None, None]
            }
            Instr::Unary(_, a)
            | Instr::Cast(_, a)
            | Instr::Reduce(_, a)
            | Instr::Store(_, a)
            | Instr::Columns(_, a) => [Some(a), None, None],
            Instr::Binary(_, a, b) => [Some(a), Some(b), None],
            Instr::Select(c, a, b) => [Some(c), Some(a), Some(b)],
        };
        list.into_iter().flatten()
    }

    /// The same instruction on other registers.
    pub fn map(&self, mut f: impl FnMut(Reg) -> Reg) -> Instr {
        let mut out = self.clone();
        out.args_mut().for_each(|r| *r = f(*r));
        out
    }
}

/// An operand of a program.
#[derive(Clone, PartialEq, Debug)]
pub struct Operand {
    /// Element type in memory.
    pub dtype: DType,
    /// The walk over it.
    pub access: Access,
}

/// A row program. See the module's description.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RowProgram {
    /// Sizes of the outer dimensions; one row for each index.
    pub outer: Vec<usize>,
    /// Sizes of the inner dimensions; one column for each index.
    pub inner: Vec<usize>,
    /// Operands read.
    pub reads: Vec<Operand>,
    /// Operands written.
    pub writes: Vec<Operand>,
    /// The body.
    pub body: Vec<Instr>,
}

impl RowProgram {
    /// Checks that operands of these types and shapes are those that the program reads and writes. They are
    /// as many, of its dtypes, and no access leaves its operand. Returns the reason where they are not.
    pub fn agrees<'a>(
        &self,
        reads: impl IntoIterator<Item = &'a TensorType>,
        writes: &[TensorType],
    ) -> Result<(), String> {
        let reads: Vec<&TensorType> = reads.into_iter().collect();
        let sizes: Vec<usize> = self.outer.iter().chain(&self.inner).copied().collect();
        let all = |operands: &[Operand], types: &[&TensorType], verb: &str| {
            if operands.len() != types.len() {
                return Err(format!("the program {verb} {} operands, not {}", operands.len(), types.len()));
            }
            for (o, ty) in operands.iter().zip(types) {
                if o.dtype != ty.dtype || !o.access.stays_within(&sizes, &ty.shape) {
                    return Err(format!("the program {verb} another operand than {ty}"));
                }
            }
            Ok(())
        };
        all(&self.reads, &reads, "reads")?;
        all(&self.writes, &writes.iter().collect::<Vec<_>>(), "writes")
    }

    /// Functions of the body by name, in the order of their first use, with how often each is used:
    /// `max, sub, exp, sum, div`. Loads, stores, constants and conversions are left out.
    pub fn functions(&self) -> String {
        let mut found: Vec<(String, usize)> = Vec::new();
        for instr in &self.body {
            let name = match instr {
                Instr::Unary(op, _) => format!("{op:?}").to_lowercase(),
                Instr::Binary(op, ..) => format!("{op:?}").to_lowercase(),
                Instr::Select(..) => "select".into(),
                Instr::Reduce(op, _) => format!("{op:?} of each row").to_lowercase(),
                Instr::Columns(..) => "sum over rows".into(),
                _ => continue,
            };
            match found.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count += 1,
                None => found.push((name, 1)),
            }
        }
        let one = |(name, count): (String, usize)| match count {
            1 => name,
            _ => format!("{name} ×{count}"),
        };
        match found.is_empty() {
            true => "copy".into(),
            false => found.into_iter().map(one).collect::<Vec<_>>().join(", "),
        }
    }

    /// Number of times that each register is read.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.body.len()];
        self.body.iter().flat_map(Instr::args).for_each(|r| uses[r] += 1);
        uses
    }

    /// Number of reductions that each register depends on, in a chain: rows are read once more for each.
    pub fn levels(&self) -> Vec<usize> {
        let mut level: Vec<usize> = Vec::with_capacity(self.body.len());
        for instr in &self.body {
            let args = instr.args().map(|r| level[r]).max().unwrap_or(0);
            level.push(args + usize::from(matches!(instr, Instr::Reduce(..))));
        }
        level
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.outer.iter().product()
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.inner.iter().product()
    }

    /// True if floats are computed in f64, not in f32: an f64 takes part.
    pub fn computes_in_f64(&self) -> bool {
        self.reads.iter().chain(&self.writes).any(|o| o.dtype == DType::F64)
            || self.body.iter().any(|i| matches!(i, Instr::Cast(DType::F64, _)))
    }

    /// True if integers are computed in i64. They are in i32 where each operation on integers of 32 bits is
    /// followed by a `Cast` to an integer of at most 32 (`pass::narrow_integers`). The low word of an i64
    /// operand is read then, and words are stored with their signs extended.
    pub fn computes_in_i64(&self) -> bool {
        let Ok(classes) = self.classes() else { return true };
        let fits = |x: i128| i32::try_from(x).is_ok();
        let word = |d: DType| d.class() == Class::Int && d != DType::I64;
        // Integers that are certainly in the range of 32 bits. All others must be cut to them before they are
        // used, except i64 that are moved from memory to memory.
        let mut whole = vec![true; self.body.len()];
        let mut moved = vec![false; self.body.len()];
        for (at, instr) in self.body.iter().enumerate() {
            let (cut, moves) = match *instr {
                Instr::Cast(d, _) => (word(d), d == DType::I64),
                Instr::Store(w, _) => (word(self.writes[w].dtype), self.writes[w].dtype == DType::I64),
                _ => (false, false),
            };
            let missing = instr.args().any(|r| !(whole[r] || cut || moves && moved[r]));
            let sums = matches!(*instr, Instr::Columns(_, a) if classes[a] == Some(Class::Int));
            if missing || sums {
                return true;
            }
            if classes[at] != Some(Class::Int) {
                continue;
            }
            whole[at] = match *instr {
                Instr::Load(i) => self.reads[i].dtype != DType::I64,
                Instr::Iota(ref c) => {
                    let sizes = self.outer.iter().chain(&self.inner);
                    let ends = || c.iter().zip(sizes.clone()).map(|(&c, &n)| c as i128 * n as i128);
                    fits(ends().map(|e| e.max(0)).sum()) && fits(ends().map(|e| e.min(0)).sum())
                }
                Instr::Int(x) => fits(x as i128),
                Instr::Cast(d, a) => word(d) || classes[a] != Some(Class::Float) && whole[a],
                Instr::Unary(op, _) => op == Unary::Bits,
                Instr::Select(..) => true,
                _ => false,
            };
            moved[at] = match *instr {
                Instr::Load(_) => !whole[at],
                Instr::Cast(DType::I64, a) => moved[a],
                _ => false,
            };
        }
        false
    }

    /// The register of an instruction's result. Where there is one, it is that of the same instruction, or of
    /// the operand of a conversion that changes nothing. Else it is its own, at the end of the body. Not for
    /// stores.
    pub fn compute(&mut self, instr: Instr) -> Reg {
        if let Instr::Cast(dtype, a) = instr
            && self.holds(dtype, a)
        {
            return a;
        }
        let same = |have: &Instr| match (have, &instr) {
            (Instr::Float(a), Instr::Float(b)) => a.to_bits() == b.to_bits(),
            (have, instr) => have == instr,
        };
        self.body.iter().position(same).unwrap_or_else(|| {
            self.body.push(instr);
            self.body.len() - 1
        })
    }

    /// True if all that a register can be is a float of this dtype, as far as is seen at once. False once a
    /// value was widened to f64.
    fn holds(&self, dtype: DType, reg: Reg) -> bool {
        let widens = |from: DType| dtype != DType::F64 && from.promote(dtype) == dtype;
        let is = |from: DType| from.is_float() && (from == dtype || widens(from));
        match self.body[reg] {
            Instr::Load(o) => is(self.reads[o].dtype),
            Instr::Cast(from, _) => is(from),
            Instr::Unary(Unary::Neg | Unary::Abs, a) | Instr::Reduce(Reduce::Max | Reduce::Min, a) => {
                self.holds(dtype, a)
            }
            _ => false,
        }
    }

    /// The pointwise program of `exprs` over `shape`, one output an expression; inputs are broadcast.
    ///
    /// `inputs`: dtype and shape of each input; `outputs`: dtype of each expression's result.
    pub fn pointwise(
        inputs: &[(DType, &[usize])],
        shape: &[usize],
        outputs: &[DType],
        exprs: &[Expr],
    ) -> Self {
        let rank = shape.len();
        let split = rank.saturating_sub(1);
        let mut b = RowBuilder::new(&shape[..split], &shape[split..]);
        let loads: Vec<_> = inputs.iter().map(|&(d, s)| b.read(d, Access::broadcast(s, shape))).collect();
        for (&dtype, e) in outputs.iter().zip(exprs) {
            let reg = b.expr(e, &loads);
            b.store(dtype, Access::identity(rank), reg);
        }
        b.finish()
    }

    /// A program that copies an operand of `shape` to one of the same shape, converting between dtypes.
    pub fn copy(from: DType, to: DType, shape: &[usize]) -> Self {
        RowProgram::pointwise(&[(from, shape)], shape, &[to], &[Expr::Cast(to, Box::new(Expr::Input(0)))])
    }

    /// Class of every register (`None` for stores).
    ///
    /// # Errors
    /// A sentence saying which instruction is ill-formed: this is the specification of legal programs.
    pub fn classes(&self) -> Result<Vec<Option<Class>>, String> {
        let dims = self.outer.len() + self.inner.len();
        for o in self.reads.iter().chain(&self.writes) {
            if o.access.0.len() != dims {
                return Err(format!("an access names {} of {dims} iteration dimensions", o.access.0.len()));
            }
        }
        let mut out: Vec<Option<Class>> = Vec::with_capacity(self.body.len());
        for (at, instr) in self.body.iter().enumerate() {
            let get = |r: Reg| {
                out.get(r)
                    .copied()
                    .flatten()
                    .ok_or_else(|| format!("instruction {at} reads undefined register {r}"))
            };
            let class = match *instr {
                Instr::Load(i) => Some(self.reads.get(i).ok_or(format!("no read {i}"))?.dtype.class()),
                Instr::Iota(ref c) if c.len() == dims => Some(Class::Int),
                Instr::Iota(_) => return Err(format!("instruction {at}: one coefficient per dimension")),
                Instr::Float(_) => Some(Class::Float),
                Instr::Int(_) => Some(Class::Int),
                Instr::Bool(_) => Some(Class::Bool),
                Instr::Unary(op, a) => Some(op.class(get(a)?)),
                Instr::Binary(op, a, b) => {
                    if get(a)? != get(b)? {
                        return Err(format!("instruction {at}: {op:?} of {:?} and {:?}", get(a)?, get(b)?));
                    }
                    Some(op.class(get(a)?))
                }
                Instr::Select(c, a, b) => {
                    if get(c)? != Class::Bool || get(a)? != get(b)? {
                        return Err(format!("instruction {at}: ill-typed select"));
                    }
                    Some(get(a)?)
                }
                Instr::Cast(d, a) => {
                    get(a)?;
                    Some(d.class())
                }
                Instr::Reduce(_, a) => Some(get(a)?),
                Instr::Store(i, a) | Instr::Columns(i, a) => {
                    let o = self.writes.get(i).ok_or(format!("no write {i}"))?;
                    if o.dtype.class() != get(a)? {
                        return Err(format!("instruction {at} stores {:?} into {}", get(a)?, o.dtype));
                    }
                    if matches!(instr, Instr::Columns(..))
                        && o.access.0[..self.outer.len()].iter().any(|a| a.is_some())
                    {
                        return Err(format!("instruction {at}: a column sum moves along rows"));
                    }
                    None
                }
            };
            out.push(class);
        }
        Ok(out)
    }

    /// Which registers are row scalars (see [`Instr`]).
    pub fn scalars(&self) -> Vec<bool> {
        let o = self.outer.len();
        let mut s: Vec<bool> = Vec::with_capacity(self.body.len());
        for instr in &self.body {
            s.push(match *instr {
                Instr::Load(i) => self.reads[i].access.0[o..].iter().all(Option::is_none),
                Instr::Iota(ref c) => c[o..].iter().all(|&c| c == 0),
                Instr::Float(_) | Instr::Int(_) | Instr::Bool(_) | Instr::Reduce(..) => true,
                Instr::Unary(_, a) | Instr::Cast(_, a) => s[a],
                Instr::Binary(_, a, b) => s[a] && s[b],
                Instr::Select(c, a, b) => s[c] && s[a] && s[b],
                Instr::Store(..) | Instr::Columns(..) => false,
            });
        }
        s
    }
}

impl Access {
    /// Iteration dimension `d` is operand dimension `d`.
    pub fn identity(rank: usize) -> Self {
        Access((0..rank).map(|d| Some((d, 1))).collect())
    }

    /// Stride 0 in every dimension.
    pub fn still(dims: usize) -> Self {
        Access(vec![None; dims])
    }

    /// True if walking an iteration space of these sizes stays within an operand of the shape.
    fn stays_within(&self, sizes: &[usize], shape: &[usize]) -> bool {
        if self.0.len() != sizes.len() {
            return false;
        }
        if sizes.contains(&0) {
            return true;
        }
        let mut last = vec![0usize; shape.len()];
        for (&walk, &size) in self.0.iter().zip(sizes) {
            let Some((dim, step)) = walk else { continue };
            let Some(at) = last.get_mut(dim) else { return false };
            let Some(end) = step.checked_mul(size - 1).and_then(|s| s.checked_add(*at)) else { return false };
            *at = end;
        }
        last.iter().zip(shape).all(|(at, size)| at < size)
    }

    /// Iteration dimension `i` is operand dimension `dims[i]`; `None` broadcasts.
    pub fn dims(dims: &[Option<usize>]) -> Self {
        Access(dims.iter().map(|d| d.map(|d| (d, 1))).collect())
    }

    /// An operand of shape `from` broadcast to iteration shape `to`.
    pub fn broadcast(from: &[usize], to: &[usize]) -> Self {
        let lead = to.len() - from.len();
        Access((0..to.len()).map(|d| (d >= lead && from[d - lead] != 1).then(|| (d - lead, 1))).collect())
    }
}

/// Writes a [`RowProgram`] instruction by instruction.
#[derive(Debug)]
pub struct RowBuilder(RowProgram);

impl RowBuilder {
    /// An empty program over `outer × inner`.
    pub fn new(outer: &[usize], inner: &[usize]) -> Self {
        RowBuilder(RowProgram { outer: outer.to_vec(), inner: inner.to_vec(), ..RowProgram::default() })
    }

    /// The register of what an instruction computes ([`RowProgram::compute`]).
    pub fn push(&mut self, instr: Instr) -> Reg {
        self.0.compute(instr)
    }

    /// Adds an operand to read, without loading it yet (it may be loaded several times).
    pub fn operand(&mut self, dtype: DType, access: Access) -> usize {
        self.0.reads.push(Operand { dtype, access });
        self.0.reads.len() - 1
    }

    /// Adds the next operand to read, and loads it. Operands follow the node's present inputs in order.
    pub fn read(&mut self, dtype: DType, access: Access) -> Reg {
        let i = self.operand(dtype, access);
        self.push(Instr::Load(i))
    }

    /// Evaluates `e` with `inputs[i]` substituted for `Expr::Input(i)`. `Expr::Coord(d)` is the index of
    /// iteration dimension `d`.
    pub fn expr(&mut self, e: &Expr, inputs: &[Reg]) -> Reg {
        let instr = match e {
            Expr::Input(i) => return inputs[*i],
            Expr::Float(x) => Instr::Float(*x),
            Expr::Int(x) => Instr::Int(*x),
            Expr::Bool(x) => Instr::Bool(*x),
            Expr::Coord(d) => {
                let mut c = vec![0; self.0.outer.len() + self.0.inner.len()];
                c[*d] = 1;
                Instr::Iota(c)
            }
            Expr::Unary(op, a) => Instr::Unary(*op, self.expr(a, inputs)),
            Expr::Binary(op, a, b) => {
                let a = self.expr(a, inputs);
                Instr::Binary(*op, a, self.expr(b, inputs))
            }
            Expr::Select(c, a, b) => {
                let c = self.expr(c, inputs);
                let a = self.expr(a, inputs);
                Instr::Select(c, a, self.expr(b, inputs))
            }
            Expr::Cast(d, a) => Instr::Cast(*d, self.expr(a, inputs)),
        };
        self.push(instr)
    }

    /// Reduces a register over the columns.
    pub fn reduce(&mut self, op: Reduce, reg: Reg) -> Reg {
        self.push(Instr::Reduce(op, reg))
    }

    /// Sum over the columns.
    pub fn sum(&mut self, reg: Reg) -> Reg {
        self.reduce(Reduce::Sum, reg)
    }

    /// Adds the next operand to write and stores `reg` to it. Operands follow the node's outputs in order.
    pub fn store(&mut self, dtype: DType, access: Access, reg: Reg) {
        self.0.writes.push(Operand { dtype, access });
        self.0.body.push(Instr::Store(self.0.writes.len() - 1, reg));
    }

    /// Adds the next operand to write and sums `reg` over all rows into it.
    pub fn columns(&mut self, dtype: DType, access: Access, reg: Reg) {
        self.0.writes.push(Operand { dtype, access });
        self.0.body.push(Instr::Columns(self.0.writes.len() - 1, reg));
    }

    /// The finished program. [`RowProgram::classes`] says whether it is legal; consumers check it.
    pub fn finish(self) -> RowProgram {
        self.0
    }
}

/// The iteration space that reduces `dims` of `shape`: kept dimensions outside, reduced ones inside.
#[derive(Debug, Clone)]
pub struct ReduceSpace {
    /// Sizes of the kept dimensions.
    pub outer: Vec<usize>,
    /// Sizes of the reduced dimensions.
    pub inner: Vec<usize>,
    /// Access of the full operand.
    pub full: Access,
    /// Access of the result with the reduced dimensions dropped.
    pub dropped: Access,
    /// Access of the result with the reduced dimensions kept as 1.
    pub kept: Access,
}

impl ReduceSpace {
    /// `dims`: non-negative dimensions of `shape` to reduce, each once.
    pub fn new(shape: &[usize], dims: &[usize]) -> Self {
        let keep: Vec<usize> = (0..shape.len()).filter(|d| !dims.contains(d)).collect();
        let all = || keep.iter().chain(dims);
        let none = || dims.iter().map(|_| None);
        ReduceSpace {
            outer: keep.iter().map(|&d| shape[d]).collect(),
            inner: dims.iter().map(|&d| shape[d]).collect(),
            full: Access(all().map(|&d| Some((d, 1))).collect()),
            dropped: Access((0..keep.len()).map(|i| Some((i, 1))).chain(none()).collect()),
            kept: Access(keep.iter().map(|&d| Some((d, 1))).chain(none()).collect()),
        }
    }

    /// Access of a vector along dimension `dim` of the shape (a norm's weight over one dimension, a class
    /// weight).
    pub fn along(&self, dim: usize) -> Access {
        Access(self.full.0.iter().map(|a| a.filter(|&(d, _)| d == dim).map(|_| (0, 1))).collect())
    }

    /// Access of an operand holding just the dimensions `first..` of the shape (a norm's weight over the last
    /// ones).
    pub fn trailing(&self, first: usize) -> Access {
        Access(
            self.full.0.iter().map(|a| a.filter(|&(d, _)| d >= first).map(|(d, m)| (d - first, m))).collect(),
        )
    }

    /// An empty program over this space.
    pub fn builder(&self) -> RowBuilder {
        RowBuilder::new(&self.outer, &self.inner)
    }
}

impl fmt::Display for RowProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = |a: &Access| {
            let terms = a.0.iter().map(|t| match t {
                None => "_".to_string(),
                Some((d, 1)) => d.to_string(),
                Some((d, m)) => format!("{d}*{m}"),
            });
            terms.collect::<Vec<_>>().join(" ")
        };
        let operands = |os: &[Operand]| {
            os.iter().map(|o| format!("{}({})", o.dtype, access(&o.access))).collect::<Vec<_>>().join(", ")
        };
        write!(f, "rows{}{} ", Shape::new(&self.outer), Shape::new(&self.inner))?;
        write!(f, "({}) -> ({}) {{", operands(&self.reads), operands(&self.writes))?;
        for (i, instr) in self.body.iter().enumerate() {
            write!(f, " %{i} = ")?;
            match instr {
                Instr::Load(r) => write!(f, "load {r};")?,
                Instr::Iota(c) => write!(f, "iota {c:?};")?,
                Instr::Float(x) => write!(f, "float {};", crate::exact::Exact(*x))?,
                Instr::Int(x) => write!(f, "int {x};")?,
                Instr::Bool(x) => write!(f, "bool {x};")?,
                Instr::Unary(op, a) => write!(f, "{op:?} %{a};")?,
                Instr::Binary(op, a, b) => write!(f, "{op:?} %{a} %{b};")?,
                Instr::Select(c, a, b) => write!(f, "select %{c} %{a} %{b};")?,
                Instr::Cast(d, a) => write!(f, "cast {d} %{a};")?,
                Instr::Reduce(op, a) => write!(f, "reduce {op:?} %{a};")?,
                Instr::Store(w, a) => write!(f, "store {w} %{a};")?,
                Instr::Columns(w, a) => write!(f, "columns {w} %{a};")?,
            }
        }
        f.write_str(" }")
    }
}
