//! Mutated data files and checkpoints: a value or a typed error, and never a panic. Any run that is resumed
//! from a mutated checkpoint ends in an error, or at its last step.

#[path = "it/common/mod.rs"]
mod common;
#[path = "it/common/fuzz.rs"]
mod fuzz;
#[path = "../../import/tests/it/support/mutate.rs"]
mod mutate;

use common::{config, graph, weights, write_data};
use fuzz::Random;
use headwater_cpu::Cpu;
use headwater_runtime::{Dataset, Error, SessionModel, Trainer};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use zip::write::{SimpleFileOptions, ZipWriter};

/// Opens a data file and touches every byte of it.
fn open(path: &Path) -> bool {
    match Dataset::open(path) {
        Ok(data) => {
            for c in data.columns() {
                assert_eq!(c.bytes().len(), c.ty.bytes(), "{}", c.name);
                std::hint::black_box(c.bytes().iter().fold(0u8, |a, b| a ^ b));
            }
            true
        }
        Err(e) => {
            assert!(e.to_string().starts_with(e.code()) && e.to_string().len() < 1 << 16, "{e}");
            false
        }
    }
}

/// A `.npy` of a few elements.
fn npy(random: &mut Random) -> Vec<u8> {
    let descr =
        *random.pick(&["<f4", "<f8", "<f2", "|i1", "|u1", "<i2", "<i4", "<i8", "|b1", ">f4", "<c8", "|O"]);
    let size: usize = descr[2..].parse().unwrap_or(8);
    let shape: Vec<usize> = (0..random.below(4)).map(|_| random.below(4)).collect();
    let tuple: String = shape.iter().map(|d| format!("{d},")).collect();
    let order = if random.one_in(8) { "True" } else { "False" };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({tuple}), }}");
    let version: u8 = 1 + random.below(3) as u8;
    let prefix = if version == 1 { 10 } else { 12 };
    header.push_str(&" ".repeat(64 - (prefix + header.len() + 1) % 64));
    header.push('\n');
    let mut out = b"\x93NUMPY".to_vec();
    out.extend([version, 0]);
    match version {
        1 => out.extend((header.len() as u16).to_le_bytes()),
        _ => out.extend((header.len() as u32).to_le_bytes()),
    }
    out.extend(header.into_bytes());
    out.extend((0..shape.iter().product::<usize>() * size).map(|i| i as u8));
    out
}

#[test]
fn npz() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.npz");
    fuzz::run("npz", |random| {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for i in 0..1 + random.below(3) {
            let method = *random.pick(&[zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated]);
            let name = if random.one_in(16) { "x".to_string() } else { format!("x{i}.npy") };
            if zip.start_file(name, SimpleFileOptions::default().compression_method(method)).is_err() {
                return false;
            }
            let mut content = npy(random);
            // The archive's own checksum is right for what was changed inside.
            if random.one_in(3) {
                random.bytes(&mut content);
            }
            zip.write_all(&content).unwrap();
        }
        let mut bytes = zip.finish().unwrap().into_inner();
        if random.one_in(2) {
            random.bytes(&mut bytes);
        }
        std::fs::write(&path, bytes).unwrap();
        open(&path)
    });
}

/// Changes a safetensors file: its header as JSON, or its bytes.
fn safetensors_bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    if random.one_in(3) {
        return random.bytes(bytes);
    }
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    random.json(&mut header);
    let header = header.to_string();
    let rest = bytes.split_off(8 + length);
    *bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.into_bytes());
    bytes.extend(rest);
}

#[test]
fn safetensors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.safetensors");
    write_data(&path);
    let seed = std::fs::read(&path).unwrap();
    fuzz::run("safetensors", |random| {
        let mut bytes = seed.clone();
        safetensors_bytes(random, &mut bytes);
        std::fs::write(&path, bytes).unwrap();
        open(&path)
    });
}

/// Lets panics of this workspace print their messages alone: one inside a decoder is caught, and becomes an
/// error.
fn silence_decoders() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.location().is_none_or(|l| !Path::new(l.file()).is_absolute()) {
                hook(panic);
            }
        }));
    });
}

/// Opens mutated files of one format and reads every row.
fn decoded(ending: &str, seed: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("data.{ending}"));
    silence_decoders();
    fuzz::run(ending, |random| {
        let mut bytes = seed.to_vec();
        random.bytes(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        match Dataset::open(&path) {
            Ok(data) => {
                for c in data.columns() {
                    let mut out = Vec::new();
                    (0..c.ty.shape[0]).for_each(|i| c.append(i, c.ty.dtype, &mut out).unwrap());
                    assert_eq!(out.len(), c.ty.bytes(), "{}", c.name);
                }
                true
            }
            Err(e) => {
                assert!(e.to_string().starts_with(e.code()) && e.to_string().len() < 1 << 16, "{e}");
                false
            }
        }
    });
}

/// Both forms of Arrow IPC, one of them compressed.
#[test]
fn arrow() {
    use arrow_array::types::Int64Type;
    use arrow_array::{FixedSizeListArray, Float32Array, RecordBatch};
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    let batch = |rows: i64| {
        let x = Float32Array::from_iter((0..rows).map(|i| Some(i as f32)));
        let ids = (0..rows).map(|i| Some([Some(i), Some(i + 1)]));
        let ids = FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>(ids, 2);
        let columns: [(&str, arrow_array::ArrayRef); 2] = [("x", Arc::new(x)), ("ids", Arc::new(ids))];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let batches = [batch(5), batch(3)];
    let mut stream = StreamWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    let lz4 = Some(arrow_ipc::CompressionType::LZ4_FRAME);
    let options = IpcWriteOptions::default().try_with_compression(lz4).unwrap();
    let mut file = FileWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
    for batch in &batches {
        stream.write(batch).unwrap();
        file.write(batch).unwrap();
    }
    decoded("arrow", &stream.into_inner().unwrap());
    decoded("feather", &file.into_inner().unwrap());
}

#[test]
fn parquet() {
    use parquet::data_type::{FloatType, Int64Type};
    use parquet::file::writer::SerializedFileWriter;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.parquet");
    let schema = "message m { optional float x; required group ids (LIST) { repeated group list { required int64 element; } } }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let mut writer =
        SerializedFileWriter::new(std::fs::File::create(&path).unwrap(), schema, Default::default()).unwrap();
    for rows in [5usize, 3] {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<FloatType>().write_batch(&vec![0.5; rows], Some(&vec![1; rows]), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let (values, starts): (Vec<i64>, Vec<i16>) =
            (0..2 * rows as i64).map(|i| (i, (i % 2) as i16)).unzip();
        column.typed::<Int64Type>().write_batch(&values, Some(&vec![1; 2 * rows]), Some(&starts)).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    let seed = std::fs::read(&path).unwrap();
    decoded("parquet", &seed);
}

#[test]
fn checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    write_data(&dir.path().join("data.safetensors"));
    let (graph, weights) = (graph(4, 0.1), weights());
    let mut settings = config(dir.path());
    (settings.steps, settings.ema) = (Some(3), Some(0.5));
    settings.eval.every = Some(1);
    let train = |resume: bool, steps: u64| {
        let model = SessionModel { graph: &graph, weights: &weights };
        let settings = headwater_runtime::TrainConfig { steps: Some(steps), ..settings.clone() };
        let mut trainer = Trainer::new(Arc::new(Cpu::new(1)), model, None, settings, resume)?;
        trainer.run(&mut [], &AtomicBool::new(false))
    };
    let store = dir.path().join("checkpoints");
    train(false, 2).unwrap();
    let names =
        ["model.safetensors", "state.safetensors", "ema.safetensors", "progress.json", "manifest.json"];
    let whole = names.map(|name| std::fs::read(store.join("step-00000002").join(name)).unwrap());
    fuzz::run("checkpoints", |random| {
        let _ = std::fs::remove_dir_all(&store);
        let place = store.join("step-00000002");
        std::fs::create_dir_all(&place).unwrap();
        let mut files = whole.clone();
        let changed = random.below(names.len());
        match names[changed] {
            name if name.ends_with(".json") && !random.one_in(4) => {
                let mut doc: Value = serde_json::from_slice(&files[changed]).unwrap();
                random.json(&mut doc);
                files[changed] = doc.to_string().into_bytes();
            }
            name if name.ends_with(".json") => random.bytes(&mut files[changed]),
            _ => safetensors_bytes(random, &mut files[changed]),
        }
        // A manifest that vouches for what was changed, as somebody who means harm would write it.
        if names[changed] != "manifest.json" && !random.one_in(8) {
            let mut manifest: Value = serde_json::from_slice(&files[4]).unwrap();
            let hash: String = Sha256::digest(&files[changed]).iter().map(|b| format!("{b:02x}")).collect();
            manifest["files"][names[changed]] =
                serde_json::json!({ "bytes": files[changed].len(), "pieces": [hash] });
            files[4] = manifest.to_string().into_bytes();
        }
        for (name, bytes) in names.iter().zip(&files) {
            std::fs::write(place.join(name), bytes).unwrap();
        }
        match train(true, 3) {
            Ok(summary) => {
                assert!(summary.complete && (summary.step == 3 || !summary.losses.is_empty()), "{summary:?}");
                true
            }
            Err(e) => {
                assert!(e.to_string().starts_with(e.code()), "{e}");
                // The data and the settings are as they should be.
                assert!(!matches!(e, Error::Feed(_) | Error::Data { .. }) || changed < 3, "{e}");
                false
            }
        }
    });
}
