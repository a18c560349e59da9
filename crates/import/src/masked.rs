//! Elements that a mask selects, `x[mask]`. How many they are depends on the data, so that no tensor holds
//! them alone: all are kept, with the mask, and computed. Those that are not selected stand for one that is.
//! Sums and means then leave them out, which is exact: nothing flows from them or back to them. Where a mask
//! selects nothing, the first element stands for all.

use crate::arguments::{self, Call, Obstacle, Operand};
use crate::error::{Result, refuse, shown};
use crate::functionalize::TensorId;
use crate::importer::{Importer, Made, Selection, refused};
use crate::schema::{Argument, Node, OptionalTensor};
use crate::scope::{self, Scope, Slot};
use crate::weights::element;
use headwater_core::ops::control::detach::DETACH;
use headwater_core::ops::index::index_select::INDEX_SELECT;
use headwater_core::ops::reduce::argmax::ARGMAX;
use headwater_core::ops::reduce::{mean::MEAN, sum::SUM};
use headwater_core::ops::{Body, OpCx};
use headwater_core::{Attrs, Builder, DType, Layout, TensorType, ValueId};

/// Operators that compute each row from the same row of their operands, besides those that compute each
/// element from the same element.
const BY_ROWS: &[&str] = &[
    "clone",
    "contiguous",
    "alias",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "broadcast_tensors",
    "linear",
];

/// Losses of elements, which end in a mean or a sum.
const LOSSES: &[&str] = &[
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
];

const WAY_OUT: &str = "of elements that a mask selects, computations of each element, sums, means and losses of elements \
     are supported: how many they are depends on the data. Keep the shape, with `torch.where(mask, x, 0)` or targets of \
     `ignore_index`; see docs/errors.md, HW-I015";

impl<'a> Importer<'a> {
    /// Takes a node that selects elements by a mask, or that takes such elements. True if it did.
    pub fn masked(&mut self, scope: &mut Scope<'a>, node: &'a Node) -> Result<bool, Obstacle> {
        let (namespace, name) = scope::base(&node.target);
        if namespace == "aten"
            && let Some((x, mask)) = self.selects(scope, node, name)
        {
            let t = self.select(scope, x, mask, name == "masked_select")?;
            self.named(scope, node, &[t])?;
            return Ok(true);
        }
        let Some(selection) = self.selection_of(scope, node) else { return Ok(false) };
        let refusal = || Obstacle::Unsupported(WAY_OUT.into());
        if scope.computes_complex(node) {
            return Err(refusal());
        }
        let registry = self.registry;
        let resolved = registry.resolve(&node.target).filter(|r| !r.in_place).ok_or_else(refusal)?;
        let call = arguments::call(scope, node, resolved.schema)?;
        call.check_numbers(resolved.op)?;
        let (op, attrs) = (resolved.op, call.attrs.clone());
        let operands = self.rows_of(scope, &call, selection.mask, name == "linear")?;
        let inputs: Vec<Option<ValueId>> = operands.iter().map(|o| o.map(|(v, _)| v)).collect();
        if matches!(name, "sum" | "mean") {
            let Some(&Some((x, true))) = operands.first() else { return Err(refusal()) };
            let made = self.reduced(x, selection, attrs, name == "mean").map_err(refused)?;
            return self.results(scope, node, vec![made], selection).map(|()| true);
        }
        if LOSSES.contains(&name) {
            let reduction = OpCx { inputs: vec![], attrs: &attrs }.opt_int("reduction").map_err(refused)?;
            let made = self.b.apply(op, &inputs, attrs.with("reduction", 0)).map_err(refused)?[0];
            let made = match reduction {
                Some(0) => (made, true),
                other => self.reduced(made, selection, Attrs::new(), other != Some(2)).map_err(refused)?,
            };
            return self.results(scope, node, vec![made], selection).map(|()| true);
        }
        if !(matches!(op.body, Body::Pointwise(_)) || BY_ROWS.contains(&name) || name == "detach") {
            return Err(refusal());
        }
        let made = self.b.apply(op, &inputs, attrs).map_err(refused)?;
        let rows = self.b.ty(selection.rows).shape[0];
        if !made.iter().all(|&v| self.b.ty(v).shape.first() == Some(&rows)) {
            return Err(refusal());
        }
        self.results(scope, node, made.into_iter().map(|v| (v, true)).collect(), selection).map(|()| true)
    }

    /// Tensor and mask of a node that selects by a mask alone.
    fn selects(&self, scope: &Scope<'a>, node: &'a Node, name: &str) -> Option<(TensorId, TensorId)> {
        let Slot::Tensor(x) = scope.value(&node.inputs.first()?.arg) else { return None };
        let mask = match (name, &node.inputs.get(1)?.arg) {
            ("masked_select", mask) => scope.value(mask),
            ("index", Argument::AsTensors(list)) if list.len() == 1 => scope.slot(&list[0].name),
            ("index", Argument::AsOptionalTensors(list)) => match &list[..] {
                [OptionalTensor::AsTensor(t)] => scope.slot(&t.name),
                _ => return None,
            },
            _ => return None,
        };
        match mask {
            Slot::Tensor(mask) if self.tensors.ty(&self.b, mask).dtype == DType::Bool => Some((x, mask)),
            _ => None,
        }
    }

    /// All rows of `x`, one for each element of the mask, where those that are not selected stand for one
    /// that is. `masked_select` broadcasts both.
    fn select(
        &mut self,
        scope: &Scope<'a>,
        x: TensorId,
        mask: TensorId,
        broadcast: bool,
    ) -> Result<TensorId, Obstacle> {
        if self.selected.contains_key(&x) || self.selected.contains_key(&mask) {
            return Err(Obstacle::Unsupported(WAY_OUT.into()));
        }
        let ((_, mut x), (_, mask)) = (self.operand(scope, x)?, self.operand(scope, mask)?);
        let mut seen = mask;
        if broadcast && let Some(shape) = self.b.ty(x).shape.broadcast(&self.b.ty(mask).shape) {
            x = self.b.expand(x, &shape).map_err(refused)?;
            seen = self.b.expand(mask, &shape).map_err(refused)?;
        }
        let (sizes, by) = (self.b.ty(x).shape.clone(), self.b.ty(seen).shape.clone());
        if by.rank() == 0 || sizes.get(..by.rank()) != Some(&by[..]) {
            let way = format!(
                "a mask {by} of a tensor {sizes}: give the mask the tensor's first sizes by `expand`"
            );
            return Err(Obstacle::Unsupported(way));
        }
        let (rows, all) = stood_in(&mut self.b, x, seen, by.rank()).map_err(refused)?;
        self.notes.add(
            "a mask selects: all elements are computed, those not selected are left out of sums",
            &self.origin,
        );
        Ok(self.keep(all, Selection { mask, rows }))
    }

    /// The rows that a node takes; `None` if it takes none.
    fn selection_of(&self, scope: &Scope<'a>, node: &'a Node) -> Option<Selection> {
        if self.selected.is_empty() {
            return None;
        }
        let mut found = None;
        for input in &node.inputs {
            input.arg.names(&mut |name| {
                if let Slot::Tensor(t) = scope.slot(name) {
                    found = found.or(self.selected.get(&t).copied());
                }
            });
        }
        found
    }

    /// Operands, each with its value and true if it is of the mask's rows. Others must be the same for every
    /// row, as those of a `linear` are.
    fn rows_of(
        &mut self,
        scope: &Scope<'a>,
        call: &Call,
        mask: ValueId,
        linear: bool,
    ) -> Result<Vec<Option<(ValueId, bool)>>, Obstacle> {
        let operands: Vec<Option<Operand>> = call.tensors.clone();
        let selected = |o: &Operand| self.selected.get(&o.tensor).copied();
        let rank = |o: &Operand| self.tensors.ty(&self.b, o.tensor).shape.rank();
        let most = operands.iter().flatten().filter(|o| selected(o).is_some()).map(rank).max().unwrap_or(0);
        for operand in operands.iter().flatten() {
            let fits = match selected(operand) {
                // Rows of fewer dimensions would be aligned with another's columns.
                Some(own) => own.mask == mask && rank(operand) == most,
                None => {
                    let shape = &self.tensors.ty(&self.b, operand.tensor).shape;
                    shape.rank() < most
                        || (shape.rank() == most && shape.first() == Some(&1))
                        || (linear && operand.argument != "input")
                }
            };
            if !fits {
                return Err(Obstacle::Unsupported(WAY_OUT.into()));
            }
        }
        let mut read = Vec::with_capacity(operands.len());
        for operand in operands {
            read.push(match operand {
                Some(o) => Some((self.operand(scope, o.tensor)?.1, self.selected.contains_key(&o.tensor))),
                None => None,
            });
        }
        Ok(read)
    }

    /// A sum or mean over dimensions, and true if its first one is still that of rows.
    fn reduced(
        &mut self,
        x: ValueId,
        selection: Selection,
        attrs: Attrs,
        mean: bool,
    ) -> headwater_core::Result<(ValueId, bool)> {
        let b = &mut self.b;
        let shape = b.ty(x).shape.clone();
        let args = OpCx { inputs: vec![], attrs: &attrs };
        let dims = args.dims("dim", shape.rank())?;
        if !dims.contains(&0) {
            return Ok((b.one(if mean { &MEAN } else { &SUM }, &[x], attrs)?, true));
        }
        let x = match args.opt_dtype("dtype")? {
            Some(dtype) => b.cast(x, dtype)?,
            None => x,
        };
        let chosen = column(b, selection.rows, shape.rank() - 1)?;
        // Zeros in the dtype of what is summed: integers and truth values are counted too.
        let zero = TensorType::new(b.ty(x).dtype, [0usize; 0]);
        let zero = b.full(&zero, 0.0)?;
        let kept = b.choose(chosen, x, zero)?;
        let sum = b.one(&SUM, &[kept], attrs.clone())?;
        if !mean {
            return Ok((sum, false));
        }
        let count = b.sum(selection.rows, &[0], false)?;
        let dtype = b.ty(sum).dtype;
        let count = b.cast(count, dtype)?;
        let each: usize = dims.iter().filter(|&&d| d != 0).map(|&d| shape[d]).product();
        let count = b.scale(count, each as f64)?;
        Ok((b.div(sum, count)?, false))
    }

    fn keep(&mut self, value: ValueId, selection: Selection) -> TensorId {
        let t = self.tensors.root(value, Layout::contiguous(&self.b.ty(value).shape));
        self.selected.insert(t, selection);
        t
    }

    /// Names results; those of rows are kept with their mask, others checked against what PyTorch recorded.
    fn results(
        &mut self,
        scope: &mut Scope<'a>,
        node: &'a Node,
        made: Vec<(ValueId, bool)>,
        selection: Selection,
    ) -> Result<(), Obstacle> {
        if let [(value, false)] = made[..] {
            return Ok(self.define(scope, node, &[Made::Value(value)])?);
        }
        let tensors: Vec<TensorId> = made.into_iter().map(|(v, _)| self.keep(v, selection)).collect();
        Ok(self.named(scope, node, &tensors)?)
    }

    /// Gives tensors of which only data tells the size to a node's names.
    fn named(&mut self, scope: &mut Scope<'a>, node: &'a Node, tensors: &[TensorId]) -> Result<()> {
        let names = scope::output_names(&node.outputs);
        if names.len() > tensors.len() {
            return Err(refuse!(Argument, "{} results are named, there are {}", names.len(), tensors.len()));
        }
        for (name, &t) in names.into_iter().zip(tensors) {
            let Some(name) = name else { continue };
            let dtype = element(scope.meta(name)?, name)?.dtype;
            let have = self.tensors.ty(&self.b, t).dtype;
            if dtype != have {
                return Err(refuse!(
                    Mismatch,
                    "`{}` is of {have} here, PyTorch recorded {dtype}",
                    shown(name)
                ));
            }
            scope.slots.insert(name, Slot::Tensor(t));
        }
        Ok(())
    }
}

/// The mask and the tensor by rows, one for each element of the mask, which has the first `rank` dimensions.
/// Rows that are not selected become the first that is; no gradient flows by these.
fn stood_in(
    b: &mut Builder,
    x: ValueId,
    mask: ValueId,
    rank: usize,
) -> headwater_core::Result<(ValueId, ValueId)> {
    let sizes = b.ty(x).shape.to_vec();
    let count = sizes[..rank].iter().product();
    let rows = b.reshape(mask, &[count])?;
    let all = b.reshape(x, &[&[count], &sizes[rank..]].concat())?;
    if count == 0 {
        return Ok((rows, all));
    }
    let numbers = b.cast(rows, DType::I32)?;
    let first = b.one(&ARGMAX, &[numbers], Attrs::new().with("dim", 0).with("keepdim", true))?;
    let mut stand = b.one(&INDEX_SELECT, &[all, first], Attrs::new().with("dim", 0))?;
    if b.ty(stand).dtype.is_float() {
        stand = b.call(&DETACH, &[stand])?;
    }
    let chosen = column(b, rows, sizes.len() - rank)?;
    Ok((rows, b.choose(chosen, all, stand)?))
}

/// Truth values of rows as a column before `rank` dimensions.
fn column(b: &mut Builder, rows: ValueId, rank: usize) -> headwater_core::Result<ValueId> {
    let mut shape = b.ty(rows).shape.to_vec();
    shape.extend(vec![1; rank]);
    b.reshape(rows, &shape)
}
