//! `philox_uniform`, through the text and the simulator on both chips: the bits of the definition.

use headwater_ascend::kernel::{parse, verify};
use headwater_ascend::kernels::{philox_uniform, uniform_blocks};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Rule};
use headwater_core::random::{Stream, WORDS};

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap()
}

/// Numbers from block `first` on, in several orders and on several cores. Nothing else is written.
fn right(arch: Arch, numbers: usize, [seed, step]: [i64; 2], stream: u32, first: u32) {
    let program = philox_uniform(arch, numbers as u64).unwrap();
    verify(&program).unwrap();
    assert_eq!(parse(&program.to_string()).unwrap(), program);
    let source = Stream::new(seed, step, stream);
    let word = |i: usize| 4 * u64::from(first) + i as u64;
    let want: Vec<u8> =
        (0..numbers).flat_map(|i| (source.uniform(word(i) % WORDS) as f32).to_le_bytes()).collect();
    let out = 512;
    let args = [Arg::Pointer(0), Arg::Pointer(out), Arg::Int(stream.into()), Arg::Int(first.into())];
    let modes = [Mode::Fast, Mode::Checked { seed: 0 }, Mode::Checked { seed: 5 }];
    for (mode, blocks) in modes.into_iter().zip([uniform_blocks(numbers as u64), 3, 1]) {
        let mut memory = [seed.to_le_bytes(), step.to_le_bytes()].concat();
        memory.resize(out as usize, 0x5b);
        memory.resize(out as usize + numbers * 4 + 64, 0x77);
        launch(&Launch::new(&program, chip(arch), blocks, &args, mode), &mut memory)
            .unwrap_or_else(|f| panic!("{arch} {numbers} {mode:?}: {}", f[0]));
        let (own, rest) = memory[out as usize..].split_at(numbers * 4);
        assert!(own == want, "{arch}: {numbers} numbers of {seed}, {step}, {stream} from {first} {mode:?}");
        assert_eq!(rest, [0x77; 64]);
    }
}

#[test]
fn numbers_are_those_of_the_definition() {
    for arch in Arch::ALL {
        for numbers in [1, 7, 8, 13, 256, 2048, 4095, 4096, 9001] {
            right(arch, numbers, [7, 3], 2, 0);
        }
        // Words and counters whose uppermost bit is set.
        right(arch, 500, [-1, i64::MIN], u32::MAX, 1 << 31);
        // The counter comes to 2^32 within a task, and between tasks.
        right(arch, 13_200, [0x0123_4567_89ab_cdef, -9], 1 << 31, u32::MAX - 760);
        right(arch, 13_203, [i64::MAX, 1 << 40], 0x8000_ffff, u32::MAX - 2047);
    }
}

#[test]
fn more_numbers_than_a_stream_has_are_refused() {
    for numbers in [0, WORDS + 1] {
        assert_eq!(philox_uniform(Arch::A2, numbers).unwrap_err().rule, Rule::Range);
    }
}
