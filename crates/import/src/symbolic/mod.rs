//! Symbolic sizes: reads the expressions PyTorch writes (SymPy's `srepr`, and plain infix in guards) and
//! evaluates them exactly, in checked integers. Knows nothing of graphs.

mod number;
mod parse;

pub use number::Number;

use crate::error::{Result, refuse};
use std::collections::HashMap;

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
    /// By any of its names: SymPy's, PyTorch's SymPy functions', Python's `operator` and `math`, and
    /// `torch.sym_*`.
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
        number::apply(self, args).ok_or_else(|| {
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
        assert_eq!(value("(1 < 2) == (s0 > 3) and s0 < 9"), Number::Bool(true));
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
            "1 < s0 < 9",
            "s0 == 7 != 2",
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
