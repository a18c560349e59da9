//! Calls that need no operator: those that return the tensor they are given, and those that replace its
//! content.

use crate::arguments::Obstacle;
use crate::conversions::{Conversion, within};
use crate::error::{Error, Result};
use crate::functionalize::TensorId;
use crate::importer::{Importer, Made, refused};
use crate::schema::{Argument, Node};
use crate::scope::{self, Scope, Slot};
use crate::symbolic::Number;
use crate::weights::element_of;
use headwater_core::ops::create::full::FULL;
use headwater_core::ops::pointwise::to::TO;
use headwater_core::ops::pointwise::type_as::TYPE_AS;
use headwater_core::{Attr, Attrs, DType};

impl Importer<'_> {
    /// The tensor that the node at hand reads where the export names `t`.
    pub fn seen_from_here(&mut self, mut t: TensorId) -> TensorId {
        while let Some(c) = self.conversions.get_mut(&t) {
            if within(&self.origin.module, &c.module) {
                c.read = true;
                break;
            }
            if !(c.given && c.read) {
                break;
            }
            t = c.source;
        }
        t
    }
}

/// The note on dropout that the export has switched off, though its rate is not 0.
pub const DROPOUT_OFF: &str = "dropout is switched off (exported in evaluation mode)";

/// Relation of the tensor that a call returns to the one it is given.
enum Same {
    /// The same memory.
    Tensor,
    /// The same numbers in other memory.
    Copy,
}

/// The argument of this name.
fn named<'a>(node: &'a Node, name: &str) -> Option<&'a Argument> {
    node.inputs.iter().find(|i| i.name == name).map(|i| &i.arg)
}

impl<'a> Importer<'a> {
    /// Handles calls that change no value: `alias`, `clone`, conversions to the dtype there is, dropout
    /// switched off. True if it was one. A conversion of f32 to f32 stays as a node, since it is binding in
    /// mixed precision.
    pub fn same_tensor(&mut self, scope: &mut Scope<'a>, node: &'a Node) -> Result<bool, Obstacle> {
        let (namespace, name) = scope::base(&node.target);
        let Some(input) = node.inputs.first() else { return Ok(false) };
        let (Slot::Tensor(given), "aten") = (scope.value(&input.arg), namespace) else { return Ok(false) };
        let same = match name {
            "alias" | "lift" | "lift_fresh" | "positive" | "resolve_conj" | "resolve_neg" => Same::Tensor,
            // Complex numbers are pairs already; what is real has no imaginary part.
            "view_as_real" | "view_as_complex" => Same::Tensor,
            "real" | "conj" | "conj_physical" if !scope.computes_complex(node) => Same::Tensor,
            "clone" | "lift_fresh_copy" | "alias_copy" => Same::Copy,
            "contiguous" => self.memory(scope, node, given)?,
            "to" | "_to_copy" | "type_as" => {
                let have = self.tensors.ty(&self.b, given).dtype;
                if self.asked_dtype(scope, node).is_some_and(|d| d != have) {
                    return Ok(false);
                }
                let same = match named(node, "copy") {
                    Some(Argument::AsBool(true)) => Same::Copy,
                    _ if name == "_to_copy" => Same::Copy,
                    _ => self.memory(scope, node, given)?,
                };
                if self.asks_for_f32(scope, node, given) {
                    let other = named(node, "other").map(|a| scope.value(a));
                    let made = self.converted(scope, given, other, same)?;
                    self.define(scope, node, &[made])?;
                    return Ok(true);
                }
                same
            }
            "dropout" | "dropout_" | "feature_dropout" | "alpha_dropout" | "feature_alpha_dropout"
                if is_off(scope, node) =>
            {
                if argument(scope, node, "p").is_some_and(|p| p.float() > 0.0) {
                    self.notes.add(DROPOUT_OFF, &self.origin);
                }
                Same::Tensor
            }
            "detach" => {
                let t = self.tensors.without_gradient(&mut self.b, given)?;
                self.define(scope, node, &[Made::Tensor(t)])?;
                return Ok(true);
            }
            "detach_" => {
                if !self.tensors.detach_in_place(&mut self.b, given)? {
                    return Err(Obstacle::Unsupported("it detaches a view in place; use `detach`".into()));
                }
                Same::Tensor
            }
            _ => return Ok(false),
        };
        let (t, value) = self.operand(scope, given)?;
        let made = match same {
            // An in-place call gives back the very tensor, gradients and all.
            Same::Tensor if name.ends_with('_') => Made::Tensor(given),
            Same::Tensor => Made::Tensor(t),
            Same::Copy => Made::Value(value),
        };
        self.define(scope, node, &[made])?;
        Ok(true)
    }

    /// True for a conversion of f32 to f32 that the model requests. A move to a device requests whatever the
    /// tensor already has.
    fn asks_for_f32(&self, scope: &Scope<'a>, node: &Node, given: TensorId) -> bool {
        self.tensors.ty(&self.b, given).dtype == DType::F32
            && self.asked_dtype(scope, node).is_some()
            && !scope.computes_complex(node)
            && !node.target.ends_with("to.dtype_layout")
    }

    /// The result of a conversion of f32 to f32, to the dtype of `other` if there is one: the same memory, of
    /// which a node of the graph is what is read through it.
    fn converted(
        &mut self,
        scope: &Scope<'a>,
        given: TensorId,
        other: Option<Slot>,
        same: Same,
    ) -> Result<Made, Obstacle> {
        let (t, value) = self.operand(scope, given)?;
        let (op, others, attrs) = match other {
            Some(Slot::Tensor(other)) => (&TYPE_AS, vec![Some(self.operand(scope, other)?.1)], Attrs::new()),
            _ => (&TO, vec![], Attrs::new().with("dtype", DType::F32)),
        };
        let inputs: Vec<_> = std::iter::once(Some(value)).chain(others.iter().copied()).collect();
        let made = self.b.apply(op, &inputs, attrs.clone()).map_err(refused)?[0];
        if matches!(same, Same::Copy) {
            return Ok(Made::Value(made));
        }
        let layout = self.tensors.layout(t).clone();
        let view = self.tensors.views(t, op, others, attrs, vec![(made, layout)])[0];
        let module = self.origin.module.clone();
        let made = self.b.graph().producer(value).map(|(n, _)| &self.b.graph().origin(n).module);
        let given = made.is_none_or(|made| !within(made, &module));
        self.conversions.insert(view, Conversion { source: t, module, given, read: false });
        Ok(Made::Tensor(view))
    }

    /// Notes what an assertion about a tensor may be the trace of: decomposition drops a conversion of f32 to
    /// f32 and leaves what PyTorch asserts before it.
    pub fn note_conversion(&mut self, node: &'a Node) {
        if let (Some(Argument::AsTensor(t)), "_assert_tensor_metadata") =
            (node.inputs.first().map(|i| &i.arg), scope::base(&node.target).1)
        {
            self.asserted = Some((&t.name, node, self.b.origin));
        }
    }

    /// Puts the conversion that decomposition dropped between an asserted tensor and whatever reads it from
    /// now on, unless the next node is that conversion.
    pub fn restore_conversion(&mut self, scope: &mut Scope<'a>, next: Option<&Node>) -> Result<(), Obstacle> {
        let Some((name, assertion, at)) = self.asserted.take() else { return Ok(()) };
        let Slot::Tensor(given) = scope.slot(name) else { return Ok(()) };
        let converts = |n: &Node| {
            let first =
                matches!(n.inputs.first().map(|i| &i.arg), Some(Argument::AsTensor(t)) if t.name == name);
            first && matches!(scope::base(&n.target), ("aten", "to" | "_to_copy" | "type_as"))
        };
        let origin = assertion.trace.origin(assertion.label());
        let ty = self.tensors.ty(&self.b, given);
        if ty.dtype != DType::F32
            || scope.is_complex_name(name)
            || next.is_some_and(converts)
            || origin.moves_only()
        {
            return Ok(());
        }
        self.origin = origin;
        let outer = std::mem::replace(&mut self.b.origin, at);
        let made = self.converted(scope, given, None, Same::Tensor);
        self.b.origin = outer;
        if let Made::Tensor(t) = made? {
            scope.slots.insert(name, Slot::Tensor(t));
        }
        Ok(())
    }

    /// Decides whether PyTorch gave back the same memory: if the strides it recorded are those of the tensor
    /// given.
    fn memory(&mut self, scope: &Scope<'a>, node: &Node, given: TensorId) -> Result<Same> {
        let Some(Some(name)) = scope::output_names(&node.outputs).first().copied() else {
            return Ok(Same::Tensor);
        };
        let meta = scope.meta(name)?;
        let ty = self.sizes.ty(meta, name)?;
        let recorded = self.sizes.layout(meta, &ty)?;
        Ok(if recorded == *self.tensors.layout(given) { Same::Tensor } else { Same::Copy })
    }

    /// The dtype a conversion requests.
    fn asked_dtype(&self, scope: &Scope<'a>, node: &Node) -> Option<DType> {
        if let Some(Argument::AsScalarType(code)) = named(node, "dtype") {
            return element_of(*code).ok().map(|e| e.dtype);
        }
        match scope.value(named(node, "other")?) {
            Slot::Tensor(t) => Some(self.tensors.ty(&self.b, t).dtype),
            _ => None,
        }
    }

    /// Takes `copy_`, `fill_` and `zero_`, which leave nothing of what was there, and their forms without
    /// `_`. Whether it did.
    pub fn replacement(&mut self, scope: &mut Scope<'a>, node: &'a Node) -> Result<bool, Obstacle> {
        let (namespace, name) = scope::base(&node.target);
        let content = match (namespace, name) {
            ("aten", "copy_" | "copy") => named(node, "src").map(|a| scope.value(a)),
            ("aten", "fill_" | "fill") => named(node, "value").map(|a| scope.value(a)),
            ("aten", "zero_" | "zero") => Some(Slot::Number(Some(Number::Int(0)))),
            _ => None,
        };
        let target = node.inputs.first().map(|i| scope.value(&i.arg));
        let (Some(content), Some(Slot::Tensor(target))) = (content, target) else { return Ok(false) };
        let ty = self.tensors.ty(&self.b, target).clone();
        let new = match content {
            Slot::Tensor(t) => {
                let (_, value) = self.operand(scope, t)?;
                let value = self.b.cast(value, ty.dtype).map_err(refused)?;
                self.b.expand(value, &ty.shape).map_err(refused)?
            }
            Slot::Number(Some(n)) => {
                let value: Attr = match n {
                    Number::Int(i) => i.into(),
                    Number::Bool(b) => b.into(),
                    n => n.float().into(),
                };
                let size = ty.shape.to_ints();
                let attrs = Attrs::new().with("size", size).with("fill_value", value).with("dtype", ty.dtype);
                self.b.one(&FULL, &[], attrs).map_err(refused)?
            }
            Slot::Number(None) => {
                return Err(Obstacle::Unsupported("its value is a number only data tells".into()));
            }
            Slot::Nothing => return Err(Obstacle::Reported),
        };
        let made = if name.ends_with('_') {
            self.write(scope, target, new)?;
            Made::Tensor(target)
        } else {
            Made::Value(new)
        };
        self.define(scope, node, &[made])?;
        Ok(true)
    }
}

/// Dropout that drops nothing gives back its input.
fn is_off(scope: &Scope, node: &Node) -> bool {
    argument(scope, node, "train") == Some(Number::Bool(false))
        || argument(scope, node, "p").is_some_and(|p| p.float() == 0.0)
}

/// The number that an argument is.
fn argument(scope: &Scope, node: &Node, name: &str) -> Option<Number> {
    match named(node, name).map(|a| scope.value(a)) {
        Some(Slot::Number(n)) => n,
        _ => None,
    }
}

impl From<headwater_core::Error> for Obstacle {
    fn from(e: headwater_core::Error) -> Self {
        Obstacle::Fault(Error::from(e))
    }
}
