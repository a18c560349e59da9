//! The mean of a whole image, which models spell as pooling to one position: a reduction, which fuses with
//! its neighbours.

use super::{Exactness, Replacement, Sought};
use crate::attr::Attrs;
use crate::graph::Node;
use crate::ops::conv::avg_pool2d::ADAPTIVE_AVG_POOL2D;
use crate::ops::reduce::mean::MEAN;

/// The mean that may stand for this pooling.
pub(super) fn whole(s: &Sought, node: &Node) -> Option<Replacement> {
    if !std::ptr::eq(node.op, &ADAPTIVE_AVG_POOL2D) {
        return None;
    }
    let cx = s.graph.cx(node);
    // The mean of zero elements would be NaN.
    let one = cx.ints("output_size").ok()?.iter().all(|&n| n == 1) && cx.shape(0).ok()?.numel() > 0;
    let attrs = Attrs::new().with("dim", [-2i64, -1]).with("keepdim", true);
    let inputs = node.inputs.clone();
    one.then_some(Replacement { op: &MEAN, inputs, attrs, exactness: Exactness::Reordered })
}
