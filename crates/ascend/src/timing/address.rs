//! Addresses that a timed launch gives its memories.

use crate::kernel::{Base, Param, ParamKind, Program, Value, View};

/// Addresses that a run gives its memories: GM's pointers are consecutive, at whole lines.
#[derive(Debug)]
pub struct Addresses {
    params: Vec<u64>,
    /// Bytes of all pointers.
    pub gm: u64,
}

impl Addresses {
    /// The addresses of a program's pointers.
    pub fn new(program: &Program) -> Addresses {
        let mut gm = 0;
        let place = |p: &Param| {
            let at = gm;
            if matches!(p.kind, ParamKind::Pointer { .. }) {
                gm = (gm + p.bytes()).next_multiple_of(512);
            }
            at
        };
        let params = program.params.iter().map(place).collect();
        Addresses { params, gm }
    }

    /// Address in bytes of a view's beginning, in its own memory.
    pub fn of(&self, program: &Program, view: &View<Value>) -> u64 {
        let base = match view.base {
            Base::Param(p) => self.params.get(p.0 as usize).copied().unwrap_or(0),
            Base::Buffer(b) => program.buffers.get(b.0 as usize).and_then(|b| b.address).unwrap_or(0),
        };
        base.saturating_add_signed(view.byte())
    }
}
