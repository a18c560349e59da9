//! The timing model beside published times of whole kernels. Two of them also gave constants of the model:
//! the addition on 48 cores with tiles of 4096 a core's rates from and to HBM, and the copies of 128 bytes
//! the least cycles of a copy. The time that a task takes beside its cores comes from the additions on one
//! core and past L2. All others gave nothing.

use super::published::Published;
use headwater_ascend::chip::{Arch, Chip};
use headwater_ascend::kernel::{
    Barrier, Binary, Builder, Elem, Gm, Over, Pipe, Program, Scalar, ScalarType, Scaled, Unary, Unit, Value,
    View,
};
use headwater_ascend::timing::{Launch, Timing, predict};

fn chip() -> &'static Chip {
    Chip::from_name("910b1").unwrap()
}

fn time(program: &Program, blocks: u32) -> Timing {
    let args = vec![Value::Int(0); program.params.len()];
    predict(program, chip(), &Launch { blocks, args }, &mut |_| None).unwrap()
}

/// Sum of `len` elements as asc-devkit's `add_high_performance` example does it: `slots` tiles in flight,
/// results half a row of banks from the operands or not, inputs past L2 or not.
pub(super) fn add(len: u64, tile: u64, slots: u64, streamed: bool, apart: bool) -> Program {
    let mut k = Builder::new("add", Arch::A2, Unit::Vector);
    let (x, y) = (k.input("x", Elem::F16, len), k.input("y", Elem::F16, len));
    let z = k.output("z", Elem::F16, len);
    if streamed {
        k.streamed(x);
        k.streamed(y);
    }
    let a = k.ub_phase("a", Elem::F16, slots * tile, 0);
    let b = k.ub_phase("b", Elem::F16, slots * tile, if apart { 256 } else { 0 });
    let c = k.ub_phase("c", Elem::F16, slots * tile, 0);
    for slot in 0..slots {
        k.set_flag(Pipe::V, Pipe::Mte2, slot);
        k.set_flag(Pipe::Mte3, Pipe::V, slot);
    }
    let round = k.var("round", ScalarType::Int);
    k.set(round, 0);
    k.for_each("i", Scalar::BLOCK * tile, len, Scalar::BLOCKS * tile, |k, start| {
        let slot = k.let_("slot", round % slots);
        let at = slot.clone() * tile;
        let read = |k: &mut Builder, to: View, from: Gm| k.copy(to, from.at(&start), tile);
        k.wait_flag(Pipe::V, Pipe::Mte2, slot.clone());
        read(k, a.at(at.clone()), x);
        read(k, b.at(at.clone()), y);
        k.flag(Pipe::Mte2, Pipe::V, slot.clone());
        k.wait_flag(Pipe::Mte3, Pipe::V, slot.clone());
        k.binary(Binary::Add, c.at(at.clone()), a.at(at.clone()), b.at(at.clone()), Over::count(tile));
        k.set_flag(Pipe::V, Pipe::Mte2, slot.clone());
        k.flag(Pipe::V, Pipe::Mte3, slot.clone());
        k.copy(z.at(&start), c.at(at), tile);
        k.set_flag(Pipe::Mte3, Pipe::V, slot);
        k.set(round, round + 1);
    });
    for slot in 0..slots {
        k.wait_flag(Pipe::V, Pipe::Mte2, slot);
        k.wait_flag(Pipe::Mte3, Pipe::V, slot);
    }
    k.finish().unwrap()
}

pub(super) const ELEMENTS: u64 = 8192 * 8192;

#[test]
fn queued_additions_take_what_was_measured() {
    // One block, everything in UB: 1000 additions of 64 repeats, 86 cycles each.
    let mut k = Builder::new("adds", Arch::A2, Unit::Vector);
    let a = k.ub_phase("a", Elem::F32, 4096, 0);
    let b = k.ub_phase("b", Elem::F32, 4096, 256);
    let c = k.ub_phase("c", Elem::F32, 4096, 0);
    k.for_each("i", 0, 1000, 1, |k, _| {
        k.binary(Binary::Add, c.at(0), a.at(0), b.at(0), Over::count(4096));
    });
    let mut program = k.finish().unwrap();
    // Addresses of the published scenario 4.
    for (buffer, address) in program.buffers.iter_mut().zip([0, 0x10100, 0x4000]) {
        buffer.address = Some(address);
    }
    let timing = time(&program, 1);
    let cycles = timing.pipe(Pipe::V) * 1.85;
    assert!((cycles / 86.0 - 1.0).abs() <= 0.01, "{cycles} cycles an addition, published 86");
}

#[test]
fn add_beside_its_published_times() {
    // Tiles, tiles in flight, inputs past L2, and cores; task, V, MTE2 and MTE3.
    let cases = [
        ("add, one core, tiles of 4096", (4096, 2, false, 1), [6909.6, 761.65, 6208.762, 2613.205], &[][..]),
        ("add, 48 cores, tiles of 4096", (4096, 2, false, 48), [306.58, 15.885, 215.485, 54.33], &["mte2"]),
        ("add, tiles of 16384", (16384, 1, false, 48), [268.5, 12.845, 184.369, 57.354], &["mte2"]),
        ("add, inputs past L2", (8192, 2, true, 48), [187.68, 12.846, 175.997, 160.291], &["mte3"]),
    ];
    for (what, (tile, slots, streamed, cores), [task, v, mte2, mte3], missed) in cases {
        let timing = time(&add(ELEMENTS, tile, slots, streamed, false), cores);
        let pipes = [(Pipe::V, v), (Pipe::Mte2, mte2), (Pipe::Mte3, mte3)];
        Published { what, task, pipes: &pipes, missed }.beside(&timing);
    }
}

/// Copies a matrix of `size` × `size` f16 into UB, in tiles of `rows` × `cols`, `passes` times over `slices`
/// bands of rows.
pub(super) fn copy_in(size: u64, [rows, cols]: [u64; 2], passes: u64, slices: u64) -> Program {
    let mut k = Builder::new("copy_in", Arch::A2, Unit::Vector);
    let x = k.input("x", Elem::F16, size * size);
    let tile = k.ub("tile", Elem::F16, rows * cols);
    let (band, across) = (size / slices, size / cols);
    k.for_each("slice", 0, slices, 1, |k, slice| {
        k.for_each("pass", 0, passes, 1, |k, _| {
            let tiles = band / rows * across;
            k.for_each("t", Scalar::BLOCK, tiles, Scalar::BLOCKS, |k, t| {
                let row = slice.clone() * band + t.clone() / across * rows;
                let at = row * size + t % across * cols;
                k.copy_runs(tile.at(0), x.at(at), rows, cols / 16, (size - cols) / 16, 0);
            });
        });
    });
    k.finish().unwrap()
}

#[test]
fn copies_beside_their_published_times() {
    let cases = [
        ("copies of 128 bytes", copy_in(12288, [1, 64], 1, 1), 564.84, &[(Pipe::Mte2, 548.161)][..]),
        ("copies of 64 runs of 128 bytes", copy_in(12288, [64, 64], 1, 1), 233.54, &[(Pipe::Mte2, 220.772)]),
        ("four passes over the whole", copy_in(12288, [64, 64], 4, 1), 828.06, &[]),
        ("four passes over each of four slices", copy_in(12288, [64, 64], 4, 4), 365.74, &[]),
    ];
    for (what, program, task, pipes) in cases {
        Published { what, task, pipes, missed: &[] }.beside(&time(&program, 48));
    }
}

/// `x / (1 + exp(-1.595769 (x + 0.044715 x³)))` in f32 as asc-devkit's `matmul_gelu_high_performance`
/// computes it: eight functions in the buffer of the results. Its README does not state the schedule of this
/// kernel alone; its busy times overlap, so ours has two tiles of 32 × 256 in flight.
pub(super) fn gelu(size: u64) -> Program {
    let mut k = Builder::new("gelu", Arch::A2, Unit::Vector);
    let (input, output) = (k.input("x", Elem::F32, size * size), k.output("y", Elem::F32, size * size));
    let [rows, columns] = [32, 256];
    let count = rows * columns;
    let near = k.ub_phase("x_tiles", Elem::F32, 2 * count, 0);
    let result = k.ub_phase("y_tiles", Elem::F32, 2 * count, 0);
    for slot in 0..2 {
        k.set_flag(Pipe::V, Pipe::Mte2, slot);
        k.set_flag(Pipe::Mte3, Pipe::V, slot);
    }
    let round = k.var("round", ScalarType::Int);
    k.set(round, 0);
    let across = size / columns;
    k.for_each("tile", Scalar::BLOCK, size / rows * across, Scalar::BLOCKS, |k, tile| {
        let slot = k.let_("slot", round % 2);
        let place = tile.clone() / across * (rows * size) + tile % across * columns;
        let place = k.let_("place", place);
        let gap = (size - columns) / 8;
        let (x, y) = (near.at(slot.clone() * count), result.at(slot.clone() * count));
        k.wait_flag(Pipe::V, Pipe::Mte2, slot.clone());
        k.copy_runs(x.clone(), input.at(&place), rows, columns / 8, gap, 0);
        k.flag(Pipe::Mte2, Pipe::V, slot.clone());
        k.wait_flag(Pipe::Mte3, Pipe::V, slot.clone());
        let over = || Over::count(count);
        k.binary(Binary::Mul, y.clone(), x.clone(), x.clone(), over());
        k.barrier(Barrier::V);
        k.binary(Binary::Mul, y.clone(), y.clone(), x.clone(), over());
        k.barrier(Barrier::V);
        k.scaled(Scaled::Muls, y.clone(), y.clone(), 0.044715, over());
        k.barrier(Barrier::V);
        k.binary(Binary::Add, y.clone(), x.clone(), y.clone(), over());
        k.barrier(Barrier::V);
        k.scaled(Scaled::Muls, y.clone(), y.clone(), -1.595769, over());
        k.barrier(Barrier::V);
        k.unary(Unary::Exp, y.clone(), y.clone(), over());
        k.barrier(Barrier::V);
        k.scaled(Scaled::Adds, y.clone(), y.clone(), 1.0, over());
        k.barrier(Barrier::V);
        k.binary(Binary::Div, y.clone(), x, y.clone(), over());
        k.set_flag(Pipe::V, Pipe::Mte2, slot.clone());
        k.flag(Pipe::V, Pipe::Mte3, slot.clone());
        k.copy_runs(output.at(&place), y, rows, columns / 8, 0, gap);
        k.set_flag(Pipe::Mte3, Pipe::V, slot);
        k.set(round, round + 1);
    });
    for slot in 0..2 {
        k.wait_flag(Pipe::V, Pipe::Mte2, slot);
        k.wait_flag(Pipe::Mte3, Pipe::V, slot);
    }
    k.finish().unwrap()
}

#[test]
fn gelu_beside_its_published_time() {
    let pipes = [(Pipe::V, 236.506), (Pipe::Mte2, 316.672)];
    Published { what: "gelu, f32", task: 369.827, pipes: &pipes, missed: &["v"] }
        .beside(&time(&gelu(8192), 48));
}
