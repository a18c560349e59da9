//! The part of a program that decides how it runs: its loops, branches and addresses depend on it.
//!
//! A program slice (Weiser 1981), by whole buffers and parameters. It computes what the scalar unit loads,
//! and leaves out the data that only pass by: so times of kernels that depend on indices are predicted
//! without the tensors.

use crate::kernel::{Base, Instr, ParamKind, Program, Stmt, StmtKind};
use std::collections::HashSet;

/// The slice of a program that computes what its scalar unit loads, and the contents of the parameters in
/// `wanted`; parameters that it does not touch are empty. Also says for each parameter whether the slice
/// touches it.
pub fn control(program: &Program, wanted: &[bool]) -> (Program, Vec<bool>) {
    let mut live: HashSet<Base> = HashSet::new();
    let params = 0..program.params.len() as u32;
    let base = |i: u32| Base::Param(crate::kernel::ParamId(i));
    live.extend(params.clone().filter(|&i| wanted.get(i as usize) == Some(&true)).map(base));
    loop {
        let before = live.len();
        for part in &program.parts {
            Program::walk(&part.body, &mut |stmt| {
                if let StmtKind::Instr(instr) = &stmt.kind
                    && decides(instr, &live)
                {
                    instr.views(&mut |_, view| _ = live.insert(view.base));
                }
            });
        }
        if live.len() == before {
            break;
        }
    }
    let mut slice = program.clone();
    slice.parts.iter_mut().for_each(|part| retain(&mut part.body, &live));
    let touched: Vec<bool> = params.map(|i| live.contains(&base(i))).collect();
    for (param, touched) in slice.params.iter_mut().zip(&touched) {
        if let ParamKind::Pointer { len, slack, .. } = &mut param.kind
            && !touched
        {
            (*len, *slack) = (0, 0);
        }
    }
    (slice, touched)
}

/// True if an instruction loads, or writes what is live.
fn decides(instr: &Instr, live: &HashSet<Base>) -> bool {
    let mut writes = matches!(instr, Instr::Load(_));
    instr.views(&mut |name, view| writes |= matches!(name, "dst" | "c") && live.contains(&view.base));
    writes
}

/// Leaves out what moves or computes other data; flags and barriers stay.
fn retain(body: &mut Vec<Stmt>, live: &HashSet<Base>) {
    body.retain_mut(|stmt| match &mut stmt.kind {
        StmtKind::For { body, .. } | StmtKind::While { body, .. } => {
            retain(body, live);
            true
        }
        StmtKind::If { then, otherwise, .. } => {
            retain(then, live);
            retain(otherwise, live);
            true
        }
        StmtKind::Let(..) => true,
        StmtKind::Instr(instr) => {
            let mut touches = false;
            instr.views(&mut |_, _| touches = true);
            !touches || decides(instr, live)
        }
    });
}
