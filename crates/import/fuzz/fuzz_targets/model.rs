//! Arbitrary JSON in a well-formed archive; mutations keep it JSON, so that the importer is reached.
#![no_main]

use headwater_import_fuzz::{archive, exercise, mutate};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|data: &[u8]| exercise(archive(data)));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    // SplitMix32.
    let mut state = seed;
    let mut random = move || {
        state = state.wrapping_add(0x9e37_79b9);
        let z = (state ^ (state >> 16)).wrapping_mul(0x21f0_aaad);
        let z = (z ^ (z >> 15)).wrapping_mul(0x735a_2d97);
        z ^ (z >> 15)
    };
    if random() % 16 != 0
        && let Ok(mut doc) = serde_json::from_slice(&data[..size])
    {
        for _ in 0..=random() % 3 {
            mutate(&mut doc, &mut random);
        }
        let text = doc.to_string();
        if text.len() <= max_size {
            data[..text.len()].copy_from_slice(text.as_bytes());
            return text.len();
        }
    }
    fuzzer_mutate(data, size, max_size)
});
