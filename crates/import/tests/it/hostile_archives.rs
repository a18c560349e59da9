//! Archives with false claims: each is refused with its code, none is read beyond what it justifies.

use crate::support::*;
use headwater_core::Registry;
use headwater_import::{Dims, Program};
use serde_json::json;

fn code(bytes: Vec<u8>) -> &'static str {
    match Program::from_bytes(bytes) {
        Ok(_) => "opened",
        Err(e) => {
            assert!(e.to_string().starts_with(e.code()), "{e}");
            e.code()
        }
    }
}

/// The model with one change.
fn changed(change: impl FnOnce(&mut Pt2)) -> &'static str {
    let mut pt2 = Pt2::new(&relu());
    change(&mut pt2);
    code(pt2.bytes())
}

fn with_model(change: impl FnOnce(&mut serde_json::Value)) -> &'static str {
    let mut m = relu();
    change(&mut m);
    code(Pt2::new(&m).bytes())
}

#[test]
fn a_plain_archive_opens_stored_and_deflated() {
    assert_eq!(changed(|_| {}), "opened");
    assert_eq!(changed(|p| p.compression = zip::CompressionMethod::DEFLATE), "opened");
}

#[test]
fn truncated_anywhere_is_refused() {
    let whole = Pt2::new(&relu()).bytes();
    for n in 0..whole.len() {
        assert_ne!(code(whole[..n].to_vec()), "opened", "cut at {n}");
    }
}

#[test]
fn any_damaged_byte_is_refused_or_harmless() {
    let whole = Pt2::new(&relu()).bytes();
    for n in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[n] ^= flip;
            // Timestamps and similar fields may change freely; what matters is that this returns.
            code(bytes);
        }
    }
    let json = whole.windows(6).position(|w| w == b"target").unwrap();
    let mut bytes = whole;
    bytes[json] = b'T';
    assert_eq!(code(bytes), "HW-I004", "the checksum of the model's JSON is compared");
}

#[test]
fn entries_that_overlap_or_share_a_name_are_refused() {
    let bytes = Pt2::new(&relu()).bytes();
    // Make the second local header's directory entry point at the first.
    let central: Vec<usize> = (0..bytes.len() - 4).filter(|&i| bytes[i..i + 4] == *b"PK\x01\x02").collect();
    let mut overlap = bytes.clone();
    let first: [u8; 4] = overlap[central[0] + 42..central[0] + 46].try_into().unwrap();
    overlap[central[1] + 42..central[1] + 46].copy_from_slice(&first);
    assert_eq!(code(overlap), "HW-I003");

    let mut same = Pt2::new(&relu());
    same.set("aaaa", "1");
    same.set("bbbb", "2");
    let mut bytes = same.bytes();
    for i in 0..bytes.len() - 4 {
        if bytes[i..i + 4] == *b"bbbb" {
            bytes[i..i + 4].copy_from_slice(b"aaaa");
        }
    }
    assert_eq!(code(bytes), "HW-I003");
}

#[test]
fn archives_of_older_versions_are_refused_with_the_way_out() {
    // As `torch.export.save` of these versions wrote a linear layer with batch norm, the JSON deflated.
    for (file, cause) in [
        ("torch-2.1.2.pt2", "PyTorch 2.7 or older"),
        ("torch-2.7.1.pt2", "PyTorch 2.7 or older"),
        ("torch-2.8.0.pt2", "PyTorch 2.8 has"),
    ] {
        let bytes = std::fs::read(format!("tests/older/{file}")).unwrap();
        let said = Program::from_bytes(bytes).map(drop).unwrap_err().to_string();
        assert!(said.starts_with("HW-I007") && said.contains(cause), "{file}: {said}");
        assert!(said.contains("export again with PyTorch 2.13 to 2.15"), "{file}: {said}");
    }
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    for name in ["../x", "a/../../x", "./x", "a//b", "a\\b", "a\0b"] {
        assert_eq!(changed(|p| p.set(name, "")), "HW-I003", "{name}");
    }
    // Another top folder.
    let mut bytes = Pt2::new(&relu()).bytes();
    let at =
        bytes.windows(13).rposition(|w| w == b"m/byteorder\0\0" || w.starts_with(b"m/byteorder")).unwrap();
    bytes[at] = b'n';
    assert_ne!(code(bytes), "opened");
}

#[test]
fn unpacking_stops_where_the_file_does_not_justify_more() {
    let bomb = changed(|p| {
        p.compression = zip::CompressionMethod::DEFLATE;
        p.set("models/model.json", vec![b' '; 80 << 20]);
    });
    assert_eq!(bomb, "HW-I004");
    // A directory that claims a smaller size than the data has.
    let mut p = Pt2::new(&relu());
    p.compression = zip::CompressionMethod::DEFLATE;
    let mut bytes = p.bytes();
    let central = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    bytes[central + 24] ^= 1;
    assert_eq!(code(bytes), "HW-I004");
}

#[test]
fn absurd_sizes_are_refused() {
    for field in [20, 24, 42] {
        let mut bytes = Pt2::new(&relu()).bytes();
        let central = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
        bytes[central + field..central + field + 4].copy_from_slice(&[0xfe, 0xff, 0xff, 0xff]);
        assert_ne!(code(bytes), "opened", "field {field}");
    }
    // A directory that claims more entries than it has.
    let mut bytes = Pt2::new(&relu()).bytes();
    let end = bytes.len() - 22;
    bytes[end + 8..end + 12].copy_from_slice(&[0xff; 4]);
    assert_ne!(code(bytes), "opened");
}

#[test]
fn what_the_archive_says_of_itself_is_checked() {
    assert_eq!(changed(|p| p.set("byteorder", "big")), "HW-I006");
    assert_eq!(changed(|p| p.remove("byteorder")), "HW-I005");
    assert_eq!(changed(|p| p.set("archive_version", "1")), "HW-I007");
    let saved = |p: &mut Pt2| {
        p.remove("archive_format");
        p.set("data.pkl", "a pickle");
    };
    assert_eq!(changed(saved), "HW-I009", "an archive of torch.save");
    assert_eq!(changed(|p| p.remove("models/model.json")), "HW-I005");
    assert_eq!(with_model(|m| m["schema_version"]["major"] = json!(9)), "HW-I007");
    assert_eq!(with_model(|m| m["schema_version"]["minor"] = json!(99)), "opened");
}

#[test]
fn malformed_json_is_refused() {
    assert_eq!(changed(|p| p.set("models/model.json", "{")), "HW-I008");
    assert_eq!(changed(|p| p.set("models/model.json", "")), "HW-I008");
    assert_eq!(changed(|p| p.set("models/model.json", [0xff, 0xfe])), "HW-I008");
    let deep = "[".repeat(100_000);
    assert_eq!(changed(|p| p.set("models/model.json", deep.clone())), "HW-I008");
    let text = relu().to_string();
    for (from, to) in [
        (r#""as_int":2"#, r#""as_int":99999999999999999999999"#),
        (r#""as_int":2"#, r#""as_int":1e999"#),
        (r#""as_int":2"#, r#""as_whatever":2"#),
        (r#""dtype":7"#, r#""dtype":-1"#),
        (r#""x":{"#, r#""x":{},"x":{"#),
    ] {
        assert!(text.contains(from));
        assert_eq!(changed(|p| p.set("models/model.json", text.replacen(from, to, 1))), "HW-I008", "{to}");
    }
    // Duplicate metadata.
    let at = text.find(r#""tensor_values":{"#).unwrap() + 17;
    let twice = format!("{}\"y\":{},{}", &text[..at], meta(7, &[1]), &text[at..]);
    assert_eq!(changed(|p| p.set("models/model.json", twice)), "HW-I008");
    // Sub-graphs nested beyond reason.
    let mut inner = relu()["graph_module"]["graph"].clone();
    for _ in 0..40 {
        let mut outer = relu()["graph_module"]["graph"].clone();
        let arg = json!({"as_graph": {"name": "g", "graph": inner}});
        outer["nodes"][0]["inputs"].as_array_mut().unwrap().push(json!({"name": "", "arg": arg, "kind": 1}));
        inner = outer;
    }
    assert_eq!(with_model(|m| m["graph_module"]["graph"] = inner), "HW-I008");
}

#[test]
fn names_must_be_defined_once_and_before_use() {
    let graph = |m: &mut serde_json::Value| m["graph_module"]["graph"].take();
    assert_eq!(
        with_model(|m| m["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = tensor("ghost")),
        "HW-I010"
    );
    assert_eq!(
        with_model(|m| m["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = tensor("y")),
        "HW-I010"
    );
    assert_eq!(with_model(|m| m["graph_module"]["graph"]["nodes"][0]["outputs"][0] = tensor("x")), "HW-I010");
    assert_eq!(
        with_model(|m| {
            let mut g = graph(m);
            g["tensor_values"].as_object_mut().unwrap().remove("y");
            m["graph_module"]["graph"] = g;
        }),
        "HW-I010"
    );
    assert_eq!(
        with_model(|m| {
            m["graph_module"]["graph"]["outputs"] = json!([tensor("ghost")]);
            m["graph_module"]["signature"]["output_specs"] =
                json!([{"user_output": {"arg": tensor("ghost")}}]);
        }),
        "HW-I010"
    );
    // A cycle: a uses b, b uses a.
    let m = meta(7, &[2]);
    let a = node("aten.add.Tensor", &[("self", tensor("x")), ("other", tensor("b"))], &["a"]);
    let b = node("aten.relu.default", &[("self", tensor("a"))], &["b"]);
    let cycle = model(&["x"], vec![a, b], &[("x", m.clone()), ("a", m.clone()), ("b", m)], &["b"]);
    assert_eq!(code(Pt2::new(&cycle).bytes()), "HW-I010");
}

#[test]
fn the_signature_must_fit_the_graph() {
    assert_eq!(with_model(|m| m["graph_module"]["signature"]["input_specs"] = json!([])), "HW-I018");
    assert_eq!(with_model(|m| m["graph_module"]["signature"]["output_specs"] = json!([])), "HW-I018");
    assert_eq!(
        with_model(|m| m["graph_module"]["signature"]["input_specs"][0] =
            json!({"user_input": {"arg": tensor("y")}})),
        "HW-I018"
    );
    let object = json!({"custom_obj": {"arg": {"name": "x", "class_fqn": "c"}, "custom_obj_name": "o"}});
    assert_eq!(with_model(|m| m["graph_module"]["signature"]["input_specs"][0] = object), "HW-I009");
}

#[test]
fn unknown_dtypes_are_refused() {
    for dtype in [0, 14, 27, 36, u64::MAX] {
        assert_eq!(
            with_model(|m| m["graph_module"]["graph"]["tensor_values"]["x"]["dtype"] = json!(dtype)),
            "HW-I011",
            "{dtype}"
        );
    }
    for dtype in [9, 10, 11, 28, 29, 35] {
        assert_eq!(
            with_model(|m| m["graph_module"]["graph"]["tensor_values"]["x"]["dtype"] = json!(dtype)),
            "HW-I011",
            "{dtype}"
        );
    }
    assert_eq!(
        with_model(|m| m["graph_module"]["graph"]["tensor_values"]["x"]["layout"] = json!(1)),
        "HW-I011"
    );
}

#[test]
fn an_operand_that_no_operator_makes_is_refused_and_never_invented() {
    let m = meta(7, &[2, 3]);
    let assertion = node("aten._assert_tensor_metadata.default", &[("a", tensor("x"))], &["c"]);
    let relu = node("aten.relu.default", &[("self", tensor("c"))], &["y"]);
    let values = [("x", m.clone()), ("c", m.clone()), ("y", m)];
    let doc = model(&["x"], vec![assertion, relu], &values, &["y"]);
    let program = Program::from_bytes(Pt2::new(&doc).bytes()).unwrap();
    let e = program.bind(&Dims::new(), Registry::standard()).unwrap_err();
    assert_eq!(e.code(), "HW-I015", "{e}");
    assert!(e.to_string().contains("an operand of it is the result of no operator"), "{e}");
}

#[test]
fn stored_expands_of_compressed_zeros_are_bounded_together() {
    // 22 KB of file, 16 MiB of zeros, 1 GiB of elements: each step by itself is in proportion.
    let m = meta(12, &[2, 3]);
    let n = node("aten.logical_not.default", &[("self", tensor("x"))], &["y"]);
    let mut doc = model(&["x"], vec![n], &[("x", m.clone()), ("y", m)], &["y"]);
    let wide = strided(12, &[16 << 20, 64], &[1, 0], 0);
    add_state(&mut doc, "buffer", "b_mask", "mask", wide.clone());
    let mut pt2 = Pt2::new(&doc);
    pt2.compression = zip::CompressionMethod::DEFLATE;
    let payload = json!({"path_name": "weight_0", "use_pickle": false, "tensor_meta": wide});
    pt2.weights(&json!({"config": {"mask": payload}}));
    pt2.set("data/weights/weight_0", vec![0; 16 << 20]);
    let bytes = pt2.bytes();
    let size = bytes.len();
    assert!(size < 32 << 10);
    let program = Program::from_bytes(bytes).unwrap();
    let e = program.bind(&Dims::new(), Registry::standard()).unwrap_err().to_string();
    assert!(e.contains(&format!("out of proportion to the {size} that hold them")), "{e}");
}

/// The error of a model whose only operator has these arguments; `sizes` are those of its input and of each
/// result. The process may claim 4 GiB, so that whatever is made element by element or window by window ends
/// it.
fn refused(target: &str, arguments: &[(&str, serde_json::Value)], sizes: &[&[i64]]) -> String {
    #[cfg(unix)]
    limit_memory();
    let results = ["y", "indices"];
    let results = &results[..sizes.len() - 1];
    let inputs = [&[("self", tensor("x"))], arguments].concat();
    let mut values = vec![("x", meta(7, sizes[0])), ("src", meta(7, &[64]))];
    // The second result of a pooling are the indices of the largest.
    values.extend(results.iter().zip(&sizes[1..]).enumerate().map(|(i, (name, sizes))| {
        let dtype = if i == 0 { 7 } else { 5 };
        (*name, meta(dtype, sizes))
    }));
    let doc = model(&["x", "src"], vec![node(target, &inputs, results)], &values, &["y"]);
    let program = Program::from_bytes(Pt2::new(&doc).bytes()).unwrap();
    let e = program.bind(&Dims::new(), Registry::standard()).unwrap_err();
    assert_eq!(e.code(), "HW-I015", "{e}");
    e.to_string()
}

#[cfg(unix)]
fn limit_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const MOST: u64 = 4 << 30;
    let now = getrlimit(Resource::As);
    if now.current.is_none_or(|c| c > MOST) {
        setrlimit(Resource::As, Rlimit { current: Some(MOST), maximum: now.maximum }).unwrap();
    }
}

#[test]
fn operators_that_would_grow_without_end_are_refused_by_name() {
    // Each difference is a node.
    let said = refused("aten.diff.default", &[("n", json!({"as_int": 1i64 << 31}))], &[&[64], &[0]]);
    assert!(said.contains("aten.diff.default") && said.contains("HW-C009"), "{said}");
    assert!(said.contains("differences of order 2147483648"), "{said}");
    // Each window is worked out before the kernel is chosen.
    for windows in [i64::from(i32::MAX), 200_000_000] {
        let result = [1, 1, windows, 1];
        let size = json!({"as_ints": [windows, 1]});
        let said = refused(
            "aten.adaptive_max_pool2d.default",
            &[("output_size", size)],
            &[&[1, 1, 64, 1], &result, &result],
        );
        assert!(said.contains("aten.adaptive_max_pool2d.default") && said.contains("HW-C009"), "{said}");
        assert!(said.contains(&format!("{windows} windows")), "{said}");
    }
    // 2^63 bytes, which a product of sizes in 64 bits wraps around.
    let wide = [1i64 << 55, 64];
    let said = refused("aten.expand.default", &[("size", json!({"as_ints": wide}))], &[&[64], &wide]);
    assert!(said.contains("aten.expand.default") && said.contains("HW-C009"), "{said}");
    assert!(said.contains("f32[36028797018963968, 64] is larger than memory can be"), "{said}");
}

#[test]
fn a_scattered_diagonal_of_another_rank_is_refused() {
    let shape = [1, 64, 1];
    let said = refused("aten.diagonal_scatter.default", &[("src", tensor("src"))], &[&shape, &shape]);
    assert!(said.contains("aten.diagonal_scatter.default") && said.contains("HW-C001"), "{said}");
    assert!(said.contains("the diagonal of f32[1, 64, 1] is f32[1, 1], not f32[64]"), "{said}");
}
