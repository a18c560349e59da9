//! Products that share their left operand, as one product: queries, keys and values, or gate and up.
//!
//! `linear(x, w₁, b₁)` and `linear(x, w₂, b₂)` are the parts of `linear(x, cat(w₁, w₂), cat(b₁, b₂))`. The
//! weights are parameters that the component that lays them out makes adjacent in their bucket, so that the
//! concatenation is a view (`lower::adjacent`). The rest follows from the derivatives of `linear`, `split`
//! and `cat`: the weight gradient is one product, whose parts are adjacent in the bucket of gradients, and
//! the bias gradient one sum. The gradient of `x` is one product over all results, where it was a sum of
//! products. Results that go through the same operators become one tensor for these (`siblings`).
//!
//! *Sums reordered*: the gradient of `x` is not rounded between its products any more. Results of the
//! products and gradients of weights are the same sums; a device that takes narrow products by another method
//! than wide ones may add them up in another order.

mod siblings;

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, Def, Graph, InputRole, Node, Origin, OutputRole, ValueId};
use crate::ops::linear::linear::LINEAR;
use crate::ops::movement::cat::CAT;
use crate::ops::pointwise::to::TO;
use crate::ops::view::split::SPLIT_WITH_SIZES;
use crate::tensor::TensorType;
use std::collections::{HashMap, HashSet};

/// A parameter: its name and type.
pub type Parameter<'a> = (&'a str, &'a TensorType);

/// True if the second of two parameters directly follows the first in memory, or is going to.
pub type Adjacent<'a> = &'a dyn Fn(Parameter, Parameter) -> bool;

/// Any may: the layout of parameters heeds [`Joined::adjacent`].
pub fn anywhere(_: Parameter, _: Parameter) -> bool {
    true
}

/// Bytes at whose multiples each of several adjacent parameters begins: a vector of AVX, a block of an Ascend
/// core's transfers.
const ALIGNMENT: usize = 32;

/// A joined graph.
#[derive(Debug)]
pub struct Joined {
    /// The graph.
    pub graph: Graph,
    /// Names of parameters that products now read as one, each directly after the one before.
    pub adjacent: Vec<Vec<String>>,
}

/// A product that may be joined to others.
struct Product {
    /// Its node.
    node: usize,
    weight: Factor,
    bias: Option<Factor>,
}

/// A weight or bias: a parameter, or a conversion of one.
#[derive(Clone)]
struct Factor {
    parameter: ValueId,
    /// Attributes of the conversion.
    cast: Option<Attrs>,
}

/// Joins the products of a forward graph whose weights and biases are trained, used once, and `adjacent`.
/// `kept` are parameters that stay separate, such as those that get no gradient: they would get one of zeros.
/// Inputs, outputs and results of nodes keep their values.
///
/// # Errors
/// Refusals of type rules: none for a legal graph.
pub fn join_products(graph: Graph, adjacent: Adjacent, kept: &HashSet<String>) -> Result<Joined> {
    let runs = runs(&graph, adjacent, kept);
    if runs.is_empty() {
        return Ok(Joined { graph, adjacent: Vec::new() });
    }
    let mut names = Vec::new();
    for run in &runs {
        let name = |f: &Factor| graph.input_index(f.parameter).map(|i| graph.inputs[i].name.clone());
        names.push(run.iter().filter_map(|p| name(&p.weight)).collect());
        let biases: Vec<String> = run.iter().filter_map(|p| name(p.bias.as_ref()?)).collect();
        names.extend((!biases.is_empty()).then_some(biases));
    }
    let splits = runs.iter().map(|run| graph.nodes[run[0].node].outputs[0]).collect();
    let gone: HashSet<usize> = runs.iter().flatten().map(|p| p.node).collect();
    let mut first: HashMap<usize, Vec<Product>> = runs.into_iter().map(|run| (run[0].node, run)).collect();
    let nodes = graph.nodes.clone();
    let mut b = Builder::extend(Graph { nodes: Vec::new(), ..graph });
    for (at, node) in nodes.iter().enumerate() {
        match first.remove(&at) {
            Some(run) => product(&mut b, &nodes, &run)?,
            None if gone.contains(&at) => {}
            None => b.graph_mut().nodes.push(node.clone()),
        }
    }
    let mut graph = b.finish();
    graph.sort_nodes(|n, _| n);
    Ok(Joined { graph: siblings::join(graph, &splits)?, adjacent: names })
}

/// True if [`join_products`] has anything to do.
pub(crate) fn any(graph: &Graph, adjacent: Adjacent) -> bool {
    !runs(graph, adjacent, &HashSet::new()).is_empty()
}

/// Products in runs that become one each, in the order of the first.
fn runs(graph: &Graph, adjacent: Adjacent, kept: &HashSet<String>) -> Vec<Vec<Product>> {
    let mut users = vec![0usize; graph.values.len()];
    for v in graph.nodes.iter().flat_map(|n| n.operands()).chain(graph.outputs.iter().map(|o| o.value)) {
        users[v.0 as usize] += 1;
    }
    let written: HashSet<ValueId> = graph
        .outputs
        .iter()
        .filter_map(|o| if let OutputRole::Mutation(v) = o.role { Some(v) } else { None })
        .collect();
    let trained = |v: ValueId| {
        let input = graph.input_index(v).map(|i| &graph.inputs[i]);
        let trains =
            |i: &&crate::graph::Input| matches!(i.role, InputRole::Parameter { trainable: true, .. });
        let free = input.filter(trains).is_some_and(|i| !kept.contains(&i.name));
        free && users[v.0 as usize] == 1 && !written.contains(&v)
    };
    let factor = |v: ValueId| match graph.value(v).def {
        Def::Input(_) => trained(v).then_some(Factor { parameter: v, cast: None }),
        Def::Node(n, _) => {
            let node = graph.node(n);
            let from = node.operands().next().filter(|_| *node.op == TO && users[v.0 as usize] == 1)?;
            trained(from).then(|| Factor { parameter: from, cast: Some(node.attrs.clone()) })
        }
    };
    let mut runs: Vec<Vec<Product>> = Vec::new();
    // The last run of each left operand.
    let mut last: HashMap<ValueId, usize> = HashMap::new();
    for (at, node) in graph.nodes.iter().enumerate().filter(|(_, n)| *n.op == LINEAR) {
        let (Some(x), Some(w)) = (node.inputs[0], node.inputs[1]) else { continue };
        let bias = node.inputs.get(2).copied().flatten();
        let Some(weight) = factor(w).filter(|_| graph.ty(w).shape.rank() == 2) else { continue };
        if graph.ty(w).shape.contains(&0) {
            continue;
        }
        let bias = match bias.map(&factor) {
            Some(None) => continue,
            Some(own) => own,
            None => None,
        };
        let product = Product { node: at, weight, bias };
        let run = last.get(&x).copied().filter(|&run| {
            let before = &runs[run][runs[run].len() - 1];
            follows(graph, before, &product, adjacent)
        });
        match run {
            Some(run) => runs[run].push(product),
            None => {
                last.insert(x, runs.len());
                runs.push(vec![product]);
            }
        }
    }
    runs.retain(|run| run.len() > 1);
    runs
}

/// True if a product can be joined to the one before: their modules have the same parent, their weights and
/// biases are adjacent and of a kind.
fn follows(graph: &Graph, before: &Product, product: &Product, adjacent: Adjacent) -> bool {
    let origin = |p: &Product| graph.origin(&graph.nodes[p.node]);
    let near = parent(&origin(before).module) == parent(&origin(product).module);
    let fits = |a: &Factor, b: &Factor| {
        let named = |f: &Factor| {
            graph.input_index(f.parameter).map(|i| (&graph.inputs[i].name[..], graph.ty(f.parameter)))
        };
        let (Some(one), Some(two)) = (named(a), named(b)) else { return false };
        let alike = one.1.dtype == two.1.dtype && a.cast == b.cast;
        alike && one.1.bytes().is_multiple_of(ALIGNMENT) && adjacent(one, two)
    };
    let biases = match (&before.bias, &product.bias) {
        (None, None) => true,
        (Some(a), Some(b)) => fits(a, b),
        _ => false,
    };
    near && biases && fits(&before.weight, &product.weight)
}

/// The module that a module is part of.
fn parent(module: &str) -> &str {
    module.rsplit_once('.').map_or("", |(parent, _)| parent)
}

/// One product in place of several, and its results as parts of its own.
fn product(b: &mut Builder, nodes: &[Node], run: &[Product]) -> Result<()> {
    let first = &nodes[run[0].node];
    let whole = b.graph().origin(first).clone();
    let names = |of: fn(&Origin) -> &str| -> Vec<String> {
        run.iter().map(|p| of(b.graph().origin(&nodes[p.node])).to_string()).collect()
    };
    let (modules, labels) = (names(|o| &o.module), names(|o| &o.node));
    let origin = Origin { module: together(&modules), node: labels.join("+"), ..whole };
    b.at(origin);
    b.phase = first.phase;
    let factors =
        |of: fn(&Product) -> Option<&Factor>| -> Vec<Factor> { run.iter().filter_map(of).cloned().collect() };
    let weight = joined(b, &factors(|p| Some(&p.weight)))?;
    let biases = factors(|p| p.bias.as_ref());
    let bias = if biases.is_empty() { None } else { Some(joined(b, &biases)?) };
    let made = b.apply(&LINEAR, &[first.inputs[0], Some(weight), bias], first.attrs.clone())?[0];
    let results: Vec<ValueId> = run.iter().map(|p| nodes[p.node].outputs[0]).collect();
    let dim = b.ty(made).shape.rank() - 1;
    let sizes: Vec<i64> = results.iter().map(|&v| b.ty(v).shape[dim] as i64).collect();
    let attrs = Attrs::new().with("split_sizes", sizes).with("dim", dim as i64);
    let node = Node {
        op: &SPLIT_WITH_SIZES,
        inputs: vec![Some(made)],
        attrs,
        outputs: results,
        origin: b.origin,
        phase: b.phase,
    };
    b.graph_mut().nodes.push(node);
    Ok(())
}

/// The concatenation of parameters, converted as each was.
fn joined(b: &mut Builder, factors: &[Factor]) -> Result<ValueId> {
    let parameters: Vec<ValueId> = factors.iter().map(|f| f.parameter).collect();
    let whole = b.one(&CAT, &parameters, Attrs::new().with("dim", 0))?;
    match &factors[0].cast {
        Some(attrs) => b.one(&TO, &[whole], attrs.clone()),
        None => Ok(whole),
    }
}

/// Paths of modules of one parent as one: `layer.attention.query+key+value`.
fn together(modules: &[String]) -> String {
    let names: Vec<&str> = modules.iter().skip(1).map(|m| m.rsplit('.').next().unwrap_or(m)).collect();
    match modules.iter().all(|m| *m == modules[0]) {
        true => modules[0].clone(),
        false => format!("{}+{}", modules[0], names.join("+")),
    }
}
