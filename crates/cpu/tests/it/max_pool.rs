//! Maximum pooling of planes wide enough for vectors, against the reference. Cases are equal numbers, NaN and
//! infinities, windows that reach into padding, and what does not fill a vector. Nothing is rounded, so every
//! bit is known.

use crate::common::run;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::OpDef;
use headwater_core::ops::conv::max_pool2d::{ADAPTIVE_MAX_POOL2D, MAX_POOL2D};
use headwater_core::{Attrs, Builder, DType, Tensor, TensorType, reference};
use headwater_cpu::{Cpu, Tier};

fn check(op: &'static OpDef, shape: &[usize], attrs: Attrs) {
    // Few different numbers, so that many are equal; some rows have only -inf.
    let number = |i: usize| match (i * 7919 % 1009, i / shape[3] % 5) {
        (k, 1) if k % 3 > 0 => f64::NEG_INFINITY,
        (k, _) if k % 31 == 0 => f64::NAN,
        (k, _) if k % 29 == 0 => f64::INFINITY,
        (k, _) if k % 7 == 0 => -0.0,
        (k, _) => (k % 5) as f64 - 4.0,
    };
    let numbers: Vec<f64> = (0..shape.iter().product()).map(number).collect();
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(dtype, shape), InputRole::User);
        for (v, name) in b.apply(op, &[Some(x)], attrs.clone()).unwrap().into_iter().zip(["y", "at"]) {
            b.output(name, v, OutputRole::User);
        }
        let graph = b.finish();
        let x = Tensor::float(DType::F64, shape, numbers.clone()).cast(dtype);
        let want = reference::run(&graph, std::slice::from_ref(&x)).unwrap();
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            for threads in [1, 3] {
                let got = run(&Cpu::new(threads).with_tier(tier).unwrap(), &graph, std::slice::from_ref(&x))
                    .unwrap();
                let name =
                    format!("{} of {shape:?} in {dtype}, {tier:?}, {threads} threads: {attrs:?}", op.name);
                assert_eq!(got[1].ints(), want[1].ints(), "{name}");
                // NaN compares unequal to everything, and any NaN is as good as another.
                let bits = |t: &Tensor| -> Vec<u64> {
                    t.floats()
                        .iter()
                        .map(|x| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() })
                        .collect()
                };
                assert_eq!(bits(&got[0]), bits(&want[0]), "{name}");
            }
        }
    }
}

fn sliding(shape: &[usize], [kernel, stride, padding, dilation]: [[i64; 2]; 4], ceil: bool) {
    let attrs = Attrs::new().with("kernel_size", kernel).with("stride", stride).with("padding", padding);
    check(&MAX_POOL2D, shape, attrs.with("dilation", dilation).with("ceil_mode", ceil));
}

#[test]
fn sliding_windows() {
    // As residual networks begin; whole vectors and a rest; one column each way.
    sliding(&[2, 2, 64, 64], [[3, 3], [2, 2], [1, 1], [1, 1]], false);
    for width in [31, 33, 35, 69] {
        sliding(&[1, 2, 11, width], [[3, 3], [2, 2], [1, 1], [1, 1]], false);
        sliding(&[1, 2, 10, width], [[2, 2], [2, 2], [0, 0], [1, 1]], true);
        sliding(&[1, 1, 9, width], [[5, 4], [1, 1], [2, 2], [1, 1]], false);
    }
    // Padding that covers all of a window except one element, at both ends; gaps; windows with gaps between
    // them.
    sliding(&[1, 1, 7, 23], [[5, 9], [1, 1], [2, 4], [1, 1]], true);
    sliding(&[2, 1, 17, 40], [[3, 3], [2, 2], [1, 1], [3, 2]], false);
    sliding(&[2, 1, 17, 40], [[3, 3], [1, 1], [1, 1], [2, 5]], false);
    sliding(&[1, 1, 20, 50], [[2, 2], [5, 3], [0, 1], [1, 1]], true);
    sliding(&[1, 1, 4, 64], [[4, 2], [4, 7], [0, 0], [1, 1]], false);
}

#[test]
fn adaptive_windows() {
    for (shape, size) in [
        ([1, 2, 14, 32], [7, 8]),
        ([1, 1, 9, 37], [4, 12]),
        ([2, 1, 6, 25], [5, 24]),
        ([1, 1, 5, 9], [1, 1]),
        ([1, 1, 3, 6], [5, 12]),
        ([1, 1, 5, 1], [5, 12]),
    ] {
        check(&ADAPTIVE_MAX_POOL2D, &shape, Attrs::new().with("output_size", size));
    }
}
