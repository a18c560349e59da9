//! A place in the text form of a kernel program, and what is read there: words, numbers, scalars, operands.

use super::operand::{Base, Mask, Over, Vector, View};
use super::scalar::{CoreFact, Real, Scalar, ScalarBinary, ScalarUnary, Value};
use super::{BufferId, Elem, ParamId, VarId};
use headwater_core::{Code, Error, Result};
use std::collections::HashMap;
use std::str::FromStr;

/// Deepest nesting of blocks and of scalars.
const DEPTH: usize = 64;

/// Meaning of a name.
#[derive(Clone, Copy)]
pub(super) enum Name {
    Param(ParamId),
    Buffer(BufferId),
    Var(VarId),
}

/// A place in the text, and the names that are declared before it.
pub(super) struct Cursor<'a> {
    text: &'a str,
    /// Bytes before the place.
    pub(super) at: usize,
    depth: usize,
    names: HashMap<&'a str, Name>,
}

impl<'a> Cursor<'a> {
    /// The beginning of a text.
    pub(super) fn new(text: &'a str) -> Self {
        Cursor { text, at: 0, depth: 0, names: HashMap::new() }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    /// True if only space is left.
    pub(super) fn at_end(&mut self) -> bool {
        self.skip_space();
        self.rest().is_empty()
    }

    /// The sign that comes, without taking it.
    pub(super) fn peek(&mut self) -> Option<char> {
        self.skip_space();
        self.rest().chars().next()
    }

    /// The error at this position: expected and found.
    pub(super) fn fail(&self, wanted: &str) -> Error {
        let before = &self.text[..self.at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        let found: String = self.rest().trim_start().chars().take_while(|c| *c != '\n').take(24).collect();
        Error::new(Code::Parse, format!("line {line}, column {column}: expected {wanted}, found `{found}`"))
    }

    /// Takes a token if it comes.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// A token that must come.
    pub(super) fn expect(&mut self, token: &str) -> Result<()> {
        match self.eat(token) {
            true => Ok(()),
            false => Err(self.fail(&format!("`{token}`"))),
        }
    }

    /// The word that comes, without taking it; empty if none does.
    fn peek_word(&mut self) -> &'a str {
        self.skip_space();
        let rest = self.rest();
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            true => &rest[..rest.find(|c| !inside(c)).unwrap_or(rest.len())],
            false => "",
        }
    }

    /// A word that must come.
    pub(super) fn word(&mut self) -> Result<&'a str> {
        let word = self.peek_word();
        if word.is_empty() {
            return Err(self.fail("a word"));
        }
        self.at += word.len();
        Ok(word)
    }

    /// Takes a word if it comes.
    pub(super) fn eat_word(&mut self, wanted: &str) -> bool {
        let found = self.peek_word() == wanted;
        if found {
            self.at += wanted.len();
        }
        found
    }

    /// One of the words of an enum.
    pub(super) fn one_of<T>(&mut self, from_name: impl Fn(&str) -> Option<T>, wanted: &str) -> Result<T> {
        let before = self.at;
        let word = self.word()?;
        from_name(word).ok_or_else(|| {
            self.at = before;
            self.fail(wanted)
        })
    }

    fn number_text(&mut self) -> &'a str {
        self.skip_space();
        let rest = self.rest();
        let digits = rest.strip_prefix('-').unwrap_or(rest);
        if !digits.starts_with(|c: char| c.is_ascii_digit()) {
            return "";
        }
        let mut previous = ' ';
        let end = rest.char_indices().find(|&(i, c)| {
            let inside = c.is_ascii_digit()
                || matches!(c, '.' | 'e')
                || (matches!(c, '-' | '+') && (i == 0 || previous == 'e'));
            previous = c;
            !inside
        });
        &rest[..end.map_or(rest.len(), |(i, _)| i)]
    }

    /// A number that must come.
    pub(super) fn number<T: FromStr>(&mut self, wanted: &str) -> Result<T> {
        let text = self.number_text();
        let number = text.parse().map_err(|_| self.fail(wanted))?;
        self.at += text.len();
        Ok(number)
    }

    /// An integer, or a float.
    pub(super) fn value(&mut self) -> Result<Value> {
        if self.peek_word() == "bits" {
            self.expect("bits")?;
            self.expect("(")?;
            let bits = self.number::<u32>("bits of a float")?;
            self.expect(")")?;
            return Ok(Value::Float(f32::from_bits(bits)));
        }
        match self.number_text().contains(['.', 'e']) {
            true => self.number("a float").map(Value::Float),
            false => self.number("a number").map(Value::Int),
        }
    }

    /// A text in quotes.
    pub(super) fn string(&mut self) -> Result<String> {
        self.expect("\"")?;
        let mut out = String::new();
        let rest = self.rest();
        let mut chars = rest.char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(out);
                }
                '\\' => match escape(&mut chars) {
                    Some(c) => out.push(c),
                    None => {
                        self.at += i;
                        return Err(self.fail("an escape such as `\\n`"));
                    }
                },
                c => out.push(c),
            }
        }
        Err(self.fail("a string with a closing quote"))
    }

    /// Items up to a closing bracket, with commas between them.
    pub(super) fn list<T>(&mut self, close: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut out = Vec::new();
        while !self.eat(close) {
            if !out.is_empty() {
                self.expect(",")?;
            }
            out.push(item(self)?);
        }
        Ok(out)
    }

    /// Gives a name its meaning, once.
    pub(super) fn define(&mut self, word: &'a str, name: Name) -> Result<()> {
        match self.names.insert(word, name) {
            None => Ok(()),
            Some(_) => Err(self.fail(&format!("a name other than `{word}`, which is taken, before this"))),
        }
    }

    /// Reads something a level further inside.
    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEPTH {
            return Err(self.fail(&format!("at most {DEPTH} levels of nesting")));
        }
        self.depth += 1;
        let out = read(self);
        self.depth -= 1;
        out
    }

    /// Parses a mandatory variable; `wanted` is the description for the error.
    pub(super) fn var(&mut self, wanted: &str) -> Result<VarId> {
        let before = self.at;
        let word = self.word()?;
        match self.names.get(word) {
            Some(Name::Var(v)) => Ok(*v),
            _ => {
                self.at = before;
                Err(self.fail(wanted))
            }
        }
    }

    /// A key that must come.
    pub(super) fn key(&mut self, name: &str) -> Result<()> {
        match self.try_key(name) {
            true => Ok(()),
            false => Err(self.fail(&format!("`{name}=`"))),
        }
    }

    /// Takes a key if it comes.
    pub(super) fn try_key(&mut self, name: &str) -> bool {
        let before = self.at;
        let found = self.eat_word(name) && self.rest().starts_with('=');
        self.at = if found { self.at + 1 } else { before };
        found
    }

    pub(super) fn scalar(&mut self) -> Result<Scalar> {
        self.deeper(Self::scalar_inner)
    }

    fn scalar_inner(&mut self) -> Result<Scalar> {
        if self.eat("(") {
            let a = self.scalar()?;
            let op = self.infix()?;
            let b = self.scalar()?;
            self.expect(")")?;
            return Ok(Scalar::Binary(op, Box::new(a), Box::new(b)));
        }
        let word = self.peek_word();
        if word.is_empty() || word == "bits" {
            return Ok(match self.value()? {
                Value::Int(x) => Scalar::Int(x),
                Value::Float(x) => Scalar::Float(Real(x)),
            });
        }
        if let Some(name) = self.names.get(word).copied() {
            match name {
                Name::Var(v) => {
                    self.at += word.len();
                    return Ok(Scalar::Var(v));
                }
                Name::Param(p) => {
                    self.at += word.len();
                    return Ok(Scalar::Param(p));
                }
                Name::Buffer(_) => return Err(self.fail("a scalar")),
            }
        }
        if let Some(fact) = CoreFact::from_name(word) {
            self.at += word.len();
            return Ok(Scalar::Core(fact));
        }
        if let Some(op) = ScalarUnary::from_name(word) {
            self.at += word.len();
            self.expect("(")?;
            let x = self.scalar()?;
            self.expect(")")?;
            return Ok(Scalar::Unary(op, Box::new(x)));
        }
        if let Some(op @ (ScalarBinary::Min | ScalarBinary::Max)) = ScalarBinary::from_name(word) {
            self.at += word.len();
            self.expect("(")?;
            let a = self.scalar()?;
            self.expect(",")?;
            let b = self.scalar()?;
            self.expect(")")?;
            return Ok(Scalar::Binary(op, Box::new(a), Box::new(b)));
        }
        Err(self.fail("a scalar"))
    }

    fn infix(&mut self) -> Result<ScalarBinary> {
        self.skip_space();
        let longest = |n: usize| self.rest().get(..n).and_then(ScalarBinary::from_name).map(|op| (n, op));
        match longest(2).or_else(|| longest(1)) {
            Some((n, op)) => {
                self.at += n;
                Ok(op)
            }
            None => Err(self.fail("an operator")),
        }
    }

    pub(super) fn view(&mut self) -> Result<View> {
        let before = self.at;
        let word = self.word()?;
        let base = match self.names.get(word) {
            Some(Name::Param(p)) => Base::Param(*p),
            Some(Name::Buffer(b)) => Base::Buffer(*b),
            _ => {
                self.at = before;
                return Err(self.fail("a buffer or parameter"));
            }
        };
        self.expect(":")?;
        let elem = self.one_of(Elem::from_name, "an element type")?;
        self.expect("[")?;
        let offset = self.scalar()?;
        self.expect("]")?;
        Ok(View { base, elem, offset })
    }

    pub(super) fn views(&mut self) -> Result<Vec<View>> {
        self.expect("[")?;
        self.list("]", Self::view)
    }

    pub(super) fn vector(&mut self) -> Result<Vector> {
        let view = self.view()?;
        if !self.eat("{") {
            return Ok(view.into());
        }
        let block = self.number("a stride")?;
        self.expect(",")?;
        let repeat = self.number("a stride")?;
        self.expect("}")?;
        Ok(Vector { view, block, repeat })
    }

    pub(super) fn mask(&mut self) -> Result<Mask> {
        if self.peek_word() != "bits" {
            return self.scalar().map(Mask::First);
        }
        self.expect("bits")?;
        self.expect("(")?;
        let low = self.number("a mask")?;
        self.expect(",")?;
        let high = self.number("a mask")?;
        self.expect(")")?;
        Ok(Mask::Bits([low, high]))
    }

    pub(super) fn over(&mut self) -> Result<Over> {
        if self.try_key("count") {
            return self.scalar().map(Over::Count);
        }
        self.key("mask")?;
        let mask = self.mask()?;
        self.key("repeat")?;
        Ok(Over::Repeats { mask, repeat: self.scalar()? })
    }
}

fn escape(chars: &mut std::str::CharIndices) -> Option<char> {
    Some(match chars.next()?.1 {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        '0' => '\0',
        c @ ('"' | '\'' | '\\') => c,
        'u' => {
            let hex = chars.as_str().strip_prefix('{')?.split('}').next()?;
            let decoded = u32::from_str_radix(hex, 16).ok().and_then(char::from_u32)?;
            chars.nth(hex.chars().count() + 1)?;
            decoded
        }
        _ => return None,
    })
}
