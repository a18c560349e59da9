//! Arbitrary bytes as an archive.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headwater_import_fuzz::exercise(data.to_vec()));
