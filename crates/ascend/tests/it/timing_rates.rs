//! Times at other rates of L2 than the model's 5 TB/s: what published copies sustain is less. Prints the
//! tables of `docs/ascend-timing.md`:
//!
//! `cargo test --release -p headwater-ascend --test it timing_rates:: -- --ignored --nocapture`

use super::lower_time::launches;
use super::timing::{ELEMENTS, add, copy_in, gelu};
use super::timing_cube::{self, Copies, Schedule, ours, product};
use headwater_ascend::kernel::{Elem, Pipe, Program, Value};
use headwater_ascend::kernels::{self, RmsNorm};
use headwater_ascend::timing::{Launch, bandwidth, predict_at};
use headwater_ascend::{Arch, Chip};
use headwater_core::Attrs;
use headwater_core::DType;

/// Bytes a second of L2.
const RATES: [f64; 3] = [5e12, 3.75e12, 3.4e12];

/// Prints the task time of kernels that follow each other, and the cube's share of core time, at each rate.
fn row(what: &str, chip: &str, kernels: &[(Program, u32)]) -> [f64; 3] {
    let chip = Chip::from_name(chip).unwrap();
    let times = RATES.map(|l2| {
        let [mut task, mut core, mut cube] = [0.0; 3];
        for (program, blocks) in kernels {
            let launch = Launch { blocks: *blocks, args: vec![Value::Int(0); program.params.len()] };
            let rates = [bandwidth(chip)[0], l2];
            let t = predict_at(program, chip, rates, &launch, &mut |_| Some(Value::Float(1.0))).unwrap();
            (task, core, cube) = (task + t.task, core + t.core, cube + t.pipe(Pipe::M));
        }
        (task, 100.0 * cube / core)
    });
    let shown = times.map(|(task, cube)| match cube > 0.0 {
        true => format!("{task:.1} µs, cube {cube:.1} %"),
        false => format!("{task:.1} µs"),
    });
    println!("| {what} | {} |", shown.join(" | "));
    times.map(|t| t.0)
}

#[test]
#[ignore = "prints tables; minutes without optimisation"]
fn of_published_kernels() {
    let schedule = |cores, single, steps, slots, parts| Schedule { cores, single, steps, slots, parts };
    let whole = || Copies { size: [12288, 12288], tile: [64, 256], passes: 1, slices: 1, all: None };
    let small = || Copies { size: [6144, 512], tile: [256, 64], passes: 1, slices: 1, all: Some(false) };
    let vector = [
        ("add, 48 cores, tiles of 4096", add(ELEMENTS, 4096, 2, false, false), 306.58),
        ("add, tiles of 16384", add(ELEMENTS, 16384, 1, false, false), 268.5),
        ("add, inputs past L2", add(ELEMENTS, 8192, 2, true, false), 187.68),
        ("copies of 128 bytes", copy_in(12288, [1, 64], 1, 1), 564.84),
        ("copies of 64 runs of 128 bytes", copy_in(12288, [64, 64], 1, 1), 233.54),
        ("four passes over the whole", copy_in(12288, [64, 64], 4, 1), 828.06),
        ("four passes over each quarter", copy_in(12288, [64, 64], 4, 4), 365.74),
        ("GELU, f32", gelu(8192), 369.827),
    ];
    let into = timing_cube::copy_in;
    let cube = [
        ("product, 2 x 12 cores", product(schedule(2, [4096, 683], [1, 1], 1, 1)), 12541.22),
        ("product, 4 x 6 cores", product(schedule(4, [2048, 1536], [1, 1], 1, 1)), 12283.84),
        ("product, copies of 2 and 4 blocks", product(schedule(4, [2048, 1536], [2, 4], 2, 1)), 5039.86),
        ("product, copies of 8 and 4 blocks", product(schedule(4, [1024, 1536], [8, 4], 2, 2)), 4088.36),
        ("into L1, tiles of 64 x 64", into(&Copies { tile: [64, 64], ..whole() }), 300.7),
        ("into L1, rows of 12287", into(&Copies { size: [12288, 12287], ..whole() }), 438.76),
        ("into L1, four passes", into(&Copies { tile: [64, 1024], passes: 4, ..whole() }), 899.34),
        (
            "into L1, four passes over each quarter",
            into(&Copies { tile: [64, 1024], passes: 4, slices: 4, ..whole() }),
            414.96,
        ),
        ("into L1, all cores, one order", into(&small()), 278.56),
        ("into L1, all cores, orders apart", into(&Copies { all: Some(true), ..small() }), 221.34),
    ];
    let kernels = vector.into_iter().map(|k| (k, 48)).chain(cube.into_iter().map(|k| (k, 24)));
    for ((what, program, published), blocks) in kernels {
        let times = row(what, "910b1", &[(program, blocks)]);
        let errors = times.map(|t| format!("{:+.1} %", 100.0 * (t / published - 1.0)));
        println!("|   published {published} µs | {} |", errors.join(" | "));
    }
}

#[test]
#[ignore = "prints tables; minutes without optimisation"]
fn of_our_kernels() {
    for transposed in [false, true] {
        row(
            &format!("product 8192³, right operand transposed: {transposed}"),
            "910b1",
            &[(ours(transposed), 24)],
        );
    }
    row("add 8192²", "910b1", &[(kernels::add(Arch::A2, Elem::F16, ELEMENTS, 8192).unwrap(), 48)]);
    for elem in [Elem::F32, Elem::F16] {
        let shape = RmsNorm { elem, rows: 4096, dim: 4096, eps: 1e-6 };
        let norm = kernels::rms_norm(Arch::A2, &shape).unwrap();
        row(&format!("RMS norm 4096² {elem}"), "910b1", &[(norm, 48)]);
        let gradient = [
            kernels::rms_norm_grad(Arch::A2, &shape).unwrap(),
            kernels::rms_norm_grad_gamma(Arch::A2, &shape).unwrap(),
        ];
        row(&format!("its gradient {elem}"), "910b1", &gradient.map(|program| (program, 48)));
    }
    let of = |name: &str, chip: &str, operands: &[Option<(DType, &[usize])>], attrs: Attrs| {
        let chip = Chip::from_name(chip).unwrap();
        let all = launches(name, chip, operands, attrs);
        all.iter().map(|l| (Program::clone(&l.program), l.blocks)).collect::<Vec<_>>()
    };
    let x = Some((DType::F16, &[8192, 8192][..]));
    for form in ["none", "tanh"] {
        let gelu = of("gelu", "910b1", &[x], Attrs::new().with("approximate", form));
        row(&format!("GELU 8192², approximate={form}"), "910b1", &gelu);
    }
    for heads in [1, 32] {
        let x = Some((DType::F16, &[1, heads, 4096, 128][..]));
        let attention =
            of("attention", "910b2", &[x, x, x, None, None], Attrs::new().with("scale", 1.0 / 128f64.sqrt()));
        row(&format!("attention 4096, {heads} heads, 910B2"), "910b2", &attention);
    }
}
