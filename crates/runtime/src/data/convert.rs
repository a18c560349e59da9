//! Conversion of data to the dtype a model expects: only where every value of the source type is kept
//! exactly.

use headwater_core::{Class, DType, Tensor, TensorType};

/// True if every value of `from` is a value of `to`.
pub(super) fn exact(from: DType, to: DType) -> bool {
    // Bits of the significand, or of the magnitude of an integer.
    let bits = |d: DType| match d {
        DType::Bool => 1,
        DType::I8 => 7,
        DType::U8 | DType::BF16 => 8,
        DType::F16 => 11,
        DType::I16 => 15,
        DType::F32 => 24,
        DType::I32 => 31,
        DType::F64 => 53,
        DType::I64 => 63,
    };
    match (from.class(), to.class()) {
        _ if from == to => true,
        (_, Class::Bool) | (Class::Float, Class::Int) => false,
        // The exponent of f16 holds neither that of bf16, nor bf16's significand that of f16.
        (Class::Float, Class::Float) => matches!(to, DType::F32 | DType::F64) && bits(to) > bits(from),
        (_, Class::Int) => bits(to) >= bits(from) && !(to == DType::U8 && from == DType::I8),
        (_, Class::Float) => bits(to) >= bits(from),
    }
}

/// The first element that `to` does not hold as it is, with its position. NaN stays NaN.
pub(super) fn lost(from: DType, to: DType, bytes: &[u8]) -> Option<(usize, f64)> {
    let tensor = Tensor::from_bytes(&TensorType::new(from, [bytes.len() / from.size()]), bytes);
    let (low, high) = if to == DType::Bool { (0, 1) } else { to.int_range() };
    let keeps = |x: f64| match to.class() {
        Class::Float => x.is_nan() || to.round(x) == x,
        _ => x.fract() == 0.0 && x >= low as f64 && (x as i128) <= high as i128,
    };
    let integer = |x: i64| match to.class() {
        // Beyond 2⁵³ the way through f64 rounds already.
        Class::Float => (x as f64) as i128 == x as i128 && keeps(x as f64),
        _ => (low..=high).contains(&x),
    };
    match from.class() {
        Class::Float => tensor.floats().iter().copied().enumerate().find(|(_, x)| !keeps(*x)),
        _ => tensor.ints().iter().enumerate().find(|(_, x)| !integer(**x)).map(|(i, x)| (i, *x as f64)),
    }
}

/// Appends elements to `out`, converted. Bools become 0 or 1 whatever byte is stored.
pub(crate) fn append(from: DType, to: DType, bytes: &[u8], out: &mut Vec<u8>) {
    if from == to && from != DType::Bool {
        return out.extend_from_slice(bytes);
    }
    if from == DType::Bool && to.size() == 1 {
        return out.extend(bytes.iter().map(|&b| (b != 0) as u8));
    }
    let ty = TensorType::new(from, [bytes.len() / from.size()]);
    let tensor = Tensor::from_bytes(&ty, bytes);
    // A stored bool other than 0 and 1 is a 1.
    let tensor = if from == DType::Bool { tensor.cast(DType::Bool) } else { tensor };
    out.extend(tensor.cast(to).to_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_do_not_fit_are_found() {
        let of = |t: Tensor, to| lost(t.dtype(), to, &t.to_bytes());
        let floats = |v: &[f64]| Tensor::float(DType::F64, [v.len()], v.to_vec());
        let ints = |v: &[i64]| Tensor::int(DType::I64, [v.len()], v.to_vec());
        assert_eq!(of(floats(&[0.5, f64::NAN, f64::INFINITY, -3.0]), DType::F32), None);
        assert_eq!(of(floats(&[0.5, 0.1, 0.2]), DType::F32), Some((1, 0.1)));
        assert_eq!(of(floats(&[1.0, -0.0, 7.5]), DType::I64), Some((2, 7.5)));
        assert!(of(floats(&[f64::NAN]), DType::I64).is_some());
        assert!(of(floats(&[9.3e18]), DType::I64).is_some());
        assert_eq!(of(floats(&[0.0, 1.0]), DType::Bool), None);
        assert_eq!(of(ints(&[0, 1, 1 << 24]), DType::F32), None);
        assert!(of(ints(&[(1 << 24) + 1]), DType::F32).is_some());
        assert!(of(ints(&[i64::MAX]), DType::F32).is_some());
        assert_eq!(of(ints(&[1 << 62]), DType::F32), None);
        assert_eq!(of(ints(&[0, 2]), DType::Bool), Some((1, 2.0)));
        assert_eq!(of(ints(&[127, 128]), DType::I8), Some((1, 128.0)));
    }

    #[test]
    fn exactly_the_conversions_that_keep_every_value() {
        for from in DType::ALL {
            for to in DType::ALL {
                if !exact(from, to) {
                    continue;
                }
                // The extremes and the finest steps survive the way there and back.
                let probes: Vec<f64> = match from.class() {
                    Class::Float => vec![from.max_value(), -from.max_value(), 1.0 + from.epsilon(), 0.1],
                    _ => {
                        let (low, high) = from.int_range();
                        // i64 converts only to itself, so f64 holds all of these.
                        vec![low as f64, high as f64, high as f64 - 1.0]
                    }
                };
                let source = if from.is_float() {
                    Tensor::float(from, [probes.len()], probes)
                } else {
                    let n = probes.len();
                    Tensor::int(from, [n], probes.into_iter().map(|x| x as i64).collect())
                };
                let mut out = Vec::new();
                append(from, to, &source.to_bytes(), &mut out);
                let there = Tensor::from_bytes(&TensorType::new(to, source.shape().clone()), &out);
                assert_eq!(there.cast(from), source, "{from} to {to}");
            }
        }
        assert!(
            !exact(DType::F64, DType::F32)
                && !exact(DType::I64, DType::F64)
                && !exact(DType::I32, DType::F32)
        );
        assert!(
            exact(DType::U8, DType::BF16) && exact(DType::I16, DType::F32) && !exact(DType::I8, DType::U8)
        );
        assert!(
            !exact(DType::F16, DType::BF16) && !exact(DType::U8, DType::I8) && exact(DType::U8, DType::I64)
        );
    }
}
