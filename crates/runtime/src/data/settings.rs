//! Settings of the data of a run.

use super::LastBatch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The data of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table [data] with `train`")]
pub struct DataConfig {
    /// Samples to train on (`docs/data.md`). A `.safetensors`, `.npz`, `.npy`, `.parquet`, `.arrow` or `.csv`
    /// file; several files by a `*` in the name; or a folder with an `images.toml`, a `text.toml` or a
    /// `table.toml`.
    pub train: PathBuf,
    /// Samples held out for evaluation.
    pub eval: Option<PathBuf>,
    /// Tensor of the files for each input of the model that is called differently.
    pub names: BTreeMap<String, String>,
    /// Samples stay in the file's order.
    pub sequential: bool,
    /// A recorded order: a file and the integer tensor `[batches, batch]` in it, written `file:tensor`.
    pub order: Option<String>,
    /// Samples that do not fill the last batch of an epoch.
    pub last: LastBatch,
    /// Buckets of length, for samples of several lengths and a model exported with a dynamic length. Ascending
    /// lengths, as `[32, 64, 128]`, or `"auto"`: an eighth, a quarter, a half and all of the padded length. Shuffled
    /// samples make batches within buckets; every batch is cut to the smallest length that its longest sample fits.
    /// Each bucket takes a compiled plan. Default: samples keep their padding.
    pub buckets: Option<Buckets>,
    /// Column of integers with the length of each sample, for buckets. Default: those of a `text.toml` or `table.toml`.
    pub lengths: Option<String>,
    /// Values of another dtype than the model's input: `exact` takes those that it can hold as they are, and refuses others by
    /// name; `round` rounds numbers to the nearest that a floating-point input holds, as `astype` does.
    pub cast: Cast,
    /// Column of classes, one integer for each sample, whose samples are drawn so that each class comes as
    /// often as any other: with replacement, as many as there are in an epoch, as PyTorch's
    /// `WeightedRandomSampler`. Default: each sample once.
    pub balance: Option<String>,
    /// Column with a weight for each sample, in proportion to which samples are drawn, in the same way.
    pub weights: Option<String>,
    /// Weights of the classes in a loss of `cross_entropy` or `nll_loss`, in training alone: held-out samples are measured by the
    /// model's own loss, which must have no weights. `"balanced"`, for samples over the number of classes times the samples of
    /// each, as scikit-learn has it; a list in the order of the labels; or a table by the names of the classes, with 1 for
    /// those it lacks. Default: none.
    pub class_weights: Option<ClassWeights>,
    /// Random changes of the training images.
    pub augment: AugmentConfig,
}

/// Weights of classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "\"balanced\", a list of numbers, or a table of numbers by class")]
pub enum ClassWeights {
    /// By how often each occurs.
    Balanced(Balanced),
    /// In the order of the labels.
    Listed(Vec<f64>),
    /// By name.
    Named(BTreeMap<String, f64>),
}

/// The word `balanced`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Balanced {
    /// The word.
    Balanced,
}

impl std::str::FromStr for ClassWeights {
    type Err = String;

    /// From a command line: `balanced`, numbers with commas between, or `name=number` with commas between.
    fn from_str(s: &str) -> Result<ClassWeights, String> {
        if s == "balanced" {
            return Ok(ClassWeights::Balanced(Balanced::Balanced));
        }
        let refused =
            || format!("`{s}` is neither balanced, nor weights such as 1,3.5, nor such as cat=1,dog=3.5");
        let number = |x: &str| x.trim().parse::<f64>().map_err(|_| refused());
        if s.contains('=') {
            let named = s.split(',').map(|part| {
                let (name, weight) = part.rsplit_once('=').ok_or_else(refused)?;
                Ok((name.trim().to_string(), number(weight)?))
            });
            return named.collect::<Result<_, String>>().map(ClassWeights::Named);
        }
        s.split(',').map(number).collect::<Result<_, _>>().map(ClassWeights::Listed)
    }
}

/// Treatment of values of another dtype than the model's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cast {
    /// Values must fit as they are.
    #[default]
    Exact,
    /// Numbers are rounded to the nearest that a floating-point input holds.
    Round,
}

/// Random changes of images, in training alone. They follow from the seed, the epoch and the sample's number: the same for
/// any number of threads, and after a resumption. Mean and standard deviation are settings of `images.toml` and
/// `table.toml`, since evaluation needs them too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table [data.augment]")]
pub struct AugmentConfig {
    /// Inputs of the model whose last two dimensions are height and width; all are changed in the same way. Default: the
    /// only one with samples `[channels, height, width]`.
    pub inputs: Vec<String>,
    /// Probability that an image is flipped left to right, as torchvision's `RandomHorizontalFlip`.
    pub flip: f64,
    /// Pixels of black added around an image, before a random part of the old size is cut out: `RandomCrop(size,
    /// padding=crop)`. Black is 0 where the images are tensors.
    pub crop: usize,
    /// Value around an input's image in place of black, by the input's name: `fill = { mask = 255 }`. Inputs of integers, such
    /// as masks of classes, need one: what the loss ignores.
    pub fill: BTreeMap<String, f64>,
}

impl AugmentConfig {
    /// True if anything is changed.
    pub fn changes(&self) -> bool {
        self.flip > 0.0 || self.crop > 0
    }
}

/// Bounds of length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Buckets {
    /// Shares of the longest sample's length.
    Auto(Auto),
    /// Ascending bounds.
    Bounds(Vec<usize>),
}

/// The word `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    /// The word.
    Auto,
}

impl std::str::FromStr for Buckets {
    type Err = String;

    /// From a command line: `auto`, or bounds with commas between.
    fn from_str(s: &str) -> Result<Buckets, String> {
        if s == "auto" {
            return Ok(Buckets::Auto(Auto::Auto));
        }
        let bounds = s.split(',').map(|b| b.trim().parse()).collect::<Result<_, _>>();
        bounds
            .map(Buckets::Bounds)
            .map_err(|_| format!("`{s}` is neither auto nor lengths such as 32,64,128"))
    }
}
