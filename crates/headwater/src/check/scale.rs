//! The loss scale of a step in f16.

use super::step::{Given, Precision, feed};
use crate::core::DType;
use crate::core::compile::{self, Instrument, Options};
use crate::core::device::Device;
use crate::core::evaluate::Loaded;
use crate::core::graph::Graph;
use crate::golden::Golden;
use crate::model::BoundModel;
use anyhow::Result;
use serde::Serialize;

/// The scale that PyTorch's `GradScaler` begins with.
const FIRST: f64 = 65536.0;

/// The largest scale that is taken.
const LARGEST: f64 = 16_777_216.0;

/// A loss scale, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Scale {
    /// The largest power of two, less one bit, by which no gradient overflows; 1 for a model of NaN.
    pub factor: f64,
    /// The first node of the backward pass whose gradient overflows at 65536, with which `GradScaler` begins,
    /// if one does: operator and place.
    pub overflows: Option<String>,
    /// The first node that is NaN or overflows whatever the scale, if one does.
    pub lost: Option<String>,
}

/// Chooses the scale by the largest gradient of each node.
pub(super) fn choose(
    forward: &Graph,
    precision: &Precision,
    bound: &BoundModel,
    golden: &Golden,
    device: &dyn Device,
) -> Result<Scale> {
    let target = device.target();
    let probed = |precision: &Precision| -> Result<_> {
        let all = precision.options(forward, target)?;
        let options = Options { instrument: Instrument::Probes, all_outputs: true, ..all };
        let made = compile::optimize(forward.clone(), &options, target)?;
        let loaded = Loaded::new(device, &made.graph)?;
        Ok((made, loaded))
    };
    // Of a model that has NaN in f32 too, of its inputs or of rows without keys, magnitudes are not known.
    let (wide, mut loaded) = probed(&Precision::from(DType::F32))?;
    let given = Given { scale: 1.0, rounding: [0.0, 0.0] };
    let seen = loaded.run(&feed(&wide.graph, &wide.graph, bound, golden, given)?)?;
    let seen = seen.first().map(|t| t.to_f64()).unwrap_or_default();
    if seen.iter().any(|x| x.is_nan()) {
        return Ok(Scale { factor: 1.0, overflows: None, lost: None });
    }
    let (probed, mut loaded) = probed(precision)?;
    let graph = &probed.graph;
    // Magnitudes in the backward pass, and the first that is infinite where another scale could mend that.
    let mut run = |scale: f64| -> Result<(f64, Option<String>)> {
        let given = Given { scale, rounding: [0.0, 0.0] };
        let seen = loaded.run(&feed(graph, graph, bound, golden, given)?)?;
        let seen = seen.first().map(|t| t.to_f64()).unwrap_or_default();
        let all: Vec<_> = probed.probes.iter().map(|p| &p.0).zip(seen).collect();
        let low: Vec<_> =
            all.iter().copied().filter(|(p, _)| p.scaled && p.dtype == precision.dtype).collect();
        // Masks are infinite, in the backward pass too where it recomputes them, which is harmless until
        // something is NaN.
        let forward = all.iter().find(|(p, x)| !p.scaled && x.is_nan());
        let first = forward.or_else(|| low.iter().find(|(_, x)| !x.is_finite()));
        let named = first.map(|(p, _)| format!("{} at {}", p.op.name, graph.origins[p.origin.0 as usize]));
        let most = low.iter().map(|(_, x)| *x).filter(|x| x.is_finite()).fold(0.0, f64::max);
        Ok((most, named))
    };
    let (_, overflows) = run(FIRST)?;
    let mut small = 1.0;
    let (mut most, mut lost) = run(small)?;
    while lost.is_some() && small > f64::exp2(-24.0) {
        small /= 256.0;
        (most, lost) = run(small)?;
    }
    if lost.is_some() {
        return Ok(Scale { factor: FIRST, overflows: None, lost });
    }
    let most = (precision.dtype.max_value() * small / most).log2().floor() - 1.0;
    let mut factor = most.exp2().min(LARGEST);
    while run(factor)?.1.is_some() && factor > small {
        factor /= 2.0;
    }
    Ok(Scale { factor, overflows, lost: None })
}

impl Scale {
    /// What a reader should know of it, in a sentence.
    pub fn sentence(&self) -> String {
        let factor = self.factor;
        match (&self.lost, &self.overflows) {
            (Some(node), _) => format!(
                "f16 overflows or has no number whatever the loss scale, first in {node}: train it in bf16, or keep that \
                 operator in f32"
            ),
            (None, Some(node)) => format!(
                "loss scale {factor}: with 65536, where GradScaler begins, gradients overflow f16 first in {node}; with \
                 {factor} none does"
            ),
            (None, None) => format!("loss scale {factor}: no gradient overflows f16"),
        }
    }
}
