//! Settings of training in a session: what they change is said at each.

use crate::optim::{Clip, Decay, Group, ListedGroup, Optimizer};
use headwater_core::graph::NodeId;
use headwater_core::pass::instrument::Fault;
use headwater_core::pass::precision::PrecisionSettings;
use headwater_core::ranks::{self, Mesh};
use headwater_core::train::{BucketSize, MomentForm, SparseEmbeddings};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The settings of training in a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Parameters with settings of their own.
    pub groups: Vec<Group>,
    /// Which parameters decay.
    pub decay: Decay,
    /// Groups that name every trained parameter and whose settings change from step to step, in place of the
    /// three above; see [`super::Session::update_groups`].
    pub listed: Option<Vec<ListedGroup>>,
    /// Limits of the gradients.
    pub clip: Clip,
    /// Micro-batches that a lane sums up; at least 1.
    pub accumulate: u32,
    /// Lanes of a step, whose sums are added up by halves ([`headwater_core::ranks::halving`]); at least 1.
    pub lanes: u32,
    /// The ranks that share the lanes. The device was opened with a transport to them.
    pub mesh: Mesh,
    /// The precision of operators and weights.
    pub precision: PrecisionSettings,
    /// True if low-precision weights without masters are rounded stochastically after each step.
    pub stochastic_rounding: bool,
    /// True if the backward pass recomputes what is cheap: the same bits in less memory.
    pub recompute: bool,
    /// True if products that share an operand stay separate, so that the gradient of that is a sum of
    /// products, each rounded ([`headwater_core::pass::products`]).
    pub exact_sums: bool,
    /// Bytes that training may take in all, kept by recomputing more.
    pub memory_budget: Option<usize>,
    /// Sizes of the buckets of gradients, parameters and moments; they change no number. By default those of
    /// [`BucketSize::of_ranks`].
    pub bucket_size: Option<BucketSize>,
    /// Embeddings whose gradients have only the rows that a batch reads, and whose update steps only these.
    pub sparse_embeddings: Sparse,
    /// Form in which the optimizer's moments are kept between steps.
    pub moments: Moments,
    /// True if gradients are those of the loss times [`super::Session::set_loss_scale`].
    pub scaled: bool,
    /// A fault to try out what a run does then, at a node of the differentiated graph; see
    /// [`super::Session::set_fault`].
    pub fault: Option<(NodeId, Fault)>,
}

impl Default for Training {
    fn default() -> Training {
        Training {
            optimizer: Optimizer::default(),
            groups: Vec::new(),
            decay: Decay::default(),
            listed: None,
            clip: Clip::default(),
            accumulate: 1,
            lanes: 1,
            mesh: Mesh::default(),
            precision: PrecisionSettings::default(),
            stochastic_rounding: false,
            recompute: true,
            exact_sums: false,
            memory_budget: None,
            bucket_size: None,
            sparse_embeddings: Sparse::default(),
            moments: Moments::default(),
            scaled: false,
            fault: None,
        }
    }
}

impl Training {
    /// True if gradients are added to sums, in f32 or wider: a step is then more than one batch.
    pub fn sums(&self) -> bool {
        self.accumulate > 1 || self.lanes > 1
    }

    /// Sums of lanes that may wait for others at a time.
    pub(crate) fn pending(&self) -> usize {
        ranks::pending(self.lanes as usize, self.mesh.ranks())
    }

    /// The lanes of this rank.
    pub fn own_lanes(&self) -> Range<usize> {
        ranks::lanes_of(self.mesh.coordinate(), self.mesh.ranks(), self.lanes as usize)
    }
}

/// Choice of embeddings whose gradients are sparse. They are dense all the same where micro-batches are summed, or
/// where an optimizer does not step each element by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sparse {
    /// Embeddings that the model marks by `sparse=True`.
    #[default]
    Marked,
    /// These, and every other of which a batch reads at most half the rows.
    All,
    /// None.
    None,
}

impl Sparse {
    /// As the compiler takes it.
    pub fn choice(self) -> Option<SparseEmbeddings<'static>> {
        match self {
            Sparse::Marked => Some(SparseEmbeddings::Marked),
            Sparse::All => Some(SparseEmbeddings::All),
            Sparse::None => None,
        }
    }
}

/// Form in which the moments of f32 are kept between steps. They are computed in f32 in any case. Checkpoints hold them in f32,
/// so that a run can go on in another form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moments {
    /// f32: 4 bytes an element.
    #[default]
    F32,
    /// bf16, rounded stochastically: 2 bytes.
    Bf16,
    /// 8 bits on logarithmic levels with a scale for each block of 1024, rounded stochastically: 1 byte.
    Int8,
}

impl Moments {
    /// As layouts have it.
    pub fn form(self) -> MomentForm {
        match self {
            Moments::F32 => MomentForm::Wide,
            Moments::Bf16 => MomentForm::Bf16,
            Moments::Int8 => MomentForm::Int8,
        }
    }
}
