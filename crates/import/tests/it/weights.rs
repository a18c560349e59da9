//! Stored tensors: what is within its storage is borrowed or gathered, everything else is refused.

use crate::support::*;
use headwater_import::{Program, Result, StoredTensor};
use serde_json::{Value, json};

/// Opens an archive that stores `meta` over `storage` as the parameter `w`.
fn stored(meta: Value, storage: &[u8]) -> Result<StoredTensor> {
    let mut pt2 = Pt2::new(&relu());
    pt2.weights(&json!({"config": {"w": {"path_name": "weight_0", "is_param": true, "use_pickle": false, "tensor_meta": meta}}}));
    pt2.set("data/weights/weight_0", storage);
    Program::from_bytes(pt2.bytes())?.stored("w")
}

fn code(meta: Value, storage: &[u8]) -> &'static str {
    stored(meta, storage).err().map_or("stored", |e| e.code())
}

#[test]
fn contiguous_tensors_are_lent_and_others_gathered() {
    let bytes: Vec<u8> = (0..12).collect();
    let t = stored(meta(1, &[3, 4]), &bytes).unwrap();
    assert_eq!(t.contiguous().unwrap(), &bytes);
    assert_eq!(t.to_bytes(), bytes);
    let part = stored(strided(1, &[2, 2], &[4, 1], 5), &bytes).unwrap();
    assert!(part.contiguous().is_none());
    assert_eq!(part.to_bytes(), [5, 6, 9, 10]);
    assert_eq!(part.extent(), (5, 11));
    let transposed = stored(strided(2, &[4, 3], &[1, 4], 0), &bytes).unwrap();
    assert_eq!(transposed.to_bytes(), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
    let wide = stored(strided(3, &[2], &[2], 1), &bytes).unwrap();
    assert_eq!(wide.to_bytes(), [2, 3, 6, 7]);
    let scalar = stored(meta(6, &[]), &bytes).unwrap();
    assert_eq!(scalar.contiguous().unwrap(), [0, 1]);
    let expanded = stored(strided(1, &[3, 2], &[0, 1], 0), &bytes).unwrap();
    assert_eq!(expanded.to_bytes(), [0, 1, 0, 1, 0, 1]);
    let empty = stored(meta(8, &[0, 4]), &[]).unwrap();
    assert_eq!(empty.to_bytes(), [0u8; 0]);
    let bools = stored(meta(12, &[3]), &[0, 1, 7]).unwrap();
    assert_eq!(bools.to_bytes(), [0, 1, 1]);
}

#[test]
fn tensors_beyond_their_storage_are_refused() {
    let bytes = [0u8; 12];
    for bad in [
        meta(1, &[13]),
        meta(7, &[4]),
        strided(1, &[2], &[12], 0),
        strided(1, &[1], &[1], 12),
        strided(1, &[2], &[-1], 1),
        strided(1, &[-1], &[1], 0),
        strided(1, &[1], &[1], -1),
        strided(1, &[i64::MAX, i64::MAX], &[0, 0], 0),
        strided(1, &[2], &[i64::MAX], 0),
        strided(8, &[i64::MAX / 8], &[0], 0),
        strided(1, &[1, 2], &[1], 0),
        json!({"dtype": 1, "sizes": [symbol("s0", 2)], "requires_grad": false, "strides": ints(&[1]),
            "storage_offset": {"as_int": 0}, "layout": 7}),
        // Small storage, expanded to more memory than the file justifies.
        strided(1, &[1 << 30], &[0], 0),
    ] {
        assert_eq!(code(bad.clone(), &bytes), "HW-I012", "{bad}");
    }
    assert_eq!(code(meta(99, &[1]), &bytes), "HW-I011");
}

#[test]
fn missing_storages_and_pickles_are_refused() {
    let open = |payload: Value| {
        let mut pt2 = Pt2::new(&relu());
        pt2.weights(&json!({"config": {"w": payload}}));
        pt2.set("secret", "x");
        Program::from_bytes(pt2.bytes()).unwrap().stored("w").unwrap_err().code()
    };
    let payload = |path: &str, pickle: bool, meta: Value| json!({"path_name": path, "is_param": true, "use_pickle": pickle, "tensor_meta": meta});
    assert_eq!(open(payload("weight_9", false, meta(1, &[1]))), "HW-I005");
    assert_eq!(open(payload("../../secret", false, meta(1, &[1]))), "HW-I003");
    assert_eq!(open(payload("weight_0", true, meta(1, &[1]))), "HW-I009");
    assert_eq!(open(payload("weight_0", false, Value::Null)), "HW-I009");
    let program = Program::from_bytes(Pt2::new(&relu()).bytes()).unwrap();
    assert_eq!(program.stored("w").unwrap_err().code(), "HW-I005");
}

#[test]
fn damaged_storages_are_found_when_asked() {
    let mut pt2 = Pt2::new(&relu());
    pt2.weights(&json!({"config": {"w": {"path_name": "weight_0", "is_param": true, "use_pickle": false,
        "tensor_meta": meta(1, &[8])}}}));
    pt2.set("data/weights/weight_0", *b"abcdefgh");
    let mut bytes = pt2.bytes();
    let at = bytes.windows(8).position(|w| w == b"abcdefgh").unwrap();
    Program::from_bytes(bytes.clone()).unwrap().verify_checksums().unwrap();
    bytes[at] = b'z';
    let damaged = Program::from_bytes(bytes).unwrap();
    assert_eq!(damaged.verify_checksums().unwrap_err().code(), "HW-I004");
}

#[test]
fn every_golden_opens_through_its_memory_map_and_is_whole() {
    for path in goldens() {
        let program = Program::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        program.verify_checksums().unwrap();
        assert!(!program.inputs().is_empty());
        // These were recorded later than the others.
        let late = |folder: &str| path.components().any(|c| c.as_os_str() == folder);
        let write = |name| path.to_string_lossy().contains(&format!("writes/{name}"));
        let later = late("attention")
            || late("bugs")
            || late("cancelling")
            || late("casts")
            || late("complex")
            || ["selections", "branches", "loops", "norms", "embeddings", "momentum"].into_iter().any(write);
        let version = if later { "2.15" } else { "2.13" };
        assert!(program.torch_version().starts_with(version), "{}", path.display());
    }
    let missing = Program::open("no/such/file.pt2").unwrap_err();
    assert_eq!(missing.code(), "HW-I001");
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.pt2");
    std::fs::write(&empty, b"").unwrap();
    assert!(matches!(Program::open(&empty).unwrap_err().code(), "HW-I001" | "HW-I002"));
}
