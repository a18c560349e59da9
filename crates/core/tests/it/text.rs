//! The text form: an exact round trip for every graph, and no panic for any text.

use crate::common::graphs_of_all_operators;
use headwater_core::expr::input;
use headwater_core::graph::{InputRole, Origin, OutputRole, Phase, parse, verify};
use headwater_core::ops::create::constant::CONSTANT;
use headwater_core::row::{Reduce, ReduceSpace};
use headwater_core::{Attrs, Builder, Code, DType, Graph, Registry, Tensor, TensorType};
use proptest::prelude::*;
use std::sync::{Arc, OnceLock};

fn round_trip(name: &str, graph: &Graph) {
    let text = graph.to_string();
    let back = parse(&text, Registry::standard()).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    // The text is exact, so that equal texts are equal attributes; Debug shows every field of the rest.
    assert_eq!(back.to_string(), text, "{name}");
    assert_eq!(format!("{back:?}"), format!("{graph:?}"), "{name}");
}

#[test]
fn every_operator_with_its_gradient_reads_back() {
    for (name, graph, _) in graphs_of_all_operators() {
        round_trip(&name, &graph);
    }
}

/// A graph with one of everything that the text form can say.
fn rich() -> Graph {
    let mut b = Builder::new();
    let aliases = vec!["lm_head.weight".to_string(), "odd \" name\n".into()];
    let w = b.input(
        "wte.weight",
        TensorType::new(DType::F32, [8, 4]),
        InputRole::Parameter { trainable: true, aliases },
    );
    let frozen = InputRole::Parameter { trainable: false, aliases: vec![] };
    b.input("frozen", TensorType::new(DType::BF16, []), frozen);
    let mean = b.input("mean", TensorType::new(DType::F32, [4]), InputRole::Buffer { persistent: true });
    b.input("ids", TensorType::new(DType::I64, [0, 3]), InputRole::Buffer { persistent: false });
    b.input("mask", TensorType::new(DType::Bool, [2]), InputRole::Constant);
    b.input("", TensorType::new(DType::U8, [1]), InputRole::User);
    b.rng();
    b.input("scale", TensorType::new(DType::F64, []), InputRole::State);
    b.at(Origin {
        node: "sum_1".into(),
        module: "a.\u{202e}b\n# %1".into(),
        class: "Über\\Class".into(),
        file: "dir with space/model.py".into(),
        line: 12,
        code: "x = \"a\\n\"  # @3\t\0".into(),
    });
    let attrs = Attrs::new().with("dim", [0]).with("keepdim", false);
    let sum = b.one(&headwater_core::ops::reduce::sum::SUM, &[w], attrs).unwrap();
    b.phase = Phase::Backward;
    b.at(Origin { node: "second".into(), ..Origin::default() });
    let floats = vec![f64::NAN, -0.0, f64::INFINITY, 5e-324, 0.1, f64::from_bits(0x7ff8_0000_0000_0001)];
    let tensor = Tensor::float(DType::F64, [2, 3], floats.clone());
    b.one(&CONSTANT, &[], Attrs::new().with("value", Arc::new(tensor))).unwrap();
    let ints = Tensor::int(DType::I8, [0], vec![]);
    b.one(&CONSTANT, &[], Attrs::new().with("value", Arc::new(ints))).unwrap();
    let space = ReduceSpace::new(&[2, 3, 4], &[1]);
    let mut rows = space.builder();
    let x = rows.read(DType::F32, space.full.clone());
    let max = rows.reduce(Reduce::Max, x);
    let y = rows.expr(&((input(0) - input(1)).exp() * f64::NAN), &[x, max]);
    rows.store(DType::F16, space.kept.clone(), max);
    rows.store(DType::F32, space.full.clone(), y);
    let mut node = b.graph().nodes[0].clone();
    node.attrs = Attrs::new()
        .with("dim", Vec::<i64>::new())
        .with("end", i64::MIN)
        .with("other", -f64::NAN)
        .with("alpha", 1e300)
        .with("approximate", "tanh \"quoted\" \u{7f}")
        .with("dtype", DType::F16)
        .with("keepdim", true)
        .with("size", vec![1i64, -2])
        .with("step", Vec::<f64>::new())
        .with("shape", floats)
        .with("program", Arc::new(rows.finish()));
    node.inputs = vec![None, Some(w), None];
    node.phase = Phase::Update;
    node.outputs = vec![];
    b.graph_mut().nodes.push(node);
    b.output("loss", sum, OutputRole::User);
    b.output("mean", sum, OutputRole::Mutation(mean));
    b.output("grad", w, OutputRole::Gradient(w));
    b.finish()
}

/// Attribute names that the schemas above do not have would not read back.
fn registry() -> &'static Registry {
    Registry::standard()
}

#[test]
fn every_part_reads_back() {
    let graph = rich();
    let names = graph.nodes.iter().flat_map(|n| n.attrs.iter()).map(|(n, _)| n);
    let unknown: Vec<_> = names.filter(|n| registry().attr_name(n).is_none()).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    round_trip("rich", &graph);
}

#[test]
fn the_text_is_what_people_read() {
    let mut b = Builder::new();
    let w = b.parameter("fc.weight", DType::F32, &[4, 3]);
    let x = b.input("x", TensorType::new(DType::F32, [2, 3]), InputRole::User);
    b.at(Origin { node: "linear".into(), module: "fc".into(), ..Origin::default() });
    let wt = b.transpose_last(w).unwrap();
    let y = b.matmul(x, wt).unwrap();
    b.output("y", y, OutputRole::User);
    let want = r#"headwater graph 1

%0 = parameter "fc.weight" : f32[4, 3]
%1 = user "x" : f32[2, 3]

forward
%2 = permute(%0, dims=[1, 0]) : f32[3, 4]  @1  # fc
%3 = matmul(%1, %2) : f32[2, 4]  @1  # fc

output "y" = %3

@0 = ""
@1 = "linear" module "fc"
"#;
    assert_eq!(b.finish().to_string(), want);
}

#[test]
fn errors_name_line_and_column() {
    let cases = [
        ("", "line 1, column 1: expected `headwater graph 1`, found the end of the line"),
        ("headwater graph 1 x", "line 1, column 19: expected the end of the line, found `x`"),
        (
            "headwater graph 1\n%0 = user \"x\" : f33[2]",
            "line 2, column 17: expected a dtype such as f32, found `f33`",
        ),
        (
            "headwater graph 1\n\n%0 = nothing(%1)",
            "line 3, column 6: expected a known operator, found `nothing`",
        ),
        (
            "headwater graph 1\n_ = matmul(%0, %7)\n%0 = user \"é\" : f32[]",
            "line 2, column 16: %7 is not defined",
        ),
        (
            "headwater graph 1\n%0 = user \"é\" : f32[] @",
            "line 2, column 23: expected the end of the line, found `@`",
        ),
        ("headwater graph 1\n%1 = user \"x\" : f32[]", "%0 is not defined: numbers have no gaps"),
        (
            "headwater graph 1\n%0 = user \"x\" : f32[]\n%0 = user \"y\" : f32[]",
            "line 3, column 1: %0 is defined twice",
        ),
        (
            "headwater graph 1\n_ = to(, dtype=f32, dtype=f32)",
            "line 2, column 8: expected a word, found `, dtype=f32, dtype=f`",
        ),
        (
            "headwater graph 1\n_ = to(dtype=f32, dtype=f32)",
            "line 2, column 19: expected each attribute once, found `dtype`",
        ),
        (
            "headwater graph 1\n%0 = constant(value=f16[1]{0.1}) : f16[1]",
            "line 2, column 32: expected 1 numbers that f16 holds before this, found `) : f16[1]`",
        ),
        (
            "headwater graph 1\n%0 = user \"x",
            "line 2, column 13: expected the string's closing quote, found the end of the line",
        ),
    ];
    for (text, want) in cases {
        let e = parse(text, registry()).expect_err(text);
        assert_eq!((e.code, e.message.as_str()), (Code::Parse, want), "{text}");
    }
}

/// Texts to spoil.
fn corpus() -> &'static [String] {
    static CORPUS: OnceLock<Vec<String>> = OnceLock::new();
    CORPUS.get_or_init(|| {
        let mut all: Vec<String> = graphs_of_all_operators().iter().map(|(_, g, _)| g.to_string()).collect();
        all.push(rich().to_string());
        all
    })
}

/// Pieces that may occur anywhere in a text.
const PIECES: &[&str] = &[
    "%0",
    "%99",
    "_",
    "[]",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ",",
    "=",
    ":",
    "@0",
    "\"",
    "\\",
    "\n",
    "#",
    "f16",
    "i64[2]",
    "-1",
    "0",
    "1",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e400",
    "NaN",
    "é",
    "rows",
    "true",
    "dim=3",
    "floats[]",
];

fn survives(text: &str) {
    if let Ok(graph) = parse(text, registry()) {
        // A text that parses prints, verifies (with whatever verdict), and parses again to the same text.
        let _ = verify(&graph);
        let text = graph.to_string();
        assert_eq!(parse(&text, registry()).unwrap().to_string(), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(text in "(headwater graph 1\n)?(\\PC|\n){0,200}") {
        survives(&text);
    }

    #[test]
    fn no_spoiled_graph_panics(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, any::<prop::sample::Index>()), 1..4),
    ) {
        let mut text = which.get(corpus()).clone();
        for (at, remove, piece) in edits {
            let mut start = at.index(text.len());
            while !text.is_char_boundary(start) { start -= 1 }
            let mut end = (start + remove).min(text.len());
            while !text.is_char_boundary(end) { end += 1 }
            let piece: &&str = piece.get(PIECES);
            text.replace_range(start..end, piece);
        }
        survives(&text);
    }
}
