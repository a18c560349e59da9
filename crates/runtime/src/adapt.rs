//! What the settings of a run change in the model's graph: parameters that are frozen, and the weights of
//! classes in its loss. Knows graphs and data, and neither sessions nor devices.

use crate::config::TrainConfig;
use crate::data::{ClassWeights, Dataset, Feeding};
use crate::error::{Error, Result};
use crate::optim::Groups;
use headwater_core::attr::Attrs;
use headwater_core::dtype::Class;
use headwater_core::graph::{Def, Input, InputRole, Node, NodeId, OutputRole, Value};
use headwater_core::ops::create::constant::CONSTANT;
use headwater_core::{DType, Graph, Tensor, TensorType, ValueId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Changes to a graph, with all that they need to know of the data.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    freeze: Vec<String>,
    /// Weights of the classes, and the input of the model that the labels come from.
    classes: Option<Vec<f64>>,
}

/// Tensors and elements that settings freeze.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frozen {
    /// Parameters that would be trained, and their elements.
    pub tensors: (usize, usize),
    /// Tensors that are trained, and their elements.
    pub trained: (usize, usize),
}

impl Changes {
    /// Changes of a graph by the settings, if it is trained on these data.
    ///
    /// # Errors
    /// `Config` for patterns that match nothing or all there is, and for class weights where the loss takes
    /// none or the classes are not known.
    pub fn new(config: &TrainConfig, graph: &Graph, data: &Feeding) -> Result<Changes> {
        freeze(&mut graph.clone(), &config.freeze)?;
        let asked = config.data.class_weights.as_ref();
        let classes = asked.map(|asked| weights(asked, config, graph, data)).transpose()?;
        Ok(Changes { freeze: config.freeze.clone(), classes })
    }

    /// Marks frozen parameters.
    ///
    /// # Errors
    /// As [`freeze`].
    pub fn freeze(&self, mut graph: Graph) -> Result<Graph> {
        freeze(&mut graph, &self.freeze)?;
        Ok(graph)
    }

    /// Puts the weights of the classes into the loss, for training; evaluation measures the model's own loss.
    ///
    /// # Errors
    /// `Config` if the loss takes none.
    pub fn weigh(&self, graph: Graph) -> Result<Graph> {
        match &self.classes {
            Some(classes) => weigh(graph, classes),
            None => Ok(graph),
        }
    }

    /// The weights of the classes, if they have any.
    pub fn classes(&self) -> Option<&[f64]> {
        self.classes.as_deref()
    }
}

/// Marks the parameters that a pattern matches as not trained.
///
/// # Errors
/// `Config` for a pattern that matches no parameter, and if nothing is left to train.
pub fn freeze(graph: &mut Graph, patterns: &[String]) -> Result<Frozen> {
    Groups::check_names("freeze", patterns.iter().map(String::as_str), parameters(graph))?;
    let mut found = Frozen::default();
    for i in 0..graph.inputs.len() {
        let elements = graph.ty(graph.inputs[i].value).shape.numel();
        let input = &mut graph.inputs[i];
        let InputRole::Parameter { trainable, aliases } = &mut input.role else { continue };
        let names = || std::iter::once(&input.name).chain(aliases.iter());
        let frozen = names().any(|name| patterns.iter().any(|p| crate::optim::matches(p, name)));
        if !*trainable {
            continue;
        }
        let sums = if frozen { &mut found.tensors } else { &mut found.trained };
        *sums = (sums.0 + 1, sums.1 + elements);
        *trainable = !frozen;
    }
    match found.tensors.0 > 0 && found.trained.0 == 0 {
        true => {
            let message = format!("{} freezes all parameters: nothing is left to train", patterns.join(", "));
            Err(Error::config("freeze", message))
        }
        false => Ok(found),
    }
}

/// Names of a graph's parameters, tied ones under each.
pub(crate) fn parameters(graph: &Graph) -> impl Iterator<Item = &str> + Clone {
    graph.inputs.iter().flat_map(|i| {
        let (own, aliases) = match &i.role {
            InputRole::Parameter { aliases, .. } => (Some(i.name.as_str()), &aliases[..]),
            _ => (None, &[][..]),
        };
        own.into_iter().chain(aliases.iter().map(String::as_str))
    })
}

/// Names of the trained parameters, tied ones under each; none where no parameter is frozen.
pub(crate) fn trained(graph: &Graph) -> Vec<String> {
    let role =
        |i: &Input, of: bool| matches!(i.role, InputRole::Parameter { trainable, .. } if trainable == of);
    if !graph.inputs.iter().any(|i| role(i, false)) {
        return Vec::new();
    }
    let kept = graph.inputs.iter().filter(|i| role(i, true)).cloned().collect();
    parameters(&Graph { inputs: kept, ..Graph::default() }).map(str::to_string).collect()
}

fn refuse(message: impl Into<String>) -> Error {
    Error::config("data.class_weights", message)
}

/// Goes back from a value through what keeps its numbers, or scales all of them alike.
fn source(graph: &Graph, mut value: ValueId) -> (ValueId, Option<usize>) {
    loop {
        let Def::Node(NodeId(n), _) = graph.value(value).def else { return (value, None) };
        let node = &graph.nodes[n as usize];
        let scaled = matches!(node.op.name, "mul" | "div") && node.operands().count() == 1;
        let kept = matches!(
            node.op.name,
            "to" | "type_as"
                | "clone"
                | "alias"
                | "reshape"
                | "flatten"
                | "squeeze"
                | "unsqueeze"
                | "mean"
                | "sum"
        );
        match (node.operands().next(), kept || scaled) {
            (Some(before), true) => value = before,
            _ => return (value, Some(n as usize)),
        }
    }
}

/// The node that computes the loss, which must take class weights and have none.
fn loss(graph: &Graph) -> Result<usize> {
    let output = graph.outputs.iter().find(|o| o.role == OutputRole::User);
    let (_, node) = output.map_or((ValueId(0), None), |o| source(graph, o.value));
    let Some(n) = node else { return Err(refuse("needs a loss, and the model returns none")) };
    let node = &graph.nodes[n];
    let origin = graph.origin(node);
    if !matches!(node.op.name, "cross_entropy_loss" | "nll_loss") {
        return Err(refuse(format!(
            "is for a loss of cross_entropy or nll_loss, and this model's is made by `{}` ({origin}): put the weights into the \
             module's own loss, or draw classes as often as each other with `data.balance`",
            node.op.name
        )));
    }
    match node.inputs.get(2).copied().flatten() {
        Some(_) => Err(refuse(format!(
            "does not go with the class weights that the model's loss has of its own ({origin})"
        ))),
        None => Ok(n),
    }
}

/// The number of classes of a loss.
fn count(graph: &Graph, node: &Node) -> usize {
    let shape = &graph.ty(node.inputs[0].expect("a loss has scores")).shape;
    shape[if shape.rank() > 1 { 1 } else { 0 }]
}

/// Puts weights into the loss.
fn weigh(mut graph: Graph, classes: &[f64]) -> Result<Graph> {
    let n = loss(&graph)?;
    let node = &graph.nodes[n];
    let (have, dtype) = (count(&graph, node), graph.ty(node.inputs[0].expect("a loss has scores")).dtype);
    if have != classes.len() {
        return Err(refuse(format!("has {} weights, and the loss is of {have} classes", classes.len())));
    }
    let weight = ValueId(graph.values.len() as u32);
    let ty = TensorType::new(dtype, [have]);
    let tensor = Tensor::float(dtype, [have], classes.to_vec());
    graph.values.push(Value { ty, def: Def::Node(NodeId(0), 0) });
    let (origin, phase) = (node.origin, node.phase);
    let attrs = Attrs::new().with("value", Arc::new(tensor));
    let node = &mut graph.nodes[n];
    node.inputs.resize(node.inputs.len().max(3), None);
    node.inputs[2] = Some(weight);
    let constant = Node { op: &CONSTANT, inputs: Vec::new(), attrs, outputs: vec![weight], origin, phase };
    graph.nodes.insert(n, constant);
    for (n, node) in graph.nodes.iter().enumerate() {
        for (i, v) in node.outputs.iter().enumerate() {
            graph.values[v.0 as usize].def = Def::Node(NodeId(n as u32), i as u32);
        }
    }
    Ok(graph)
}

/// The weight of each class.
fn weights(asked: &ClassWeights, config: &TrainConfig, graph: &Graph, data: &Feeding) -> Result<Vec<f64>> {
    let node = &graph.nodes[loss(graph)?];
    let classes = count(graph, node);
    let labels = node.inputs.get(1).copied().flatten().map(|v| source(graph, v).0);
    let input = graph.inputs.iter().find(|i| Some(i.value) == labels && i.role == InputRole::User);
    let column = input.map(|i| config.data.names.get(&i.name).unwrap_or(&i.name).as_str());
    let found = match asked {
        ClassWeights::Listed(listed) => listed.clone(),
        ClassWeights::Balanced(_) => {
            let column = column.ok_or_else(|| {
                refuse("\"balanced\" counts the labels of an input, and this model computes them: list the weights")
            })?;
            let ignored = match node.attrs.get("ignore_index") {
                Some(headwater_core::attr::Attr::Int(i)) => *i,
                _ => -100,
            };
            balanced(data.data(), data.samples(), column, classes, ignored)?
        }
        ClassWeights::Named(named) => {
            let names = column.and_then(|c| data.data().class_names(c));
            by_name(
                named,
                names.ok_or_else(|| {
                    refuse(
                        "names classes, and the data have no names of them: list the weights in their order",
                    )
                })?,
            )?
        }
    };
    if found.len() != classes {
        return Err(refuse(format!("has {} weights, and the loss is of {classes} classes", found.len())));
    }
    match found.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
        Some(i) => {
            Err(refuse(format!("{} of class {i} is no weight: it must be 0 or more, and finite", found[i])))
        }
        None if found.iter().all(|w| *w == 0.0) => Err(refuse("has no weight above 0")),
        None => Ok(found),
    }
}

/// scikit-learn's `balanced`: samples over the classes that occur times the samples of each. A class that
/// does not occur has a weight of 1.
fn balanced(data: &Dataset, samples: usize, name: &str, classes: usize, ignored: i64) -> Result<Vec<f64>> {
    let file = data.path().display();
    let column = data.column(name).ok_or_else(|| refuse(format!("{file} has no tensor {name}")))?;
    if column.ty.dtype.class() != Class::Int {
        return Err(refuse(format!("\"balanced\" counts integers, and {name} in {file} is {}", column.ty)));
    }
    let mut counts = vec![0u64; classes];
    let one: usize = column.ty.shape[1..].iter().product();
    let mut bytes = Vec::new();
    for sample in 0..samples {
        bytes.clear();
        column.append(sample, DType::I64, &mut bytes)?;
        let labels = Tensor::from_bytes(&TensorType::new(DType::I64, [one]), &bytes);
        for &label in labels.ints().iter().filter(|l| **l != ignored) {
            let at = usize::try_from(label).ok().and_then(|l| counts.get_mut(l));
            *at.ok_or_else(|| {
                refuse(format!("{name} of sample {sample} in {file} is {label}, of {classes} classes"))
            })? += 1;
        }
    }
    let (all, occur) = (counts.iter().sum::<u64>() as f64, counts.iter().filter(|n| **n > 0).count() as f64);
    Ok(counts.iter().map(|&n| if n == 0 { 1.0 } else { all / (occur * n as f64) }).collect())
}

fn by_name(named: &BTreeMap<String, f64>, names: &[String]) -> Result<Vec<f64>> {
    if let Some(unknown) = named.keys().find(|n| !names.contains(n)) {
        return Err(refuse(format!("there is no class {unknown}; the classes are {}", names.join(", "))));
    }
    Ok(names.iter().map(|n| named.get(n).copied().unwrap_or(1.0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_core::ops::loss::cross_entropy::CROSS_ENTROPY_LOSS;
    use headwater_core::ops::loss::mse::MSE_LOSS;
    use headwater_core::{Builder, graph, reference};

    fn model(own: bool) -> Graph {
        let mut b = Builder::new();
        let w = b.parameter("body.weight", DType::F64, &[4, 3]);
        let bias = b.parameter("head.bias", DType::F64, &[4, 3]);
        let labels = b.input("labels", TensorType::new(DType::I64, [4]), InputRole::User);
        let scores = b.add(w, bias).unwrap();
        let weight = own.then(|| b.full(&TensorType::new(DType::F64, [3]), 2.0).unwrap());
        let attrs =
            Attrs::new().with("reduction", 1i64).with("ignore_index", -100i64).with("label_smoothing", 0.0);
        let loss = b.apply(&CROSS_ENTROPY_LOSS, &[Some(scores), Some(labels), weight], attrs).unwrap()[0];
        b.output("loss", loss, OutputRole::User);
        b.finish()
    }

    #[test]
    fn the_loss_is_weighted_as_pytorch_weighs_it() {
        let plain = model(false);
        let weighted = weigh(plain.clone(), &[0.5, 1.0, 4.0]).unwrap();
        graph::verify(&weighted).unwrap();
        let scores: Vec<f64> = (0..12).map(|i| ((i * 7 % 5) as f64) / 4.0).collect();
        let labels = [0, 2, 1, 2];
        let inputs = [
            Tensor::float(DType::F64, [4, 3], scores.clone()),
            Tensor::float(DType::F64, [4, 3], vec![0.0; 12]),
            Tensor::int(DType::I64, [4], labels.to_vec()),
        ];
        let loss = reference::run(&weighted, &inputs).unwrap()[0].floats()[0];
        let (mut sum, mut total) = (0.0, 0.0);
        for (row, &label) in scores.chunks(3).zip(&labels) {
            let w = [0.5, 1.0, 4.0][label as usize];
            let log = row.iter().map(|x| x.exp()).sum::<f64>().ln();
            (sum, total) = (sum + w * (log - row[label as usize]), total + w);
        }
        assert!((loss - sum / total).abs() < 1e-14, "{loss} and not {}", sum / total);
        let said = |e: Error| e.to_string();
        assert!(
            said(weigh(plain, &[1.0, 2.0]).unwrap_err()).contains("2 weights, and the loss is of 3 classes")
        );
        assert!(
            said(weigh(model(true), &[1.0; 3]).unwrap_err()).contains("that the model's loss has of its own")
        );
        let mut b = Builder::new();
        let x = b.parameter("x", DType::F64, &[4]);
        let y = b.input("y", TensorType::new(DType::F64, [4]), InputRole::User);
        let loss = b.one(&MSE_LOSS, &[x, y], Attrs::new().with("reduction", 1i64)).unwrap();
        b.output("loss", loss, OutputRole::User);
        let refused = said(weigh(b.finish(), &[1.0; 3]).unwrap_err());
        assert!(refused.contains("`mse_loss`") && refused.contains("data.balance"), "{refused}");
    }

    #[test]
    fn patterns_freeze() {
        let mut graph = model(false);
        let frozen = freeze(&mut graph, &["body.*".into()]).unwrap();
        assert_eq!(frozen, Frozen { tensors: (1, 12), trained: (1, 12) });
        let trainable =
            |g: &Graph, i: usize| matches!(g.inputs[i].role, InputRole::Parameter { trainable: true, .. });
        assert!(!trainable(&graph, 0) && trainable(&graph, 1));
        let said = freeze(&mut graph, &["head.*".into()]).unwrap_err().to_string();
        assert!(said.contains("nothing is left to train"), "{said}");
        let said = freeze(&mut model(false), &["bod".into()]).unwrap_err().to_string();
        assert!(said.contains("`bod` matches no parameter") && said.contains("body.weight"), "{said}");
    }

    #[test]
    fn names_of_classes_have_weights() {
        let names = ["cat".to_string(), "dog".to_string(), "owl".to_string()];
        let named = BTreeMap::from([("owl".to_string(), 3.0), ("cat".to_string(), 0.5)]);
        assert_eq!(by_name(&named, &names).unwrap(), [0.5, 1.0, 3.0]);
        let said = by_name(&BTreeMap::from([("emu".to_string(), 1.0)]), &names).unwrap_err().to_string();
        assert!(said.contains("no class emu") && said.contains("cat, dog, owl"), "{said}");
    }
}
