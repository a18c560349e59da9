//! Makes the first corpus of both targets from the repository's small archives: `cargo run --bin seed`.

use serde_json::{Value, json};
use std::io::{Cursor, Read};
use std::path::Path;

fn main() -> std::io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (archives, models) = (here.join("corpus/archive"), here.join("corpus/model"));
    std::fs::create_dir_all(&archives)?;
    std::fs::create_dir_all(&models)?;
    for file in std::fs::read_dir(here.join("../../../goldens/writes"))? {
        let path = file?.path();
        if path.extension().is_none_or(|e| e != "pt2") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default();
        let bytes = std::fs::read(&path)?;
        std::fs::write(archives.join(name), &bytes)?;
        std::fs::write(models.join(name), document(bytes).to_string())?;
    }
    // Operators that the archives lack, each in a model of its own; the targets find out what they take.
    for op in headwater_core::Registry::standard().operators() {
        for (i, schema) in op.schemas.iter().enumerate() {
            std::fs::write(models.join(format!("op_{}_{i}", op.name)), call(schema).to_string())?;
        }
    }
    Ok(())
}

/// The input of the target `model`, from a real archive. Traces are left out: they are long and say nothing.
fn document(bytes: Vec<u8>) -> Value {
    let mut zip = zip::ZipArchive::new(Cursor::new(bytes)).expect("a golden is an archive");
    let mut read = |suffix: &str| -> Value {
        let at =
            zip.file_names_raw().position(|n| n.ends_with(suffix.as_bytes())).expect("every export has it");
        let mut text = String::new();
        zip.by_index(at).and_then(|mut f| Ok(f.read_to_string(&mut text)?)).expect("a golden is whole");
        serde_json::from_str(&text).expect("an export's JSON")
    };
    let (mut model, weights) = (read("models/model.json"), read("model_weights_config.json"));
    for node in model["graph_module"]["graph"]["nodes"].as_array_mut().into_iter().flatten() {
        node["metadata"] = json!({});
    }
    model["graph_module"]["module_call_graph"] = json!([]);
    json!({"model": model, "weights": weights, "bytes": 2048})
}

/// A model that calls one operator on `f32[2, 3]` tensors and small numbers.
fn call(schema: &str) -> Value {
    let (head, rest) = schema.split_once('(').unwrap_or((schema, ")"));
    let head = if head.contains("::") { head.replacen("::", ".", 1) } else { format!("aten.{head}") };
    let target = if head.matches('.').count() == 1 { format!("{head}.default") } else { head };
    let end = rest.find(") ->").unwrap_or(rest.len());
    let tensor = json!({"as_tensor": {"name": "x"}});
    let mut inputs = Vec::new();
    for arg in rest[..end].split(", ") {
        let Some((ty, name)) = arg.split('=').next().and_then(|a| a.rsplit_once(' ')) else { continue };
        let base = ty.split(['(', '?']).next().unwrap_or(ty);
        let value = match base {
            _ if ty.contains("Tensor") && ty.contains("[]") => {
                json!({"as_tensors": [{"name": "x"}, {"name": "x"}]})
            }
            "Tensor" => tensor.clone(),
            "bool" => json!({"as_bool": true}),
            "float" | "Scalar" => json!({"as_float": 0.5}),
            "ScalarType" => json!({"as_scalar_type": 7}),
            "str" => json!({"as_string": "none"}),
            "int" | "SymInt" => json!({"as_int": 1}),
            _ if ty.contains("int[") || ty.contains("SymInt[") => json!({"as_ints": [1, 1]}),
            _ => json!({"as_none": true}),
        };
        inputs.push(json!({"name": name, "arg": value, "kind": 1}));
    }
    let one = json!({"as_int": 1});
    let meta = json!({"dtype": 7, "sizes": [{"as_int": 2}, {"as_int": 3}], "requires_grad": true, "strides": [{"as_int": 3}, one],
        "storage_offset": {"as_int": 0}, "layout": 7});
    let arg = |n: &str| json!({"as_tensor": {"name": n}});
    let node = json!({"target": format!("torch.ops.{target}"), "inputs": inputs, "outputs": [arg("y")], "metadata": {}});
    let graph = json!({"inputs": [arg("x")], "outputs": [arg("y")], "nodes": [node], "tensor_values": {"x": meta, "y": meta}});
    let signature = json!({"input_specs": [{"parameter": {"arg": {"name": "x"}, "parameter_name": "x"}}],
        "output_specs": [{"user_output": {"arg": arg("y")}}]});
    json!({"model": {"graph_module": {"graph": graph, "signature": signature}, "schema_version": {"major": 8, "minor": 20}},
        "weights": {"config": {"x": {"path_name": "weight_0", "use_pickle": false, "tensor_meta": meta}}}, "bytes": 24})
}
