//! Distinct kernels of a plan.

use crate::Program;
use std::collections::HashMap;
use std::sync::Arc;

/// Kernels, each once: two that differ in the model's lines alone are one, which names the first's.
#[derive(Debug)]
pub struct Distinct<P> {
    programs: Vec<Arc<P>>,
    by_text: HashMap<String, usize>,
}

impl<P> Default for Distinct<P> {
    fn default() -> Self {
        Distinct { programs: Vec::new(), by_text: HashMap::new() }
    }
}

impl<P: Program> Distinct<P> {
    /// The number of a kernel, counted from 0 in the order in which they were first met.
    pub fn number(&mut self, program: &P) -> usize {
        *self.by_text.entry(program.text()).or_insert_with_key(|text| {
            // Names of kernels are unique in what is compiled.
            let name = format!("{}_{:016x}", program.name(), hash(text));
            self.programs.push(Arc::new(program.renamed(name)));
            self.programs.len() - 1
        })
    }

    /// The kernels by number, under names of their own.
    pub fn programs(&self) -> &[Arc<P>] {
        &self.programs
    }
}

/// FNV-1a of a text: for names alone.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}
