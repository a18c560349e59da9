//! Insertion of the casts.

use super::policy::chosen;
use super::{Policy, Properties};
use crate::attr::Attr;
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::graph::{Builder, Graph, Input, InputRole, Node, OriginId, OutputRole, ValueId};
use crate::ops::norm::batch_norm::BATCH_NORM;
use crate::ops::pointwise::to::TO;
use crate::ops::{self, OpDef, Precision};
use crate::pass::decompose::expand;
use crate::pass::rebuild::rebuild;
use crate::pass::recognize::recognize;
use crate::tensor::TensorType;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// A graph with its casts, and what was decided for every node of it as it was given.
#[derive(Debug)]
pub struct Mixed {
    /// The graph. Inputs and outputs keep their order, names and roles.
    pub graph: Graph,
    /// One for every node, in order, once what is expanded or recognised first has been.
    pub decisions: Vec<Decision>,
}

/// The decision for a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Its operator.
    pub op: &'static OpDef,
    /// The model's line it comes from.
    pub origin: OriginId,
    /// The widest float it reads, or without any the one it makes; `None` if it has nothing to do with
    /// floats.
    pub dtype: Option<DType>,
    /// Why.
    pub reason: Reason,
}

/// Why a node runs in the precision it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// A list says low precision.
    LowList,
    /// A list says f32.
    FullList,
    /// It is among the nodes chosen to run low.
    ChosenLow,
    /// It is not among the nodes chosen to run low.
    ChosenFull,
    /// It runs in the widest of its inputs.
    Widest,
    /// It runs in what it is given.
    Given,
    /// Its inputs differed, and it takes one type only.
    Unified,
    /// Weights and activations are in low precision.
    Model,
    /// Losses are computed in f32.
    Loss,
    /// Batch norm is kept in f32.
    BatchNorm,
    /// The model itself converts here.
    Spelled,
    /// Computed of buffers, constants and integers alone.
    Native,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::LowList => "on the low-precision list",
            Reason::FullList => "on the f32 list",
            Reason::ChosenLow => "chosen to run low",
            Reason::ChosenFull => "not chosen to run low",
            Reason::Widest => "widest of its inputs",
            Reason::Given => "what it is given",
            Reason::Unified => "needs one type: the widest of its inputs",
            Reason::Model => "weights and activations are low precision",
            Reason::Loss => "a loss is computed in f32",
            Reason::BatchNorm => "batch norm is kept in f32",
            Reason::Spelled => "the model converts here",
            Reason::Native => "of buffers and constants alone",
        })
    }
}

/// Inserts the casts that `p` asks for. f64 is left alone, as by autocast. Each value is cast once, however
/// often it is used.
///
/// With lists (O1): as `torch.autocast`, by the policy's class of each operator. Where PyTorch would refuse
/// inputs of different types, they are cast to the widest.
///
/// With low-precision weights (O2, O3):
/// * Parameters and float inputs are low; with `keep_batchnorm` those of batch norm are not. Buffers and
///   constants stay f32 (a rotary embedding's frequencies are worthless in bf16), and so does what is
///   computed of them alone. Beside a low-precision operand they are cast to it.
/// * Losses are computed in f32, as apex does, which casts the model's outputs. Outputs keep the exported
///   type.
/// * Norms that a model spells out become the operator, which is computed in f32 inside. Models convert to
///   f32 for them, but a conversion of f32 to f32 leaves no node in an export.
/// * A model's own conversion to f32 is kept. The way back, `.to(input.dtype)`, was exported as a conversion
///   of f32 to f32. One of a value that has been widened goes back to low precision.
///
/// The loss, the first `User` output, is cast to f32, so that a loss scale of 2¹⁶ fits.
///
/// # Errors
/// `DType` for an operator that is refused on low precision, and what type rules refuse.
pub fn apply(graph: &Graph, p: &Properties) -> Result<Mixed> {
    let prepared;
    let graph = match &p.lists {
        Some(policy) => {
            prepared = expand(graph.clone(), &|op| policy.class(op).is_none())?;
            &prepared
        }
        None if p.weights => {
            prepared = recognize(graph.clone())?.graph;
            &prepared
        }
        None => graph,
    };
    let kept = if p.keep_batchnorm { batch_norm_inputs(graph) } else { HashSet::new() };
    let stored = |i: &Input, ty: &TensorType| {
        let low = match i.role {
            InputRole::Parameter { .. } => p.weights && !kept.contains(&i.value),
            InputRole::Buffer { .. } => {
                p.weights && !p.keep_batchnorm && batch_norm_inputs(graph).contains(&i.value)
            }
            _ => false,
        };
        let dtype = if low && ty.dtype == DType::F32 { p.dtype } else { ty.dtype };
        TensorType { dtype, shape: ty.shape.clone() }
    };
    let mut casts = Casts { low: p.dtype, known: HashMap::new(), native: HashSet::new() };
    let mut decisions = Vec::with_capacity(graph.nodes.len());
    let mut mixed = rebuild(graph, stored, |b, node, operands| {
        let mut inputs = operands.to_vec();
        let reason = match (&p.lists, p.weights) {
            (Some(Policy::Chosen(low)), _) => {
                casts.by_choice(b, node, chosen(low, graph, node), &mut inputs)?
            }
            (Some(policy), _) => casts.by_list(b, node, policy, &mut inputs)?,
            (None, true) => casts.by_model(b, node, &mut inputs)?,
            (None, false) => Reason::Given,
        };
        if reason == Reason::Spelled && casts.goes_back(b, graph, node, &inputs) {
            let x = casts.cast(b, inputs[0].expect("a conversion has an input"), p.dtype)?;
            decisions.push(Decision { op: node.op, origin: node.origin, dtype: Some(p.dtype), reason });
            return Ok(vec![x]);
        }
        let (outputs, unified) = casts.build(b, node, &mut inputs)?;
        let reason = if unified { Reason::Unified } else { reason };
        let of =
            |vs: &mut dyn Iterator<Item = ValueId>| vs.map(|v| b.ty(v).dtype).filter(|d| d.is_float()).max();
        let dtype = of(&mut inputs.iter().copied().flatten()).or_else(|| of(&mut outputs.iter().copied()));
        decisions.push(Decision { op: node.op, origin: node.origin, dtype, reason });
        Ok(outputs)
    })?;
    results(graph, &mut mixed, p)?;
    Ok(Mixed { graph: mixed, decisions })
}

/// Weights, biases and statistics of batch norm.
fn batch_norm_inputs(graph: &Graph) -> HashSet<ValueId> {
    let nodes = graph.nodes.iter().filter(|n| *n.op == BATCH_NORM);
    nodes.flat_map(|n| n.inputs.iter().skip(1).copied().flatten()).collect()
}

/// Casts results: new contents of inputs to their type, the loss to f32, at O2 and O3 all to what was
/// exported.
fn results(before: &Graph, graph: &mut Graph, p: &Properties) -> Result<()> {
    let mut b = Builder::extend(std::mem::take(graph));
    let mut loss = true;
    for i in 0..b.graph().outputs.len() {
        let output = &b.graph().outputs[i];
        let (value, exported) = (output.value, before.ty(before.outputs[i].value).dtype);
        let dtype = match output.role {
            OutputRole::User if p.weights || std::mem::take(&mut loss) => exported,
            OutputRole::Mutation(target) => b.ty(target).dtype,
            _ => continue,
        };
        let value = b.cast(value, dtype)?;
        b.graph_mut().outputs[i].value = value;
    }
    *graph = b.finish();
    Ok(())
}

/// Casts made so far.
struct Casts {
    low: DType,
    known: HashMap<(ValueId, DType), ValueId>,
    /// f32 values computed of buffers, constants and integers alone.
    native: HashSet<ValueId>,
}

impl Casts {
    fn cast(&mut self, b: &mut Builder, v: ValueId, dtype: DType) -> Result<ValueId> {
        if b.ty(v).dtype == dtype {
            return Ok(v);
        }
        if let Some(&known) = self.known.get(&(v, dtype)) {
            return Ok(known);
        }
        let new = b.cast(v, dtype)?;
        self.known.insert((v, dtype), new);
        Ok(new)
    }

    /// Casts the inputs that are floats of at most 32 bits and that `which` names.
    fn cast_all(
        &mut self,
        b: &mut Builder,
        inputs: &mut [Option<ValueId>],
        dtype: DType,
        which: impl Fn(&Self, &Builder, ValueId) -> bool,
    ) -> Result<()> {
        for v in inputs.iter_mut().flatten() {
            let ty = b.ty(*v).dtype;
            if ty.is_float() && ty != DType::F64 && which(self, b, *v) {
                *v = self.cast(b, *v, dtype)?;
            }
        }
        Ok(())
    }

    fn by_choice(
        &mut self,
        b: &mut Builder,
        node: &Node,
        low: Option<bool>,
        inputs: &mut [Option<ValueId>],
    ) -> Result<Reason> {
        let Some(low) = low else { return Ok(Reason::Given) };
        if let (true, Precision::Refused(why)) = (low, node.op.precision) {
            return Err(Error::new(Code::DType, format!("refused in {}: {why}", self.low)));
        }
        self.cast_all(b, inputs, if low { self.low } else { DType::F32 }, |_, _, _| true)?;
        Ok(if low { Reason::ChosenLow } else { Reason::ChosenFull })
    }

    fn by_list(
        &mut self,
        b: &mut Builder,
        node: &Node,
        policy: &Policy,
        inputs: &mut [Option<ValueId>],
    ) -> Result<Reason> {
        let any_low = |b: &Builder, inputs: &[Option<ValueId>]| floats(b, inputs).any(|d| d == self.low);
        Ok(match policy.class(node.op).unwrap_or(Precision::Same) {
            Precision::Low => {
                self.cast_all(b, inputs, self.low, |_, _, _| true)?;
                Reason::LowList
            }
            Precision::Full => {
                self.cast_all(b, inputs, DType::F32, |_, _, _| true)?;
                Reason::FullList
            }
            Precision::Widest => {
                if let Some(widest) = floats(b, inputs).reduce(DType::promote) {
                    self.cast_all(b, inputs, widest, |_, _, _| true)?;
                }
                Reason::Widest
            }
            Precision::Same => Reason::Given,
            Precision::Refused(why) if any_low(b, inputs) => {
                return Err(Error::new(Code::DType, format!("refused in {}: {why}", self.low)));
            }
            Precision::Refused(_) => Reason::Given,
        })
    }

    fn by_model(&mut self, b: &mut Builder, node: &Node, inputs: &mut [Option<ValueId>]) -> Result<Reason> {
        if ops::loss::ALL.contains(&node.op) {
            self.cast_all(b, inputs, DType::F32, |_, _, _| true)?;
            return Ok(Reason::Loss);
        }
        // User inputs are cast where they are used; a loss and a conversion see them as they are.
        let fed = |b: &Builder, v: ValueId| {
            b.graph().input_index(v).is_some_and(|i| b.graph().inputs[i].role == InputRole::User)
        };
        let low = self.low;
        self.cast_all(b, inputs, low, |_, b, v| fed(b, v))?;
        if converts(node).is_some() {
            return Ok(Reason::Spelled);
        }
        if *node.op == BATCH_NORM {
            // Its weights and statistics have their own type.
            let kept = inputs.iter().skip(1).flatten().any(|&v| b.ty(v).dtype == DType::F32);
            return Ok(if kept { Reason::BatchNorm } else { Reason::Model });
        }
        if floats(b, inputs).any(|d| d == low) {
            let one = matches!(node.op.precision, Precision::Low);
            self.cast_all(b, inputs, low, |casts, b, v| one || casts.is_native(b, v))?;
            let all = floats(b, inputs).all(|d| d == low);
            return Ok(if all { Reason::Model } else { Reason::Widest });
        }
        let native = inputs.iter().flatten().all(|&v| !b.ty(v).dtype.is_float() || self.is_native(b, v));
        Ok(if native { Reason::Native } else { Reason::Given })
    }

    /// True if a conversion to f32 of an f32 value, as exported, goes back to low precision.
    fn goes_back(&self, b: &Builder, graph: &Graph, node: &Node, inputs: &[Option<ValueId>]) -> bool {
        let (Some(Some(was)), Some(Some(now))) = (node.inputs.first(), inputs.first()) else { return false };
        let wide = |d: DType| d == DType::F32;
        converts(node).is_some_and(wide)
            && wide(graph.ty(*was).dtype)
            && wide(b.ty(*now).dtype)
            && !self.is_native(b, *now)
    }

    fn is_native(&self, b: &Builder, v: ValueId) -> bool {
        match b.graph().input_index(v) {
            Some(i) => matches!(b.graph().inputs[i].role, InputRole::Buffer { .. } | InputRole::Constant),
            None => self.native.contains(&v),
        }
    }

    /// Applies the node's operator; if it refuses inputs of several float types, with all cast to the widest.
    fn build(
        &mut self,
        b: &mut Builder,
        node: &Node,
        inputs: &mut [Option<ValueId>],
    ) -> Result<(Vec<ValueId>, bool)> {
        let native = inputs.iter().flatten().all(|&v| !b.ty(v).dtype.is_float() || self.is_native(b, v));
        let built = b.apply(node.op, inputs, node.attrs.clone());
        let widest = floats(b, inputs).reduce(DType::promote);
        let (outputs, unified) = match (built, widest) {
            (Err(_), Some(widest)) if floats(b, inputs).any(|d| d != widest) => {
                self.cast_all(b, inputs, widest, |_, _, _| true)?;
                (b.apply(node.op, inputs, node.attrs.clone())?, true)
            }
            (built, _) => (built?, false),
        };
        if native {
            self.native.extend(outputs.iter().filter(|&&v| b.ty(v).dtype == DType::F32));
        }
        Ok((outputs, unified))
    }
}

/// Dtypes of the float inputs.
fn floats<'a>(b: &'a Builder, inputs: &'a [Option<ValueId>]) -> impl Iterator<Item = DType> + 'a {
    inputs.iter().flatten().map(|&v| b.ty(v).dtype).filter(|d| d.is_float())
}

/// The float dtype that a conversion spelled out in the model asks for.
fn converts(node: &Node) -> Option<DType> {
    match node.attrs.get("dtype") {
        Some(Attr::DType(d)) if *node.op == TO && d.is_float() => Some(*d),
        _ => None,
    }
}
