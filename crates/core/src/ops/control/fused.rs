//! A row program as a node, as `pass::fuse` makes it of several.

use crate::attr::Attr;
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::row::{Instr, RowProgram};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{DType, fail};
use std::sync::Arc;

/// Runs the attribute `program` on the inputs; `outputs` lists the types of its results, `ops` the operators
/// it is made of.
pub static FUSED: OpDef = OpDef {
    name: "fused",
    schemas: &["headwater::fused(Tensor[] inputs, *, str outputs, str ops) -> Tensor[]"],
    infer: |cx| {
        let outputs = decode_types(cx.opt_str("outputs")?.unwrap_or(""))?;
        if let Some(Attr::Program(p)) = cx.attrs.get("program") {
            p.agrees(cx.present(), &outputs).map_err(|m| fail!(Shape, "{m}"))?;
        }
        Ok(outputs)
    },
    derivative: Derivative::NotDifferentiable("fusion comes after differentiation"),
    precision: Precision::Same,
    cost: Cost::Custom(|cx, _| {
        let Some(Attr::Program(p)) = cx.attrs.get("program") else { return 0.0 };
        let arithmetic =
            |i: &&Instr| !matches!(i, Instr::Load(_) | Instr::Store(..) | Instr::Float(_) | Instr::Int(_));
        (p.rows() * p.cols()) as f64 * p.body.iter().filter(arithmetic).count() as f64
    }),
    body: Body::Rows(|cx, _| Ok(RowProgram::clone(&*program(cx)?))),
    cases: || {
        let program = RowProgram::copy(DType::F64, DType::F64, &[3]);
        vec![
            Case::new("copy")
                .f(&[3])
                .attr("outputs", "f64[3]")
                .attr("ops", "to")
                .attr("program", Arc::new(program)),
        ]
    },
};

/// The row program of a node that carries it.
pub(super) fn program(cx: &OpCx) -> Result<Arc<RowProgram>> {
    match cx.attrs.get("program") {
        Some(Attr::Program(p)) => Ok(p.clone()),
        _ => Err(fail!(Attribute, "the node carries no row program")),
    }
}

/// Types as text: `f32[2, 3]; f32[2]`.
pub fn encode_types(types: &[TensorType]) -> String {
    types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join("; ")
}

fn decode_types(text: &str) -> Result<Vec<TensorType>> {
    let bad = || fail!(Attribute, "`{text}` does not list types");
    let one = |t: &str| {
        let (dtype, dims) = t.trim().strip_suffix(']')?.split_once('[')?;
        let dims = dims.split(',').map(str::trim).filter(|d| !d.is_empty());
        let shape: Shape = dims.map(|d| d.parse::<usize>().ok()).collect::<Option<Vec<_>>>()?.into();
        Some(TensorType::new(dtype.parse::<DType>().ok()?, shape))
    };
    text.split(';').map(|t| one(t).ok_or_else(bad)).collect()
}
