//! Operators that index, by kernels on simulated chips: indices that come twice, that are out of range, and
//! none at all.

use headwater_ascend::device::AscendSim;
use headwater_core::DType::{BF16, F16, F32, I64};
use headwater_core::conformance::{graph_of, numbers, operator};
use headwater_core::device::Device;
use headwater_core::evaluate::evaluate;
use headwater_core::ops::{Case, OpDef, Sample};
use headwater_core::plan::Bindings;
use headwater_core::{DType, Registry, pass, reference};

/// An operator with cases of its own.
fn with(name: &str, cases: fn() -> Vec<Case>) -> &'static OpDef {
    let all = Registry::standard().operators();
    let op = all.into_iter().find(|op| op.name == name).unwrap();
    Box::leak(Box::new(OpDef { cases, ..*op }))
}

/// `count` indices below `limit`, of which many come twice.
fn some(count: usize, limit: usize) -> Sample {
    Sample::Values((0..count).map(|i| (i * i % limit) as f64).collect())
}

fn operators() -> [&'static OpDef; 4] {
    [
        with("index", || {
            vec![
                Case::new("rows").f(&[37, 40]).arg(I64, &[300], some(300, 37)),
                Case::new("short rows").f(&[37, 3]).arg(I64, &[20, 30], some(600, 37)),
                Case::new("two").f(&[9, 13, 8]).arg(I64, &[70, 1], some(70, 9)).arg(I64, &[5], some(5, 13)),
                Case::new("inner").f(&[5, 13, 6]).none().arg(I64, &[70], some(70, 13)),
                Case::new("none of rows").f(&[7, 8]).arg(I64, &[0], some(0, 7)),
                Case::new("none of none").f(&[0, 8]).arg(I64, &[0], some(0, 1)),
            ]
        }),
        with("gather", || {
            vec![
                Case::new("last").f(&[20, 30]).arg(I64, &[20, 70], some(1400, 30)).attr("dim", 1),
                Case::new("first").f(&[20, 30]).arg(I64, &[90, 11], some(990, 20)).attr("dim", 0),
                Case::new("inner").f(&[3, 20, 5]).arg(I64, &[2, 33, 5], some(330, 20)).attr("dim", 1),
                Case::new("none").f(&[3, 4]).arg(I64, &[3, 0], some(0, 4)).attr("dim", 1),
            ]
        }),
        with("scatter", || {
            let add = |name| Case::new(name).f(&[20, 30]);
            vec![
                add("added")
                    .arg(I64, &[20, 70], some(1400, 30))
                    .f(&[20, 70])
                    .attr("dim", 1)
                    .attr("reduce", "add"),
                add("first")
                    .arg(I64, &[90, 11], some(990, 20))
                    .f(&[90, 11])
                    .attr("dim", 0)
                    .attr("reduce", "add"),
                add("replaced").arg(I64, &[20, 70], some(1400, 30)).f(&[20, 70]).attr("dim", 1),
                add("none").arg(I64, &[20, 0], some(0, 30)).f(&[20, 0]).attr("dim", 1).attr("reduce", "add"),
            ]
        }),
        with("_index_put_impl", || {
            let rows = |name| Case::new(name).f(&[37, 40]).arg(I64, &[300], some(300, 37)).f(&[300, 40]);
            let none = |name| Case::new(name).f(&[37, 40]).arg(I64, &[0], some(0, 37)).f(&[0, 40]);
            vec![
                rows("added").attr("accumulate", true),
                rows("replaced").attr("accumulate", false),
                Case::new("elements")
                    .f(&[50])
                    .arg(I64, &[999], some(999, 50))
                    .f(&[999])
                    .attr("accumulate", true),
                none("nothing added").attr("accumulate", true),
                none("nothing replaced").attr("accumulate", false),
            ]
        }),
    ]
}

fn devices() -> Vec<(AscendSim, &'static [DType])> {
    let on = |name| AscendSim::from_name(name, 1).unwrap();
    vec![(on("910b1,checked"), &[F32, F16, BF16]), (on("310p,checked"), &[F32, F16])]
}

#[test]
fn indices_may_come_twice_or_not_at_all() {
    for (device, dtypes) in devices() {
        for op in operators() {
            let found = operator(&device, op, dtypes);
            assert!(found.wrong.is_empty(), "{}: {}", device.target().name, found.wrong.join("\n"));
            assert!(found.refused.is_empty(), "{}: {:?}", device.target().name, found.refused);
            assert_eq!(found.ran[op.name], (op.cases)().len() * dtypes.len(), "{}", op.name);
        }
    }
}

#[test]
fn no_step_of_them_is_on_the_host() {
    for (device, dtypes) in devices() {
        for op in operators() {
            for (case, &dtype) in (op.cases)().iter().flat_map(|c| dtypes.iter().map(move |d| (c.clone(), d)))
            {
                let graph = graph_of(op, &case, dtype).unwrap();
                let plan = pass::plan(&graph, &Bindings::simple(&graph), device.target()).unwrap();
                for used in device.survey(&plan) {
                    assert_eq!(used.host, None, "{} ({}) in {dtype}", op.name, case.name);
                }
            }
        }
    }
}

#[test]
fn cores_do_not_change_bits() {
    let [a, b] = ["910b1", "910b3"].map(|name| AscendSim::from_name(name, 2).unwrap());
    for op in operators() {
        for case in (op.cases)() {
            let graph = graph_of(op, &case, F32).unwrap();
            let inputs = numbers(&graph, &case);
            let [a, b] = [&a, &b].map(|device| evaluate(device, &graph, &inputs).unwrap());
            let bytes =
                |all: Vec<headwater_core::Tensor>| all.iter().map(|t| t.to_bytes()).collect::<Vec<_>>();
            assert!(bytes(a) == bytes(b), "{} ({})", op.name, case.name);
        }
    }
}

#[test]
fn indices_out_of_range_are_refused() {
    let index = |values: &[f64]| Sample::Values(values.to_vec());
    let cases = [
        ("index", Case::new("rows").f(&[4, 8]).arg(I64, &[3], index(&[1.0, 4.0, 0.0]))),
        ("index", Case::new("from the end").f(&[4, 8]).arg(I64, &[3], index(&[-4.0, -5.0, 0.0]))),
        ("index", Case::new("inner").f(&[2, 4]).none().arg(I64, &[3], index(&[1.0, 4.0, 0.0]))),
        ("gather", Case::new("last").f(&[1, 4]).arg(I64, &[1, 3], index(&[1.0, -1.0, 0.0])).attr("dim", 1)),
        (
            "scatter",
            Case::new("added")
                .f(&[1, 4])
                .arg(I64, &[1, 3], index(&[1.0, 4.0, 0.0]))
                .f(&[1, 3])
                .attr("dim", 1)
                .attr("reduce", "add"),
        ),
        (
            "_index_put_impl",
            Case::new("put")
                .f(&[4, 8])
                .arg(I64, &[3], index(&[1.0, 4.0, 0.0]))
                .f(&[3, 8])
                .attr("accumulate", true),
        ),
    ];
    for (device, _) in devices() {
        for (name, case) in &cases {
            let graph = graph_of(with(name, Vec::new), case, F32).unwrap();
            let inputs = numbers(&graph, case);
            let want = reference::run(&graph, &inputs).unwrap_err();
            let found = evaluate(&device, &graph, &inputs).unwrap_err();
            assert_eq!(found.code, want.code, "{name} ({}): {found}", case.name);
        }
    }
}
