//! Insertion of the casts.

use super::policy::chosen;
use super::spelled::like;
use super::{Policy, Properties};
use crate::attr::{Attr, Attrs, KEEPS_TYPES};
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::DType;
use crate::graph::{Builder, Graph, Input, InputRole, NamedDType, Node, OriginId, OutputRole, ValueId};
use crate::ops::attention::sdpa::SDPA;
use crate::ops::norm::batch_norm::BATCH_NORM;
use crate::ops::norm::softmax::SOFTMAX;
use crate::ops::pointwise::to::{TO, is_idle};
use crate::ops::pointwise::type_as::TYPE_AS;
use crate::ops::pointwise::{cos::COS, overflows, sigmoid::SIGMOID, sin::SIN, tanh::TANH};
use crate::ops::{self, OpDef, Precision};
use crate::pass::decompose::expand;
use crate::pass::rebuild::rebuild;
use crate::pass::recognize::recognize_spelled;
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

/// Inserts the casts that `p` requests. f64 is left alone, as by autocast. Each value is cast once, however
/// often it is used.
///
/// With lists (O1): as `torch.autocast`, by the policy's class of each operator. Where PyTorch would refuse
/// inputs of different types, they are cast to the widest. The model's own conversions are kept; the lists
/// decide about what reads them. What an export in f32 writes as one to f32 goes to the dtype of another
/// tensor where the source line says so, and to f32 otherwise.
///
/// At every level a constant, or what is computed of constants, buffers and integers, saturates when it is
/// cast: the most negative f32 of a mask becomes the most negative number of low precision.
///
/// With low-precision weights (O2, O3):
/// * Parameters and float inputs are low; with `keep_batchnorm` those of batch norm are not. Buffers and
///   constants stay f32 (a rotary embedding's frequencies are worthless in bf16), and so does what is
///   computed of them alone. Beside a low-precision operand they are cast to it.
/// * Losses are computed in f32, as apex does, which casts the model's outputs. Outputs keep the exported
///   type.
/// * Norms that a model spells out become the operator, which is computed in f32 inside.
/// * A model's own conversions bind. An export in f32 writes `.float()` and the way back, `.to(x.dtype)`, as
///   the same conversion of f32 to f32; the source line tells which it is ([`NamedDType`]). f32 by its name
///   stays f32 until the model goes back, but for products, which compute in the dtype of their weights.
///
/// The loss, the first `User` output, is cast to f32, so that a loss scale of 2¹⁶ fits.
///
/// # Errors
/// `DType` for an operator that is refused on low precision, and what type rules refuse.
pub fn apply(graph: &Graph, p: &Properties) -> Result<Mixed> {
    let prepared;
    let graph = match &p.lists {
        Some(policy) => {
            // What takes the dtype of another tensor shall see what that is now.
            let follows = |op: &OpDef| *op == TYPE_AS || ops::create::ALL.contains(&op);
            prepared = expand(graph.clone(), &|op| policy.class(op).is_none() && !follows(op))?;
            &prepared
        }
        None if p.weights => {
            prepared = recognize_spelled(graph.clone())?.graph;
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
    let mut casts =
        Casts { low: p.dtype, known: HashMap::new(), native: HashSet::new(), stated: HashSet::new() };
    let mut decisions = Vec::with_capacity(graph.nodes.len());
    // Dtypes of the given graph's values now.
    let mut made: HashMap<ValueId, DType> =
        graph.inputs.iter().map(|i| (i.value, stored(i, graph.ty(i.value)).dtype)).collect();
    let mut mixed = rebuild(graph, stored, |b, node, operands| {
        let mut inputs = operands.to_vec();
        let named = names_f32(graph, node);
        let reason = match (&p.lists, p.weights) {
            (Some(_), _) if is_idle(graph, node) => Reason::Spelled,
            // Inside a region that turns autocast off, all computes in what it is given.
            (Some(_), _) if node.attrs.get(KEEPS_TYPES).is_some() => Reason::Given,
            (_, _) if casts.takes_wide_mask(b, node, &inputs) => {
                let mask = inputs[3].take();
                casts.cast_all(b, &mut inputs, p.dtype, |_, _, _| true)?;
                inputs[3] = mask;
                if p.weights { Reason::Model } else { Reason::LowList }
            }
            (Some(Policy::Chosen(low)), _) => {
                casts.by_choice(b, node, chosen(low, graph, node), &mut inputs)?
            }
            (Some(policy), _) => casts.by_list(b, node, policy, &mut inputs)?,
            (None, true) => casts.by_model(b, node, &mut inputs)?,
            (None, false) => Reason::Given,
        };
        if let (Reason::Spelled, Some(&Some(x))) = (reason, inputs.first())
            && is_idle(graph, node)
            && graph.ty(node.outputs[0]).dtype == DType::F32
        {
            let x = match &p.lists {
                Some(_) => {
                    let like = like(graph, decisions.len()).and_then(|v| made.get(&v)).copied();
                    casts.cast(b, x, like.unwrap_or(DType::F32))?
                }
                None => casts.idle(b, node, graph.origin(node).named_dtype(), x, &inputs)?,
            };
            made.insert(node.outputs[0], b.ty(x).dtype);
            decisions.push(Decision { op: node.op, origin: node.origin, dtype: Some(b.ty(x).dtype), reason });
            return Ok(vec![x]);
        }
        let (outputs, unified) = casts.build(b, node, &mut inputs, named)?;
        made.extend(node.outputs.iter().zip(&outputs).map(|(&v, &new)| (v, b.ty(new).dtype)));
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

/// Operators whose results are at most 1 in magnitude.
static BOUNDED: [&OpDef; 5] = [&COS, &SIGMOID, &SIN, &SOFTMAX, &TANH];

/// Casts made so far.
struct Casts {
    low: DType,
    known: HashMap<(ValueId, DType), ValueId>,
    /// f32 values computed of buffers, constants and integers alone.
    native: HashSet<ValueId>,
    /// The same, and those that the model makes f32 by its name, which are not cast beside others.
    stated: HashSet<ValueId>,
}

impl Casts {
    fn cast(&mut self, b: &mut Builder, v: ValueId, dtype: DType) -> Result<ValueId> {
        if b.ty(v).dtype == dtype {
            return Ok(v);
        }
        if let Some(&known) = self.known.get(&(v, dtype)) {
            return Ok(known);
        }
        let attrs = Attrs::new().with("dtype", dtype);
        let attrs = match dtype == self.low && self.is_stated(b, v) && self.states_extremes(b, v) {
            true => attrs.with("saturate", true),
            false => attrs,
        };
        let new = b.one(&TO, &[v], attrs)?;
        self.known.insert((v, dtype), new);
        Ok(new)
    }

    /// True for an attention of f16 whose mask states numbers beyond f16. It adds the mask in f32, where
    /// −65504 would leave the differences of scores as they are: a row without any key would not be even. So
    /// the mask stays f32.
    fn takes_wide_mask(&self, b: &Builder, node: &Node, inputs: &[Option<ValueId>]) -> bool {
        let low = inputs.iter().take(3).flatten().any(|&v| matches!(b.ty(v).dtype, DType::F32 | DType::F16));
        let mask = inputs.get(3).copied().flatten().filter(|&m| b.ty(m).dtype == DType::F32);
        *node.op == SDPA
            && self.low == DType::F16
            && low
            && mask.is_some_and(|m| self.is_stated(b, m) && self.states_extremes(b, m))
    }

    /// True if a value that is computed of buffers, constants and integers may hold a finite number that
    /// overflows low precision because the model states it: a buffer does, or a number among the attributes.
    fn states_extremes(&self, b: &Builder, v: ValueId) -> bool {
        let (mut seen, mut next) = (HashSet::new(), vec![v]);
        while let Some(v) = next.pop() {
            let Some((node, _)) = b.graph().producer(v) else {
                if b.ty(v).dtype.is_float() {
                    return true;
                }
                continue;
            };
            let beyond = |attr: &Attr| match attr {
                Attr::Float(x) => overflows(*x, self.low),
                Attr::Int(i) => overflows(*i as f64, self.low),
                _ => false,
            };
            // Only their numbers are elements; the sizes of others are not.
            let element = ["value", "fill_value", "self", "other", "s", "min", "max"];
            if element.iter().any(|name| node.attrs.get(name).is_some_and(beyond)) {
                return true;
            }
            if !BOUNDED.contains(&node.op) {
                next.extend(node.operands().filter(|&v| seen.insert(v)));
            }
        }
        false
    }

    /// A conversion of f32 to f32, as exported. The source line tells which it is. By its name, f32 binds:
    /// the result is f32, also that of a buffer, beside which others are then widened. In the dtype of
    /// another tensor it is low precision, as weights and activations are. If the line does not tell, the
    /// result is f32, which loses nothing.
    fn idle(
        &mut self,
        b: &mut Builder,
        node: &Node,
        named: NamedDType,
        x: ValueId,
        inputs: &[Option<ValueId>],
    ) -> Result<ValueId> {
        let native = self.is_native(b, x);
        let other = match inputs.get(1) {
            Some(&Some(mut v)) if *node.op == TYPE_AS => {
                // The export names the result of a conversion where the model names what was converted.
                while let Some((n, _)) = b.graph().producer(v).filter(|(n, _)| *n.op == TO)
                    && let Some(&Some(from)) = n.inputs.first()
                    && b.ty(from).dtype.is_float()
                {
                    v = from;
                }
                (!self.is_native(b, v)).then(|| b.ty(v).dtype)
            }
            _ => None,
        };
        let named = if *node.op == TYPE_AS { NamedDType::Other } else { named };
        match (named, native) {
            (NamedDType::F32, true) => {
                let wide = b.one(&TO, &[x], Attrs::new().with("dtype", DType::F32))?;
                self.stated.insert(wide);
                Ok(wide)
            }
            (_, true) => Ok(x),
            (NamedDType::F32 | NamedDType::Unknown, false) => self.cast(b, x, DType::F32),
            (NamedDType::Other, false) => self.cast(b, x, other.unwrap_or(self.low)),
        }
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
        if converts(node).is_some() {
            return Ok(Reason::Given);
        }
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
        if converts(node).is_some() || *node.op == TYPE_AS {
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

    fn is_native(&self, b: &Builder, v: ValueId) -> bool {
        is_constant_input(b, v).unwrap_or_else(|| self.native.contains(&v))
    }

    /// True for what is computed of buffers, constants and integers alone, in whatever dtype the model
    /// requests.
    fn is_stated(&self, b: &Builder, v: ValueId) -> bool {
        is_constant_input(b, v).unwrap_or_else(|| self.stated.contains(&v))
    }

    /// Applies the node's operator; if it refuses inputs of several float types, with all cast to the widest.
    /// What the model makes by the name of f32 (`named`) is no constant that would be cast beside others.
    fn build(
        &mut self,
        b: &mut Builder,
        node: &Node,
        inputs: &mut [Option<ValueId>],
        named: bool,
    ) -> Result<(Vec<ValueId>, bool)> {
        let mut attrs = node.attrs.clone();
        attrs.remove(KEEPS_TYPES);
        let all = |which: &dyn Fn(ValueId) -> bool| {
            inputs.iter().flatten().all(|&v| !b.ty(v).dtype.is_float() || which(v))
        };
        let stated = all(&|v| self.is_stated(b, v));
        let native = !named && all(&|v| self.is_native(b, v));
        let built = b.apply(node.op, inputs, attrs.clone());
        let widest = floats(b, inputs).reduce(DType::promote);
        let (outputs, unified) = match (built, widest) {
            (Err(_), Some(widest)) if floats(b, inputs).any(|d| d != widest) => {
                self.cast_all(b, inputs, widest, |_, _, _| true)?;
                (b.apply(node.op, inputs, attrs)?, true)
            }
            (built, _) => (built?, false),
        };
        let full = || outputs.iter().copied().filter(|&v| b.ty(v).dtype == DType::F32);
        if stated {
            self.stated.extend(full());
        }
        if native {
            self.native.extend(full());
        }
        Ok((outputs, unified))
    }
}

/// True for a buffer or constant, false for another input, `None` for what a node makes.
fn is_constant_input(b: &Builder, v: ValueId) -> Option<bool> {
    let i = b.graph().input_index(v)?;
    Some(matches!(b.graph().inputs[i].role, InputRole::Buffer { .. } | InputRole::Constant))
}

/// Dtypes of the float inputs.
fn floats<'a>(b: &'a Builder, inputs: &'a [Option<ValueId>]) -> impl Iterator<Item = DType> + 'a {
    inputs.iter().flatten().map(|&v| b.ty(v).dtype).filter(|d| d.is_float())
}

/// True if a node makes f32 because the model names it, of integers or of nothing: `mask.float()`,
/// `torch.zeros(n, dtype=torch.float32)`.
fn names_f32(graph: &Graph, node: &Node) -> bool {
    node.attrs.get("dtype") == Some(&Attr::DType(DType::F32))
        && !node.operands().any(|v| graph.ty(v).dtype.is_float())
        && graph.origin(node).named_dtype() == NamedDType::F32
}

/// The float dtype that a conversion spelled out in the model requests.
fn converts(node: &Node) -> Option<DType> {
    match node.attrs.get("dtype") {
        Some(Attr::DType(d)) if *node.op == TO && d.is_float() => Some(*d),
        _ => None,
    }
}
