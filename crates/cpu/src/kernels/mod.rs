//! Kernels of operators whose body is `Kernel` or `Update`. A kernel reads its attributes once, when a plan
//! is loaded, and returns the function that every run calls. Operators without a kernel, and types that a
//! kernel does not take, run through the core's reference: slowly, correctly.
//!
//! A family of Headwater's own is a file with `pub static KERNELS: &[Kernel]`, and its name in [`FAMILIES`].
//! A kernel of another crate is a [`Kernel`] too: [`crate::Cpu::with_kernels`] takes it.

mod accumulate;
mod advanced_index;
pub mod attention;
pub mod convolution;
pub mod ctc;
pub mod embedding_grad;
pub mod fourier;
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
use headwater_core::ops::{Body, OpDef};
use headwater_core::target::Port;
use headwater_core::{OpCx, TensorType, ensure, fail};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// An operator's implementation on the CPU.
///
/// It promises:
/// * the results of the operator's reference, within rounding, with sums in f32 or wider;
/// * the same bits from run to run and for any number of threads. Work is cut by sizes alone, and no sum is
///   divided by [`Site::threads`];
/// * a typed error (`Value`) for data that it refuses, such as an index out of range, and no panic.
///
/// Plans hold tensors of any dtype and shape that the operator's type rule accepts. A step whose results have
/// no elements runs no kernel.
pub struct Kernel {
    /// The operator, by its definition.
    pub op: &'static OpDef,
    /// True if it takes these types; other ones run through the reference.
    pub takes: fn(&Site) -> bool,
    /// Bytes of scratch memory, exact: the planner places them.
    pub workspace: fn(&Site) -> usize,
    /// True if an input may have any strides, or an output any but the last, which is 1; all other operands
    /// are contiguous.
    pub strided: fn(Port) -> bool,
    /// Reads attributes and geometry, once.
    pub prepare: fn(&Site) -> Result<Prepared>,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kernel of {}", self.op.name)
    }
}

/// A kernel made ready for one step: runs it.
pub type Prepared = Box<dyn Fn(&mut Args) -> Result<()> + Send + Sync>;

/// A step as it is known when it is planned and loaded.
#[derive(Debug)]
pub struct Site<'a> {
    /// Types of the inputs, and the attributes.
    pub cx: OpCx<'a>,
    /// Types of the outputs.
    pub outs: &'a [TensorType],
    /// Threads of the pool that will run it. Sizes workspaces; must not change results.
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
    /// Scratch memory of at least the requested size, aligned to 64 bytes, of undefined content. Kernels that
    /// share a place in the arena get all of it. They take what they need, or spread what threads work in
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
    ctc::KERNELS,
    embedding_grad::KERNELS,
    fourier::KERNELS,
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

/// The kernels of a device, by operator.
#[derive(Clone, Debug, Default)]
pub struct Kernels(HashMap<&'static str, &'static Kernel>);

impl Kernels {
    /// Headwater's own.
    pub fn standard() -> Arc<Kernels> {
        static STANDARD: OnceLock<Arc<Kernels>> = OnceLock::new();
        let all = || FAMILIES.iter().flat_map(|family| family.iter()).map(|k| (k.op.name, k)).collect();
        Arc::clone(STANDARD.get_or_init(|| Arc::new(Kernels(all()))))
    }

    /// Adds a kernel, for example of a user's operator.
    ///
    /// # Errors
    /// `Unsupported` if an operator of this name has a kernel already, or if its body is neither `Kernel` nor
    /// `Update`: all others run without.
    pub fn register(&mut self, kernel: &'static Kernel) -> Result<()> {
        let (name, body) = (kernel.op.name, &kernel.op.body);
        let runs = matches!(body, Body::Kernel(_) | Body::Update(_));
        ensure!(runs, Unsupported, "`{name}` needs no kernel: only bodies `Kernel` and `Update` run by one");
        ensure!(self.0.insert(name, kernel).is_none(), Unsupported, "`{name}` has a kernel already");
        Ok(())
    }

    /// The kernel of an operator, if there is one. Another operator of its name has none.
    pub fn find(&self, op: &OpDef) -> Option<&'static Kernel> {
        self.0.get(op.name).copied().filter(|kernel| std::ptr::eq(kernel.op, op))
    }

    /// The kernel that runs an operator on given types; `None` if the reference must.
    pub(crate) fn choose(&self, op: &OpDef, site: &Site) -> Option<&'static Kernel> {
        self.find(op).filter(|kernel| (kernel.takes)(site))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_of_a_registered_operator_that_runs_by_one() {
        let registry = headwater_core::Registry::standard();
        let mut all = Kernels::default();
        for kernel in FAMILIES.iter().flat_map(|family| family.iter()) {
            all.register(kernel).unwrap();
            let op = registry.by_name(kernel.op.name).unwrap();
            assert!(all.find(op).is_some(), "{} is another definition", op.name);
        }
        assert!(all.register(&matmul::KERNELS[0]).unwrap_err().message.contains("already"));
    }
}
