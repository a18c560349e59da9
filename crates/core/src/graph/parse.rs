//! Reads the text form of graphs (see [`super::text`]). Takes any text: what is wrong is an error with its
//! line and column. Checks the form alone; whether the graph makes sense is [`super::verify`]'s business.

use super::text::{HEADER, PHASES, roles};
use super::{
    Def, Graph, Input, InputRole, Node, NodeId, Origin, OriginId, Output, OutputRole, Phase, Value, ValueId,
};
use crate::attr::{Attr, Attrs};
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::expr::{Binary, Unary};
use crate::ops::Registry;
use crate::row::{Access, Instr, Operand, Reduce, RowProgram};
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

/// Reads a graph, whose operators and attribute names `registry` must know.
///
/// # Errors
/// `Parse`, with line and column.
pub fn parse(text: &str, registry: &Registry) -> Result<Graph> {
    let mut reader = Reader::new(registry);
    for (number, text) in text.lines().enumerate() {
        let mut line = Line { number, text, rest: text };
        if number == 0 {
            line.expect(HEADER)?;
        } else if !line.at_end() {
            reader.statement(&mut line)?;
        }
        if !line.at_end() {
            return Err(line.fail("the end of the line"));
        }
    }
    if text.is_empty() {
        return Err(Line { number: 0, text, rest: text }.fail(&format!("`{HEADER}`")));
    }
    reader.finish(text)
}

/// What has been read so far.
struct Reader<'a> {
    registry: &'a Registry,
    graph: Graph,
    values: BTreeMap<u32, Value>,
    origins: BTreeMap<u32, Origin>,
    phase: Phase,
    /// Values and origins named, and where, to look up at the end: they may be defined further down.
    uses: Vec<(ValueId, Spot)>,
    origin_uses: Vec<(u32, Spot)>,
}

/// Line and byte in it, both from 0.
type Spot = (usize, usize);

impl<'a> Reader<'a> {
    fn new(registry: &'a Registry) -> Self {
        Reader {
            registry,
            graph: Graph::default(),
            values: BTreeMap::new(),
            origins: BTreeMap::new(),
            phase: Phase::Forward,
            uses: Vec::new(),
            origin_uses: Vec::new(),
        }
    }

    fn statement(&mut self, line: &mut Line) -> Result<()> {
        match line.peek() {
            Some('%' | '_') => {
                let outputs = self.results(line)?;
                line.expect("=")?;
                let word = line.word()?;
                match roles().into_iter().find(|(_, w)| *w == word) {
                    Some((role, _)) if line.peek() == Some('"') => self.input(line, &outputs, role),
                    _ => self.node(line, outputs, word),
                }
            }
            Some('@') => self.origin(line),
            _ => {
                let word = line.word()?;
                match PHASES.into_iter().find(|(_, w)| *w == word) {
                    Some((phase, _)) => {
                        self.phase = phase;
                        Ok(())
                    }
                    None if word == "output" => self.output(line),
                    None => Err(line.fail_at(word, "a value, an output, an origin or a phase")),
                }
            }
        }
    }

    /// `%1, %2` or `_` for none.
    fn results(&mut self, line: &mut Line) -> Result<Vec<(ValueId, Spot)>> {
        let mut out = Vec::new();
        if line.eat("_") {
            return Ok(out);
        }
        loop {
            let spot = line.spot();
            out.push((line.value()?, spot));
            if !line.eat(",") {
                return Ok(out);
            }
        }
    }

    fn define(&mut self, line: &mut Line, (v, spot): (ValueId, Spot), def: Def) -> Result<()> {
        let ty = line.ty()?;
        match self.values.insert(v.0, Value { ty, def }) {
            None => Ok(()),
            Some(_) => Err(line.error(spot, format!("{v} is defined twice"))),
        }
    }

    fn input(&mut self, line: &mut Line, outputs: &[(ValueId, Spot)], mut role: InputRole) -> Result<()> {
        let [output] = outputs else { return Err(line.fail("one value for an input")) };
        let name = line.string()?;
        if let InputRole::Parameter { aliases, .. } = &mut role
            && line.eat("also")
        {
            aliases.push(line.string()?);
            while line.eat(",") {
                aliases.push(line.string()?);
            }
        }
        line.expect(":")?;
        self.define(line, *output, Def::Input(self.graph.inputs.len() as u32))?;
        self.graph.inputs.push(Input { value: output.0, name, role });
        Ok(())
    }

    fn node(&mut self, line: &mut Line, outputs: Vec<(ValueId, Spot)>, word: &str) -> Result<()> {
        let Some(op) = self.registry.by_name(word) else {
            return Err(line.fail_at(word, "a known operator"));
        };
        line.expect("(")?;
        let (mut inputs, mut attrs) = (Vec::new(), Attrs::new());
        while !line.eat(")") {
            if !(inputs.is_empty() && attrs.is_empty()) {
                line.expect(",")?;
            }
            let before = line.rest;
            if line.peek() == Some('%') {
                inputs.push(Some(self.used(line)?));
            } else if line.eat("_") && matches!(line.peek(), Some(',' | ')')) {
                inputs.push(None);
            } else {
                line.rest = before;
                let word = line.word()?;
                let Some(name) = self.registry.attr_name(word) else {
                    return Err(line.fail_at(word, "an operand or a known attribute"));
                };
                if attrs.get(name).is_some() {
                    return Err(line.fail_at(word, "each attribute once"));
                }
                line.expect("=")?;
                attrs.set(name, line.attr()?);
            }
        }
        let node = NodeId(self.graph.nodes.len() as u32);
        for (i, &output) in outputs.iter().enumerate() {
            line.expect(if i == 0 { ":" } else { "," })?;
            self.define(line, output, Def::Node(node, i as u32))?;
        }
        let mut origin = OriginId(0);
        if line.peek() == Some('@') {
            let spot = line.spot();
            origin = OriginId(line.origin()?);
            self.origin_uses.push((origin.0, spot));
        }
        let outputs = outputs.into_iter().map(|o| o.0).collect();
        self.graph.nodes.push(Node { op, inputs, attrs, outputs, origin, phase: self.phase });
        Ok(())
    }

    fn used(&mut self, line: &mut Line) -> Result<ValueId> {
        let spot = line.spot();
        let v = line.value()?;
        self.uses.push((v, spot));
        Ok(v)
    }

    fn output(&mut self, line: &mut Line) -> Result<()> {
        let name = line.string()?;
        line.expect("=")?;
        let value = self.used(line)?;
        let role = if line.eat("mutation") {
            line.expect("of")?;
            OutputRole::Mutation(self.used(line)?)
        } else if line.eat("gradient") {
            line.expect("of")?;
            OutputRole::Gradient(self.used(line)?)
        } else {
            OutputRole::User
        };
        self.graph.outputs.push(Output { value, name, role });
        Ok(())
    }

    fn origin(&mut self, line: &mut Line) -> Result<()> {
        let spot = line.spot();
        let id = line.origin()?;
        line.expect("=")?;
        let mut origin = Origin { node: line.string()?, ..Origin::default() };
        while !line.at_end() {
            match line.word()? {
                "module" => origin.module = line.string()?,
                "class" => origin.class = line.string()?,
                "file" => origin.file = line.string()?,
                "line" => origin.line = line.number("a line number")?,
                "code" => origin.code = line.string()?,
                word => return Err(line.fail_at(word, "`module`, `class`, `file`, `line` or `code`")),
            }
        }
        match self.origins.insert(id, origin) {
            None => Ok(()),
            Some(_) => Err(line.error(spot, format!("@{id} is defined twice"))),
        }
    }

    fn finish(mut self, text: &str) -> Result<Graph> {
        let undefined = |(number, at): Spot, what: String| {
            let text = text.lines().nth(number).unwrap_or("");
            Err(Line { number, text, rest: "" }.error((number, at), format!("{what} is not defined")))
        };
        if let Some((v, spot)) = self.uses.iter().find(|(v, _)| !self.values.contains_key(&v.0)) {
            return undefined(*spot, v.to_string());
        }
        if let Some((o, spot)) = self.origin_uses.iter().find(|(o, _)| !self.origins.contains_key(o)) {
            return undefined(*spot, format!("@{o}"));
        }
        no_gap('%', self.values.keys())?;
        no_gap('@', self.origins.keys())?;
        self.graph.values = self.values.into_values().collect();
        self.graph.origins = Arc::new(self.origins.into_values().collect());
        Ok(self.graph)
    }
}

fn no_gap<'a>(sign: char, numbers: impl Iterator<Item = &'a u32>) -> Result<()> {
    match numbers.zip(0..).find(|&(&have, want)| have != want) {
        Some((_, missing)) => {
            Err(Error::new(Code::Parse, format!("{sign}{missing} is not defined: numbers have no gaps")))
        }
        None => Ok(()),
    }
}

/// A line being read.
struct Line<'a> {
    number: usize,
    text: &'a str,
    rest: &'a str,
}

impl<'a> Line<'a> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        if self.rest.starts_with('#') {
            self.rest = "";
        }
    }

    fn at_end(&mut self) -> bool {
        self.skip();
        self.rest.is_empty()
    }

    fn peek(&mut self) -> Option<char> {
        self.skip();
        self.rest.chars().next()
    }

    fn spot(&mut self) -> Spot {
        self.skip();
        (self.number, self.text.len() - self.rest.len())
    }

    /// An error at a place in this line, shown as people count: from 1, in characters.
    fn error(&self, (number, at): Spot, what: String) -> Error {
        let column = self.text.get(..at).map_or(0, |t| t.chars().count());
        Error::new(Code::Parse, format!("line {}, column {}: {what}", number + 1, column + 1))
    }

    /// An error at what comes next.
    fn fail(&mut self, expected: &str) -> Error {
        let spot = self.spot();
        let found: String = self.rest.chars().take(20).collect();
        let found = if found.is_empty() { "the end of the line".into() } else { format!("`{found}`") };
        self.error(spot, format!("expected {expected}, found {found}"))
    }

    /// An error at a word read from this line.
    fn fail_at(&self, word: &'a str, expected: &str) -> Error {
        let at = word.as_ptr() as usize - self.text.as_ptr() as usize;
        self.error((self.number, at), format!("expected {expected}, found `{word}`"))
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.fail(&format!("`{token}`"))) }
    }

    /// The characters of names and numbers.
    fn word(&mut self) -> Result<&'a str> {
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

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T> {
        let word = self.word().map_err(|_| self.fail(what))?;
        word.parse().map_err(|_| self.fail_at(word, what))
    }

    fn value(&mut self) -> Result<ValueId> {
        self.expect("%")?;
        Ok(ValueId(self.number("the number of a value")?))
    }

    fn origin(&mut self) -> Result<u32> {
        self.expect("@")?;
        self.number("the number of an origin")
    }

    /// A string with Rust's escapes.
    fn string(&mut self) -> Result<String> {
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

    fn dtype(&mut self) -> Result<DType> {
        let word = self.word()?;
        word.parse().map_err(|()| self.fail_at(word, "a dtype such as f32"))
    }

    /// Items up to a closing bracket, with commas between them.
    fn list<T>(&mut self, close: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut out = Vec::new();
        while !self.eat(close) {
            if !out.is_empty() {
                self.expect(",")?;
            }
            out.push(item(self)?);
        }
        Ok(out)
    }

    fn shape(&mut self) -> Result<Shape> {
        self.expect("[")?;
        let shape: Shape = self.list("]", |l| l.number::<usize>("a size"))?.into();
        match shape.checked_numel() {
            Some(_) => Ok(shape),
            None => Err(self.fail("a shape that memory can hold")),
        }
    }

    fn ty(&mut self) -> Result<TensorType> {
        Ok(TensorType { dtype: self.dtype()?, shape: self.shape()? })
    }

    fn float(&mut self) -> Result<f64> {
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

    fn attr(&mut self) -> Result<Attr> {
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

    fn all<T>(&mut self, items: Vec<Attr>, pick: impl Fn(Attr) -> Option<T>) -> Result<Vec<T>> {
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
    fn program(&mut self) -> Result<RowProgram> {
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
