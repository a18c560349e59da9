//! The contexts of an operator's functions: types and attributes ([`OpCx`]), and gradients ([`GradCx`]).

use super::OpDef;
use crate::attr::{Attr, Attrs};
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::graph::{Builder, Node, ValueId};
use crate::shape::{Shape, wrap_dim};
use crate::tensor::TensorType;
use crate::{ensure, fail};
use std::ops::{Deref, DerefMut};

/// An operator applied to inputs of given types.
#[derive(Clone, Debug)]
pub struct OpCx<'a> {
    /// Types of the inputs; `None` where an optional one is absent.
    pub inputs: Vec<Option<&'a TensorType>>,
    /// Attributes.
    pub attrs: &'a Attrs,
}

impl<'a> OpCx<'a> {
    /// Type of input `i`.
    ///
    /// # Errors
    /// `Attribute` if it is absent.
    pub fn ty(&self, i: usize) -> Result<&'a TensorType> {
        self.opt(i).ok_or_else(|| fail!(Attribute, "input {i} is missing"))
    }

    /// Type of input `i`, if present.
    pub fn opt(&self, i: usize) -> Option<&'a TensorType> {
        self.inputs.get(i).copied().flatten()
    }

    /// Types of the inputs that are present.
    pub fn present(&self) -> impl Iterator<Item = &'a TensorType> + '_ {
        self.inputs.iter().copied().flatten()
    }

    /// Shape of input `i`.
    pub fn shape(&self, i: usize) -> Result<&'a Shape> {
        Ok(&self.ty(i)?.shape)
    }

    /// Dtype of input `i`.
    pub fn dtype(&self, i: usize) -> Result<DType> {
        Ok(self.ty(i)?.dtype)
    }

    fn wrong(name: &str, what: &str, got: &Attr) -> Error {
        fail!(Attribute, "attribute `{name}` must be {what}, got {got}")
    }

    fn need<T>(name: &str, x: Option<T>) -> Result<T> {
        x.ok_or_else(|| fail!(Attribute, "attribute `{name}` is missing"))
    }

    /// An `int` attribute that may be `None`.
    pub fn opt_int(&self, name: &str) -> Result<Option<i64>> {
        match self.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Int(i)) => Ok(Some(*i)),
            Some(Attr::Bool(b)) => Ok(Some(*b as i64)),
            Some(a) => Err(Self::wrong(name, "an int", a)),
        }
    }

    /// An `int` attribute.
    pub fn int(&self, name: &str) -> Result<i64> {
        Self::need(name, self.opt_int(name)?)
    }

    /// A non-negative `int` attribute.
    pub fn size(&self, name: &str) -> Result<usize> {
        let v = self.int(name)?;
        usize::try_from(v).map_err(|_| fail!(Attribute, "attribute `{name}` must not be negative, got {v}"))
    }

    /// A number (`float` or `Scalar`) that may be `None`.
    pub fn opt_float(&self, name: &str) -> Result<Option<f64>> {
        match self.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Float(x)) => Ok(Some(*x)),
            Some(Attr::Int(i)) => Ok(Some(*i as f64)),
            Some(Attr::Bool(b)) => Ok(Some(*b as i64 as f64)),
            Some(a) => Err(Self::wrong(name, "a number", a)),
        }
    }

    /// A number.
    pub fn float(&self, name: &str) -> Result<f64> {
        Self::need(name, self.opt_float(name)?)
    }

    /// A `bool` attribute; absent counts as false.
    pub fn flag(&self, name: &str) -> Result<bool> {
        match self.attrs.get(name) {
            None => Ok(false),
            Some(Attr::Bool(b)) => Ok(*b),
            Some(Attr::Int(i)) => Ok(*i != 0),
            Some(a) => Err(Self::wrong(name, "a bool", a)),
        }
    }

    /// A `str` attribute that may be `None`.
    pub fn opt_str(&self, name: &str) -> Result<Option<&'a str>> {
        match self.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Str(s)) => Ok(Some(s)),
            Some(a) => Err(Self::wrong(name, "a string", a)),
        }
    }

    /// An `int[]` attribute that may be `None`.
    pub fn opt_ints(&self, name: &str) -> Result<Option<&'a [i64]>> {
        match self.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Ints(v)) => Ok(Some(v)),
            Some(a) => Err(Self::wrong(name, "a list of ints", a)),
        }
    }

    /// An `int[]` attribute.
    pub fn ints(&self, name: &str) -> Result<&'a [i64]> {
        Self::need(name, self.opt_ints(name)?)
    }

    /// A list of sizes, none negative.
    pub fn sizes(&self, name: &str) -> Result<Shape> {
        let size =
            |&v: &i64| usize::try_from(v).map_err(|_| fail!(Attribute, "`{name}` has a negative size {v}"));
        let shape: Shape = self.ints(name)?.iter().map(size).collect::<Result<Vec<_>>>()?.into();
        ensure!(shape.checked_numel().is_some(), Size, "`{name}` = {shape} is larger than memory can be");
        Ok(shape)
    }

    /// A dtype attribute that may be `None`.
    pub fn opt_dtype(&self, name: &str) -> Result<Option<DType>> {
        match self.attrs.get(name) {
            None => Ok(None),
            Some(Attr::DType(d)) => Ok(Some(*d)),
            Some(a) => Err(Self::wrong(name, "a dtype", a)),
        }
    }

    /// The attribute `name` as a dimension of a tensor of `rank`, wrapped to be non-negative.
    pub fn dim(&self, name: &str, rank: usize) -> Result<usize> {
        let d = self.int(name)?;
        wrap_dim(d, rank)
            .ok_or_else(|| fail!(Attribute, "`{name}` = {d} is out of range for {rank} dimensions"))
    }

    /// The attribute `name` (an int list, an int, or `None`/empty for all) as ascending non-negative
    /// dimensions.
    pub fn dims(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        let given: Vec<i64> = match self.attrs.get(name) {
            Some(Attr::Int(d)) => vec![*d],
            _ => self.opt_ints(name)?.unwrap_or(&[]).to_vec(),
        };
        if given.is_empty() {
            return Ok((0..rank).collect());
        }
        let mut dims = Vec::new();
        for d in given {
            let w = wrap_dim(d, rank)
                .ok_or_else(|| fail!(Attribute, "`{name}` has {d}, out of range for {rank} dimensions"))?;
            ensure!(!dims.contains(&w), Attribute, "`{name}` names dimension {w} twice");
            dims.push(w);
        }
        dims.sort_unstable();
        // A scalar's one dimension does not exist in its shape.
        dims.retain(|&d| d < rank);
        Ok(dims)
    }

    /// Broadcast shape of the present inputs.
    pub fn broadcast(&self) -> Result<Shape> {
        let mut shape = Shape::default();
        for t in self.present() {
            shape = shape
                .broadcast(&t.shape)
                .ok_or_else(|| fail!(Shape, "shapes {} do not broadcast", self.list_types()))?;
        }
        ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
        Ok(shape)
    }

    /// The dtype PyTorch computes these inputs in, together with a scalar attribute if named and present.
    /// Tensors with dimensions win over scalar tensors, those over plain numbers, unless of a lower class
    /// (`torch.result_type`).
    pub fn result_type(&self, scalars: &[&str]) -> DType {
        self.result_type_from(0, scalars)
    }

    /// The same for the inputs from `first` on (a condition does not take part).
    pub fn result_type_from(&self, first: usize, scalars: &[&str]) -> DType {
        let promote = |a: Option<DType>, b: DType| Some(a.map_or(b, |a| a.promote(b)));
        let (mut dimmed, mut zero, mut number) = (None, None, None);
        for t in self.inputs.iter().skip(first).copied().flatten() {
            if t.shape.rank() > 0 { dimmed = promote(dimmed, t.dtype) } else { zero = promote(zero, t.dtype) }
        }
        for name in scalars {
            match self.attrs.get(name) {
                Some(Attr::Bool(_)) => number = promote(number, DType::Bool),
                Some(Attr::Int(_)) => number = promote(number, DType::I64),
                // A plain float is of the default dtype, f32.
                Some(Attr::Float(_)) => number = promote(number, DType::F32),
                _ => {}
            }
        }
        [zero, number]
            .into_iter()
            .flatten()
            .fold(dimmed, |acc, low| match acc {
                None => Some(low),
                Some(high) if low.class() > high.class() => Some(low),
                acc => acc,
            })
            .unwrap_or(DType::F32)
    }

    /// Requires input `i`, if present, to be a float tensor of exactly this shape.
    ///
    /// # Errors
    /// `Shape` or `DType` if it is not.
    pub fn expect_floats(&self, i: usize, shape: &[usize]) -> Result<()> {
        let Some(t) = self.opt(i) else { return Ok(()) };
        ensure!(t.dtype.is_float(), DType, "input {i} must be of floats, got {t}");
        ensure!(t.shape[..] == *shape, Shape, "input {i} must be {}, got {t}", Shape::new(shape));
        Ok(())
    }

    /// Types of the present inputs, for messages.
    pub fn list_types(&self) -> String {
        self.present().map(|t| t.to_string()).collect::<Vec<_>>().join(" and ")
    }
}

/// A node being differentiated. Dereferences to the [`Builder`] that receives the backward nodes.
#[derive(Debug)]
pub struct GradCx<'a> {
    builder: &'a mut Builder,
    node: &'a Node,
    cotangents: &'a [Option<ValueId>],
    needs: &'a [bool],
    /// The gradients set so far, by input.
    pub(crate) grads: Vec<Option<ValueId>>,
}

impl<'a> GradCx<'a> {
    pub(crate) fn new(
        builder: &'a mut Builder,
        node: &'a Node,
        cotangents: &'a [Option<ValueId>],
        needs: &'a [bool],
    ) -> Self {
        GradCx { builder, node, cotangents, needs, grads: vec![None; node.inputs.len()] }
    }

    /// The operator.
    pub fn op(&self) -> &'static OpDef {
        self.node.op
    }

    /// Attributes of the node.
    pub fn attrs(&self) -> &'a Attrs {
        &self.node.attrs
    }

    /// The node's attributes, to be read typed; without inputs.
    pub fn args(&self) -> OpCx<'a> {
        OpCx { inputs: Vec::new(), attrs: &self.node.attrs }
    }

    /// Number of inputs, absent ones included.
    pub fn arity(&self) -> usize {
        self.node.inputs.len()
    }

    /// Forward input `i`.
    pub fn x(&self, i: usize) -> Result<ValueId> {
        self.opt_x(i).ok_or_else(|| fail!(Attribute, "input {i} is missing"))
    }

    /// Forward input `i`, if present.
    pub fn opt_x(&self, i: usize) -> Option<ValueId> {
        self.node.inputs.get(i).copied().flatten()
    }

    /// Forward output `i`.
    pub fn y(&self, i: usize) -> ValueId {
        self.node.outputs[i]
    }

    /// Number of forward outputs.
    pub fn outputs(&self) -> usize {
        self.node.outputs.len()
    }

    /// Gradient of output `i`, if any flows into it.
    pub fn opt_grad(&self, i: usize) -> Option<ValueId> {
        self.cotangents.get(i).copied().flatten()
    }

    /// Gradient of output `i`; zeros if none flows into it.
    pub fn grad(&mut self, i: usize) -> Result<ValueId> {
        match self.opt_grad(i) {
            Some(g) => Ok(g),
            None => {
                let ty = self.builder.ty(self.node.outputs[i]).clone();
                self.builder.full(&ty, 0.0)
            }
        }
    }

    /// True if the gradient of input `i` is needed.
    pub fn needs(&self, i: usize) -> bool {
        self.needs.get(i).copied().unwrap_or(false)
    }

    /// Refuses gradients into outputs `first..`: those that exist for the backward pass alone.
    ///
    /// # Errors
    /// `Gradient` if one flows there.
    pub fn only_outputs_before(&self, first: usize) -> Result<()> {
        let used = (first..self.outputs()).find(|&i| self.opt_grad(i).is_some());
        ensure!(used.is_none(), Gradient, "no gradient can flow into output {}", used.unwrap_or(0));
        Ok(())
    }

    /// States the gradient of input `i`; it is summed to the input's shape (undoing broadcasting) and cast to
    /// its dtype.
    pub fn set(&mut self, i: usize, grad: ValueId) -> Result<()> {
        if !self.needs(i) {
            return Ok(());
        }
        let ty = self.builder.ty(self.x(i)?).clone();
        let grad = self.builder.sum_to(grad, &ty.shape)?;
        let grad = self.builder.cast(grad, ty.dtype)?;
        if self.grads[i].replace(grad).is_some() {
            return Err(Error::new(Code::Graph, format!("gradient of input {i} was set twice")));
        }
        Ok(())
    }

    /// Asks something of the forward node's types and attributes.
    pub fn of<T>(&self, f: impl FnOnce(&OpCx) -> T) -> T {
        let inputs = self.node.inputs.iter().map(|v| v.map(|v| self.builder.ty(v))).collect();
        f(&OpCx { inputs, attrs: &self.node.attrs })
    }

    /// Types and attributes of the forward node, detached from the builder so that a rule can build
    /// meanwhile.
    pub fn types(&self) -> Vec<Option<TensorType>> {
        self.node.inputs.iter().map(|v| v.map(|v| self.builder.ty(v).clone())).collect()
    }
}

impl Deref for GradCx<'_> {
    type Target = Builder;
    fn deref(&self) -> &Builder {
        self.builder
    }
}

impl DerefMut for GradCx<'_> {
    fn deref_mut(&mut self) -> &mut Builder {
        self.builder
    }
}
