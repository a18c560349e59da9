//! The parser of symbolic expressions: SymPy's `srepr` and Python's infix operators, in one grammar.

use super::number::ratio;
use super::{Expr, Function, Number};
use crate::error::{Result, refuse, shown};

/// Nesting allowed: the parser's stack, and that of everything that walks an expression.
const DEPTH: usize = 64;

impl Expr {
    /// Parses either spelling.
    ///
    /// # Errors
    /// `Expression`, also for nesting deeper than 64.
    pub fn parse(text: &str) -> Result<Expr> {
        let bad = || refuse!(Expression, "cannot read the symbolic expression `{}`", shown(text));
        let mut p = Parser { rest: text.trim_start() };
        let e = p.binary(0, 0).ok_or_else(bad)?;
        if p.rest.is_empty() { Ok(e) } else { Err(bad()) }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

/// Binding strength of comparisons.
const COMPARES: u8 = 4;

/// Infix operators by binding strength.
const INFIX: &[(&str, u8, Function)] = &[
    (" or ", 1, Function::Or),
    (" and ", 2, Function::And),
    ("==", COMPARES, Function::Eq),
    ("!=", COMPARES, Function::Ne),
    ("<=", COMPARES, Function::Le),
    (">=", COMPARES, Function::Ge),
    ("<", COMPARES, Function::Lt),
    (">", COMPARES, Function::Gt),
    ("+", 6, Function::Add),
    ("-", 6, Function::Sub),
    ("**", 9, Function::Pow),
    ("*", 7, Function::Mul),
    ("//", 7, Function::FloorDiv),
    ("/", 7, Function::TrueDiv),
    ("%", 7, Function::Mod),
];

impl<'a> Parser<'a> {
    fn eat(&mut self, token: &str) -> bool {
        // `and` and `or` are words: their spaces belong to the token, the space before may be gone already.
        let found = self.rest.strip_prefix(token.trim_start());
        if let Some(rest) = found {
            self.rest = rest.trim_start();
        }
        found.is_some()
    }

    fn expect(&mut self, token: &str) -> Option<()> {
        self.eat(token).then_some(())
    }

    fn binary(&mut self, min: u8, depth: usize) -> Option<Expr> {
        if depth > DEPTH {
            return None;
        }
        let mut left = if self.eat("-") {
            match self.binary(8, depth + 1)? {
                Expr::Infinity(negative) => Expr::Infinity(!negative),
                e => Expr::Call(Function::Neg, vec![e]),
            }
        } else if self.eat("not ") {
            Expr::Call(Function::Not, vec![self.binary(3, depth + 1)?])
        } else {
            self.atom(depth)?
        };
        let mut compared = false;
        // A chain of operators nests to the left, so its length counts as depth too.
        for chain in depth.. {
            let Some(&(token, strength, f)) = INFIX
                .iter()
                .find(|(token, strength, _)| *strength >= min && self.rest.starts_with(token.trim_start()))
            else {
                break;
            };
            // Python reads `a < b < c` as `a < b and b < c`; nobody writes it in guards, so it is not read as
            // anything.
            if chain > DEPTH || (compared && strength == COMPARES) {
                return None;
            }
            compared |= strength == COMPARES;
            self.expect(token)?;
            // `**` binds to the right.
            let right = self.binary(if f == Function::Pow { strength } else { strength + 1 }, depth + 1)?;
            left = match (f, left) {
                // Sums and products take any number of arguments.
                (Function::Add | Function::Mul, Expr::Call(g, mut args))
                    if f == g && args.len() < 2 * DEPTH =>
                {
                    args.push(right);
                    Expr::Call(g, args)
                }
                (f, left) => Expr::Call(f, vec![left, right]),
            };
        }
        Some(left)
    }

    fn atom(&mut self, depth: usize) -> Option<Expr> {
        if self.eat("(") {
            let e = self.binary(0, depth + 1)?;
            self.expect(")")?;
            return Some(e);
        }
        if self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            return self.number().map(Expr::Number);
        }
        let name = self.word()?;
        if name == "L" && self.rest.starts_with('[') {
            return self.input_size();
        }
        if !self.eat("(") {
            return Some(match name {
                "true" | "True" => Expr::Number(Number::Bool(true)),
                "false" | "False" => Expr::Number(Number::Bool(false)),
                "oo" | "int_oo" => Expr::Infinity(false),
                _ => Expr::Symbol(name.to_string()),
            });
        }
        match name {
            "Integer" | "Float" | "Rational" => self.literal(name).map(Expr::Number),
            "Symbol" => {
                let symbol = self.quoted()?.to_string();
                // Assumptions such as `positive=True`.
                while self.eat(",") {
                    self.word()?;
                    self.expect("=")?;
                    self.word()?;
                }
                self.expect(")")?;
                Some(Expr::Symbol(symbol))
            }
            _ => {
                let f = Function::named(name)?;
                let mut args = Vec::new();
                while !self.eat(")") {
                    if !args.is_empty() {
                        self.expect(",")?;
                    }
                    args.push(self.binary(0, depth + 1)?);
                }
                Some(Expr::Call(f, args))
            }
        }
    }

    fn word(&mut self) -> Option<&'a str> {
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        (!word.is_empty()).then_some(word)
    }

    fn quoted(&mut self) -> Option<&'a str> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (text, rest) = self.rest[1..].split_once(quote)?;
        self.rest = rest.trim_start();
        Some(text)
    }

    fn number(&mut self) -> Option<Number> {
        let text = self.word()?;
        // The exponent of `1e-05` has a sign; words do not.
        if text.ends_with(['e', 'E']) && self.rest.starts_with(['+', '-']) {
            let sign = if self.rest.starts_with('-') { "-" } else { "" };
            self.rest = &self.rest[1..];
            return Some(Number::Float(format!("{text}{sign}{}", self.word()?).parse().ok()?));
        }
        if text.contains(['.', 'e', 'E']) {
            return text.parse().ok().map(Number::Float);
        }
        text.parse().ok().map(Number::Int)
    }

    fn signed(&mut self) -> Option<i64> {
        let negative = self.eat("-");
        let digits = self.word()?;
        if negative { format!("-{digits}").parse().ok() } else { digits.parse().ok() }
    }

    /// The rest of `Integer(3)`, `Rational(1, 2)`, `Float('0.5', precision=53)`.
    fn literal(&mut self, name: &str) -> Option<Number> {
        let n = match name {
            "Integer" => Number::Int(self.signed()?),
            "Rational" => {
                let a = self.signed()?;
                self.expect(",")?;
                ratio(a as i128, self.signed()? as i128)?
            }
            _ => {
                let x = Number::Float(self.quoted()?.parse().ok()?);
                while self.eat(",") {
                    self.word()?;
                    self.expect("=")?;
                    self.word()?;
                }
                x
            }
        };
        self.expect(")")?;
        Some(n)
    }

    /// The rest of `L['a'][0].size()[1]`.
    fn input_size(&mut self) -> Option<Expr> {
        let mut path = String::new();
        while self.eat("[") {
            if !path.is_empty() {
                path.push('_');
            }
            path.push_str(match self.quoted() {
                Some(key) => key,
                None => self.word()?,
            });
            self.expect("]")?;
        }
        self.expect(".size()[")?;
        let dim = self.signed()?;
        self.expect("]")?;
        Some(Expr::Size(path, usize::try_from(dim).ok()?))
    }
}
