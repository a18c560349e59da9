//! Operators composed of others: a node as steps over its operands and planned temporaries.
//!
//! An expansion knows no device. It reads and writes its operands through any views, parts of them included,
//! which a graph cannot say; so lowering applies it, where the target answers [`Support::Expand`]. The
//! planner then places its temporaries like any other buffer, memory figures count them, and `check_plan`
//! proves the result. Each expansion is judged once for all devices, by the conformance suite on the
//! reference device.
//!
//! An operator that a device has a kernel for is not expanded there.
//!
//! [`Support::Expand`]: crate::target::Support::Expand

mod attention;
mod pooling;
mod scan;
mod sequence;

pub use sequence::{BUDGET, ExpandedStep, Memory, Sequence, View};

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::exactness::Exactness;
use crate::ops::attention::attention as heads;
use crate::ops::conv::{avg_pool2d, max_pool2d};
use crate::ops::reduce::{cumprod, cumsum};
use crate::ops::{OpCx, OpDef};
use crate::shape::Layout;
use crate::tensor::TensorType;

/// An operator, and the steps that compute it.
pub struct Expansion {
    /// The operator. It has a `Kernel` body.
    pub op: &'static OpDef,
    /// True if its steps read and write operands through any strides. Otherwise they are contiguous.
    pub strided: bool,
    /// Differences from the operator's definition on a device that computes in f32.
    pub exactness: Exactness,
    expand: fn(&mut Sequence, &OpCx) -> Result<()>,
}

impl std::fmt::Debug for Expansion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.op.name)
    }
}

use Exactness::{ChangesRounding, Exact, Reordered};

/// Every expansion.
pub static EXPANSIONS: [Expansion; 11] = [
    Expansion {
        op: &heads::ATTENTION,
        strided: true,
        exactness: ChangesRounding,
        expand: attention::forward,
    },
    Expansion {
        op: &heads::ATTENTION_BACKWARD,
        strided: true,
        exactness: ChangesRounding,
        expand: attention::backward,
    },
    Expansion { op: &cumsum::CUMSUM, strided: false, exactness: Reordered, expand: scan::sums },
    Expansion { op: &cumprod::CUMPROD, strided: false, exactness: Reordered, expand: scan::products },
    Expansion {
        op: &cumprod::CUMPROD_BACKWARD,
        strided: false,
        exactness: Reordered,
        expand: scan::products_backward,
    },
    Expansion { op: &max_pool2d::MAX_POOL2D, strided: true, exactness: Exact, expand: pooling::maximum },
    Expansion {
        op: &max_pool2d::ADAPTIVE_MAX_POOL2D,
        strided: true,
        exactness: Exact,
        expand: pooling::maximum_adaptive,
    },
    Expansion { op: &avg_pool2d::AVG_POOL2D, strided: true, exactness: Reordered, expand: pooling::mean },
    Expansion {
        op: &avg_pool2d::ADAPTIVE_AVG_POOL2D,
        strided: true,
        exactness: Reordered,
        expand: pooling::mean_adaptive,
    },
    Expansion {
        op: &avg_pool2d::AVG_POOL2D_BACKWARD,
        strided: true,
        exactness: Reordered,
        expand: pooling::mean_backward,
    },
    Expansion {
        op: &avg_pool2d::ADAPTIVE_AVG_POOL2D_BACKWARD,
        strided: true,
        exactness: Reordered,
        expand: pooling::mean_backward_adaptive,
    },
];

/// The expansion of an operator, if there is one.
pub fn find(op: &OpDef) -> Option<&'static Expansion> {
    EXPANSIONS.iter().find(|e| *e.op == *op)
}

impl Expansion {
    /// The steps for operands of such types and layouts, within a [`Sequence::budget`].
    ///
    /// # Errors
    /// `Unsupported` for types, sizes and layouts that it does not take, and refusals of the operator's own
    /// rules.
    pub fn steps(
        &self,
        cx: &OpCx,
        inputs: Vec<Option<View>>,
        outputs: Vec<View>,
        budget: usize,
    ) -> Result<Sequence> {
        let wide = inputs.iter().flatten().chain(&outputs).any(|v| v.dtype == DType::F64);
        ensure!(!wide, Unsupported, "steps that compute in f32, for f64");
        let mut sequence = Sequence::new(inputs, outputs, budget);
        (self.expand)(&mut sequence, cx)?;
        Ok(sequence)
    }

    /// As [`Expansion::steps`], for contiguous operands: what a device is asked about before layouts are
    /// known.
    ///
    /// # Errors
    /// As [`Expansion::steps`].
    pub fn contiguous(&self, cx: &OpCx, outs: &[TensorType]) -> Result<Sequence> {
        let view = |memory: Memory, ty: &TensorType| View::new(memory, ty, &Layout::contiguous(&ty.shape));
        let inputs = cx.inputs.iter().enumerate().map(|(i, ty)| ty.map(|ty| view(Memory::Read(i), ty)));
        let outputs = outs.iter().enumerate().map(|(i, ty)| view(Memory::Write(i), ty));
        self.steps(cx, inputs.collect(), outputs.collect(), BUDGET)
    }
}
