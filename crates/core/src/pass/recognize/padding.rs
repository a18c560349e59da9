//! A convolution of an image with zeros around it: the convolution pads itself. Some models add the zeros by
//! an operator of their own (`constant_pad_nd`, `pad`), because they pad more on one side than on the other.

use super::{Exactness, Replacement, Sought};
use crate::attr::Attr;
use crate::graph::Node;
use crate::ops::OpCx;
use crate::ops::conv::convolution::CONVOLUTION;
use crate::ops::conv::general::{GENERAL, shared};
use crate::ops::conv::geometry::{Conv, numbers};
use crate::ops::movement::pad::{CONSTANT_PAD_ND, PAD, is_constant};

/// The convolution that may stand for this one.
pub(super) fn padded(s: &Sought, node: &Node) -> Option<Replacement> {
    let cx = s.graph.cx(node);
    let general = std::ptr::eq(node.op, &GENERAL) && cx.flag("transposed") == Ok(false);
    if !std::ptr::eq(node.op, &CONVOLUTION) && !general {
        return None;
    }
    let mut inputs = node.inputs.clone();
    let x = (*inputs.first()?)?;
    let pad = s.maker(x, &CONSTANT_PAD_ND).or_else(|| s.maker(x, &PAD))?;
    let borders = s.graph.cx(pad);
    let n = cx.shape(1).ok()?.rank().checked_sub(2)?;
    // Before and after each dimension, the last one first.
    let added = borders.ints("pad").ok()?;
    let zeros = is_constant(&borders) && borders.opt_float("value").ok()?.unwrap_or(0.0) == 0.0;
    if !zeros || added.len() > 2 * n || added.iter().any(|&p| p < 0) {
        return None;
    }
    let own = match cx.attrs.get("padding") {
        Some(Attr::Str(how)) if how == "valid" => vec![0; n],
        Some(Attr::Str(_)) => return None,
        _ => numbers(&cx, "padding", n, 0, 0).ok()?,
    };
    let side = |after: usize| {
        let border = |d: usize| added.get(2 * (n - 1 - d) + after).copied().unwrap_or(0);
        (0..n).map(|d| i64::try_from(own[d]).ok()?.checked_add(border(d))).collect::<Option<Vec<i64>>>()
    };
    let (mut padding, after) = (side(0)?, side(1)?);
    if padding != after {
        padding.extend(after);
    }
    inputs[0] = *pad.inputs.first()?;
    let mut attrs = shared(&node.attrs);
    attrs.set("padding", padding);
    // A border that is much larger than the image stays an operator: few kernels take it.
    let (image, weight) = (borders.shape(0).ok()?, cx.shape(1).ok()?);
    if !Conv::new(image, weight, &OpCx { inputs: cx.inputs.clone(), attrs: &attrs }).ok()?.is_compact() {
        return None;
    }
    // Products with zeros are left out: no bit of a finite sum depends on them but the sign of a zero.
    Some(Replacement { op: &CONVOLUTION, inputs, attrs, exactness: Exactness::SameAccumulator })
}
