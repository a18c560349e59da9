//! Steps of plans as launches.
//!
//! A step becomes launches of kernels of our own and of products by cuBLASLt, or is refused with the
//! construct that has no kernel; then it runs through the reference on the host, and reports list it with
//! that reason.

mod axes;
mod embedding;
mod product;
mod rows;
mod source;

pub use product::WORKSPACE;
pub(crate) use rows::WHOLE;
pub use rows::rows;

use crate::program::CudaProgram;
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::plan::{Step, TensorView, Work};
use headwater_core::{Attr, DType, TensorType};
use headwater_launch::{Lowered, Refusal};

/// The launches of a step.
///
/// # Errors
/// The construct that has no kernel.
pub fn step(step: &Step) -> Result<Lowered<CudaProgram>, Refusal> {
    let writes_nothing = step.writes.iter().all(|view| view.layout.shape.contains(&0));
    match &step.work {
        Work::Rows(_) if writes_nothing => Ok(Lowered::default()),
        Work::Rows(program) => {
            let reads: Option<Vec<_>> = step.reads.iter().map(Option::as_ref).collect();
            let mut views = reads.ok_or_else(|| Refusal::new("a row program without an operand"))?;
            views.extend(&step.writes);
            rows(step.op, program, &views)
        }
        Work::Kernel { op, attrs } => {
            let types: Vec<_> = step.reads.iter().map(|v| v.as_ref().map(TensorView::ty)).collect();
            let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs };
            let outs: Vec<TensorType> = step.writes.iter().map(TensorView::ty).collect();
            if !has_kernel(op, &cx, &outs) {
                return Err(Refusal::new("no kernel on CUDA yet"));
            }
            match op.name {
                "matmul" => product::matmul(&cx, step),
                "linear" => product::linear(&cx, step),
                "embedding" => embedding::forward(step),
                "check_index" => source::check_index(&cx, step),
                "philox_uniform" => source::philox_uniform(&cx, step),
                "constant" => source::constant(&cx, step),
                _ => embedding::backward(&cx, step),
            }
        }
    }
}

/// True if an operator has kernels for such operands.
pub(crate) fn has_kernel(op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> bool {
    let floats = |t: &&TensorType| t.dtype.is_float();
    match op.name {
        "matmul" | "linear" => cx.present().filter(floats).count() == cx.present().count(),
        "embedding" => matches!(cx.dtype(1), Ok(DType::I32 | DType::I64)),
        // The report of a wrong index names the range from 0.
        "check_index" => {
            matches!(cx.dtype(0), Ok(DType::I32 | DType::I64))
                && cx.attrs.get("wrap") != Some(&Attr::Bool(true))
        }
        "philox_uniform" | "constant" => true,
        "embedding_dense_backward" => {
            let (index, scaled) =
                (cx.dtype(1), cx.attrs.get("scale_grad_by_freq") == Some(&Attr::Bool(true)));
            let rows = outs.first().map_or(0, |t| t.shape[0]);
            matches!(index, Ok(DType::I32 | DType::I64)) && !scaled && rows < 1 << 31
        }
        _ => false,
    }
}

/// True if an operator's kernels take operands with any strides: products, which copy what the library does
/// not take.
pub(crate) fn takes_strides(op: &OpDef) -> bool {
    matches!(op.name, "matmul" | "linear")
}
