//! Constants of graphs, by kernels on simulated chips: every bit, whatever the type and the number of bytes.

use headwater_ascend::device::AscendSim;
use headwater_core::DType::{BF16, Bool, F16, F32, I64};
use headwater_core::device::Device;
use headwater_core::evaluate::evaluate;
use headwater_core::graph::{Builder, OutputRole};
use headwater_core::ops::create::constant::CONSTANT;
use headwater_core::plan::Bindings;
use headwater_core::{Attrs, DType, Graph, Tensor, pass};
use std::sync::Arc;

fn graph(constants: &[Tensor]) -> Graph {
    let mut b = Builder::new();
    for (i, value) in constants.iter().enumerate() {
        let attrs = Attrs::new().with("value", Arc::new(value.clone()));
        let value = b.apply(&CONSTANT, &[], attrs).unwrap()[0];
        b.output(format!("y{i}"), value, OutputRole::User);
    }
    b.finish()
}

fn floats(dtype: DType, shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    let mut numbers: Vec<f64> = (0..count).map(|i| i as f64 / 7.0 - 3.0).collect();
    if let [first, .., last] = &mut numbers[..] {
        (*first, *last) = (f64::NEG_INFINITY, -0.0);
    }
    Tensor::float(dtype, shape, numbers)
}

#[test]
fn constants_are_copied_bit_by_bit() {
    for (chip, dtypes) in [("910b1,checked", &[F32, F16, BF16][..]), ("310p,checked", &[F32, F16])] {
        let device = AscendSim::from_name(chip, 1).unwrap();
        let mut all = vec![
            Tensor::int(I64, [3], vec![-1, i64::from(i32::MAX), i64::from(i32::MIN)]),
            Tensor::int(Bool, [5], vec![1, 0, 0, 1, 1]),
            Tensor::int(Bool, [8], vec![0, 1, 1, 0, 1, 0, 0, 1]),
        ];
        for &dtype in dtypes {
            all.extend([&[][..], &[1], &[7], &[3, 50], &[0, 4], &[9001]].map(|shape| floats(dtype, shape)));
        }
        let graph = graph(&all);
        let plan = pass::plan(&graph, &Bindings::simple(&graph), device.target()).unwrap();
        let host: Vec<String> = device.survey(&plan).into_iter().filter_map(|used| used.host).collect();
        // In f16: 7 and 9001 on 310P.
        let odd = if chip.starts_with("310p") { 2 } else { 0 };
        assert_eq!(host, vec!["infinities in an odd number of f16"; odd], "{chip}");
        let got = evaluate(&device, &graph, &[]).unwrap();
        for (want, got) in all.iter().zip(&got) {
            assert_eq!(want.ty, got.ty);
            let different = want.to_bytes().iter().zip(got.to_bytes()).position(|(want, got)| *want != got);
            assert_eq!(different, None, "{chip}: {want:?}, not {got:?}");
        }
    }
}
