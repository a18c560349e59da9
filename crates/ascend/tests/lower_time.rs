//! Predicted times of kernels for row programs. Simulated; figures for 310P are scaled, not calibrated.

use headwater_ascend::kernel::{Source, Value};
use headwater_ascend::lower::rows;
use headwater_ascend::{Chip, timing};
use headwater_core::expr::{Expr, float, input};
use headwater_core::graph::Origin;
use headwater_core::plan::{Place, SegmentId, TensorView};
use headwater_core::row::{Access, RowBuilder, RowProgram};
use headwater_core::{DType, Layout, Shape};

/// Predicted microseconds of a program over contiguous operands, and each launch.
fn time(name: &str, chip: &'static Chip, p: &RowProgram, shapes: &[&[usize]]) -> f64 {
    let views: Vec<TensorView> = (p.reads.iter().chain(&p.writes).zip(shapes).enumerate())
        .map(|(i, (o, shape))| TensorView {
            place: Place { segment: SegmentId(i as u32), offset: 0 },
            dtype: o.dtype,
            layout: Layout::contiguous(&Shape::new(shape)),
        })
        .collect();
    let all: Vec<&TensorView> = views.iter().collect();
    let (reads, writes) = all.split_at(p.reads.len());
    let source = Source { op: name.into(), origin: Origin::default() };
    let lowered = rows(chip, p, reads, writes, &source).unwrap();
    let mut sum = 0.0;
    for l in &lowered.launches {
        let launch = timing::Launch { blocks: l.blocks, args: vec![Value::Int(0); l.program.params.len()] };
        let t = timing::predict(&l.program, chip, &launch, &mut |_| Some(Value::Float(1.0))).unwrap();
        println!("simulated: {name} on {chip}, {} blocks\n{t}", l.blocks);
        sum += t.task;
    }
    let bytes: usize = views.iter().map(|v| v.layout.shape.numel() * v.dtype.size()).sum();
    println!("{name} on {chip}: {sum:.1} us, {:.2} TB/s of operands", bytes as f64 / sum / 1e6);
    sum
}

fn pointwise(dtype: DType, inputs: usize, n: &[usize], e: Expr) -> RowProgram {
    RowProgram::pointwise(&vec![(dtype, n); inputs], n, &[dtype], &[e])
}

fn layer_norm(dtype: DType, rows: usize, cols: usize) -> RowProgram {
    let mut b = RowBuilder::new(&[rows], &[cols]);
    let x = b.read(dtype, Access::identity(2));
    let along = Access::dims(&[None, Some(0)]);
    let (gamma, beta) = (b.read(dtype, along.clone()), b.read(dtype, along));
    let sum = b.sum(x);
    let mean = b.expr(&(input(0) * (1.0 / cols as f64)), &[sum]);
    let centred = b.expr(&(input(0) - input(1)), &[x, mean]);
    let square = b.expr(&(input(0) * input(0)), &[centred]);
    let sum = b.sum(square);
    let rstd = b.expr(&(input(0) * (1.0 / cols as f64) + 1e-5).rsqrt(), &[sum]);
    let y = b.expr(&(input(0) * input(1) * input(2) + input(3)), &[centred, rstd, gamma, beta]);
    b.store(dtype, Access::identity(2), y);
    b.finish()
}

fn column_sums(dtype: DType, rows: usize, cols: usize) -> RowProgram {
    let mut b = RowBuilder::new(&[rows], &[cols]);
    let x = b.read(dtype, Access::identity(2));
    b.columns(dtype, Access::dims(&[None, Some(0)]), x);
    b.finish()
}

#[test]
fn predicted_times() {
    use DType::{F16, F32};
    for name in ["910b1", "310p"] {
        let chip = Chip::from_name(name).unwrap();
        let n: &[usize] = &[8192, 8192];
        let add = time("add", chip, &pointwise(F16, 2, n, input(0) + input(1)), &[n; 3]);
        let gelu = input(0) * input(0).ndtr();
        time("gelu", chip, &pointwise(F16, 1, n, gelu), &[n; 2]);
        let n: &[usize] = &[1 << 24];
        let update = input(0) - input(1) / (input(2).sqrt() + float(1e-8)) * 1e-3;
        let update = time("update", chip, &pointwise(F32, 3, n, update), &[n; 4]);
        let n: &[usize] = &[4096, 1024];
        time("layer_norm", chip, &layer_norm(F16, 4096, 1024), &[n, &[1024], &[1024], n]);
        let n: &[usize] = &[4096, 4096];
        time("layer_norm_wide", chip, &layer_norm(F16, 4096, 4096), &[n, &[4096], &[4096], n]);
        time("column_sums", chip, &column_sums(F16, 4096, 1024), &[&[4096, 1024], &[1024]]);
        let n: &[usize] = &[65536, 64];
        time("layer_norm_narrow", chip, &layer_norm(F16, 65536, 64), &[n, &[64], &[64], n]);
        // At least 85 % of what HBM allows, at 1.49 TB/s.
        if chip.name == "910b1" {
            for (what, bytes, us) in
                [("add", 3.0 * 8192.0 * 8192.0 * 2.0, add), ("update", 4e6 * 67.108_864, update)]
            {
                assert!(bytes / us / 1e6 >= 0.85 * 1.49, "{what} takes {us} us");
            }
        }
    }
}
