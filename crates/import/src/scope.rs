//! Names of one (sub-)graph while it is imported: their meaning, and the nodes that matter.

use crate::dims;
use crate::error::{Result, refuse, shown};
use crate::functionalize::TensorId;
use crate::schema::{self, Argument, Graph, SymBool, SymFloat, SymInt, TensorMeta};
use crate::symbolic::{Environment, Expr, Number};
use crate::weights::{self, Element};
use headwater_core::tensor::TensorType;
use headwater_core::{Layout, Registry, Shape};
use std::collections::{HashMap, HashSet};

/// Meaning of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    /// A tensor.
    Tensor(TensorId),
    /// A number; `None` if only data tells it.
    Number(Option<Number>),
    /// Nothing usable: `None`, or the result of what is not supported.
    Nothing,
}

/// A graph being imported.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub graph: &'a Graph,
    pub slots: HashMap<&'a str, Slot>,
    /// Names that the outputs and the writes depend on.
    pub needed: HashSet<&'a str>,
    /// True if gradients are on.
    pub grad: bool,
}

impl<'a> Scope<'a> {
    pub fn new(graph: &'a Graph, grad: bool) -> Self {
        Scope { graph, slots: HashMap::new(), needed: HashSet::new(), grad }
    }

    /// Meaning of a name. Names are defined: the model was verified.
    pub fn slot(&self, name: &str) -> Slot {
        self.slots.get(name).copied().unwrap_or(Slot::Nothing)
    }

    /// Meaning of an argument that is one value.
    pub fn value(&self, arg: &Argument) -> Slot {
        match arg {
            Argument::AsTensor(t) => self.slot(&t.name),
            Argument::AsInt(i) => Slot::Number(Some(Number::Int(*i))),
            Argument::AsFloat(x) => Slot::Number(Some(Number::Float(x.0))),
            Argument::AsBool(x) => Slot::Number(Some(Number::Bool(*x))),
            Argument::AsSymInt(schema::SymIntArgument::AsInt(i)) => Slot::Number(Some(Number::Int(*i))),
            Argument::AsSymBool(schema::SymBoolArgument::AsBool(x)) => Slot::Number(Some(Number::Bool(*x))),
            Argument::AsSymFloat(schema::SymFloatArgument::AsFloat(x)) => {
                Slot::Number(Some(Number::Float(x.0)))
            }
            Argument::AsSymInt(schema::SymIntArgument::AsName(n))
            | Argument::AsSymBool(schema::SymBoolArgument::AsName(n))
            | Argument::AsSymFloat(schema::SymFloatArgument::AsName(n)) => self.slot(n),
            Argument::AsOptionalTensor(schema::OptionalTensor::AsTensor(t)) => self.slot(&t.name),
            _ => Slot::Nothing,
        }
    }

    /// The value of a symbolic name, if the exporter fixed it, or its expression and environment give it.
    pub fn recorded(&self, name: &str, sizes: &mut Sizes) -> Result<Option<Number>> {
        if let Some(x) = self.graph.sym_int_values.get(name) {
            return sizes.eval(x);
        }
        match self.graph.sym_bool_values.get(name) {
            Some(SymBool::AsBool(x)) => return Ok(Some(Number::Bool(*x))),
            Some(SymBool::AsExpr(e)) => return sizes.text(&e.expr_str),
            None => {}
        }
        match self.graph.sym_float_values.get(name) {
            Some(SymFloat::AsFloat(x)) => Ok(Some(Number::Float(x.0))),
            Some(SymFloat::AsExpr(e)) => sizes.text(&e.expr_str),
            None => Ok(None),
        }
    }

    /// True for a tensor of complex numbers, which is of pairs here.
    pub fn is_complex(&self, arg: &Argument) -> bool {
        let mut complex = false;
        arg.names(&mut |name| complex |= self.is_complex_name(name));
        complex
    }

    /// True for the name of a tensor of complex numbers.
    pub fn is_complex_name(&self, name: &str) -> bool {
        self.graph.tensor_values.get(name).is_some_and(|m| weights::is_complex(m.dtype))
    }

    /// True for a node that takes or makes complex numbers.
    pub fn computes_complex(&self, node: &schema::Node) -> bool {
        node.inputs.iter().map(|i| &i.arg).chain(&node.outputs).any(|a| self.is_complex(a))
    }

    /// Metadata of a tensor. It exists: the model was verified.
    pub fn meta(&self, name: &str) -> Result<&'a TensorMeta> {
        let meta = self.graph.tensor_values.get(name);
        meta.ok_or_else(|| refuse!(Name, "the tensor `{}` has no metadata", shown(name)))
    }
}

/// Names that an output argument defines, in order; `None` for an output that is left out.
pub(crate) fn output_names(outputs: &[Argument]) -> Vec<Option<&str>> {
    let mut names = Vec::new();
    for output in outputs {
        match output {
            Argument::AsNone(_) => names.push(None),
            Argument::AsOptionalTensors(ts) => names.extend(ts.iter().map(|t| match t {
                schema::OptionalTensor::AsTensor(t) => Some(t.name.as_str()),
                schema::OptionalTensor::AsNone(_) => None,
            })),
            other => other.names(&mut |n| names.push(Some(n))),
        }
    }
    names
}

/// Evaluates recorded sizes; every distinct expression once.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    pub env: Environment,
    known: HashMap<String, Option<Number>>,
}

impl Sizes {
    pub fn new(env: Environment) -> Self {
        Sizes { env, known: HashMap::new() }
    }

    /// True if a symbolic size is bound to 1.
    pub fn bind_one(&self) -> bool {
        self.env.symbols.values().any(|&n| n == 1)
    }

    /// Value of an expression; `None` if only data tells it.
    pub fn text(&mut self, text: &str) -> Result<Option<Number>> {
        if let Some(&value) = self.known.get(text) {
            return Ok(value);
        }
        let value = Expr::parse(text)?.eval(&self.env)?;
        self.known.insert(text.to_string(), value);
        Ok(value)
    }

    fn eval(&mut self, x: &SymInt) -> Result<Option<Number>> {
        match x {
            SymInt::AsInt(i) => Ok(Some(Number::Int(*i))),
            SymInt::AsExpr(e) => self.text(&e.expr_str),
        }
    }

    fn all(&mut self, v: &[SymInt], what: &str) -> Result<Vec<usize>> {
        v.iter()
            .map(|x| {
                let int = match self.eval(x)? {
                    Some(n) => n.int(),
                    None => match x {
                        // Says which symbol is open.
                        SymInt::AsExpr(e) => Some(dims::integer(&Expr::parse(&e.expr_str)?, &self.env)?),
                        SymInt::AsInt(i) => Some(*i),
                    },
                };
                int.and_then(|i| usize::try_from(i).ok())
                    .ok_or_else(|| refuse!(Expression, "a {what} is not a number of elements"))
            })
            .collect()
    }

    /// Recorded type of a tensor; of complex numbers that of their pairs.
    pub fn ty(&mut self, meta: &TensorMeta, name: &str) -> Result<TensorType> {
        let Element { dtype, complex } = weights::element(meta, name)?;
        let mut sizes = self.all(&meta.sizes, "size")?;
        sizes.extend(complex.then_some(2));
        let ty = TensorType::new(dtype, sizes);
        match ty.shape.checked_numel().and_then(|n| n.checked_mul(dtype.size())) {
            Some(_) => Ok(ty),
            None => Err(refuse!(Expression, "`{}` of type {ty} is larger than memory can be", shown(name))),
        }
    }

    /// Recorded place in PyTorch's memory of the elements of a tensor, whose type is `ty`.
    pub fn layout(&mut self, meta: &TensorMeta, ty: &TensorType) -> Result<Layout> {
        let strides = self.all(&meta.strides, "stride")?;
        let offset = self.all(std::slice::from_ref(&meta.storage_offset), "storage offset")?[0];
        let complex = weights::is_complex(meta.dtype);
        let shape = Shape::new(&ty.shape[..ty.shape.rank() - complex as usize]);
        let end = shape
            .iter()
            .zip(&strides)
            .try_fold(offset, |end, (&d, &s)| end.checked_add(d.checked_mul(s)?))
            .and_then(|end| isize::try_from(end).ok());
        let strides = strides.into_iter().map(|s| s as isize).collect();
        let layout = Layout { shape, strides, offset: offset as isize };
        let layout = if complex { weights::pairs(&layout) } else { Some(layout) };
        layout
            .filter(|_| end.is_some())
            .ok_or_else(|| refuse!(Expression, "a tensor of type {ty} reaches beyond what memory can be"))
    }
}

/// A target without PyTorch's prefix, e.g. `aten.add_.Tensor`.
pub(crate) fn short(target: &str) -> &str {
    target.strip_prefix("torch.ops.").unwrap_or(target)
}

/// Namespace and name of a target: `("aten", "add_")`.
pub(crate) fn base(target: &str) -> (&str, &str) {
    let mut parts = short(target).split('.');
    (parts.next().unwrap_or(""), parts.next().unwrap_or(""))
}

/// True if a node changes a tensor that it is given.
fn mutates(node: &schema::Node, registry: &Registry) -> bool {
    let (_, name) = base(&node.target);
    (name.ends_with('_') && !name.ends_with("__"))
        || registry.resolve(&node.target).is_some_and(|r| r.schema.args.iter().any(|a| a.written))
        || node.inputs.iter().any(|i| match &i.arg {
            Argument::AsGraph(sub) => writes(&sub.graph, registry),
            _ => false,
        })
}

/// True if a node of a graph changes a tensor that it is given.
pub(crate) fn writes(graph: &Graph, registry: &Registry) -> bool {
    graph.nodes.iter().any(|n| mutates(n, registry))
}

/// Assertions: what they compute is only a verdict.
pub(crate) fn is_assertion(target: &str) -> bool {
    let (namespace, name) = base(target);
    namespace == "aten"
        && matches!(
            name,
            "_assert_scalar"
                | "_assert_tensor_metadata"
                | "_assert_async"
                | "_functional_assert_scalar"
                | "_functional_assert_async"
                | "sym_constrain_range"
                | "sym_constrain_range_for_size"
        )
}

/// Nodes that the outputs and the writes depend on, and the names of all that they read.
pub(crate) fn live<'a>(graph: &'a Graph, registry: &Registry) -> (Vec<bool>, HashSet<&'a str>) {
    let mut needed: HashSet<&str> = HashSet::new();
    graph.outputs.iter().for_each(|o| {
        o.names(&mut |n| {
            needed.insert(n);
        })
    });
    let mut live = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        if is_assertion(&node.target) {
            continue;
        }
        let mut used = mutates(node, registry);
        node.outputs.iter().for_each(|o| o.names(&mut |n| used |= needed.contains(n)));
        if used {
            live[i] = true;
            node.inputs.iter().for_each(|a| {
                a.arg.names(&mut |n| {
                    needed.insert(n);
                })
            });
        }
    }
    (live, needed)
}
