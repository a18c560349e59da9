//! The kernel of operators that have none: the core's reference on copies of the operands. Allocates, uses
//! one thread.

use super::Prepared;
use crate::view::View;
use headwater_core::diagnostic::Result;
use headwater_core::ops::{Body, OpDef};
use headwater_core::{Attrs, OpCx, Tensor, TensorType, fail};

/// The reference of `op` as a kernel.
pub(crate) fn reference(op: &'static OpDef, attrs: &Attrs, outs: &[TensorType]) -> Result<Prepared> {
    let Body::Kernel(run) = op.body else {
        return Err(fail!(Unsupported, "`{}` is no kernel and should have been lowered", op.name));
    };
    let (attrs, outs) = (attrs.clone(), outs.to_vec());
    Ok(Box::new(move |args| {
        let tensors: Vec<Option<Tensor>> = args.reads.iter().map(|v| v.as_ref().map(View::tensor)).collect();
        let inputs: Vec<Option<&Tensor>> = tensors.iter().map(Option::as_ref).collect();
        let cx = OpCx { inputs: inputs.iter().map(|t| t.map(|t| &t.ty)).collect(), attrs: &attrs };
        let results = run(&cx, &inputs, &outs)?;
        args.writes.iter_mut().zip(&results).try_for_each(|(w, t)| w.store(t))
    }))
}
