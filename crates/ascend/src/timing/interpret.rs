//! The scalar unit of a core: runs the statements of a part one by one and gives the instructions that it issues.

use crate::finding::{Finding, Result, Rule};
use crate::kernel::{
    Base, CoreFact, Instr, ParamKind, Program, Scalar, ScalarType, Stmt, StmtKind, Value, VarId, View,
};

/// Cycles that the scalar unit takes for an operation of an expression, a branch, and the issue of an instruction.
/// Assumed: no public measurement tells them apart.
const SCALAR_OP: u64 = 1;
const BRANCH: u64 = 2;
const ISSUE: u64 = 2;

/// What the scalar unit does next.
pub enum Next<'p> {
    /// Issues an instruction.
    Issue(Box<Instr<Value>>, &'p Stmt),
    /// Has come to the end.
    End,
}

enum Frame<'p> {
    Block { body: &'p [Stmt], at: usize },
    For { var: VarId, next: i64, to: i64, step: i64, body: &'p [Stmt] },
    While { cond: &'p Scalar, body: &'p [Stmt] },
}

/// The scalar unit of one core that runs one block.
pub struct Interpreter<'p> {
    program: &'p Program,
    frames: Vec<Frame<'p>>,
    vars: Vec<Value>,
    args: &'p [Value],
    /// Index of the block, number of blocks, and which vector core of a pair this is.
    place: [i64; 3],
    /// Cycles so far.
    pub cycles: u64,
}

impl<'p> Interpreter<'p> {
    /// A core before the first statement of `body`. `args` has a value for each parameter; pointers' are not looked at.
    pub fn new(
        program: &'p Program,
        body: &'p [Stmt],
        args: &'p [Value],
        place: [i64; 3],
    ) -> Interpreter<'p> {
        let zero = |ty| match ty {
            ScalarType::Int => Value::Int(0),
            ScalarType::Float => Value::Float(0.0),
        };
        Interpreter {
            program,
            frames: vec![Frame::Block { body, at: 0 }],
            vars: program.vars.iter().map(|v| zero(v.ty)).collect(),
            args,
            place,
            cycles: 0,
        }
    }

    /// Gives a variable that an instruction loads a value.
    pub fn assign(&mut self, var: VarId, value: Value) {
        if let Some(slot) = self.vars.get_mut(var.0 as usize) {
            *slot = value;
        }
    }

    /// Runs up to the next instruction.
    ///
    /// # Errors
    /// `Scalar` for an expression without a value.
    pub fn next(&mut self) -> Result<Next<'p>> {
        loop {
            let Some(frame) = self.frames.last_mut() else { return Ok(Next::End) };
            match frame {
                Frame::Block { body, at } => {
                    let Some(stmt) = body.get(*at) else {
                        self.frames.pop();
                        continue;
                    };
                    *at += 1;
                    if let Some(next) = self.statement(stmt)? {
                        return Ok(next);
                    }
                }
                Frame::For { var, next, to, step, body } => {
                    if *next >= *to {
                        self.frames.pop();
                        continue;
                    }
                    let (var, value, body) = (*var, *next, *body);
                    *next += *step;
                    self.cycles += BRANCH + SCALAR_OP;
                    self.assign(var, Value::Int(value));
                    self.frames.push(Frame::Block { body, at: 0 });
                }
                Frame::While { cond, body } => {
                    let (cond, body) = (*cond, *body);
                    self.cycles += BRANCH;
                    match self.int(cond)? {
                        0 => drop(self.frames.pop()),
                        _ => self.frames.push(Frame::Block { body, at: 0 }),
                    }
                }
            }
        }
    }

    fn statement(&mut self, stmt: &'p Stmt) -> Result<Option<Next<'p>>> {
        match &stmt.kind {
            StmtKind::Instr(instr) => {
                self.cycles += ISSUE;
                let mut cost = 0;
                let issued = instr.map(&mut |s| self.eval(s, &mut cost))?;
                self.cycles += cost;
                return Ok(Some(Next::Issue(Box::new(issued), stmt)));
            }
            StmtKind::Let(var, value) => {
                let mut cost = SCALAR_OP;
                let value = self.eval(value, &mut cost)?;
                self.cycles += cost;
                self.assign(*var, value);
            }
            StmtKind::For { var, from, to, step, body } => {
                let (from, to, step) = (self.int(from)?, self.int(to)?, self.int(step)?);
                if step <= 0 {
                    let message = format!("a loop with step {step}: it never ends");
                    return Err(Finding::new(Rule::Scalar, self.program, message));
                }
                self.frames.push(Frame::For { var: *var, next: from, to, step, body });
            }
            StmtKind::If { cond, then, otherwise } => {
                self.cycles += BRANCH;
                let body = if self.int(cond)? != 0 { then } else { otherwise };
                self.frames.push(Frame::Block { body, at: 0 });
            }
            StmtKind::While { cond, body } => self.frames.push(Frame::While { cond, body }),
        }
        Ok(None)
    }

    fn int(&mut self, scalar: &Scalar) -> Result<i64> {
        let mut cost = 0;
        let value = self.eval(scalar, &mut cost)?;
        self.cycles += cost;
        Ok(value.as_int())
    }

    fn eval(&self, scalar: &Scalar, cost: &mut u64) -> Result<Value> {
        let undefined = |what: &str| Finding::new(Rule::Scalar, self.program, format!("{what} has no value"));
        Ok(match scalar {
            Scalar::Int(x) => Value::Int(*x),
            Scalar::Float(x) => Value::Float(x.0),
            Scalar::Var(v) => *self.vars.get(v.0 as usize).ok_or_else(|| undefined("a variable"))?,
            Scalar::Param(p) => *self.args.get(p.0 as usize).ok_or_else(|| undefined("a parameter"))?,
            Scalar::Core(CoreFact::Block) => Value::Int(self.place[0]),
            Scalar::Core(CoreFact::Blocks) => Value::Int(self.place[1]),
            Scalar::Core(CoreFact::SubBlock) => Value::Int(self.place[2]),
            Scalar::Unary(op, x) => {
                *cost += SCALAR_OP;
                op.of(self.eval(x, cost)?).ok_or_else(|| undefined(op.name()))?
            }
            Scalar::Binary(op, a, b) => {
                *cost += SCALAR_OP;
                let value = match (self.eval(a, cost)?, self.eval(b, cost)?) {
                    (Value::Int(a), Value::Int(b)) => op.of_ints(a, b).map(Value::Int),
                    (Value::Float(a), Value::Float(b)) => op.of_floats(a, b),
                    _ => None,
                };
                value.ok_or_else(|| undefined(op.name()))?
            }
        })
    }
}

/// Addresses that a run gives its memories: GM's pointers one behind the other, whole lines apart.
#[derive(Debug)]
pub struct Addresses {
    params: Vec<u64>,
    /// Bytes of all pointers.
    pub gm: u64,
}

impl Addresses {
    /// The addresses of a program's pointers.
    pub fn new(program: &Program) -> Addresses {
        let mut gm = 0;
        let place = |p: &crate::kernel::Param| {
            let at = gm;
            if matches!(p.kind, ParamKind::Pointer { .. }) {
                gm = (gm + p.bytes()).next_multiple_of(512);
            }
            at
        };
        let params = program.params.iter().map(place).collect();
        Addresses { params, gm }
    }

    /// Address in bytes of a view's beginning, in its own memory.
    pub fn of(&self, program: &Program, view: &View<Value>) -> u64 {
        let base = match view.base {
            Base::Param(p) => self.params.get(p.0 as usize).copied().unwrap_or(0),
            Base::Buffer(b) => program.buffers.get(b.0 as usize).and_then(|b| b.address).unwrap_or(0),
        };
        base.saturating_add_signed(view.byte())
    }
}
