//! Expressions in as few operations as give the same bits.

use crate::dtype::DType;
use crate::expr::{Binary, Expr};

/// An expression without the operations that change nothing; `literal` gives the operands that are one number
/// everywhere.
pub(super) fn reduce(
    e: &Expr,
    literal: &impl Fn(usize) -> Option<Expr>,
    dtype: &impl Fn(usize) -> DType,
) -> Expr {
    let go = |e: &Expr| reduce(e, literal, dtype);
    match e {
        Expr::Input(i) => literal(*i).unwrap_or_else(|| e.clone()),
        Expr::Unary(op, a) => Expr::Unary(*op, Box::new(go(a))),
        Expr::Binary(op, a, b) => {
            let (a, b) = (go(a), go(b));
            if neutral(*op, &b) {
                a
            } else if commutes(*op) && neutral(*op, &a) {
                b
            } else {
                Expr::Binary(*op, Box::new(a), Box::new(b))
            }
        }
        Expr::Select(c, a, b) => match go(c) {
            Expr::Bool(true) => go(a),
            Expr::Bool(false) => go(b),
            c => Expr::Select(Box::new(c), Box::new(go(a)), Box::new(go(b))),
        },
        Expr::Cast(d, a) => match go(a) {
            Expr::Input(i) if dtype(i) == *d => Expr::Input(i),
            a => Expr::Cast(*d, Box::new(a)),
        },
        Expr::Float(_) | Expr::Int(_) | Expr::Bool(_) | Expr::Coord(_) => e.clone(),
    }
}

fn commutes(op: Binary) -> bool {
    matches!(op, Binary::Add | Binary::Mul | Binary::And | Binary::Or)
}

/// True if `x op b` is `x` for every `x`.
fn neutral(op: Binary, b: &Expr) -> bool {
    let float = |x: f64| matches!(b, Expr::Float(v) if v.to_bits() == x.to_bits());
    let int = |x: i64| matches!(b, Expr::Int(v) if *v == x);
    match op {
        Binary::Add => float(-0.0) || int(0),
        Binary::Sub => float(0.0) || int(0),
        Binary::Mul => float(1.0) || int(1),
        Binary::Div => float(1.0) || int(1),
        Binary::And => matches!(b, Expr::Bool(true)) || int(-1),
        Binary::Or => matches!(b, Expr::Bool(false)) || int(0),
        _ => false,
    }
}
