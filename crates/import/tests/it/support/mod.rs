//! Builds small archives for tests, from JSON.
#![allow(dead_code)]

pub mod truth;

pub mod mutate;

use serde_json::{Value, json};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

/// An archive to be: entries by name, the usual ones present already.
#[derive(Clone)]
pub struct Pt2 {
    pub entries: Vec<(String, Vec<u8>)>,
    pub compression: CompressionMethod,
}

impl Pt2 {
    pub fn new(model: &Value) -> Self {
        let mut this = Pt2 { entries: vec![], compression: CompressionMethod::STORE };
        this.set("byteorder", "little");
        this.set("archive_format", "pt2");
        this.set("archive_version", "0");
        this.set("models/model.json", model.to_string());
        this.weights(&json!({"config": {}}));
        this
    }

    pub fn set(&mut self, name: &str, content: impl Into<Vec<u8>>) {
        self.entries.retain(|(n, _)| n != name);
        self.entries.push((name.into(), content.into()));
    }

    pub fn remove(&mut self, name: &str) {
        self.entries.retain(|(n, _)| n != name);
    }

    pub fn weights(&mut self, config: &Value) {
        self.set("data/weights/model_weights_config.json", config.to_string());
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in &self.entries {
            let options = SimpleFileOptions::default().compression_method(self.compression);
            zip.start_file(format!("m/{name}"), options).unwrap();
            zip.write_all(content).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }
}

/// Sizes or strides in PyTorch's spelling.
pub fn ints(v: &[i64]) -> Value {
    v.iter().map(|i| json!({"as_int": i})).collect()
}

pub fn symbol(name: &str, hint: i64) -> Value {
    json!({"as_expr": {"expr_str": format!("Symbol('{name}', positive=True, integer=True)"), "hint": {"as_int": hint}}})
}

/// Metadata of a contiguous tensor.
pub fn meta(dtype: u64, sizes: &[i64]) -> Value {
    let mut strides = vec![1; sizes.len()];
    for i in (1..sizes.len()).rev() {
        strides[i - 1] = strides[i] * sizes[i].max(1);
    }
    strided(dtype, sizes, &strides, 0)
}

pub fn strided(dtype: u64, sizes: &[i64], strides: &[i64], offset: i64) -> Value {
    json!({"dtype": dtype, "sizes": ints(sizes), "requires_grad": false, "device": {"type": "cpu", "index": null},
        "strides": ints(strides), "storage_offset": {"as_int": offset}, "layout": 7})
}

pub fn tensor(name: &str) -> Value {
    json!({"as_tensor": {"name": name}})
}

/// A node with named arguments and tensor outputs.
pub fn node(target: &str, inputs: &[(&str, Value)], outputs: &[&str]) -> Value {
    let inputs: Vec<_> = inputs.iter().map(|(n, a)| json!({"name": n, "arg": a, "kind": 1})).collect();
    let outputs: Vec<_> = outputs.iter().map(|o| tensor(o)).collect();
    json!({"target": format!("torch.ops.{target}"), "inputs": inputs, "outputs": outputs, "name": "n",
        "metadata": {"nn_module_stack": "L__self__,,m.Net;k,block.0,m.Block",
            "stack_trace": "File \"/net.py\", line 7, in forward\n    y = f(x)"},
        "is_hop_single_tensor_return": null})
}

/// A model of user inputs, nodes, tensor metadata and user outputs.
pub fn model(inputs: &[&str], nodes: Vec<Value>, values: &[(&str, Value)], outputs: &[&str]) -> Value {
    let specs: Vec<_> = inputs.iter().map(|n| json!({"user_input": {"arg": tensor(n)}})).collect();
    let results: Vec<_> = outputs.iter().map(|n| json!({"user_output": {"arg": tensor(n)}})).collect();
    json!({
        "graph_module": {
            "graph": {
                "inputs": inputs.iter().map(|n| tensor(n)).collect::<Vec<_>>(),
                "outputs": outputs.iter().map(|n| tensor(n)).collect::<Vec<_>>(),
                "nodes": nodes,
                "tensor_values": values.iter().map(|(n, m)| (n.to_string(), m.clone())).collect::<serde_json::Map<_, _>>(),
                "sym_int_values": {}, "sym_bool_values": {}, "is_single_tensor_return": false,
                "custom_obj_values": {}, "sym_float_values": {},
            },
            "signature": {"input_specs": specs, "output_specs": results},
            "module_call_graph": [], "metadata": {}, "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": 10}, "range_constraints": {}, "schema_version": {"major": 8, "minor": 20},
        "verifiers": ["TRAINING"], "torch_version": "2.13.0", "guards_code": [],
    })
}

/// Adds a parameter or buffer in front of the model's inputs.
pub fn add_state(model: &mut Value, kind: &str, arg: &str, fqn: &str, meta: Value) {
    let gm = &mut model["graph_module"];
    let spec = match kind {
        "parameter" => json!({"parameter": {"arg": {"name": arg}, "parameter_name": fqn}}),
        _ => json!({"buffer": {"arg": {"name": arg}, "buffer_name": fqn, "persistent": true}}),
    };
    gm["signature"]["input_specs"].as_array_mut().unwrap().insert(0, spec);
    gm["graph"]["inputs"].as_array_mut().unwrap().insert(0, tensor(arg));
    gm["graph"]["tensor_values"][arg] = meta;
}

/// `y = relu(x)` on f32[2, 3].
pub fn relu() -> Value {
    let m = meta(7, &[2, 3]);
    let n = node("aten.relu.default", &[("self", tensor("x"))], &["y"]);
    model(&["x"], vec![n], &[("x", m.clone()), ("y", m)], &["y"])
}

/// Every exported model among the repository's goldens.
pub fn goldens() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens");
    let mut found = Vec::new();
    for family in std::fs::read_dir(root).unwrap() {
        let Ok(files) = std::fs::read_dir(family.unwrap().path()) else { continue };
        found.extend(files.map(|f| f.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "pt2")));
    }
    found.sort();
    assert!(found.len() >= 18, "goldens of nine families in two forms");
    found
}
