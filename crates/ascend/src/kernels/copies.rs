//! Copies of runs and rows between GM and UB, as each chip has them: exact bytes on A2, whole blocks on 310P.

use crate::chip::Arch;
use crate::kernel::{Builder, DataCopyPad, Fill, Scalar, Value, View};

/// Copies `count` elements from GM into UB; where the chip copies whole blocks alone, rounded up.
pub(super) fn read(k: &mut Builder, into: View, from: View, count: &Scalar) {
    let elem = into.elem;
    match k.arch() {
        Arch::A2 => k.copy_pad(into, from, 1, count.clone() * elem.size(), 0, 0),
        Arch::P310 => {
            let blocks = count.clone().div_ceil(elem.per_block() as i64);
            k.copy_runs(into, from, 1, blocks, 0, 0);
        }
    }
}

/// The way back.
pub(super) fn write(k: &mut Builder, to: View, from: View, count: &Scalar) {
    let elem = to.elem;
    match k.arch() {
        Arch::A2 => k.copy_pad(to, from, 1, count.clone() * elem.size(), 0, 0),
        Arch::P310 => {
            let blocks = count.clone().div_ceil(elem.per_block() as i64);
            k.copy_runs(to, from, 1, blocks, 0, 0);
        }
    }
}

/// Copies rows of `dim` floats that are contiguous in GM into UB, where their stride is `pitch`. A last block
/// of 32 bytes is filled up with zeros; on 310P rows are whole blocks.
pub(super) fn read_rows(k: &mut Builder, into: View, from: View, rows: &Scalar, [dim, pitch]: [u64; 2]) {
    let (size, block) = (into.elem.size(), into.elem.per_block());
    let whole = dim.next_multiple_of(block);
    let gap = (pitch - whole) / block;
    match k.arch() {
        Arch::A2 => k.issue(DataCopyPad {
            dst: into,
            src: from,
            blocks: rows.clone(),
            bytes: (dim * size).into(),
            src_gap: 0.into(),
            dst_gap: gap.into(),
            left: 0,
            right: (whole - dim) as u32,
            fill: (whole > dim).then_some(Fill(Value::Float(0.0))),
            atomic: None,
        }),
        Arch::P310 => k.copy_runs(into, from, rows, dim / block, 0, gap),
    }
}

/// Copies rows of `columns` elements to GM; the rows' stride is `dim` elements there, and `pitch` in UB.
pub(super) fn write_rows(
    k: &mut Builder,
    to: View,
    from: View,
    rows: &Scalar,
    columns: &Scalar,
    [dim, pitch]: [u64; 2],
) {
    let elem = to.elem;
    let blocks = columns.clone().div_ceil(elem.per_block() as i64);
    let gap = Scalar::from(pitch / elem.per_block()) - blocks.clone();
    let rest = Scalar::from(dim) - columns.clone();
    match k.arch() {
        Arch::A2 => {
            let bytes = columns.clone() * elem.size();
            k.copy_pad(to, from, rows.clone(), bytes, gap, rest * elem.size());
        }
        Arch::P310 => k.copy_runs(to, from, rows.clone(), blocks, gap, rest / elem.per_block()),
    }
}
