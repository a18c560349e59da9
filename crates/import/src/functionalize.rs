//! Functionalization: makes writes functional. Every exported tensor is a root (memory of its own) or a view
//! of another tensor. A write replaces the value of the tensor written and, view by view, that of every
//! tensor up to its root. Other views of the root are made anew from it when they are read next. Knows values
//! and views, not archives.

use crate::error::{Result, refuse};
use headwater_core::graph::{Def, InputRole};
use headwater_core::ops::control::detach::DETACH;
use headwater_core::ops::pointwise::to::TO;
use headwater_core::ops::pointwise::type_as::TYPE_AS;
use headwater_core::ops::{Body, Derivative, OpCx, OpDef};
use headwater_core::tensor::TensorType;
use headwater_core::{Attrs, Builder, Layout, ValueId};
use std::rc::Rc;

/// A tensor of the exported program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TensorId(u32);

/// A view operator applied, so that it can be applied again.
#[derive(Debug)]
struct ViewCall {
    op: &'static OpDef,
    /// Operands after the viewed one.
    others: Vec<Option<ValueId>>,
    attrs: Attrs,
    /// The views are the tensors numbered from here, one an output.
    first: u32,
}

#[derive(Debug)]
struct Tensor {
    /// The tensor that it is a view of, and which output of the call; `None` for a root.
    view: Option<(TensorId, Rc<ViewCall>, usize)>,
    root: TensorId,
    depth: u32,
    /// Layout of its elements in PyTorch's memory: whether a `reshape` is a view depends on it.
    layout: Layout,
    value: ValueId,
    /// Number of writes to the root that `value` has seen; for a root, the number of all.
    version: u32,
    /// Gradients do not flow through it.
    detached: bool,
    /// The view of this tensor that gradients do not flow through.
    detached_view: Option<TensorId>,
}

/// Views of views deeper than this are not written through: each write costs a node a level.
const MAX_DEPTH: u32 = 64;

/// All tensors of a program being imported.
#[derive(Debug, Default)]
pub(crate) struct Tensors {
    all: Vec<Tensor>,
    gradients: Gradients,
}

impl Tensors {
    fn get(&self, t: TensorId) -> &Tensor {
        &self.all[t.0 as usize]
    }

    fn push(&mut self, t: Tensor) -> TensorId {
        self.all.push(t);
        TensorId(self.all.len() as u32 - 1)
    }

    /// Lets gradients of what the user feeds matter too.
    pub fn of_users(&mut self) {
        self.gradients.of_users = true;
    }

    /// A tensor with memory of its own.
    pub fn root(&mut self, value: ValueId, layout: Layout) -> TensorId {
        let root = TensorId(self.all.len() as u32);
        self.push(Tensor {
            view: None,
            root,
            depth: 0,
            layout,
            value,
            version: 0,
            detached: false,
            detached_view: None,
        })
    }

    /// The views that a view operator made of `parent`: their values and layouts, one an output.
    pub fn views(
        &mut self,
        parent: TensorId,
        op: &'static OpDef,
        others: Vec<Option<ValueId>>,
        attrs: Attrs,
        outputs: Vec<(ValueId, Layout)>,
    ) -> Vec<TensorId> {
        let call = Rc::new(ViewCall { op, others, attrs, first: self.all.len() as u32 });
        let p = self.get(parent);
        let (root, depth, detached) = (p.root, p.depth + 1, p.detached || *op == DETACH);
        let version = self.get(root).version;
        let view = |(i, (value, layout))| Tensor {
            view: Some((parent, call.clone(), i)),
            root,
            depth,
            layout,
            value,
            version,
            detached,
            detached_view: None,
        };
        outputs.into_iter().enumerate().map(view).map(|t| self.push(t)).collect()
    }

    /// Layout in PyTorch's memory.
    pub fn layout(&self, t: TensorId) -> &Layout {
        &self.get(t).layout
    }

    /// Type of a tensor; it never changes.
    pub fn ty<'b>(&self, b: &'b Builder, t: TensorId) -> &'b TensorType {
        b.ty(self.get(t).value)
    }

    /// The memory a tensor shows, and whether it was written.
    pub fn root_of(&self, t: TensorId) -> (TensorId, bool) {
        let root = self.get(t).root;
        (root, self.get(root).version > 0)
    }

    /// The tensor as it is seen while gradients are off.
    pub fn without_gradient(&mut self, b: &mut Builder, t: TensorId) -> Result<TensorId> {
        let tensor = self.get(t);
        if tensor.detached || !b.ty(tensor.value).dtype.is_float() {
            return Ok(t);
        }
        if let Some(view) = tensor.detached_view {
            return Ok(view);
        }
        let value = self.read(b, t)?;
        let value = self.detach(b, value)?;
        let layout = self.get(t).layout.clone();
        let view = self.views(t, &DETACH, vec![], Attrs::new(), vec![(value, layout)])[0];
        self.all[t.0 as usize].detached_view = Some(view);
        Ok(view)
    }

    /// A value through which no gradient flows; the value itself if none would anyway.
    fn detach(&mut self, b: &mut Builder, value: ValueId) -> Result<ValueId> {
        if self.gradients.reach(b, value) { Ok(b.one(&DETACH, &[value], Attrs::new())?) } else { Ok(value) }
    }

    /// `detach_`: from now on no gradient flows through the tensor. Views made before keep theirs, as in
    /// PyTorch. False if it is a view itself.
    pub fn detach_in_place(&mut self, b: &mut Builder, t: TensorId) -> Result<bool> {
        let tensor = self.get(t);
        if tensor.view.is_none() {
            let value = self.detach(b, tensor.value)?;
            self.all[t.0 as usize].value = value;
        }
        Ok(self.get(t).view.is_none())
    }

    /// The tensor's present value.
    ///
    /// # Errors
    /// `Budget` if it is nested too deeply in views of views; what a view operator refuses.
    pub fn read(&mut self, b: &mut Builder, t: TensorId) -> Result<ValueId> {
        let version = self.get(self.get(t).root).version;
        let mut stale = Vec::new();
        let mut at = t;
        while let Tensor { view: Some((parent, ..)), version: seen, .. } = self.get(at) {
            if *seen == version {
                break;
            }
            stale.push(at);
            at = *parent;
        }
        if stale.len() > MAX_DEPTH as usize {
            return Err(too_deep());
        }
        for t in stale.into_iter().rev() {
            let Some((parent, call, _)) = self.get(t).view.clone() else { continue };
            let base = self.get(parent).value;
            let values = if *call.op == DETACH {
                vec![self.detach(b, base)?]
            } else {
                let mut inputs = vec![Some(base)];
                inputs.extend(&call.others);
                b.apply(call.op, &inputs, call.attrs.clone())?
            };
            // All views of the call are as fresh as this one.
            for (i, value) in values.into_iter().enumerate() {
                let view = &mut self.all[call.first as usize + i];
                (view.value, view.version) = (value, version);
            }
        }
        Ok(self.get(t).value)
    }

    /// Replaces the tensor's content; `new` has its type.
    ///
    /// # Errors
    /// `Budget` if it is nested too deeply in views of views; `Err(Ok(name))` is the view operator that
    /// cannot be written through.
    pub fn write(&mut self, b: &mut Builder, t: TensorId, new: ValueId) -> Result<Result<(), &'static str>> {
        if self.get(t).depth > MAX_DEPTH {
            return Err(too_deep());
        }
        // The path to the root, and what every view on it saw before the write.
        let mut path = Vec::new();
        let mut at = t;
        while let Some((parent, call, output)) = self.get(at).view.clone() {
            if !matches!(call.op.body, Body::View(view) if view.scatter.is_some()) && !is_conversion(call.op)
            {
                return Ok(Err(call.op.name));
            }
            path.push((at, parent, call, output));
            at = parent;
        }
        let root = at;
        if let Some(&(_, parent, ..)) = path.first() {
            self.read(b, parent)?;
        }
        let version = self.get(root).version + 1;
        let mut value = new;
        for (at, parent, call, output) in path {
            let seen = &mut self.all[at.0 as usize];
            (seen.value, seen.version) = (value, version);
            let base = self.get(parent).value;
            if *call.op == DETACH && !self.gradients.reach(b, base) {
                value = self.detach(b, value)?;
                continue;
            }
            let types: Vec<Option<TensorType>> = std::iter::once(Some(base))
                .chain(call.others.iter().copied())
                .map(|v| v.map(|v| b.ty(v).clone()))
                .collect();
            let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: &call.attrs };
            if let Body::View(view) = call.op.body
                && let Some(scatter) = view.scatter
            {
                value = scatter(b, &cx, base, value, output)?;
            }
        }
        let memory = &mut self.all[root.0 as usize];
        (memory.value, memory.version) = (value, version);
        Ok(Ok(()))
    }
}

/// True for a conversion to the dtype that the tensor has: PyTorch returns the tensor itself, and so they
/// show the same memory.
fn is_conversion(op: &'static OpDef) -> bool {
    *op == TO || *op == TYPE_AS
}

fn too_deep() -> crate::Error {
    refuse!(Budget, "views of views are nested more than {MAX_DEPTH} deep around a write")
}

/// Which values gradients of trainable parameters depend on.
#[derive(Debug, Default)]
struct Gradients {
    reached: Vec<bool>,
    /// True if what the user feeds may require gradients.
    of_users: bool,
}

impl Gradients {
    /// True if a gradient could flow through `v` to a trainable parameter, or to what the user feeds.
    fn reach(&mut self, b: &Builder, v: ValueId) -> bool {
        let graph = b.graph();
        for value in &graph.values[self.reached.len()..] {
            let reached = match value.def {
                Def::Input(i) => {
                    let user = || self.of_users && value.ty.dtype.is_float();
                    match graph.inputs[i as usize].role {
                        InputRole::Parameter { trainable, .. } => trainable,
                        InputRole::User => user(),
                        _ => false,
                    }
                }
                Def::Node(n, _) => {
                    let node = graph.node(n);
                    value.ty.dtype.is_float()
                        && !matches!(node.op.derivative, Derivative::NotDifferentiable(_))
                        && node.operands().any(|v| self.reached[v.0 as usize])
                }
            };
            self.reached.push(reached);
        }
        self.reached[v.0 as usize]
    }
}
