//! Large graphs: opening and binding stay near-linear.

use crate::support::*;
use headwater_core::Registry;
use headwater_import::{Dims, Program};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A chain of blocks on `x: f32[4, 6]`: arithmetic, views, a write through a view of a view, a read of the
/// base.
fn chain(nodes: usize) -> Vec<u8> {
    let (wide, flat, row) = (meta(7, &[4, 6]), meta(7, &[24]), strided(7, &[6], &[1], 6));
    let this = |n: &str| ("self", tensor(n));
    let bounds = [
        this("A"),
        ("dim", json!({"as_int": 0})),
        ("start", json!({"as_int": 6})),
        ("end", json!({"as_int": 12})),
    ];
    // Nodes and values of one block, as text: operands are to be named.
    let block = [
        (node("aten.mul.Tensor", &[this("AT"), ("other", json!({"as_float": 1.01}))], &["V0"]), &wide),
        (node("aten.view.default", &[this("V0"), ("size", json!({"as_ints": [24]}))], &["V1"]), &flat),
        (node("aten.slice.Tensor", &bounds, &["V2"]), &row),
        (node("aten.add_.Tensor", &[this("V2"), ("other", json!({"as_float": 0.5}))], &["V3"]), &row),
        (node("aten.add.Tensor", &[this("V0"), ("other", tensor("AT"))], &["V4"]), &wide),
    ]
    .map(|(n, m)| (n.to_string().replace("\"A\"", "\"V1\""), m.to_string()));
    let (mut list, mut values, mut at) = (String::new(), String::new(), "x".to_string());
    for i in 0..nodes / block.len() {
        for (k, (n, m)) in block.iter().enumerate() {
            let n = n.replace("\"AT\"", &format!("\"{at}\"")).replace("\"V", &format!("\"v{i}_"));
            list.push_str(if list.is_empty() { "" } else { "," });
            list.push_str(&n);
            values.push_str(&format!("\"v{i}_{k}\":{m},"));
        }
        at = format!("v{i}_4");
    }
    let text = model(&["x"], vec![], &[("x", wide)], &[&at]).to_string();
    let text = text.replacen("\"nodes\":[]", &format!("\"nodes\":[{list}]"), 1);
    let text = text.replacen("\"tensor_values\":{", &format!("\"tensor_values\":{{{values}"), 1);
    let mut pt2 = Pt2::new(&Value::Null);
    pt2.set("models/model.json", text);
    pt2.bytes()
}

fn time(nodes: usize) -> (Duration, usize) {
    let bytes = chain(nodes);
    let start = Instant::now();
    let program = Program::from_bytes(bytes).unwrap();
    let imported = program.bind(&Dims::new(), Registry::standard()).unwrap();
    (start.elapsed(), imported.graph.nodes.len())
}

#[test]
fn fifty_thousand_nodes_import_in_near_linear_time() {
    let (small, _) = time(5_000);
    let (large, nodes) = time(50_000);
    println!("5,000 nodes: {small:?}; 50,000 nodes: {large:?}, {nodes} in the graph");
    assert!(nodes >= 50_000);
    // Ten times the nodes: a quadratic step anywhere would cost a hundredfold.
    assert!(large < small * 40 + Duration::from_secs(1), "{small:?} for 5,000 nodes, {large:?} for 50,000");
}
