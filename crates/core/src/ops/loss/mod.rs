//! Losses. Each is computed in terms of f32 (f64 of f64), reduced in them, and rounded once at the end.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::OpCx;
use crate::ops::reduce::mean::MEAN;
use crate::ops::reduce::sum::SUM;
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

pub mod alignments;

operators! {
    binary_cross_entropy: BINARY_CROSS_ENTROPY, WITH_LOGITS, TERMS, TERMS_BACKWARD, LOGIT_TERMS, LOGIT_TERMS_BACKWARD;
    cosine_embedding: COSINE_EMBEDDING_LOSS;
    cross_entropy: CROSS_ENTROPY_LOSS, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD;
    ctc: CTC_LOSS, CTC_NLL, CTC_NLL_BACKWARD;
    hinge_embedding: HINGE_EMBEDDING_LOSS;
    huber: HUBER_LOSS, SMOOTH_L1_LOSS, HUBER, HUBER_BACKWARD;
    kl_div: KL_DIV, TERMS, TERMS_BACKWARD;
    margin_ranking: MARGIN_RANKING_LOSS;
    mse: MSE_LOSS, L1_LOSS;
    multi_margin: MULTI_MARGIN_LOSS;
    multilabel_margin: MULTILABEL_MARGIN_LOSS, MULTILABEL_MARGIN_LOSS_FORWARD;
    nll: NLL_LOSS, NLL, NLL_BACKWARD;
    poisson_nll: POISSON_NLL_LOSS;
    soft_margin: SOFT_MARGIN_LOSS;
    target_weight: TARGET_WEIGHT;
    triplet_margin: TRIPLET_MARGIN_LOSS;
    weighted_mean: WEIGHTED_MEAN;
}

/// The way the terms of a loss become its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduction {
    /// They are the result.
    None,
    /// Their mean.
    Mean,
    /// Their sum.
    Sum,
}

impl Reduction {
    /// The attribute `reduction`: 0 none, 1 mean (also if absent), 2 sum.
    ///
    /// # Errors
    /// `Attribute` for any other number.
    pub fn of(cx: &OpCx) -> Result<Reduction> {
        Ok(match cx.opt_int("reduction")? {
            Some(0) => Reduction::None,
            None | Some(1) => Reduction::Mean,
            Some(2) => Reduction::Sum,
            Some(other) => {
                return Err(fail!(Attribute, "`reduction` is {other}, not 0 (none), 1 (mean) or 2 (sum)"));
            }
        })
    }

    /// Shape of the result, given that of the terms.
    fn shape(self, terms: &Shape) -> Shape {
        if self == Reduction::None { terms.clone() } else { Shape::default() }
    }

    /// Appends the reduction of a loss's terms to its one result, in the promoted dtype of its inputs.
    fn finish(self, b: &mut Builder, cx: &OpCx, terms: ValueId) -> Result<Vec<ValueId>> {
        let loss = self.apply(b, terms)?;
        Ok(vec![b.cast(loss, cx.result_type(&[]))?])
    }

    /// Appends the reduction of `terms`, in which each counts the same.
    fn apply(self, b: &mut Builder, terms: ValueId) -> Result<ValueId> {
        match self {
            Reduction::None => Ok(terms),
            Reduction::Mean => b.one(&MEAN, &[terms], Attrs::new()),
            Reduction::Sum => b.one(&SUM, &[terms], Attrs::new()),
        }
    }
}

/// Dtype of the terms of a loss of inputs of `dtype`.
///
/// # Errors
/// `DType` if it is not a float.
fn term_dtype(dtype: DType) -> Result<DType> {
    ensure!(dtype.is_float(), DType, "a loss needs floats, got {dtype}");
    Ok(if dtype == DType::F64 { DType::F64 } else { DType::F32 })
}

/// Type rule of a loss of `(input, target, ...)`, all broadcast and promoted.
fn pair_type(cx: &OpCx) -> Result<Vec<TensorType>> {
    cx.ty(0).and(cx.ty(1))?;
    let dtype = cx.result_type(&[]);
    term_dtype(dtype)?;
    Ok(vec![TensorType::new(dtype, Reduction::of(cx)?.shape(&cx.broadcast()?))])
}

/// Input and target of a loss.
fn pair(inputs: &[Option<ValueId>]) -> Result<[ValueId; 2]> {
    match *inputs {
        [Some(x), Some(target), ..] => Ok([x, target]),
        _ => Err(fail!(Attribute, "input and target are needed")),
    }
}

/// The class dimension of scores `x`: 1, or 0 of a single sample; and the shape without it.
///
/// # Errors
/// `Shape` if `x` is a scalar.
fn classes(x: &Shape) -> Result<(usize, Shape)> {
    ensure!(x.rank() > 0, Shape, "class scores must not be a scalar");
    let dim = usize::from(x.rank() > 1);
    Ok((dim, (0..x.rank()).filter(|&d| d != dim).map(|d| x[d]).collect()))
}

/// Checks `(scores, target, weight?)` of a loss over class indices; type of its terms.
fn class_terms(cx: &OpCx) -> Result<TensorType> {
    let (x, target) = (cx.ty(0)?, cx.ty(1)?);
    let (dim, rows) = classes(&x.shape)?;
    ensure!(target.shape == rows, Shape, "target {target} for scores {x}: expected {rows}");
    ensure!(
        target.dtype.class() == crate::dtype::Class::Int,
        DType,
        "class indices are integers, got {target}"
    );
    cx.expect_floats(2, &x.shape[dim..=dim])?;
    Ok(TensorType::new(term_dtype(x.dtype)?, rows))
}

/// Checks the terms of a loss of rows, and returns the type of numbers of rows. `of` are its scores, target
/// and class weights, `each` the inputs with one number a row.
fn row_terms(cx: &OpCx, of: [usize; 3], each: &[usize]) -> Result<TensorType> {
    ignore_index(cx)?;
    let terms = class_terms(&OpCx { inputs: of.map(|i| cx.opt(i)).to_vec(), attrs: cx.attrs })?;
    each.iter().try_for_each(|&i| cx.ty(i).and(cx.expect_floats(i, &terms.shape)))?;
    Ok(terms)
}

/// The target of a loss over class indices, proved to be in range or `ignore_index`.
fn checked_target(b: &mut Builder, cx: &OpCx, target: ValueId) -> Result<ValueId> {
    let x = cx.shape(0)?;
    let attrs = Attrs::new().with("limit", x[classes(x)?.0] as i64).with("ignore_index", ignore_index(cx)?);
    b.one(&crate::ops::index::check_index::CHECK_INDEX, &[target], attrs)
}

/// The weight of each row of a loss of `(scores, target, class weights?)`, in the dtype of its terms.
fn target_weight(b: &mut Builder, cx: &OpCx, target: ValueId, weight: Option<ValueId>) -> Result<ValueId> {
    let attrs = Attrs::new().with("ignore_index", ignore_index(cx)?).with("dtype", term_dtype(cx.dtype(0)?)?);
    Ok(b.apply(&target_weight::TARGET_WEIGHT, &[Some(target), weight], attrs)?[0])
}

fn ignore_index(cx: &OpCx) -> Result<i64> {
    Ok(cx.opt_int("ignore_index")?.unwrap_or(-100))
}
