//! Convolutions and their gradients against the reference in f64: odd geometry, several blocks and parts of
//! channels. Sums are bounded by their length and the sum of magnitudes; bits do not depend on threads.

use crate::common::run;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::conv::convolution::CONVOLUTION;
use headwater_core::pass::decompose;
use headwater_core::pass::differentiate::gradients;
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType, reference};
use headwater_cpu::{Cpu, Tier};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Geometry {
    x: Vec<usize>,
    w: Vec<usize>,
    groups: usize,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
}

/// A convolution with a bias, and a gradient of its result; gradients of its input and its weights. Of
/// operands in some dtype.
fn graph(c: &Geometry, dtype: DType) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(dtype, &c.x[..]), InputRole::User);
    let w = b.input("w", TensorType::new(dtype, &c.w[..]), InputRole::User);
    let bias = b.input("bias", TensorType::new(dtype, [c.w[0]]), InputRole::User);
    let attrs = Attrs::new()
        .with("stride", &c.stride[..])
        .with("padding", &c.padding[..])
        .with("dilation", &c.dilation[..])
        .with("transposed", false)
        .with("output_padding", vec![0i64; c.stride.len()])
        .with("groups", c.groups as i64);
    let y = b.apply(&CONVOLUTION, &[Some(x), Some(w), Some(bias)], attrs).unwrap()[0];
    let g = b.input("g", b.ty(y).clone(), InputRole::User);
    b.output("y", y, OutputRole::User);
    for (v, grad) in [x, w].iter().zip(gradients(&mut b, &[(y, g)], &[x, w]).unwrap()) {
        b.output(format!("grad.{v}"), grad.unwrap(), OutputRole::Gradient(*v));
    }
    decompose(b.finish()).unwrap()
}

/// Numbers of magnitude at most 1, most of them not short.
fn numbers(ty: &TensorType, seed: usize) -> Tensor {
    let number = |i: usize| ((i * 7919 + seed * 613) % 2003) as f64 / 1001.0 - 1.0;
    Tensor::float(DType::F64, ty.shape.clone(), (0..ty.shape.numel()).map(number).collect::<Vec<_>>())
        .cast(ty.dtype)
}

fn check(c: &Geometry, dtypes: &[DType]) {
    for &dtype in dtypes {
        let (narrow, wide) = (graph(c, dtype), graph(c, DType::F64));
        let inputs: Vec<Tensor> =
            narrow.inputs.iter().enumerate().map(|(k, i)| numbers(narrow.ty(i.value), k)).collect();
        let exact: Vec<Tensor> = inputs.iter().map(|t| t.cast(DType::F64)).collect();
        let magnitudes: Vec<Tensor> = (exact.iter())
            .map(|t| {
                let data = t.floats().iter().map(|x| x.abs()).collect::<Vec<_>>();
                Tensor::float(DType::F64, t.ty.shape.clone(), data)
            })
            .collect();
        let want = reference::run(&wide, &exact).unwrap();
        let sizes = reference::run(&wide, &magnitudes).unwrap();
        // Terms that each sums: input channels and taps, output channels and taps, samples and positions.
        let of = |n: usize| inputs[n].ty.shape.to_vec();
        let taps: usize = c.w[2..].iter().product();
        let positions: usize = of(3)[2..].iter().product();
        let terms = [c.w[1] * taps + 1, c.w[0] / c.groups * taps, c.x[0] * positions];
        // Half an ulp of what is summed, and of what is stored; half the smallest number.
        let (unit, store, least) = match dtype {
            DType::F64 => (f64::EPSILON / 2.0, f64::EPSILON / 2.0, 0.0),
            DType::BF16 => (f32::EPSILON as f64 / 2.0, 2f64.powi(-8), 0.0),
            DType::F16 => (f32::EPSILON as f64 / 2.0, 2f64.powi(-11), 2f64.powi(-25)),
            _ => (f32::EPSILON as f64 / 2.0, f32::EPSILON as f64 / 2.0, 0.0),
        };
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            let mut first: Option<Vec<Tensor>> = None;
            for threads in [1, 3] {
                let got = run(&Cpu::new(threads).with_tier(tier).unwrap(), &narrow, &inputs).unwrap();
                for (i, terms) in terms.into_iter().enumerate() {
                    for (k, ((g, w), size)) in
                        got[i].floats().iter().zip(want[i].floats()).zip(sizes[i].floats()).enumerate()
                    {
                        let bound = unit * terms as f64 * size + store * w.abs() + least;
                        assert!(
                            (g - w).abs() <= bound,
                            "{c:?} in {dtype}, {tier:?}, {threads} threads, output {i}, {k}: {g}, not {w}"
                        );
                    }
                }
                match &first {
                    None => first = Some(got),
                    Some(first) => assert_eq!(first, &got, "{c:?} in {dtype}, {tier:?}"),
                }
            }
        }
    }
}

#[test]
fn odd_geometry() {
    let all: &[(&[usize], &[usize], usize, [&[i64]; 3])] = &[
        // As in residual networks: several parts of channels, several blocks, whole images in a block.
        (&[3, 56, 12, 16], &[136, 56, 3, 3], 1, [&[1, 1], &[1, 1], &[1, 1]]),
        (&[5, 48, 4, 4], &[20, 48, 3, 3], 1, [&[1, 1], &[1, 1], &[1, 1]]),
        (&[2, 24, 9, 11], &[32, 24, 3, 3], 1, [&[2, 2], &[1, 1], &[1, 1]]),
        (&[2, 3, 29, 31], &[18, 3, 7, 7], 1, [&[2, 2], &[3, 3], &[1, 1]]),
        // One tap: planes of whole panels and not, several images in a block, long sums, strides and gaps,
        // groups, padding, one dimension, three.
        (&[2, 16, 8, 8], &[24, 16, 1, 1], 1, [&[2, 2], &[0, 0], &[1, 1]]),
        (&[2, 20, 16, 32], &[136, 20, 1, 1], 1, [&[1, 1], &[0, 0], &[1, 1]]),
        (&[5, 600, 7, 7], &[21, 600, 1, 1], 1, [&[1, 1], &[0, 0], &[1, 1]]),
        // Several blocks of results whose packed weights spill, and several parts of the sum.
        (&[5, 16, 1], &[129, 16, 1], 1, [&[2], &[0], &[1]]),
        (&[2, 1024, 3, 5], &[192, 1024, 1, 1], 1, [&[1, 1], &[0, 0], &[1, 1]]),
        (&[3, 17, 40, 33], &[9, 17, 1, 1], 1, [&[1, 1], &[0, 0], &[1, 1]]),
        (&[3, 12, 11, 13], &[18, 4, 1, 1], 3, [&[3, 2], &[0, 0], &[1, 1]]),
        (&[2, 5, 44, 50], &[7, 5, 1, 1], 1, [&[2, 2], &[0, 0], &[1, 1]]),
        (&[2, 8, 9, 9], &[12, 8, 1, 1], 1, [&[1, 2], &[1, 0], &[1, 1]]),
        (&[3, 10, 37], &[11, 10, 1], 1, [&[2], &[0], &[1]]),
        // Lines with gaps, of blocks of one line: a part of a plane, a whole plane, part of a line.
        (&[1, 6, 5, 2400], &[5, 6, 1, 1], 1, [&[2, 1], &[0, 0], &[1, 1]]),
        (&[2, 6, 2, 30], &[5, 6, 1, 1], 1, [&[2, 1], &[0, 0], &[1, 1]]),
        (&[2, 6, 3, 600], &[5, 6, 1, 1], 1, [&[3, 1], &[0, 0], &[1, 1]]),
        (&[2, 6, 4, 2, 30], &[5, 6, 1, 1, 1], 1, [&[1, 2, 1], &[0, 0, 0], &[1, 1, 1]]),
        // Patches: an even and an odd number of them, with some of the image left, and wider strides than
        // kernels. A whole patch of padding and a part of one, single lines, one and three dimensions.
        (&[2, 3, 64, 96], &[21, 3, 16, 16], 1, [&[16, 16], &[0, 0], &[1, 1]]),
        (&[3, 3, 32, 80], &[18, 3, 16, 16], 1, [&[16, 16], &[0, 0], &[1, 1]]),
        (&[3, 3, 35, 85], &[18, 3, 16, 16], 1, [&[16, 16], &[0, 0], &[1, 1]]),
        (&[2, 2, 41, 77], &[17, 2, 3, 18], 1, [&[20, 18], &[0, 0], &[1, 1]]),
        (&[2, 2, 40, 65], &[9, 2, 16, 16], 1, [&[16, 16], &[16, 16], &[1, 1]]),
        (&[2, 2, 48, 64], &[9, 2, 16, 16], 1, [&[16, 16], &[16, 16], &[1, 1]]),
        (&[2, 2, 36, 64], &[9, 2, 16, 16], 1, [&[16, 16], &[0, 7], &[1, 1]]),
        (&[2, 2, 36, 80], &[9, 2, 18, 18], 1, [&[16, 16], &[0, 0], &[1, 1]]),
        (&[3, 2, 170], &[7, 2, 17], 1, [&[17], &[0], &[1]]),
        (&[2, 2, 4, 8, 70], &[5, 2, 2, 4, 16], 1, [&[2, 4, 16], &[0, 0, 0], &[1, 1, 1]]),
        (&[2, 5, 32, 67], &[5, 1, 4, 16], 5, [&[4, 16], &[0, 0], &[1, 1]]),
        // Several blocks of patches, of few and of many channels, of an odd number of pairs, with gaps
        // between lines, with padding at the end.
        (&[3, 3, 96, 112], &[70, 3, 4, 4], 1, [&[4, 4], &[0, 0], &[1, 1]]),
        (&[2, 40, 12, 18], &[33, 40, 4, 6], 1, [&[5, 6], &[0, 0], &[1, 1]]),
        (&[2, 3, 42, 70], &[36, 3, 14, 14], 1, [&[14, 14], &[0, 0], &[1, 1]]),
        (&[2, 3, 40, 34], &[20, 3, 3, 8], 1, [&[9, 10], &[0, 0], &[4, 1]]),
        (&[1, 2, 14, 30], &[5, 2, 4, 8], 1, [&[4, 8], &[0, 0, 2, 2], &[1, 1]]),
        (&[2, 3, 4, 900], &[9, 3, 2, 4], 1, [&[2, 4], &[0, 0], &[1, 1]]),
        (&[3, 6, 16, 48], &[10, 3, 8, 8], 2, [&[8, 8], &[0, 0], &[1, 1]]),
        // Cells of strided gradients: many images, lines of several blocks, more remainders than inputs,
        // kernels within strides.
        (&[16, 20, 8, 8], &[40, 20, 3, 3], 1, [&[2, 2], &[1, 1], &[1, 1]]),
        (&[1, 3, 6, 1100], &[4, 3, 3, 3], 1, [&[2, 2], &[1, 1], &[1, 1]]),
        (&[3, 4, 2, 5], &[6, 4, 2, 3], 1, [&[3, 4], &[1, 1], &[1, 1]]),
        (&[2, 6, 12, 14], &[7, 6, 2, 2], 1, [&[2, 2], &[0, 0], &[1, 1]]),
        (&[2, 4, 9, 11], &[6, 4, 1, 1], 1, [&[2, 2], &[2, 3], &[1, 1]]),
        (&[2, 3, 5, 6, 7], &[4, 3, 3, 3, 3], 1, [&[2, 2, 2], &[1, 1, 1], &[1, 1, 1]]),
        // Large cells, of single taps that padding and what is left of the image cut, of several taps, and
        // larger than is sensible. Many images with padding, and a stride beyond all measure.
        (&[2, 5, 21, 23], &[7, 5, 4, 4], 1, [&[5, 5], &[1, 1], &[1, 1]]),
        (&[2, 3, 25, 27], &[4, 3, 7, 8], 1, [&[5, 6], &[2, 3], &[1, 1]]),
        (&[1, 1, 140, 137], &[2, 1, 71, 70], 1, [&[69, 68], &[1, 1], &[1, 1]]),
        (&[20, 9, 4, 5], &[33, 9, 3, 3], 1, [&[1, 1], &[1, 1], &[1, 1]]),
        (&[1, 3, 5, 5], &[8, 3, 3, 3], 1, [&[2147483647, 2147483647], &[0, 0], &[1, 1]]),
        // Lines of several blocks.
        (&[1, 6, 1500], &[5, 6, 1], 1, [&[1], &[0], &[1]]),
        (&[2, 6, 3001], &[5, 6, 1], 1, [&[2], &[0], &[1]]),
        (&[1, 6, 2, 2400], &[5, 6, 1, 1], 1, [&[1, 2], &[0, 0], &[1, 1]]),
        (&[2, 6, 2500], &[20, 6, 3], 1, [&[1], &[1], &[1]]),
        (&[1, 4, 5003], &[3, 4, 10], 1, [&[5], &[3], &[1]]),
        (&[1, 4, 3, 2100], &[6, 2, 2, 3], 2, [&[1, 2], &[1, 1], &[2, 3]]),
        (&[2, 6, 5, 6, 7], &[8, 3, 1, 1, 1], 2, [&[2, 1, 3], &[0, 0, 0], &[1, 1, 1]]),
        (&[2, 6, 5, 6, 8], &[8, 6, 1, 1, 1], 1, [&[1, 2, 2], &[0, 0, 0], &[1, 1, 1]]),
        // A stride beyond the kernel, dilation with strides, padding beyond what the kernel reaches.
        (&[2, 4, 23, 17], &[6, 4, 2, 2], 1, [&[5, 7], &[1, 0], &[1, 1]]),
        (&[2, 4, 15, 13], &[6, 4, 3, 2], 1, [&[2, 3], &[4, 3], &[3, 2]]),
        (&[1, 3, 3, 4], &[5, 3, 2, 3], 1, [&[1, 2], &[5, 6], &[1, 1]]),
        // Groups, depth-wise, one column, one line, one dimension, three.
        (&[2, 12, 7, 9], &[20, 3, 3, 3], 4, [&[1, 1], &[1, 1], &[1, 1]]),
        (&[2, 9, 7, 18], &[9, 1, 5, 3], 9, [&[1, 2], &[2, 1], &[1, 1]]),
        (&[3, 7, 40, 75], &[7, 1, 3, 3], 7, [&[2, 1], &[1, 1], &[1, 2]]),
        (&[2, 4, 90], &[4, 1, 5], 4, [&[3], &[4], &[2]]),
        (&[2, 3, 4, 5, 6], &[3, 1, 2, 3, 2], 3, [&[1, 2, 1], &[1, 1, 0], &[1, 1, 2]]),
        (&[2, 5, 9, 8], &[10, 1, 3, 3], 5, [&[1, 1], &[1, 1], &[1, 1]]),
        (&[2, 5, 19, 1], &[7, 5, 3, 1], 1, [&[2, 1], &[1, 0], &[1, 1]]),
        (&[3, 10, 37], &[11, 10, 4], 1, [&[3], &[2], &[2]]),
        (&[2, 6, 5, 6, 7], &[8, 3, 3, 2, 3], 2, [&[2, 1, 2], &[1, 0, 1], &[1, 2, 1]]),
    ];
    for &(x, w, groups, [stride, padding, dilation]) in all {
        let [stride, padding, dilation] = [stride, padding, dilation].map(<[i64]>::to_vec);
        let c = Geometry { x: x.to_vec(), w: w.to_vec(), groups, stride, padding, dilation };
        check(&c, &[DType::F32, DType::BF16, DType::F64]);
    }
}

/// Sizes of one to three dimensions, a long one among them now and then; the operation; and in which dtype.
fn geometries() -> impl Strategy<Value = (Geometry, DType)> {
    let dimension = (1usize..30, 1usize..8, 1i64..5, 1i64..4, 0i64..7, 0i64..7, any::<[bool; 3]>());
    let dimensions = prop::collection::vec(dimension, 1..4);
    let channels = prop_oneof![(1usize..9, Just(1usize), 1usize..3), (1usize..3, 1usize..9, 1usize..36)];
    let dtype = prop::sample::select(vec![DType::F32, DType::BF16, DType::F16, DType::F64]);
    let long = prop::option::weighted(0.3, 300usize..3000);
    (dimensions, channels, 1usize..4, long, any::<[bool; 2]>(), dtype).prop_filter_map(
        "more than a test needs",
        |(dimensions, (groups, from, to), batch, long, [taps, sides], dtype)| {
            let n = dimensions.len();
            let mut c = Geometry {
                x: vec![batch, groups * from],
                w: vec![groups * to, from],
                groups,
                stride: vec![1; n],
                padding: vec![0; n * if sides { 2 } else { 1 }],
                dilation: vec![1; n],
            };
            for (d, (size, tap, stride, dilation, before, after, [strides, dilates, pads])) in
                dimensions.into_iter().enumerate()
            {
                let size = if long.is_some() { size.min(6) } else { size };
                c.x.push(long.filter(|_| d == n - 1).unwrap_or(size));
                c.w.push(if taps { tap } else { 1 });
                c.stride[d] = if strides { stride } else { 1 };
                c.dilation[d] = if dilates { dilation } else { 1 };
                c.padding[d] = if pads { before } else { 0 };
                if sides {
                    c.padding[n + d] = after;
                }
                let added = c.padding[d] + c.padding[if sides { n + d } else { d }];
                if c.dilation[d] * (c.w[2 + d] as i64 - 1) >= c.x[2 + d] as i64 + added {
                    return None;
                }
            }
            let area: usize = c.x[2..].iter().map(|n| n + 4).product();
            let products = batch * c.w.iter().product::<usize>() * area;
            (products <= 500_000).then_some((c, dtype))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_geometry((c, dtype) in geometries()) {
        check(&c, &[dtype]);
    }
}

/// Vectors read past a line; those elements must not affect results.
#[test]
fn an_infinite_input_stays_where_it_is_met() {
    let c = Geometry {
        x: vec![2, 5, 9, 19],
        w: vec![5, 1, 3, 3],
        groups: 5,
        stride: vec![1, 1],
        padding: vec![1, 1],
        dilation: vec![1, 1],
    };
    let graph = graph(&c, DType::F32);
    let mut inputs: Vec<Tensor> =
        graph.inputs.iter().enumerate().map(|(k, i)| numbers(graph.ty(i.value), k)).collect();
    // The last of the first line.
    let mut data = inputs[0].floats().to_vec();
    data[18] = f64::INFINITY;
    inputs[0] = Tensor::float(DType::F32, inputs[0].ty.shape.clone(), data);
    let want = reference::run(&graph, &inputs).unwrap();
    for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
        let got = run(&Cpu::new(2).with_tier(tier).unwrap(), &graph, &inputs).unwrap();
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let finite = |t: &Tensor| t.floats().iter().map(|x| x.is_finite()).collect::<Vec<_>>();
            assert_eq!(finite(got), finite(want), "output {i}, {tier:?}");
        }
        assert!(want[2].floats()[..9].iter().any(|x| x.is_finite()));
    }
}

/// The gradients of other channels' weights know nothing of an infinite input, however columns are summed.
#[test]
fn an_infinite_input_stays_in_its_channel() {
    let cases: [(&[usize], &[usize], i64, usize); 8] = [
        (&[1, 4, 7], &[20, 4, 3], 1, 5),
        (&[1, 4, 8], &[20, 4, 2], 1, 8),
        (&[1, 4, 3, 8], &[20, 4, 1, 2], 1, 24),
        (&[1, 4, 3, 8], &[20, 4, 1, 2], 1, 8),
        (&[2, 4, 3, 8], &[20, 4, 1, 2], 1, 96),
        (&[1, 4, 9], &[20, 4, 5], 2, 8),
        (&[2, 4, 15], &[20, 4, 2], 2, 1),
        (&[1, 4, 5, 9], &[20, 4, 3, 3], 1, 7),
    ];
    for ((x, w, stride, at), dtype) in cases.into_iter().flat_map(|c| [(c, DType::F32), (c, DType::BF16)]) {
        let n = x.len() - 2;
        let (stride, padding, dilation) = (vec![stride; n], vec![0; n], vec![1; n]);
        let c = Geometry { x: x.to_vec(), w: w.to_vec(), groups: 1, stride, padding, dilation };
        let graph = graph(&c, dtype);
        let mut inputs: Vec<Tensor> =
            graph.inputs.iter().enumerate().map(|(k, i)| numbers(graph.ty(i.value), k)).collect();
        let mut data = inputs[0].floats().to_vec();
        data[at] = f64::INFINITY;
        inputs[0] = Tensor::float(dtype, inputs[0].ty.shape.clone(), data);
        let channel = at / x[2..].iter().product::<usize>() % x[1];
        let want = reference::run(&graph, &inputs).unwrap();
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            let got = run(&Cpu::new(2).with_tier(tier).unwrap(), &graph, &inputs).unwrap();
            for (i, (g, w)) in got[2].floats().iter().zip(want[2].floats()).enumerate() {
                let of = i / c.w[2..].iter().product::<usize>() % c.w[1];
                let fits = g.is_finite() == w.is_finite() || of == channel && !g.is_finite();
                assert!(fits, "{c:?} in {dtype}, {tier:?}: weight {i} of channel {of} has {g}, not {w}");
            }
        }
    }
}
