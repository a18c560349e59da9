//! Distinct kernels of a plan.

use crate::kernel::{Program, hash};
use std::collections::HashMap;
use std::sync::Arc;

/// Kernels, each once: two that differ in the model's lines alone are one, which names the first's.
#[derive(Debug, Default)]
pub struct Distinct {
    programs: Vec<Arc<Program>>,
    by_text: HashMap<String, usize>,
}

impl Distinct {
    /// The number of a kernel, counted from 0 in the order in which they were first met.
    pub fn number(&mut self, program: &Program) -> usize {
        *self.by_text.entry(program.plain().to_string()).or_insert_with_key(|text| {
            // Names of kernels are unique in what is compiled.
            let name = format!("{}_{:016x}", program.name, hash(text));
            self.programs.push(Arc::new(Program { name, ..program.clone() }));
            self.programs.len() - 1
        })
    }

    /// The kernels by number, under names of their own.
    pub fn programs(&self) -> &[Arc<Program>] {
        &self.programs
    }
}
