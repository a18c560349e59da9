//! Every instruction once on each chip: text, verifier, and the emitted source through a C++ compiler.

use headwater_ascend::emit::{BEGIN, END, emit};
use headwater_ascend::kernel::*;
use headwater_ascend::kernels::{Attention, HeadRows, Matmul, Matrix, add, attention, matmul};
use headwater_ascend::{Arch, Finding, Rule};
use std::collections::BTreeSet;
use std::process::Command;

/// Checks a source's syntax and types; false where the machine has no C++ compiler.
fn compiles(name: &str, arch: Arch, source: &str) -> bool {
    let Some(compiler) =
        ["g++", "clang++"].into_iter().find(|c| Command::new(c).arg("--version").output().is_ok())
    else {
        eprintln!("no g++ and no clang++ here: the syntax of {name} is not checked");
        return false;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("{name}.cpp"));
    std::fs::write(&file, source).unwrap();
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/check");
    let out = Command::new(compiler)
        .args(["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
        .args([format!("-D__NPU_ARCH__={arch}"), format!("-isystem{header}")])
        .arg(&file)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}\n{source}", String::from_utf8_lossy(&out.stderr));
    true
}

/// Exact text, and a source that compiles and carries it.
fn goes_through(program: &Program) {
    let text = program.to_string();
    let again = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(again, *program, "{text}");
    let source = emit(program);
    let carried: String = source
        .lines()
        .skip_while(|l| !l.starts_with(BEGIN))
        .skip(1)
        .take_while(|l| *l != END)
        .map(|l| format!("{}\n", l.trim_start_matches("//").strip_prefix(' ').unwrap_or("")))
        .collect();
    assert_eq!(parse(&carried).unwrap(), *program, "the source carries the program");
    compiles(&program.name, program.arch, &source);
}

fn names(program: &Program, into: &mut BTreeSet<&'static str>) {
    for part in &program.parts {
        Program::walk(&part.body, &mut |stmt| {
            if let StmtKind::Instr(instr) = &stmt.kind {
                into.insert(instr.name());
            }
        });
    }
}

/// Products with tails in every dimension and a bias; a and b are stored transposed or not.
fn product([a, b]: [bool; 2]) -> Matmul {
    let matrix = |row, transposed| Matrix { transposed, row, batch: [row * row, 0] };
    Matmul {
        elem: Elem::F16,
        out: Elem::F16,
        m: 130,
        n: 67,
        k: 300,
        batch: [2, 1],
        a: matrix(300, a),
        b: matrix(300, b),
        c: matrix(300, false),
        bias: true,
    }
}

/// Attention by cooperating cube and vector cores, with tails of queries and keys.
fn attentions() -> [Program; 2] {
    let place = |heads: u64| HeadRows { row: 64 * heads, head: 64, sample: 1100 * 64 * heads };
    [(Elem::F16, false), (Elem::BF16, true)].map(|(elem, causal)| {
        let shape = Attention {
            elem,
            samples: 2,
            heads: [4, 2, 2],
            lens: [1001, 1100],
            widths: [64, 64],
            places: [place(4), place(2), place(2), place(4)],
            numbers: [1001, 4004],
            scale: 0.125,
            causal,
            blocks: 24,
        };
        attention(Arch::A2, &shape).unwrap()
    })
}

/// Instructions of vector units.
fn vectors(arch: Arch) -> Program {
    let unit = if arch == Arch::A2 { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&format!("vectors_{arch}"), arch, unit);
    k.doc("every instruction of \"vector\" units, with an odd \\ in the text");
    let x = k.input("x", Elem::F32, 4096);
    let y = k.pointer("y", Access::InOut, Elem::F32, 4096);
    let counters = k.pointer("counters", Access::InOut, Elem::I32, 64);
    let n = k.int_param("n");
    let scale = k.float_param("scale");
    let [a, b, c] = ["a", "b", "c"].map(|name| k.ub(name, Elem::F32, 1024));
    let bits = k.ub("truths", Elem::U8, 512);
    let h = a.cast(Elem::F16);
    let over = || Over::repeats(64, 4);
    k.copy(a.at(0), x.at(0), 1024);
    k.copy_runs(b.at(0), x.at(1024), 4, n.clone().min(8), 1, 2);
    for op in Unary::ALL {
        let view = if *op == Unary::Not { Elem::U16 } else { Elem::F32 };
        k.unary(*op, c.cast(view).at(0), a.cast(view).at(0), Over::count(512));
        k.unary(*op, c.cast(view).at(0).strided(1, 9), a.cast(view).at(0), over());
    }
    for op in Binary::ALL {
        let view = match op {
            Binary::And | Binary::Or => Elem::I16,
            Binary::AddWrapping | Binary::SubWrapping | Binary::MulWrapping => Elem::I32,
            _ => Elem::F32,
        };
        let [d, s, t] = [c, a, b].map(|buffer| buffer.cast(view).at(0));
        k.binary(*op, &d, &s, &t, Over::count(n.clone()));
        k.binary(*op, d, s.strided(0, 1), t, Over::bits([0x5555, 0], 3));
    }
    for op in Scaled::ALL {
        let shift = matches!(op, Scaled::ShiftLeft | Scaled::ShiftRight);
        if shift && arch == Arch::P310 {
            continue;
        }
        let wraps = matches!(op, Scaled::AddsWrapping | Scaled::MulsWrapping);
        let view = if shift { Elem::U32 } else { [Elem::F32, Elem::I32][usize::from(wraps)] };
        let scalar = if shift || wraps { Scalar::Int(3) } else { scale.clone() * 2.0f32 };
        k.scaled(*op, c.cast(view).at(0), a.cast(view).at(0), scalar.clone(), Over::count(100));
        k.scaled(*op, c.cast(view).at(0), a.cast(view).at(0), scalar, over());
    }
    k.duplicate(c.at(0), f32::NEG_INFINITY, Over::count(8));
    k.duplicate(c.cast(Elem::I16).at(0), 7, Over::bits([1 << 40, 1], 1));
    k.cast(c.at(0), b.cast(Elem::F16).at(0).strided(1, 4), Round::None, over());
    k.cast(b.cast(Elem::F16).at(0), c.at(0), Round::None, Over::count(256));
    let deq = Cast {
        dst: b.cast(Elem::F16).at(0).into(),
        src: a.cast(Elem::I32).at(0).into(),
        round: Round::None,
        scale: Some(Real(0.5)),
        over: Over::count(64),
    };
    k.issue(deq);
    for cmp in Compare::ALL {
        k.compare(bits.at(0), a.at(0), b.at(0), *cmp, Over::count(512));
    }
    k.compare(bits.at(0), a.at(0), b.at(0), Compare::Lt, Over::repeats(64, 2));
    for over in [Over::count(512), Over::repeats(64, 2)] {
        let (dst, src) = (bits.at(32), Vector::from(a.at(0)));
        k.issue(CompareScalar { dst, src, scalar: scale.clone(), cmp: Compare::Ge, over: over.clone() });
        k.select(c.at(0), bits.at(0), a.at(0), b.at(0), over.clone());
        let (dst, src) = (Vector::from(c.at(0)), Vector::from(a.at(0)));
        k.issue(SelectScalar { dst, mask: bits.at(0), src, scalar: 0.0f32.into(), over });
    }
    for op in Reduction::ALL {
        let order = matches!(op, Reduction::WholeMax | Reduction::WholeMin).then_some(Order::ValueIndex);
        for mask in [Mask::First(n.clone()), Mask::Bits([3, 0])] {
            let src = Vector::from(a.at(0));
            k.issue(Reduce { op: *op, dst: c.at(0), src, mask, repeat: 4.into(), dst_repeat: 1, order });
        }
    }
    let offsets = b.cast(Elem::U32).at(0);
    k.issue(Gather { dst: c.at(0), src: a.at(0), offsets, base: 4.into(), count: 64.into() });
    let src = Vector::from(a.at(0));
    k.issue(GatherMask { dst: c.at(0), src, pattern: 1, count: 64.into(), repeat: 2.into() });
    k.issue(Brcb { dst: c.at(0).into(), src: a.at(0), repeat: 2.into() });
    k.issue(Ramp { dst: c.at(0), first: 1.0f32.into(), count: 64.into() });
    k.issue(Transpose { dst: c.cast(Elem::F16).at(0), src: h.at(0) });
    let rows = |buffer: Buf| (0..16).map(|i| buffer.at(i * 8)).collect();
    k.issue(TransposeRows { dst: rows(c), src: rows(a), repeat: 1.into(), dst_repeat: 2, src_repeat: 0 });
    k.note("scalars of GM go through a cache");
    let first = k.load("first", x.at(0));
    k.store(y.at(0), first);
    k.issue(CacheFlush { line: y.at(0) });
    let count = k.load("count", counters.at(n.clone() % 8));
    k.while_(count.clone().lt(0), |k| k.store(a.cast(Elem::I32).at(0), count.clone()));
    k.if_else(n.clone().eq(1), |k| k.store(a.at(1), 1.0f32), |k| k.store(a.at(1), scale.clone().sqrt()));
    k.copy_atomic(y.at(0), c.at(0), 1024, AtomicOp::Add);
    k.flag(Pipe::Mte2, Pipe::V, 1);
    k.flag(Pipe::V, Pipe::Mte3, n % 2);
    let barriers = Barrier::ALL.iter().filter(|b| match arch {
        Arch::A2 => !matches!(b, Barrier::M | Barrier::Mte1 | Barrier::Fix),
        Arch::P310 => !matches!(b, Barrier::Cores | Barrier::Fix),
    });
    barriers.for_each(|b| k.barrier(*b));
    k.issue(SyncSoft { gm: counters.at(0), ub: a.cast(Elem::I32).at(0), cores: 8.into() });
    if arch == Arch::A2 {
        let fill = Some(Fill(Value::Float(-1.5)));
        let pad = DataCopyPad {
            dst: a.at(0),
            src: x.at(1),
            blocks: 2.into(),
            bytes: 20.into(),
            src_gap: 4.into(),
            dst_gap: 1.into(),
            left: 1,
            right: 2,
            fill,
            atomic: None,
        };
        k.issue(pad);
        k.copy_pad(y.at(3), c.at(0), 2, 20, 0, 4);
        let index = b.cast(Elem::U32).at(0);
        k.issue(Sort32 { dst: c.at(0), score: a.at(0), index, repeat: 2.into() });
        let src = vec![c.at(0), c.at(64)];
        k.issue(MergeSort { dst: a.at(0), src, lengths: vec![32, 32], repeat: 1.into() });
        k.issue(CrossSet { mode: 0, pipe: Pipe::Mte3, id: 3.into() });
        k.issue(CrossWait { mode: 0, pipe: Pipe::Mte2, id: 3.into() });
    }
    k.finish().unwrap_or_else(|f| panic!("{f}"))
}

/// Instructions of cube units.
fn cubes(arch: Arch) -> Program {
    let unit = if arch == Arch::A2 { Unit::Cube } else { Unit::Whole };
    let mut k = Builder::new(&format!("cubes_{arch}"), arch, unit);
    let x = k.input("x", Elem::F16, 65536);
    let y = k.output("y", Elem::F32, 65536);
    let l1 = k.buffer("image", Space::L1, Elem::F16, 65536, None);
    let a = k.buffer("left", Space::L0a, Elem::F16, 16384, None);
    let b = k.buffer("right", Space::L0b, Elem::F16, 8192, None);
    let c = k.buffer("sums", Space::L0c, Elem::F32, 4096, None);
    k.copy(l1.at(0), x.at(0), 4096);
    k.issue(LoadData2d {
        dst: a.at(0),
        src: l1.at(0),
        start: 1.into(),
        repeat: 4.into(),
        src_stride: 2.into(),
        dst_gap: 0.into(),
        transpose: true,
    });
    let image = LoadData3d {
        dst: a.at(0),
        src: l1.at(0),
        size: [8, 8],
        channels: 16.into(),
        k: 144.into(),
        m: 64.into(),
        k_start: 0.into(),
        m_start: 0.into(),
        stride: [1, 1],
        filter: [3, 3],
        dilation: [1, 1],
        pad: [1, 1, 1, 1],
        pad_value: 0.into(),
        transpose: false,
        pro: false,
    };
    k.issue(image.clone());
    k.issue(LoadData3d { channels: 32.into(), pro: true, ..image });
    let mut product = Mmad {
        c: c.at(0),
        a: a.at(0),
        b: b.at(0),
        bias: None,
        m: 64.into(),
        n: 32.into(),
        k: 64.into(),
        init: 1.into(),
        unit_flag: UnitFlag::Off,
        hf32: false,
    };
    k.issue(product.clone());
    if arch == Arch::P310 {
        let out = k.ub("out", Elem::F16, 4096);
        k.issue(CopyL0c {
            dst: out.at(0),
            src: c.at(0),
            blocks: 2.into(),
            len: 4.into(),
            src_gap: 0.into(),
            dst_gap: 0.into(),
            relu: true,
        });
        k.copy(l1.at(0), out.at(0), 1024);
        k.copy(y.at(0), out.cast(Elem::F32).at(0), 1024);
    } else {
        k.issue(CopyNdToNz {
            dst: l1.at(0),
            src: x.at(0),
            matrices: 1.into(),
            n: 64.into(),
            d: 64.into(),
            src_matrix: 0.into(),
            src_row: 128.into(),
            dst_c0: 64.into(),
            dst_row: 1.into(),
            dst_matrix: 0.into(),
        });
        k.issue(LoadDataTransposed {
            dst: b.at(0),
            src: l1.at(0),
            start: 0.into(),
            repeat: 4.into(),
            src_stride: 1.into(),
            dst_gap: 0.into(),
            dst_fractal_gap: 0.into(),
        });
        let value = 0.0f32.into();
        k.issue(InitConst { dst: l1.at(0), repeat: 1.into(), len: 8.into(), gap: 0.into(), value });
        let bias = k.buffer("bias", Space::Bt, Elem::F32, 64, None);
        k.copy_runs(bias.at(0), l1.cast(Elem::F32).at(0), 1, 2, 0, 0);
        product.bias = Some(bias.at(0));
        product.unit_flag = UnitFlag::Set;
        k.issue(product.clone());
        product.bias = None;
        product.hf32 = true;
        (product.a, product.b) = (a.cast(Elem::F32).at(0), b.cast(Elem::F32).at(0));
        k.issue(product);
        for (dst, quant) in [(y.at(0), Quant::Off), (y.at(0).cast(Elem::F16), Quant::F16)] {
            let (n, m, src_stride, dst_stride) = (32.into(), 64.into(), 64.into(), 32.into());
            k.issue(Fixpipe {
                dst,
                src: c.at(0),
                n,
                m,
                src_stride,
                dst_stride,
                layout: Layout::Nd,
                quant,
                relu: true,
                unit_flag: UnitFlag::Set,
                atomic: Some(AtomicOp::Add),
            });
        }
    }
    k.finish().unwrap_or_else(|f| panic!("{f}"))
}

#[test]
fn every_instruction_prints_parses_and_compiles() {
    let mut seen = BTreeSet::new();
    for arch in Arch::ALL {
        let mut programs = vec![vectors(arch), cubes(arch), add(arch, Elem::F16, 100_003, 4096).unwrap()];
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            programs.push(matmul(arch, &product(transposed)).unwrap());
        }
        if arch == Arch::A2 {
            programs.extend(attentions());
        }
        for program in programs {
            names(&program, &mut seen);
            goes_through(&program);
        }
    }
    let barriers = Barrier::ALL.iter().map(|b| b.name()).filter(|b| *b != "barrier_fix").count();
    let groups = Unary::ALL.len() + Binary::ALL.len() + Scaled::ALL.len() + Reduction::ALL.len() + barriers;
    // Instructions of their own, counted in the table: a new one must come into this test.
    assert_eq!(seen.len(), groups + 32, "{seen:?}");
}

#[test]
fn what_is_wrong_with_a_source_is_seen() {
    let source = emit(&add(Arch::P310, Elem::F16, 4096, 1024).unwrap());
    let wrong = source.replace("DataCopyParams(1,", "DataCopyPadParams(1,");
    assert_ne!(source, wrong);
    let result = std::panic::catch_unwind(|| compiles("wrong", Arch::P310, &wrong));
    assert!(matches!(result, Err(_) | Ok(false)));
}

#[test]
fn what_a_chip_has_not_is_refused() {
    // Programs of one chip on the other.
    for program in [vectors(Arch::A2), cubes(Arch::A2)] {
        let mut moved = program.clone();
        moved.arch = Arch::P310;
        moved.parts[0].unit = Unit::Whole;
        moved.buffers.iter_mut().filter(|b| b.space == Space::Bt).for_each(|b| b.bytes = 0);
        let findings = verify(&moved).unwrap_err();
        assert!(
            findings.iter().all(|f| f.rule == Rule::Unsupported || f.rule == Rule::Memory),
            "{}",
            findings[0]
        );
        assert!(findings.len() > 4, "{}", findings.len());
    }
    let mut bf16 = add(Arch::A2, Elem::F16, 4096, 1024).unwrap();
    bf16.arch = Arch::P310;
    bf16.parts[0].unit = Unit::Whole;
    assert!(verify(&bf16).unwrap_err().iter().any(|f| f.message.contains("any number of bytes")));
    let shift = Builder::finish({
        let mut k = Builder::new("shift", Arch::P310, Unit::Whole);
        let a = k.ub("a", Elem::I32, 64);
        k.duplicate(a.at(0), 1, Over::count(64));
        k.scaled(Scaled::ShiftRight, a.at(0), a.at(0), 1, Over::count(64));
        k
    });
    assert_eq!(shift.unwrap_err().rule, Rule::Unsupported);
}

/// While its `TPipe` lives, the vendor's library holds flags of its own; a ramp begins on the scalar unit.
#[test]
fn flags_of_the_library_are_left_to_it() {
    let with = |arch: Arch, from, to, id: i64| {
        let unit = if arch == Arch::P310 {
            Unit::Whole
        } else {
            [Unit::Vector, Unit::Cube][usize::from(from == Pipe::M)]
        };
        let mut k = Builder::new("flags", arch, unit);
        k.flag(from, to, id);
        k.finish()
    };
    assert_eq!(with(Arch::A2, Pipe::M, Pipe::Mte1, 2).unwrap_err().rule, Rule::Range);
    assert_eq!(with(Arch::A2, Pipe::V, Pipe::S, 5).unwrap_err().rule, Rule::Range);
    for (arch, from, to, id) in [
        (Arch::A2, Pipe::M, Pipe::Mte1, 3),
        (Arch::P310, Pipe::M, Pipe::Mte1, 0),
        (Arch::A2, Pipe::V, Pipe::S, 4),
        (Arch::A2, Pipe::S, Pipe::V, 5),
    ] {
        with(arch, from, to, id).unwrap();
    }
    for arch in Arch::ALL {
        let source = emit(&vectors(arch));
        let lines: Vec<&str> = source.lines().map(str::trim).collect();
        let at = lines.iter().position(|line| line.starts_with("CreateVecIndex(")).unwrap();
        assert_eq!(lines[at - 2..at], ["SetFlag<HardEvent::V_S>(5);", "WaitFlag<HardEvent::V_S>(5);"]);
    }
}

/// Every rule of a tile's load, broken alone: of asc-devkit's page on `LoadData` of images, and of its
/// header's check.
#[test]
fn rules_of_images_are_kept() {
    type Change = fn(&mut LoadData3d);
    type Legal = Result<Program, Box<Finding>>;
    // A legal instruction of each form; `right` goes to L0B.
    let load = |arch: Arch, elem: Elem, right: bool, pro: bool, change: &dyn Fn(&mut LoadData3d)| -> Legal {
        let unit = if arch == Arch::A2 { Unit::Cube } else { Unit::Whole };
        let mut k = Builder::new("load", arch, unit);
        let image = k.buffer("image", Space::L1, elem, 65536, None);
        let near = k.buffer("near", if right { Space::L0b } else { Space::L0a }, elem, 8192, None);
        let mut x = LoadData3d {
            dst: near.at(0),
            src: image.at(0),
            size: [1, 64],
            channels: (32 / elem.size() + 4).into(),
            k: 32.into(),
            m: 32.into(),
            k_start: 0.into(),
            m_start: 0.into(),
            stride: [1, 1],
            filter: [1, 1],
            dilation: [1, 1],
            pad: [0; 4],
            pad_value: 0.into(),
            transpose: false,
            pro,
        };
        change(&mut x);
        k.issue(x);
        k.finish()
    };
    let refused = |what: &str, rule: Rule, result: Legal| match result {
        Err(finding) => assert_eq!(finding.rule, rule, "{what}: {finding}"),
        Ok(_) => panic!("{what} is taken"),
    };
    let fields: [(&str, Rule, Change); 26] = [
        ("an image without rows", Rule::Range, |x| x.size[0] = 0),
        ("an image of 32768 rows", Rule::Range, |x| x.size[0] = 32768),
        ("an image without columns", Rule::Range, |x| x.size[1] = 0),
        ("an image of 32768 columns", Rule::Range, |x| x.size[1] = 32768),
        ("no channels", Rule::Range, |x| x.channels = 0.into()),
        ("65536 channels", Rule::Range, |x| x.channels = 65536.into()),
        ("no columns", Rule::Range, |x| x.k = 0.into()),
        ("65536 columns", Rule::Range, |x| x.k = 65536.into()),
        ("columns of a part of a fractal", Rule::Alignment, |x| x.k = 28.into()),
        ("no rows", Rule::Range, |x| x.m = 0.into()),
        ("65536 rows", Rule::Range, |x| x.m = 65536.into()),
        ("rows of a part of a fractal", Rule::Alignment, |x| x.m = 24.into()),
        ("a first column within a fractal", Rule::Alignment, |x| x.k_start = 4.into()),
        ("a first column of 65536", Rule::Range, |x| x.k_start = 65536.into()),
        ("a first row within a fractal", Rule::Alignment, |x| x.m_start = 8.into()),
        ("a first row of 32768", Rule::Range, |x| x.m_start = 32768.into()),
        ("a stride of 0", Rule::Range, |x| x.stride[1] = 0),
        ("a stride of 64", Rule::Range, |x| x.stride[0] = 64),
        ("a filter of 0", Rule::Range, |x| x.filter[0] = 0),
        ("a filter of 256", Rule::Range, |x| x.filter[1] = 256),
        ("a dilation of 0", Rule::Range, |x| x.dilation[0] = 0),
        ("a dilation of 256", Rule::Range, |x| x.dilation[1] = 256),
        ("padding of 256", Rule::Range, |x| x.pad[3] = 256),
        ("a source within a block", Rule::Alignment, |x| x.src.offset = 8.into()),
        ("a destination within a fractal", Rule::Alignment, |x| x.dst.offset = 16.into()),
        ("other types", Rule::Unsupported, |x| x.dst.elem = Elem::I16),
    ];
    let ends: [Change; 6] = [
        |x| x.size = [32767, 32767],
        |x| (x.stride, x.filter, x.dilation) = ([63, 63], [255, 255], [255, 255]),
        |x| x.pad = [255; 4],
        |x| x.m_start = 32752.into(),
        |x| x.k_start = 65504.into(),
        |x| x.channels = 65524.into(),
    ];
    for (arch, pro) in Arch::ALL.into_iter().flat_map(|arch| [(arch, false), (arch, true)]) {
        let of = |change: Change| load(arch, Elem::F16, false, pro, &change);
        of(|_| {}).unwrap();
        fields.iter().for_each(|(what, rule, change)| refused(what, *rule, of(*change)));
        // Fields at their ends, some of images beyond the buffer.
        for end in ends {
            assert!(of(end).err().is_none_or(|finding| finding.rule == Rule::Bounds));
        }
        // Tiles are transposed on their way to L0A, where they are of 16 bits.
        let turned: Change = |x| x.transpose = true;
        of(turned).unwrap();
        refused("a transposed tile for L0B", Rule::Unsupported, load(arch, Elem::F16, true, pro, &turned));
        refused("a transposed tile of bytes", Rule::Unsupported, load(arch, Elem::I8, false, pro, &turned));
        // Types of each chip, and of each memory.
        let types = [Elem::I8, Elem::U8, Elem::F16, Elem::BF16, Elem::I32, Elem::U32, Elem::F32];
        for (elem, right) in types.into_iter().flat_map(|elem| [(elem, false), (elem, true)]) {
            let has = match arch {
                Arch::P310 => elem.size() == 1 && !(pro && right) || elem == Elem::F16,
                Arch::A2 => elem.size() > 1 || !right,
            };
            match has {
                true => drop(load(arch, elem, right, pro, &|_| {}).unwrap()),
                false => refused(elem.name(), Rule::Unsupported, load(arch, elem, right, pro, &|_| {})),
            }
        }
        // Channels beside whole fractals: 310P has none of the first form but a single one.
        let all = pro || arch == Arch::A2;
        for (elem, channels, taken) in [
            (Elem::F16, 4, true),
            (Elem::F16, 8, true),
            (Elem::F16, 12, false),
            (Elem::F16, 16, true),
            (Elem::F16, 18, false),
            (Elem::F16, 20, true),
            (Elem::F16, 24, true),
            (Elem::F16, 32, all),
            (Elem::F16, 128, all),
            (Elem::F16, 256, all),
            (Elem::I8, 4, true),
            (Elem::I8, 12, false),
            (Elem::I8, 16, true),
            (Elem::I8, 32, true),
            (Elem::I8, 48, true),
            (Elem::I8, 64, all),
            (Elem::F32, 4, arch == Arch::A2),
            (Elem::F32, 6, false),
            (Elem::F32, 12, arch == Arch::A2),
            (Elem::F32, 64, arch == Arch::A2),
        ] {
            let result = load(arch, elem, false, pro, &|x| x.channels = channels.into());
            let legal = result.err().is_none_or(|finding| finding.rule == Rule::Bounds);
            assert_eq!(legal, taken, "{arch} {elem} {channels} {pro}");
        }
    }
}

/// Products of 310P use the form that takes whole fractals of channels.
#[test]
fn products_load_by_the_form_that_their_chip_has() {
    for (arch, own, other) in [
        (Arch::P310, "LoadData3DParamsV2Pro params_;", "LoadData3DParamsV2<"),
        (Arch::A2, "LoadData3DParamsV2<half> params_;", "LoadData3DParamsV2Pro"),
    ] {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            let source = emit(&matmul(arch, &product(transposed)).unwrap());
            let code = source.split(BEGIN).next().unwrap();
            assert!(code.contains(own) && !code.contains(other), "{arch} {transposed:?}");
        }
    }
}
