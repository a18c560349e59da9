//! The update of a training step as a graph over flat buckets: statistics of the gradients, their scale, and
//! each bucket's optimizer. An optimizer states the composition of its operators as an [`UpdateRule`].

use super::key::{Kept, StateKey};
use super::layout::{Bucket, BucketLayout, Master, MomentForm};
use super::span::Span;
use crate::graph::{InputRole, OutputRole, Phase};
use crate::ops::collective::{on, sum_lanes::SUM_LANES};
use crate::ops::movement::cat::CAT;
use crate::ops::pointwise::frac::FRAC;
use crate::ops::random::philox::PHILOX_UNIFORM;
use crate::ops::reduce::{amax::AMAX, sum::SUM};
use crate::ops::update::gradient_scale::GRADIENT_SCALE;
use crate::ops::update::gradient_statistics::GRADIENT_STATISTICS;
use crate::ops::update::master::{MASTER_JOIN, MASTER_SPLIT};
use crate::ops::update::moment_codes::{DEQUANTIZE_BLOCK, QUANTIZE_BLOCK};
use crate::ops::update::rows::{GATHER_ROWS, UPDATE_ROWS};
use crate::ops::update::stochastic_round::STOCHASTIC_ROUND;
use crate::ops::update::unsaturate::UNSATURATE;
use crate::ranks::{DATA, Mesh};
use crate::target::DTypeSet;
use crate::{Attrs, Builder, DType, Error, Graph, Result, TensorType, ValueId};

/// A quantity that an optimizer keeps for each parameter, in f32 or wider.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// PyTorch's name.
    pub name: &'static str,
    /// Its value before the first step.
    pub initial: f64,
    /// One number for the whole parameter instead of one for each element.
    pub single: bool,
    /// A sum or mean of squares: never negative, and a divisor of the step.
    pub squares: bool,
}

impl Moment {
    /// One for each element that starts at 0.
    pub fn new(name: &'static str) -> Moment {
        Moment { name, initial: 0.0, single: false, squares: false }
    }

    /// The same of squares.
    pub fn squares(name: &'static str) -> Moment {
        Moment { squares: true, ..Moment::new(name) }
    }

    /// The form in which it is kept in a bucket.
    pub fn form(&self, bucket: &Bucket) -> MomentForm {
        if self.single { MomentForm::Wide } else { bucket.moments }
    }

    /// Dtype in which it is kept in a bucket.
    pub fn dtype(&self, bucket: &Bucket) -> DType {
        match self.form(bucket) {
            MomentForm::Wide => bucket.wide(),
            MomentForm::Bf16 => DType::BF16,
            MomentForm::Int8 if self.squares => DType::U8,
            MomentForm::Int8 => DType::I8,
        }
    }

    /// Its type over a whole bucket.
    pub fn span(&self, bucket: &Bucket) -> TensorType {
        let all = bucket.span(self.dtype(bucket));
        if self.single { TensorType::new(all.dtype, [bucket.entries.len()]) } else { all }
    }

    /// Type of its scales over a whole bucket, if it is kept in codes.
    pub fn scales(&self, bucket: &Bucket) -> Option<TensorType> {
        let blocks = bucket.span(DType::F32).shape[0];
        (self.form(bucket) == MomentForm::Int8).then(|| TensorType::new(DType::F32, [blocks, 1]))
    }
}

/// The update of a bucket by an optimizer.
pub trait UpdateRule {
    /// The moments in the operator's order; `None` where the operator has one that this setting leaves out.
    fn moments(&self) -> Vec<Option<Moment>>;
    /// Names of the numbers that change from step to step: the learning rate, unless the rule has others.
    fn scalars(&self) -> Vec<&'static str> {
        vec!["lr"]
    }
    /// True if settings that change from step to step are among the scalars, not in the graph.
    fn by_step(&self) -> bool {
        false
    }
    /// True if each element's step depends on that element alone. Then only those rows of a table can be
    /// stepped that have a gradient.
    fn by_element(&self) -> bool {
        false
    }
    /// Appends a step over a bucket to a graph. Returns the new parameters, then the new moments that exist.
    ///
    /// # Errors
    /// Refusals of the operators.
    fn step(&self, b: &mut Builder, span: &Span) -> Result<Vec<ValueId>>;
}

/// Limits of gradients before the update.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clip {
    /// Largest global L2 norm, as `clip_grad_norm_`.
    pub norm: Option<f64>,
    /// Largest magnitude of an element, as `clip_grad_value_`.
    pub value: Option<f64>,
}

/// Type of [`StateKey::LossScale`].
pub fn loss_scale_type() -> TensorType {
    TensorType::new(DType::F32, [0usize; 0])
}

/// Output of the update graph: norm of the unscaled gradients.
pub const NORM: usize = 0;
/// Output of the update graph: largest magnitude of the gradients in memory.
pub const LARGEST: usize = 1;
/// Output of the update graph: truth value, false if nothing was changed.
pub const APPLIED: usize = 2;

/// The graph of one step over all buckets: measure the gradients, find their scale, update.
///
/// Its inputs are named by [`StateKey`]: `Unscale` (f64), and for each bucket its parameters, gradients,
/// masters, moments and scalars. Its first outputs are the norm of the unscaled gradients (f64) and the
/// largest magnitude of the gradients as stored in memory (f64). The third tells whether the step was
/// applied: it is not if the norm is not finite. Gradients of dtypes in `saturating` count as infinite where
/// they are the largest number. In a table with a sparse gradient, the rows that have one are stepped. All
/// that is kept of the others stays as it is. `rule` gives the rule of a group of settings. `accumulated`:
/// gradients are held in [`Bucket::wide`], not in the parameters' dtype.
///
/// # Errors
/// Refusals of the operators; none for a layout made by [`BucketLayout::new`].
pub fn update_graph<'a>(
    layout: &BucketLayout,
    rule: impl Fn(usize) -> &'a dyn UpdateRule,
    clip: Clip,
    accumulated: bool,
    saturating: DTypeSet,
) -> Result<Graph> {
    let mut b = Builder::new();
    b.phase = Phase::Update;
    let scalar = |dtype| TensorType::new(dtype, [0usize; 0]);
    let mut gradients = Vec::new();
    let (mut squares, mut magnitudes) = (Vec::new(), Vec::new());
    for (i, bucket) in layout.buckets.iter().enumerate() {
        let dtype = if accumulated { bucket.wide() } else { bucket.dtype };
        let g = input(&mut b, StateKey::Bucket(i, Kept::Gradients), bucket.gradients(dtype));
        let measured = if saturating.contains(dtype) { b.call(&UNSATURATE, &[g])? } else { g };
        let stats = b.apply(&GRADIENT_STATISTICS, &[Some(measured)], Attrs::new())?;
        gradients.push((g, stats[0]));
        // Sums over blocks are in f64: a narrow sum of millions of them would lose the small ones.
        squares.push(b.cast(stats[0], DType::F64)?);
        magnitudes.push(b.cast(stats[1], DType::F64)?);
    }
    // In an order that the buckets' sizes do not change, so that they change no bit of the sum.
    let squares: Vec<ValueId> = layout.by_kind().into_iter().map(|i| squares[i]).collect();
    let squares = b.one(&CAT, &squares, Attrs::new().with("dim", 0))?;
    let squares = b.one(&SUM, &[squares], Attrs::new())?;
    let unscale = input(&mut b, StateKey::Unscale, scalar(DType::F64));
    let mut attrs = Attrs::new();
    if let Some(limit) = clip.norm {
        attrs.set("max_norm", limit);
    }
    let scaled = b.apply(&GRADIENT_SCALE, &[Some(squares), Some(unscale)], attrs)?;
    let (norm, scale, finite) = (scaled[0], scaled[1], scaled[2]);
    let magnitudes = b.one(&CAT, &magnitudes, Attrs::new().with("dim", 0))?;
    let largest = b.one(&AMAX, &[magnitudes], Attrs::new())?;
    b.output("norm", norm, OutputRole::User);
    b.output("largest", largest, OutputRole::User);
    b.output("applied", finite, OutputRole::User);
    for (i, bucket) in layout.buckets.iter().enumerate() {
        let (wide, rule) = (bucket.wide(), rule(bucket.group));
        let rows = bucket.rows.map(|n| {
            let key = StateKey::Bucket(i, Kept::GradientRows);
            input(&mut b, key, TensorType::new(DType::I64, [n]))
        });
        let whole_low = input(&mut b, StateKey::Parameters(i), bucket.span(bucket.dtype));
        let low = seen(&mut b, whole_low, rows)?;
        // The master is what is stepped; the parameter is it, rounded.
        let (param, target) = match (bucket.master, bucket.stochastic) {
            (Master::Whole, _) => {
                let master = input(&mut b, StateKey::Bucket(i, Kept::Masters), bucket.span(wide));
                (seen(&mut b, master, rows)?, master)
            }
            (Master::Rest, _) => {
                let whole = input(&mut b, StateKey::Bucket(i, Kept::Masters), bucket.span(DType::I16));
                let rest = seen(&mut b, whole, rows)?;
                (b.one(&MASTER_JOIN, &[low, rest], Attrs::new())?, whole)
            }
            (Master::None, true) => (b.cast(low, wide)?, whole_low),
            (Master::None, false) => (low, whole_low),
        };
        let mut kept = Vec::new();
        let mut moments = Vec::new();
        for moment in rule.moments() {
            let Some(moment) = moment else {
                moments.push(None);
                continue;
            };
            let own = KeptMoment::read(&mut b, i, bucket, &moment, rows)?;
            moments.push(Some(own.wide(&mut b, wide)?));
            kept.push(own);
        }
        let scalars = rule.scalars().into_iter();
        let scalars = scalars.map(|s| input(&mut b, StateKey::Scalar(i, s.into()), scalar(wide))).collect();
        let span = Span {
            bucket,
            param,
            gradient: gradients[i].0,
            squares: gradients[i].1,
            moments,
            scale,
            apply: finite,
            scalars,
            by_step: rule.by_step(),
            clip_value: clip.value,
        };
        let mut outputs = rule.step(&mut b, &span)?;
        // Streams that no node of a model draws from: those are counted from 0.
        if bucket.stochastic {
            let noise = noise(&mut b, bucket, 1 << 31)?;
            let to = Attrs::new().with("dtype", bucket.dtype);
            outputs[0] = b.one(&STOCHASTIC_ROUND, &[outputs[0], noise], to)?;
        }
        let rounded = match bucket.master {
            Master::None => None,
            Master::Whole => Some(b.cast(outputs[0], bucket.dtype)?),
            Master::Rest => {
                let parts = b.apply(&MASTER_SPLIT, &[Some(outputs[0])], Attrs::new())?;
                outputs[0] = parts[1];
                Some(parts[0])
            }
        };
        let mut written = vec![(target, outputs[0])];
        let narrow = kept.iter().any(|m| m.form != MomentForm::Wide);
        let mut noise = narrow.then(|| noise(&mut b, bucket, (1 << 31) + (1 << 30))).transpose()?;
        for (moment, &new) in kept.iter().zip(&outputs[1..]) {
            written.extend(moment.written(&mut b, new, &mut noise, finite)?);
        }
        written.extend(rounded.map(|rounded| (whole_low, rounded)));
        for (target, mut new) in written {
            if let Some(rows) = rows {
                new = b.one(&UPDATE_ROWS, &[target, rows, new], Attrs::new())?;
            }
            let name = b.graph().inputs[b.graph().input_index(target).expect("a state input")].name.clone();
            b.output(name, new, OutputRole::Mutation(target));
        }
    }
    Ok(b.finish())
}

/// Uniform numbers for a bucket's elements. A stream for each kind from `first`: where its buckets begin
/// changes no number.
fn noise(b: &mut Builder, bucket: &Bucket, first: i64) -> Result<ValueId> {
    let attrs = Attrs::new().with("size", bucket.gradients(bucket.wide()).shape.to_ints());
    let mut attrs = attrs.with("dtype", bucket.wide()).with("stream", first + bucket.kind as i64);
    if bucket.start > 0 {
        attrs.set("first", bucket.start as i64);
    }
    let key = b.rng();
    b.one(&PHILOX_UNIFORM, &[key], attrs)
}

/// A moment of a bucket between steps.
struct KeptMoment {
    form: MomentForm,
    /// Its input: numbers, or codes.
    whole: ValueId,
    /// The part of it that is stepped.
    seen: ValueId,
    /// Scales of codes, and those of them that are stepped.
    scales: Option<(ValueId, ValueId)>,
}

impl KeptMoment {
    fn read(
        b: &mut Builder,
        i: usize,
        bucket: &Bucket,
        moment: &Moment,
        rows: Option<ValueId>,
    ) -> Result<KeptMoment> {
        let key = |kept: fn(String) -> Kept| StateKey::Bucket(i, kept(moment.name.into()));
        let whole = input(b, key(Kept::Moment), moment.span(bucket));
        let scales = moment.scales(bucket).map(|ty| input(b, key(Kept::Scales), ty));
        let scales = scales.map(|s| Ok::<_, Error>((s, seen(b, s, rows)?))).transpose()?;
        Ok(KeptMoment { form: moment.form(bucket), whole, seen: seen(b, whole, rows)?, scales })
    }

    /// Its numbers in the dtype that the step is computed in.
    fn wide(&self, b: &mut Builder, wide: DType) -> Result<ValueId> {
        match self.scales {
            Some((_, scales)) => b.call(&DEQUANTIZE_BLOCK, &[self.seen, scales]),
            None => b.cast(self.seen, wide),
        }
    }

    /// New contents of its inputs. Rounding takes `noise`, and leaves digits of it that were not looked at.
    fn written(
        &self,
        b: &mut Builder,
        new: ValueId,
        noise: &mut Option<ValueId>,
        apply: ValueId,
    ) -> Result<Vec<(ValueId, ValueId)>> {
        let (form, Some(own)) = (self.form, *noise) else { return Ok(vec![(self.whole, new)]) };
        let written = match (form, self.scales) {
            (MomentForm::Int8, Some((scales, old))) => {
                let codes =
                    b.apply(&QUANTIZE_BLOCK, &[new, own, apply, self.seen, old].map(Some), Attrs::new())?;
                vec![(self.whole, codes[0]), (scales, codes[1])]
            }
            (MomentForm::Bf16, _) => {
                let to = Attrs::new().with("dtype", DType::BF16);
                vec![(self.whole, b.one(&STOCHASTIC_ROUND, &[new, own], to)?)]
            }
            _ => return Ok(vec![(self.whole, new)]),
        };
        // Uniform numbers are multiples of 2⁻²⁴: the next moment gets their lower digits.
        let shifted = b.scale(own, 256.0)?;
        *noise = Some(b.call(&FRAC, &[shifted])?);
        Ok(written)
    }
}

/// A bucket's values as its rule sees them: all, or the rows of a table that has a sparse gradient.
fn seen(b: &mut Builder, whole: ValueId, rows: Option<ValueId>) -> Result<ValueId> {
    match rows {
        Some(rows) => b.one(&GATHER_ROWS, &[whole, rows], Attrs::new()),
        None => Ok(whole),
    }
}

/// Sets all gradients to zero before the first micro-batch is accumulated.
///
/// # Errors
/// None for a layout made by [`BucketLayout::new`].
pub fn zero_graph(layout: &BucketLayout) -> Result<Graph> {
    let mut b = Builder::new();
    b.phase = Phase::Update;
    for (i, bucket) in layout.buckets.iter().enumerate() {
        let ty = bucket.span(bucket.wide());
        let g = input(&mut b, StateKey::Bucket(i, Kept::Gradients), ty.clone());
        let zero = b.full(&ty, 0.0)?;
        b.output(StateKey::Bucket(i, Kept::Gradients).to_string(), zero, OutputRole::Mutation(g));
    }
    Ok(b.finish())
}

/// Adds the gradients to a sum of earlier lanes that waits for them, [`Kept::Pending`]: one addition for each
/// element, stored in the gradients' place.
///
/// # Errors
/// None for a layout made by [`BucketLayout::new`].
pub fn join_graph(layout: &BucketLayout, number: usize) -> Result<Graph> {
    let mut b = Builder::new();
    b.phase = Phase::Update;
    for (i, bucket) in layout.buckets.iter().enumerate() {
        let ty = bucket.span(bucket.wide());
        let earlier = input(&mut b, StateKey::Bucket(i, Kept::Pending(number)), ty.clone());
        let g = input(&mut b, StateKey::Bucket(i, Kept::Gradients), ty);
        let sum = b.add(earlier, g)?;
        b.output(StateKey::Bucket(i, Kept::Gradients).to_string(), sum, OutputRole::Mutation(g));
    }
    Ok(b.finish())
}

/// Adds up the lanes of all ranks of a mesh: of each bucket the gradients, which are the latest sum of this
/// rank's lanes, and `pending` earlier ones that wait ([`Kept::Pending`]). The sum takes the gradients'
/// place.
///
/// # Errors
/// None for a layout made by [`BucketLayout::new`] and as many sums as [`crate::ranks::pending`] tells.
pub fn sum_graph(layout: &BucketLayout, pending: usize, lanes: usize, mesh: &Mesh) -> Result<Graph> {
    let mut b = Builder::new();
    b.phase = Phase::Update;
    for (i, bucket) in layout.buckets.iter().enumerate() {
        let ty = bucket.span(bucket.wide());
        let g = input(&mut b, StateKey::Bucket(i, Kept::Gradients), ty.clone());
        let mut sums = vec![g];
        sums.extend((0..pending).map(|n| input(&mut b, StateKey::Bucket(i, Kept::Pending(n)), ty.clone())));
        let attrs = on(DATA, mesh.ranks()).with("lanes", lanes as i64);
        let sum = b.one(&SUM_LANES, &sums, attrs)?;
        b.output(StateKey::Bucket(i, Kept::Gradients).to_string(), sum, OutputRole::Mutation(g));
    }
    Ok(b.finish())
}

/// An input of the state.
fn input(b: &mut Builder, key: StateKey, ty: TensorType) -> ValueId {
    b.input(key.to_string(), ty, InputRole::State)
}
