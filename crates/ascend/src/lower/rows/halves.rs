//! Halves of a row of UB's banks for the values of a program. Operands of one instruction are in different
//! halves as far as there is a choice, so that they are read in the same cycle.

use super::writer::Half;
use headwater_core::row::{Instr, RowProgram};

/// The half for each register. A result may take the place of an operand that nothing needs any longer.
pub(super) fn halves(p: &RowProgram) -> Vec<Half> {
    let number = p.body.len();
    let scalars = p.scalars();
    let mut last = vec![usize::MAX; number];
    for (at, instr) in p.body.iter().enumerate() {
        instr.args().for_each(|r| last[r] = at);
    }
    // The register whose place a value takes, and halves by place.
    let mut place: Vec<usize> = (0..number).collect();
    let mut half: Vec<Option<Half>> = vec![None; number];
    for (at, instr) in p.body.iter().enumerate() {
        let (a, b) = match *instr {
            Instr::Binary(_, a, b) => (a, b),
            Instr::Unary(_, a) => (a, a),
            _ => continue,
        };
        let (x, y) = (place[a], place[b]);
        if x != y && !scalars[a] && !scalars[b] {
            let (p, q) = (half[x], half[y]);
            half[x] = Some(p.or(q.map(Half::other)).unwrap_or_default());
            half[y] = q.or(half[x].map(Half::other));
        }
        let over = |r: usize| last[r] == at && !scalars[r];
        if matches!(instr, Instr::Binary(..)) {
            place[at] = [a, b].into_iter().find(|&r| over(r)).map_or(at, |r| place[r]);
        }
    }
    place.iter().map(|&place| half[place].unwrap_or_default()).collect()
}
