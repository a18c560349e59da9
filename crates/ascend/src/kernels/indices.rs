//! Indices in UB, for kernels that check them one by one.

use super::copies::read;
use crate::chip::Arch;
use crate::kernel::{Buf, Builder, Elem, Gm, Pipe, Scalar, ScalarBinary};

/// Indices in GM, i32 or i64.
#[derive(Clone, Copy)]
pub(super) struct Indices {
    /// The parameter.
    pub gm: Gm,
    len: u64,
}

impl Indices {
    /// The parameter `index` of so many indices.
    pub fn input(k: &mut Builder, elem: Elem, len: u64) -> Indices {
        let gm = k.input("index", elem, len);
        if k.arch() == Arch::P310 {
            k.slack(gm, len.next_multiple_of(elem.per_block()) - len);
        }
        Indices { gm, len }
    }

    /// A buffer for at most `most` of them.
    pub fn buffer(&self, k: &mut Builder, most: u64) -> Buf {
        k.ub("near", self.gm.elem, most.min(self.len.next_multiple_of(self.gm.elem.per_block())))
    }
}

/// Copies `len` indices into UB, and lets the scalar unit wait for them.
pub(super) fn read_indices(k: &mut Builder, near: Buf, index: Gm, start: &Scalar, len: &Scalar) {
    read(k, near.at(0), index.at(start), len);
    k.flag(Pipe::Mte2, Pipe::S, 0);
}

/// `x < limit`
pub(super) fn below(x: &Scalar, limit: impl Into<Scalar>) -> Scalar {
    x.clone().lt(limit)
}

/// `x >= limit`
pub(super) fn not_below(x: &Scalar, limit: impl Into<Scalar>) -> Scalar {
    x.clone().binary(ScalarBinary::Ge, limit)
}

/// Not 0 where an index is negative or not below `limit`.
pub(super) fn not_inside(x: &Scalar, limit: u64) -> Scalar {
    below(x, 0).binary(ScalarBinary::Or, not_below(x, limit))
}
