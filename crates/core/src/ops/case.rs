//! Test cases of operators: stated once beside the operator, run against every device and mode.

use crate::attr::{Attr, Attrs};
use crate::dtype::DType;
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};

/// The way an input's numbers are drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// Uniform in `[lo, hi)`; integers for integer types.
    Uniform(f64, f64),
    /// Uniform in `[lo, hi)`, all different by at least `(hi - lo) / (2 · count)`: for max, sort, kinks.
    Distinct(f64, f64),
    /// Exactly these.
    Values(Vec<f64>),
}

/// One input of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseInput {
    /// Its type; floats are f64 and lowered by tests that require less.
    pub ty: TensorType,
    /// Its numbers.
    pub sample: Sample,
    /// It is not differentiated: the operator refuses to, as PyTorch does (class weights), or it is at a
    /// discontinuity.
    pub constant: bool,
}

/// Inputs and attributes on which an operator is tested.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Its peculiarity.
    pub name: &'static str,
    /// The inputs.
    pub inputs: Vec<Option<CaseInput>>,
    /// The attributes (those at their schema's default must be given as well).
    pub attrs: Attrs,
}

impl Case {
    /// A case without inputs yet.
    pub fn new(name: &'static str) -> Self {
        Case { name, inputs: Vec::new(), attrs: Attrs::new() }
    }

    /// Adds any input.
    pub fn arg(mut self, dtype: DType, shape: &[usize], sample: Sample) -> Self {
        self.inputs.push(Some(CaseInput {
            ty: TensorType::new(dtype, Shape::new(shape)),
            sample,
            constant: false,
        }));
        self
    }

    /// Adds a float input in `[-2, 2)`.
    pub fn f(self, shape: &[usize]) -> Self {
        self.range(shape, -2.0, 2.0)
    }

    /// Adds a float input in `[lo, hi)`.
    pub fn range(self, shape: &[usize], lo: f64, hi: f64) -> Self {
        self.arg(DType::F64, shape, Sample::Uniform(lo, hi))
    }

    /// Adds a float input of distinct values in `[-2, 2)`.
    pub fn distinct(self, shape: &[usize]) -> Self {
        self.arg(DType::F64, shape, Sample::Distinct(-2.0, 2.0))
    }

    /// Adds an i64 input in `0..limit`.
    pub fn index(self, shape: &[usize], limit: usize) -> Self {
        self.arg(DType::I64, shape, Sample::Uniform(0.0, limit as f64))
    }

    /// Adds a bool input.
    pub fn mask(self, shape: &[usize]) -> Self {
        self.arg(DType::Bool, shape, Sample::Uniform(0.0, 2.0))
    }

    /// Marks the last input as one that is not differentiated: refused by the operator, or on a jump.
    pub fn constant(mut self) -> Self {
        if let Some(Some(arg)) = self.inputs.last_mut() {
            arg.constant = true;
        }
        self
    }

    /// Adds an absent optional input.
    pub fn none(mut self) -> Self {
        self.inputs.push(None);
        self
    }

    /// Sets an attribute.
    pub fn attr(mut self, name: &'static str, value: impl Into<Attr>) -> Self {
        self.attrs.set(name, value);
        self
    }

    /// Draws the inputs; the same seed draws the same numbers everywhere.
    pub fn draw(&self, seed: u64) -> Vec<Option<Tensor>> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
        let mut next = move || {
            // SplitMix64 (Steele, Lea, Flood 2014).
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut draw = |arg: &CaseInput| {
            let n = arg.ty.shape.numel();
            let values: Vec<f64> = match &arg.sample {
                Sample::Uniform(lo, hi) => (0..n).map(|_| lo + (hi - lo) * next()).collect(),
                Sample::Distinct(lo, hi) => {
                    let mut slots: Vec<usize> = (0..n).collect();
                    for i in (1..n).rev() {
                        slots.swap(i, (next() * (i + 1) as f64) as usize);
                    }
                    slots.iter().map(|&s| lo + (hi - lo) * (s as f64 + 0.5 * next()) / n as f64).collect()
                }
                Sample::Values(v) => v.clone(),
            };
            if arg.ty.dtype.is_float() {
                Tensor::float(arg.ty.dtype, arg.ty.shape.clone(), values)
            } else {
                Tensor::int(
                    arg.ty.dtype,
                    arg.ty.shape.clone(),
                    values.iter().map(|x| x.floor() as i64).collect(),
                )
            }
        };
        self.inputs.iter().map(|a| a.as_ref().map(&mut draw)).collect()
    }
}
