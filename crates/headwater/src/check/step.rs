//! The step whose values are compared, as graphs: as it trains, as it is proved, and what both are fed.

use crate::core::compile::{self, Options};
use crate::core::graph::{Graph, InputRole, OutputRole};
use crate::core::pass::bound::ROUNDING;
use crate::core::pass::differentiate::NoGradient;
use crate::core::pass::precision::{Level, PrecisionSettings, Properties};
use crate::core::pass::products::{Adjacent, anywhere};
use crate::core::target::Target;
use crate::core::train::StateKey;
use crate::core::train::update::loss_scale_type;
use crate::core::{Builder, DType, Tensor};
use crate::golden::{Golden, Kind};
use crate::model::BoundModel;
use anyhow::{Context, Result, ensure};
use std::fmt;

/// The precision in which a step is compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Precision {
    /// f64 or f32, or the low precision.
    pub dtype: DType,
    /// The level of mixed precision, for a low one.
    pub level: Level,
    /// True if products that share an operand stay separate.
    pub exact_sums: bool,
}

impl From<DType> for Precision {
    /// All of it in f64 or f32; in 16 bits as people train, O2: low-precision weights and activations, with
    /// batch norm and the sums of norms in f32.
    fn from(dtype: DType) -> Self {
        let low = matches!(dtype, DType::F16 | DType::BF16);
        Precision { dtype, level: if low { Level::O2 } else { Level::O0 }, exact_sums: false }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Level::O0 => write!(f, "{}", self.dtype),
            level => write!(f, "{} {level}", self.dtype),
        }
    }
}

impl Precision {
    /// True if it multiplies the loss, so that gradients neither overflow nor vanish.
    pub(super) fn scales(&self) -> bool {
        self.dtype == DType::F16 && self.level != Level::O0
    }

    /// How a forward graph is compiled in it.
    pub(super) fn options(&self, forward: &Graph, target: &Target) -> Result<Options<'static>> {
        let adjacent: Option<Adjacent> = (!self.exact_sums).then_some(&anywhere);
        if self.level == Level::O0 {
            return Ok(Options { upcast: Some(self.dtype), adjacent, ..Options::default() });
        }
        let settings =
            PrecisionSettings { level: self.level, dtype: Some(self.dtype), ..PrecisionSettings::default() };
        let precision: Properties = settings.properties(target)?;
        // Levels are about models in f32.
        let parameter = |r: &InputRole| matches!(r, InputRole::Parameter { .. });
        let other = |i: &&crate::core::graph::Input| {
            let dtype = forward.ty(i.value).dtype;
            parameter(&i.role) && dtype.is_float() && dtype != DType::F32
        };
        let upcast = forward.inputs.iter().find(other).map(|_| DType::F32);
        let loss_scale = self.scales().then(loss_scale_type);
        Ok(Options { precision, upcast, loss_scale, adjacent, ..Options::default() })
    }
}

/// A step with every recorded value as a result.
pub(super) struct Step {
    /// Before simplification: what is folded to a constant there is computed too, and has its roundings.
    /// Outputs are those of `run`.
    pub(super) graph: Graph,
    /// The graph that runs.
    pub(super) run: Graph,
    pub(super) missing: Vec<NoGradient>,
}

impl Step {
    pub(super) fn new(forward: &Graph, precision: &Precision, target: &Target) -> Result<Step> {
        let options = Options { all_outputs: true, ..precision.options(forward, target)? };
        let (graph, compiled) = compile::unfolded(forward.clone(), &options, target)?;
        Ok(Step { graph, run: compiled.graph, missing: compiled.missing })
    }
}

/// The step that trains.
pub(super) fn trained(forward: &Graph, precision: &Precision, target: &Target) -> Result<Graph> {
    let options = precision.options(forward, target)?;
    Ok(compile::optimize(forward.clone(), &options, target)?.graph)
}

/// A forward graph with recorded nodes as further outputs.
pub(super) struct Recorded<'a> {
    pub(super) graph: Graph,
    /// Names of the nodes that are outputs, in the order of computation.
    pub(super) nodes: Vec<&'a str>,
    /// Names of recorded nodes that the graph has not.
    pub(super) unmatched: Vec<String>,
    /// Number of the model's own user outputs.
    pub(super) outputs: usize,
}

impl<'a> Recorded<'a> {
    pub(super) fn new(bound: &BoundModel, golden: &'a Golden) -> Recorded<'a> {
        let outputs = bound.graph.outputs.iter().filter(|o| o.role == OutputRole::User).count();
        let mut b = Builder::extend(bound.graph.clone());
        let (mut unmatched, mut nodes) = (Vec::new(), Vec::new());
        for name in golden.values(Kind::Node).into_keys() {
            match bound.names.get(name) {
                Some(&v) => nodes.push((v, name)),
                None => unmatched.push(name.to_string()),
            }
        }
        nodes.sort();
        for &(v, name) in &nodes {
            b.output(format!("node.{name}"), v, OutputRole::User);
        }
        Recorded { graph: b.finish(), nodes: nodes.into_iter().map(|n| n.1).collect(), unmatched, outputs }
    }
}

/// Numbers that a run is given beside the model and its batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// The loss scale.
    pub(super) scale: f64,
    /// Rounding function and its width, see `pass::bound::rounded`.
    pub(super) rounding: [f64; 2],
}

/// The inputs of a step's graph: weights and buffers of the model, user inputs of the golden, in the graph's
/// dtypes. `own` is the graph whose roundings they have, where it is not the graph itself.
pub(super) fn feed(
    graph: &Graph,
    own: &Graph,
    bound: &BoundModel,
    golden: &Golden,
    given: Given,
) -> Result<Vec<Tensor>> {
    let inputs = golden.inputs();
    let scale = StateKey::LossScale.to_string();
    let mut users = 0;
    let one = |input: &crate::core::graph::Input| {
        let want = graph.ty(input.value);
        let tensor = match input.role {
            InputRole::User => {
                let position = bound.positions[users];
                users += 1;
                let t = inputs.get(&position);
                (*t.with_context(|| format!("the golden has no input.{position} for {}", input.name))?)
                    .clone()
            }
            InputRole::State if input.name == scale => Tensor::full(want, given.scale),
            InputRole::Rng | InputRole::State => {
                let rounding = ROUNDING.iter().position(|n| *n == input.name);
                Tensor::full(want, rounding.map_or(0.0, |n| given.rounding[n]))
            }
            _ => bound.tensor(&input.name)?,
        };
        ensure!(tensor.shape() == &want.shape, "{} is {}, expected {want}", input.name, tensor.ty);
        let dtype = own.input(&input.name).map_or(want.dtype, |i| own.ty(i.value).dtype);
        // As a session stores them: numbers of masks beyond the range of `dtype` become its largest.
        let stored = match input.role {
            InputRole::Buffer { .. } | InputRole::Constant => tensor.cast_saturating(dtype),
            _ => tensor.cast(dtype),
        };
        Ok(stored.cast(want.dtype))
    };
    graph.inputs.iter().map(one).collect()
}
