//! A job's file written for a model. Known settings are filled in, everything else is included as comments,
//! and the job runs as it is.

use super::job::FILE;
use super::page::{BATCH, EPOCHS, Files, text};
use crate::core::TensorType;
use crate::curve::recorded_training;
use crate::golden::{Golden, RecordedRun};
use crate::import::SymbolicInput;
use crate::import::symbolic::Expr;
use crate::model::Model;
use crate::runtime::{Dataset, TrainConfig};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Files that a new job is made from.
#[derive(Clone, Debug, Default)]
pub struct New {
    /// The exported model.
    pub model: PathBuf,
    /// PyTorch's truth; by default the file that `record` writes beside the model, if it exists.
    pub golden: Option<PathBuf>,
    /// Samples to train on; by default those that the golden's run was recorded on, or else its one batch.
    pub data: Option<PathBuf>,
    /// Samples held out.
    pub eval: Option<PathBuf>,
    /// The job's folder; by default the model's.
    pub dir: Option<PathBuf>,
    /// Column of the samples for each input of the model that is called differently.
    pub names: BTreeMap<String, String>,
}

/// A job's file that was written.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Written {
    /// The file.
    pub path: PathBuf,
    /// Sources of its settings, and parts that are missing for more.
    pub notes: Vec<String>,
}

/// Steps on a golden's one batch.
const STEPS: u64 = 20;

/// Writes a job's file.
///
/// # Errors
/// If the folder has a job already, the model cannot be opened, or the data does not fit its inputs.
pub fn write_new(new: &New) -> Result<Written> {
    let model = Model::open(&new.model)?;
    let beside = new.model.with_extension("golden.safetensors");
    let golden = new.golden.clone().or_else(|| beside.exists().then_some(beside));
    let parent =
        |p: &Path| p.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf();
    let dir = new.dir.clone().unwrap_or_else(|| parent(&new.model));
    let path = dir.join(FILE);
    ensure!(
        !path.exists(),
        "{} already exists; edit it, or name another folder: headwater migrate FOLDER --new {}",
        path.display(),
        new.model.display()
    );
    let mut notes = Vec::new();
    let truth = golden.as_deref().map(Golden::read).transpose()?;
    if let Some(foreign) = truth.as_ref().map(|g| g.of_another(&new.model)).transpose()?.flatten() {
        notes.push(format!("{foreign}: record it again"));
    }
    if truth.is_none() {
        notes.push("there is no golden: nothing will be compared with PyTorch (tools/README.md has how to record one)".into());
    }
    let mut config = TrainConfig::default();
    config.eval.every = None;
    let data = settings(new, &model, golden.as_deref().zip(truth.as_ref()), &mut config, &mut notes)?;
    if let Some(data) = &data {
        config.data.names.extend(new.names.clone());
        names(&model, &Dataset::open(data)?, &mut config.data.names)?;
    }
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let shown = |p: &Path| relative(p, &dir);
    let files = Files {
        export: shown(&new.model)?,
        golden: golden.as_deref().map(shown).transpose()?,
        train: data.as_deref().map(shown).transpose()?,
        kind: data.as_deref().map_or(TENSORS, kind),
        eval: config.data.eval.as_deref().map(shown).transpose()?,
    };
    std::fs::write(&path, text(&files, &config)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Written { path, notes })
}

/// Fills in the settings from the run that the golden records, or from defaults. Returns the samples to train
/// on, if any.
fn settings(
    new: &New,
    model: &Model,
    golden: Option<(&Path, &Golden)>,
    config: &mut TrainConfig,
    notes: &mut Vec<String>,
) -> Result<Option<PathBuf>> {
    let recorded =
        golden.map(|(path, g)| Ok::<_, anyhow::Error>((path, g, g.recorded_run()?))).transpose()?;
    if let Some((path, golden, Some(run))) = recorded {
        let RecordedRun { settings: mut run, foreign } = run;
        run.relative_to(path.parent().unwrap_or(Path::new("")));
        let data = new.data.clone().unwrap_or_else(|| run.data.train.clone());
        let same =
            data.is_file() && golden.fact("data_sha256") == Some(crate::tensors::sha256(&data)?.as_str());
        if same {
            run.data.eval = new.eval.clone().or(run.data.eval.filter(|e| e.exists()));
            *config = run;
            let apart = apart(golden, foreign.as_deref(), config);
            notes.push(match apart.is_empty() {
                true => "the settings are those of the run that the golden records: the curves will be compared".into(),
                false => format!(
                    "the settings are those of the run that the golden records, but {}: the curves will not be compared, the \
                     other steps count",
                    apart.join(", and ")
                ),
            });
            return Ok(Some(data));
        }
        let whose = if data.exists() { "is not the file" } else { "is not here:" };
        notes.push(format!(
            "{} {whose} that the golden's run was recorded on: the curves will not be compared",
            data.display()
        ));
        if !data.exists() && new.data.is_none() {
            return Ok(None);
        }
    }
    config.data.eval = new.eval.clone();
    if let Some(data) = &new.data {
        let samples = samples(data)?;
        let symbolic =
            model.program.inputs().iter().all(|i| matches!(i.sizes.first(), Some(Expr::Symbol(_))));
        config.batch = symbolic.then(|| BATCH.min(samples.max(1)));
        config.epochs = Some(EPOCHS);
        notes.push(
            "optimizer, batch and length of the run are defaults: change them to what the model needs".into(),
        );
        return Ok(Some(data.clone()));
    }
    let Some((path, golden)) = golden else {
        notes.push(
            "name samples to train on under [train.data], or with --data: without, nothing is trained".into(),
        );
        return Ok(None);
    };
    // The golden's own inputs are samples too, if their first dimension counts them.
    let inputs = golden.inputs();
    let counts: Vec<_> = model
        .program
        .inputs()
        .iter()
        .filter_map(|i| Some(inputs.get(&i.position)?.shape().first().copied()))
        .collect();
    let Some(Some(n)) = counts.first().copied().filter(|n| counts.iter().all(|c| c == n)) else {
        notes.push(
            "name samples to train on under [train.data], or with --data: without, nothing is trained".into(),
        );
        return Ok(None);
    };
    config.batch = None;
    config.data.sequential = true;
    config.steps = Some(STEPS);
    if let Some(curve) = golden.curve()? {
        config.steps = Some(curve.loss.len() as u64).filter(|n| *n > 0);
        let recorded = recorded_training(golden);
        let name = golden.json("optimizer").ok().and_then(|o| o["name"].as_str().map(str::to_string));
        let apart = apart(golden, name.as_deref().filter(|_| recorded.is_err()), config);
        if !apart.is_empty() {
            let apart = apart.join(", and ");
            notes.push(format!("{apart}: the curves will not be compared, the other steps count"));
        }
        if let Ok(t) = recorded {
            (config.optimizer, config.decay) = (t.optimizer, t.decay);
            (config.clip_norm, config.clip_value) = (t.clip.norm, t.clip.value);
            (config.groups, config.accumulate) = (t.groups, t.accumulate);
            let all = golden.json("optimizer")?;
            config.warmup = all["warmup"].as_u64().unwrap_or(0);
            config.end = all["end"].as_f64().unwrap_or(0.0);
            let schedule = serde_json::json!({ "schedule": all["schedule"] });
            if let Ok(c) = serde_json::from_value::<TrainConfig>(schedule) {
                config.schedule = c.schedule;
            }
        }
    }
    notes.push(format!(
        "no samples are named: the job trains on the golden's one batch of {n}, which shows that training works and no more"
    ));
    Ok(Some(path.to_path_buf()))
}

/// Clauses that say why a recorded curve cannot be compared with a job that takes over its run's settings.
/// `foreign`: the recorded optimizer, if Headwater does not train with it.
fn apart(golden: &Golden, foreign: Option<&str>, config: &TrainConfig) -> Vec<String> {
    let optimizer = foreign.map(|theirs| {
        let own = config.optimizer.name();
        format!("its optimizer was {theirs}, which Headwater does not train with, and is {own} here")
    });
    let precision = golden.autocast().map(|low| {
        format!("it was recorded under `torch.autocast` in {low}, where Headwater's first run is in full precision")
    });
    optimizer.into_iter().chain(precision).collect()
}

/// Comment beside samples that are tensors.
const TENSORS: &str = "tensors named like the model's inputs; the first dimension counts samples";

/// Comment beside samples, by what holds them.
fn kind(data: &Path) -> &'static str {
    let ending = data.extension().and_then(|e| e.to_str()).unwrap_or("");
    let has = |name: &str| data.join(name).is_file();
    match () {
        () if has("images.toml") => "a folder of images: columns `images`, and `labels` or `masks`",
        () if has("text.toml") => "a folder of texts: columns `input_ids`, `attention_mask`, `labels`",
        () if has("table.toml") => "a folder of tables; each input takes the column of its name",
        () if ["parquet", "arrow", "feather", "csv", "tsv"].contains(&ending) => {
            "a table; each input takes the column of its name"
        }
        () => TENSORS,
    }
}

/// Samples of a data file.
fn samples(data: &Path) -> Result<usize> {
    let file = Dataset::open(data)?;
    Ok(file.columns().first().and_then(|c| c.ty.shape.first().copied()).unwrap_or(0))
}

/// Adds the file's tensor for each input that is called differently and not named yet: the golden's by
/// position, another's where one alone fits.
fn names(model: &Model, data: &Dataset, named: &mut BTreeMap<String, String>) -> Result<()> {
    let inputs = model.program.inputs();
    let free: Vec<_> = data.columns().iter().filter(|c| inputs.iter().all(|i| i.name != c.name)).collect();
    named.retain(|_, tensor| data.column(tensor).is_some());
    for input in inputs.iter().filter(|i| data.column(&i.name).is_none()) {
        if named.contains_key(&input.name) {
            continue;
        }
        let recorded = format!("input.{}", input.position);
        let mut fitting = free.iter().filter(|c| c.name == recorded || fits(input, &c.ty));
        let name = match (data.column(&recorded), fitting.next(), fitting.next()) {
            (Some(_), ..) => recorded,
            (None, Some(only), None) => only.name.clone(),
            _ => {
                let have: Vec<_> = data.columns().iter().map(|c| format!("{} ({})", c.name, c.ty)).collect();
                bail!(
                    "input {0} of the model has no tensor of its name in {1}, which has: {2}; say which it is by --name \
                     {0}=COLUMN",
                    input.name,
                    data.path().display(),
                    have.join(", ")
                )
            }
        };
        named.insert(input.name.clone(), name);
    }
    Ok(())
}

/// True if samples of this type could be an input's: dtype of the same kind, same rank, same fixed sizes.
fn fits(input: &SymbolicInput, ty: &TensorType) -> bool {
    let size = |(e, n): (&Expr, &usize)| !matches!(e, Expr::Number(k) if k.int() != Some(*n as i64));
    input.dtype.is_float() == ty.dtype.is_float()
        && input.sizes.len() == ty.shape.rank()
        && input.sizes.iter().zip(ty.shape.iter()).skip(1).all(size)
}

/// `path` as seen from the folder `dir`.
fn relative(path: &Path, dir: &Path) -> Result<String> {
    let full = |p: &Path| {
        let found = match (p.canonicalize(), p.parent(), p.file_name()) {
            // A pattern, such as `train-*.npz`, stands for files and is none.
            (Err(_), Some(folder), Some(name)) if name.to_string_lossy().contains('*') => {
                let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                folder.canonicalize().map(|f| f.join(name))
            }
            (found, ..) => found,
        };
        found.with_context(|| format!("cannot find {}", p.display()))
    };
    let (path, dir) = (full(path)?, full(dir)?);
    let (a, b): (Vec<Component>, Vec<Component>) = (path.components().collect(), dir.components().collect());
    let common = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let up = std::iter::repeat_n(Component::ParentDir, b.len() - common);
    let seen: PathBuf = up.chain(a[common..].iter().copied()).collect();
    Ok(seen.to_string_lossy().into_owned())
}
