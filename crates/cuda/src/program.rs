//! Kernels before they are compiled: text of our own, or a product by the vendor's library.

use crate::lower::Product;
use headwater_launch::{Parameter, ParameterKind, Program};
use std::fmt::Write;

/// Something that a launch runs.
#[derive(Clone, PartialEq, Debug)]
pub struct CudaProgram {
    /// Its symbol: a C identifier.
    pub name: String,
    /// Parameters, in the order of the struct of pointers.
    pub params: Vec<Param>,
    /// Its work.
    pub work: Work,
}

/// A pointer that a kernel has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// Its name, for errors.
    pub name: String,
    /// True if the kernel writes there.
    pub writes: bool,
    /// Bytes from the address on that belong to the operand.
    pub bytes: u64,
}

/// The work of a launch.
#[derive(Clone, PartialEq, Debug)]
pub enum Work {
    /// A kernel in CUDA C.
    Text {
        /// Lines for people, without `//`.
        doc: Vec<String>,
        /// Statements of the kernel.
        body: String,
        /// Threads of a block.
        threads: u32,
        /// Bytes of shared memory.
        shared: u32,
    },
    /// A matrix product by cuBLASLt.
    Product(Product),
}

impl CudaProgram {
    /// The kernel's text, to follow the prelude; empty for a product.
    pub fn source(&self) -> String {
        let Work::Text { doc, body, threads, .. } = &self.work else { return String::new() };
        let mut text = String::new();
        for line in doc {
            let _ = writeln!(text, "// {line}");
        }
        for (i, param) in self.params.iter().enumerate() {
            let way = if param.writes { "written" } else { "read" };
            let _ = writeln!(text, "// hw_a.p[{i}]: {}, {} bytes, {way}", param.name, param.bytes);
        }
        let _ =
            write!(text, "HW_KERNEL({}, {threads}, {}) {{\n{body}}}\n", self.name, self.params.len().max(1));
        text
    }
}

impl Program for CudaProgram {
    fn name(&self) -> &str {
        &self.name
    }

    fn renamed(&self, name: String) -> CudaProgram {
        CudaProgram { name, ..self.clone() }
    }

    fn text(&self) -> String {
        match &self.work {
            Work::Text { shared, .. } => format!("{}// {shared} bytes of shared memory\n", self.source()),
            Work::Product(product) => format!("{product:?} {:?}", self.params),
        }
    }

    fn parameters(&self) -> Vec<Parameter> {
        let one = |p: &Param| Parameter {
            name: p.name.clone(),
            kind: ParameterKind::Pointer { writes: p.writes, own: p.bytes, touched: p.bytes },
        };
        self.params.iter().map(one).collect()
    }
}
