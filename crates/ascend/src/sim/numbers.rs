//! Numbers of the vector and cube units: reading, writing, conversion with each rounding.
//!
//! Sums, products, quotients and roots of f16 are rounded once: f32 has more than twice its bits. `exp` and
//! `ln` are those of `libm`, rounded; the chips' own differ in the last place and are not published.

use crate::kernel::{Elem, Round};
use half::{bf16, f16};

/// Reads elements of a floating-point type as f32; `from` has a multiple of the element's size.
#[inline]
pub fn read_floats(elem: Elem, from: &[u8], to: &mut [f32]) {
    match elem {
        Elem::F32 => {
            for (x, b) in to.iter_mut().zip(from.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*b);
            }
        }
        Elem::F16 => {
            for (x, b) in to.iter_mut().zip(from.as_chunks::<2>().0) {
                *x = f16_to_f32(u16::from_le_bytes(*b));
            }
        }
        _ => {
            for (x, b) in to.iter_mut().zip(from.as_chunks::<2>().0) {
                *x = bf16_to_f32(u16::from_le_bytes(*b));
            }
        }
    }
}

/// Writes f32 as elements of a floating-point type, to nearest, ties to even.
#[inline]
pub fn write_floats(elem: Elem, from: &[f32], to: &mut [u8]) {
    match elem {
        Elem::F32 => {
            for (x, b) in from.iter().zip(to.as_chunks_mut::<4>().0) {
                *b = x.to_le_bytes();
            }
        }
        Elem::F16 => {
            for (x, b) in from.iter().zip(to.as_chunks_mut::<2>().0) {
                *b = f32_to_f16(*x).to_le_bytes();
            }
        }
        _ => {
            for (x, b) in from.iter().zip(to.as_chunks_mut::<2>().0) {
                *b = f32_to_bf16(*x).to_le_bytes();
            }
        }
    }
}

// Conversions of 16-bit floats without branches, which compilers turn into vector code. NaN keeps its sign
// and the bits of its payload that fit, and becomes quiet.

/// A half's value. The product with 2¹¹² moves the exponent's bias and makes subnormal halves normal,
/// exactly.
#[inline]
fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let quiet = if half & 0x3ff != 0 { 0x40_0000 } else { 0 };
    let bits = if half & 0x7c00 == 0x7c00 { magnitude | 0x7f80_0000 | quiet } else { finite };
    f32::from_bits(bits | u32::from(half & 0x8000) << 16)
}

/// The half nearest to a float, ties to even. Below 2⁻¹⁴, adding 0.5 lets the float's own addition round to
/// 2⁻²⁴.
#[inline]
fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    let large = if magnitude > 0x7f80_0000 { nan } else { 0x7c00 };
    let half = if magnitude < 113 << 23 { small } else { normal };
    let half = if magnitude >= 143 << 23 { large } else { half };
    (half | bits >> 16 & 0x8000) as u16
}

/// A bf16's value.
#[inline]
fn bf16_to_f32(x: u16) -> f32 {
    let quiet = if x & 0x7fff > 0x7f80 { 0x40 } else { 0 };
    f32::from_bits(u32::from(x | quiet) << 16)
}

/// The bf16 nearest to a float, ties to even.
#[inline]
fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { nearest }) as u16
}

/// Largest number of f16.
const LARGEST: f32 = 65504.0;

/// A result of f16 as saturation mode has it.
pub fn saturated(x: f64) -> f64 {
    let largest = f64::from(LARGEST);
    if x.is_nan() { 0.0 } else { x.clamp(-largest, largest) }
}

/// The same of several.
pub fn saturate(results: &mut [f32]) {
    for x in results {
        *x = if x.is_nan() { 0.0 } else { x.clamp(-LARGEST, LARGEST) };
    }
}

/// Reads one integer.
pub fn read_int(elem: Elem, b: &[u8]) -> i64 {
    let mut bytes = [0; 8];
    let size = elem.size() as usize;
    bytes[..size].copy_from_slice(&b[..size]);
    let x = i64::from_le_bytes(bytes);
    match elem {
        Elem::I8 => i64::from(x as i8),
        Elem::I16 => i64::from(x as i16),
        Elem::I32 => i64::from(x as i32),
        _ => x,
    }
}

/// Writes the low bits of one integer.
pub fn write_int(elem: Elem, x: i64, b: &mut [u8]) {
    let size = elem.size() as usize;
    b[..size].copy_from_slice(&x.to_le_bytes()[..size]);
}

/// Reads integers; of floating-point types the bits.
pub fn read_ints(elem: Elem, from: &[u8], to: &mut [i64]) {
    match elem {
        Elem::I32 | Elem::F32 => {
            for (x, b) in to.iter_mut().zip(from.as_chunks::<4>().0) {
                *x = i64::from(i32::from_le_bytes(*b));
            }
        }
        Elem::U32 => {
            for (x, b) in to.iter_mut().zip(from.as_chunks::<4>().0) {
                *x = i64::from(u32::from_le_bytes(*b));
            }
        }
        _ => {
            for (x, b) in to.iter_mut().zip(from.chunks_exact(elem.size() as usize)) {
                *x = read_int(elem, b);
            }
        }
    }
}

/// Writes the low bits of integers.
pub fn write_ints(elem: Elem, from: &[i64], to: &mut [u8]) {
    match elem.size() {
        4 => {
            for (x, b) in from.iter().zip(to.as_chunks_mut::<4>().0) {
                *b = (*x as i32).to_le_bytes();
            }
        }
        size => {
            for (x, b) in from.iter().zip(to.chunks_exact_mut(size as usize)) {
                write_int(elem, *x, b);
            }
        }
    }
}

/// Reads one number of any type but i64 exactly.
pub fn read_number(elem: Elem, b: &[u8]) -> f64 {
    match elem.is_float() {
        true => {
            let mut out = [0.0];
            read_floats(elem, &b[..elem.size() as usize], &mut out);
            f64::from(out[0])
        }
        false => read_int(elem, b) as f64,
    }
}

/// Largest and smallest number of an integer type.
fn int_range(elem: Elem) -> (f64, f64) {
    match elem {
        Elem::I8 => (-128.0, 127.0),
        Elem::U8 => (0.0, 255.0),
        Elem::I16 => (-32768.0, 32767.0),
        Elem::U16 => (0.0, 65535.0),
        Elem::I32 => (-2_147_483_648.0, 2_147_483_647.0),
        Elem::U32 => (0.0, 4_294_967_295.0),
        _ => (i64::MIN as f64, i64::MAX as f64),
    }
}

/// `x` as an integer of type `elem`, saturating; NaN gives 0.
pub fn to_int(x: f64, elem: Elem, round: Round) -> i64 {
    let x = match round {
        Round::Floor => x.floor(),
        Round::Ceil => x.ceil(),
        Round::Trunc => x.trunc(),
        Round::Round => x.round(),
        Round::None | Round::Rint | Round::Odd => x.round_ties_even(),
    };
    let (low, high) = int_range(elem);
    x.clamp(low, high) as i64
}

/// `x` as a whole number, as conversions of f32 to f32 give it.
pub fn whole(x: f32, round: Round) -> f32 {
    match round {
        Round::Floor => x.floor(),
        Round::Ceil => x.ceil(),
        Round::Trunc => x.trunc(),
        Round::Round => x.round(),
        Round::None | Round::Rint | Round::Odd => x.round_ties_even(),
    }
}

/// A number of a floating-point type beside `x`: one unit in the last place up or down.
fn neighbour(elem: Elem, x: f64, up: bool) -> f64 {
    let step16 = |bits: u16| -> u16 {
        match (bits & 0x7fff, bits >> 15 == 0, up) {
            (0, _, true) => 1,
            (0, _, false) => 0x8001,
            (_, true, true) | (_, false, false) => bits + 1,
            _ => bits - 1,
        }
    };
    match elem {
        Elem::F32 => f64::from(if up { (x as f32).next_up() } else { (x as f32).next_down() }),
        Elem::F16 => f16::from_bits(step16(f16::from_f64(x).to_bits())).to_f64(),
        _ => bf16::from_bits(step16(bf16::from_f64(x).to_bits())).to_f64(),
    }
}

/// `x` to nearest, ties to even.
fn nearest(elem: Elem, x: f64) -> f64 {
    match elem {
        Elem::F32 => f64::from(x as f32),
        Elem::F16 => headwater_core::DType::F16.round(x),
        _ => headwater_core::DType::BF16.round(x),
    }
}

/// `x` as a number of a floating-point type.
pub fn to_float(x: f64, elem: Elem, round: Round) -> f64 {
    let y = nearest(elem, x);
    if y == x || !x.is_finite() {
        return y;
    }
    let (below, above) = if y < x { (y, neighbour(elem, y, true)) } else { (neighbour(elem, y, false), y) };
    let toward_zero = if x > 0.0 { below } else { above };
    match round {
        Round::None | Round::Rint => y,
        Round::Floor => below,
        Round::Ceil => above,
        Round::Trunc => toward_zero,
        Round::Round => match (x - below).total_cmp(&(above - x)) {
            std::cmp::Ordering::Less => below,
            std::cmp::Ordering::Greater => above,
            std::cmp::Ordering::Equal => below + above - toward_zero,
        },
        Round::Odd => {
            let odd = |x: f64| match elem {
                Elem::F32 => (x as f32).to_bits() & 1 == 1,
                Elem::F16 => f16::from_f64(x).to_bits() & 1 == 1,
                _ => bf16::from_f64(x).to_bits() & 1 == 1,
            };
            if odd(toward_zero) { toward_zero } else { below + above - toward_zero }
        }
    }
}

/// Writes one number, rounded.
pub fn write_number(elem: Elem, x: f64, round: Round, b: &mut [u8]) {
    match elem.is_float() {
        true => write_floats(elem, &[to_float(x, elem, round) as f32], &mut b[..elem.size() as usize]),
        false => write_int(elem, to_int(x, elem, round), b),
    }
}

/// An i64 as f64, with the last bit set if it is not exact: rounding it once more, to f32, is then right.
pub fn odd_f64(x: i64) -> f64 {
    let y = x as f64;
    let back = y as i128;
    if back == i128::from(x) {
        return y;
    }
    let toward_zero =
        if back.unsigned_abs() > x.unsigned_abs().into() { f64::from_bits(y.to_bits() - 1) } else { y };
    f64::from_bits(toward_zero.to_bits() | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rounding_of_a_number_between_two() {
        // Beside 1 in f16: 1 + 2⁻¹⁰. In between: a quarter and the half of the way.
        let ulp = 2f64.powi(-10);
        let cases = [(0.25, [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]), (0.5, [0.0, 0.0, 1.0, 1.0, 0.0, 1.0])];
        let rounds = [Round::Rint, Round::Floor, Round::Ceil, Round::Round, Round::Trunc, Round::Odd];
        for (part, wanted) in cases {
            for (round, wanted) in rounds.into_iter().zip(wanted) {
                assert_eq!(
                    to_float(1.0 + part * ulp, Elem::F16, round),
                    1.0 + wanted * ulp,
                    "{round} {part}"
                );
                let mirrored = match round {
                    Round::Floor => Round::Ceil,
                    Round::Ceil => Round::Floor,
                    round => round,
                };
                assert_eq!(to_float(-1.0 - part * ulp, Elem::F16, mirrored), -1.0 - wanted * ulp, "{round}");
            }
        }
    }

    #[test]
    fn conversions_of_16_bit_floats_are_those_of_half() {
        for bits in 0..=u16::MAX {
            assert_eq!(f16_to_f32(bits).to_bits(), f16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
            assert_eq!(bf16_to_f32(bits).to_bits(), bf16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
            // Each 16-bit float, the midpoint to the next, and the neighbours of both.
            let between = |value: f32, half: u32| {
                let around = [0, 1, half - 1, half, half + 1];
                around.map(|more| f32::from_bits(value.to_bits().wrapping_add(more)))
            };
            let wide = f16::from_bits(bits).to_f32();
            let step = if wide.abs() < 2f32.powi(-14) { 2f32.powi(-25) } else { 0.0 };
            for x in between(wide, 0x1000).into_iter().chain([wide + step, (wide + step).next_down()]) {
                assert_eq!(f32_to_f16(x), f16::from_f32(x).to_bits(), "{x:e}");
            }
            for x in between(bf16::from_bits(bits).to_f32(), 0x8000) {
                assert_eq!(f32_to_bf16(x), bf16::from_f32(x).to_bits(), "{x:e}");
                assert_eq!(f32_to_f16(x), f16::from_f32(x).to_bits(), "{x:e}");
            }
        }
    }

    #[test]
    fn saturation_changes_what_f16_lacks() {
        let cases = [
            (1.0, 1.0),
            (-65519.0, -65504.0),
            (65520.0, 65504.0),
            (f32::NEG_INFINITY, -65504.0),
            (f32::NAN, 0.0),
        ];
        for (x, want) in cases {
            let mut results = [0.5, x];
            saturate(&mut results);
            assert_eq!((results, saturated(x.into())), ([0.5, want], want.into()), "{x}");
        }
    }

    #[test]
    fn integers_saturate_and_nan_is_zero() {
        assert_eq!(to_int(3e10, Elem::I32, Round::Rint), i64::from(i32::MAX));
        assert_eq!(to_int(-129.0, Elem::I8, Round::Trunc), -128);
        assert_eq!(to_int(f64::NAN, Elem::I16, Round::Rint), 0);
        assert_eq!([2.5, 3.5, -2.5].map(|x| to_int(x, Elem::I32, Round::Rint)), [2, 4, -2]);
        assert_eq!([2.5, -2.5].map(|x| to_int(x, Elem::I32, Round::Round)), [3, -3]);
    }

    #[test]
    fn floats_become_whole_numbers_by_each_rounding() {
        let rounds = [Round::Rint, Round::Floor, Round::Ceil, Round::Round, Round::Trunc];
        assert_eq!(rounds.map(|r| whole(-2.5, r)), [-2.0, -3.0, -2.0, -3.0, -2.0]);
        assert_eq!(rounds.map(|r| whole(1.5e9, r)), [1.5e9; 5]);
    }

    #[test]
    fn large_integers_are_rounded_once() {
        // Between two floats, a little above the middle: an intermediate f64 would lose the little.
        let x = (1i64 << 62) + (1 << 38) + 1;
        assert_eq!(odd_f64(x) as f32, ((1i64 << 62) + (1i64 << 39)) as f32);
        assert_eq!(odd_f64(7), 7.0);
    }
}
