//! A plan before its buffers have places: steps whose operands name buffers, and which bytes these take.

use crate::dtype::DType;
use crate::graph::{OriginId, Phase, ValueId};
use crate::plan::{Place, TensorView, Work};
use crate::shape::Layout;

/// A buffer before placement.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    /// The value it is for.
    pub(super) value: ValueId,
    /// Size.
    pub(super) bytes: usize,
    /// Its place, if the caller decided; otherwise it goes into the arena.
    pub(super) place: Option<Place>,
}

/// The place of a value's elements: a buffer and a layout in it.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    pub(super) buffer: usize,
    pub(super) dtype: DType,
    pub(super) layout: Layout,
}

/// A step whose operands still name buffers.
pub(super) struct Draft {
    pub(super) work: Work,
    pub(super) reads: Vec<Option<Storage>>,
    pub(super) writes: Vec<Storage>,
    pub(super) workspace: Option<usize>,
    pub(super) op: &'static str,
    pub(super) origin: OriginId,
    pub(super) phase: Phase,
    pub(super) flops: f64,
    pub(super) stream: u32,
}

impl Draft {
    /// The buffers it uses, its workspace's included.
    pub(super) fn buffers(&self) -> impl Iterator<Item = usize> {
        self.reads.iter().flatten().chain(&self.writes).map(|s| s.buffer).chain(self.workspace)
    }
}

pub(super) fn overlap(a: Place, a_bytes: usize, b: Place, b_bytes: usize) -> bool {
    a.segment == b.segment && a.offset < b.offset + b_bytes && b.offset < a.offset + a_bytes
}

/// Bytes a view touches: first byte and one past the last, in its segment; `None` if it has no element.
pub(super) fn extent(v: &TensorView) -> Option<(isize, isize)> {
    let (mut low, mut high) = (v.layout.offset, v.layout.offset);
    for (&d, &s) in v.layout.shape.iter().zip(&v.layout.strides) {
        if d == 0 {
            return None;
        }
        let span = s * (d as isize - 1);
        if span < 0 { low += span } else { high += span }
    }
    let size = v.dtype.size() as isize;
    let base = v.place.offset as isize;
    Some((base + low * size, base + (high + 1) * size))
}
