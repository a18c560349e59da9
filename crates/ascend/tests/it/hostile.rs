//! Texts that are no good programs: they end in an error, a finding or a run, never in a panic.

use headwater_ascend::kernel::{Elem, Param, parse, verify};
use headwater_ascend::kernels::add;
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip};

/// Words that changed texts get in place of others.
const WORDS: [&str; 12] = [
    "-1",
    "0",
    "9223372036854775807",
    "-9223372036854775808",
    "4294967295",
    "i64",
    "u8",
    "x",
    "c",
    "mte3",
    "1e30",
    "block",
];

#[test]
fn changed_texts_do_not_panic() {
    let mut random = 7u64;
    let mut below = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((random >> 33) as usize) % n
    };
    let (mut parsed, mut legal) = (0, 0);
    for round in 0..12_000 {
        let arch = Arch::ALL[round % 2];
        let text = add(arch, Elem::F16, 1003, 256).unwrap().to_string();
        // A word or a character becomes another.
        let mut text: Vec<char> = text.chars().collect();
        for _ in 0..=below(2) {
            let at = below(text.len());
            let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let from = (0..at).rev().find(|&i| !inside(text[i])).map_or(0, |i| i + 1);
            let to = (at..text.len()).find(|&i| !inside(text[i])).unwrap_or(text.len());
            let word = WORDS[below(WORDS.len())];
            text.splice(from..to.max(from), word.chars());
        }
        let text: String = text.into_iter().collect();
        let Ok(program) = parse(&text) else { continue };
        parsed += 1;
        assert_eq!(parse(&program.to_string()).as_ref(), Ok(&program), "{text}");
        if verify(&program).is_err() {
            continue;
        }
        legal += 1;
        let bytes: u64 = program.params.iter().map(Param::bytes).fold(0, |a, b| a.saturating_add(b));
        let args: Vec<Arg> = program.params.iter().map(|_| Arg::Pointer(0)).collect();
        let mut memory = vec![0; bytes.min(1 << 16) as usize];
        for mode in [Mode::Fast, Mode::Checked { seed: 1 }] {
            let mut one = Launch::new(
                &program,
                Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap(),
                2,
                &args,
                mode,
            );
            one.fuel = 2000;
            let _ = launch(&one, &mut memory);
        }
    }
    assert!(parsed > 500 && legal > 100, "{parsed} parsed, {legal} legal");
}
