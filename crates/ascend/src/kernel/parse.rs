//! Reads the text form of kernel programs (see [`super::text`]). Takes any text: what is wrong is an error
//! with its line and column. Checks the form alone; whether the program is legal on its chip is
//! [`super::verify()`]'s business.

use super::cursor::{Cursor, Name};
use super::instr::Instr;
use super::scalar::ScalarType;
use super::text::{ACCESS, HEADER};
use super::{
    Buffer, BufferId, Elem, Param, ParamId, ParamKind, Part, Program, Source, SourceId, Space, Stmt,
    StmtKind, Unit, Var, VarId,
};
use crate::chip::Arch;
use headwater_core::Result;
use headwater_core::graph::Origin;

/// Reads a program.
///
/// # Errors
/// `Parse`, with line and column.
pub fn parse(text: &str) -> Result<Program> {
    let (mut c, mut program) = (Cursor::new(text), empty());
    c.expect(HEADER)?;
    c.expect("kernel")?;
    program.name = c.word()?.to_string();
    c.expect("arch")?;
    let number = c.number::<u32>("an architecture")?;
    program.arch = Arch::from_number(number).ok_or_else(|| c.fail("2201 or 2002 before this"))?;
    while !c.at_end() {
        declaration(&mut c, &mut program)?;
    }
    Ok(program)
}

fn empty() -> Program {
    Program {
        name: String::new(),
        arch: Arch::A2,
        doc: Vec::new(),
        params: Vec::new(),
        buffers: Vec::new(),
        vars: Vec::new(),
        sources: Vec::new(),
        parts: Vec::new(),
    }
}

/// A declaration, which is added to the program.
fn declaration(c: &mut Cursor, program: &mut Program) -> Result<()> {
    let before = c.at;
    match c.word()? {
        "doc" => {
            let line = c.string()?;
            program.doc.push(line);
        }
        "param" => {
            let name = c.word()?;
            c.expect(":")?;
            let kind = param(c)?;
            c.define(name, Name::Param(ParamId(program.params.len() as u32)))?;
            program.params.push(Param { name: name.into(), kind });
        }
        "buffer" => {
            let name = c.word()?;
            c.expect(":")?;
            let space = c.one_of(Space::from_name, "a memory such as `ub`")?;
            let bytes = c.number("a size in bytes")?;
            let phase = if c.eat_word("phase") { Some(c.number("a phase")?) } else { None };
            let address = if c.eat_word("at") { Some(c.number("an address")?) } else { None };
            c.define(name, Name::Buffer(BufferId(program.buffers.len() as u32)))?;
            program.buffers.push(Buffer { name: name.into(), space, bytes, phase, address });
        }
        "var" => {
            let name = c.word()?;
            c.expect(":")?;
            let ty = match c.word()? {
                "int" => ScalarType::Int,
                "float" => ScalarType::Float,
                _ => return Err(c.fail("`int` or `float` before this")),
            };
            c.define(name, Name::Var(VarId(program.vars.len() as u32)))?;
            program.vars.push(Var { name: name.into(), ty });
        }
        "source" => source(c, program)?,
        "part" => {
            let unit = c.one_of(Unit::from_name, "`vector`, `cube` or `whole`")?;
            let body = body(c)?;
            program.parts.push(Part { unit, body });
        }
        _ => {
            c.at = before;
            return Err(c.fail("`doc`, `param`, `buffer`, `var`, `source` or `part`"));
        }
    }
    Ok(())
}

/// The kind of a parameter.
fn param(c: &mut Cursor) -> Result<ParamKind> {
    let before = c.at;
    let word = c.word()?;
    let access = match word {
        "int" => return Ok(ParamKind::Int),
        "float" => return Ok(ParamKind::Float),
        "sync" => return Ok(ParamKind::Sync),
        word => ACCESS.into_iter().find(|(_, w)| *w == word).map(|(access, _)| access),
    };
    let Some(access) = access else {
        c.at = before;
        return Err(c.fail("`in`, `out`, `inout`, `workspace`, `int`, `float` or `sync`"));
    };
    let elem = c.one_of(Elem::from_name, "an element type")?;
    c.expect("[")?;
    let len = c.number("a length")?;
    c.expect("]")?;
    let slack = if c.eat_word("slack") { c.number("a length")? } else { 0 };
    Ok(ParamKind::Pointer { access, elem, len, slack, streamed: c.eat_word("streamed") })
}

/// The source of statements, which is added to the program.
fn source(c: &mut Cursor, program: &mut Program) -> Result<()> {
    if c.number::<usize>("a number")? != program.sources.len() + 1 {
        return Err(c.fail(&format!("source {} before this", program.sources.len() + 1)));
    }
    c.expect("=")?;
    c.expect("op")?;
    let op = c.string()?;
    c.expect("node")?;
    let mut origin = Origin { node: c.string()?, ..Origin::default() };
    if c.eat_word("module") {
        origin.module = c.string()?;
    }
    if c.eat_word("class") {
        origin.class = c.string()?;
    }
    if c.eat_word("file") {
        origin.file = c.string()?;
    }
    if c.eat_word("line") {
        origin.line = c.number("a line")?;
    }
    if c.eat_word("code") {
        origin.code = c.string()?;
    }
    program.sources.push(Source { op, origin });
    Ok(())
}

/// Statements in braces.
fn body(c: &mut Cursor) -> Result<Vec<Stmt>> {
    c.deeper(|c| {
        c.expect("{")?;
        let mut body = Vec::new();
        while !c.eat("}") {
            body.push(statement(c)?);
        }
        Ok(body)
    })
}

/// A statement, with its source and note.
fn statement(c: &mut Cursor) -> Result<Stmt> {
    let before = c.at;
    let word = c.word()?;
    let kind = match word {
        "for" => {
            let var = c.var("a variable")?;
            c.expect("=")?;
            let from = c.scalar()?;
            c.expect("to")?;
            let to = c.scalar()?;
            c.expect("step")?;
            let step = c.scalar()?;
            StmtKind::For { var, from, to, step, body: body(c)? }
        }
        "while" => StmtKind::While { cond: c.scalar()?, body: body(c)? },
        "if" => {
            let (cond, then) = (c.scalar()?, body(c)?);
            let otherwise = if c.eat_word("else") { body(c)? } else { Vec::new() };
            StmtKind::If { cond, then, otherwise }
        }
        word => match Instr::parse(word, c) {
            Some(instr) => {
                let instr = instr?;
                c.expect(";")?;
                StmtKind::Instr(instr)
            }
            None => {
                c.at = before;
                let var = c.var("an instruction, a variable, `for`, `while` or `if`")?;
                c.expect("=")?;
                let value = c.scalar()?;
                c.expect(";")?;
                StmtKind::Let(var, value)
            }
        },
    };
    let source = SourceId(if c.eat("@") { c.number("a source")? } else { 0 });
    let note = if c.peek() == Some('"') { c.string()? } else { String::new() };
    Ok(Stmt { kind, note, source })
}
