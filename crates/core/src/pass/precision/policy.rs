//! Lists of the dtype in which each operator computes: apex's, as each operator states it, and those of
//! PyTorch's autocast.

use super::sensitivity::rounds;
use crate::graph::{Graph, Node};
use crate::ops::schema::Schema;
use crate::ops::{OpDef, Precision};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Whose lists decide at O1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// NVIDIA apex's `amp`: every operator's own [`OpDef::precision`].
    #[default]
    Apex,
    /// `torch.autocast("cpu")`.
    Torch,
    /// `torch.autocast("cuda")`.
    TorchCuda,
    /// Node by node: those named (as in the exported graph) run low, all others that round in f32.
    Chosen(Arc<BTreeSet<String>>),
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Apex => "apex",
            Policy::Torch => "torch",
            Policy::TorchCuda => "torch-cuda",
            Policy::Chosen(_) => "chosen",
        })
    }
}

impl FromStr for Policy {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let all = [Policy::Apex, Policy::Torch, Policy::TorchCuda];
        let found = all.into_iter().find(|p| p.to_string() == s);
        found.ok_or_else(|| format!("policies are apex, torch and torch-cuda, not {s:?}"))
    }
}

impl Policy {
    /// The class of an operator. `None`: the lists do not name it, but what it is composed of may be on them.
    pub fn class(&self, op: &OpDef) -> Option<Precision> {
        let lists = match self {
            Policy::Apex | Policy::Chosen(_) => return Some(op.precision),
            Policy::Torch => &CPU,
            Policy::TorchCuda => &CUDA,
        };
        let names = names(op);
        let on = |list: &[&str]| names.iter().any(|n| list.contains(&n.as_str()));
        if on(lists.low) {
            Some(Precision::Low)
        } else if on(lists.full) {
            Some(Precision::Full)
        } else if on(lists.widest) {
            Some(Precision::Widest)
        } else if on(lists.refused) {
            Some(op.precision)
        } else {
            None
        }
    }
}

/// True if a node is among those chosen to run low; `None` if it only moves what it is given.
pub(super) fn chosen(low: &BTreeSet<String>, graph: &Graph, node: &Node) -> Option<bool> {
    rounds(graph, node).then(|| low.contains(&graph.origin(node).node))
}

/// ATen names of an operator without overloads: its own, and those of the calls it is imported from.
fn names(op: &OpDef) -> Vec<String> {
    let targets = op.schemas.iter().filter_map(|s| Schema::parse(s).ok()).filter_map(|s| {
        let name = s.target.strip_prefix("aten.")?;
        Some(name.split('.').next().unwrap_or(name).to_string())
    });
    std::iter::once(op.name.to_string()).chain(targets).collect()
}

/// Names by what happens to them.
struct Lists {
    low: &'static [&'static str],
    full: &'static [&'static str],
    widest: &'static [&'static str],
    refused: &'static [&'static str],
}

/// PyTorch 2.13, the kernels registered for the dispatch key `AutocastCPU`
/// (`aten/src/ATen/autocast_mode.cpp`), as far as Headwater has the operators. `convolution` is what `conv1d`
/// to `conv3d` are in an export of core ATen, and `_fft_c2c` and its like what the listed `fft_fft` and
/// others are here. `lstm_layer` is where PyTorch calls the listed `mkldnn_rnn_layer`; a simple unit's state
/// is that of the listed `linear`, and a gated one's is f32.
static CPU: Lists = Lists {
    low: &[
        "_addmm_activation",
        "_convolution",
        "addbmm",
        "addmm",
        "baddbmm",
        "bmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "convolution",
        "linalg_vecdot",
        "linear",
        "lstm_layer",
        "matmul",
        "mm",
        "prelu",
        "rnn_layer",
        "scaled_dot_product_attention",
    ],
    full: &[
        "_fft_c2c",
        "_fft_c2r",
        "_fft_r2c",
        "adaptive_avg_pool3d",
        "adaptive_max_pool3d",
        "avg_pool3d",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "cdist",
        "cholesky",
        "cholesky_inverse",
        "cholesky_solve",
        "cosine_embedding_loss",
        "cross_entropy_loss",
        "ctc_loss",
        "fake_quantize_per_tensor_affine",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
        "geqrf",
        "grid_sampler",
        "grid_sampler_2d",
        "grid_sampler_3d",
        "hinge_embedding_loss",
        "huber_loss",
        "inverse",
        "kl_div",
        "l1_loss",
        "linalg_cholesky",
        "linalg_cholesky_ex",
        "linalg_cond",
        "linalg_eigh",
        "linalg_eigvalsh",
        "linalg_householder_product",
        "linalg_inv",
        "linalg_inv_ex",
        "linalg_lstsq",
        "linalg_matrix_rank",
        "linalg_qr",
        "linalg_solve",
        "linalg_svd",
        "linalg_svdvals",
        "linalg_tensorinv",
        "linalg_tensorsolve",
        "lu_solve",
        "margin_ranking_loss",
        "max_pool3d",
        "max_unpool2d",
        "max_unpool3d",
        "mse_loss",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "multilabel_margin_loss_forward",
        "nanquantile",
        "nll_loss",
        "nll_loss2d",
        "orgqr",
        "ormqr",
        "pinverse",
        "poisson_nll_loss",
        "prod",
        "qr",
        "quantile",
        "reflection_pad1d",
        "reflection_pad2d",
        "replication_pad1d",
        "replication_pad2d",
        "replication_pad3d",
        "smooth_l1_loss",
        "soft_margin_loss",
        "stft",
        "svd",
        "trace",
        "triangular_solve",
        "triplet_margin_loss",
    ],
    widest: &["cat", "index_copy", "stack"],
    refused: &[],
};

/// PyTorch 2.13, the lists of `ATen/autocast_mode.h` that the dispatch key `AutocastCUDA` registers, as far
/// as Headwater has the operators. `cross_entropy_loss` is not on them: it is `log_softmax` and `nll_loss`,
/// which both are. Layers of recurrent networks run in cuDNN, to which autocast gives low precision.
static CUDA: Lists = Lists {
    low: &[
        "_convolution",
        "addbmm",
        "addmm",
        "addmv",
        "addr",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "convolution",
        "einsum",
        "gru_cell",
        "gru_layer",
        "linalg_multi_dot",
        "linalg_vecdot",
        "linear",
        "lstm_cell",
        "lstm_layer",
        "matmul",
        "mm",
        "mv",
        "prelu",
        "rnn_layer",
        "rnn_relu_cell",
        "rnn_tanh_cell",
        "scaled_dot_product_attention",
    ],
    full: &[
        "_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "acos",
        "asin",
        "binary_cross_entropy_with_logits",
        "cdist",
        "cosine_embedding_loss",
        "cosine_similarity",
        "cosh",
        "cross_entropy_loss",
        "cumprod",
        "cumsum",
        "dist",
        "erfinv",
        "exp",
        "expm1",
        "group_norm",
        "hinge_embedding_loss",
        "huber_loss",
        "kl_div",
        "l1_loss",
        "layer_norm",
        "linalg_matrix_norm",
        "linalg_vector_norm",
        "log",
        "log10",
        "log1p",
        "log2",
        "log_softmax",
        "logsumexp",
        "margin_ranking_loss",
        "mse_loss",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "native_layer_norm",
        "nll_loss",
        "nll_loss2d",
        "norm",
        "pdist",
        "poisson_nll_loss",
        "pow",
        "prod",
        "reciprocal",
        "renorm",
        "rms_norm",
        "rsqrt",
        "sinh",
        "smooth_l1_loss",
        "soft_margin_loss",
        "softmax",
        "softplus",
        "sum",
        "tan",
        "triplet_margin_loss",
        "upsample_bicubic2d",
        "upsample_bilinear2d",
        "upsample_linear1d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_trilinear3d",
    ],
    widest: &[
        "addcdiv",
        "addcmul",
        "atan2",
        "bilinear",
        "cross",
        "dot",
        "grid_sampler",
        "index_put",
        "scatter_add",
        "tensordot",
        "vdot",
    ],
    refused: &["binary_cross_entropy"],
};
