//! The scalar unit: runs the statements of a part and gives its instructions one by one, with numbers for
//! scalars.

use crate::chip::Arch;
use crate::kernel::finding::{Finding, Result, Rule};
use crate::kernel::{
    CoreFact, Instr, Part, Program, Scalar, ScalarBinary, Stmt, StmtKind, Value, VarId, head,
};
use std::borrow::Cow;

/// A core's place among others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Value of `block`.
    pub block: u32,
    /// Value of `blocks`.
    pub blocks: u32,
    /// Value of `sub_block`.
    pub sub_block: u32,
}

/// A part as a list of steps with jumps: what can be left at an instruction and gone on with.
pub struct Code<'a> {
    steps: Vec<Step<'a>>,
    loops: usize,
}

enum Step<'a> {
    Issue(&'a Stmt, &'a Instr),
    /// An instruction whose scalars are constants.
    Ready(&'a Stmt, Instr<Value>),
    Let(&'a Stmt, VarId, &'a Scalar),
    /// Computes the bounds of loop `slot` and goes to `end` if they are empty.
    Enter {
        stmt: &'a Stmt,
        slot: usize,
        end: usize,
    },
    /// Goes to the next round at `begin`, or on.
    Next {
        stmt: &'a Stmt,
        slot: usize,
        begin: usize,
    },
    JumpIfZero(&'a Stmt, &'a Scalar, usize),
    Jump(usize),
}

impl<'a> Code<'a> {
    /// The steps of a part.
    pub fn new(part: &'a Part) -> Code<'a> {
        let mut code = Code { steps: Vec::new(), loops: 0 };
        code.body(&part.body);
        code
    }

    fn body(&mut self, body: &'a [Stmt]) {
        for stmt in body {
            match &stmt.kind {
                StmtKind::Instr(instr) => {
                    let constant = instr.map(&mut |x: &Scalar| x.constant().ok_or(()));
                    self.steps.push(match constant {
                        Ok(instr) => Step::Ready(stmt, instr),
                        Err(()) => Step::Issue(stmt, instr),
                    });
                }
                StmtKind::Let(var, value) => self.steps.push(Step::Let(stmt, *var, value)),
                StmtKind::For { body, .. } => {
                    let slot = self.loops;
                    self.loops += 1;
                    let enter = self.steps.len();
                    self.steps.push(Step::Enter { stmt, slot, end: 0 });
                    self.body(body);
                    self.steps.push(Step::Next { stmt, slot, begin: enter + 1 });
                    self.steps[enter] = Step::Enter { stmt, slot, end: self.steps.len() };
                }
                StmtKind::While { cond, body } => {
                    let test = self.steps.len();
                    self.steps.push(Step::Jump(0));
                    self.body(body);
                    self.steps.push(Step::Jump(test));
                    self.steps[test] = Step::JumpIfZero(stmt, cond, self.steps.len());
                }
                StmtKind::If { cond, then, otherwise } => {
                    let test = self.steps.len();
                    self.steps.push(Step::Jump(0));
                    self.body(then);
                    let skip = self.steps.len();
                    self.steps.push(Step::Jump(0));
                    self.steps[test] = Step::JumpIfZero(stmt, cond, self.steps.len());
                    self.body(otherwise);
                    self.steps[skip] = Step::Jump(self.steps.len());
                }
            }
        }
    }
}

/// An instruction as it is issued.
#[derive(Clone)]
pub struct Issued<'a> {
    /// With numbers for scalars.
    pub instr: Cow<'a, Instr<Value>>,
    /// The statement that it comes from.
    pub stmt: &'a Stmt,
}

/// The scalar unit of one core in the middle of a part.
pub struct Issuer<'a> {
    program: &'a Program,
    code: &'a Code<'a>,
    place: Place,
    args: &'a [Option<Value>],
    vars: Vec<Option<Value>>,
    bounds: Vec<(i64, i64)>,
    at: usize,
    /// Steps that it may still take.
    fuel: u64,
}

impl<'a> Issuer<'a> {
    /// At the beginning of a part. `args` are the values of the scalar parameters, `None` for pointers;
    /// `fuel` is the number of steps after which a loop is taken for endless.
    pub fn new(
        program: &'a Program,
        code: &'a Code<'a>,
        place: Place,
        args: &'a [Option<Value>],
        fuel: u64,
    ) -> Issuer<'a> {
        let vars = vec![None; program.vars.len()];
        Issuer { program, code, place, args, vars, bounds: vec![(0, 0); code.loops], at: 0, fuel }
    }

    /// Which block it runs.
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Steps that it may still take. Each statement, and each round of a loop, takes one.
    pub const fn fuel(&self) -> u64 {
        self.fuel
    }

    /// Gives a variable a value: what a load has read.
    pub fn set(&mut self, var: VarId, value: Value) {
        if let Some(slot) = self.vars.get_mut(var.0 as usize) {
            *slot = Some(value);
        }
    }

    /// The next instruction; `None` at the end.
    ///
    /// # Errors
    /// `Scalar` where a scalar is not defined, `Endless` where fuel is out.
    pub fn next(&mut self) -> Result<Option<Issued<'a>>> {
        let code = self.code;
        loop {
            let Some(step) = code.steps.get(self.at) else { return Ok(None) };
            self.at += 1;
            match step {
                Step::Issue(stmt, instr) => {
                    self.spend(stmt)?;
                    let instr = Cow::Owned(instr.map(&mut |x| self.value(stmt, x))?);
                    return Ok(Some(Issued { instr, stmt }));
                }
                Step::Ready(stmt, instr) => {
                    self.spend(stmt)?;
                    return Ok(Some(Issued { instr: Cow::Borrowed(instr), stmt }));
                }
                Step::Let(stmt, var, x) => {
                    self.spend(stmt)?;
                    let value = self.value(stmt, x)?;
                    self.set(*var, value);
                }
                Step::Enter { stmt, slot, end } => {
                    let StmtKind::For { var, from, to, step, .. } = &stmt.kind else { continue };
                    let [from, to, step] = [from, to, step].map(|x| self.value(stmt, x));
                    let (from, to, step) = (from?.as_int(), to?.as_int(), step?.as_int());
                    if step <= 0 {
                        return Err(self.fail(
                            stmt,
                            Rule::Scalar,
                            &format!("the step is {step}, not positive"),
                        ));
                    }
                    self.bounds[*slot] = (to, step);
                    self.set(*var, Value::Int(from));
                    if from >= to {
                        self.at = *end;
                    }
                }
                Step::Next { stmt, slot, begin } => {
                    self.spend(stmt)?;
                    let StmtKind::For { var, .. } = &stmt.kind else { continue };
                    let (to, step) = self.bounds[*slot];
                    let next = self.vars[var.0 as usize].map_or(to, |v| v.as_int().saturating_add(step));
                    self.set(*var, Value::Int(next));
                    if next < to {
                        self.at = *begin;
                    }
                }
                Step::JumpIfZero(stmt, cond, target) => {
                    self.spend(stmt)?;
                    if self.value(stmt, cond)? == Value::Int(0) {
                        self.at = *target;
                    }
                }
                Step::Jump(target) => self.at = *target,
            }
        }
    }

    fn spend(&mut self, stmt: &Stmt) -> Result<()> {
        match self.fuel.checked_sub(1) {
            Some(left) => {
                self.fuel = left;
                Ok(())
            }
            None => Err(self.fail(
                stmt,
                Rule::Endless,
                "the core takes more steps than it was given; is there an end?",
            )),
        }
    }

    fn fail(&self, stmt: &Stmt, rule: Rule, message: &str) -> Box<Finding> {
        let text = head(self.program, stmt);
        Finding::new(rule, self.program, message)
            .at(self.program, &text, stmt.source)
            .in_block(self.place.block)
    }

    fn value(&self, stmt: &Stmt, x: &Scalar) -> Result<Value> {
        self.eval(x).ok_or_else(|| self.fail(stmt, Rule::Scalar, &self.reason(x)))
    }

    /// The value of a scalar; `None` where it is not defined.
    fn eval(&self, x: &Scalar) -> Option<Value> {
        match x {
            Scalar::Int(x) => Some(Value::Int(*x)),
            Scalar::Float(x) => Some(Value::Float(x.0)),
            Scalar::Var(v) => *self.vars.get(v.0 as usize)?,
            Scalar::Param(p) => *self.args.get(p.0 as usize)?,
            Scalar::Core(fact) => Some(Value::Int(i64::from(match fact {
                CoreFact::Block => self.place.block,
                CoreFact::Blocks => self.place.blocks,
                CoreFact::SubBlock => self.place.sub_block,
            }))),
            Scalar::Unary(op, x) => op.of(self.eval(x)?),
            Scalar::Binary(op, a, b) => match (self.eval(a)?, self.eval(b)?) {
                (Value::Int(a), Value::Int(b)) => op.of_ints(a, b).map(Value::Int),
                (Value::Float(a), Value::Float(b)) => op.of_floats(a, b),
                _ => None,
            },
        }
    }

    /// Why a scalar is not defined.
    #[cold]
    fn reason(&self, x: &Scalar) -> String {
        match x {
            Scalar::Var(v) => {
                let name = self.program.vars.get(v.0 as usize).map_or("?", |v| &v.name);
                format!("variable {name} has no value")
            }
            Scalar::Unary(op, x) => match self.eval(x) {
                Some(x) => format!("{op} of {x:?} is not defined"),
                None => self.reason(x),
            },
            Scalar::Binary(op, a, b) => match (self.eval(a), self.eval(b)) {
                (Some(a), Some(b)) => {
                    let why = match op {
                        ScalarBinary::Div | ScalarBinary::Rem => " (division by zero?)",
                        _ => "",
                    };
                    format!("{a:?} {op} {b:?} is not defined{why}")
                }
                (None, _) => self.reason(a),
                (_, None) => self.reason(b),
            },
            _ => "a parameter has no value".into(),
        }
    }
}

/// Cores that a launch of `blocks` blocks occupies at a time, of each part, on a chip with so many of its
/// kind.
pub(crate) fn sub_blocks(program: &Program, part: &Part) -> u32 {
    let vectors_beside =
        program.arch == Arch::A2 && program.mixed() && part.unit == crate::kernel::Unit::Vector;
    if vectors_beside { 2 } else { 1 }
}
