//! CUDA C: the prelude that every unit begins with, and the expressions of row programs.

mod scalar;

pub(crate) use scalar::{Classes, constant, load, memory, store, value};

use headwater_core::expr::elementary::text::{CUDA, Dialect, source};
use std::sync::LazyLock;

/// Elementary functions in CUDA C. Their words for bits and fused multiply-adds are the prelude's, so that
/// only its middle part knows the chip.
const DIALECT: Dialect = Dialect {
    unsigned: "u32",
    signed: "i32",
    to_bits: "hw_bits",
    from_bits: "hw_float",
    fma: "hw_fma",
    function: "HW_FN",
    table: "HW_TABLE",
    ..CUDA
};

/// All that kernels use besides plain arithmetic, and the elementary functions of f32, whose bits
/// `headwater_core` defines for all devices.
pub static PRELUDE: LazyLock<String> =
    LazyLock::new(|| format!("{}\n{}", include_str!("prelude.h"), source(&DIALECT).trim_start()));

/// Files that a unit includes, by name.
pub static HEADERS: LazyLock<[(&str, &str); 1]> = LazyLock::new(|| [("headwater.h", PRELUDE.as_str())]);

/// Statements with each block indented.
pub(crate) fn indented(body: &str) -> String {
    let (mut out, mut depth) = (String::with_capacity(body.len()), 1usize);
    for line in body.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let closed = line.chars().take_while(|c| matches!(c, '}' | ' ')).filter(|c| *c == '}').count();
        let (opens, closes) = (line.matches('{').count(), line.matches('}').count());
        out.push_str(&"    ".repeat(depth.saturating_sub(closed).max(1)));
        out.push_str(line);
        out.push('\n');
        depth = (depth + opens).saturating_sub(closes).max(1);
    }
    out
}

/// A unit that compiles by itself, beside its [`HEADERS`].
pub fn unit(kernels: &[String]) -> String {
    let mut text = String::from("#include \"headwater.h\"\n");
    kernels.iter().for_each(|kernel| {
        text.push('\n');
        text.push_str(kernel);
    });
    text
}
