//! Mutated archives, and programs without one: a legal graph or a typed error, and never a panic. The targets
//! of cargo-fuzz beside this crate are guided by coverage; these need no other tool, and run in every test.

#[path = "../../runtime/tests/it/common/fuzz.rs"]
mod fuzz;
#[path = "it/support/mod.rs"]
mod support;

use fuzz::Random;
use headwater_core::graph::verify::verify;
use headwater_core::{DType, Layout, Registry};
use headwater_import::{Archive, Dims, GivenTensor, Imported, Program};
use serde_json::Value;
use support::*;
use zip::CompressionMethod;

const MODEL: &str = "models/model.json";
const WEIGHTS: &str = "data/weights/model_weights_config.json";

/// Opens an archive and binds its model; true for a model.
fn exercise(bytes: Vec<u8>) -> bool {
    let (claimed, dims) = (bytes.len(), Dims::new().or_exported());
    bound(claimed, Program::from_bytes(bytes).and_then(|p| p.bind(&dims, Registry::standard())))
}

/// True for a model, which is legal; an error says what it is.
fn bound(claimed: usize, result: headwater_import::Result<Imported>) -> bool {
    match result {
        Ok(imported) => {
            verify(&imported.graph).expect("what is imported is legal");
            for stored in imported.stored.iter().flatten() {
                assert!(!stored.entry.is_empty() && stored.to_bytes().len() < 1 << 24, "{}", stored.entry);
            }
            true
        }
        Err(e) => {
            let text = e.to_string();
            assert!(text.starts_with(e.code()) && text.len() < 1 << 20, "{claimed} bytes: {text}");
            false
        }
    }
}

/// The tensors that a configuration of weights describes, in storages of some size. Numbers are taken as they
/// are.
fn given(config: &Value, random: &mut Random) -> Vec<GivenTensor> {
    const DTYPES: [DType; 6] = [DType::F32, DType::F64, DType::I64, DType::Bool, DType::BF16, DType::U8];
    let length = random.below(1 << 14);
    let ints = |v: &Value| -> Vec<i64> {
        v.as_array().into_iter().flatten().map(|x| x["as_int"].as_i64().unwrap_or(1)).collect()
    };
    let mut found = Vec::new();
    for (name, payload) in config["config"].as_object().into_iter().flatten() {
        let meta = &payload["tensor_meta"];
        let shape = ints(&meta["sizes"]).into_iter().map(|d| d as usize).collect();
        let strides = ints(&meta["strides"]).into_iter().map(|s| s as isize).collect();
        let offset = meta["storage_offset"]["as_int"].as_i64().unwrap_or(0) as isize;
        let dtype = if meta["dtype"] == 7 { DType::F32 } else { *random.pick(&DTYPES) };
        found.push(GivenTensor {
            name: name.clone(),
            dtype,
            layout: Layout { shape, strides, offset },
            storage: payload["path_name"]
                .as_str()
                .map_or(0, |p| p.len() as u64 + p.bytes().map(u64::from).sum::<u64>()),
            storage_bytes: length,
        });
    }
    if random.one_in(8) && !found.is_empty() {
        let again = found[random.below(found.len())].clone();
        found.push(again);
    }
    found
}

/// Small archives of every kind of write, and one made by hand.
fn seeds() -> Vec<Pt2> {
    let mut seeds = vec![Pt2::new(&relu())];
    for path in goldens().iter().filter(|p| p.components().any(|c| c.as_os_str() == "writes")) {
        let archive = Archive::open(path).unwrap();
        let mut pt2 = Pt2::new(&Value::Null);
        for name in archive.names("") {
            pt2.set(name, archive.entry(name).unwrap().to_vec());
        }
        seeds.push(pt2);
    }
    assert!(seeds.len() > 30);
    seeds
}

/// An archive to change, stored or deflated.
fn seed(random: &mut Random, seeds: &[Pt2]) -> Pt2 {
    let mut pt2 = random.pick(seeds).clone();
    pt2.compression = *random.pick(&[CompressionMethod::STORE, CompressionMethod::DEFLATE]);
    pt2
}

/// The zip file: entries that are lost, renamed or changed under a right checksum, then any byte.
#[test]
fn archives() {
    let seeds = seeds();
    fuzz::run("archives", |random| {
        let mut pt2 = seed(random, &seeds);
        let at = random.below(pt2.entries.len());
        match random.below(6) {
            0 => drop(pt2.entries.remove(at)),
            1 => {
                // Names stay distinct: the writer refuses two that are equal.
                let other = random.below(pt2.entries.len());
                let name = format!("{}{}", pt2.entries[other].0, random.pick(&["//x", "/..", "x", "\0"]));
                pt2.entries[at].0 = name;
            }
            2 => {
                let other = random.below(pt2.entries.len());
                let content = pt2.entries[other].1.clone();
                pt2.entries[at].1 = content;
            }
            3 => random.bytes(&mut pt2.entries[at].1),
            _ => {}
        }
        let mut bytes = pt2.bytes();
        if random.one_in(2) {
            random.bytes(&mut bytes);
        }
        exercise(bytes)
    });
}

/// The JSON inside a well-formed archive.
#[test]
fn models() {
    let seeds = seeds();
    fuzz::run("models", |random| {
        let mut pt2 = seed(random, &seeds);
        let name = if random.one_in(4) { WEIGHTS } else { MODEL };
        let content = &pt2.entries.iter().find(|(n, _)| n == name).unwrap().1;
        let mut doc: Value = serde_json::from_slice(content).unwrap();
        random.json(&mut doc);
        pt2.set(name, doc.to_string());
        exercise(pt2.bytes())
    });
}

/// The JSON without an archive, with tensors that do not always fit.
#[test]
fn given_tensors() {
    let seeds = seeds();
    fuzz::run("given_tensors", |random| {
        let pt2 = random.pick(&seeds);
        let content = |name: &str| &pt2.entries.iter().find(|(n, _)| n == name).unwrap().1;
        let mut doc: Value = serde_json::from_slice(content(MODEL)).unwrap();
        let mut config: Value = serde_json::from_slice(content(WEIGHTS)).unwrap();
        let tensors = random.one_in(2);
        random.json(if tensors { &mut config } else { &mut doc });
        let mut json = doc.to_string().into_bytes();
        if random.one_in(8) {
            random.bytes(&mut json);
        }
        let program = Program::from_json(&json, given(&config, random));
        let dims = Dims::new().or_exported();
        bound(json.len(), program.and_then(|p| p.bind(&dims, Registry::standard())))
    });
}
