//! Sums of products by labels, brought to batched matrix products.

use super::matmul::MATMUL;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::view::diagonal::DIAGONAL;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};
use std::collections::BTreeMap;

/// `equation` as in NumPy: letters, `...`, and `->` with the result's labels (else those that occur once,
/// sorted). Sizes of 1 are broadcast. Operands are joined from the left, whatever `path` says.
pub static EINSUM: OpDef = OpDef {
    name: "einsum",
    schemas: &["einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor"],
    infer: |cx| {
        let e = Equation::of(cx)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, e.output.iter().map(|l| e.sizes[l]).collect::<Shape>())])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(decompose),
    cases: || {
        let eq = |name, equation: &'static str| Case::new(name).attr("equation", equation);
        vec![
            eq("matmul", "ij,jk->ik").f(&[2, 3]).f(&[3, 4]),
            eq("implicit, batched", "bij,bjk").f(&[2, 2, 3]).f(&[2, 3, 2]),
            eq("three", "ab,bc,cd->ad").f(&[2, 3]).f(&[3, 2]).f(&[2, 2]),
            eq("outer", "i,j->ji").f(&[2]).f(&[3]),
            eq("trace", "ii->").f(&[3, 3]),
            eq("ellipsis", "...ij,...kj->...ik").f(&[2, 1, 2, 3]).f(&[3, 2, 3]),
            eq("summed alone", "ijk,j->k").f(&[2, 3, 2]).f(&[3]),
            eq("broadcast", "ij,ij->ij").f(&[2, 1]).f(&[1, 3]),
        ]
    },
};

/// A letter, or the position from the end of a dimension that `...` stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Label {
    Dots(std::cmp::Reverse<usize>),
    Letter(u8),
}

struct Equation {
    inputs: Vec<Vec<Label>>,
    output: Vec<Label>,
    sizes: BTreeMap<Label, usize>,
}

impl Equation {
    fn of(cx: &OpCx) -> Result<Equation> {
        let text: String = cx.opt_str("equation")?.unwrap_or("").chars().filter(|c| *c != ' ').collect();
        let (left, right) = match text.split_once("->") {
            Some((l, r)) => (l, Some(r)),
            None => (&text[..], None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        let types: Vec<&TensorType> = cx.present().collect();
        ensure!(terms.len() == types.len(), Attribute, "\"{text}\" for {} tensors", types.len());
        ensure!(!types.is_empty() && types.len() == cx.inputs.len(), Attribute, "einsum of nothing");
        let one = types.iter().all(|t| t.dtype.is_float() && t.dtype == types[0].dtype);
        ensure!(one, DType, "einsum of {} needs one floating-point dtype", cx.list_types());
        let (mut inputs, mut sizes, mut dots) = (Vec::new(), BTreeMap::new(), 0);
        for (term, t) in terms.iter().zip(types) {
            let labels = labels(term, Some(t.shape.rank()))
                .ok_or_else(|| fail!(Attribute, "\"{term}\" does not label the dimensions of {t}"))?;
            for (&l, &n) in labels.iter().zip(t.shape.iter()) {
                let size = sizes.entry(l).or_insert(n);
                ensure!(
                    *size == n || n == 1 || *size == 1,
                    Shape,
                    "sizes {size} and {n} of one label in \"{text}\""
                );
                if *size == 1 {
                    *size = n;
                }
            }
            dots = dots.max(labels.iter().filter(|l| matches!(l, Label::Dots(_))).count());
            inputs.push(labels);
        }
        let count = |l: &Label| inputs.iter().flatten().filter(|k| *k == l).count();
        let output = match right {
            Some(r) => labels(r, None).map(|given| with_dots(given, dots)),
            // Dimensions of `...` stay, however often they occur; labels sort with them first.
            None => {
                Some(sizes.keys().copied().filter(|l| matches!(l, Label::Dots(_)) || count(l) == 1).collect())
            }
        };
        let output: Vec<Label> =
            output.ok_or_else(|| fail!(Attribute, "the result of \"{text}\" is not labelled"))?;
        let good = |(i, l): (usize, &Label)| sizes.contains_key(l) && !output[..i].contains(l);
        ensure!(
            output.iter().enumerate().all(good),
            Attribute,
            "a label of \"{text}\"'s result is unknown or doubled"
        );
        Ok(Equation { inputs, output, sizes })
    }
}

/// Labels of a term. `...` becomes as many dimensions as the rank leaves, or one marker if the rank is not
/// known.
fn labels(term: &str, rank: Option<usize>) -> Option<Vec<Label>> {
    let letters = |s: &str| -> Option<Vec<Label>> {
        s.bytes().map(|c| c.is_ascii_alphabetic().then_some(Label::Letter(c))).collect()
    };
    let Some((before, after)) = term.split_once("...") else {
        return letters(term).filter(|l| rank.is_none_or(|r| r == l.len()));
    };
    let (before, after) = (letters(before)?, letters(after)?);
    let dots = match rank {
        Some(r) => r.checked_sub(before.len() + after.len())?,
        None => 1,
    };
    let middle = (0..dots).rev().map(|d| Label::Dots(std::cmp::Reverse(d)));
    Some(before.into_iter().chain(middle).chain(after).collect())
}

/// The marker of `...` in a result replaced by all the dimensions it stands for.
fn with_dots(given: Vec<Label>, dots: usize) -> Vec<Label> {
    let all = |l: Label| match l {
        Label::Dots(_) => (0..dots).rev().map(|d| Label::Dots(std::cmp::Reverse(d))).collect(),
        l => vec![l],
    };
    given.into_iter().flat_map(all).collect()
}

/// A tensor with a label for each dimension, each once.
#[derive(Clone)]
struct Term {
    value: ValueId,
    labels: Vec<Label>,
}

impl Term {
    fn has(&self, l: &Label) -> bool {
        self.labels.contains(l)
    }

    /// Repeated labels made one dimension each, sizes of 1 that others broadcast dropped.
    fn new(
        b: &mut Builder,
        value: ValueId,
        labels: &[Label],
        sizes: &BTreeMap<Label, usize>,
    ) -> Result<Term> {
        let mut t = Term { value, labels: labels.to_vec() };
        while let Some((i, j)) = repeated(&t.labels) {
            let attrs = Attrs::new().with("offset", 0).with("dim1", i as i64).with("dim2", j as i64);
            let l = t.labels[i];
            ensure!(b.ty(t.value).shape[i] == b.ty(t.value).shape[j], Shape, "a diagonal of different sizes");
            t.value = b.one(&DIAGONAL, &[t.value], attrs)?;
            t.labels.remove(j);
            t.labels.remove(i);
            t.labels.push(l);
        }
        let shape = b.ty(t.value).shape.clone();
        let kept = |d: &usize| shape[*d] == sizes[&t.labels[*d]];
        let keep: Vec<usize> = (0..shape.rank()).filter(kept).collect();
        t.value = b.reshape(t.value, &keep.iter().map(|&d| shape[d]).collect::<Vec<_>>())?;
        t.labels = keep.into_iter().map(|d| t.labels[d]).collect();
        Ok(t)
    }

    /// Summed over labels that nobody needs any more.
    fn summed(self, b: &mut Builder, needed: impl Fn(&Label) -> bool) -> Result<Term> {
        let gone: Vec<usize> = (0..self.labels.len()).filter(|&d| !needed(&self.labels[d])).collect();
        let value = b.sum(self.value, &gone, false)?;
        Ok(Term { value, labels: self.labels.into_iter().filter(|l| needed(l)).collect() })
    }

    /// Dimensions in the order of `groups`, each group one dimension.
    fn grouped(&self, b: &mut Builder, groups: &[&[Label]]) -> Result<ValueId> {
        let shape = b.ty(self.value).shape.clone();
        let at = |l: &Label| self.labels.iter().position(|k| k == l).expect("its own labels");
        let dims: Vec<usize> = groups.iter().copied().flatten().map(at).collect();
        let sizes: Vec<usize> = groups.iter().map(|g| g.iter().map(|l| shape[at(l)]).product()).collect();
        let v = b.permute(self.value, &dims)?;
        b.reshape(v, &sizes)
    }
}

fn repeated(labels: &[Label]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|j| labels[..j].iter().position(|l| *l == labels[j]).map(|i| (i, j)))
}

fn decompose(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>> {
    let e = Equation::of(cx)?;
    let mut terms = Vec::new();
    for (v, labels) in inputs.iter().flatten().zip(&e.inputs) {
        terms.push(Term::new(b, *v, labels, &e.sizes)?);
    }
    let mut acc = terms.remove(0);
    for i in 0..terms.len() {
        let later = |l: &Label| e.output.contains(l) || terms[i + 1..].iter().any(|t| t.has(l));
        let left = acc.clone().summed(b, |l| later(l) || terms[i].has(l))?;
        let right = terms[i].clone().summed(b, |l| later(l) || left.has(l))?;
        acc = join(b, &left, &right, later, &e.sizes)?;
    }
    let acc = acc.summed(b, |l| e.output.contains(l))?;
    // A label of size 1 everywhere that was dropped nowhere is still there; all of the output's are.
    let order: Vec<&[Label]> = e.output.iter().map(std::slice::from_ref).collect();
    Ok(vec![acc.grouped(b, &order)?])
}

/// The product of two terms, summed over the labels both have that are not needed later.
fn join(
    b: &mut Builder,
    left: &Term,
    right: &Term,
    later: impl Fn(&Label) -> bool,
    sizes: &BTreeMap<Label, usize>,
) -> Result<Term> {
    let pick =
        |t: &Term, f: &dyn Fn(&Label) -> bool| t.labels.iter().copied().filter(|l| f(l)).collect::<Vec<_>>();
    let batch = pick(left, &|l| right.has(l) && later(l));
    let inner = pick(left, &|l| right.has(l) && !later(l));
    let (rows, columns) = (pick(left, &|l| !right.has(l)), pick(right, &|l| !left.has(l)));
    let product = if inner.is_empty() {
        let x = left.grouped(b, &[&batch, &rows, &[]])?;
        let y = right.grouped(b, &[&batch, &[], &columns])?;
        b.mul(x, y)?
    } else {
        let x = left.grouped(b, &[&batch, &rows, &inner])?;
        let y = right.grouped(b, &[&batch, &inner, &columns])?;
        b.one(&MATMUL, &[x, y], Attrs::new())?
    };
    let labels: Vec<Label> = [batch, rows, columns].concat();
    let shape: Vec<usize> = labels.iter().map(|l| sizes[l]).collect();
    Ok(Term { value: b.reshape(product, &shape)?, labels })
}
