//! Double-word arithmetic on the CPU: the bits of the reference interpreter, which rounds each operation to
//! f32. A multiplication and an addition that were joined, or reordered, would show.

use headwater_core::device::Device;
use headwater_core::evaluate::evaluate;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::reduce::sum::SUM;
use headwater_core::ops::update::gradient_scale::GRADIENT_SCALE;
use headwater_core::ops::update::larc::LARC_RATE;
use headwater_core::ops::update::segment::SEGMENT_SUM;
use headwater_core::pass::split_wide::scalar_bytes;
use headwater_core::{Attrs, Builder, DType, Tensor, TensorType, pass, reference};
use headwater_cpu::{Cpu, Tier};

#[test]
fn pairs_have_the_bits_of_the_reference() {
    let scalar = TensorType::new(DType::F64, [0usize; 0]);
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [5000]), InputRole::State);
    let unscale = b.input("unscale", scalar, InputRole::State);
    let wide = b.cast(x, DType::F64).unwrap();
    let sum = b.one(&SUM, &[wide], Attrs::new()).unwrap();
    let limit = Attrs::new().with("max_norm", 0.3);
    let scaled = b.apply(&GRADIENT_SCALE, &[Some(sum), Some(unscale)], limit).unwrap();
    let ends = Attrs::new().with("ends", [10, 10, 1200, 5000]);
    let squares = b.one(&SEGMENT_SUM, &[x], ends).unwrap();
    let attrs = Attrs::new()
        .with("trust_coefficient", 0.02)
        .with("eps", 1e-8)
        .with("weight_decay", 0.1)
        .with("clip", true);
    let rates = b.apply(&LARC_RATE, &[squares, squares, scaled[1], unscale].map(Some), attrs).unwrap();
    for (i, v) in scaled.into_iter().enumerate() {
        b.output(format!("scaled.{i}"), v, OutputRole::User);
    }
    for (i, v) in rates.into_iter().enumerate() {
        let v = b.cast(v, DType::F32).unwrap();
        b.output(format!("rate.{i}"), v, OutputRole::User);
    }
    let graph = pass::split_wide(b.finish()).unwrap();
    let numbers = (0..5000).map(|i| ((i * 7919) % 1013) as f64 / 1013.0 * f64::exp2((i % 37) as f64 - 18.0));
    let x = Tensor::float(DType::F32, [5000], numbers.collect());
    let pair = TensorType::new(DType::F32, [2]);
    for unscale in [1.0, 1.0 / 3.0, 1.0 / 65536.0] {
        let inputs = [x.clone(), Tensor::from_bytes(&pair, &scalar_bytes(&pair, unscale))];
        let want = reference::run(&graph, &inputs).unwrap();
        for tier in Tier::ALL {
            // Tiers that this machine lacks are left out.
            let Ok(device) = Cpu::new(2).with_tier(tier) else { continue };
            let fused = pass::fuse(graph.clone(), device.target()).unwrap();
            for graph in [&graph, &fused] {
                assert_eq!(evaluate(&device, graph, &inputs).unwrap(), want, "{tier:?}, unscale {unscale}");
            }
        }
    }
}
