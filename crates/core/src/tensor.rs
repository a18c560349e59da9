//! Tensors of the reference interpreter: row-major, in f64 or i64 whatever the dtype. Slow and obvious.

use crate::dtype::DType;
use crate::shape::Shape;
use std::fmt;

/// Dtype and shape of a value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Shape,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        TensorType { dtype, shape: shape.into() }
    }

    /// Bytes of a dense tensor of this type; the largest number there is for one that cannot exist.
    pub fn bytes(&self) -> usize {
        let elements = self.shape.checked_numel();
        elements.and_then(|n| n.checked_mul(self.dtype.size())).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The numbers of a [`Tensor`].
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Numbers of a floating-point tensor.
    Float(Vec<f64>),
    /// Numbers of an integer tensor, or of a boolean one (0 and 1).
    Int(Vec<i64>),
}

/// A dense tensor of the reference interpreter.
///
/// Invariant: `data` is `Float` exactly if the dtype is a float, has `shape.numel()` numbers, and each number
/// is one the dtype can hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Dtype and shape.
    pub ty: TensorType,
    /// The numbers in row-major order.
    pub data: Data,
}

impl Tensor {
    /// A float tensor; numbers are rounded to `dtype`.
    ///
    /// # Panics
    /// If `dtype` is not a float or the count is not that of the shape.
    pub fn float(dtype: DType, shape: impl Into<Shape>, mut data: Vec<f64>) -> Self {
        let shape = shape.into();
        assert!(dtype.is_float() && shape.numel() == data.len(), "{} numbers for {dtype}{shape}", data.len());
        if dtype != DType::F64 {
            data.iter_mut().for_each(|x| *x = dtype.round(*x));
        }
        Tensor { ty: TensorType { dtype, shape }, data: Data::Float(data) }
    }

    /// An integer or boolean tensor; numbers are wrapped to `dtype`.
    ///
    /// # Panics
    /// If `dtype` is a float or the count is not that of the shape.
    pub fn int(dtype: DType, shape: impl Into<Shape>, mut data: Vec<i64>) -> Self {
        let shape = shape.into();
        assert!(
            !dtype.is_float() && shape.numel() == data.len(),
            "{} numbers for {dtype}{shape}",
            data.len()
        );
        data.iter_mut().for_each(|x| *x = dtype.wrap(*x));
        Tensor { ty: TensorType { dtype, shape }, data: Data::Int(data) }
    }

    /// A tensor of one value everywhere (converted to the type).
    pub fn full(ty: &TensorType, value: f64) -> Self {
        let n = ty.shape.numel();
        if ty.dtype.is_float() {
            Tensor::float(ty.dtype, ty.shape.clone(), vec![value; n])
        } else {
            Tensor::int(ty.dtype, ty.shape.clone(), vec![value as i64; n])
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Sizes.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// The numbers of a float tensor.
    ///
    /// # Panics
    /// If it is none: the operator's type rule should have refused it.
    pub fn floats(&self) -> &[f64] {
        match &self.data {
            Data::Float(v) => v,
            Data::Int(_) => panic!("a {} tensor where floats were expected", self.ty),
        }
    }

    /// The numbers of an integer or boolean tensor.
    ///
    /// # Panics
    /// If it is none: the operator's type rule should have refused it.
    pub fn ints(&self) -> &[i64] {
        match &self.data {
            Data::Int(v) => v,
            Data::Float(_) => panic!("a {} tensor where integers were expected", self.ty),
        }
    }

    /// All numbers as f64.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::Float(v) => v.clone(),
            Data::Int(v) => v.iter().map(|&i| i as f64).collect(),
        }
    }

    /// Conversion to `dtype`, as `Tensor.to` does: rounds, truncates towards zero (saturating), wraps.
    pub fn cast(&self, dtype: DType) -> Tensor {
        let shape = self.ty.shape.clone();
        match (&self.data, dtype) {
            (Data::Float(v), DType::Bool) => {
                Tensor::int(dtype, shape, v.iter().map(|&x| (x != 0.0) as i64).collect())
            }
            (Data::Float(v), d) if d.is_float() => Tensor::float(d, shape, v.clone()),
            (Data::Float(v), d) => Tensor::int(d, shape, v.iter().map(|&x| x as i64).collect()),
            (Data::Int(v), d) if d.is_float() => {
                Tensor::float(d, shape, v.iter().map(|&i| i as f64).collect())
            }
            (Data::Int(v), d) => Tensor::int(d, shape, v.clone()),
        }
    }

    /// As [`Tensor::cast`], but finite numbers that overflow a 16-bit dtype become its largest: constants
    /// that a model states, such as the most negative number of its dtype.
    pub fn cast_saturating(&self, dtype: DType) -> Tensor {
        let mut t = self.clone();
        if let (Data::Float(v), DType::F16 | DType::BF16) = (&mut t.data, dtype) {
            let most = dtype.max_value();
            v.iter_mut().filter(|x| x.is_finite()).for_each(|x| *x = x.clamp(-most, most));
        }
        t.cast(dtype)
    }

    /// Reads little-endian row-major bytes.
    ///
    /// # Panics
    /// If the count of bytes is not that of the type.
    pub fn from_bytes(ty: &TensorType, bytes: &[u8]) -> Tensor {
        assert_eq!(bytes.len(), ty.bytes(), "bytes of {ty}");
        fn each<const N: usize, T>(b: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
            b.chunks_exact(N).map(|c| f(c.try_into().expect("chunk length"))).collect()
        }
        let data = match ty.dtype {
            DType::F64 => Data::Float(each(bytes, f64::from_le_bytes)),
            DType::F32 => Data::Float(each(bytes, |b| f32::from_le_bytes(b) as f64)),
            DType::F16 => Data::Float(each(bytes, |b| half::f16::from_le_bytes(b).to_f64())),
            DType::BF16 => Data::Float(each(bytes, |b| half::bf16::from_le_bytes(b).to_f64())),
            DType::I64 => Data::Int(each(bytes, i64::from_le_bytes)),
            DType::I32 => Data::Int(each(bytes, |b| i32::from_le_bytes(b) as i64)),
            DType::I16 => Data::Int(each(bytes, |b| i16::from_le_bytes(b) as i64)),
            DType::I8 => Data::Int(each(bytes, |b| i8::from_le_bytes(b) as i64)),
            DType::U8 => Data::Int(each(bytes, |b: [u8; 1]| b[0] as i64)),
            DType::Bool => Data::Int(each(bytes, |b: [u8; 1]| (b[0] != 0) as i64)),
        };
        Tensor { ty: ty.clone(), data }
    }

    /// Little-endian row-major bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.ty.bytes());
        match &self.data {
            Data::Float(v) => v.iter().for_each(|&x| match self.ty.dtype {
                DType::F64 => out.extend(x.to_le_bytes()),
                DType::F32 => out.extend((x as f32).to_le_bytes()),
                DType::F16 => out.extend(half::f16::from_f64(x).to_le_bytes()),
                _ => out.extend(half::bf16::from_f64(x).to_le_bytes()),
            }),
            Data::Int(v) => v.iter().for_each(|&x| match self.ty.dtype.size() {
                8 => out.extend(x.to_le_bytes()),
                4 => out.extend((x as i32).to_le_bytes()),
                2 => out.extend((x as i16).to_le_bytes()),
                _ => out.push(x as u8),
            }),
        }
        out
    }
}
