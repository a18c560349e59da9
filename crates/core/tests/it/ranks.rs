//! Rule V14 and the order of collectives: graphs whose ranks would diverge are refused, each by line.

use headwater_core::compile::{CompiledGraph, Options, compile};
use headwater_core::graph::verify::Rule;
use headwater_core::graph::{Graph, InputRole, OutputRole, parse};
use headwater_core::ops::collective::is_collective;
use headwater_core::ops::pointwise::gelu::GELU;
use headwater_core::pass::check_plan;
use headwater_core::ranks::Mesh;
use headwater_core::target::Target;
use headwater_core::train::states::{self, Declared, State, on_ranks};
use headwater_core::train::{self, BucketLayout, BucketSize};
use headwater_core::{Builder, Code, DType, Error, Registry, TensorType};

const TWO: &str = r#"axis="data", ranks=2"#;

/// A graph with something of each role. `$` in the nodes stands for the attributes of a collective of two
/// ranks.
fn graph(nodes: &str, outputs: &str) -> Graph {
    let origins: String = (1..10)
        .map(|i| format!("@{i} = \"node{i}\" module \"layer{i}\" file \"model.py\" line {i}\n"))
        .collect();
    let text = format!(
        "headwater graph 1\n\
         %0 = parameter \"w\" : f32[4]\n\
         %1 = user \"x\" : f32[4]\n\
         %2 = buffer \"mean\" : f32[4]\n\
         %3 = state \"exp_avg/0\" : f32[2]\n\
         %4 = rng \"rng\" : i64[2]\n\
         %5 = state \"gradient.w\" : f32[4]\n\
         %6 = parameter \"half\" : f32[2]\n\
         \nforward\n{}\n\n{outputs}\n\n@0 = \"\"\n{origins}",
        nodes.replace('$', TWO)
    );
    parse(&text, Registry::standard()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

const KEPT: Declared = Declared {
    split: &["exp_avg/0"],
    key: State::Own,
    sums: State::Own,
    gradients: State::Same,
    results: State::Same,
};

#[test]
fn graphs_whose_ranks_would_drift_apart_are_refused_by_line() {
    let summed = "%7 = mul(%1, %0) : f32[4]  @1\n%8 = all_reduce(%7, $) : f32[4]  @2\n";
    let part = "%7 = mul(%1, %0) : f32[4]  @1\n%8 = reduce_scatter(%7, $) : f32[2]  @2\n";
    let of_w = "output \"gradient.w\" = %8 gradient of %0";
    let cases: &[(&str, String, &str, &str, usize)] = &[
        ("a loss of one rank", "%7 = sum(%1) : f32[]  @1".into(), "output \"loss\" = %7", "for the run's", 1),
        (
            "a gradient that is not summed",
            "%7 = mul(%1, %0) : f32[4]  @1".into(),
            "output \"g\" = %7 gradient of %0",
            "gradient",
            1,
        ),
        (
            "a buffer of one rank's batch",
            "%7 = mul(%1, %2) : f32[4]  @3".into(),
            "output \"mean\" = %7 mutation of %2",
            "a buffer",
            3,
        ),
        (
            "a buffer of one rank's random numbers",
            "%7 = philox_uniform(%4, size=[4], dtype=f32, stream=0) : f32[4]  @2".into(),
            "output \"mean\" = %7 mutation of %2",
            "a buffer",
            2,
        ),
        (
            "a parameter of one rank's batch",
            "%7 = sub(%0, %1) : f32[4]  @4".into(),
            "output \"w\" = %7 mutation of %0",
            "a parameter",
            4,
        ),
        (
            "a sum of gradients, given as the run's",
            "%7 = add(%5, %1) : f32[4]  @1".into(),
            "output \"gradient.w\" = %7 mutation of %5",
            "is a sum",
            1,
        ),
        (
            "summed twice",
            format!("{summed}%9 = all_reduce(%8, $) : f32[4]  @3"),
            "output \"g\" = %9 gradient of %0",
            "summed twice",
            3,
        ),
        (
            "a parameter summed",
            "%7 = all_reduce(%0, $) : f32[4]  @3".into(),
            "output \"w\" = %7 mutation of %0",
            "summed twice",
            3,
        ),
        (
            "what is made of parameters alone summed",
            "%7 = mul(%0, %0) : f32[4]  @1\n%8 = all_reduce(%7, $) : f32[4]  @2".into(),
            of_w,
            "summed twice",
            2,
        ),
        ("a buffer scattered", "%7 = reduce_scatter(%2, $) : f32[2]  @5".into(), "", "summed twice", 5),
        (
            "parts summed",
            format!("{part}%9 = all_reduce(%8, $) : f32[2]  @3"),
            "output \"g\" = %9 gradient of %6",
            "parts of other elements",
            3,
        ),
        (
            "parts scattered",
            format!("{part}%9 = reduce_scatter(%8, $) : f32[1]  @6"),
            "",
            "parts of other elements",
            6,
        ),
        ("a part of what differs", "%7 = shard(%1, $) : f32[2]  @7".into(), "", "parts of no whole", 7),
        (
            "a part of a part",
            "%7 = shard(%0, $) : f32[2]  @1\n%8 = shard(%7, $) : f32[1]  @8".into(),
            "",
            "parts of no whole",
            8,
        ),
        ("a parameter gathered", "%7 = all_gather(%0, $) : f32[8]  @2".into(), "", "all of it already", 2),
        (
            "gathered twice",
            format!("{part}%9 = all_gather(%8, $) : f32[4]  @3\n%10 = all_gather(%9, $) : f32[8]  @4"),
            "",
            "all of it already",
            4,
        ),
        ("a buffer exchanged", "%7 = all_to_all(%2, $) : f32[4]  @2".into(), "", "all of it already", 2),
        (
            "a part read as the whole gradient",
            part.into(),
            "output \"g\" = %8 gradient of %6",
            "split among the ranks",
            2,
        ),
        ("a part returned", part.into(), "output \"y\" = %8", "split among the ranks", 2),
        (
            "a part kept as the whole",
            part.into(),
            "output \"half\" = %8 mutation of %6",
            "split among the ranks",
            2,
        ),
        (
            "the norm of a part",
            format!("{part}%9 = sum(%8) : f32[]  @3"),
            "output \"norm\" = %9",
            "each rank's own",
            3,
        ),
        (
            "a step by the norm of a part",
            format!("{part}%9 = sum(%8) : f32[]  @3\n%10 = mul(%6, %9) : f32[2]  @4"),
            "output \"half\" = %10 mutation of %6",
            "a parameter",
            4,
        ),
        (
            "weights of a part of the moments",
            "%7 = mul(%6, %3) : f32[2]  @5".into(),
            "output \"half\" = %7 mutation of %6",
            "split among the ranks",
            5,
        ),
        (
            "a moment in parts, written whole",
            "%7 = mul(%6, %6) : f32[2]  @5".into(),
            "output \"m\" = %7 mutation of %3",
            "kept in parts",
            5,
        ),
        (
            "a moment in parts, of one rank's batch",
            format!("{part}%9 = softmax(%8, dim=0) : f32[2]  @6"),
            "output \"m\" = %9 mutation of %3",
            "kept in parts",
            6,
        ),
        (
            "one of two factors not summed",
            format!("{summed}%9 = mul(%8, %1) : f32[4]  @9"),
            "output \"g\" = %9 gradient of %0",
            "gradient",
            9,
        ),
        (
            "not summed behind a view",
            "%7 = mul(%1, %0) : f32[4]  @1\n%8 = reshape(%7, shape=[4]) : f32[4]  @2".into(),
            of_w,
            "gradient",
            2,
        ),
        (
            "summed before, used after",
            format!("{summed}%9 = add(%8, %7) : f32[4]  @3"),
            "output \"g\" = %9 gradient of %0",
            "gradient",
            3,
        ),
        (
            "exchanged, not summed",
            "%7 = all_to_all(%1, $) : f32[4]  @3".into(),
            "output \"mean\" = %7 mutation of %2",
            "a buffer",
            3,
        ),
        (
            "a statistic of one rank",
            format!("{summed}%9 = mean(%1) : f32[]  @4\n%10 = mul(%2, %9) : f32[4]  @5"),
            "output \"g\" = %8 gradient of %0\noutput \"mean\" = %10 mutation of %2",
            "a buffer",
            5,
        ),
        (
            "two worlds in a graph",
            format!("{summed}%9 = all_gather(%7, axis=\"data\", ranks=3) : f32[12]  @6"),
            "",
            "of 3 ranks, others of this graph are of 2",
            6,
        ),
        (
            "two gradients, one of them not summed",
            format!(
                "{summed}%9 = mul(%6, %6) : f32[2]  @3\n%10 = sum(%1) : f32[]  @4\n%11 = mul(%9, %10) : f32[2]  @7"
            ),
            "output \"g\" = %8 gradient of %0\noutput \"h\" = %11 gradient of %6",
            "gradient",
            7,
        ),
    ];
    assert!(cases.len() >= 30);
    for (name, nodes, outputs, says, line) in cases {
        let graph = graph(nodes, outputs);
        headwater_core::graph::verify(&graph).unwrap_or_else(|e| panic!("{name}: {e}"));
        let e = on_ranks(&graph, &KEPT).expect_err(name);
        let text = e.to_string();
        assert_eq!(e.code, Code::Graph, "{name}: {text}");
        for part in ["HW-C006", "V14 ranks", says, &format!("layer{line}"), &format!("model.py:{line}")] {
            assert!(text.contains(part), "{name}: no `{part}` in {text}");
        }
    }
    // With an update's key, which must be the same on all ranks.
    let noise =
        "%7 = philox_uniform(%4, size=[4], dtype=f32, stream=0) : f32[4]  @2\n%8 = add(%0, %7) : f32[4]  @3";
    let rounded = graph(noise, "output \"w\" = %8 mutation of %0");
    assert!(on_ranks(&rounded, &KEPT).unwrap_err().to_string().contains("model.py:3"));
    on_ranks(&rounded, &Declared { key: State::Same, ..KEPT }).unwrap();
}

#[test]
fn graphs_whose_ranks_agree_pass() {
    let part = "%7 = mul(%1, %0) : f32[4]  @1\n%8 = reduce_scatter(%7, $) : f32[2]  @2\n";
    for (nodes, outputs) in [
        ("%7 = mul(%1, %0) : f32[4]\n%8 = all_reduce(%7, $) : f32[4]", "output \"g\" = %8 gradient of %0"),
        (&format!("{part}%9 = all_gather(%8, $) : f32[4]"), "output \"g\" = %9 gradient of %0"),
        (&format!("{part}%9 = add(%3, %8) : f32[2]"), "output \"m\" = %9 mutation of %3"),
        (&format!("{part}%9 = sum(%8) : f32[]\n%10 = all_reduce(%9, $) : f32[]"), "output \"norm\" = %10"),
        ("%7 = shard(%0, $) : f32[2]\n%8 = mul(%7, %3) : f32[2]", "output \"m\" = %8 mutation of %3"),
        ("%7 = broadcast(%1, $, root=1) : f32[4]", "output \"mean\" = %7 mutation of %2"),
        (
            "%7 = sum(%1) : f32[]\n%8 = reshape(%7, shape=[1]) : f32[1]\n%9 = all_gather(%8, $) : f32[2]",
            "output \"losses\" = %9",
        ),
        ("%7 = mul(%0, %0) : f32[4]", "output \"w\" = %7 mutation of %0"),
    ] {
        let graph = graph(nodes, outputs);
        headwater_core::graph::verify(&graph).unwrap();
        on_ranks(&graph, &KEPT).unwrap_or_else(|e| panic!("{nodes}: {e}"));
    }
    assert_eq!(
        states::states(&graph("", ""), &KEPT)[..4],
        [State::Same, State::Own, State::Same, State::Split]
    );
}

fn model() -> Graph {
    let mut b = Builder::new();
    let mut x = b.input("x", TensorType::new(DType::F32, [4, 6]), InputRole::User);
    for i in 0..4 {
        let w = b.parameter(&format!("{i}"), DType::F32, &[6, 6]);
        let h = b.matmul(x, w).unwrap();
        x = b.call(&GELU, &[h]).unwrap();
    }
    let loss = b.sum(x, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

fn step(accumulate: bool, reduce: bool) -> Result<CompiledGraph, Error> {
    let bind = |c: &CompiledGraph| {
        let parameters = c.gradients.iter().map(|g| (g.parameter.as_str(), &g.ty, 0));
        Ok::<_, Error>(train::bind(&c.graph, &BucketLayout::new(parameters, BucketSize::of(1))))
    };
    let options = Options { mesh: Mesh::data(2, 0), accumulate, reduce, ..Options::default() };
    compile(model(), &options, &Target::default(), bind)
}

#[test]
fn removing_any_one_collective_from_a_compiled_step_is_refused() {
    let own = Declared { results: State::Own, ..Declared::default() };
    for accumulate in [false, true] {
        let graph = step(accumulate, true).unwrap().graph;
        on_ranks(&graph, &own).unwrap();
        let all: Vec<usize> = (0..graph.nodes.len()).filter(|&n| is_collective(graph.nodes[n].op)).collect();
        assert_eq!(all.len(), 4);
        for n in all {
            let mut broken = graph.clone();
            let (sum, operand) = (broken.nodes[n].outputs[0], broken.nodes[n].operands().next().unwrap());
            broken.outputs.iter_mut().filter(|o| o.value == sum).for_each(|o| o.value = operand);
            let e = on_ranks(&broken, &own).unwrap_err();
            assert!(e.message.starts_with(&Rule::V14Ranks.to_string()), "{e}");
        }
        // In the program of a batch before the last, gradients are still the rank's own.
        assert_eq!(step(accumulate, false).unwrap().plan.unwrap().collectives().count(), 0);
    }
}

#[test]
fn collectives_of_an_axis_lie_on_one_stream_and_are_of_one_world() {
    let plan = step(true, true).unwrap().plan.unwrap();
    let last = plan.collectives().last().unwrap().0;
    // On a stream of its own it would be ordered with all that it uses.
    let mut broken = plan.clone();
    broken.steps[last].stream = 2;
    broken.waits.extend((0..last).map(|on| headwater_core::plan::Wait { step: last, on }));
    let e = check_plan(&broken).unwrap_err();
    assert!(e.message.contains("collectives of the axis `data`"), "{e}");
    let mut broken = plan;
    if let headwater_core::plan::Work::Kernel { attrs, .. } = &mut broken.steps[last].work {
        attrs.set("ranks", 3i64);
    }
    let e = check_plan(&broken).unwrap_err();
    assert!(e.message.contains("of 3 ranks") && e.message.contains("of 2"), "{e}");
}
