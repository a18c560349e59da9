//! Rewrites of a row program that save the vector unit instructions: other roundings, no larger errors. Each
//! depends on the values that an operator computes, not on what it was fused with, so that a value has the
//! same bits saved and recomputed.

use headwater_core::DType;
use headwater_core::expr::{Binary, Unary};
use headwater_core::row::{Instr, RowProgram};

/// The program with `1 + tanh u` as `2 σ(2 u)`, which is the same number: an exponential and a quotient, and
/// no cancellation where u is negative. The tangent remains where something else needs it: whether the sum is
/// rewritten must not depend on that, as a saved tangent is one more use.
pub(super) fn rewritten(p: &RowProgram) -> RowProgram {
    let mut uses = p.uses();
    let one = |r: usize| matches!(p.body[r], Instr::Float(x) if x == 1.0);
    let tanh = |r: usize| match p.body[r] {
        Instr::Unary(Unary::Tanh, u) => Some((r, u)),
        _ => None,
    };
    let shifted = |instr: &Instr| match *instr {
        Instr::Binary(Binary::Add, a, b) if one(b) => tanh(a),
        Instr::Binary(Binary::Add, a, b) if one(a) => tanh(b),
        _ => None,
    };
    p.body.iter().filter_map(shifted).for_each(|(tanh, _)| uses[tanh] -= 1);
    let dropped = |at: usize| tanh(at).is_some() && uses[at] == 0;
    let mut out = RowProgram { body: Vec::with_capacity(p.body.len()), ..p.clone() };
    let mut now = vec![usize::MAX; p.body.len()];
    for (at, instr) in p.body.iter().enumerate() {
        let body = &mut out.body;
        let mut push = |instr| {
            body.push(instr);
            body.len() - 1
        };
        now[at] = match shifted(instr) {
            _ if dropped(at) => continue,
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

/// Registers whose function may be evaluated to 16 bits: the argument has 16 bits, and every use rounds the
/// result to 16 bits by arithmetic alone, without a sum or a wider store on the way.
pub(super) fn coarse(p: &RowProgram) -> Vec<bool> {
    let narrow = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16);
    let short: Vec<bool> = p.body.iter().fold(Vec::new(), |mut short, instr| {
        short.push(match *instr {
            Instr::Load(o) => p.reads.get(o).is_some_and(|o| narrow(o.dtype)),
            Instr::Cast(dtype, _) => narrow(dtype),
            Instr::Unary(Unary::Neg | Unary::Abs, a) => short[a],
            _ => false,
        });
        short
    });
    // Whether all uses of a register round; from the last instruction back, as uses follow.
    let mut rounded = vec![true; p.body.len()];
    for (at, instr) in p.body.iter().enumerate().rev() {
        let rounds = match *instr {
            Instr::Cast(dtype, _) => narrow(dtype),
            Instr::Store(w, _) => narrow(p.writes[w].dtype),
            Instr::Reduce(..) | Instr::Columns(..) => false,
            _ => rounded[at],
        };
        instr.args().for_each(|r| rounded[r] &= rounds);
    }
    let function = |(at, instr): (usize, &Instr)| match *instr {
        Instr::Unary(_, a) => short[a] && rounded[at],
        _ => false,
    };
    p.body.iter().enumerate().map(function).collect()
}
