//! Kernels before they are compiled: text of our own, or a product by the vendor's library.

use headwater_core::DType;
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

/// A batch of products `d = a · b + bias`, row-major. Sums are in f32, or in f64 for f64.
/// Arguments of its launch are a, b, the bias if there is one, d, and the workspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Product {
    /// Type of the operands and the bias.
    pub dtype: DType,
    /// Type of the result: that of the operands, or f32 for those of 16 bits.
    pub out: DType,
    /// Rows of `d`.
    pub m: usize,
    /// Columns of `d`.
    pub n: usize,
    /// Terms of a sum.
    pub k: usize,
    /// Number of products.
    pub batch: usize,
    /// Left operand.
    pub a: Matrix,
    /// Right operand.
    pub b: Matrix,
    /// Result.
    pub d: Matrix,
    /// True if a bias of `n` elements is added to every row.
    pub bias: bool,
    /// Bytes that the addresses of all matrices are multiples of, at most 16.
    pub alignment: u32,
}

/// A matrix in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matrix {
    /// True if its columns are contiguous, not its rows.
    pub transposed: bool,
    /// Elements from a row to the next, or from a column to the next where it is transposed.
    pub pitch: usize,
    /// Elements from a matrix to the next; 0 where all are the same.
    pub step: usize,
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
