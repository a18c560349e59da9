//! Mutated exports: whatever comes, a graph that is legal or an error with a code, and never a panic. The
//! fuzz targets go further; this keeps their ground covered in every test run.

use crate::support::*;
use headwater_core::Registry;
use headwater_core::graph::verify::verify;
use headwater_import::{Archive, Dims, Program};
use proptest::prelude::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn exercise(bytes: Vec<u8>) -> bool {
    let bound =
        Program::from_bytes(bytes).and_then(|p| p.bind(&Dims::new().or_exported(), Registry::standard()));
    match bound {
        Ok(imported) => {
            verify(&imported.graph).expect("what is imported is legal");
            imported
                .stored
                .iter()
                .flatten()
                .for_each(|s| assert!(!s.entry.is_empty() && s.to_bytes().len() < 1 << 24));
            true
        }
        Err(e) => {
            assert!(e.to_string().starts_with(e.code()));
            false
        }
    }
}

fn writes() -> Vec<PathBuf> {
    let mut all: Vec<_> =
        goldens().into_iter().filter(|p| p.components().any(|c| c.as_os_str() == "writes")).collect();
    all.sort();
    assert!(all.len() >= 30);
    all
}

/// The entries of an archive.
fn entries(path: &Path) -> Pt2 {
    let archive = Archive::open(path).unwrap();
    let mut pt2 = Pt2::new(&Value::Null);
    for name in archive.names("") {
        pt2.set(name, archive.entry(name).unwrap().to_vec());
    }
    pt2
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_json(file in any::<prop::sample::Index>(), seed in any::<u64>(), changes in 1usize..4, weights in any::<bool>()) {
        let all = writes();
        let mut pt2 = entries(&all[file.index(all.len())]);
        let name = if weights { "data/weights/model_weights_config.json" } else { "models/model.json" };
        let at = pt2.entries.iter().position(|(n, _)| n == name).unwrap();
        let mut doc: Value = serde_json::from_slice(&pt2.entries[at].1).unwrap();
        let mut state = seed;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32
        };
        for _ in 0..changes {
            crate::support::mutate::mutate(&mut doc, &mut random);
        }
        pt2.set(name, doc.to_string());
        exercise(pt2.bytes());
    }

    #[test]
    fn mutated_bytes(
        file in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let all = writes();
        let mut bytes = std::fs::read(&all[file.index(all.len())]).unwrap();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        exercise(bytes);
    }

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(!exercise(bytes));
    }
}
