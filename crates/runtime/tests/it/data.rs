//! Data files: what NumPy and safetensors write is read, false claims are refused.

use headwater_core::{DType, Tensor, TensorType};
use headwater_runtime::config::DataConfig;
use headwater_runtime::data::{Dataset, Feeding, Loader, Order};
use headwater_runtime::{Error, data};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((dict.len() as u16).to_le_bytes());
    out.extend(dict.as_bytes());
    out.extend(data);
    out
}

fn npz(entries: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn put(dir: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Five samples of two bytes and a label.
fn five() -> Vec<(&'static str, Vec<u8>)> {
    let labels: Vec<u8> = [4i32, 3, 2, 1, 0].iter().flat_map(|i| i.to_le_bytes()).collect();
    vec![
        ("x.npy", npy("|u1", "(5, 2)", &[0, 1, 10, 11, 20, 21, 30, 31, 40, 41])),
        ("y.npy", npy("<i4", "(5,)", &labels)),
    ]
}

#[test]
fn stored_and_deflated_archives_hold_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for (name, method) in [("a.npz", CompressionMethod::Stored), ("b.npz", CompressionMethod::Deflated)] {
        let data = Dataset::open(&put(&dir, name, &npz(&five(), method))).unwrap();
        let x = data.column("x").unwrap();
        assert_eq!(x.ty, TensorType::new(DType::U8, [5, 2]));
        assert_eq!(x.bytes(), [0, 1, 10, 11, 20, 21, 30, 31, 40, 41]);
        assert_eq!(data.column("y").unwrap().ty, TensorType::new(DType::I32, [5]));
    }
}

#[test]
fn batches_are_gathered_converted_and_read_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let data =
        Arc::new(Dataset::open(&put(&dir, "a.npz", &npz(&five(), CompressionMethod::Stored))).unwrap());
    let types = [("images", TensorType::new(DType::F32, [2, 2])), ("y", TensorType::new(DType::I64, [2]))];
    let names = BTreeMap::from([("images".to_string(), "x".to_string())]);
    let settings = DataConfig { names: names.clone(), ..DataConfig::default() };
    let types = types.map(|(n, t)| (n.to_string(), t));
    let feeding = Feeding::new(data.clone(), &settings, &types, None, &|_| unreachable!()).unwrap();
    assert_eq!((feeding.batch(), feeding.samples()), (2, 5));
    let order = Order::Recorded { indices: Arc::new(vec![4, 0, 2, 2]) };
    let sampler = feeding.sampler(order, data::LastBatch::Drop).unwrap();
    let all: Vec<_> = Loader::new(feeding, sampler, 0).unwrap().map(Result::unwrap).collect();
    assert_eq!(all.len(), 2);
    let floats =
        |b: &[u8]| b.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect::<Vec<_>>();
    let ints = |b: &[u8]| b.chunks(8).map(|c| i64::from_le_bytes(c.try_into().unwrap())).collect::<Vec<_>>();
    assert_eq!(floats(&all[0].inputs[0]), [40.0, 41.0, 0.0, 1.0]);
    assert_eq!((ints(&all[0].inputs[1]), ints(&all[1].inputs[1])), (vec![0, 4], vec![2, 2]));

    // Data that do not fit are refused, naming the input.
    for (input, ty, why) in [
        ("y", TensorType::new(DType::Bool, [2]), "4 in sample 0 does not"),
        ("y", TensorType::new(DType::I64, [2, 3]), "samples of [3]"),
        ("z", TensorType::new(DType::I64, [2]), "has no tensor z"),
        ("y", TensorType::new(DType::I64, [0usize; 0]), "scalar"),
    ] {
        let e = data::feeds([(input, &ty)].into_iter(), &data, &names, Default::default()).unwrap_err();
        assert!(matches!(e, Error::Feed(_)) && e.to_string().contains(why), "{e}");
    }
}

#[test]
fn files_that_lie_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let entry = |name: &'static str, bytes: Vec<u8>| npz(&[(name, bytes)], CompressionMethod::Stored);
    for (name, bytes) in [
        ("short.npz", entry("x.npy", npy("<f4", "(100,)", &[0; 8]))),
        ("long.npz", entry("x.npy", npy("<f4", "(1,)", &[0; 8]))),
        ("other.npz", entry("x.txt", b"hello".to_vec())),
        ("pickle.npz", entry("x.npy", npy("|O", "(1,)", b"\x80\x04K\x01."))),
        ("bomb.npz", npz(&[("x.npy", npy("<f8", "(100000000000,)", &[0; 64]))], CompressionMethod::Deflated)),
        ("cut.npz", npz(&five(), CompressionMethod::Stored)[..60].to_vec()),
        ("empty.npz", vec![]),
        ("empty.npy", vec![]),
        ("empty.safetensors", vec![]),
        ("long.safetensors", u64::MAX.to_le_bytes().to_vec()),
        ("data.csv", b"1,2,3".to_vec()),
    ] {
        let e = Dataset::open(&put(&dir, name, &bytes)).unwrap_err();
        assert!(matches!(e, Error::Data { .. }), "{name}: {e}");
        assert_eq!(e.code(), "HW-R002");
    }
    assert_eq!(Dataset::open(&dir.path().join("none.npz")).unwrap_err().code(), "HW-R001");
    assert_eq!(Dataset::open(dir.path()).unwrap_err().code(), "HW-R002");
}

#[test]
fn safetensors_of_very_many_tensors_are_refused_before_they_are_parsed() {
    let file = |tensors: usize| {
        let entry = |i| format!("\"{i}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
        let header = format!("{{{}}}", (0..tensors).map(entry).collect::<Vec<_>>().join(","));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
    };
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Dataset::open(&put(&dir, "few.safetensors", &file(1000))).unwrap().columns().len(), 1000);
    let said = Dataset::open(&put(&dir, "many.safetensors", &file(131_073))).unwrap_err().to_string();
    assert!(said.contains("131073 tensors"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_archives_never_panic(at in 0usize..400, byte in any::<u8>(), cut in 0usize..500, deflated in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let method = if deflated { CompressionMethod::Deflated } else { CompressionMethod::Stored };
        let mut bytes = npz(&five(), method);
        let n = bytes.len();
        bytes[at % n] ^= byte;
        bytes.truncate(cut.max(1));
        if let Ok(data) = Dataset::open(&put(&dir, "a.npz", &bytes)) {
            for c in data.columns() {
                prop_assert_eq!(c.bytes().len(), c.ty.bytes());
            }
        }
    }

    #[test]
    fn damaged_safetensors_never_panic(at in 0usize..80, byte in any::<u8>()) {
        let dir = tempfile::tempdir().unwrap();
        let header = br#"{"x":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([1, 2, 3, 4]);
        let n = bytes.len();
        bytes[at % n] ^= byte;
        if let Ok(data) = Dataset::open(&put(&dir, "a.safetensors", &bytes)) {
            for c in data.columns() {
                prop_assert_eq!(c.bytes().len(), c.ty.bytes());
            }
        }
    }
}

/// The rows of `tools/headwater_tools/tables.py`.
#[test]
fn what_pyarrow_writes_is_read() {
    for ending in ["parquet", "arrow", "feather"] {
        pyarrow(ending);
    }
}

fn pyarrow(ending: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/it/files/pyarrow.{ending}"));
    let dir = tempfile::tempdir().unwrap();
    let settings = format!(
        "files = [{:?}]\n[sequences.ids]\nlength = 6\npad = -1\nmask = \"mask\"\n",
        file.to_str().unwrap()
    );
    std::fs::write(dir.path().join("table.toml"), settings).unwrap();
    let data = Dataset::open(dir.path()).unwrap();
    let rows = 300usize;
    type Row = fn(i64) -> Vec<f64>;
    let columns: [(&str, DType, Row); 8] = [
        ("small", DType::I8, |i| vec![(i % 100 - 50) as f64]),
        ("large", DType::I64, |i| vec![(i * 1_000_003 - 77) as f64]),
        ("real", DType::F32, |i| vec![i as f64 / 8.0 - 3.5]),
        ("even", DType::Bool, |i| vec![(i % 2 == 0) as u8 as f64]),
        ("ids", DType::I32, |i| (0..6).map(|j| if j < i % 7 { (i * 7 + j) as f64 } else { -1.0 }).collect()),
        ("mask", DType::Bool, |i| (0..6).map(|j| (j < i % 7) as u8 as f64).collect()),
        ("pair", DType::F64, |i| vec![i as f64 * 0.5, i as f64 * -0.25]),
        ("inner.depth", DType::I32, |i| vec![(i % 11) as f64]),
    ];
    assert_eq!(data.columns().len(), columns.len(), "strings are no column");
    for (name, dtype, row) in columns {
        let column = data.column(name).expect(name);
        assert_eq!((column.ty.dtype, column.ty.shape[0]), (dtype, rows), "{name}");
        let (mut bytes, mut want) = (Vec::new(), Vec::new());
        for i in (0..rows).rev() {
            column.append(i, dtype, &mut bytes).unwrap();
            want.extend(row(i as i64));
        }
        let got = Tensor::from_bytes(&TensorType::new(dtype, [want.len()]), &bytes).to_f64();
        assert_eq!(got, want, "{name}");
    }
    let lengths = data.lengths().unwrap();
    assert!(lengths.of.iter().enumerate().all(|(i, &l)| l as usize == i % 7), "{lengths:?}");
}

/// `pages` of `tools/headwater_tools/tables.py`: rows of three numbers that span pages, of both versions,
/// with pages of no values among them, in several row groups. Element j of row i is 3 i + j.
#[test]
fn rows_that_span_pages_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/files/pages");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 20);
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap().to_string();
        let opened = Dataset::open(&file);
        if name == "null.parquet" {
            let refused = opened.err().unwrap().to_string();
            assert!(refused.starts_with("HW-R002") && refused.contains("row 7"), "{refused}");
            continue;
        }
        let data = opened.unwrap_or_else(|e| panic!("{name}: {e}"));
        let column = data.column("x").unwrap();
        assert_eq!(column.ty, TensorType::new(DType::F32, [13, 3]), "{name}");
        let mut bytes = Vec::new();
        for i in 0..13 {
            column.append(i, DType::F32, &mut bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let got = Tensor::from_bytes(&TensorType::new(DType::F32, [39]), &bytes).to_f64();
        assert_eq!(got, (0..39).map(f64::from).collect::<Vec<_>>(), "{name}");
    }
}
