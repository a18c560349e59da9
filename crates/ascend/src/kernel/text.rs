//! The text form of kernel programs: for people to read, and exact, so that [`parse`](fn@super::parse)
//! gives the same program.
//!
//! ```text
//! headwater kernel 1
//! kernel add_f16 arch 2201
//! doc "z = x + y"
//! param x : in f16[65536] streamed
//! buffer tile : ub 32768 phase 0 at 0
//! var i : int
//! source 1 = op "add" node "add" module "block" file "model.py" line 12
//!
//! part vector {
//!   for i = block to 4 step blocks {
//!     data_copy dst=tile:f16[0] src=x:f16[(i * 16384)] blocks=1 len=1024;  @1 "a tile of x"
//!   }
//! }
//! ```
//!
//! A statement ends with `;` or a block; after it, the number of its source and a note. Keys of an
//! instruction come in the order of its declaration; those at their defaults are left out. Views are
//! `base:type[offset in elements]`, and operands of vector instructions add `{block, repeat}` where strides
//! are not 1 and 8. Scalars of two operands are in brackets always.

use super::operand::{Fill, Mask, Over, Vector, View};
use super::scalar::{Real, Scalar, ScalarBinary, ScalarType, Value};
use super::{Access, Param, ParamKind, Program, SourceId, Stmt, StmtKind};
use std::fmt::{self, Display, Formatter, Write};

/// First line of every text; the number changes when the form does.
pub(super) const HEADER: &str = "headwater kernel 1";

/// Words for what a kernel does with a pointer.
pub(super) const ACCESS: [(Access, &str); 4] =
    [(Access::In, "in"), (Access::Out, "out"), (Access::InOut, "inout"), (Access::Workspace, "workspace")];

/// Text of something that needs the program's names.
pub trait Show {
    /// The text.
    fn show(&self, program: &Program) -> String;

    /// True if this is the integer 0.
    fn is_zero(&self) -> bool {
        false
    }
}

/// FNV-1a of a text in 64 bits: names a program in files and caches that keep the text beside it.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Writes ` name=value`.
pub(super) fn key(out: &mut String, name: &str, value: &str) {
    let _ = write!(out, " {name}={value}");
}

/// Writes how much an instruction covers.
pub(super) fn over<S: Show>(out: &mut String, over: &Over<S>, program: &Program) {
    match over {
        Over::Count(n) => key(out, "count", &n.show(program)),
        Over::Repeats { mask, repeat } => {
            key(out, "mask", &mask.show(program));
            key(out, "repeat", &repeat.show(program));
        }
    }
}

/// A float such that reading it gives the same bits.
pub(super) fn float(x: f32) -> String {
    match x.is_finite() {
        true => format!("{x:?}"),
        false => format!("bits({})", x.to_bits()),
    }
}

impl Show for Value {
    fn show(&self, _: &Program) -> String {
        match *self {
            Value::Int(x) => x.to_string(),
            Value::Float(x) => float(x),
        }
    }

    fn is_zero(&self) -> bool {
        *self == Value::Int(0)
    }
}

impl Show for Scalar {
    fn show(&self, program: &Program) -> String {
        match self {
            Scalar::Int(x) => x.to_string(),
            Scalar::Float(Real(x)) => float(*x),
            Scalar::Var(v) => program.vars.get(v.0 as usize).map_or("?".into(), |v| v.name.clone()),
            Scalar::Param(p) => program.params.get(p.0 as usize).map_or("?".into(), |p| p.name.clone()),
            Scalar::Core(fact) => fact.name().into(),
            Scalar::Unary(op, x) => format!("{op}({})", x.show(program)),
            Scalar::Binary(op @ (ScalarBinary::Min | ScalarBinary::Max), a, b) => {
                format!("{op}({}, {})", a.show(program), b.show(program))
            }
            Scalar::Binary(op, a, b) => format!("({} {op} {})", a.show(program), b.show(program)),
        }
    }

    fn is_zero(&self) -> bool {
        *self == Scalar::Int(0)
    }
}

impl<S: Show> Show for View<S> {
    fn show(&self, program: &Program) -> String {
        format!("{}:{}[{}]", program.base_name(self.base), self.elem, self.offset.show(program))
    }
}

impl<S: Show> Show for Vector<S> {
    fn show(&self, program: &Program) -> String {
        let view = self.view.show(program);
        match (self.block, self.repeat) {
            (1, 8) => view,
            (block, repeat) => format!("{view}{{{block}, {repeat}}}"),
        }
    }
}

impl<S: Show> Show for Mask<S> {
    fn show(&self, program: &Program) -> String {
        match self {
            Mask::First(n) => n.show(program),
            Mask::Bits([low, high]) => format!("bits({low}, {high})"),
        }
    }
}

impl Display for Fill {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Int(x) => write!(f, "{x}"),
            Value::Float(x) => f.write_str(&float(x)),
        }
    }
}

impl Display for ScalarType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ScalarType::Int => "int",
            ScalarType::Float => "float",
        })
    }
}

impl Display for Param {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} : ", self.name)?;
        match self.kind {
            ParamKind::Int => f.write_str("int"),
            ParamKind::Float => f.write_str("float"),
            ParamKind::Sync => f.write_str("sync"),
            ParamKind::Pointer { access, elem, len, slack, streamed } => {
                let word = ACCESS.into_iter().find(|(a, _)| *a == access).map_or("", |(_, word)| word);
                write!(f, "{word} {elem}[{len}]")?;
                if slack > 0 {
                    write!(f, " slack {slack}")?;
                }
                f.write_str(if streamed { " streamed" } else { "" })
            }
        }
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}\nkernel {} arch {}", self.name, self.arch)?;
        for line in &self.doc {
            writeln!(f, "doc {line:?}")?;
        }
        for param in &self.params {
            writeln!(f, "param {param}")?;
        }
        for buffer in &self.buffers {
            write!(f, "buffer {} : {} {}", buffer.name, buffer.space, buffer.bytes)?;
            if let Some(phase) = buffer.phase {
                write!(f, " phase {phase}")?;
            }
            match buffer.address {
                Some(address) => writeln!(f, " at {address}")?,
                None => writeln!(f)?,
            }
        }
        for var in &self.vars {
            writeln!(f, "var {} : {}", var.name, var.ty)?;
        }
        for (i, source) in self.sources.iter().enumerate() {
            let origin = &source.origin;
            write!(f, "source {} = op {:?} node {:?}", i + 1, source.op, origin.node)?;
            let texts = [("module", &origin.module), ("class", &origin.class), ("file", &origin.file)];
            for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
                write!(f, " {name} {text:?}")?;
            }
            if origin.line != 0 {
                write!(f, " line {}", origin.line)?;
            }
            if !origin.code.is_empty() {
                write!(f, " code {:?}", origin.code)?;
            }
            writeln!(f)?;
        }
        for part in &self.parts {
            writeln!(f, "\npart {} {{", part.unit)?;
            write_body(f, self, &part.body, 1)?;
            writeln!(f, "}}")?;
        }
        Ok(())
    }
}

fn write_body(f: &mut Formatter<'_>, program: &Program, body: &[Stmt], depth: usize) -> fmt::Result {
    let indent = "  ".repeat(depth);
    for stmt in body {
        f.write_str(&indent)?;
        write!(f, "{}", head(program, stmt))?;
        let block = |f: &mut Formatter<'_>, body: &[Stmt]| -> fmt::Result {
            writeln!(f, " {{")?;
            write_body(f, program, body, depth + 1)?;
            write!(f, "{indent}}}")
        };
        match &stmt.kind {
            StmtKind::Instr(_) | StmtKind::Let(..) => f.write_char(';')?,
            StmtKind::For { body, .. } | StmtKind::While { body, .. } => block(f, body)?,
            StmtKind::If { then, otherwise, .. } => {
                block(f, then)?;
                if !otherwise.is_empty() {
                    f.write_str(" else")?;
                    block(f, otherwise)?;
                }
            }
        }
        if stmt.source != SourceId(0) {
            write!(f, "  @{}", stmt.source.0)?;
        }
        if !stmt.note.is_empty() {
            write!(f, "  {:?}", stmt.note)?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// A statement on one line, without the statements inside it: as findings name it.
pub(crate) fn head(program: &Program, stmt: &Stmt) -> String {
    let show = |x: &Scalar| x.show(program);
    match &stmt.kind {
        StmtKind::Instr(instr) => instr.print(program),
        StmtKind::Let(v, x) => format!("{} = {}", show(&Scalar::Var(*v)), show(x)),
        StmtKind::For { var, from, to, step, .. } => {
            let var = show(&Scalar::Var(*var));
            format!("for {var} = {} to {} step {}", show(from), show(to), show(step))
        }
        StmtKind::While { cond, .. } => format!("while {}", show(cond)),
        StmtKind::If { cond, .. } => format!("if {}", show(cond)),
    }
}
