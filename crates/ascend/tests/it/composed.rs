//! Operators that are sequences of kernels, on simulated chips: orders, counts, quotients, running sums,
//! groups of rows, segments, resampled images and recurrent layers. Beside their own cases there are larger
//! ones, whose rows are cut.

use headwater_ascend::device::AscendSim;
use headwater_core::DType::{BF16, F16, F32, F64, I32, I64};
use headwater_core::conformance::{Truth, graph_of, numbers};
use headwater_core::device::Device;
use headwater_core::evaluate::evaluate;
use headwater_core::ops::{Case, OpDef, Sample};
use headwater_core::plan::Bindings;
use headwater_core::{DType, Registry, Tensor, pass, reference};

/// An operator with cases of its own, and others.
fn with(name: &str, more: fn() -> Vec<Case>) -> (&'static OpDef, Vec<Case>) {
    let all = Registry::standard().operators();
    let op = all.into_iter().find(|op| op.name == name).unwrap();
    (op, (op.cases)().into_iter().chain(more()).collect())
}

fn values(all: impl IntoIterator<Item = f64>) -> Sample {
    Sample::Values(all.into_iter().collect())
}

/// 32-bit integers, some of them twice, and whose sums need more.
fn wide(count: usize) -> Sample {
    values((0..count).map(|i| (i * 7 % 23) as f64 * 1.8e8 - 2e9 + (i % 3) as f64))
}

fn orders() -> Vec<(&'static OpDef, Vec<Case>)> {
    vec![
        with("sort", || {
            let case = |name, shape: &[usize]| Case::new(name).distinct(shape).attr("descending", false);
            vec![
                case("long", &[3, 300]).attr("dim", -1),
                case("first", &[70, 6]).attr("dim", 0),
                Case::new("integers").index(&[2, 90], 7).attr("dim", 1).attr("descending", true),
                Case::new("wide integers")
                    .arg(I64, &[200], wide(200))
                    .attr("dim", 0)
                    .attr("descending", false),
                Case::new("words")
                    .arg(I32, &[150], values((0..150).map(|i| f64::from(i * i % 37 - 18) * 1e8)))
                    .attr("dim", 0)
                    .attr("descending", true),
            ]
        }),
        with("topk", || {
            let case = |name| Case::new(name).distinct(&[20, 70]).attr("sorted", true);
            vec![
                case("rows").attr("k", 8).attr("dim", -1).attr("largest", true),
                case("columns").attr("k", 3).attr("dim", 0).attr("largest", false),
            ]
        }),
        with("histc", || {
            vec![Case::new("many").f(&[1000]).attr("bins", 70).attr("min", -1.5).attr("max", 1.75)]
        }),
        with("searchsorted", || {
            let edges = values((0..90).map(|i| f64::from(i) / 30.0 - 1.5));
            let case = |name| Case::new(name).arg(F64, &[90], edges.clone()).f(&[7, 50]);
            vec![case("many").attr("out_int32", true).attr("right", true)]
        }),
    ]
}

/// Quotients and remainders of numbers up to the ends of 32 bits by constants of both signs.
fn quotients() -> Vec<(&'static OpDef, Vec<Case>)> {
    let ends = [i32::MIN, i32::MIN + 1, -1, 0, 1, i32::MAX - 1, i32::MAX].map(f64::from);
    let numbers = ends.into_iter().chain((-150..150).map(|i| f64::from(i * i * i * 613 + i)));
    let numbers: Vec<f64> = numbers.collect();
    let case = |name, other: i64| {
        let count = numbers.len();
        Case::new(name).arg(I32, &[count], Sample::Values(numbers.clone())).attr("other", other)
    };
    let cases = || {
        vec![
            case("by two", 2),
            case("by minus three", -3),
            case("by many", 1023),
            case("by minus many", -510_511),
            case("by one", 1),
        ]
    };
    let truncated = || cases().into_iter().map(|case| case.attr("rounding_mode", "trunc")).collect();
    let operator = |name| with(name, Vec::new).0;
    vec![
        (operator("floor_divide"), cases()),
        (operator("remainder"), cases()),
        (operator("fmod"), cases()),
        (operator("div"), truncated()),
    ]
}

fn scans() -> Vec<(&'static OpDef, Vec<Case>)> {
    vec![
        with("cumsum", || {
            vec![
                Case::new("rows").f(&[5, 300]).attr("dim", 1),
                Case::new("long rows").f(&[2, 1500]).attr("dim", 1).attr("reverse", true),
                Case::new("columns").f(&[70, 9]).attr("dim", 0).attr("reverse", true),
                Case::new("long columns").f(&[1100, 3]).attr("dim", 0),
                Case::new("many integers").index(&[4, 200], 1000).attr("dim", 1).attr("dtype", I32),
                Case::new("columns of integers").index(&[50, 3], 1 << 30).attr("dim", 0),
                Case::new("wide integers")
                    .arg(I64, &[2, 300], wide(600))
                    .attr("dim", 1)
                    .attr("reverse", true),
                Case::new("floats as integers")
                    .range(&[3, 64], -90.0, 900.0)
                    .attr("dim", 1)
                    .attr("dtype", I32),
                Case::new("truths").mask(&[3, 100]).attr("dim", 1),
            ]
        }),
        with("cumprod", || vec![Case::new("rows").range(&[3, 40], 0.8, 1.25).attr("dim", 1)]),
    ]
}

fn groups() -> Vec<(&'static OpDef, Vec<Case>)> {
    vec![with("_grouped_mm", || {
        let case = |name, [rows, k, n]: [usize; 3], offs: &[f64]| {
            let groups = offs.len();
            let case = Case::new(name).f(&[rows, k]).f(&[groups, k, n]);
            case.arg(I32, &[groups], values(offs.to_vec()))
        };
        vec![
            case("several tiles", [300, 70, 150], &[0.0, 130.0, 131.0, 290.0, 300.0]),
            case("wide", [40, 24, 300], &[7.0, 7.0, 39.0]),
            case("one group", [33, 300, 20], &[33.0]),
            case("most rows left over", [50, 16, 32], &[1.0, 2.0]),
        ]
    })]
}

fn segments() -> Vec<(&'static OpDef, Vec<Case>)> {
    const ENDS: [i64; 6] = [100, 100, 5000, 5003, 5064, 5129];
    vec![
        with("segment_sum_pair", || vec![Case::new("many").range(&[5129], 0.0, 1.0).attr("ends", ENDS)]),
        with("segment_spread", || vec![Case::new("many").f(&[6]).attr("ends", ENDS)]),
    ]
}

fn images() -> Vec<(&'static OpDef, Vec<Case>)> {
    vec![
        with("im2col", Vec::new),
        with("col2im", Vec::new),
        with("upsample2d", || {
            let case =
                |name, shape: &[usize], size: [i64; 2]| Case::new(name).f(shape).attr("output_size", size);
            vec![
                case("twice", &[2, 3, 16, 20], [32, 40]).attr("mode", "nearest"),
                case("rows alone", &[1, 2, 9, 20], [18, 20]).attr("mode", "bilinear"),
                case("larger", &[1, 2, 12, 17], [25, 40]).attr("mode", "bilinear"),
                case("smaller", &[2, 24, 17], [7, 9]).attr("mode", "nearest"),
            ]
        }),
    ]
}

fn bits(all: &[Tensor]) -> Vec<Vec<u8>> {
    all.iter().map(|t| t.to_bytes()).collect()
}

/// Cases conform on both chips in checked mode, without a finding, and fast runs on other numbers of cores
/// give the same bits. Steps are kernels, but for what `host` names.
fn conform(operators: &[(&'static OpDef, Vec<Case>)], host: fn(&str, DType, [&str; 2]) -> bool) {
    let chips: [(&str, [&str; 2], &[DType]); 2] =
        [("910b1", ["910b1", "910b3"], &[F32, F16, BF16]), ("310p", ["310p", "310p"], &[F32, F16])];
    for (chip, others, dtypes) in chips {
        let checked = AscendSim::from_name(&format!("{chip},checked"), 1).unwrap();
        let fast = others.map(|name| AscendSim::from_name(name, 2).unwrap());
        let mut wrong = Vec::new();
        for (op, case) in operators.iter().flat_map(|(op, cases)| cases.iter().map(move |case| (*op, case))) {
            let exact = graph_of(op, case, F64).unwrap();
            for &dtype in dtypes {
                let name = format!("{} ({}) in {dtype} on {chip}", op.name, case.name);
                let graph = graph_of(op, case, dtype).unwrap();
                let plan = pass::plan(&graph, &Bindings::simple(&graph), checked.target()).unwrap();
                let hosted = checked.survey(&plan).into_iter().find_map(|used| used.host);
                assert_eq!(hosted.is_some(), host(chip, dtype, [op.name, case.name]), "{name}: {hosted:?}");
                let inputs = numbers(&graph, case);
                let truth = Truth::new(&graph, &exact, &inputs, checked.target()).unwrap();
                let got = evaluate(&checked, &graph, &inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
                truth.judge(&name, &got, &mut wrong);
                for other in &fast {
                    let again = evaluate(other, &graph, &inputs).unwrap();
                    assert!(bits(&got) == bits(&again), "{name}: {} gives other bits", other.target().name);
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn orders_and_counts_conform() {
    conform(&orders(), |_, _, case| [["histc", "of the data"], ["searchsorted", "right"]].contains(&case));
}

#[test]
fn quotients_of_integers_conform() {
    conform(&quotients(), |_, _, _| false);
}

#[test]
fn running_sums_and_products_conform() {
    conform(&scans(), |_, _, case| case == ["cumprod", "ints"]);
}

#[test]
fn products_of_groups_conform() {
    conform(&groups(), |chip, dtype, _| chip == "310p" && dtype == F32);
}

fn scatters() -> Vec<(&'static OpDef, Vec<Case>)> {
    vec![with("scatter", || {
        let case = |name, reduce: &'static str, own: bool| {
            let index = values((0..1400).map(|i| f64::from(i * i % 29)));
            let case = Case::new(name).distinct(&[20, 30]).arg(I64, &[20, 70], index).distinct(&[20, 70]);
            case.attr("dim", 1).attr("reduce", reduce).attr("include_self", own)
        };
        vec![
            case("largest", "amax", true),
            case("smallest of the new", "amin", false),
            case("sums of the new", "sum", false),
            case("means", "mean", true),
            case("means of the new", "mean", false),
        ]
    })]
}

#[test]
fn scatters_conform() {
    conform(&scatters(), |_, _, _| false);
}

/// Layers of so many gates and states.
fn longer(gates: usize, states: usize) -> Vec<Case> {
    let case = |name, [first, second, h]: [usize; 3], batch: usize| {
        let wide = gates * h;
        let c = Case::new(name).f(&[first, second, wide]).f(&[wide, h]).f(&[wide]);
        (0..states).fold(c, |c, _| c.f(&[batch, h]))
    };
    vec![
        case("longer", [7, 5, 24], 5),
        case("longer, backwards", [3, 6, 16], 3).attr("batch_first", true).attr("reverse", true),
    ]
}

fn layers() -> Vec<(&'static OpDef, Vec<Case>)> {
    vec![
        with("lstm_layer", || longer(4, 2)),
        with("lstm_layer_backward", Vec::new),
        with("gru_layer", || longer(3, 1)),
        with("gru_layer_backward", Vec::new),
        with("rnn_layer", || longer(1, 1)),
        with("rnn_layer_backward", Vec::new),
    ]
}

#[test]
fn recurrent_layers_conform() {
    conform(&layers(), |_, _, [_, case]| case == "no samples");
}

/// Rows of whole blocks, which 310P writes as well.
fn tables() -> Vec<(&'static OpDef, Vec<Case>)> {
    const NUMBERS: fn() -> Sample =
        || values((0..300).map(|i| if i < 270 { f64::from(i * 3) } else { -1.0 }));
    vec![
        (with("gather_rows", Vec::new).0, vec![Case::new("many").f(&[900, 48]).arg(I64, &[300], NUMBERS())]),
        (
            with("update_rows", Vec::new).0,
            vec![Case::new("many").f(&[900, 48]).arg(I64, &[300], NUMBERS()).f(&[300, 48])],
        ),
    ]
}

#[test]
fn rows_of_tables_conform() {
    conform(&tables(), |_, _, _| false);
}

#[test]
fn segments_conform() {
    conform(&segments(), |_, _, _| false);
}

#[test]
fn resampled_images_conform() {
    conform(&images(), |_, _, _| false);
}

#[test]
fn orders_are_exact_and_nan_is_largest() {
    let n = f64::NAN;
    let row = [2.0, n, -1.0, f64::INFINITY, 2.0, n, f64::NEG_INFINITY, -0.0, 0.0, -1.0];
    let (sort, _) = with("sort", Vec::new);
    for descending in [false, true] {
        let case = Case::new("all kinds").arg(F64, &[10], values(row)).constant();
        let case = case.attr("dim", 0).attr("descending", descending);
        let graph = graph_of(sort, &case, F32).unwrap();
        let inputs = numbers(&graph, &case);
        let want = reference::run(&graph, &inputs).unwrap();
        for chip in ["910b1,checked", "310p,checked"] {
            let device = AscendSim::from_name(chip, 1).unwrap();
            let got = evaluate(&device, &graph, &inputs).unwrap();
            assert_eq!(got[1], want[1], "{chip}, descending {descending}");
            let same = |(g, w): (&f64, &f64)| g == w || g.is_nan() && w.is_nan();
            let same = got[0].floats().iter().zip(want[0].floats()).all(same);
            assert!(same, "{:?} is not {:?} on {chip}", got[0].floats(), want[0].floats());
        }
    }
}

#[test]
fn offsets_that_fall_or_lie_outside_are_refused() {
    let (op, _) = with("_grouped_mm", Vec::new);
    for (dtype, offs) in [
        (I32, [3.0, 2.0, 6.0]),
        (I32, [1.0, 2.0, 7.0]),
        (I64, [-1.0, 2.0, 6.0]),
        (I64, [1.0, 2.0, 8589934593.0]),
    ] {
        let case = Case::new("wrong").f(&[6, 16]).f(&[3, 16, 16]).arg(dtype, &[3], values(offs));
        let graph = graph_of(op, &case, F16).unwrap();
        let inputs = numbers(&graph, &case);
        let want = reference::run(&graph, &inputs).unwrap_err();
        for chip in ["910b1,checked", "310p,checked"] {
            let device = AscendSim::from_name(chip, 1).unwrap();
            let found = evaluate(&device, &graph, &inputs).unwrap_err();
            assert_eq!(found.code, want.code, "{offs:?} on {chip}: {found}");
        }
    }
}
