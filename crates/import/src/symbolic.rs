//! Symbolic sizes: reads the expressions PyTorch writes (SymPy's `srepr`, and plain infix in guards) and evaluates them
//! exactly, in checked integers. Knows nothing of graphs.

use crate::error::{Result, refuse, shown};
use std::collections::HashMap;
use std::fmt;

/// A number of Python's: exact integers, floats, bools.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// `int`
    Int(i64),
    /// An exact quotient in lowest terms, denominator above 1.
    Ratio(i64, i64),
    /// `float`
    Float(f64),
    /// `bool`
    Bool(bool),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Int(i) => write!(f, "{i}"),
            Number::Ratio(a, b) => write!(f, "{a}/{b}"),
            Number::Float(x) => write!(f, "{x:?}"),
            Number::Bool(b) => write!(f, "{b}"),
        }
    }
}

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// A number.
    Number(Number),
    /// Plus or minus infinity, as in ranges.
    Infinity(bool),
    /// A symbol such as `s72`.
    Symbol(String),
    /// `L['path'].size()[dim]`: a size of a user input, the path's keys joined by `_`.
    Size(String, usize),
    /// A function or operator.
    Call(Function, Vec<Expr>),
}

/// Functions of expressions and of symbolic nodes, Python's where they differ from SymPy's.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Add,
    Sub,
    Mul,
    Neg,
    Pos,
    TrueDiv,
    FloorDiv,
    CleanDiv,
    CeilDiv,
    Mod,
    Pow,
    Min,
    Max,
    Abs,
    Floor,
    Ceil,
    Trunc,
    Round,
    ToFloat,
    ToInt,
    Sqrt,
    LeftShift,
    RightShift,
    And,
    Or,
    Not,
    BitAnd,
    BitOr,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    If,
    Piecewise,
    Pair,
    ModularIndexing,
    Identity,
}

impl Function {
    /// By any of its names: SymPy's, PyTorch's SymPy functions', Python's `operator` and `math`, and `torch.sym_*`.
    pub fn named(name: &str) -> Option<Function> {
        use Function::*;
        Some(match name {
            "Add" | "add" | "sym_sum" => Add,
            "sub" => Sub,
            "Mul" | "mul" => Mul,
            "neg" => Neg,
            "pos" => Pos,
            "IntTrueDiv" | "FloatTrueDiv" | "TrueDiv" | "truediv" => TrueDiv,
            "FloorDiv" | "floordiv" => FloorDiv,
            "CleanDiv" => CleanDiv,
            "CeilDiv" => CeilDiv,
            "Mod" | "PythonMod" | "mod" => Mod,
            "Pow" | "PowByNatural" | "FloatPow" | "pow" | "pow_by_natural" => Pow,
            "Min" | "sym_min" => Min,
            "Max" | "sym_max" => Max,
            "Abs" | "abs" => Abs,
            "floor" | "FloorToInt" => Floor,
            "ceiling" | "ceil" | "CeilToInt" => Ceil,
            "trunc" | "TruncToInt" | "TruncToFloat" => Trunc,
            "RoundToInt" | "round" => Round,
            "ToFloat" | "sym_float" => ToFloat,
            "sym_int" => ToInt,
            "sqrt" | "sym_sqrt" | "_sym_sqrt" | "OpaqueUnaryFn_sqrt" => Sqrt,
            "LShift" | "lshift" => LeftShift,
            "RShift" | "rshift" => RightShift,
            "And" => And,
            "Or" => Or,
            "Not" | "sym_not" | "not_" => Not,
            "and_" | "BitwiseFn_bitwise_and" => BitAnd,
            "or_" | "BitwiseFn_bitwise_or" => BitOr,
            "Equality" | "Eq" | "eq" => Eq,
            "Unequality" | "Ne" | "ne" => Ne,
            "StrictLessThan" | "Lt" | "lt" => Lt,
            "LessThan" | "Le" | "le" => Le,
            "StrictGreaterThan" | "Gt" | "gt" => Gt,
            "GreaterThan" | "Ge" | "ge" => Ge,
            "Where" | "sym_ite" => If,
            "Piecewise" => Piecewise,
            "ExprCondPair" => Pair,
            "ModularIndexing" => ModularIndexing,
            "Identity" => Identity,
            _ => return None,
        })
    }

    /// Applies the function to numbers.
    ///
    /// # Errors
    /// `Expression`: a number of the wrong kind, an overflow, a division by zero.
    pub fn apply(self, args: &[Number]) -> Result<Number> {
        apply(self, args).ok_or_else(|| {
            let list: Vec<_> = args.iter().take(8).map(Number::to_string).collect();
            refuse!(Expression, "{self:?}({}) has no value in 64-bit integers", list.join(", "))
        })
    }
}

/// Values of symbols and of user inputs' sizes.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Symbol to value.
    pub symbols: HashMap<String, i64>,
    /// User input to sizes.
    pub sizes: HashMap<String, Vec<i64>>,
}

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

    /// The value; `None` if a symbol or size is not known.
    ///
    /// # Errors
    /// `Expression`, as [`Function::apply`].
    pub fn eval(&self, env: &Environment) -> Result<Option<Number>> {
        Ok(Some(match self {
            Expr::Number(n) => *n,
            Expr::Infinity(negative) => {
                Number::Float(if *negative { f64::NEG_INFINITY } else { f64::INFINITY })
            }
            Expr::Symbol(s) => match env.symbols.get(s) {
                Some(v) => Number::Int(*v),
                None => return Ok(None),
            },
            Expr::Size(input, dim) => match env.sizes.get(input).and_then(|s| s.get(*dim)) {
                Some(v) => Number::Int(*v),
                None => return Ok(None),
            },
            // The first pair whose condition holds; later ones may have no value.
            Expr::Call(Function::Piecewise, pairs) => {
                for pair in pairs {
                    let Expr::Call(Function::Pair, pair) = pair else { break };
                    let [value, condition] = &pair[..] else { break };
                    match condition.eval(env)? {
                        Some(Number::Bool(true)) => return value.eval(env),
                        Some(Number::Bool(false)) => {}
                        _ => return Ok(None),
                    }
                }
                return Err(refuse!(Expression, "no case of a Piecewise applies"));
            }
            Expr::Call(f, args) => {
                let mut values = Vec::with_capacity(args.len());
                for a in args {
                    match a.eval(env)? {
                        Some(v) => values.push(v),
                        None => return Ok(None),
                    }
                }
                f.apply(&values)?
            }
        }))
    }

    /// Calls `f` with every symbol in the expression.
    pub fn symbols<'a>(&'a self, f: &mut impl FnMut(&'a str)) {
        match self {
            Expr::Symbol(s) => f(s),
            Expr::Call(_, args) => args.iter().for_each(|a| a.symbols(f)),
            _ => {}
        }
    }
}

const DEPTH: usize = 64;

struct Parser<'a> {
    rest: &'a str,
}

/// Infix operators by binding strength.
const INFIX: &[(&str, u8, Function)] = &[
    (" or ", 1, Function::Or),
    (" and ", 2, Function::And),
    ("==", 4, Function::Eq),
    ("!=", 4, Function::Ne),
    ("<=", 4, Function::Le),
    (">=", 4, Function::Ge),
    ("<", 4, Function::Lt),
    (">", 4, Function::Gt),
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
        // A chain of operators nests to the left, so its length counts as depth too.
        for chain in depth.. {
            let Some(&(token, strength, f)) = INFIX
                .iter()
                .find(|(token, strength, _)| *strength >= min && self.rest.starts_with(token.trim_start()))
            else {
                break;
            };
            if chain > DEPTH {
                return None;
            }
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

/// A quotient in lowest terms.
fn ratio(a: i128, b: i128) -> Option<Number> {
    if b == 0 {
        return None;
    }
    let (mut x, mut y) = (a.unsigned_abs(), b.unsigned_abs());
    while y != 0 {
        (x, y) = (y, x % y);
    }
    let (g, sign) = (x.max(1) as i128, if b < 0 { -1 } else { 1 });
    let (a, b) = (i64::try_from(sign * a / g).ok()?, i64::try_from(sign * b / g).ok()?);
    Some(if b == 1 { Number::Int(a) } else { Number::Ratio(a, b) })
}

impl Number {
    /// The integer; a bool counts as 0 or 1.
    pub fn int(self) -> Option<i64> {
        match self {
            Number::Int(i) => Some(i),
            Number::Bool(b) => Some(b as i64),
            _ => None,
        }
    }

    /// The nearest float.
    pub fn float(self) -> f64 {
        match self {
            Number::Int(i) => i as f64,
            Number::Ratio(a, b) => a as f64 / b as f64,
            Number::Float(x) => x,
            Number::Bool(b) => b as i64 as f64,
        }
    }

    /// Numerator and denominator, if exact.
    fn exact(self) -> Option<(i128, i128)> {
        match self {
            Number::Ratio(a, b) => Some((a as i128, b as i128)),
            n => n.int().map(|i| (i as i128, 1)),
        }
    }
}

/// A float that is a whole number within 64 bits.
fn whole(x: f64) -> Option<Number> {
    (x >= i64::MIN as f64 && x < i64::MAX as f64).then_some(Number::Int(x as i64))
}

fn apply(f: Function, args: &[Number]) -> Option<Number> {
    use Function::*;
    match (f, args) {
        (Add | Mul | Min | Max, args) => {
            let (first, rest) = args.split_first()?;
            rest.iter().try_fold(*first, |a, &b| binary(f, a, b))
        }
        (And, args) => all_bools(args).map(|b| Number::Bool(b.iter().all(|&b| b))),
        (Or, args) => all_bools(args).map(|b| Number::Bool(b.iter().any(|&b| b))),
        (Not, &[Number::Bool(b)]) => Some(Number::Bool(!b)),
        (If, &[Number::Bool(c), a, b]) => Some(if c { a } else { b }),
        (ModularIndexing, &[x, d, m]) => binary(Mod, binary(FloorDiv, x, d)?, m),
        (_, &[a, b]) => binary(f, a, b),
        (_, &[x]) => unary(f, x),
        _ => None,
    }
}

fn all_bools(args: &[Number]) -> Option<Vec<bool>> {
    args.iter().map(|a| if let Number::Bool(b) = a { Some(*b) } else { None }).collect()
}

fn unary(f: Function, x: Number) -> Option<Number> {
    use Function::*;
    match f {
        Pos | Identity => Some(x),
        Neg => match x {
            Number::Float(v) => Some(Number::Float(-v)),
            _ => binary(Sub, Number::Int(0), x),
        },
        Abs => {
            let negative = binary(Lt, x, Number::Int(0))? == Number::Bool(true);
            if negative { unary(Neg, x) } else { Some(x) }
        }
        ToFloat => Some(Number::Float(x.float())),
        Sqrt => Some(Number::Float(x.float().sqrt())),
        Floor | Ceil | Trunc | ToInt | Round => match x.exact() {
            Some((a, b)) => {
                let floor = a.div_euclid(b);
                let up = match f {
                    Floor => false,
                    Ceil => a.rem_euclid(b) != 0,
                    Trunc | ToInt => a < 0 && a.rem_euclid(b) != 0,
                    // To the even one of two equally near.
                    _ => 2 * a.rem_euclid(b) > b || (2 * a.rem_euclid(b) == b && floor % 2 != 0),
                };
                i64::try_from(floor + up as i128).ok().map(Number::Int)
            }
            None => whole(match f {
                Floor => x.float().floor(),
                Ceil => x.float().ceil(),
                Round => x.float().round_ties_even(),
                _ => x.float().trunc(),
            }),
        },
        _ => None,
    }
}

fn binary(f: Function, x: Number, y: Number) -> Option<Number> {
    use Function::*;
    if let (Eq, Number::Bool(a), Number::Bool(b)) = (f, x, y) {
        return Some(Number::Bool(a == b));
    }
    let Some(((a, p), (b, q))) = x.exact().zip(y.exact()) else {
        return float_binary(f, x.float(), y.float());
    };
    // Numerators and denominators fit 64 bits, so products fit 127.
    let (left, right) = (a * q, b * p);
    let integral = p == 1 && q == 1;
    Some(match f {
        Add => return ratio(left.checked_add(right)?, p * q),
        Sub => return ratio(left.checked_sub(right)?, p * q),
        Mul => return ratio(a * b, p * q),
        TrueDiv => {
            (b != 0).then_some(())?;
            Number::Float(left as f64 / right as f64)
        }
        // Python's: rounded towards minus infinity.
        FloorDiv | CleanDiv | CeilDiv | Mod if integral && b != 0 => {
            let euclid = a.div_euclid(b);
            let floor = if b < 0 && a.rem_euclid(b) != 0 { euclid - 1 } else { euclid };
            let rest = a - floor * b;
            let result = match f {
                Mod => rest,
                CleanDiv if rest != 0 => return None,
                CeilDiv if rest != 0 => floor + 1,
                _ => floor,
            };
            Number::Int(i64::try_from(result).ok()?)
        }
        Pow if q == 1 => return power(x, i64::try_from(b).ok()?),
        Min => return Some(if left <= right { x } else { y }),
        Max => return Some(if left >= right { x } else { y }),
        LeftShift if integral => {
            let factor = 1i64.checked_shl(u32::try_from(b).ok()?).filter(|f| *f > 0)?;
            return binary(Mul, x, Number::Int(factor));
        }
        RightShift if integral && b >= 0 => Number::Int(i64::try_from(a >> b.min(127)).ok()?),
        BitAnd | BitOr if integral => {
            let bits = if f == BitAnd { a & b } else { a | b };
            match (x, y) {
                (Number::Bool(_), Number::Bool(_)) => Number::Bool(bits != 0),
                _ => Number::Int(i64::try_from(bits).ok()?),
            }
        }
        Eq => Number::Bool(left == right),
        Ne => Number::Bool(left != right),
        Lt => Number::Bool(left < right),
        Le => Number::Bool(left <= right),
        Gt => Number::Bool(left > right),
        Ge => Number::Bool(left >= right),
        _ => return None,
    })
}

fn float_binary(f: Function, a: f64, b: f64) -> Option<Number> {
    use Function::*;
    Some(match f {
        Add => Number::Float(a + b),
        Sub => Number::Float(a - b),
        Mul => Number::Float(a * b),
        TrueDiv if b != 0.0 => Number::Float(a / b),
        FloorDiv if b != 0.0 => Number::Float((a / b).floor()),
        Mod if b != 0.0 => Number::Float(a - (a / b).floor() * b),
        Pow => Number::Float(a.powf(b)),
        Min => Number::Float(if b < a { b } else { a }),
        Max => Number::Float(if b > a { b } else { a }),
        Eq => Number::Bool(a == b),
        Ne => Number::Bool(a != b),
        Lt => Number::Bool(a < b),
        Le => Number::Bool(a <= b),
        Gt => Number::Bool(a > b),
        Ge => Number::Bool(a >= b),
        _ => return None,
    })
}

/// An exact power with an integer exponent.
fn power(x: Number, e: i64) -> Option<Number> {
    let (a, b) = x.exact()?;
    let (a, b) = if e < 0 { (b, a) } else { (a, b) };
    // With a base other than 0 and ±1, an exponent above 63 overflows anyway.
    let e = match (a, b) {
        (-1..=1, 1) => (e.unsigned_abs() % 2 + 2 * (e != 0) as u64) as u32,
        _ => u32::try_from(e.unsigned_abs()).ok().filter(|e| *e < 64)?,
    };
    let fits = |n: i128| i64::try_from(n).ok().map(i128::from);
    let (mut top, mut bottom) = (1i128, 1i128);
    for _ in 0..e {
        (top, bottom) = (fits(top * a)?, fits(bottom * b)?);
    }
    ratio(top, bottom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env() -> Environment {
        Environment {
            symbols: HashMap::from([("s72".into(), 4), ("s0".into(), 7)]),
            sizes: HashMap::from([("ids".into(), vec![4, 7]), ("args_0".into(), vec![3])]),
        }
    }

    fn value(text: &str) -> Number {
        Expr::parse(text).unwrap().eval(&env()).unwrap().unwrap()
    }

    #[test]
    fn both_spellings_mean_the_same() {
        let srepr = "Add(Mul(Integer(2), Symbol('s72', positive=True, integer=True)), Integer(-1))";
        assert_eq!(value(srepr), Number::Int(7));
        assert_eq!(value("2*s72 - 1"), Number::Int(7));
        assert_eq!(value("Min(Integer(32), Pow(Symbol('s0'), Integer(2)))"), Number::Int(32));
        let pieces = "Piecewise(ExprCondPair(Integer(1), Equality(Symbol('s0'), Integer(1))), ExprCondPair(Integer(0), true))";
        assert_eq!(value(pieces), Number::Int(0));
        assert_eq!(
            value("L['ids'].size()[1]*L['args'][0].size()[0] == 21 and not 1 > 2"),
            Number::Bool(true)
        );
        assert_eq!(value("-s0 // 2"), Number::Int(-4));
        assert_eq!(value("FloorDiv(Symbol('s0'), Integer(-2))"), Number::Int(-4));
        assert_eq!(value("Mod(s0, 4) + s0 % -4"), Number::Int(2));
        assert_eq!(value("Mul(Rational(1, 2), s72)"), Number::Int(2));
        assert_eq!(value("2**3**2 - s0 - 1"), Number::Int(504));
        assert_eq!(value("CeilToInt(IntTrueDiv(s0, 2)) + TruncToInt(1.5e-01)"), Number::Int(4));
        assert_eq!(value("Max(1, Float('2.5', precision=53))"), Number::Float(2.5));
        assert_eq!(value("round(Rational(5, 2))"), Number::Int(2));
    }

    #[test]
    fn unknown_symbols_have_no_value_and_bad_text_is_refused() {
        assert_eq!(Expr::parse("u0 + 1").unwrap().eval(&env()).unwrap(), None);
        assert_eq!(Expr::parse("L['other'].size()[0]").unwrap().eval(&env()).unwrap(), None);
        let deep = format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000));
        let minus = format!("{}1", "-".repeat(100_000));
        let chain = format!("1{}", "-1".repeat(100_000));
        for text in [
            "",
            "1 +",
            "f(1)",
            "Symbol(",
            "Integer(99999999999999999999)",
            "L['a",
            "é(",
            &deep,
            &minus,
            &chain,
        ] {
            assert!(matches!(Expr::parse(text), Err(e) if e.code() == "HW-I013"), "{text}");
        }
    }

    #[test]
    fn overflow_and_division_by_zero_are_errors() {
        for text in [
            "9223372036854775807 + 1",
            "s0 // 0",
            "s0 % 0",
            "10**19",
            "2**s0**s0",
            "0**-1",
            "LShift(1, 63)",
            "LShift(1, -1)",
            "-9223372036854775807 - 2",
            "Rational(1, 0)",
            "CleanDiv(7, 2)",
        ] {
            let result = Expr::parse(text).and_then(|e| e.eval(&env()));
            assert!(matches!(result, Err(e) if e.code() == "HW-I013"), "{text}");
        }
        assert_eq!(value("(-1)**9223372036854775807"), Number::Int(-1));
        assert_eq!(value("0**0 + 1**-9223372036854775807"), Number::Int(2));
    }
}
