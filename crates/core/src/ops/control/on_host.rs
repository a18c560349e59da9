//! A row program that the device does not compute, as a node that `pass::on_host` makes.

use super::fused::{FUSED, program};
use crate::DType;
use crate::ops::{Body, Case, Derivative, OpDef, Precision};
use crate::row::{RowProgram, evaluate};
use crate::tensor::Tensor;
use std::sync::Arc;

/// Runs the attribute `program` on the inputs through the reference definition. `outputs` lists the types of
/// its results, `ops` the operator it is, `reason` says why the device does not compute it. No device has a
/// kernel for it, and nothing fuses with it.
pub static ON_HOST: OpDef = OpDef {
    name: "on_host",
    schemas: &["headwater::on_host(Tensor[] inputs, *, str outputs, str ops, str reason) -> Tensor[]"],
    infer: FUSED.infer,
    derivative: Derivative::NotDifferentiable("steps go to the host after differentiation"),
    precision: Precision::Same,
    cost: FUSED.cost,
    body: Body::Kernel(|cx, inputs, outs| {
        let present: Vec<&Tensor> = inputs.iter().copied().flatten().collect();
        evaluate::run(&*program(cx)?, &present, outs)
    }),
    cases: || {
        let program = RowProgram::copy(DType::F64, DType::F64, &[3]);
        vec![
            Case::new("copy")
                .f(&[3])
                .attr("outputs", "f64[3]")
                .attr("ops", "to")
                .attr("program", Arc::new(program))
                .attr("reason", "a test"),
        ]
    },
};
