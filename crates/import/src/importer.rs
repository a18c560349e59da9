//! An import under way: nodes of the export to nodes of the graph, in their order.

use crate::arguments::{self, Call, Obstacle, Operand};
use crate::conversions::Conversion;
use crate::error::{Error, Result, refuse, shown};
use crate::functionalize::{TensorId, Tensors};
use crate::report::{Notes, Unsupported};
use crate::schema::Node;
use crate::scope::{self, Scope, Sizes, Slot};
use crate::symbolic::Environment;
use crate::ways_out;
use headwater_core::graph::{InputRole, Origin, OriginId};
use headwater_core::ops::create::full::FULL;
use headwater_core::ops::norm::stat_dtype;
use headwater_core::ops::{Body, OpCx, OpDef};
use headwater_core::tensor::TensorType;
use headwater_core::{Attr, Attrs, Builder, Layout, Registry, ValueId};
use std::collections::HashMap;

/// The note on a gradient that is asked to be sparse.
const SPARSE: &str = "`sparse=True`: a training step updates only the rows that its batch reads, as SparseAdam does, where the \
     optimizer steps each element by itself and no micro-batches are summed; `sparse_embeddings` has the choice";

/// A result of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Made {
    /// A new tensor of this value.
    Value(ValueId),
    /// A tensor there is: a view just made, or the tensor that was written.
    Tensor(TensorId),
}

/// Rows of which a mask selects some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    /// The mask as the model has it: rows of one mask form a group.
    pub mask: ValueId,
    /// True for each row that is selected, `bool [rows]`.
    pub rows: ValueId,
}

/// An operator's refusal, for the report.
pub(crate) fn refused(e: headwater_core::Error) -> Obstacle {
    Obstacle::Unsupported(format!("{}: {}", e.code.as_str(), e.message))
}

/// Values a graph may have beyond [`BUDGET_RATIO`] for each name of the export: writes through views cost
/// several.
const BUDGET_BASE: usize = 1 << 16;
const BUDGET_RATIO: usize = 64;

/// The state of an import.
#[derive(Debug)]
pub(crate) struct Importer<'a> {
    pub registry: &'a Registry,
    pub b: Builder,
    pub tensors: Tensors,
    pub sizes: Sizes,
    pub notes: Notes,
    pub unsupported: Unsupported,
    pub values: HashMap<String, ValueId>,
    /// Tensors of which a mask selects rows; they hold all.
    pub selected: HashMap<TensorId, Selection>,
    /// Conversions of f32 to f32, by their results.
    pub conversions: HashMap<TensorId, Conversion>,
    /// The tensor that the node before asserted something of, that node, and its origin.
    pub asserted: Option<(&'a str, &'a Node, OriginId)>,
    budget: usize,
    /// Origin of the node at hand.
    pub origin: Origin,
}

impl<'a> Importer<'a> {
    /// An import that has not begun, of an export with so many named tensors.
    pub fn new(registry: &'a Registry, env: Environment, notes: Notes, names: usize) -> Self {
        Importer {
            registry,
            b: Builder::new(),
            tensors: Tensors::default(),
            sizes: Sizes::new(env),
            notes,
            unsupported: Unsupported::default(),
            values: HashMap::new(),
            selected: HashMap::new(),
            conversions: HashMap::new(),
            asserted: None,
            budget: BUDGET_BASE + BUDGET_RATIO * names,
            origin: Origin::default(),
        }
    }

    /// Imports the nodes of a graph whose inputs have their slots.
    pub fn nodes(&mut self, scope: &mut Scope<'a>) -> Result<()> {
        let (live, needed) = scope::live(scope.graph, self.registry);
        scope.needed = needed;
        for (node, live) in scope.graph.nodes.iter().zip(live) {
            let restored = self.restore_conversion(scope, Some(node));
            self.origin = node.trace.origin(node.label());
            let origin = self.b.at(self.origin.clone());
            let done = restored.and_then(|()| self.node(scope, node, live));
            // A sub-graph may have changed it.
            self.b.origin = origin;
            match done {
                Ok(()) => {}
                Err(Obstacle::Fault(e)) => return Err(e.at(&node.trace.origin(node.label()))),
                Err(obstacle) => {
                    let reason = match obstacle {
                        Obstacle::Unsupported(reason) => Some(reason),
                        // Something must have been reported, or the substitute input would be invented.
                        _ if self.unsupported.is_empty() => {
                            Some("an operand of it is the result of no operator, such as an assertion".into())
                        }
                        _ => None,
                    };
                    if let Some(reason) = reason {
                        let origin = node.trace.origin(node.label());
                        self.unsupported.add(scope::short(&node.target), reason, &origin);
                    }
                    self.stand_in(scope, node)?;
                }
            }
            if self.b.graph().values.len() > self.budget {
                return Err(refuse!(
                    Budget,
                    "the graph grows out of proportion to the file: writes through many views, or loops of many steps"
                ));
            }
        }
        Ok(())
    }

    fn node(&mut self, scope: &mut Scope<'a>, node: &'a Node, live: bool) -> Result<(), Obstacle> {
        if scope::is_assertion(&node.target) {
            self.note_conversion(node);
            return Ok(self.assertion(scope, node)?);
        }
        if self.symbolic(scope, node)? || !live {
            return Ok(());
        }
        if scope::base(&node.target).0 == "higher_order" {
            return self.higher_order(scope, node);
        }
        if self.masked(scope, node)? {
            return Ok(());
        }
        let complex = self.complex(scope, node)?;
        if complex.is_taken() {
            return Ok(());
        }
        if self.same_tensor(scope, node)? || self.replacement(scope, node)? {
            return Ok(());
        }
        let registry = self.registry;
        let Some(resolved) = registry.resolve(&node.target) else {
            return Err(Obstacle::Unsupported(ways_out::unknown(&node.target)));
        };
        let mut call = arguments::call(scope, node, resolved.schema)?;
        if let Some(number) = call.take_first_number(resolved.op) {
            self.number_as_tensor(number, &mut call)?;
        }
        call.check_numbers(resolved.op)?;
        self.epsilon(resolved.op, &mut call)?;
        self.of_pairs(scope, node, complex, &mut call)?;
        if resolved.in_place && matches!(resolved.op.body, Body::View(_)) {
            return Err(Obstacle::Unsupported(
                "it changes a tensor's shape in place; use the form without `_`".into(),
            ));
        }
        let outputs = self.apply(scope, resolved.op, &call)?;
        if call.attrs.get("sparse") == Some(&Attr::Bool(true)) {
            self.notes.add(SPARSE, &self.origin);
        }
        if resolved.in_place {
            let Some(target) = call.tensors.first().copied().flatten().map(|o| o.tensor) else {
                return Err(refuse!(Argument, "an in-place operator needs a tensor to change").into());
            };
            let Some(&Made::Value(new)) = outputs.first() else {
                return Err(refuse!(Argument, "an in-place operator without result").into());
            };
            self.write(scope, target, new)?;
            return Ok(self.define(scope, node, &[Made::Tensor(target)])?);
        }
        // New contents of written arguments come last. An evaluating norm writes nothing.
        let idle =
            ["training", "use_input_stats"].iter().any(|a| call.attrs.get(a) == Some(&Attr::Bool(false)));
        let written = call.written.len();
        if outputs.len() < written {
            return Err(refuse!(Argument, "{} results for {written} written arguments", outputs.len()).into());
        }
        let (results, contents) = outputs.split_at(outputs.len() - written);
        if !idle {
            for (&target, new) in call.written.iter().zip(contents) {
                if let Made::Value(new) = *new {
                    self.write(scope, target, new)?;
                }
            }
        }
        // A result that is a written argument is that tensor, not a copy: later writes to either reach both.
        let written = |(i, &made): (usize, &Made)| {
            let place = resolved.schema.returned.get(i).copied().flatten();
            place.and_then(|at| call.written.get(at)).map_or(made, |&t| Made::Tensor(t))
        };
        let results: Vec<Made> = results.iter().enumerate().map(written).collect();
        Ok(self.define_first(scope, node, &results, resolved.schema.results)?)
    }

    /// Writes down the epsilon of an RMS norm that names none: that of the dtype in which it computes, of
    /// which the proof in f64 must not make another.
    fn epsilon(&self, op: &'static OpDef, call: &mut Call) -> Result<(), Obstacle> {
        let missing = call.attrs.get("eps").is_none();
        if let (true, "rms_norm" | "_fused_rms_norm", Some(Some(x))) =
            (missing, op.name, call.tensors.first())
        {
            let dtype = stat_dtype(self.tensors.ty(&self.b, x.tensor).dtype).map_err(refused)?;
            call.attrs.set("eps", dtype.epsilon());
        }
        Ok(())
    }

    /// Puts a number before the tensors of a call, as a tensor without dimensions. It has the dtype that
    /// PyTorch promotes a plain number and these tensors to: a float gives integers the default dtype, and
    /// takes that of floats.
    fn number_as_tensor(&mut self, number: Attr, call: &mut Call) -> Result<(), Obstacle> {
        let others = call.tensors.iter().flatten().map(|o| self.tensors.ty(&self.b, o.tensor).clone());
        let others: Vec<TensorType> = others.collect();
        let attrs = Attrs::new().with("other", number.clone());
        let dtype = OpCx { inputs: others.iter().map(Some).collect(), attrs: &attrs }.result_type(&["other"]);
        let attrs =
            Attrs::new().with("size", Vec::<i64>::new()).with("fill_value", number).with("dtype", dtype);
        let value = self.b.one(&FULL, &[], attrs).map_err(refused)?;
        let tensor = self.tensors.root(value, Layout::contiguous(&self.b.ty(value).shape));
        call.tensors.insert(0, Some(Operand { tensor, argument: "self", complex: false }));
        Ok(())
    }

    /// Applies an operator.
    fn apply(&mut self, scope: &Scope<'a>, op: &'static OpDef, call: &Call) -> Result<Vec<Made>, Obstacle> {
        let mut operands = Vec::with_capacity(call.tensors.len());
        for t in &call.tensors {
            operands.push(match t {
                Some(operand) => Some(self.operand(scope, operand.tensor)?),
                None => None,
            });
        }
        let inputs: Vec<Option<ValueId>> = operands.iter().map(|o| o.map(|(_, v)| v)).collect();
        let first = self.b.graph().nodes.len();
        let values = match op.body {
            // Its results may be views, which only what it stands for tells.
            Body::Decompose(expand) if op.schemas.iter().any(|s| s.contains("(a)")) => {
                let types = self.types(&inputs);
                let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: &call.attrs };
                (op.infer)(&cx).and_then(|_| expand(&mut self.b, &cx, &inputs)).map_err(refused)?
            }
            body => {
                let values = self.b.apply(op, &inputs, call.attrs.clone()).map_err(refused)?;
                if !matches!(body, Body::View(_)) {
                    return Ok(values.into_iter().map(Made::Value).collect());
                }
                values
            }
        };
        let mut tensors: HashMap<ValueId, TensorId> =
            operands.iter().flatten().map(|&(t, v)| (v, t)).collect();
        for at in first..self.b.graph().nodes.len() {
            let node = self.b.graph().nodes[at].clone();
            let parent = node.inputs.first().copied().flatten().and_then(|v| tensors.get(&v));
            let (Body::View(view), Some(&parent)) = (node.op.body, parent) else { continue };
            let types = self.types(&node.inputs);
            let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: &node.attrs };
            let base = self.tensors.layout(parent).clone();
            let layouts =
                (0..node.outputs.len()).map(|i| (view.layout)(&cx, &base, i)).collect::<Result<_, _>>();
            // If PyTorch's memory does not allow a view, `reshape` and its like copy.
            let Some(layouts): Option<Vec<Layout>> = layouts.map_err(refused)? else { continue };
            let views = node.outputs.iter().copied().zip(layouts).collect();
            let views =
                self.tensors.views(parent, node.op, node.inputs[1..].to_vec(), node.attrs.clone(), views);
            tensors.extend(node.outputs.into_iter().zip(views));
        }
        Ok(values.into_iter().map(|v| tensors.get(&v).map_or(Made::Value(v), |&t| Made::Tensor(t))).collect())
    }

    fn types(&self, values: &[Option<ValueId>]) -> Vec<Option<TensorType>> {
        values.iter().map(|v| v.map(|v| self.b.ty(v).clone())).collect()
    }

    /// An operand as the scope sees it, with its present value.
    pub fn operand(&mut self, scope: &Scope<'a>, t: TensorId) -> Result<(TensorId, ValueId)> {
        let t = self.seen_from_here(t);
        let t = if scope.grad { t } else { self.tensors.without_gradient(&mut self.b, t)? };
        Ok((t, self.tensors.read(&mut self.b, t)?))
    }

    /// Writes `new` over a tensor, in the tensor's dtype.
    pub fn write(&mut self, scope: &Scope<'a>, target: TensorId, new: ValueId) -> Result<(), Obstacle> {
        let target = if scope.grad { target } else { self.tensors.without_gradient(&mut self.b, target)? };
        let ty = self.tensors.ty(&self.b, target).clone();
        if self.b.ty(new).shape != ty.shape {
            let got = self.b.ty(new);
            return Err(refuse!(Mismatch, "{got} cannot be written over a tensor of type {ty}").into());
        }
        let new = self.b.cast(new, ty.dtype).map_err(Error::from)?;
        match self.tensors.write(&mut self.b, target, new)? {
            Ok(()) => Ok(()),
            Err(view) => Err(Obstacle::Unsupported(format!(
                "it writes through `{view}`, which shows elements several times; write to a copy (`clone`)"
            ))),
        }
    }

    /// Binds a node's output names to its results and checks them against what PyTorch recorded.
    pub fn define(&mut self, scope: &mut Scope<'a>, node: &'a Node, results: &[Made]) -> Result<()> {
        self.define_first(scope, node, results, results.len())
    }

    /// As [`Importer::define`], of an operator that makes the first of the results that its schema
    /// `declared`. The others stay undefined, as what `embedding_bag` keeps for ATen's backward pass; nothing
    /// may read them.
    fn define_first(
        &mut self,
        scope: &mut Scope<'a>,
        node: &'a Node,
        results: &[Made],
        declared: usize,
    ) -> Result<()> {
        let names = scope::output_names(&node.outputs);
        let have = results.len();
        if names.len() > have.max(declared) {
            return Err(refuse!(Argument, "{} results are named, the operator has {have}", names.len()));
        }
        let read =
            names.iter().enumerate().skip(have).find(|(_, n)| n.is_some_and(|n| scope.needed.contains(n)));
        if let Some((at, _)) = read {
            return Err(refuse!(
                Argument,
                "the model reads result {at}, of which only the first {have} are made here: export a model that does not"
            ));
        }
        for (name, &made) in names.into_iter().zip(results) {
            let Some(name) = name else { continue };
            let meta = scope.meta(name)?;
            let want = self.sizes.ty(meta, name)?;
            let t = match made {
                Made::Tensor(t) => {
                    self.check(name, &want, self.tensors.ty(&self.b, t))?;
                    t
                }
                Made::Value(v) => {
                    self.check(name, &want, self.b.ty(v))?;
                    let layout = self.sizes.layout(meta, &want)?;
                    self.tensors.root(v, layout)
                }
            };
            let value = self.tensors.read(&mut self.b, t)?;
            self.values.entry(name.to_string()).or_insert(value);
            scope.slots.insert(name, Slot::Tensor(t));
        }
        Ok(())
    }

    /// A tensor must be what PyTorch recorded.
    pub fn check(&self, name: &str, want: &TensorType, got: &TensorType) -> Result<()> {
        if got != want {
            // What PyTorch recorded at other sizes has a dimension that `squeeze` keeps.
            let long = |ty: &TensorType| ty.shape.iter().filter(|&&n| n != 1).copied().collect::<Vec<_>>();
            let one = self.sizes.bind_one();
            let fewer = got.dtype == want.dtype && got.shape.rank() < want.shape.rank();
            if one && fewer && long(got) == long(want) {
                return Err(refuse!(
                    Dimension,
                    "`{}` is {want} in the exported program, and {got} at these sizes, because `squeeze` drops a dimension of \
                     size 1: the dimensions after it would be others. Give that dimension a size of 2 or more, or export \
                     with the dimensions to drop named, `x.squeeze(dim)`, or with this size fixed",
                    shown(name)
                ));
            }
            return Err(refuse!(Mismatch, "`{}` is {got} here, PyTorch recorded {want}", shown(name)));
        }
        Ok(())
    }

    /// Results of the recorded types in the place of what cannot be imported, so that the rest can be looked
    /// at.
    fn stand_in(&mut self, scope: &mut Scope<'a>, node: &'a Node) -> Result<()> {
        for name in scope::output_names(&node.outputs).into_iter().flatten() {
            let slot = match scope.graph.tensor_values.get(name).map(|meta| self.sizes.ty(meta, name)) {
                Some(Ok(ty)) => {
                    let layout = Layout::contiguous(&ty.shape);
                    let value = self.b.input(name, ty, InputRole::User);
                    Slot::Tensor(self.tensors.root(value, layout))
                }
                _ => Slot::Nothing,
            };
            scope.slots.insert(name, slot);
        }
        Ok(())
    }
}
