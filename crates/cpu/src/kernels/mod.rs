//! Kernels: the operators whose body is `Kernel`, by name. A kernel reads its attributes once, when a plan is
//! loaded, and returns the function that every run calls. Operators without a kernel here, and types a kernel
//! does not take, run through the core's reference: slowly, correctly.
//!
//! To add a family: a file with `pub static KERNELS: &[Kernel]`, and its name in [`FAMILIES`].

mod accumulate;
mod advanced_index;
pub mod attention;
pub mod convolution;
pub mod embedding_grad;
pub mod grid;
pub mod grouped_mm;
pub mod index;
pub mod index_put;
pub mod linalg;
pub mod matmul;
pub mod order;
pub mod pooling;
pub mod random;
pub mod recurrent;
pub mod rows;
pub mod scatter;
pub mod segment;
pub mod upsample;
mod vector;

use crate::pool::Pool;
use crate::tier::Tier;
use crate::view::{View, ViewMut};
use headwater_core::diagnostic::Result;
use headwater_core::target::Port;
use headwater_core::{OpCx, TensorType, fail};
use std::collections::HashMap;
use std::sync::OnceLock;

/// How an operator runs on the CPU.
pub struct Kernel {
    /// ATen name of the operator.
    pub name: &'static str,
    /// Whether it takes these types; what it does not take goes to the reference.
    pub takes: fn(&Site) -> bool,
    /// Bytes of scratch memory, exact.
    pub workspace: fn(&Site) -> usize,
    /// Whether an input may have any strides, or an output any but the last, which is 1; all other operands
    /// are contiguous.
    pub strided: fn(Port) -> bool,
    /// Reads attributes and geometry, once.
    pub prepare: fn(&Site) -> Result<Prepared>,
}

/// A kernel made ready for one step: runs it.
pub type Prepared = Box<dyn Fn(&mut Args) -> Result<()> + Send + Sync>;

/// What is known of a step when it is planned and loaded.
#[derive(Debug)]
pub struct Site<'a> {
    /// Types of the inputs, and the attributes.
    pub cx: OpCx<'a>,
    /// Types of the outputs.
    pub outs: &'a [TensorType],
    /// Number of threads of the pool that will run it. Sizes workspaces; must not change results.
    pub threads: usize,
    /// Instructions to use; the processor has them.
    pub tier: Tier,
}

/// Operands of one run of a step. No output overlaps any other operand.
#[derive(Debug)]
pub struct Args<'a> {
    /// Inputs in order; absent ones `None`.
    pub reads: &'a [Option<View>],
    /// Outputs in order, of undefined content but for an operator that updates one in place.
    pub writes: &'a mut [ViewMut],
    /// Scratch memory of at least the size asked for, aligned to 64 bytes, of undefined content. Kernels that
    /// share a place in the arena get all of it: they take what they need, or spread what threads work in
    /// over it ([`crate::workspace`]).
    pub workspace: &'a mut [u8],
    /// Threads.
    pub pool: &'a Pool,
}

impl<'a> Args<'a> {
    /// Input `i`. Does not borrow `self`, so that outputs can be borrowed beside it.
    ///
    /// # Errors
    /// `Attribute` if it is absent.
    pub fn read(&self, i: usize) -> Result<&'a View> {
        self.opt(i).ok_or_else(|| fail!(Attribute, "input {i} is missing"))
    }

    /// Input `i`, if present.
    pub fn opt(&self, i: usize) -> Option<&'a View> {
        self.reads.get(i).and_then(Option::as_ref)
    }
}

/// For [`Kernel::takes`]: anything.
pub fn any(_: &Site) -> bool {
    true
}

/// For [`Kernel::takes`]: all present operands are floats.
pub fn floats(site: &Site) -> bool {
    site.cx.present().chain(site.outs).all(|t| t.dtype.is_float())
}

/// For [`Kernel::workspace`]: none.
pub fn no_workspace(_: &Site) -> usize {
    0
}

/// For [`Kernel::strided`]: every operand must be contiguous.
pub fn contiguous(_: Port) -> bool {
    false
}

/// The families.
const FAMILIES: &[&[Kernel]] = &[
    attention::KERNELS,
    convolution::KERNELS,
    embedding_grad::KERNELS,
    grouped_mm::KERNELS,
    index::KERNELS,
    index_put::KERNELS,
    linalg::KERNELS,
    matmul::KERNELS,
    order::KERNELS,
    pooling::KERNELS,
    random::KERNELS,
    recurrent::KERNELS,
    rows::KERNELS,
    scatter::KERNELS,
    segment::KERNELS,
    upsample::KERNELS,
];

/// The kernel of an operator, if there is one.
pub fn find(name: &str) -> Option<&'static Kernel> {
    static TABLE: OnceLock<HashMap<&'static str, &'static Kernel>> = OnceLock::new();
    let table = || FAMILIES.iter().flat_map(|f| f.iter()).map(|k| (k.name, k)).collect();
    TABLE.get_or_init(table).get(name).copied()
}

/// The kernel that runs an operator on given types; `None` if the reference must.
pub(crate) fn choose(name: &str, site: &Site) -> Option<&'static Kernel> {
    find(name).filter(|k| (k.takes)(site))
}
