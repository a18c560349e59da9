//! Elementwise sum, the smallest whole kernel: tiles in turn for each core, two of each in flight.

use super::copies::{read, write};
use crate::chip::Arch;
use crate::kernel::finding::Result;
use crate::kernel::{Binary, Builder, Elem, Over, Pipe, Program, Scalar, Unit};

/// `z = x + y` over `len` elements, `tile` elements at a time (a multiple of a repeat's elements).
///
/// Copies of one tile run while another is added. On A2 operands are read past L2, which keeps the result. On
/// 310P the last copy is rounded up to 32 bytes, into the slack of the parameters.
///
/// # Errors
/// `Capacity` where six tiles do not fit in UB.
pub fn add(arch: Arch, elem: Elem, len: u64, tile: u64) -> Result<Program> {
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&format!("add_{elem}"), arch, unit);
    k.doc(format!("z = x + y, {len} elements of {elem}, {tile} at a time"));
    let [x, y] = ["x", "y"].map(|name| k.input(name, elem, len));
    let z = k.output("z", elem, len);
    match arch {
        Arch::A2 => [x, y].iter().for_each(|gm| k.streamed(*gm)),
        Arch::P310 => {
            let slack = len.next_multiple_of(elem.per_block()) - len;
            [x, y, z].iter().for_each(|gm| k.slack(*gm, slack));
        }
    }
    // Operands at a distance of half a row of banks: no bank conflicts.
    let a = k.ub_phase("a", elem, 2 * tile, 0);
    let b = k.ub_phase("b", elem, 2 * tile, 256);
    let c = k.ub_phase("c", elem, 2 * tile, 0);

    // One flag for each of the two places of a tile: set as long as the place is free.
    for slot in 0..2 {
        k.set_flag(Pipe::V, Pipe::Mte2, slot);
        k.set_flag(Pipe::Mte3, Pipe::V, slot);
    }
    let round = k.var("round", crate::kernel::ScalarType::Int);
    k.set(round, 0);
    k.for_each("i", Scalar::BLOCK * tile, len, Scalar::BLOCKS * tile, |k, start| {
        let slot = k.let_("slot", round % 2);
        let count = k.let_("count", Scalar::from(tile).min(Scalar::from(len) - start.clone()));
        let at = slot.clone() * tile;

        k.wait_flag(Pipe::V, Pipe::Mte2, slot.clone());
        read(k, a.at(at.clone()), x.at(&start), &count);
        read(k, b.at(at.clone()), y.at(&start), &count);
        k.flag(Pipe::Mte2, Pipe::V, slot.clone());

        k.wait_flag(Pipe::Mte3, Pipe::V, slot.clone());
        let over = Over::count(count.clone());
        k.binary(Binary::Add, c.at(at.clone()), a.at(at.clone()), b.at(at.clone()), over);
        k.set_flag(Pipe::V, Pipe::Mte2, slot.clone());
        k.flag(Pipe::V, Pipe::Mte3, slot.clone());

        write(k, z.at(&start), c.at(at), &count);
        k.set_flag(Pipe::Mte3, Pipe::V, slot);
        k.set(round, round + 1);
    });
    for slot in 0..2 {
        k.wait_flag(Pipe::V, Pipe::Mte2, slot);
        k.wait_flag(Pipe::Mte3, Pipe::V, slot);
    }
    k.finish()
}
