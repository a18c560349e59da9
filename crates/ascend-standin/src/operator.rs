//! The vendor's operators as data: operands, options, executors, and the shapes that they take.

use crate::outcome::{Outcome, PARAM, fail};
use headwater_core::{Attrs, DType, Layout, Registry, TensorType};
use std::sync::Arc;

/// An operand or an option.
#[derive(Clone, PartialEq, Debug)]
pub enum Operand {
    Tensor(Tensor),
    Scalar(f32),
    Ints(Vec<i64>),
    Bools(Vec<bool>),
}

/// A tensor at an address of device memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub ty: TensorType,
    pub layout: Layout,
    images: bool,
    pub address: usize,
}

/// Steps of a convolution.
#[derive(Clone, PartialEq, Debug)]
pub struct Window {
    pub stride: Vec<i64>,
    pub padding: Vec<i64>,
    pub dilation: Vec<i64>,
    pub groups: i64,
}

/// An operator with its options.
#[derive(Clone, PartialEq, Debug)]
pub enum Function {
    Matmul,
    Addmm,
    Attention { scale: f64, heads: i64, sparse_mode: i64 },
    AttentionGrad { scale: f64, heads: i64, sparse_mode: i64 },
    Convolution(Window),
    ConvolutionGrad { window: Window, of_weight: bool },
}

/// An executor.
pub struct Prepared {
    /// Name of its second phase.
    pub name: &'static str,
    pub work: Arc<Work>,
    /// Bytes of workspace.
    pub workspace: usize,
    pub repeatable: bool,
    /// Operands that must outlive it.
    pub uses: Vec<usize>,
}

/// A call with its operands.
#[derive(Debug)]
pub struct Work {
    pub function: Function,
    pub reads: Vec<Option<Tensor>>,
    pub writes: Vec<Tensor>,
}

impl Tensor {
    /// A tensor as the interface describes it.
    pub fn new(sizes: &[i64], strides: &[i64], dtype: i32, format: i32, address: usize) -> Outcome<Tensor> {
        let dtype = match dtype {
            0 => DType::F32,
            1 => DType::F16,
            12 => DType::Bool,
            27 => DType::BF16,
            other => return fail(PARAM, format!("a tensor of type {other}")),
        };
        let images = match (format, sizes.len()) {
            (2, _) => false,
            (47, 3) | (0, 4) | (30, 5) => true,
            other => return fail(PARAM, format!("a tensor of format and rank {other:?}")),
        };
        if sizes.iter().any(|n| *n < 1) || strides.iter().any(|n| *n < 0) {
            return fail(PARAM, "a tensor of no elements, or one that runs backwards");
        }
        let shape: Vec<usize> = sizes.iter().map(|&n| n as usize).collect();
        let layout = Layout {
            shape: shape.clone().into(),
            strides: strides.iter().map(|&n| n as isize).collect(),
            offset: 0,
        };
        Ok(Tensor { ty: TensorType::new(dtype, shape), layout, images, address })
    }

    /// Elements from the first to the last.
    pub fn span(&self) -> usize {
        let steps = self.layout.shape.iter().zip(&self.layout.strides);
        1 + steps.map(|(n, stride)| (n - 1) * *stride as usize).sum::<usize>()
    }

    pub fn shape(&self) -> &[usize] {
        &self.ty.shape
    }
}

impl Window {
    fn attrs(&self) -> Attrs {
        Attrs::new()
            .with("stride", self.stride.clone())
            .with("padding", self.padding.clone())
            .with("dilation", self.dilation.clone())
            .with("groups", self.groups)
    }
}

/// Attention's sizes: samples, heads of queries and of keys, queries, keys, elements.
pub type Heads = ([usize; 4], usize, usize);

impl Work {
    pub fn operand(&self, i: usize) -> Result<&Tensor, String> {
        self.reads.get(i).and_then(Option::as_ref).ok_or_else(|| format!("operand {i} is missing"))
    }

    /// Refuses what the operator does not take.
    pub fn check(&self) -> Result<(), String> {
        let floats = self.reads.iter().flatten().chain(&self.writes);
        let images = matches!(self.function, Function::Convolution(_) | Function::ConvolutionGrad { .. });
        for t in floats {
            let dense = t.layout.is_contiguous();
            match self.function {
                Function::Matmul | Function::Addmm if t.shape().len() > 1 => {}
                _ if !dense => return Err("an operand with gaps".into()),
                _ => {}
            }
            if images != t.images && t.shape().len() > 1 {
                return Err("an operand of another format".into());
            }
        }
        let same = |i: usize| {
            Ok::<_, String>(self.operand(i)?.ty.dtype == self.writes[self.writes.len() - 1].ty.dtype)
        };
        if !same(0)? || !same(1)? {
            return Err("operands of different types".into());
        }
        match &self.function {
            Function::Attention { .. } | Function::AttentionGrad { .. } => self.heads().map(drop),
            _ => self.types().map(drop),
        }
    }

    /// The operator of the interpreter that computes the same, and its attributes; `f64` before it is
    /// rounded.
    pub fn types(&self) -> Result<(&'static str, Attrs, Vec<usize>), String> {
        let ints = |shape: &[usize]| -> Vec<i64> { shape.iter().map(|&n| n as i64).collect() };
        let out = ints(self.writes[0].shape());
        let found = match &self.function {
            Function::Matmul | Function::Addmm => ("matmul", Attrs::new(), vec![0, 1]),
            Function::Convolution(window) => ("convolution", window.attrs(), vec![0, 1, 2]),
            Function::ConvolutionGrad { window, of_weight: false } => {
                ("convolution_input_grad", window.attrs().with("input_size", out), vec![0, 2])
            }
            Function::ConvolutionGrad { window, of_weight: true } => {
                ("convolution_weight_grad", window.attrs().with("weight_size", out), vec![0, 1])
            }
            _ => return Err("attention".into()),
        };
        let op = Registry::standard().by_name(found.0).ok_or("no such operator")?;
        let inputs = found.2.iter().map(|&i| self.reads.get(i).and_then(Option::as_ref).map(|t| &t.ty));
        let cx = headwater_core::OpCx { inputs: inputs.collect(), attrs: &found.1 };
        let types = (op.infer)(&cx).map_err(|e| e.to_string())?;
        if types[0].shape != self.writes[0].ty.shape {
            return Err(format!("a result of {} where {} is wanted", types[0], self.writes[0].ty));
        }
        Ok(found)
    }

    pub fn heads(&self) -> Result<Heads, String> {
        let (Function::Attention { heads, .. } | Function::AttentionGrad { heads, .. }) = &self.function
        else {
            return Err("no attention".into());
        };
        let shape = |i: usize| -> Result<[usize; 4], String> {
            self.operand(i)?.shape().try_into().map_err(|_| "four dimensions are needed".to_string())
        };
        let ([b, h, l, e], [bk, hk, s, ek], v) = (shape(0)?, shape(1)?, shape(2)?);
        let fits = b == bk && e == ek && v == [b, hk, s, e] && h.is_multiple_of(hk) && h as i64 == *heads;
        if !fits { Err("operands that do not fit".into()) } else { Ok(([b, h, l, e], hk, s)) }
    }
}
