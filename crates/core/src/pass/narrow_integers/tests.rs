//! Programs in 32 bits against the same in 64, and what is refused.

use super::program::narrow;
use super::*;
use crate::expr::{Binary, Expr, Unary, float, input};
use crate::graph::{Builder, OutputRole};
use crate::ops::create::arange::ARANGE;
use crate::ops::index::scatter::SCATTER;
use crate::ops::pointwise::{add::ADD, compare::EQ, where_self::WHERE};
use crate::ops::reduce::sum::SUM;
use crate::reference::{self, rows};
use crate::row::RowProgram;
use crate::tensor::Tensor;
use proptest::prelude::*;

const ONE: &[usize] = &[1];

fn program(e: Expr, out: DType) -> RowProgram {
    RowProgram::pointwise(&[(DType::I64, ONE), (DType::I64, ONE)], ONE, &[out], &[e])
}

/// One integer of two.
fn run(p: &RowProgram, x: i64, y: i64, out: DType) -> i64 {
    let t = |x| Tensor::int(DType::I64, [1usize], vec![x]);
    let (x, y) = (t(x), t(y));
    rows::run(p, &[&x, &y], &[TensorType::new(out, [1usize])]).unwrap()[0].ints()[0]
}

/// Integer expressions of two inputs.
fn expression() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![(0..2usize).prop_map(input), (-9..100_000i64).prop_map(Expr::Int)];
    leaf.prop_recursive(4, 16, 3, |inner| {
        use Binary::*;
        let op = prop::sample::select(vec![Add, Sub, Mul, Div, FloorDiv, Rem, Fmod, Pow, Min, Max, And, Or, Xor]);
        let un = prop::sample::select(vec![Unary::Neg, Unary::Abs, Unary::Sign, Unary::Not]);
        let to = prop::sample::select(vec![DType::I8, DType::U8, DType::I16, DType::I32, DType::I64]);
        prop_oneof![
            3 => (op, inner.clone(), inner.clone()).prop_map(|(op, a, b)| Expr::Binary(op, a.into(), b.into())),
            1 => (un, inner.clone()).prop_map(|(op, a)| Expr::Unary(op, a.into())),
            1 => (to, inner.clone()).prop_map(|(to, a)| a.cast(to)),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| a.clone().lt(b.clone()).select(c, a)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// A program that is narrowed computes the same and passes as one of 32 bits, whatever the ranges of its
    /// operands. Its result is in the range found.
    #[test]
    fn what_is_narrowed_computes_the_same(
        e in expression(), x in -70_000..70_000i64, y in prop_oneof![-9..9i64, any::<i32>().prop_map(i64::from)],
        wide in any::<bool>(), out in prop::sample::select(vec![DType::I32, DType::I64]),
    ) {
        let p = program(e, out);
        let of = |x: i64| if wide { Range::WORD } else { Range::new(x.min(0) as i128, x.max(0) as i128) };
        if let Ok((narrowed, ranges)) = narrow(&p, &[of(x), of(y)]) {
            prop_assert!(!narrowed.computes_in_i64(), "{narrowed}");
            let want = run(&p, x, y, out);
            prop_assert_eq!(run(&narrowed, x, y, out), want, "{}", narrowed);
            prop_assert!(ranges[0].low <= want as i128 && want as i128 <= ranges[0].high);
        }
    }
}

#[test]
fn what_ranges_do_not_prove_is_refused() {
    let word = [Range::WORD; 2];
    let small = [Range::below(1000); 2];
    let refused = |e: Expr, out, ranges| narrow(&program(e, out), ranges).unwrap_err().message;
    assert!(narrow(&program(input(0) + input(1), DType::I64), &small).is_ok());
    assert!(narrow(&program(input(0) + input(1), DType::I32), &word).is_ok(), "the low word of a sum");
    let sum = refused(input(0) + input(1), DType::I64, &word);
    assert_eq!(sum, "a result of integers that may need more than 32 bits");
    let sum = (input(0) + input(1)).lt(input(0)).select(input(0), input(1));
    assert_eq!(refused(sum, DType::I64, &word), "Lt of integers that may need more than 32 bits");
    let e = (input(0) * input(1)).cast(DType::F32).gt(float(1.0)).select(input(0), input(1));
    assert!(narrow(&program(e.clone(), DType::I64), &small).is_ok());
    assert_eq!(
        refused(e, DType::I64, &word),
        "conversion to f32 of integers that may need more than 32 bits"
    );
}

/// Labels, positions and counts, as models have them.
fn model(count: usize, classes: usize) -> Graph {
    let mut b = Builder::new();
    let ids = b.input("ids", TensorType::new(DType::I64, [count]), InputRole::User);
    let steps =
        b.input("steps", TensorType::new(DType::I64, [0usize; 0]), InputRole::Buffer { persistent: true });
    let attrs = Attrs::new().with("start", 0).with("end", classes as i64).with("dtype", DType::I64);
    let classes = b.one(&ARANGE, &[], attrs.with("step", 1)).unwrap();
    let column = b.reshape(ids, &[count, 1]).unwrap();
    let hits = b.one(&EQ, &[column, classes], Attrs::new()).unwrap();
    let chosen = b.one(&WHERE, &[hits, column], Attrs::new().with("other", 0)).unwrap();
    let counts = b.one(&SUM, &[hits], Attrs::new()).unwrap();
    let next = b.one(&ADD, &[steps], Attrs::new().with("other", 1)).unwrap();
    b.output("chosen", chosen, OutputRole::User);
    b.output("counts", counts, OutputRole::User);
    b.output("steps", next, OutputRole::Mutation(steps));
    b.finish()
}

#[test]
fn a_model_computes_the_same_integers_in_32_bits() {
    let mut target = Target::default();
    target.dtypes.arithmetic = crate::target::DTypeSet::of(&[DType::F32, DType::I32]);
    for fused in [false, true] {
        let graph = crate::pass::decompose(model(5, 3)).unwrap();
        let graph = if fused { crate::pass::fuse(graph, &target).unwrap() } else { graph };
        let narrowed = narrow_integers(graph.clone(), &target).unwrap();
        crate::graph::verify::verify(&narrowed).unwrap();
        for node in &narrowed.nodes {
            let types: Vec<TensorType> = node.outputs.iter().map(|&v| narrowed.ty(v).clone()).collect();
            let support = target.support(node.op, &narrowed.cx(node), &types);
            assert_eq!(support, crate::target::Support::Native, "{}", node.op.name);
        }
        let inputs = [
            Tensor::int(DType::I64, [5], vec![0, 2, -100, 1, i32::MAX as i64]),
            Tensor::int(DType::I64, [0usize; 0], vec![7]),
        ];
        assert_eq!(reference::run(&narrowed, &inputs).unwrap(), reference::run(&graph, &inputs).unwrap());
        assert_ne!(narrowed.to_string(), graph.to_string(), "nothing was narrowed");
    }
    let wide = model(5, 3);
    let same = narrow_integers(wide.clone(), &Target::default()).unwrap();
    assert_eq!(same.to_string(), wide.to_string());
}

#[test]
fn kernels_that_add_up_are_not_bounded_by_their_operands() {
    let scattered = |reduce: Option<&str>| {
        let mut b = Builder::new();
        let ids = b.input("ids", TensorType::new(DType::I64, [4]), InputRole::User);
        let attrs = Attrs::new().with("dim", 0);
        let attrs = reduce.map_or(attrs.clone(), |r| attrs.with("reduce", r));
        let out = b.one(&SCATTER, &[ids, ids, ids], attrs).unwrap();
        b.output("out", out, OutputRole::User);
        let graph = b.finish();
        range::of_node(&graph, &graph.nodes[0], &vec![Range::below(4); graph.values.len()])[0]
    };
    assert_eq!(scattered(None), Range::below(4));
    assert_eq!(scattered(Some("add")), Range::ALL);
}

#[test]
fn the_host_checks_what_is_assumed() {
    let ty = TensorType::new(DType::I64, [2]);
    let bytes = |x: i64| Tensor::int(DType::I64, [2], vec![3, x]).to_bytes();
    let buffer = InputRole::Buffer { persistent: true };
    assert!(check_words("ids", &InputRole::User, &ty, &bytes(i32::MIN as i64)).is_ok());
    assert!(check_words("seed", &InputRole::Rng, &ty, &bytes(i64::MIN)).is_ok());
    let message = check_words("ids", &InputRole::User, &ty, &bytes(1 << 31)).unwrap_err().message;
    assert!(message.starts_with("ids has 2147483648 at element 1"), "{message}");
    assert!(check_words("steps", &buffer, &ty, &bytes(BUFFER_LIMIT)).is_ok());
    assert!(check_words("steps", &buffer, &ty, &bytes(BUFFER_LIMIT + 1)).is_err());
}
