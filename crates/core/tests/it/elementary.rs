//! Elementary functions as C: compiled by the system's compiler, they give the bits of the definition.

use headwater_core::expr::elementary::{FUNCTIONS, scalar, text};
use std::path::Path;
use std::process::Command;

/// Bit patterns that are compared, besides the special ones.
const PATTERNS: u32 = 100_000;

/// Patterns spread evenly over all exponents, signs and mantissas, and numbers at which functions turn.
fn patterns() -> Vec<u32> {
    // An odd factor visits each pattern once; this one is 2³² over the golden ratio.
    let spread = (0..PATTERNS).map(|i| i.wrapping_mul(0x9E37_79B9));
    let special = [
        0.0,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        0.55,
        0.85,
        1.0,
        4.0,
        5.7,
        87.3,
        88.03,
        88.8,
        104.0,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let near = special.into_iter().flat_map(|x: f32| {
        let bits = x.to_bits();
        [bits.saturating_sub(1), bits, bits + 1].into_iter().flat_map(|b| [b, b | 1 << 31])
    });
    spread.chain(near).collect()
}

/// A program that reads patterns as words and writes the bits of each function of each, function by function.
fn program() -> String {
    let mut main = text::source(&text::C);
    main += "#include <stdio.h>\n\nint main(void) {\n    static uint32_t in[1 << 20], out[1 << 20];\n";
    main += "    size_t n = fread(in, 4, 1 << 20, stdin);\n";
    for function in FUNCTIONS {
        let name = text::name(function);
        main += "    for (size_t i = 0; i < n; i++) ";
        main += &format!("out[i] = hw_to_bits({name}(hw_from_bits(in[i])));\n");
        main += "    if (fwrite(out, 4, n, stdout) != n) return 1;\n";
    }
    main + "    return 0;\n}\n"
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn c_text_has_the_bits_of_the_definition() {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: c_text_has_the_bits_of_the_definition (no `cc` on this machine)");
        return;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("elementary");
    std::fs::create_dir_all(&dir).unwrap();
    let path = |name: &str| dir.join(name);
    std::fs::write(path("functions.c"), program()).unwrap();
    let patterns = patterns();
    let bytes: Vec<u8> = patterns.iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(path("in"), &bytes).unwrap();
    let compiled = Command::new("cc")
        .args(["-std=c99", "-O2", "-ffp-contract=off", "-Wall", "-Werror", "-o"])
        .args([path("functions"), path("functions.c")])
        .arg("-lm")
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran =
        Command::new(path("functions")).stdin(std::fs::File::open(path("in")).unwrap()).output().unwrap();
    assert!(ran.status.success());
    let got = words(&ran.stdout);
    assert_eq!(got.len(), FUNCTIONS.len() * patterns.len());
    for (function, got) in FUNCTIONS.iter().zip(got.chunks_exact(patterns.len())) {
        for (&x, &got) in patterns.iter().zip(got) {
            let x = f32::from_bits(x);
            let wanted = scalar::unary(*function, x).unwrap();
            let got = f32::from_bits(got);
            // IEEE leaves the payload of a NaN open.
            assert!(
                got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan(),
                "{function:?} of {x:e} ({:#x}): {got:e} in C, {wanted:e} here",
                x.to_bits()
            );
        }
    }
}

#[test]
fn cuda_text_uses_intrinsics_of_one_rounding() {
    let text = text::source(&text::CUDA);
    for function in FUNCTIONS {
        let head = format!("static __device__ __forceinline__ float {}(float x) {{", text::name(function));
        assert!(text.contains(&head), "{head}");
    }
    // One operation a line: nothing is left to contract.
    for line in text.lines().filter(|l| l.contains(" * ")) {
        assert!(!line.contains(" + ") && !line.contains(" - "), "{line}");
    }
    assert!(text.contains("__fmaf_rn(") && !text.contains("memcpy") && !text.contains("fmaf("));
}
