//! The compilations of a session, as options of the compiler.

use super::Training;
use crate::error::Result;
use crate::optim::Groups;
use headwater_core::compile::{Goal, Options, ParameterGradient};
use headwater_core::pass::precision::Properties;
use headwater_core::pass::products::{Adjacent, Parameter};
use headwater_core::ranks::Mesh;
use headwater_core::train::update::loss_scale_type;
use headwater_core::train::{BLOCK, BucketLayout, BucketSize, MomentForm, SparseEmbeddings};
use std::cell::RefCell;

/// Bytes of a budget that are left to what an update returns: a few numbers for each bucket.
const UPDATE_RESULTS: usize = 16 << 10;

/// Options of a training step that sums no micro-batches. `sparse`: tables with sparse gradients, and their
/// rows. `adjacent`: parameters that are adjacent in memory.
pub(super) fn training<'a>(
    precision: &Properties,
    t: &Training,
    sparse: &'a [(String, usize)],
    adjacent: Adjacent<'a>,
) -> Options<'a> {
    Options {
        adjacent: (!t.exact_sums).then_some(adjacent),
        sparse: (!sparse.is_empty()).then_some(SparseEmbeddings::Given(sparse)),
        goal: Goal::Train,
        precision: precision.clone(),
        loss_scale: t.scaled.then(loss_scale_type),
        fault: t.fault,
        recompute: t.recompute,
        mesh: t.mesh.clone(),
        memory_budget: t.memory_budget.map(|b| b.saturating_sub(UPDATE_RESULTS)),
        ..Options::default()
    }
}

/// The groups that the settings request.
pub(super) fn groups(t: &Training) -> Result<Groups> {
    match &t.listed {
        Some(listed) => Groups::listed(listed),
        None => Groups::new(t.optimizer.clone(), t.groups.clone(), t.decay),
    }
}

/// Options of a forward pass in evaluation mode, of parameters that are adjacent as `adjacent` tells.
pub(super) fn evaluation<'a>(precision: &Properties, adjacent: Adjacent<'a>) -> Options<'a> {
    Options {
        goal: Goal::Evaluate,
        precision: precision.clone(),
        adjacent: Some(adjacent),
        ..Options::default()
    }
}

/// Options of an update that the ranks of a mesh do alike.
pub(super) fn update(mesh: &Mesh) -> Options<'static> {
    Options { goal: Goal::Update, mesh: mesh.clone(), ..Options::default() }
}

/// True if a parameter may directly follow another: they are of one group, and no number of a block of one is
/// shared by elements of the other.
pub(super) fn may_be_adjacent(
    t: &Training,
    groups: &Groups,
) -> impl Fn(Parameter, Parameter) -> bool + use<> {
    let blocks = !groups.by_element() || t.moments.form() == MomentForm::Int8;
    let groups = RefCell::new(groups.clone());
    move |before, after| {
        let group = |p: Parameter| groups.borrow_mut().of(p.0, p.1).ok();
        let whole = !blocks || before.1.shape.numel().is_multiple_of(BLOCK);
        whole && group(before).is_some_and(|one| group(after) == Some(one))
    }
}

/// True if a parameter directly follows another.
pub(super) fn adjacent(layout: &BucketLayout) -> impl Fn(Parameter, Parameter) -> bool + '_ {
    |before, after| layout.adjacent(before.0, after.0)
}

/// The flat layout of gradients in the order in which they are computed, except that those of adjacent
/// parameters follow each other; tables with sparse ones come last.
pub(super) fn layout(
    gradients: &[ParameterGradient],
    adjacent: &[Vec<String>],
    groups: &mut Groups,
    size: BucketSize,
) -> Result<BucketLayout> {
    let (mut dense, mut sparse) = (Vec::new(), Vec::new());
    for g in gradients {
        let (name, group) = (g.parameter.as_str(), groups.of(&g.parameter, &g.ty)?);
        match g.rows {
            None => dense.push((name, &g.ty, group)),
            Some(rows) => sparse.push((name, &g.ty, group, rows)),
        }
    }
    Ok(BucketLayout::with_adjacent(dense, adjacent, size).with_sparse(sparse))
}
