//! Weights from files, in place of those that an archive holds: checkpoints, and safetensors of one file or
//! of several shards. Names may differ by a prefix or a pattern.

use crate::core::graph::InputRole;
use crate::core::{Tensor, TensorType};
use crate::golden::Golden;
use crate::model::BoundModel;
use crate::runtime::Dataset;
use crate::runtime::checkpoint::{AVERAGE, PROGRESS};
use crate::runtime::config::InitConfig;
use crate::runtime::data::Column;
use crate::runtime::session::Weights;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The average of a run's weights, which a checkpoint has beside the weights if the run kept one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AverageUse {
    /// There is none.
    #[default]
    None,
    /// It exists, and the weights as the last step left them are taken.
    Left,
    /// It is taken.
    Taken,
}

/// The tensors of one or several files, by name.
#[derive(Debug)]
pub struct WeightFiles {
    /// The file or folder that was named.
    pub path: PathBuf,
    /// A checkpoint's average.
    pub average: AverageUse,
    /// Facts of a checkpoint's run.
    pub run: RunFacts,
    files: Vec<Dataset>,
    tensors: BTreeMap<String, (usize, usize)>,
}

/// Facts of the run that wrote a checkpoint; empty for other files.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(default)]
pub struct RunFacts {
    /// Names of classes, by the column of the training data that has labels of them.
    pub classes: BTreeMap<String, Vec<String>>,
    /// Names of the trained parameters, where others were frozen.
    pub trained: Vec<String>,
}

impl RunFacts {
    /// Reads those of the folder that holds weights.
    fn read(folder: &Path) -> Result<RunFacts> {
        let path = folder.join(PROGRESS);
        let text = match std::fs::read(&path) {
            // A file of weights, or a folder that no run wrote.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(RunFacts::default());
            }
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let damaged = || format!("{} is damaged: take another checkpoint", path.display());
        serde_json::from_slice(&text).with_context(damaged)
    }
}

/// The part of Hugging Face's index of shards that is needed here.
#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Prefixes of what belongs to a parameter and is no weight.
const GRADIENTS: [&str; 5] = ["grad.", "grads.", "gradient.", "exp_avg.", "exp_avg_sq."];

const ONE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl WeightFiles {
    /// Opens a `.safetensors` or `.npz` file, a checkpoint, a run's folder (its newest checkpoint), or a
    /// folder as `save_pretrained` writes it, of one file or of shards.
    ///
    /// # Errors
    /// If there is none of these, or a file is damaged.
    pub fn open(path: &Path) -> Result<WeightFiles> {
        WeightFiles::choose(path, false)
    }

    /// As [`WeightFiles::open`], of a checkpoint or a run's folder the average of the weights, where
    /// `averaged`. Tensors that have none (frozen parameters, buffers) are those of the same checkpoint.
    ///
    /// # Errors
    /// As [`WeightFiles::open`], and if an average is requested and there is none.
    pub fn choose(path: &Path, averaged: bool) -> Result<WeightFiles> {
        let mut files = files(path)?;
        let beside = files.first().filter(|p| p.ends_with(ONE)).map(|p| p.with_file_name(AVERAGE));
        let beside = beside.filter(|p| p.is_file());
        let average = match beside {
            // Its tensors are read last, and so replace those of the model's file.
            Some(file) if averaged => {
                files.push(file);
                AverageUse::Taken
            }
            Some(_) => AverageUse::Left,
            None if files.first().is_some_and(|p| p.ends_with(AVERAGE)) => AverageUse::Taken,
            None => AverageUse::None,
        };
        files.iter().try_for_each(|file| no_golden(file))?;
        let place = files.first().filter(|p| p.ends_with(ONE)).and_then(|p| p.parent()).unwrap_or(path);
        let run = RunFacts::read(place)?;
        let place = place.display().to_string();
        let files: Vec<Dataset> = files.iter().map(|f| Ok(Dataset::open(f)?)).collect::<Result<_>>()?;
        ensure!(
            !averaged || average != AverageUse::None,
            "{place} has no {AVERAGE}, an average of its run's weights: leave --ema out for the weights as the last step left \
             them, or train with `--ema 0.999`, which keeps an average from the first step on"
        );
        let mut tensors = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            for (j, column) in file.columns().iter().enumerate() {
                let whole = column.bytes().len() == column.ty.bytes();
                ensure!(whole, "{}: weights are files of tensors, or a folder of them", path.display());
                tensors.insert(column.name.clone(), (i, j));
            }
        }
        ensure!(!tensors.is_empty(), "{} holds no tensors", path.display());
        Ok(WeightFiles { path: path.to_owned(), average, run, files, tensors })
    }

    /// In a sentence for people, which of a checkpoint's weights these are; nothing for other files.
    pub fn chosen(&self) -> Option<String> {
        let file = self.files.last()?.path().display();
        match self.average {
            AverageUse::Taken => Some(format!("weights: the average over the run, {file}")),
            AverageUse::Left => Some(format!(
                "weights: as the last step left them, {file}; evaluations of the run were of its average, in {AVERAGE} beside \
                 it, which --ema takes"
            )),
            AverageUse::None if self.files.len() == 1 && self.path.is_dir() => {
                Some(format!("weights: {file}"))
            }
            AverageUse::None => None,
        }
    }

    /// Names and tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Column)> {
        self.tensors.iter().map(|(name, at)| (name.as_str(), self.column(*at)))
    }

    fn column(&self, (file, column): (usize, usize)) -> &Column {
        &self.files[file].columns()[column]
    }
}

/// Refuses a golden, which has gradients and no weights.
fn no_golden(path: &Path) -> Result<()> {
    let golden = path.to_string_lossy().ends_with(".golden.safetensors") || Golden::is(path);
    ensure!(
        !golden,
        "{} is a golden: it holds inputs, outputs and gradients that PyTorch recorded, and no weights; name a checkpoint, or a \
         .safetensors of module.state_dict()",
        path.display()
    );
    Ok(())
}

/// The files that hold the weights that `path` names.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if matches!(ending, "bin" | "pt" | "pth" | "ckpt") {
            bail!(
                "{} is a pickle, which is not opened here: where PyTorch is, write it with \
                 safetensors.torch.save_file(module.state_dict(), \"weights.safetensors\")",
                path.display()
            );
        }
        return Ok(vec![path.to_owned()]);
    }
    if path.join(INDEX).is_file() {
        let file = path.join(INDEX);
        let text = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let index: Index = serde_json::from_slice(&text)
            .with_context(|| format!("{} is no index of shards", file.display()))?;
        let shards: BTreeSet<String> = index.weight_map.into_values().collect();
        for shard in &shards {
            // Names from a file stay within its folder.
            let plain = Path::new(shard).components().count() == 1 && !shard.starts_with('.');
            ensure!(plain, "{} names the shard {shard:?}, which is no file beside it", file.display());
        }
        return Ok(shards.into_iter().map(|s| path.join(s)).collect());
    }
    if path.join(ONE).is_file() {
        return Ok(vec![path.join(ONE)]);
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    let newest = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.join(ONE).is_file())
        .filter_map(|p| Some((p.file_name()?.to_str()?.strip_prefix("step-")?.parse::<u64>().ok()?, p)))
        .max();
    let Some((_, newest)) = newest else {
        bail!("{} holds neither {ONE}, nor {INDEX}, nor a checkpoint step-…", path.display());
    };
    Ok(vec![newest.join(ONE)])
}

/// Correspondence of a file's names to a model's.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Mapping {
    /// The file or folder.
    pub source: PathBuf,
    /// Tensors of the model that the files have.
    pub taken: usize,
    /// Tensors of the model that they do not have: they stay as the archive has them.
    pub missing: Vec<String>,
    /// Tensors of the files that the model does not have.
    pub left_over: Vec<String>,
    /// In words, a prefix by which all names differ.
    pub prefix: Option<String>,
    /// The average of a run's weights.
    pub average: AverageUse,
}

/// A model's weights with those of files laid over them.
#[derive(Debug)]
pub struct Overlay<'a> {
    base: &'a BoundModel,
    files: Option<&'a WeightFiles>,
    /// By the model's name: the file's tensor, and the type that the model has.
    found: HashMap<String, ((usize, usize), TensorType)>,
    /// Names that were matched.
    pub mapping: Mapping,
}

impl<'a> Overlay<'a> {
    /// The archive's weights alone.
    pub fn none(base: &'a BoundModel) -> Overlay<'a> {
        Overlay { base, files: None, found: HashMap::new(), mapping: Mapping::default() }
    }

    /// Finds the model's tensors in files. Names that differ are mapped by `init.names`, or else by the one
    /// prefix that most names have in one of both and not in the other.
    ///
    /// # Errors
    /// If a tensor has another shape, or none is found. If a pattern matches none of the file's names, or two
    /// equally close ones match the same. Where the settings are strict, if any tensor is missing or left
    /// over.
    pub fn new(base: &'a BoundModel, files: &'a WeightFiles, init: &InitConfig) -> Result<Overlay<'a>> {
        let model: Vec<(Vec<&String>, &TensorType)> = base
            .graph
            .inputs
            .iter()
            .filter_map(|i| {
                let names = match &i.role {
                    InputRole::Parameter { aliases, .. } => std::iter::once(&i.name).chain(aliases).collect(),
                    InputRole::Buffer { persistent: true } => vec![&i.name],
                    _ => return None,
                };
                Some((names, base.graph.ty(i.value)))
            })
            .collect();
        let all: BTreeSet<&str> = model.iter().flat_map(|(n, _)| n).map(|n| n.as_str()).collect();
        check_patterns(files, init)?;
        let (renamed, prefix) = renamed(files, init, &all)?;
        if let Some(what) = GRADIENTS.iter().find(|what| files.tensors.keys().any(|n| n.starts_with(**what)))
        {
            let (file, prefix) = (files.path.display(), prefix.as_deref().unwrap_or_default());
            ensure!(
                !prefix.contains(&format!("`{what}`")),
                "{file} holds gradients or moments, as the prefix `{what}` says, and no weights: name a checkpoint, or a \
                 .safetensors of module.state_dict()"
            );
        }
        let (source, average) = (files.path.clone(), files.average);
        let mut mapping = Mapping { source, prefix, average, ..Mapping::default() };
        let mut found = HashMap::new();
        for (names, ty) in &model {
            let Some((name, at)) = names.iter().find_map(|n| Some((n, *renamed.get(n.as_str())?))) else {
                mapping.missing.push(names[0].clone());
                continue;
            };
            let have = &files.column(at).ty;
            ensure!(
                have.shape == ty.shape,
                "{name} is {} in {}, the model has {}",
                have.shape,
                files.path.display(),
                ty.shape
            );
            found.insert(names[0].clone(), (at, (*ty).clone()));
        }
        mapping.taken = found.len();
        let own = |name: &str| all.contains(name);
        mapping.left_over = renamed.keys().filter(|n| !own(n)).cloned().collect();
        if found.is_empty() {
            let of = |names: Vec<&str>| names.into_iter().take(3).collect::<Vec<_>>().join(", ");
            bail!(
                "no tensor of {} has the name of one of the model's: it has {}…, the model {}…; map them with `names` under \
                 [init], as in \"encoder.*\" = \"model.encoder.*\"",
                files.path.display(),
                of(files.tensors.keys().map(String::as_str).collect()),
                of(all.into_iter().collect())
            );
        }
        if init.strict && !(mapping.missing.is_empty() && mapping.left_over.is_empty()) {
            bail!("{}: [init] is strict", mapping.lines().join("; "));
        }
        Ok(Overlay { base, files: Some(files), found, mapping })
    }
}

impl Weights for Overlay<'_> {
    fn bytes(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let Some((&(at, ref want), files)) = self.found.get(name).zip(self.files) else {
            return self.base.bytes(name);
        };
        let column = files.column(at);
        let (from, bytes) = (column.ty.dtype, column.bytes());
        if from == want.dtype {
            return Some(Cow::Borrowed(bytes));
        }
        // In pieces: the conversion goes by way of f64.
        let piece = from.size() << 16;
        let converted = bytes.chunks(piece).flat_map(|b| {
            let ty = TensorType::new(from, [b.len() / from.size()]);
            Tensor::from_bytes(&ty, b).cast(want.dtype).to_bytes()
        });
        Some(Cow::Owned(converted.collect()))
    }
}

impl Mapping {
    /// In sentences, for people.
    pub fn lines(&self) -> Vec<String> {
        let list = |names: &[String]| {
            let more = names.len().saturating_sub(8);
            let shown = names[..names.len() - more].join(", ");
            if more > 0 { format!("{shown} and {more} more") } else { shown }
        };
        let source = self.source.display();
        let prefix = self.prefix.as_ref().map_or(String::new(), |p| format!(", {p}"));
        let mut lines = vec![format!("{} tensors taken from {source}{prefix}", self.taken)];
        if !self.missing.is_empty() {
            lines.push(format!("not in {source}, as in the archive: {}", list(&self.missing)));
        }
        if !self.left_over.is_empty() {
            lines.push(format!("in {source} and not in the model: {}", list(&self.left_over)));
        }
        lines
    }
}

/// Refuses patterns of `init.names` that match none of the files' names: what they request would silently not
/// happen.
fn check_patterns(files: &WeightFiles, init: &InitConfig) -> Result<()> {
    const SHOWN: usize = 8;
    let matches = |from: &str| files.tensors.keys().any(|name| replaced(from, "*", name).is_some());
    let Some(idle) = init.names.keys().find(|from| !matches(from)) else { return Ok(()) };
    let more = files.tensors.len().saturating_sub(SHOWN);
    let shown: Vec<&str> = files.tensors.keys().take(SHOWN).map(String::as_str).collect();
    bail!(
        "the pattern `{idle}` under [init.names] matches no tensor of {}, which has {}{}: correct it, or leave it out",
        files.path.display(),
        shown.join(", "),
        if more > 0 { format!(" and {more} more") } else { String::new() }
    )
}

/// The files' tensors under the model's names, and in words the prefix by which they differ.
///
/// # Errors
/// If patterns are ambiguous.
fn renamed(
    files: &WeightFiles,
    init: &InitConfig,
    model: &BTreeSet<&str>,
) -> Result<(BTreeMap<String, (usize, usize)>, Option<String>)> {
    if !init.names.is_empty() {
        let named = files.tensors.iter().map(|(name, at)| Ok((by_pattern(&init.names, name)?, *at)));
        return Ok((named.collect::<Result<_>>()?, None));
    }
    let each = |f: &dyn Fn(&str) -> String| files.tensors.iter().map(|(n, at)| (f(n), *at)).collect();
    let same = files.tensors.keys().filter(|n| model.contains(n.as_str())).count();
    // Parts of each name after a dot, with the prefix before them.
    let prefixes = |name: &str| {
        let name = name.to_string();
        let dots: Vec<usize> = name.match_indices('.').map(|(i, _)| i + 1).collect();
        dots.into_iter().map(move |i| (name[..i].to_string(), name[i..].to_string()))
    };
    let mut added: BTreeMap<String, usize> = BTreeMap::new();
    let mut removed: BTreeMap<String, usize> = BTreeMap::new();
    for (prefix, rest) in model.iter().flat_map(|n| prefixes(n)) {
        if files.tensors.contains_key(&rest) {
            *added.entry(prefix).or_default() += 1;
        }
    }
    for (prefix, rest) in files.tensors.keys().flat_map(|n| prefixes(n)) {
        if model.contains(rest.as_str()) {
            *removed.entry(prefix).or_default() += 1;
        }
    }
    let most =
        |of: BTreeMap<String, usize>| of.into_iter().max_by_key(|(_, n)| *n).filter(|(_, n)| *n > same);
    Ok(match (most(added), most(removed)) {
        (Some((p, n)), other) if other.as_ref().is_none_or(|(_, m)| n >= *m) => (
            each(&|name| format!("{p}{name}")),
            Some(format!("under names without the model's prefix `{p}`")),
        ),
        (_, Some((p, _))) => (
            each(&|name| name.strip_prefix(p.as_str()).unwrap_or(name).to_string()),
            Some(format!("under names with the prefix `{p}`, which the model's have not")),
        ),
        _ => (each(&|n| n.to_string()), None),
    })
}

/// A name by the closest pattern that matches it: the name itself, or else the one with most characters
/// beside its `*`. Without any it stays.
///
/// # Errors
/// If two patterns are equally close and make two names of it.
fn by_pattern(patterns: &BTreeMap<String, String>, name: &str) -> Result<String> {
    let matching = patterns.iter().filter_map(|(from, to)| Some((from, replaced(from, to, name)?)));
    let mut matching: Vec<_> =
        matching.map(|(from, to)| ((!from.contains('*'), from.len()), from, to)).collect();
    matching.sort_by_key(|(close, ..)| std::cmp::Reverse(*close));
    match &matching[..] {
        [] => Ok(name.to_string()),
        [(first, a, to), (second, b, other), ..] if first == second && to != other => bail!(
            "the patterns `{a}` and `{b}` under [init.names] both match {name}, and neither is closer: make one of them longer"
        ),
        [(.., to), ..] => Ok(to.clone()),
    }
}

/// The name by a pattern: `*` stands for any characters, which go where `to` has its own.
fn replaced(from: &str, to: &str, name: &str) -> Option<String> {
    match from.split_once('*') {
        None => (from == name).then(|| to.to_string()),
        Some((head, tail)) => {
            let middle = name.strip_prefix(head)?.strip_suffix(tail)?;
            Some(to.replacen('*', middle, 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::DType;
    use crate::tensors::TensorFile;

    fn file(dir: &Path, name: &str, tensors: &[&str]) -> PathBuf {
        let tensors = tensors.iter().map(|n| (n.to_string(), Tensor::float(DType::F32, [1], vec![1.0])));
        let path = dir.join(name);
        TensorFile { tensors: tensors.collect(), ..TensorFile::default() }.write(&path).unwrap();
        path
    }

    #[test]
    fn names_are_found_by_pattern_or_prefix() {
        let dir = tempfile::tempdir().unwrap();
        let files =
            WeightFiles::open(&file(dir.path(), "a.safetensors", &["enc.0.w", "enc.0.b", "head.w"])).unwrap();
        let of = |model: &[&str], names: &[(&str, &str)]| {
            let names = names.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
            let init = InitConfig { names, ..InitConfig::default() };
            let (found, prefix) = renamed(&files, &init, &model.iter().copied().collect()).unwrap();
            (found.into_keys().collect::<Vec<_>>(), prefix.is_some())
        };
        let strings = |s: &[&str]| s.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        assert_eq!(of(&["enc.0.w", "other"], &[]), (strings(&["enc.0.b", "enc.0.w", "head.w"]), false));
        let longer = ["model.enc.0.w", "model.enc.0.b", "head.w"];
        assert_eq!(of(&longer, &[]).0, strings(&["model.enc.0.b", "model.enc.0.w", "model.head.w"]));
        assert_eq!(of(&["0.w", "0.b"], &[]).0, strings(&["0.b", "0.w", "head.w"]));
        let by_hand = of(&["x"], &[("enc.*.w", "layer_*.weight"), ("head.w", "out")]).0;
        assert_eq!(by_hand, strings(&["enc.0.b", "layer_0.weight", "out"]));
    }

    #[test]
    fn the_closest_pattern_counts_whatever_their_order() {
        let patterns =
            |all: &[(&str, &str)]| all.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        let names = patterns(&[
            ("*", "model.*"),
            ("enc.*", "body.*"),
            ("enc.*.w", "body.*.weight"),
            ("enc.0.b", "bias"),
        ]);
        for (name, want) in [
            ("head.w", "model.head.w"),
            ("enc.1.b", "body.1.b"),
            ("enc.1.w", "body.1.weight"),
            // The name itself, though `enc.*` matches it too.
            ("enc.0.b", "bias"),
        ] {
            assert_eq!(by_pattern(&names, name).unwrap(), want);
        }
        assert_eq!(by_pattern(&patterns(&[("enc.*", "x.*")]), "head").unwrap(), "head");
        // Equally close: `enc.*` and `*.0.w` have four characters each.
        let names = patterns(&[("enc.*", "body.*"), ("*.0.w", "*.first")]);
        let refused = by_pattern(&names, "enc.0.w").unwrap_err().to_string();
        assert!(refused.contains("`*.0.w` and `enc.*`") && refused.contains("match enc.0.w"), "{refused}");
        let same = patterns(&[("enc.*", "body.*"), ("*.0.w", "body.0.w")]);
        assert_eq!(by_pattern(&same, "enc.0.w").unwrap(), "body.0.w");
    }

    #[test]
    fn patterns_that_match_nothing_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let many: Vec<String> = (0..10).map(|i| format!("enc.{i}.w")).collect();
        let names: Vec<&str> = many.iter().map(String::as_str).collect();
        let files = WeightFiles::open(&file(dir.path(), "a.safetensors", &names)).unwrap();
        let of = |names: &[&str]| {
            let names = names.iter().map(|from| (from.to_string(), "x.*".to_string())).collect();
            check_patterns(&files, &InitConfig { names, ..InitConfig::default() })
        };
        assert!(of(&[]).is_ok() && of(&["*", "enc.*.w", "enc.3.w"]).is_ok());
        for idle in ["encoder.*", "enc.*.b", "enc.10.w", ""] {
            let refused = of(&["enc.*", idle]).unwrap_err().to_string();
            let shown = refused.contains("which has enc.0.w, ") && refused.contains("and 2 more");
            assert!(refused.contains(&format!("`{idle}`")) && shown, "{refused}");
        }
    }

    #[test]
    fn an_average_is_laid_over_the_checkpoint_that_it_is_of() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, tensors: &[(&str, f64)]| {
            let of = |(n, x): &(&str, f64)| (n.to_string(), Tensor::float(DType::F32, [1], vec![*x]));
            let path = dir.path().join(name);
            let file = TensorFile { tensors: tensors.iter().map(of).collect(), ..TensorFile::default() };
            file.write(&path).unwrap();
            path
        };
        for step in ["step-3", "step-4"] {
            std::fs::create_dir(dir.path().join(step)).unwrap();
        }
        write("step-3/model.safetensors", &[("w", 1.0), ("frozen", 2.0)]);
        let model = write("step-4/model.safetensors", &[("w", 3.0), ("frozen", 4.0)]);
        let average = write("step-4/ema.safetensors", &[("w", 5.0)]);
        let read = |path: &Path, averaged: bool| {
            let files = WeightFiles::choose(path, averaged).unwrap();
            let numbers = files.tensors().map(|(_, c)| Tensor::from_bytes(&c.ty, c.bytes()).floats()[0]);
            (numbers.collect::<Vec<_>>(), files.average, files.chosen())
        };
        for path in [dir.path(), &dir.path().join("step-4"), &model] {
            let (numbers, kind, said) = read(path, true);
            assert_eq!((numbers, kind), (vec![4.0, 5.0], AverageUse::Taken), "{path:?}");
            assert!(said.is_some_and(|s| s.contains("the average") && s.contains("ema.safetensors")));
            let (numbers, kind, said) = read(path, false);
            assert_eq!((numbers, kind), (vec![4.0, 3.0], AverageUse::Left), "{path:?}");
            assert!(said.is_some_and(|s| s.contains("model.safetensors") && s.contains("--ema")));
        }
        for averaged in [false, true] {
            let (numbers, kind, _) = read(&average, averaged);
            assert_eq!((numbers, kind), (vec![5.0], AverageUse::Taken));
        }
        let step = dir.path().join("step-3");
        let (_, kind, said) = read(&step, false);
        assert!(kind == AverageUse::None && said.is_some_and(|s| s.ends_with("model.safetensors")));
        let refused = WeightFiles::choose(&step, true).unwrap_err().to_string();
        assert!(
            refused.contains("step-3 has no ema.safetensors") && refused.contains("--ema 0.999"),
            "{refused}"
        );
    }

    #[test]
    fn folders_of_shards_and_runs_are_weights() {
        let dir = tempfile::tempdir().unwrap();
        let names = |p: &Path| {
            WeightFiles::open(p).unwrap().tensors().map(|(n, _)| n.to_string()).collect::<Vec<_>>()
        };
        let shards = dir.path().join("shards");
        std::fs::create_dir(&shards).unwrap();
        file(&shards, "1.safetensors", &["a"]);
        file(&shards, "2.safetensors", &["b"]);
        let index = |second: &str| {
            let text =
                format!(r#"{{"metadata": {{}}, "weight_map": {{"a": "1.safetensors", "b": "{second}"}}}}"#);
            std::fs::write(shards.join(INDEX), text).unwrap();
        };
        index("2.safetensors");
        assert_eq!(names(&shards), ["a", "b"]);
        for outside in ["../2.safetensors", "/2.safetensors"] {
            index(outside);
            assert!(WeightFiles::open(&shards).unwrap_err().to_string().contains("no file beside it"));
        }
        for (step, tensor) in [("step-9", "old"), ("step-10", "new")] {
            std::fs::create_dir(dir.path().join(step)).unwrap();
            file(&dir.path().join(step), ONE, &[tensor]);
        }
        assert_eq!(names(dir.path()), ["new"]);
        let pickle = WeightFiles::open(Path::new("x.bin")).unwrap_err().to_string();
        assert!(pickle.contains("save_file"), "{pickle}");
    }
}
