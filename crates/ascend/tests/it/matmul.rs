//! `matmul`, through the text and the simulator on both chips, beside f64.

use half::{bf16, f16};
use headwater_ascend::kernel::{Elem, parse, verify};
use headwater_ascend::kernels::{Matmul, Matrix, matmul, matmuls};
use headwater_ascend::sim::{Arg, Launch, Mode, launch};
use headwater_ascend::{Arch, Chip, Rule};

fn chip(arch: Arch) -> &'static Chip {
    Chip::from_name(if arch == Arch::A2 { "910b1" } else { "310p" }).unwrap()
}

/// Appends numbers; returns their offset. They are followed by padding for whole blocks, of bytes other than
/// zero.
fn append(memory: &mut Vec<u8>, elem: Elem, values: &[f64]) -> u64 {
    let start = memory.len() as u64;
    for &x in values {
        match elem {
            Elem::F16 => memory.extend(f16::from_f64(x).to_le_bytes()),
            Elem::BF16 => memory.extend(bf16::from_f64(x).to_le_bytes()),
            _ => memory.extend((x as f32).to_le_bytes()),
        }
    }
    memory.resize((memory.len() + 64).next_multiple_of(512), 0x5b);
    start
}

fn number(elem: Elem, memory: &[u8], start: u64, i: u64) -> f64 {
    let at = (start + i * elem.size()) as usize;
    match elem {
        Elem::F16 => f16::from_le_bytes([memory[at], memory[at + 1]]).to_f64(),
        Elem::BF16 => bf16::from_le_bytes([memory[at], memory[at + 1]]).to_f64(),
        _ => f64::from(f32::from_le_bytes(memory[at..at + 4].try_into().unwrap())),
    }
}

/// Numbers from -1 to 1.
fn data(len: u64, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / 2f64.powi(30) - 1.0
    };
    (0..len).map(next).collect()
}

/// A matrix whose rows have `more` elements than they need, in a contiguous batch.
fn matrix(rows: u64, columns: u64, transposed: bool, more: u64, batch: [u64; 2]) -> Matrix {
    let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
    let size = rows * (columns + more);
    Matrix { transposed, row: columns + more, batch: [batch[1] * size, size] }
}

/// Sizes: m, n, k; which of a, b and c are stored transposed.
fn shape(elem: Elem, out: Elem, [m, n, k]: [u64; 3], more: u64, [a, b, c]: [bool; 3]) -> Matmul {
    let batch = [1, 1];
    let (a, b, c) =
        (matrix(m, k, a, more, batch), matrix(k, n, b, more, batch), matrix(m, n, c, more, batch));
    Matmul { elem, out, m, n, k, batch, a, b, c, bias: false }
}

/// Offset of an element.
fn offset(x: &Matrix, batch: [u64; 2], row: u64, column: u64) -> u64 {
    let (row, column) = if x.transposed { (column, row) } else { (row, column) };
    batch[0] * x.batch[0] + batch[1] * x.batch[1] + row * x.row + column
}

/// Every result beside f64, in several orders and on several numbers of cores, with the same bits. Nothing
/// else is written.
///
/// With u = 2⁻²⁴ a sum of k exact products (and a bias) in any order is right to γ(k) of the sum of
/// magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2); products of
/// f32 are rounded: γ(k + 1). Narrow results are rounded once more, below the normal numbers of f16 by 2⁻²⁵
/// at most.
fn right(arch: Arch, shape: &Matmul) {
    let program = matmul(arch, shape).unwrap_or_else(|f| panic!("{arch} {shape:?}: {f}"));
    verify(&program).unwrap();
    let text = program.to_string();
    assert_eq!(parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")), program);
    let Matmul { elem, out, m, n, k, batch, a, b, c, bias } = *shape;
    let len = |x: &Matrix, rows: u64, columns: u64| {
        offset(x, [batch[0] - 1, batch[1] - 1], rows - 1, columns - 1) + 1
    };
    let mut memory = Vec::new();
    let at = append(&mut memory, elem, &data(len(&a, m, k), 1));
    let bt = append(&mut memory, elem, &data(len(&b, k, n), 2));
    let bias_at = append(&mut memory, elem, &data(n, 3));
    let ct = append(&mut memory, out, &vec![-7.0; len(&c, m, n) as usize]);
    let before = memory.clone();
    let mut args = vec![at, bt];
    args.extend(bias.then_some(bias_at));
    args.push(ct);
    let args: Vec<Arg> = args.into_iter().map(Arg::Pointer).collect();
    let mut first: Option<Vec<u8>> = None;
    let runs =
        [(1, Mode::Fast), (8, Mode::Fast), (3, Mode::Checked { seed: 0 }), (2, Mode::Checked { seed: 5 })];
    for (blocks, mode) in runs {
        memory.clone_from(&before);
        launch(&Launch::new(&program, chip(arch), blocks, &args, mode), &mut memory)
            .unwrap_or_else(|f| panic!("{arch} {shape:?} {mode:?}: {}", f[0]));
        let known = first.get_or_insert_with(|| memory.clone());
        assert!(*known == memory, "{arch} {shape:?} {blocks} {mode:?}: other bits");
    }
    let unit = |bits: i32| 2f64.powi(-bits);
    let roundings = (k + u64::from(elem == Elem::F32)) as f64;
    let gamma = roundings * unit(24) / (1.0 - roundings * unit(24));
    let (narrow, least) = match out {
        Elem::F16 => (unit(11), unit(25)),
        Elem::BF16 => (unit(8), 0.0),
        _ => (0.0, 0.0),
    };
    let mut written = vec![false; memory.len()];
    for i in 0..batch[0] * batch[1] * m * n {
        let (place, row, column) = (i / (m * n), i / n % m, i % n);
        let place = [place / batch[1], place % batch[1]];
        let start = if bias { number(elem, &before, bias_at, column) } else { 0.0 };
        let (mut sum, mut size) = (start, start.abs());
        for p in 0..k {
            let x = number(elem, &before, at, offset(&a, place, row, p))
                * number(elem, &before, bt, offset(&b, place, p, column));
            (sum, size) = (sum + x, size + x.abs());
        }
        let to = offset(&c, place, row, column);
        let got = number(out, &memory, ct, to);
        let bound = gamma * size + (sum.abs() + gamma * size) * narrow + least;
        assert!((got - sum).abs() <= bound, "{arch} {shape:?} {row} {column}: {got} {sum} bound {bound}");
        let byte = (ct + to * out.size()) as usize;
        written[byte..byte + out.size() as usize].fill(true);
    }
    let untouched = |i: usize| written[i] || memory[i] == before[i];
    assert!((0..memory.len()).all(untouched), "{arch} {shape:?}: bytes beside the result are written");
}

const SIZES: [[u64; 3]; 8] = [
    [1, 1, 1],
    [16, 16, 16],
    [17, 10, 64],
    [5, 33, 7],
    [129, 20, 300],
    [40, 271, 65],
    [33, 1, 530],
    [1, 64, 48],
];

fn layouts() -> impl Iterator<Item = [bool; 3]> {
    (0..8).map(|i| [i & 1 == 1, i & 2 == 2, i & 4 == 4])
}

#[test]
fn products_of_f16_in_every_layout() {
    for arch in Arch::ALL {
        for sizes in SIZES {
            for transposed in layouts() {
                right(arch, &shape(Elem::F16, Elem::F16, sizes, 3, transposed));
            }
            right(arch, &shape(Elem::F16, Elem::F32, sizes, 3, [false, true, true]));
        }
    }
}

#[test]
fn products_of_contiguous_f16() {
    for arch in Arch::ALL {
        for sizes in [[48, 64, 32], [16, 160, 96], [64, 10, 64], [1, 10, 64]] {
            for transposed in layouts() {
                right(arch, &shape(Elem::F16, Elem::F16, sizes, 0, transposed));
            }
        }
    }
}

#[test]
fn products_of_bf16() {
    for transposed in layouts() {
        right(Arch::A2, &shape(Elem::BF16, Elem::BF16, [33, 18, 70], 1, transposed));
        right(Arch::A2, &shape(Elem::BF16, Elem::F32, [33, 18, 70], 1, transposed));
    }
}

#[test]
fn products_of_f32_with_rows_along_k() {
    for sizes in SIZES {
        for turned in [false, true] {
            right(Arch::A2, &shape(Elem::F32, Elem::F32, sizes, 5, [false, true, turned]));
        }
    }
}

#[test]
fn sums_begin_with_the_bias() {
    for (arch, elem, out) in [
        (Arch::A2, Elem::F16, Elem::F16),
        (Arch::A2, Elem::BF16, Elem::F32),
        (Arch::A2, Elem::F32, Elem::F32),
        (Arch::P310, Elem::F16, Elem::F16),
    ] {
        for sizes in [[17, 10, 64], [130, 300, 20], [1, 64, 48], [2, 16, 16]] {
            right(arch, &Matmul { bias: true, ..shape(elem, out, sizes, 2, [false, true, false]) });
        }
    }
}

#[test]
fn batches_with_strides() {
    for arch in Arch::ALL {
        let mut x = shape(Elem::F16, Elem::F16, [20, 34, 24], 0, [false; 3]);
        x.batch = [3, 2];
        (x.a, x.b, x.c) = (
            matrix(20, 24, false, 4, x.batch),
            Matrix { batch: [0, 0], ..matrix(24, 34, false, 0, x.batch) },
            matrix(20, 34, false, 6, x.batch),
        );
        right(arch, &x);
        // Heads beside each other in a row, as attention has them: [batch, position, head, channel].
        let heads = |positions: u64, channels: u64, transposed: bool| Matrix {
            transposed,
            row: 2 * channels,
            batch: [positions * 2 * channels, channels],
        };
        (x.a, x.b, x.c) = (heads(20, 24, false), heads(34, 24, true), matrix(20, 34, false, 0, x.batch));
        right(arch, &x);
        (x.n, x.k) = (24, 34);
        (x.a, x.b, x.c) = (matrix(20, 34, false, 0, x.batch), heads(34, 24, false), heads(20, 24, false));
        right(arch, &x);
    }
}

/// Products in one kernel have the bits that each has in its own, in several orders and on several numbers of
/// cores. Nothing else is written.
fn together(shapes: &[Matmul]) {
    let program = matmuls(Arch::A2, shapes).unwrap_or_else(|f| panic!("{shapes:?}: {f}"));
    verify(&program).unwrap();
    let text = program.to_string();
    assert_eq!(parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")), program);
    let (mut memory, mut args) = (Vec::new(), Vec::new());
    for (seed, s) in shapes.iter().enumerate() {
        let last = [s.batch[0] - 1, s.batch[1] - 1];
        let len = |x: &Matrix, rows: u64, columns: u64| offset(x, last, rows - 1, columns - 1) + 1;
        let seed = 10 * seed as u64;
        let mut own = vec![append(&mut memory, s.elem, &data(len(&s.a, s.m, s.k), seed + 1))];
        own.push(append(&mut memory, s.elem, &data(len(&s.b, s.k, s.n), seed + 2)));
        own.extend(s.bias.then(|| append(&mut memory, s.elem, &data(s.n, seed + 3))));
        own.push(append(&mut memory, s.out, &vec![-7.0; len(&s.c, s.m, s.n) as usize]));
        args.push(own.into_iter().map(Arg::Pointer).collect::<Vec<Arg>>());
    }
    let before = memory.clone();
    for (own, shape) in args.iter().zip(shapes) {
        let program = matmul(Arch::A2, shape).unwrap();
        launch(&Launch::new(&program, chip(Arch::A2), 8, own, Mode::Fast), &mut memory).unwrap();
    }
    let (alone, args) = (memory, args.concat());
    let runs =
        [(1, Mode::Fast), (8, Mode::Fast), (3, Mode::Checked { seed: 0 }), (2, Mode::Checked { seed: 5 })];
    for (blocks, mode) in runs {
        let mut memory = before.clone();
        launch(&Launch::new(&program, chip(Arch::A2), blocks, &args, mode), &mut memory)
            .unwrap_or_else(|f| panic!("{shapes:?} {mode:?}: {}", f[0]));
        assert!(memory == alone, "{shapes:?} {blocks} {mode:?}: other bits than alone");
    }
}

#[test]
fn tiles_of_wide_products_follow_each_other_down_or_across() {
    // Several tiles both ways, and more than cores have at once.
    for [m, n] in [[270, 420], [420, 270]] {
        right(Arch::A2, &shape(Elem::F16, Elem::F16, [m, n, 258], 0, [false; 3]));
    }
}

#[test]
fn several_products_are_one_kernel() {
    use Elem::{BF16, F16, F32};
    let of = |elem, out, size, turned| shape(elem, out, size, 0, turned);
    let batched = |size: [u64; 3], batch: [u64; 2], [a, b]: [bool; 2]| {
        let [m, n, k] = size;
        let (a, b, c) = (matrix(m, k, a, 0, batch), matrix(k, n, b, 0, batch), matrix(m, n, false, 0, batch));
        Matmul { batch, a, b, c, ..of(BF16, F32, size, [false; 3]) }
    };
    // Tiles beside which the left operand's panel stays, as of scores.
    together(&[
        batched([130, 140, 24], [2, 3], [false, true]),
        batched([130, 140, 24], [2, 3], [false, true]),
    ]);
    // Narrow ones of other sizes, as of gradients; one with a single row at its end.
    together(&[
        of(F16, F16, [129, 40, 33], [false; 3]),
        of(F16, F16, [50, 16, 300], [true, false, false]),
        of(F16, F16, [7, 64, 20], [true, true, false]),
    ]);
    // Wide ones, one of them with a bias, one whose result is transposed.
    let biased = Matmul { bias: true, ..of(F16, F32, [40, 300, 270], [false, true, false]) };
    together(&[biased, of(F16, F32, [260, 150, 258], [false, false, true])]);
    together(&[
        of(F32, F32, [20, 30, 40], [false, true, false]),
        of(F32, F32, [33, 17, 9], [false, true, false]),
    ]);
    let rule = |arch, shapes: &[Matmul]| matmuls(arch, shapes).map(|_| ()).map_err(|f| f.rule);
    let (narrow, wide) = (of(F16, F16, [8, 8, 8], [false; 3]), of(F16, F16, [8, 300, 300], [false; 3]));
    assert_eq!(rule(Arch::A2, &[narrow, narrow]), Ok(()));
    assert_eq!(rule(Arch::A2, &[narrow, wide]), Err(Rule::Unsupported));
    assert_eq!(rule(Arch::A2, &[narrow, Matmul { out: F32, ..narrow }]), Err(Rule::Unsupported));
    assert_eq!(rule(Arch::P310, &[narrow, narrow]), Err(Rule::Unsupported));
    assert_eq!(rule(Arch::A2, &[]), Err(Rule::Unsupported));
}

#[test]
fn products_that_there_are_not_are_refused() {
    let good = shape(Elem::F32, Elem::F32, [4, 4, 4], 0, [false, true, false]);
    let rule = |arch, shape: Matmul| matmul(arch, &shape).map(|_| ()).map_err(|f| f.rule);
    assert_eq!(rule(Arch::A2, good), Ok(()));
    assert_eq!(rule(Arch::P310, good), Err(Rule::Unsupported));
    assert_eq!(rule(Arch::A2, Matmul { out: Elem::F16, ..good }), Err(Rule::Unsupported));
    let across = Matrix { transposed: false, ..good.b };
    assert_eq!(rule(Arch::A2, Matmul { b: across, ..good }), Err(Rule::Unsupported));
    assert_eq!(rule(Arch::P310, Matmul { elem: Elem::BF16, ..good }), Err(Rule::Unsupported));
    let turned = Matrix { transposed: true, ..good.c };
    assert_eq!(rule(Arch::A2, Matmul { c: turned, bias: true, ..good }), Err(Rule::Unsupported));
    assert_eq!(rule(Arch::A2, Matmul { k: 0, ..good }), Err(Rule::Range));
    assert_eq!(rule(Arch::A2, Matmul { m: u64::MAX, ..good }), Err(Rule::Range));
    assert_eq!(rule(Arch::A2, Matmul { batch: [1 << 30; 2], ..good }), Err(Rule::Range));
    assert_eq!(rule(Arch::A2, Matmul { a: Matrix { row: 3, ..good.a }, ..good }), Err(Rule::Range));
    let beside = Matrix { batch: [0, 2], ..good.c };
    assert_eq!(rule(Arch::A2, Matmul { batch: [1, 2], c: beside, ..good }), Err(Rule::Range));
}
