//! Batches made ahead on a thread: gathers rows, converts them, and hands over the bytes a program is fed.

use super::{Cast, Dataset, Feeding, Sampler, convert, sample};
use crate::error::{Error, Result};
use headwater_core::{DType, Shape, TensorType};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// Batches that are ready before they are requested.
const AHEAD: usize = 2;

/// Source of one input of the model in a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Feed {
    /// Input of the model.
    pub input: String,
    /// Position of the column in the data set.
    pub column: usize,
    /// Dtype the model expects.
    pub dtype: DType,
    /// Bytes of one sample in the file.
    pub stride: usize,
    /// Elements of a sample that are fed: the first ones of those in the file.
    pub elements: usize,
}

/// Matches a model's inputs with a data set's tensors. `inputs`: names and types, whose first dimension is
/// the batch; `names`: input to tensor where they are called differently. Returns the feeds in the order of
/// the inputs, the batch size and the number of samples.
///
/// # Errors
/// `Feed`, naming the input: without a tensor of its name, of another shape, of values that its dtype does
/// not hold (unless `cast` rounds them), or disagreeing with the others on the number of samples.
pub fn feeds<'a>(
    inputs: impl Iterator<Item = (&'a str, &'a TensorType)>,
    data: &Dataset,
    names: &BTreeMap<String, String>,
    cast: Cast,
) -> Result<(Vec<Feed>, usize, usize)> {
    cut_feeds(inputs, data, names, cast, &|_| None)
}

/// True if columns of single numbers could make up an input `[n, k]`.
fn vector(data: &Dataset, ty: &TensorType) -> bool {
    let one = |c: &super::Column| c.ty.shape.rank() == 1;
    super::table::is_table(data.path()) && ty.shape.rank() == 2 && data.columns().iter().any(one)
}

/// Advice for such an input.
const VECTOR: &str =
    "; several columns are made one input by [vectors] in a table.toml beside the file (docs/data.md)";

/// As [`feeds`]; of a sample of a column the model may take the first part of the length `cut`.
pub(super) fn cut_feeds<'a>(
    inputs: impl Iterator<Item = (&'a str, &'a TensorType)>,
    data: &Dataset,
    names: &BTreeMap<String, String>,
    cast: Cast,
    cut: &dyn Fn(&str) -> Option<usize>,
) -> Result<(Vec<Feed>, usize, usize)> {
    let file = data.path().display();
    let refuse = |m: String| Error::Feed(m);
    let mut feeds = Vec::new();
    let (mut batch, mut samples): (Option<usize>, Option<usize>) = (None, None);
    for (input, ty) in inputs {
        let name = names.get(input).map_or(input, String::as_str);
        let column = data.columns().iter().position(|c| c.name == name).ok_or_else(|| {
            if let Some(holds) = data.other(name) {
                let advice = match holds {
                    "strings" => format!(
                        ": their positions in a list are numbers; put the file into a folder with a table.toml that has \
                         [classes] and {name} = \"auto\" (docs/data.md)"
                    ),
                    _ => String::new(),
                };
                return refuse(format!("input {input} takes numbers, {name} in {file} holds {holds}{advice}"));
            }
            const SHOWN: usize = 12;
            let have: Vec<_> = data.columns().iter().map(|c| c.name.as_str()).take(SHOWN).collect();
            let more = match data.columns().len().saturating_sub(SHOWN) {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            let have = have.join(", ");
            let vector = if vector(data, ty) { VECTOR } else { "" };
            let advice = format!(
                "if it is called otherwise there, say --name {input}=COLUMN, or set `{input} = \"...\"` below [data.names]{vector}"
            );
            refuse(format!("input {input} has no tensor {name} in {file}, which has: {have}{more}; {advice}"))
        })?;
        let have = &data.columns()[column].ty;
        let (want_batch, want) = sample(ty)
            .ok_or_else(|| refuse(format!("input {input} is a scalar, which cannot be fed from samples")))?;
        let (have_samples, have_shape) =
            sample(have).ok_or_else(|| refuse(format!("{name} in {file} is a scalar, not samples")))?;
        let ones = |s: &Shape| s.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
        let part = want.first().is_some_and(|w| Some(*w) == cut(name) && have_shape.first() > Some(w))
            && want.rank() == have_shape.rank()
            && want[1..] == have_shape[1..];
        if have_shape != want && !part {
            let advice = match (ones(&have_shape) == ones(&want), have_shape.rank() > want.rank()) {
                (true, true) => ": squeeze the dimension of 1, as in x.squeeze(-1)",
                (true, false) => ": add the dimension of 1, as in x[:, None]",
                _ if vector(data, ty) => VECTOR,
                (false, _) => "",
            };
            return Err(refuse(format!(
                "input {input} takes samples of {want}, {name} in {file} has {have_shape}{advice}"
            )));
        }
        if !convert::exact(have.dtype, ty.dtype) {
            let rounds = cast == Cast::Round && ty.dtype.is_float();
            let lost = if rounds { None } else { data.lost(column, ty.dtype)? };
            if let Some((sample, value)) = lost {
                let (from, to) = (have.dtype, ty.dtype);
                let advice = match to.is_float() {
                    true => format!(
                        "round them with `cast = \"round\"` below [data] (--cast round), or write {to}, as in pandas \
                         df[\"{name}\"].astype(\"{}\")",
                        numpy(to)
                    ),
                    false => "they are no values of it: does another input take them?".to_string(),
                };
                return Err(refuse(format!(
                    "input {input} is {to}; {name} in {file} is {from}, and not all of its values fit; {value} in sample \
                     {sample} does not: {advice}"
                )));
            }
        }
        if *batch.get_or_insert(want_batch) != want_batch {
            return Err(refuse(format!(
                "input {input} has a batch of {want_batch}, others have {}",
                batch.unwrap_or(0)
            )));
        }
        if *samples.get_or_insert(have_samples) != have_samples {
            return Err(refuse(format!(
                "{name} in {file} has {have_samples} samples, others have {}",
                samples.unwrap_or(0)
            )));
        }
        let stride = have_shape.numel() * have.dtype.size();
        let elements = want.numel();
        feeds.push(Feed { input: input.to_string(), column, dtype: ty.dtype, stride, elements });
    }
    match (batch, samples) {
        (Some(batch), Some(samples)) => Ok((feeds, batch, samples)),
        _ => Err(refuse("the model takes no input: there is nothing to feed".into())),
    }
}

/// A dtype as NumPy and pandas call it.
fn numpy(dtype: DType) -> String {
    match dtype {
        DType::F16 => "float16".into(),
        DType::F64 => "float64".into(),
        _ => "float32".into(),
    }
}

/// A batch ready to be fed.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Its number, counted through all epochs.
    pub index: u64,
    /// Samples in it.
    pub samples: usize,
    /// Its bucket of length; 0 where there are none.
    pub bucket: usize,
    /// Bytes of every input, in order.
    pub inputs: Vec<Vec<u8>>,
}

/// Makes the batch of a number; `None` after the end of a recorded order. Also returns its samples.
///
/// # Errors
/// Errors of images that cannot be decoded.
pub fn gather(feeding: &Feeding, sampler: &mut Sampler, index: u64) -> Option<Result<(Batch, Vec<u32>)>> {
    let (samples, epoch) = (sampler.batch(index)?, sampler.epoch(index));
    let bucket = feeding.bucket(&samples);
    let gathered = |(number, feed): (usize, &Feed)| {
        let column = &feeding.data().columns()[feed.column];
        let bytes = feed.elements * feed.dtype.size();
        let mut out = Vec::with_capacity(samples.len() * bytes);
        for (n, &sample) in samples.iter().enumerate() {
            column.append(sample as usize, feed.dtype, &mut out)?;
            out.truncate((n + 1) * bytes);
            if let Some(augment) = feeding.augment() {
                augment.apply(number, epoch, sample, &mut out[n * bytes..]);
            }
        }
        Ok(out)
    };
    let inputs = feeding.feeds(bucket).iter().enumerate().map(gathered).collect::<Result<_>>();
    Some(inputs.map(|inputs| (Batch { index, samples: samples.len(), bucket, inputs }, samples)))
}

/// Batches from `start` on, made on a thread of their own.
#[derive(Debug)]
pub struct Loader {
    batches: Option<Receiver<Result<Batch>>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts reading at batch `start`.
    ///
    /// # Errors
    /// `Io` if the system starts no thread.
    pub fn new(feeding: Feeding, sampler: Sampler, start: u64) -> Result<Loader> {
        Loader::of(feeding, sampler, start..)
    }

    /// Starts reading batches of these numbers, which rise.
    ///
    /// # Errors
    /// As [`Loader::new`].
    pub fn of(
        feeding: Feeding,
        mut sampler: Sampler,
        numbers: impl Iterator<Item = u64> + Send + 'static,
    ) -> Result<Loader> {
        let (send, batches) = sync_channel(AHEAD);
        let path = feeding.data().path().to_owned();
        let work = move || {
            for index in numbers {
                let Some(batch) = gather(&feeding, &mut sampler, index) else { return };
                let failed = batch.is_err();
                let batch = batch.map(|(batch, _)| batch);
                // A batch of a file that changed meanwhile is nobody's data. When nobody listens any more,
                // the run is over.
                if feeding.data().unchanged().is_err() || send.send(batch).is_err() || failed {
                    return;
                }
            }
        };
        let named = std::thread::Builder::new().name("headwater-data".into());
        let thread = named.spawn(work).map_err(Error::io(&path))?;
        Ok(Loader { batches: Some(batches), thread: Some(thread) })
    }
}

impl Iterator for Loader {
    type Item = Result<Batch>;

    /// The next batch, or the error of an image that cannot be decoded; `None` after the last of a recorded
    /// order, and when the file was changed: see [`Dataset::unchanged`].
    fn next(&mut self) -> Option<Result<Batch>> {
        self.batches.as_ref()?.recv().ok()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Closing the channel first lets the thread end.
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been seen as the end of the batches; there is nothing to add here.
            let _ = thread.join();
        }
    }
}
