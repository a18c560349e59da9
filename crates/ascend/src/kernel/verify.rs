//! The verifier: whether a program is legal on its architecture, as far as that can be said before it runs.

use super::check::{Broken, check};
use super::finding::{Finding, Result, Rule};
use super::footprint::footprint;
use super::instr::{Instr, Load};
use super::operand::{Base, View};
use super::scalar::{Scalar, ScalarType};
use super::text::head;
use super::{Access, Elem, ParamKind, Part, Program, SourceId, Space, Stmt, StmtKind, Unit, VarId};
use crate::chip::Arch;
use std::collections::HashSet;

/// Words that a name may not be: of our text, of C++, and of what is emitted.
const RESERVED: &[&str] = &[
    "block",
    "blocks",
    "sub_block",
    "neg",
    "float",
    "int",
    "sqrt",
    "min",
    "max",
    "bits",
    "for",
    "while",
    "if",
    "else",
    "to",
    "step",
    "at",
    "phase",
    "slack",
    "streamed",
    "auto",
    "bool",
    "break",
    "case",
    "char",
    "const",
    "continue",
    "default",
    "delete",
    "do",
    "double",
    "enum",
    "extern",
    "false",
    "goto",
    "half",
    "inline",
    "long",
    "namespace",
    "new",
    "not",
    "or",
    "and",
    "xor",
    "operator",
    "private",
    "public",
    "register",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "throw",
    "true",
    "try",
    "typedef",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "class",
    "pipe",
    "ub",
    "l1",
    "l0a",
    "l0b",
    "l0c",
    "bt",
];

/// True if a word can be the name of a kernel, parameter, buffer or variable.
pub(crate) fn is_name(word: &str) -> bool {
    let letters = word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let first = word.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
    // Names that end with `_` are the emitted source's own.
    letters
        && first
        && word.len() <= 64
        && !word.contains("__")
        && !word.ends_with('_')
        && !RESERVED.contains(&word)
}

/// Checks a program.
///
/// # Errors
/// Every statement's first broken rule, and every declaration's.
pub fn verify(program: &Program) -> Result<(), Vec<Finding>> {
    let mut v = Verifier { program, findings: Vec::new() };
    v.declarations();
    if v.findings.is_empty() {
        for part in &program.parts {
            v.part(part);
        }
    }
    match v.findings.is_empty() {
        true => Ok(()),
        false => Err(v.findings),
    }
}

struct Verifier<'a> {
    program: &'a Program,
    findings: Vec<Finding>,
}

/// Variables that have a value at some place.
type Known = HashSet<VarId>;

impl Verifier<'_> {
    fn add(&mut self, rule: Rule, message: impl Into<String>, buffer: &str) {
        self.findings.push(*Finding::new(rule, self.program, message).of(buffer));
    }

    fn declarations(&mut self) {
        let p = self.program;
        let names = p.params.iter().map(|x| &x.name).chain(p.buffers.iter().map(|x| &x.name));
        let mut seen = HashSet::from([p.name.as_str()]);
        if !is_name(&p.name) {
            self.add(Rule::Form, format!("`{}` cannot be a kernel's name", p.name.escape_debug()), "");
        }
        for name in names.chain(p.vars.iter().map(|x| &x.name)) {
            if !is_name(name) {
                self.add(Rule::Form, format!("`{}` cannot be a name", name.escape_debug()), "");
            }
            if !seen.insert(name) {
                self.add(Rule::Form, format!("the name `{name}` is used twice"), "");
            }
        }
        for (i, param) in p.params.iter().enumerate() {
            if param.kind == ParamKind::Sync && (i > 0 || p.arch != Arch::A2) {
                self.add(
                    Rule::Form,
                    "the address to synchronise by is A2's, and the first parameter",
                    &param.name,
                );
            }
            if let ParamKind::Pointer { elem: Elem::BF16, .. } = param.kind
                && p.arch == Arch::P310
            {
                self.add(Rule::Unsupported, "310P does not have bf16", &param.name);
            }
        }
        let units: Vec<Unit> = p.parts.iter().map(|x| x.unit).collect();
        let fits = match p.arch {
            Arch::P310 => units == [Unit::Whole],
            Arch::A2 => {
                !units.contains(&Unit::Whole)
                    && (units.len() == 1 || (units.len() == 2 && units[0] != units[1]))
            }
        };
        if !fits {
            let names: Vec<_> = units.iter().map(|u| u.name()).collect();
            let message = format!("architecture {} has no kernel of parts `{}`", p.arch, names.join(", "));
            self.add(Rule::Form, message, "");
        }
        self.buffers();
    }

    fn buffers(&mut self) {
        let p = self.program;
        for (i, b) in p.buffers.iter().enumerate() {
            let align = b.space.align();
            let Some(address) = b.address else {
                self.add(Rule::Form, "the buffer has no address; `place` gives one", &b.name);
                continue;
            };
            let end = address.saturating_add(b.bytes);
            if b.space == Space::Gm {
                self.add(
                    Rule::Memory,
                    "buffers are in a core's memories; memory in gm is a parameter",
                    &b.name,
                );
            } else if end > p.arch.capacity(b.space) {
                let capacity = p.arch.capacity(b.space);
                self.add(
                    Rule::Capacity,
                    format!("it ends at {end}; {} has {capacity} bytes", b.space),
                    &b.name,
                );
            }
            if address % align != 0 || b.bytes % align != 0 {
                let message = format!("{} bytes at {address} are not aligned to {align}", b.bytes);
                self.add(Rule::Alignment, message, &b.name);
            }
            for other in p.buffers[..i].iter().filter(|o| o.space == b.space) {
                let start = other.address.unwrap_or(0);
                if start < end && address < start.saturating_add(other.bytes) {
                    self.add(Rule::Overlap, format!("it overlaps {}", other.name), &b.name);
                }
            }
        }
    }

    fn part(&mut self, part: &Part) {
        self.body(part.unit, &part.body, &mut Known::new(), &mut Vec::new());
    }

    /// Checks statements, and notes in `known` which variables have a value after them.
    fn body(&mut self, unit: Unit, body: &[Stmt], known: &mut Known, loops: &mut Vec<VarId>) {
        for stmt in body {
            if let Err(broken) = self.stmt(unit, stmt, known, loops) {
                let text = head(self.program, stmt);
                let finding = Finding::new(broken.rule, self.program, broken.message).of(&broken.buffer);
                self.findings.push(*finding.at(self.program, &text, stmt.source));
            }
        }
    }

    fn stmt(
        &mut self,
        unit: Unit,
        stmt: &Stmt,
        known: &mut Known,
        loops: &mut Vec<VarId>,
    ) -> Result<(), Broken> {
        if stmt.source != SourceId(0) && self.program.source(stmt.source).is_none() {
            return Err(form(format!("there is no source {}", stmt.source.0)));
        }
        match &stmt.kind {
            StmtKind::Instr(instr) => {
                self.instr(unit, instr, known)?;
                if let Instr::Load(Load { into, .. }) = instr {
                    self.assign(*into, loops)?;
                    known.insert(*into);
                }
            }
            StmtKind::Let(var, value) => {
                let ty = self.scalar(value, known)?;
                self.assign(*var, loops)?;
                if self.program.vars[var.0 as usize].ty != ty {
                    return Err(form(format!("a value of type {ty} for a variable of another")));
                }
                known.insert(*var);
            }
            StmtKind::For { var, from, to, step, body } => {
                for bound in [from, to, step] {
                    self.int(bound, known)?;
                }
                if let Scalar::Int(step @ i64::MIN..=0) = step {
                    return Err(form(format!("the step is {step}, not positive")));
                }
                self.assign(*var, loops)?;
                if self.program.vars[var.0 as usize].ty != ScalarType::Int {
                    return Err(form("the variable of a loop is an integer"));
                }
                let mut inside = known.clone();
                inside.insert(*var);
                loops.push(*var);
                self.body(unit, body, &mut inside, loops);
                loops.pop();
            }
            StmtKind::While { cond, body } => {
                self.int(cond, known)?;
                self.body(unit, body, &mut known.clone(), loops);
            }
            StmtKind::If { cond, then, otherwise } => {
                self.int(cond, known)?;
                let (mut a, mut b) = (known.clone(), known.clone());
                self.body(unit, then, &mut a, loops);
                self.body(unit, otherwise, &mut b, loops);
                known.extend(a.intersection(&b));
            }
        }
        Ok(())
    }

    fn assign(&self, var: VarId, loops: &[VarId]) -> Result<(), Broken> {
        if var.0 as usize >= self.program.vars.len() {
            return Err(form("a variable that is not declared"));
        }
        match loops.contains(&var) {
            true => Err(form("the variable of a loop is set inside it")),
            false => Ok(()),
        }
    }

    /// Type of a scalar all of whose variables have values.
    fn scalar(&self, x: &Scalar, known: &Known) -> Result<ScalarType, Broken> {
        let mut missing = None;
        x.visit(&mut |part| match part {
            Scalar::Var(v) if !known.contains(v) => missing = Some(*v),
            _ => {}
        });
        if let Some(v) = missing {
            let name = self.program.vars.get(v.0 as usize).map_or("?", |v| &v.name);
            return Err(form(format!("variable {name} has no value here")));
        }
        x.ty(self.program).ok_or_else(|| form("integers and floats are mixed, or an operand is no scalar"))
    }

    fn int(&self, x: &Scalar, known: &Known) -> Result<(), Broken> {
        match self.scalar(x, known)? {
            ScalarType::Int => Ok(()),
            ScalarType::Float => Err(form("a float where an integer is needed")),
        }
    }

    fn instr(&self, unit: Unit, instr: &Instr, known: &Known) -> Result<(), Broken> {
        let p = self.program;
        for (name, base, _) in instr.operands() {
            let there = match base {
                Base::Param(x) => {
                    p.params.get(x.0 as usize).is_some_and(|x| matches!(x.kind, ParamKind::Pointer { .. }))
                }
                Base::Buffer(b) => (b.0 as usize) < p.buffers.len(),
            };
            if !there {
                return Err(form(format!("operand {name} is no buffer and no pointer")));
            }
        }
        // Types of scalars: the instruction's value has its element's type, all others are integers.
        let value = instr.value();
        let mut floats = 0;
        instr.map(&mut |x| -> Result<Scalar, Broken> {
            floats += usize::from(self.scalar(x, known)? == ScalarType::Float);
            Ok(x.clone())
        })?;
        let wanted = value.is_some_and(|(_, elem)| elem.is_float());
        if floats != usize::from(wanted)
            || value.is_some_and(|(x, _)| (x.ty(p) == Some(ScalarType::Float)) != wanted)
        {
            return Err(form(match wanted {
                true => "the value is an integer, the elements are floats, or another scalar is a float",
                false => "a float where an integer is needed",
            }));
        }
        if let Instr::Load(Load { into, src }) = instr {
            let float = p.vars.get(into.0 as usize).map(|v| v.ty == ScalarType::Float);
            if float.is_some_and(|float| float != src.elem.is_float()) {
                return Err(form("the variable has another type than the element"));
            }
        }
        check(p, unit, instr)?;
        let writes = |view: &View| match view.base {
            Base::Param(x) => {
                matches!(p.params[x.0 as usize].kind, ParamKind::Pointer { access: Access::In, .. })
            }
            Base::Buffer(_) => false,
        };
        let mut read_only = None;
        instr.views(&mut |name, view| {
            if name == "dst" && writes(view) {
                read_only = Some(view.base);
            }
        });
        if let Some(base) = read_only {
            let buffer = p.base_name(base).to_string();
            return Err(Broken {
                rule: Rule::Memory,
                buffer,
                message: "a parameter that is read is written".into(),
            });
        }
        // Bounds, where all scalars are constants.
        if let Ok(issued) = instr.map(&mut |x| x.constant().ok_or(())) {
            for touch in footprint(&issued, &|base| p.space(base)) {
                let size = p.size(touch.base);
                let (from, to) = touch.runs.span();
                if from < 0 || to as u64 > size {
                    let message = format!("{} covers bytes {from} to {to} of {size}", touch.operand);
                    return Err(Broken {
                        rule: Rule::Bounds,
                        buffer: p.base_name(touch.base).into(),
                        message,
                    });
                }
            }
        }
        Ok(())
    }
}

fn form(message: impl Into<String>) -> Broken {
    Broken { rule: Rule::Form, buffer: String::new(), message: message.into() }
}
