//! Losses of gradients to low precision. Beside each node of the backward pass that rounds to it is a twin
//! that reads the same operands and rounds to f32. Elements that are zero in the node's result, but not in
//! the twin's, have underflowed there. Zeros that are no loss (a ReLU's, a row no index names) are zero in
//! both and do not count. Nor do those that follow from an element lost earlier: each loss counts once, where
//! it happens.

use super::probes::{Probe, scaled};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, Graph, OutputRole, Phase, ValueId};
use crate::ops::pointwise::{
    compare::{EQ, NE},
    logical::LOGICAL_AND,
};
use crate::pass::precision::rounds;
use crate::pass::rebuild::{rebuild, same};
use crate::pass::upcast::attributes;

/// The graph with one more result, the last, i64 `[probes]`: the elements that underflowed to zero in each
/// result in `low`. Such are results of nodes of the backward pass that round. Absent where there is no such
/// node. The other results keep their bits.
///
/// `graph` is differentiated and decomposed. The second part of the answer names the probes and says how many
/// elements each has. `scale` is the input that is the loss scale, if there is one.
///
/// # Errors
/// Refusals of type rules: none for a legal graph.
pub fn underflow(graph: &Graph, low: DType, scale: Option<ValueId>) -> Result<(Graph, Vec<(Probe, usize)>)> {
    let (mut probes, mut counts, scaled) = (Vec::new(), Vec::new(), scaled(graph, scale));
    let counted = rebuild(graph, same, |b, node, operands| {
        let outputs = b.apply(node.op, operands, node.attrs.clone())?;
        let is_low = |b: &Builder, v: ValueId| b.ty(v).dtype == low && b.ty(v).shape.numel() > 0;
        if node.phase != Phase::Backward || !rounds(graph, node) || !outputs.iter().any(|&v| is_low(b, v)) {
            return Ok(outputs);
        }
        let wide = operands.iter().map(|v| match *v {
            Some(v) if b.ty(v).dtype == low => b.cast(v, DType::F32).map(Some),
            other => Ok(other),
        });
        let wide = wide.collect::<Result<Vec<_>>>()?;
        let twins = b.apply(node.op, &wide, attributes(node, DType::F32)?)?;
        for (&v, &twin) in outputs.iter().zip(&twins) {
            if !is_low(b, v) {
                continue;
            }
            let zero = Attrs::new().with("other", 0.0);
            let (gone, there) = (b.one(&EQ, &[v], zero.clone())?, b.one(&NE, &[twin], zero)?);
            let lost = b.call(&LOGICAL_AND, &[gone, there])?;
            // Counted in integers, which every device has.
            let lost = b.cast(lost, DType::I64)?;
            let all: Vec<usize> = (0..b.ty(lost).shape.rank()).collect();
            let count = b.sum(lost, &all, false)?;
            counts.push(b.reshape(count, &[1])?);
            let scaled = node.outputs.iter().any(|v| scaled[v.0 as usize]);
            let probe = Probe { op: node.op, origin: node.origin, phase: node.phase, dtype: low, scaled };
            probes.push((probe, b.ty(v).shape.numel()));
        }
        Ok(outputs)
    })?;
    let mut b = Builder::extend(counted);
    b.phase = Phase::Backward;
    if !counts.is_empty() {
        let all = b.one(&crate::ops::movement::cat::CAT, &counts, Attrs::new().with("dim", 0))?;
        b.output("underflow", all, OutputRole::User);
    }
    Ok((b.finish(), probes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::InputRole;
    use crate::{Tensor, TensorType, pass, reference};

    #[test]
    fn what_f16_loses_is_counted_where_it_is_lost_and_zeros_are_not() {
        let mut b = Builder::new();
        let p = b.parameter("p", DType::F32, &[4]);
        let x = b.input("x", TensorType::new(DType::F16, [4]), InputRole::User);
        let low = b.cast(p, DType::F16).unwrap();
        let y = b.mul(low, x).unwrap();
        let y = b.scale(y, 2f64.powi(-10)).unwrap();
        let y = b.cast(y, DType::F32).unwrap();
        let loss = b.sum(y, &[0], false).unwrap();
        b.output("loss", loss, OutputRole::User);
        let d = pass::differentiate(b.finish(), loss).unwrap().graph;
        let (counted, probes) = underflow(&pass::decompose(d.clone()).unwrap(), DType::F16, None).unwrap();
        crate::graph::verify(&counted).unwrap();
        // 2⁻¹⁰ x: nothing to lose, gone (f16 begins at 2⁻²⁴), gone, just there.
        let x = Tensor::float(DType::F16, [4], vec![0.0, 2f64.powi(-20), -(2f64.powi(-16)), 2f64.powi(-14)]);
        let inputs = [Tensor::float(DType::F32, [4], vec![1.0; 4]), x];
        let (out, before) =
            (reference::run(&counted, &inputs).unwrap(), reference::run(&d, &inputs).unwrap());
        assert_eq!(out[..before.len()], before[..]);
        let lost = out[before.len()].to_f64();
        let named: Vec<_> = probes.iter().map(|(t, n)| (t.op.name, *n)).zip(lost).collect();
        let total: f64 = named.iter().map(|(_, n)| n).sum();
        assert_eq!(total, 2.0, "{named:?}");
        assert!(named.contains(&(("mul", 4), 2.0)), "{named:?}");
        assert!(probes.iter().all(|(t, _)| t.phase == Phase::Backward));
        // bf16 has the range of f32.
        assert!(underflow(&d, DType::BF16, None).unwrap().1.is_empty());
    }
}
