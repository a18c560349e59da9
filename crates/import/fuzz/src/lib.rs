//! Steps that both fuzz targets share: open, bind, and take the graph as far as a compilation goes before it
//! allocates.

use headwater_core::Registry;
use headwater_core::graph::verify::verify;
use headwater_core::pass::{decompose, differentiate};
use headwater_import::{Dims, Error, Program};
use serde_json::Value;
use std::io::{Cursor, Write};
use zip::write::{SimpleFileOptions, ZipWriter};

#[path = "../../tests/it/support/mutate.rs"]
mod mutate;
pub use mutate::mutate;

/// Opens and binds an archive. Errors are fine; panics and broken graphs are findings.
pub fn exercise(bytes: Vec<u8>) {
    let bound = Program::from_bytes(bytes).and_then(|program| {
        let dims = Dims::new().or_exported();
        program.bind(&dims, Registry::standard())
    });
    let graph = match bound {
        Ok(imported) => {
            for stored in imported.stored.iter().flatten() {
                stored.to_bytes();
            }
            imported.graph
        }
        Err(e) => {
            assert!(e.to_string().starts_with(e.code()), "{e}");
            assert!(matches!(&e, Error::Unsupported(_)) || e.to_string().len() < 1 << 16, "a message floods");
            return;
        }
    };
    verify(&graph).expect("what is imported is legal");
    let Ok(graph) = decompose(graph) else { return };
    let Some(loss) = graph.outputs.first().map(|o| o.value) else { return };
    if let Ok(d) = differentiate(graph, loss) {
        verify(&d.graph).expect("what is differentiated is legal");
    }
}

/// Builds an archive: `{"model": ..., "weights": ..., "bytes": n}` is the model's JSON, the weights'
/// configuration, and the size of every storage it names. Other text is taken as the model's JSON itself.
pub fn archive(text: &[u8]) -> Vec<u8> {
    let doc: Value = serde_json::from_slice(text).unwrap_or(Value::Null);
    let part = |key: &str| doc.get(key).map(|v| v.to_string().into_bytes());
    let mut entries = vec![
        ("byteorder".to_string(), b"little".to_vec()),
        ("archive_format".to_string(), b"pt2".to_vec()),
        ("archive_version".to_string(), b"0".to_vec()),
        ("models/model.json".to_string(), part("model").unwrap_or_else(|| text.to_vec())),
    ];
    if let Some(weights) = part("weights") {
        let length = doc["bytes"].as_u64().unwrap_or(64).min(1 << 14) as usize;
        let mut storages: Vec<&str> = doc["weights"]["config"]
            .as_object()
            .into_iter()
            .flat_map(|c| c.values().filter_map(|p| p["path_name"].as_str()))
            .collect();
        storages.sort_unstable();
        storages.dedup();
        for name in storages {
            entries.push((format!("data/weights/{name}"), vec![1; length]));
        }
        entries.push(("data/weights/model_weights_config.json".to_string(), weights));
    }
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::STORE);
    for (name, content) in entries {
        if zip.start_file(format!("m/{name}"), stored).is_err() || zip.write_all(&content).is_err() {
            break;
        }
    }
    zip.finish().map(Cursor::into_inner).unwrap_or_default()
}
