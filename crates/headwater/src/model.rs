//! A PyTorch export as commands use it: opened once, bound to sizes as often as needed.

use crate::core::attr::Attr;
use crate::core::compile::has_loss;
use crate::core::graph::Node;
use crate::core::graph::{InputRole, OutputRole};
use crate::core::{DType, Graph, Registry, Tensor, TensorType, ValueId, pass};
use crate::golden::Golden;
use crate::import::symbolic::Expr;
use crate::import::{self, Code, Dims, Note, Program, StoredTensor};
use crate::runtime::config::DataConfig;
use crate::runtime::data::{Feeding, Shapes};
use crate::runtime::session::Weights;
use crate::runtime::{Dataset, Error as RunError, TrainConfig};
use crate::words;
use anyhow::{Context, Result, bail, ensure};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An opened export and the operators it may use.
#[derive(Debug)]
pub struct Model {
    /// The archive.
    pub path: PathBuf,
    /// Its content.
    pub program: Program,
    /// Operators it is imported with.
    pub registry: Registry,
    /// True if dropout is the identity in bound graphs, and random masks their means, as in the runs that
    /// PyTorch recorded to compare with.
    pub without_dropout: bool,
}

/// A model bound to concrete sizes.
#[derive(Debug)]
pub struct BoundModel {
    /// The forward graph.
    pub graph: Graph,
    /// The value of each name in the exported graph.
    pub names: HashMap<String, ValueId>,
    /// For each graph input of role `User`, its position in the export's signature.
    pub positions: Vec<usize>,
    /// Symbolic sizes chosen.
    pub sizes: BTreeMap<String, i64>,
    /// Notes on things that were dropped or assumed.
    pub notes: Vec<Note>,
    /// Operators that were made deterministic.
    pub silenced: Silenced,
    stored: HashMap<String, StoredTensor>,
}

/// Counts of a graph's random operators, each replaced by its mean: two programs draw different numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silenced {
    /// Nodes whose dropout is the identity.
    pub dropouts: usize,
    /// Random masks that are their means.
    pub masks: usize,
}

impl Silenced {
    /// Makes a graph so.
    pub fn make(graph: &mut Graph) -> Silenced {
        Silenced { dropouts: pass::without_dropout(graph), masks: pass::masks_as_means(graph).count }
    }

    /// True if nothing was changed.
    pub fn is_empty(self) -> bool {
        self == Silenced::default()
    }

    /// A sentence on how random operators were compared.
    pub fn text(self) -> &'static str {
        match self {
            Silenced { masks: 0, .. } => "with dropout as the identity",
            Silenced { dropouts: 0, .. } => "with random masks as their means",
            _ => "with dropout as the identity and random masks as their means",
        }
    }
}

impl BoundModel {
    /// A sentence on random masks for evaluation mode, if their mean changes anything there.
    pub fn masks_in_evaluation(&self) -> Option<String> {
        let masks = pass::masks_as_means(&mut self.graph.clone());
        (masks.undivided > 0).then(|| {
            format!(
                "{} of {} random masks are not divided by their probability: they are kept as their mean, which scales what \
                 they mask, where the module in evaluation mode may leave them out",
                masks.undivided, masks.count
            )
        })
    }
}

impl Model {
    /// Opens an archive with the standard operators.
    ///
    /// # Errors
    /// Refusals of the importer.
    pub fn open(path: &Path) -> Result<Model> {
        if !path.exists() {
            bail!("HW-I001: {} does not exist{}", path.display(), words::near_file(path, &["pt2"]));
        }
        let program = Program::open(path).with_context(|| format!("cannot import {}", path.display()))?;
        let (path, registry) = (path.to_path_buf(), Registry::standard().clone());
        Ok(Model { path, program, registry, without_dropout: false })
    }

    /// Makes sure that the archive's weights are what was written, by their checksums: all of them are read.
    ///
    /// # Errors
    /// If one is damaged.
    pub fn verify(&self) -> Result<()> {
        self.program.verify_checksums().with_context(|| format!("{} is damaged", self.path.display()))
    }

    /// Lets the system have the memory that the file takes, once a session has copied the weights.
    pub fn release(&self) {
        self.program.release();
    }

    /// Binds symbolic sizes.
    ///
    /// # Errors
    /// Refusals of the importer; all unsupported operators at once.
    pub fn bind(&self, dims: &Dims) -> Result<BoundModel> {
        self.bound(dims, self.without_dropout)
    }

    fn bound(&self, dims: &Dims, without_dropout: bool) -> Result<BoundModel> {
        let mut imported = self
            .program
            .bind(dims, &self.registry)
            .with_context(|| format!("cannot import {}", self.path.display()))?;
        let inputs = imported.graph.inputs.iter().zip(imported.stored);
        let stored = inputs.filter_map(|(i, s)| Some((i.name.clone(), s?))).collect();
        let silenced =
            if without_dropout { Silenced::make(&mut imported.graph) } else { Silenced::default() };
        Ok(BoundModel {
            graph: imported.graph,
            names: imported.values,
            positions: self.program.inputs().iter().map(|i| i.position).collect(),
            sizes: imported.sizes,
            notes: imported.notes,
            silenced,
            stored,
        })
    }

    /// Sets the size that is the first dimension of every input: the batch.
    ///
    /// # Errors
    /// If the inputs have no such size in common.
    pub fn batch(&self, dims: Dims, batch: usize) -> Result<Dims> {
        let firsts: Vec<_> = self.program.inputs().iter().filter_map(|i| i.sizes.first()).collect();
        let symbol = self
            .program
            .symbols()
            .iter()
            .find(|s| firsts.iter().all(|e| matches!(e, Expr::Symbol(n) if *n == s.name)));
        let Some(symbol) = symbol.filter(|_| !firsts.is_empty()) else {
            bail!(
                "the first dimension of the inputs is fixed; export with a dynamic batch to train with another one"
            );
        };
        Ok(dims.set(symbol.name.clone(), size(batch)?))
    }

    /// Sets the symbolic sizes to those of what is fed, the batch included. Sizes that the export fixes stay,
    /// whatever is fed.
    ///
    /// # Errors
    /// If the batch is fixed and another one is fed.
    pub fn shaped(&self, dims: Dims, shapes: &Shapes) -> Result<Dims> {
        let fixed = |e: &Expr| matches!(e, Expr::Number(_));
        let inputs = self.program.inputs();
        let first = inputs.iter().find_map(|i| i.sizes.first());
        let batch = size(shapes.batch)?;
        let mut dims = match first {
            Some(Expr::Number(n)) if n.int() == Some(batch) => dims,
            _ => self.batch(dims, shapes.batch)?,
        };
        for input in inputs {
            let Some(sizes) = shapes.samples.get(&input.name) else { continue };
            for (d, (expr, &size)) in input.sizes.iter().skip(1).zip(sizes).enumerate() {
                if !fixed(expr) {
                    dims = dims.set(format!("{}.{}", input.name, d + 1), self::size(size)?);
                }
            }
        }
        Ok(dims)
    }

    /// Binds to the samples of a data set as they are stored, and to the batch of the settings. Also returns
    /// what feeds the model from them.
    ///
    /// # Errors
    /// Errors of the importer and of the data.
    pub fn bind_to_data(
        &self,
        dims: &Dims,
        data: Arc<Dataset>,
        config: &TrainConfig,
    ) -> Result<(BoundModel, Feeding)> {
        let inputs =
            |bound: &BoundModel| bound.user_inputs().map(|(n, t)| (n.to_string(), t.clone())).collect();
        let bind = |shapes: &Shapes| self.bind(&self.shaped(dims.clone(), shapes)?.or_exported());
        let types = |shapes: &Shapes| {
            let refused =
                |e: anyhow::Error| RunError::Rebind { batch: shapes.batch, cause: format!("{e:#}").into() };
            bind(shapes).map(|bound| inputs(&bound)).map_err(refused)
        };
        let settings = DataConfig { buckets: None, lengths: None, ..config.data.clone() };
        let exported: Vec<_> = inputs(&self.bind(&dims.clone().or_exported())?);
        let feeding = Feeding::new(data, &settings, &exported, config.batch, &types)?;
        Ok((bind(&feeding.largest())?, feeding))
    }

    /// Makes sure that the first output is a loss.
    ///
    /// # Errors
    /// If it is anything but one floating-point number.
    pub fn needs_loss(&self, bound: &BoundModel) -> Result<()> {
        let first = bound.graph.outputs.iter().find(|o| o.role == OutputRole::User);
        let first = first.map_or("nothing".to_string(), |o| bound.graph.ty(o.value).to_string());
        ensure!(
            has_loss(&bound.graph),
            "the first output of {} is {first} and no loss: export a module whose forward returns the loss first, as `return \
             loss, logits`; `predict` runs it as it is",
            self.path.display()
        );
        Ok(())
    }

    /// Binds to the shapes of a golden's inputs, without dropout where the golden was recorded so.
    ///
    /// # Errors
    /// If an input is missing from the golden, and as [`Model::bind`].
    pub fn bind_to(&self, golden: &Golden) -> Result<BoundModel> {
        let inputs = golden.inputs();
        let mut dims = Dims::new();
        for input in self.program.inputs() {
            let t = inputs.get(&input.position);
            let t = t.with_context(|| {
                format!("the golden has no input.{} for `{}`", input.position, input.name)
            })?;
            dims = dims.shape(&input.name, t.shape());
        }
        self.bound(&dims, self.without_dropout || golden.without_dropout())
    }
}

impl BoundModel {
    /// A parameter, buffer or constant as a reference tensor.
    ///
    /// # Errors
    /// If nothing is stored under the name.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let Some(s) = self.stored.get(name) else { bail!("the archive stores nothing for `{name}`") };
        Ok(Tensor::from_bytes(&TensorType::new(s.dtype, s.layout.shape.clone()), &s.to_bytes()))
    }

    /// Names and types of what the user feeds, in order.
    pub fn user_inputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        let users = self.graph.inputs.iter().filter(|i| i.role == InputRole::User);
        users.map(|i| (i.name.as_str(), self.graph.ty(i.value)))
    }

    /// In sentences, what about the export is likely not meant, though it trains: inputs that nothing reads,
    /// and evaluation mode.
    pub fn remarks(&self) -> Vec<String> {
        let graph = &self.graph;
        let mut read: HashSet<ValueId> = graph.outputs.iter().map(|o| o.value).collect();
        read.extend(graph.nodes.iter().flat_map(|n| n.operands()));
        let users = graph.inputs.iter().filter(|i| i.role == InputRole::User);
        let unread = users.filter(|i| !read.contains(&i.value)).map(|i| {
            format!(
                "input `{}` is read by nothing: was one tensor given for two arguments of `export`, which makes the model read one \
                 of them for both?",
                i.name
            )
        });
        let off = |n: &&Node| match n.op.name {
            "batch_norm_eval" => true,
            "batch_norm" => n.attrs.get("training") == Some(&Attr::Bool(false)),
            _ => false,
        };
        let frozen = graph.nodes.iter().filter(off).count();
        let mode = (frozen > 0).then(|| {
            format!(
                "batch norm runs on its stored statistics, in {frozen} places (exported in evaluation mode): to train, call \
                 `module.train()` before `export`, unless they are to stay frozen"
            )
        });
        let dropout = self.notes.iter().find(|n| n.message.starts_with(import::DROPOUT_OFF));
        unread
            .chain(mode)
            .chain(
                dropout.map(|n| {
                    format!("{}: to train with it, call `module.train()` before `export`", n.message)
                }),
            )
            .collect()
    }
}

impl Weights for BoundModel {
    fn bytes(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let s = self.stored.get(name)?;
        match s.contiguous() {
            // Bools are stored as any byte; a copy makes them 0 or 1.
            Some(bytes) if s.dtype != DType::Bool => Some(Cow::Borrowed(bytes)),
            _ => Some(Cow::Owned(s.to_bytes())),
        }
    }
}

/// Dimensions from `--dim name=value` arguments.
///
/// # Errors
/// If one is not of that form.
pub fn parse_dims(args: &[String]) -> Result<Dims> {
    let mut dims = Dims::new();
    for a in args {
        let (name, value) =
            a.split_once('=').with_context(|| format!("`--dim {a}` is not of the form name=value"))?;
        let value = value.parse().with_context(|| format!("`--dim {a}`: the size must be a number"))?;
        dims = dims.set(name, value);
    }
    Ok(dims)
}

/// A size as the importer binds it.
///
/// # Errors
/// `Dimension` for more than 2^63 - 1.
fn size(n: usize) -> Result<i64> {
    let too_large = |_| import::Error::Refused {
        code: Code::Dimension,
        message: format!("a size of {n} is more than a tensor can have, 2^63 - 1: give a smaller --batch"),
        origin: None,
    };
    Ok(i64::try_from(n).map_err(too_large)?)
}
