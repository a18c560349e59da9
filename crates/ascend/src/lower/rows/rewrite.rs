//! Rewrites of a row program that save the vector unit instructions: other roundings, no larger errors.

use headwater_core::expr::{Binary, Unary};
use headwater_core::row::{Instr, RowProgram};

/// The program with `1 + tanh u` as `2 σ(2 u)`, which is the same number: an exponential and a quotient, and
/// no cancellation where u is negative.
pub(super) fn rewritten(p: &RowProgram) -> RowProgram {
    let uses = p.uses();
    let one = |r: usize| matches!(p.body[r], Instr::Float(x) if x == 1.0);
    // The argument of a hyperbolic tangent that nothing else needs.
    let tanh = |r: usize| match p.body[r] {
        Instr::Unary(Unary::Tanh, u) if uses[r] == 1 => Some(u),
        _ => None,
    };
    let shifted = |instr: &Instr| match *instr {
        Instr::Binary(Binary::Add, a, b) if one(b) => tanh(a).map(|u| (a, u)),
        Instr::Binary(Binary::Add, a, b) if one(a) => tanh(b).map(|u| (b, u)),
        _ => None,
    };
    let dropped: Vec<usize> = p.body.iter().filter_map(shifted).map(|(tanh, _)| tanh).collect();
    let mut out = RowProgram { body: Vec::with_capacity(p.body.len()), ..p.clone() };
    let mut now = vec![usize::MAX; p.body.len()];
    for (at, instr) in p.body.iter().enumerate() {
        let body = &mut out.body;
        let mut push = |instr| {
            body.push(instr);
            body.len() - 1
        };
        now[at] = match shifted(instr) {
            _ if dropped.contains(&at) => continue,
            None => push(instr.map(|r| now[r])),
            Some((_, u)) => {
                let two = push(Instr::Float(2.0));
                let twice = push(Instr::Binary(Binary::Mul, now[u], two));
                let sigmoid = push(Instr::Unary(Unary::Sigmoid, twice));
                push(Instr::Binary(Binary::Mul, sigmoid, two))
            }
        };
    }
    out
}
