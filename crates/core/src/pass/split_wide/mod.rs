//! Float expansion: f64 of an update graph as pairs of f32, for targets without f64 arithmetic.
//!
//! Statistics of gradients, norms and what optimizers make of them are computed in a *wide* type. That is
//! f64, or where the target has none the double-word numbers of [`pair`], of 48 bits. The rewrite works on
//! row programs, so that it serves every operator that is one. It makes row programs in f32, and no device
//! needs to know of pairs. Sums of long vectors become sums of rows of at most [`COLUMNS`]. Of kernels it
//! knows [`SEGMENT_SUM`], which [`SEGMENT_SUM_PAIR`] replaces.
//!
//! A graph input or output of an f64 scalar becomes f32 `[2]`: the high part, then the low one.

mod pair;
mod program;
#[cfg(test)]
mod tests;

use super::rebuild::rebuild;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, Graph, Input, InputRole, Node, OutputRole, ValueId};
use crate::ops::control::fused::{FUSED, encode_types};
use crate::ops::reduce::sum::SUM;
use crate::ops::update::segment::{SEGMENT_SUM, SEGMENT_SUM_PAIR};
use crate::ops::{Body, OpCx, OpDef};
use crate::target::Target;
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};
use program::COLUMNS;
use std::collections::HashMap;
use std::sync::Arc;

/// Type of a wide scalar in the memory of a target: f64 `[]`, or f32 `[2]` where it has no f64 arithmetic.
pub fn wide_scalar(target: &Target) -> TensorType {
    match target.dtypes.arithmetic.contains(DType::F64) {
        true => TensorType::new(DType::F64, [0usize; 0]),
        false => TensorType::new(DType::F32, [2]),
    }
}

/// Little-endian bytes of a number as a scalar of `ty`: a float, or a pair as [`wide_scalar`] gives.
pub fn scalar_bytes(ty: &TensorType, x: f64) -> Vec<u8> {
    if ty.shape.rank() == 0 {
        return Tensor::full(ty, x).to_bytes();
    }
    let hi = x as f32;
    let lo = if hi.is_finite() { (x - hi as f64) as f32 } else { 0.0 };
    [hi, lo].iter().flat_map(|part| part.to_le_bytes()).collect()
}

/// The number that a wide scalar holds.
pub fn scalar_value(t: &Tensor) -> f64 {
    t.to_f64().iter().sum()
}

/// Replaces f64 by pairs of f32. A graph without f64 is returned as it is.
///
/// # Errors
/// `Unsupported` for an f64 input that is no scalar, for operators and functions that pairs are not computed
/// in, by name; what type rules refuse.
pub fn split_wide(graph: Graph) -> Result<Graph> {
    if graph.values.iter().all(|v| v.ty.dtype != DType::F64) {
        return Ok(graph);
    }
    for i in &graph.inputs {
        let ty = graph.ty(i.value);
        let fits = ty.dtype != DType::F64 || (ty.shape.rank() == 0 && i.role == InputRole::State);
        ensure!(fits, Unsupported, "the target has no f64, and input {} is {ty}", i.name);
    }
    let wide_outputs: Vec<bool> =
        graph.outputs.iter().map(|o| graph.ty(o.value).dtype == DType::F64).collect();
    let paired = |_: &Input, ty: &TensorType| match ty.dtype {
        DType::F64 => TensorType::new(DType::F32, [2]),
        _ => ty.clone(),
    };
    let mut low = LowParts::default();
    let split = rebuild(&graph, paired, |b, node, operands| {
        let old = |v: &ValueId| graph.ty(*v);
        let inputs: Vec<Option<TensorType>> =
            node.inputs.iter().map(|v| v.as_ref().map(old).cloned()).collect();
        let outputs: Vec<TensorType> = node.outputs.iter().map(old).cloned().collect();
        if inputs.iter().flatten().chain(&outputs).all(|t| t.dtype != DType::F64) {
            return b.apply(node.op, operands, node.attrs.clone());
        }
        low.node(b, node, operands, &inputs, &outputs)
    })?;
    let mut b = Builder::extend(split);
    for (i, wide) in wide_outputs.into_iter().enumerate() {
        let o = &b.graph().outputs[i];
        if !wide {
            continue;
        }
        let (value, name) = (o.value, o.name.clone());
        let scalar = b.ty(value).shape.rank() == 0 && o.role == OutputRole::User;
        ensure!(scalar, Unsupported, "the target has no f64, and output {name} is {}", b.ty(value));
        let (hi, lo) = low.parts(&mut b, value)?;
        let parts = [b.reshape(hi, &[1])?, b.reshape(lo, &[1])?];
        b.graph_mut().outputs[i].value = b.cat(&parts, 0)?;
    }
    Ok(b.finish())
}

/// The low part of each pair, by its high part.
#[derive(Default)]
struct LowParts(HashMap<ValueId, ValueId>);

impl LowParts {
    /// Both parts of a value that was f64: of a graph input, `[2]`, its two elements.
    fn parts(&mut self, b: &mut Builder, v: ValueId) -> Result<(ValueId, ValueId)> {
        match self.0.get(&v) {
            Some(&lo) => Ok((v, lo)),
            None => Ok((b.select(v, 0, 0)?, b.select(v, 0, 1)?)),
        }
    }

    /// A node of f64 on pairs. Types are those that it had.
    fn node(
        &mut self,
        b: &mut Builder,
        node: &Node,
        operands: &[Option<ValueId>],
        inputs: &[Option<TensorType>],
        outputs: &[TensorType],
    ) -> Result<Vec<ValueId>> {
        let mut pairs = Vec::with_capacity(operands.len());
        for (v, ty) in operands.iter().zip(inputs) {
            pairs.push(match (v, ty) {
                (Some(v), Some(ty)) if ty.dtype == DType::F64 => {
                    let (hi, lo) = self.parts(b, *v)?;
                    Some((hi, Some(lo)))
                }
                (Some(v), _) => Some((*v, None)),
                (None, _) => None,
            });
        }
        match node.op.body {
            Body::Pointwise(_) | Body::Rows(_) if node.op.name == SUM.name => {
                self.sum(b, node, &pairs, inputs, outputs)
            }
            Body::Pointwise(_) | Body::Rows(_) => self.rows(b, node.op, &node.attrs, &pairs, inputs, outputs),
            Body::View(_) | Body::Copies(_) => {
                let of = |part: fn(&(ValueId, Option<ValueId>)) -> Option<ValueId>| {
                    pairs.iter().map(|p| p.as_ref().and_then(part)).collect::<Vec<_>>()
                };
                let hi = b.apply(node.op, &of(|p| Some(p.0)), node.attrs.clone())?;
                let lo = b.apply(node.op, &of(|p| p.1), node.attrs.clone())?;
                self.0.extend(hi.iter().copied().zip(lo));
                Ok(hi)
            }
            Body::Kernel(_) if node.op.name == SEGMENT_SUM.name => {
                let x = pairs.first().copied().flatten();
                let (hi, lo) = x.ok_or_else(|| fail!(Attribute, "input 0 is missing"))?;
                ensure!(lo.is_none(), Unsupported, "segment sums of pairs of f32");
                let sums = b.one(&SEGMENT_SUM_PAIR, &[hi], node.attrs.clone())?;
                let (hi, lo) = (b.select(sums, 0, 0)?, b.select(sums, 0, 1)?);
                self.0.insert(hi, lo);
                Ok(vec![hi])
            }
            _ => Err(fail!(Unsupported, "the target has no f64, and pairs of f32 have no {}", node.op.name)),
        }
    }

    /// The sum of a vector by rows of [`COLUMNS`], then of their sums.
    fn sum(
        &mut self,
        b: &mut Builder,
        node: &Node,
        pairs: &[Option<(ValueId, Option<ValueId>)>],
        inputs: &[Option<TensorType>],
        outputs: &[TensorType],
    ) -> Result<Vec<ValueId>> {
        let mut types = inputs.to_vec();
        let mut operands = pairs.to_vec();
        while let [Some(ty)] = &types[..]
            && let [Some((hi, lo))] = operands[..]
            && let [n] = ty.shape[..]
            && n > COLUMNS
            && outputs[0].shape.rank() == 0
        {
            let rows = n.div_ceil(COLUMNS);
            let mut by_rows = |v: ValueId| {
                let padding = TensorType::new(b.ty(v).dtype, [rows * COLUMNS - n]);
                let all = match padding.shape[0] {
                    0 => v,
                    _ => {
                        let zeros = b.full(&padding, 0.0)?;
                        b.cat(&[v, zeros], 0)?
                    }
                };
                b.reshape(all, &[rows, COLUMNS])
            };
            let matrix = Some((by_rows(hi)?, lo.map(by_rows).transpose()?));
            let ty = Some(TensorType::new(ty.dtype, [rows, COLUMNS]));
            let sums = [TensorType::new(DType::F64, [rows])];
            let attrs = Attrs::new().with("dim", [1]).with("dtype", DType::F64);
            let hi = self.rows(b, &SUM, &attrs, &[matrix], &[ty], &sums)?[0];
            let (hi, lo) = self.parts(b, hi)?;
            (operands, types) = (vec![Some((hi, Some(lo)))], vec![Some(sums[0].clone())]);
        }
        self.rows(b, node.op, &node.attrs, &operands, &types, outputs)
    }

    /// An application of an operator that is a row program.
    fn rows(
        &mut self,
        b: &mut Builder,
        op: &OpDef,
        attrs: &Attrs,
        operands: &[Option<(ValueId, Option<ValueId>)>],
        inputs: &[Option<TensorType>],
        outputs: &[TensorType],
    ) -> Result<Vec<ValueId>> {
        let cx = OpCx { inputs: inputs.iter().map(Option::as_ref).collect(), attrs };
        let program =
            op.row_program(&cx, outputs)?.ok_or_else(|| fail!(Graph, "{} is no row program", op.name))?;
        let mut types = Vec::new();
        for ty in outputs {
            let parts = if ty.dtype == DType::F64 { 2 } else { 1 };
            let dtype = if ty.dtype == DType::F64 { DType::F32 } else { ty.dtype };
            types.extend(vec![TensorType { dtype, shape: ty.shape.clone() }; parts]);
        }
        let attrs = Attrs::new()
            .with("outputs", encode_types(&types))
            .with("ops", op.name)
            .with("program", Arc::new(program::split(&program)?));
        let reads = operands.iter().flatten().flat_map(|&(hi, lo)| [Some(hi), lo]).flatten();
        let results = b.apply(&FUSED, &reads.map(Some).collect::<Vec<_>>(), attrs)?;
        let mut results = results.into_iter();
        let mut out = Vec::with_capacity(outputs.len());
        for ty in outputs {
            let hi = results.next().ok_or_else(|| fail!(Graph, "a result is missing"))?;
            if ty.dtype == DType::F64 {
                let lo = results.next().ok_or_else(|| fail!(Graph, "a result is missing"))?;
                self.0.insert(hi, lo);
            }
            out.push(hi);
        }
        Ok(out)
    }
}
