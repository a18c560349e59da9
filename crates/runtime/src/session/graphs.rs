//! The compilations of a session, as options of the compiler.

use super::Training;
use crate::error::Result;
use crate::optim::Groups;
use headwater_core::compile::{Goal, Options, ParameterGradient};
use headwater_core::pass::precision::Properties;
use headwater_core::ranks::Mesh;
use headwater_core::train::update::loss_scale_type;
use headwater_core::train::{BucketLayout, BucketSize, SparseEmbeddings};

/// Bytes of a budget that are left to what an update returns: a few numbers for each bucket.
const UPDATE_RESULTS: usize = 16 << 10;

/// Options of a training step that sums no micro-batches. `sparse`: tables with sparse gradients, and their rows.
pub(super) fn training<'a>(
    precision: &Properties,
    t: &Training,
    sparse: &'a [(String, usize)],
) -> Options<'a> {
    Options {
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

/// The groups that the settings ask for.
pub(super) fn groups(t: &Training) -> Result<Groups> {
    match &t.listed {
        Some(listed) => Groups::listed(listed),
        None => Groups::new(t.optimizer.clone(), t.groups.clone(), t.decay),
    }
}

/// Options of a forward pass in evaluation mode.
pub(super) fn evaluation(precision: &Properties) -> Options<'static> {
    Options { goal: Goal::Evaluate, precision: precision.clone(), ..Options::default() }
}

/// Options of an update that the ranks of a mesh do alike.
pub(super) fn update(mesh: &Mesh) -> Options<'static> {
    Options { goal: Goal::Update, mesh: mesh.clone(), ..Options::default() }
}

/// The flat layout of gradients, in the order in which they are computed; tables with sparse ones are last.
pub(super) fn layout(
    gradients: &[ParameterGradient],
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
    Ok(BucketLayout::new(dense, size).with_sparse(sparse))
}
