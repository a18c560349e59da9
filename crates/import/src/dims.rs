//! Binding of symbolic sizes: from names, from the shapes of the data, or from the sizes seen when exporting.
//! The model's ranges and guards are then checked.

use crate::error::{Result, refuse, shown};
use crate::program::{Program, SymbolicInput};
use crate::report::Notes;
use crate::symbolic::{Environment, Expr, Function, Number};
use headwater_core::graph::Origin;
use std::collections::BTreeMap;

/// Concrete sizes for a model's symbolic ones.
#[derive(Debug, Clone, Default)]
pub struct Dims {
    named: BTreeMap<String, i64>,
    shapes: BTreeMap<String, Vec<i64>>,
    exported: bool,
}

impl Dims {
    /// None given: enough for models exported with fixed sizes.
    pub fn new() -> Self {
        Dims::default()
    }

    /// Sets a symbol by its name (`s72`) or by place (`input_ids.0`: dimension 0 of that input).
    pub fn set(mut self, name: impl Into<String>, size: i64) -> Self {
        self.named.insert(name.into(), size);
        self
    }

    /// Takes the sizes of a whole user input from data.
    pub fn shape(mut self, input: impl Into<String>, shape: &[usize]) -> Self {
        let shape = shape.iter().map(|&d| i64::try_from(d).unwrap_or(i64::MAX)).collect();
        self.shapes.insert(input.into(), shape);
        self
    }

    /// Symbols still open take the value they had when the model was exported.
    pub fn or_exported(mut self) -> Self {
        self.exported = true;
        self
    }

    /// Binds every symbol of a program's inputs.
    pub(crate) fn bind(&self, program: &Program, notes: &mut Notes) -> Result<Environment> {
        let mut env = Environment::default();
        // Place (`input.dimension`) to its expression.
        let mut places: Vec<(String, &Expr)> = Vec::new();
        for input in program.inputs() {
            for (d, size) in input.sizes.iter().enumerate() {
                places.push((format!("{}.{d}", input.name), size));
            }
        }
        let mut given: BTreeMap<String, i64> = BTreeMap::new();
        for (input, shape) in &self.shapes {
            let Some(SymbolicInput { sizes, .. }) = program.inputs().iter().find(|i| i.name == *input) else {
                return Err(refuse!(Dimension, "the model has no input `{}`", shown(input)));
            };
            if sizes.len() != shape.len() {
                return Err(refuse!(
                    Dimension,
                    "input `{}` has {} dimensions, the data {}",
                    shown(input),
                    sizes.len(),
                    shape.len()
                ));
            }
            given.extend(shape.iter().enumerate().map(|(d, &s)| (format!("{input}.{d}"), s)));
        }
        for (name, &size) in &self.named {
            if program.symbols().iter().any(|s| s.name == *name) {
                env.symbols.insert(name.clone(), size);
            } else if places.iter().any(|(place, _)| place == name) {
                given.insert(name.clone(), size);
            } else {
                let known: Vec<_> = program.symbols().iter().map(|s| s.to_string()).collect();
                return Err(refuse!(
                    Dimension,
                    "the model has no symbolic size `{}`; it has: {}",
                    shown(name),
                    if known.is_empty() { "none".into() } else { known.join("; ") }
                ));
            }
        }
        // Plain symbols first, so that compound sizes have at most one unknown left.
        for solve in [false, true] {
            for (place, expr) in &places {
                if let Some(&size) = given.get(place) {
                    let plain = matches!(expr, Expr::Symbol(_));
                    if plain != solve {
                        learn(expr, size, &mut env, place)?;
                    }
                }
            }
        }
        for s in program.symbols() {
            if env.symbols.contains_key(&s.name) {
                continue;
            }
            match s.exported {
                Some(size) if self.exported => env.symbols.insert(s.name.clone(), size),
                _ => {
                    return Err(refuse!(
                        Dimension,
                        "the symbolic size {s} is not given; set it by name or by the data"
                    ));
                }
            };
        }
        for input in program.inputs() {
            let sizes = input.sizes.iter().map(|e| integer(e, &env)).collect::<Result<Vec<_>>>()?;
            if let Some(bad) = sizes.iter().find(|s| **s < 0) {
                return Err(refuse!(Dimension, "input `{}` would have a size of {bad}", shown(&input.name)));
            }
            env.sizes.insert(input.name.clone(), sizes);
        }
        check(program, &env, notes)?;
        Ok(env)
    }
}

/// The value of an expression that must be a known integer.
pub(crate) fn integer(e: &Expr, env: &Environment) -> Result<i64> {
    let value = e.eval(env)?;
    value.and_then(Number::int).ok_or_else(|| {
        let mut open = None;
        e.symbols(&mut |s| {
            if !env.symbols.contains_key(s) {
                open = Some(shown(s));
            }
        });
        match open {
            Some(s) => refuse!(Expression, "a size depends on `{s}`, which is only known from data"),
            None => refuse!(Expression, "a size is not an integer: {}", value.unwrap_or(Number::Bool(false))),
        }
    })
}

/// Takes from `expr = size` the value of the one symbol still open in it, if any.
fn learn(expr: &Expr, size: i64, env: &mut Environment, place: &str) -> Result<()> {
    let mut open: Option<&str> = None;
    let mut several = false;
    expr.symbols(&mut |s| {
        if !env.symbols.contains_key(s) && open != Some(s) {
            several |= open.is_some();
            open = Some(s);
        }
    });
    if several {
        return Ok(());
    }
    if let Some(open) = open {
        let mut at = |x: i64| -> Result<i64> {
            env.symbols.insert(open.to_string(), x);
            integer(expr, env)
        };
        // Sizes derived from a symbol are linear in it.
        let (zero, one) = (at(0)?, at(1)?);
        let slope = one.checked_sub(zero).filter(|s| *s != 0);
        let x = slope.zip(size.checked_sub(zero)).and_then(|(s, d)| d.checked_div(s)).unwrap_or(0);
        env.symbols.insert(open.to_string(), x);
    }
    let value = integer(expr, env)?;
    if value != size {
        return Err(refuse!(
            Dimension,
            "{} is {size}, but the other sizes given make it {value}",
            shown(place)
        ));
    }
    Ok(())
}

/// Checks ranges and guards. What depends on data is noted as unchecked.
fn check(program: &Program, env: &Environment, notes: &mut Notes) -> Result<()> {
    for (expr, text, range) in program.ranges() {
        let Some(value) = expr.eval(env)? else { continue };
        let too_low = range.min_val.is_some_and(|m| compare(Function::Lt, value, m));
        let too_high = range.max_val.is_some_and(|m| compare(Function::Gt, value, m));
        if too_low || too_high {
            let bound = |b: Option<i64>| b.map_or("…".to_string(), |b| b.to_string());
            return Err(refuse!(
                Dimension,
                "{} = {value} is outside what the model was exported for: {} to {}",
                shown(text),
                bound(range.min_val),
                bound(range.max_val)
            ));
        }
    }
    for guard in program.guards() {
        let value = Expr::parse(guard).ok().map(|e| e.eval(env)).transpose()?.flatten();
        match value {
            Some(Number::Bool(true)) => {}
            Some(Number::Bool(false)) => {
                return Err(refuse!(Dimension, "the sizes given break the model's guard `{}`", shown(guard)));
            }
            _ => notes.add(format!("guard `{}` is not checked", shown(guard)), &Origin::default()),
        }
    }
    Ok(())
}

fn compare(f: Function, value: Number, bound: i64) -> bool {
    matches!(f.apply(&[value, Number::Int(bound)]), Ok(Number::Bool(true)))
}
