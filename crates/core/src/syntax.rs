//! The grammar that text forms share: words, numbers, strings, types, attributes, row programs, origins. One
//! line at a time; what is wrong is an error with its line and column.

use crate::attr::{Attr, Attrs};
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::expr::{Binary, Unary};
use crate::origin::Origin;
use crate::row::{Access, Instr, Operand, Reduce, RowProgram};
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};
use std::str::FromStr;
use std::sync::Arc;

/// Line and byte in it, both from 0.
pub(crate) type Spot = (usize, usize);

/// Reads every line of a text whose first is `header`; `#` starts a comment.
pub(crate) fn statements<'a>(
    text: &'a str,
    header: &str,
    mut statement: impl FnMut(&mut Line<'a>) -> Result<()>,
) -> Result<()> {
    for (number, text) in text.lines().enumerate() {
        let mut line = Line::new(number, text);
        if number == 0 {
            line.expect(header)?;
        } else if !line.at_end() {
            statement(&mut line)?;
        }
        if !line.at_end() {
            return Err(line.fail("the end of the line"));
        }
    }
    if text.is_empty() { Err(Line::new(0, text).fail(&format!("`{header}`"))) } else { Ok(()) }
}

/// Reads `name=value` into `attrs`, where `known` gives the name as attributes have it.
pub(crate) fn attribute(
    line: &mut Line,
    known: impl Fn(&str) -> Option<&'static str>,
    attrs: &mut Attrs,
) -> Result<()> {
    let word = line.word()?;
    let Some(name) = known(word) else {
        return Err(line.fail_at(word, "an operand or a known attribute"));
    };
    if attrs.get(name).is_some() {
        return Err(line.fail_at(word, "each attribute once"));
    }
    line.expect("=")?;
    attrs.set(name, line.attr()?);
    Ok(())
}

/// Refuses numbers that are not 0, 1, 2 and so on.
pub(crate) fn no_gap<'a>(sign: char, numbers: impl Iterator<Item = &'a u32>) -> Result<()> {
    match numbers.zip(0..).find(|&(&have, want)| have != want) {
        Some((_, missing)) => {
            Err(Error::new(Code::Parse, format!("{sign}{missing} is not defined: numbers have no gaps")))
        }
        None => Ok(()),
    }
}

/// A line being read.
pub(crate) struct Line<'a> {
    pub(crate) number: usize,
    pub(crate) text: &'a str,
    pub(crate) rest: &'a str,
}

impl<'a> Line<'a> {
    pub(crate) fn new(number: usize, text: &'a str) -> Self {
        Line { number, text, rest: text }
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        if self.rest.starts_with('#') {
            self.rest = "";
        }
    }

    pub(crate) fn at_end(&mut self) -> bool {
        self.skip();
        self.rest.is_empty()
    }

    pub(crate) fn peek(&mut self) -> Option<char> {
        self.skip();
        self.rest.chars().next()
    }

    pub(crate) fn spot(&mut self) -> Spot {
        self.skip();
        (self.number, self.text.len() - self.rest.len())
    }

    /// An error at a place in this line, shown as people count: from 1, in characters.
    pub(crate) fn error(&self, (number, at): Spot, what: String) -> Error {
        let column = self.text.get(..at).map_or(0, |t| t.chars().count());
        Error::new(Code::Parse, format!("line {}, column {}: {what}", number + 1, column + 1))
    }

    /// An error at what comes next.
    pub(crate) fn fail(&mut self, expected: &str) -> Error {
        let spot = self.spot();
        let found: String = self.rest.chars().take(20).collect();
        let found = if found.is_empty() { "the end of the line".into() } else { format!("`{found}`") };
        self.error(spot, format!("expected {expected}, found {found}"))
    }

    /// An error at a word read from this line.
    pub(crate) fn fail_at(&self, word: &'a str, expected: &str) -> Error {
        let at = word.as_ptr() as usize - self.text.as_ptr() as usize;
        self.error((self.number, at), format!("expected {expected}, found `{word}`"))
    }

    pub(crate) fn eat(&mut self, token: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    pub(crate) fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.fail(&format!("`{token}`"))) }
    }

    /// The characters of names and numbers.
    pub(crate) fn word(&mut self) -> Result<&'a str> {
        self.skip();
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || "_.:+-".contains(c)))
            .unwrap_or(self.rest.len());
        if end == 0 {
            return Err(self.fail("a word"));
        }
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(word)
    }

    pub(crate) fn number<T: FromStr>(&mut self, what: &str) -> Result<T> {
        let word = self.word().map_err(|_| self.fail(what))?;
        word.parse().map_err(|_| self.fail_at(word, what))
    }

    pub(crate) fn value(&mut self) -> Result<u32> {
        self.expect("%")?;
        self.number("the number of a value")
    }

    pub(crate) fn origin(&mut self) -> Result<u32> {
        self.expect("@")?;
        self.number("the number of an origin")
    }

    /// `@1 = "node" module "path" …`: an origin and its number.
    pub(crate) fn origin_statement(&mut self) -> Result<(u32, Origin)> {
        let id = self.origin()?;
        self.expect("=")?;
        let mut origin = Origin { node: self.string()?, ..Origin::default() };
        while !self.at_end() {
            match self.word()? {
                "module" => origin.module = self.string()?,
                "class" => origin.class = self.string()?,
                "file" => origin.file = self.string()?,
                "line" => origin.line = self.number("a line number")?,
                "code" => origin.code = self.string()?,
                word => return Err(self.fail_at(word, "`module`, `class`, `file`, `line` or `code`")),
            }
        }
        Ok((id, origin))
    }

    /// A string with Rust's escapes.
    pub(crate) fn string(&mut self) -> Result<String> {
        self.expect("\"")?;
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[i + 1..];
                    return Ok(out);
                }
                '\\' => {
                    let code = |c: &mut std::str::CharIndices| -> Option<char> {
                        Some(match c.next()?.1 {
                            'n' => '\n',
                            'r' => '\r',
                            't' => '\t',
                            '0' => '\0',
                            c @ ('"' | '\'' | '\\') => c,
                            'u' => {
                                let hex = c.as_str().strip_prefix('{')?.split('}').next()?;
                                let decoded = u32::from_str_radix(hex, 16).ok().and_then(char::from_u32)?;
                                c.nth(hex.chars().count() + 1)?;
                                decoded
                            }
                            _ => return None,
                        })
                    };
                    match code(&mut chars) {
                        Some(c) => out.push(c),
                        None => {
                            self.rest = &self.rest[i..];
                            return Err(self.fail("an escape such as `\\n`"));
                        }
                    }
                }
                c => out.push(c),
            }
        }
        self.rest = "";
        Err(self.fail("the string's closing quote"))
    }

    pub(crate) fn dtype(&mut self) -> Result<DType> {
        let word = self.word()?;
        word.parse().map_err(|()| self.fail_at(word, "a dtype such as f32"))
    }

    /// Items up to a closing bracket, with commas between them.
    pub(crate) fn list<T>(&mut self, close: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut out = Vec::new();
        while !self.eat(close) {
            if !out.is_empty() {
                self.expect(",")?;
            }
            out.push(item(self)?);
        }
        Ok(out)
    }

    pub(crate) fn shape(&mut self) -> Result<Shape> {
        self.expect("[")?;
        let shape: Shape = self.list("]", |l| l.number::<usize>("a size"))?.into();
        match shape.checked_numel() {
            Some(_) => Ok(shape),
            None => Err(self.fail("a shape that memory can hold")),
        }
    }

    pub(crate) fn ty(&mut self) -> Result<TensorType> {
        Ok(TensorType { dtype: self.dtype()?, shape: self.shape()? })
    }

    pub(crate) fn float(&mut self) -> Result<f64> {
        let word = self.word().map_err(|_| self.fail("a number"))?;
        match word.strip_prefix("NaN:") {
            Some(bits) => u64::from_str_radix(bits, 16).map(f64::from_bits).ok(),
            None => word.parse().ok(),
        }
        .ok_or_else(|| self.fail_at(word, "a number"))
    }

    /// An int or a float: ints have digits alone.
    fn scalar(&mut self) -> Result<Attr> {
        let before = self.rest;
        let word = self.word().map_err(|_| self.fail("a value"))?;
        if word.strip_prefix('-').unwrap_or(word).bytes().all(|b| b.is_ascii_digit()) {
            let int = word.parse().map_err(|_| self.fail_at(word, "an integer of 64 bits"));
            return int.map(Attr::Int);
        }
        self.rest = before;
        self.float().map(Attr::Float)
    }

    pub(crate) fn attr(&mut self) -> Result<Attr> {
        match self.peek() {
            Some('"') => return self.string().map(Attr::Str),
            Some('[') => {
                self.expect("[")?;
                let items = self.list("]", Self::scalar)?;
                return Ok(match items.first() {
                    Some(Attr::Float(_)) => Attr::Floats(self.all(items, |a| match a {
                        Attr::Float(x) => Some(x),
                        _ => None,
                    })?),
                    _ => Attr::Ints(self.all(items, |a| match a {
                        Attr::Int(i) => Some(i),
                        _ => None,
                    })?),
                });
            }
            _ => {}
        }
        let before = self.rest;
        let word = self.word().map_err(|_| self.fail("a value"))?;
        match word {
            "true" => return Ok(Attr::Bool(true)),
            "false" => return Ok(Attr::Bool(false)),
            "floats" => {
                self.expect("[")?;
                self.expect("]")?;
                return Ok(Attr::Floats(vec![]));
            }
            "rows" => return self.program().map(|p| Attr::Program(Arc::new(p))),
            _ => {}
        }
        if let Ok(dtype) = word.parse::<DType>() {
            return if self.rest.starts_with('[') {
                self.tensor(dtype).map(|t| Attr::Tensor(Arc::new(t)))
            } else {
                Ok(Attr::DType(dtype))
            };
        }
        self.rest = before;
        self.scalar()
    }

    pub(crate) fn all<T>(&mut self, items: Vec<Attr>, pick: impl Fn(Attr) -> Option<T>) -> Result<Vec<T>> {
        let picked: Option<Vec<T>> = items.into_iter().map(pick).collect();
        picked.ok_or_else(|| self.fail("a list of ints or of floats before this"))
    }

    /// `[2]{1.0, 2.0}` after the dtype.
    fn tensor(&mut self, dtype: DType) -> Result<Tensor> {
        let shape = self.shape()?;
        self.expect("{")?;
        if dtype.is_float() {
            let data = self.list("}", Self::float)?;
            let held = data.iter().all(|&x| x.is_nan() || dtype.round(x) == x);
            if data.len() == shape.numel() && held {
                return Ok(Tensor::float(dtype, shape, data));
            }
        } else {
            let data = self.list("}", |l| l.number::<i64>("an integer"))?;
            if data.len() == shape.numel() && data.iter().all(|&x| dtype.wrap(x) == x) {
                return Ok(Tensor::int(dtype, shape, data));
            }
        }
        Err(self.fail(&format!("{} numbers that {dtype} holds before this", shape.numel())))
    }

    /// A row program after the word `rows`, as `RowProgram` prints it.
    pub(crate) fn program(&mut self) -> Result<RowProgram> {
        let (outer, inner) = (self.shape()?.to_vec(), self.shape()?.to_vec());
        self.expect("(")?;
        let reads = self.list(")", Self::operand)?;
        self.expect("->")?;
        self.expect("(")?;
        let writes = self.list(")", Self::operand)?;
        self.expect("{")?;
        let mut body = Vec::new();
        while !self.eat("}") {
            self.expect("%")?;
            if self.number::<usize>("a register")? != body.len() {
                return Err(self.fail(&format!("register %{} before this", body.len())));
            }
            self.expect("=")?;
            body.push(self.instr()?);
            self.expect(";")?;
        }
        Ok(RowProgram { outer, inner, reads, writes, body })
    }

    /// `f32(0 1*3 _)`
    fn operand(&mut self) -> Result<Operand> {
        let dtype = self.dtype()?;
        self.expect("(")?;
        let mut access = Vec::new();
        while !self.eat(")") {
            if self.eat("_") {
                access.push(None);
                continue;
            }
            let dim = self.number("a dimension")?;
            let times = if self.eat("*") { self.number("a multiple")? } else { 1 };
            access.push(Some((dim, times)));
        }
        Ok(Operand { dtype, access: Access(access) })
    }

    fn register(&mut self) -> Result<usize> {
        self.expect("%")?;
        self.number("a register")
    }

    fn instr(&mut self) -> Result<Instr> {
        let word = self.word()?;
        Ok(match word {
            "load" => Instr::Load(self.number("an operand")?),
            "iota" => {
                self.expect("[")?;
                Instr::Iota(self.list("]", |l| l.number("a coefficient"))?)
            }
            "float" => Instr::Float(self.float()?),
            "int" => Instr::Int(self.number("an integer")?),
            "bool" => Instr::Bool(self.number("a truth value")?),
            "select" => Instr::Select(self.register()?, self.register()?, self.register()?),
            "cast" => Instr::Cast(self.dtype()?, self.register()?),
            "reduce" => {
                let word = self.word()?;
                let op = Reduce::from_name(word).ok_or_else(|| self.fail_at(word, "a reduction"))?;
                Instr::Reduce(op, self.register()?)
            }
            "store" => Instr::Store(self.number("an operand")?, self.register()?),
            "columns" => Instr::Columns(self.number("an operand")?, self.register()?),
            word => match (Unary::from_name(word), Binary::from_name(word)) {
                (Some(op), _) => Instr::Unary(op, self.register()?),
                (_, Some(op)) => Instr::Binary(op, self.register()?, self.register()?),
                _ => return Err(self.fail_at(word, "an instruction")),
            },
        })
    }
}
