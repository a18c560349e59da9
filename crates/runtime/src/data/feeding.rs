//! Feeding of a model from a data set: the shapes it is bound to, and the column of each input.
//!
//! Samples of several lengths are stored padded to one length. With buckets a batch is cut to the smallest
//! bound that its longest sample fits, and the model is bound to that length.

use super::augment::Augment;
use super::{AugmentConfig, Buckets, DataConfig, Dataset, Feed, LastBatch, Order, Sampler, loader};
use crate::error::{Error, Result};
use headwater_core::{Class, DType, Tensor, TensorType};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Largest number of buckets; each takes a plan.
const BOUNDS: usize = 64;
/// Shares of the padded length that bounds are by default: an eighth, a quarter, a half, all of it.
const SHARES: [usize; 4] = [8, 4, 2, 1];

/// Shapes of all that a model is fed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shapes {
    /// Samples in a batch.
    pub batch: usize,
    /// Sizes of a sample of each input, by its name.
    pub samples: BTreeMap<String, Vec<usize>>,
}

impl Shapes {
    /// The shapes of a model's inputs, whose first dimension is the batch.
    pub fn of<'a>(inputs: impl Iterator<Item = (&'a str, &'a TensorType)>) -> Shapes {
        let mut batch = 0;
        let sizes = |ty: &TensorType| ty.shape.iter().skip(1).copied().collect();
        let samples = inputs.map(|(name, ty)| {
            batch = ty.shape.first().copied().unwrap_or(0);
            (name.to_string(), sizes(ty))
        });
        let samples = samples.collect();
        Shapes { batch, samples }
    }

    /// The same for another number of samples.
    pub fn with_batch(&self, batch: usize) -> Shapes {
        Shapes { batch, ..self.clone() }
    }
}

/// Elements that each sample has before it is filled up to the length of its column.
#[derive(Clone, Debug)]
pub struct Lengths {
    /// By sample.
    pub of: Arc<Vec<u32>>,
    /// Names of the columns that are filled up; their second dimension is the length.
    pub columns: Vec<String>,
}

/// Names and types of a model's inputs when it is bound to some shapes.
pub type Types<'a> = dyn Fn(&Shapes) -> Result<Vec<(String, TensorType)>> + 'a;

/// A data set as a model takes it.
#[derive(Clone, Debug)]
pub struct Feeding {
    data: Arc<Dataset>,
    batch: usize,
    samples: usize,
    /// By bound of length, ascending; one where there are no buckets.
    cuts: Arc<Vec<Cut>>,
    /// Bucket of each sample, if there are several.
    buckets: Option<Arc<Vec<u8>>>,
    augment: Option<Arc<Augment>>,
    /// Sums of the samples' weights up to each, if samples are drawn by weight.
    weights: Option<Arc<Vec<f64>>>,
}

/// The feeds at a bound of length.
#[derive(Clone, Debug)]
struct Cut {
    bound: usize,
    shapes: Shapes,
    feeds: Vec<Feed>,
}

impl Feeding {
    /// Matches inputs of a model, as it was exported, with a data set. Where the shapes differ, `types` binds
    /// the model to those of the data. `batch`: samples in a batch, by default as exported.
    ///
    /// # Errors
    /// As [`super::feeds`]; `Rebind` if the model takes no such batch; `Config` for buckets of a data set
    /// without lengths, or with bounds that make no sense.
    pub fn new(
        data: Arc<Dataset>,
        settings: &DataConfig,
        exported: &[(String, TensorType)],
        batch: Option<usize>,
        types: &Types,
    ) -> Result<Feeding> {
        let inputs = || exported.iter().map(|(n, t)| (n.as_str(), t));
        let shapes = Shapes::of(inputs());
        let shapes = shapes.with_batch(batch.unwrap_or(shapes.batch));
        let names = &settings.names;
        if let Some(buckets) = &settings.buckets {
            return Feeding::in_buckets(data, settings, buckets, &shapes, types);
        }
        let one = |data: Arc<Dataset>, feeds, shapes: Shapes, samples| {
            let cuts = Arc::new(vec![Cut { bound: 0, shapes, feeds }]);
            Feeding {
                data,
                batch: cuts[0].shapes.batch,
                samples,
                cuts,
                buckets: None,
                augment: None,
                weights: None,
            }
        };
        let refused = match loader::feeds(inputs(), &data, names, settings.cast) {
            Ok((feeds, _, samples)) => return Ok(one(data, feeds, shapes, samples)),
            Err(refused) => refused,
        };
        let proposed = proposed(&data, settings, &shapes, &|_, length| length);
        if proposed == shapes {
            return Err(refused);
        }
        let inputs = match (types(&proposed), refused) {
            (Ok(inputs), _) => inputs,
            (Err(Error::Rebind { cause, .. }), Error::Feed(refused)) => {
                return Err(Error::Feed(format!("{refused}; bound to that, {cause}")));
            }
            (Err(e), _) => return Err(e),
        };
        let inputs = || inputs.iter().map(|(n, t)| (n.as_str(), t));
        let (feeds, _, samples) = loader::feeds(inputs(), &data, names, settings.cast)?;
        Ok(one(data, feeds, Shapes::of(inputs()), samples))
    }

    fn in_buckets(
        data: Arc<Dataset>,
        settings: &DataConfig,
        buckets: &Buckets,
        shapes: &Shapes,
        types: &Types,
    ) -> Result<Feeding> {
        let refuse = |m: String| Error::config("data.buckets", m);
        let lengths = lengths(&data, settings.lengths.as_deref())?;
        let fed = |column: &&String| {
            shapes.samples.keys().any(|input| settings.names.get(input).unwrap_or(input) == *column)
        };
        let sizes = lengths.columns.iter().filter(fed).filter_map(|c| data.column(c)?.ty.shape.get(1));
        let Some(longest) = sizes.copied().max() else {
            let columns = lengths.columns.join(", ");
            let file = data.path().display();
            return Err(refuse(format!(
                "no input of the model takes a column of {file} that has samples of several lengths: {columns}"
            )));
        };
        let bounds = bounds(buckets, longest).map_err(refuse)?;
        if let Some(at) = lengths.of.iter().position(|&l| l as usize > bounds[bounds.len() - 1]) {
            let (place, bound) = (data.place(0, at), bounds[bounds.len() - 1]);
            return Err(refuse(format!(
                "{place} has the length {}, more than the largest bound {bound}: name a larger one",
                lengths.of[at]
            )));
        }
        let varies = |column: &str| lengths.columns.iter().any(|c| c == column);
        let (mut cuts, mut samples) = (Vec::new(), 0);
        for &bound in &bounds {
            let cut = |column: &str, length: usize| if varies(column) { length.min(bound) } else { length };
            let inputs = match types(&proposed(&data, settings, shapes, &cut)) {
                // Bounds that nobody named are those that the model takes.
                Err(Error::Rebind { .. }) if matches!(buckets, Buckets::Auto(_)) && bound < longest => {
                    continue;
                }
                Err(Error::Rebind { batch, cause }) => {
                    let cause = format!("at the length {bound} of `data.buckets`: {cause}").into();
                    return Err(Error::Rebind { batch, cause });
                }
                inputs => inputs?,
            };
            let inputs = || inputs.iter().map(|(n, t)| (n.as_str(), t));
            let cut = |c: &str| varies(c).then_some(bound);
            let (feeds, _, count) = loader::cut_feeds(inputs(), &data, &settings.names, settings.cast, &cut)?;
            samples = count;
            cuts.push(Cut { bound, shapes: Shapes::of(inputs()), feeds });
        }
        if lengths.of.len() != samples {
            let have = lengths.of.len();
            return Err(refuse(format!("there are {have} lengths for {samples} samples")));
        }
        if cuts.len() > 1 && cuts.iter().all(|c| c.shapes == cuts[0].shapes) {
            let message =
                "the model was exported for one length: export it with that dimension in `dynamic_shapes`";
            return Err(refuse(message.into()));
        }
        let bucket =
            |&l: &u32| cuts.iter().position(|c| l as usize <= c.bound).unwrap_or(cuts.len() - 1) as u8;
        let buckets = lengths.of.iter().map(bucket).collect();
        let (cuts, buckets) = (Arc::new(cuts), Some(Arc::new(buckets)));
        Ok(Feeding { data, batch: shapes.batch, samples, cuts, buckets, augment: None, weights: None })
    }

    /// The same with images that are changed at random, as training requires. Buckets of length may cut how
    /// many planes an image has, such as frames, and not its height.
    ///
    /// # Errors
    /// `Config` for settings that make no sense, or do not fit the model's inputs.
    pub fn augmented(self, config: &AugmentConfig, seed: u64) -> Result<Feeding> {
        let Some(augment) = Augment::new(config, seed, self.feeds(0), self.data.columns())? else {
            return Ok(self);
        };
        let flat = |feed: &&Feed| {
            let shape = &self.data.columns()[feed.column].ty.shape;
            shape.rank() == 3 && feed.elements < shape[1..].iter().product()
        };
        for Cut { feeds, .. } in self.cuts.iter() {
            let mut changed = feeds.iter().enumerate().filter(|(at, _)| augment.changes(*at)).map(|(_, f)| f);
            if let Some(feed) = changed.find(flat) {
                let message = format!(
                    "the height of {} is the length that data.buckets cut, so that its images have no size to be cropped to: \
                     leave out one of both settings",
                    feed.input
                );
                return Err(Error::config("data.augment", message));
            }
        }
        Ok(Feeding { augment: Some(Arc::new(augment)), ..self })
    }

    /// The same with samples that are drawn by weight, if the settings say so.
    ///
    /// # Errors
    /// `Config` for a column that is missing or has no weights, and for an order that is not drawn.
    pub fn weighted(self, settings: &DataConfig) -> Result<Feeding> {
        let (setting, name, balance) = match (&settings.balance, &settings.weights) {
            (None, None) => return Ok(self),
            (Some(name), None) => ("data.balance", name, true),
            (None, Some(name)) => ("data.weights", name, false),
            (Some(_), Some(_)) => {
                let message = "does not go with `data.weights`: a sample has one weight";
                return Err(Error::config("data.balance", message));
            }
        };
        let refuse = |m: String| Error::config(setting, m);
        if settings.sequential || settings.order.is_some() {
            let other = if settings.sequential { "data.sequential" } else { "data.order" };
            return Err(refuse(format!("does nothing beside `{other}`, which says the order of samples")));
        }
        let file = self.data.path().display();
        let columns = self.data.columns();
        let at = columns.iter().position(|c| c.name == *name);
        let at = at.ok_or_else(|| refuse(format!("{file} has no tensor {name}")))?;
        let (column, ty) = (&columns[at], &columns[at].ty);
        let kind = if balance { "one integer" } else { "one number" };
        if ty.shape[..] != [self.samples] || balance && ty.dtype.is_float() {
            return Err(refuse(format!(
                "{name} must be {kind} for each of {} samples, it is {ty}",
                self.samples
            )));
        }
        let mut bytes = Vec::new();
        (0..self.samples).try_for_each(|i| column.append(i, DType::F64, &mut bytes))?;
        let mut values = Tensor::from_bytes(&TensorType::new(DType::F64, [self.samples]), &bytes).to_f64();
        if balance {
            let mut counts: BTreeMap<u64, f64> = BTreeMap::new();
            values.iter().for_each(|class| *counts.entry(class.to_bits()).or_default() += 1.0);
            values.iter_mut().for_each(|class| *class = 1.0 / counts[&class.to_bits()]);
        }
        if let Some(i) = values.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
            let place = self.data.place(at, i);
            return Err(refuse(format!("{place} is {}: a weight is at least 0, and finite", values[i])));
        }
        let mut sum = 0.0;
        values.iter_mut().for_each(|w| {
            sum += *w;
            *w = sum;
        });
        match sum > 0.0 && sum.is_finite() {
            true => Ok(Feeding { weights: Some(Arc::new(values)), ..self }),
            false => Err(refuse(format!("the weights of {name} in {file} add up to {sum}"))),
        }
    }

    pub(super) fn augment(&self) -> Option<&Augment> {
        self.augment.as_deref()
    }

    /// The data set.
    pub fn data(&self) -> &Arc<Dataset> {
        &self.data
    }

    /// Samples of a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Samples of the data set.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Shapes of the largest batch.
    pub fn largest(&self) -> Shapes {
        self.shapes(self.cuts.len() - 1, self.batch)
    }

    /// The same in batches of another size.
    pub fn with_batch(self, batch: usize) -> Feeding {
        Feeding { batch, ..self }
    }

    /// The bucket of a batch of these samples.
    pub(super) fn bucket(&self, samples: &[u32]) -> usize {
        let Some(buckets) = &self.buckets else { return 0 };
        samples.iter().map(|&s| buckets[s as usize]).max().unwrap_or(0) as usize
    }

    /// Feeds of a bucket, in the order of the model's inputs.
    pub fn feeds(&self, bucket: usize) -> &[Feed] {
        &self.cuts[bucket].feeds
    }

    /// Shapes of a batch of a bucket.
    pub fn shapes(&self, bucket: usize, batch: usize) -> Shapes {
        self.cuts[bucket].shapes.with_batch(batch)
    }

    /// Bounds of the buckets, with their samples; empty if there are none.
    pub fn counts(&self) -> Vec<(usize, usize)> {
        let Some(buckets) = &self.buckets else { return Vec::new() };
        let count = |i: usize| buckets.iter().filter(|&&b| b as usize == i).count();
        self.cuts.iter().enumerate().map(|(i, c)| (c.bound, count(i))).collect()
    }

    /// The order of batches: within buckets where samples are shuffled.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub fn sampler(&self, order: Order, last: LastBatch) -> Result<Sampler> {
        let sampler = Sampler::new(order, self.samples, self.batch, last)?;
        let sampler = match &self.weights {
            Some(sums) => sampler.weighted(sums.clone()),
            None => sampler,
        };
        Ok(match &self.buckets {
            Some(buckets) => sampler.in_buckets(buckets.clone()),
            None => sampler,
        })
    }
}

/// Shapes with samples as the data have them. `length`: from a column's name and second size, the length
/// taken.
fn proposed(
    data: &Dataset,
    settings: &DataConfig,
    shapes: &Shapes,
    length: &dyn Fn(&str, usize) -> usize,
) -> Shapes {
    let sample = |(input, exported): (&String, &Vec<usize>)| {
        let name = settings.names.get(input).unwrap_or(input);
        let column = data.column(name).map(|c| &c.ty.shape).filter(|s| s.rank() == exported.len() + 1);
        let sizes = column.map_or(exported.clone(), |shape| {
            shape.iter().skip(1).enumerate().map(|(d, &n)| if d == 0 { length(name, n) } else { n }).collect()
        });
        (input.clone(), sizes)
    };
    Shapes { batch: shapes.batch, samples: shapes.samples.iter().map(sample).collect() }
}

/// Ascending bounds, the largest of them at most `longest`.
fn bounds(buckets: &Buckets, longest: usize) -> Result<Vec<usize>, String> {
    let bounds = match buckets {
        Buckets::Auto(_) => SHARES.map(|share| longest.div_ceil(share).max(1)).to_vec(),
        Buckets::Bounds(bounds) => bounds.clone(),
    };
    if bounds.is_empty() || bounds.len() > BOUNDS {
        return Err(format!("must be \"auto\" or from 1 to {BOUNDS} lengths"));
    }
    let mut bounds: Vec<usize> = bounds.into_iter().map(|b| b.min(longest)).collect();
    bounds.dedup();
    match bounds.is_sorted() && bounds[0] > 0 {
        true => Ok(bounds),
        false => Err("must be lengths of at least 1, in ascending order".into()),
    }
}

/// Lengths of the samples: those of a column, or those that the data set knows.
fn lengths(data: &Dataset, column: Option<&str>) -> Result<Lengths> {
    let refuse = |m: String| Error::config("data.lengths", m);
    let file = data.path().display();
    let Some(name) = column else {
        return data.lengths().cloned().ok_or_else(|| {
            let message = format!(
                "{file} does not say how long its samples are: name its column of lengths by `data.lengths`, or have the \
                 samples filled up by a text.toml or table.toml"
            );
            Error::config("data.buckets", message)
        });
    };
    let column = data.column(name).ok_or_else(|| refuse(format!("{file} has no tensor {name}")))?;
    if column.ty.dtype.class() != Class::Int || column.ty.shape.rank() != 1 {
        return Err(refuse(format!("{name} must be integers [samples], it is {}", column.ty)));
    }
    let mut bytes = Vec::new();
    (0..column.ty.shape[0]).try_for_each(|i| column.append(i, DType::I64, &mut bytes))?;
    let all = Tensor::from_bytes(&TensorType::new(DType::I64, column.ty.shape.clone()), &bytes);
    let place = data.columns().iter().position(|c| c.name == name).unwrap_or(0);
    let length = |(at, &l): (usize, &i64)| {
        u32::try_from(l).map_err(|_| refuse(format!("{} is {l}, which is no length", data.place(place, at))))
    };
    let of = all.ints().iter().enumerate().map(length).collect::<Result<Vec<u32>>>()?;
    let columns = data.columns().iter().filter(|c| c.ty.shape.rank() > 1).map(|c| c.name.clone()).collect();
    Ok(Lengths { of: Arc::new(of), columns })
}
