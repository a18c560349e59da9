//! The line of the model that a kernel comes from, at each of its statements.

use crate::kernel::{Program, Source, SourceId, Stmt, StmtKind};

/// The program, all of whose statements come from one source.
pub(super) fn attributed(mut program: Program, source: &Source) -> Program {
    fn all(body: &mut [Stmt], id: SourceId) {
        for stmt in body {
            stmt.source = id;
            match &mut stmt.kind {
                StmtKind::For { body, .. } | StmtKind::While { body, .. } => all(body, id),
                StmtKind::If { then, otherwise, .. } => {
                    all(then, id);
                    all(otherwise, id);
                }
                StmtKind::Instr(_) | StmtKind::Let(..) => {}
            }
        }
    }
    program.sources = vec![source.clone()];
    program.parts.iter_mut().for_each(|part| all(&mut part.body, SourceId(1)));
    program
}
