//! The lists, against those of the libraries they come from, and the casts.

use super::*;
use crate::graph::{self, Graph, InputRole, OutputRole};
use crate::ops::linear::linear::LINEAR;
use crate::ops::norm::batch_norm::BATCH_NORM;
use crate::ops::norm::softmax::SOFTMAX;
use crate::ops::pointwise::to::TO;
use crate::ops::{Precision, Registry, schema::Schema};
use crate::{Attrs, Builder, TensorType, pass};
use std::collections::{BTreeMap, BTreeSet};

/// ATen names that can be imported, with the class a policy gives them.
fn classes(policy: Policy) -> BTreeMap<String, Option<Precision>> {
    let mut out = BTreeMap::new();
    for op in Registry::standard().operators() {
        for schema in op.schemas.iter().filter_map(|s| Schema::parse(s).ok()) {
            if let Some(name) = schema.target.strip_prefix("aten.") {
                out.insert(name.split('.').next().unwrap().to_string(), policy.class(op));
            }
        }
    }
    out
}

#[test]
fn apex_lists_are_apexs() {
    // apex/amp/lists/{functional,torch,tensor}_overrides.py, the last tree with `apex.amp`, in ATen names.
    let low = "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d linear matmul mm addmm \
               addmv mv addr bmm addbmm baddbmm prelu scaled_dot_product_attention";
    let full = "exp expm1 log log10 log2 pow reciprocal rsqrt acos asin cosh sinh tan erfinv softplus softmax _softmax \
                log_softmax _log_softmax gelu layer_norm native_layer_norm group_norm native_group_norm rms_norm norm \
                linalg_vector_norm sum prod cumsum cumprod std var cosine_similarity upsample_nearest1d upsample_nearest2d \
                upsample_bilinear2d upsample_bicubic2d cross_entropy_loss nll_loss nll_loss_forward mse_loss l1_loss kl_div \
                binary_cross_entropy_with_logits smooth_l1_loss huber_loss";
    let widest = "add sub mul div addcmul addcdiv atan2 eq ne lt le gt ge cat stack";
    let found = classes(Policy::Apex);
    let listed = [(low, Precision::Low), (full, Precision::Full), (widest, Precision::Widest)];
    let wrong: Vec<_> = listed
        .into_iter()
        .flat_map(|(names, class)| names.split_whitespace().map(move |name| (name, class)))
        .filter(|(name, class)| found.get(*name) != Some(&Some(*class)))
        .collect();
    assert!(wrong.is_empty(), "not as listed: {wrong:?}");
    assert!(matches!(found["binary_cross_entropy"], Some(Precision::Refused(_))));
    // Ours beside apex's. Low: `einsum` and `_grouped_mm` are matrix products, and so are `bilinear` and the
    // layers of recurrent networks, which apex casts too, and `dot` and `vdot`, where apex takes the widest.
    // Full: Fourier transforms, distances, decompositions of matrices, norms, integrals, quantiles, losses
    // and places of pixels; other names and backward calls of what apex lists, functions as steep as those,
    // interpolation, sums of exponentials, and norms that apex has no function of. Widest: operators that
    // write one tensor into another, and products and lengths of elements.
    let beside = [
        (
            Precision::Low,
            "_convolution _grouped_mm _prelu_kernel bilinear dot _scaled_dot_product_flash_attention_for_cpu einsum gru \
             chain_matmul gru_cell inner linalg_matmul conv_tbc linalg_multi_dot linalg_vecdot lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell tensordot vdot",
        ),
        (
            Precision::Full,
            "_fft_c2c _fft_c2r _fft_r2c _fused_rms_norm _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d \
             _upsample_nearest_exact2d upsample_linear1d _weight_norm arccos arcsin digamma exp2 gelu_backward instance_norm lgamma log1p logaddexp logcumsumexp logsumexp nll_loss2d \
             nll_loss2d_forward nll_loss_nd pow_ softplus_backward special_digamma special_erfinv special_exp2 \
             special_expm1 special_gammaln special_log1p special_xlogy std_mean var_mean xlogy _cdist_forward cdist \
             cholesky cumulative_trapezoid det inverse linalg_cholesky linalg_det linalg_inv linalg_slogdet \
             linalg_solve linalg_svdvals logdet quantile slogdet trapezoid trapz triplet_margin_loss \
             _upsample_nearest_exact3d affine_grid_generator cholesky_inverse cholesky_solve cosine_embedding_loss ctc_loss dist \
             hinge_embedding_loss linalg_matrix_norm linalg_norm linalg_solve_triangular margin_ranking_loss \
             pdist _pdist_forward special_entr special_ndtr special_xlog1py _linalg_eigh _linalg_svd corrcoef cov linalg_eigh linalg_eigvalsh linalg_householder_product linalg_lstsq \
             linalg_matrix_exp linalg_matrix_power linalg_pinv linalg_qr linalg_svd matrix_exp matrix_power \
             multilabel_margin_loss multilabel_margin_loss_forward orgqr pinverse qr renorm svd \
             multi_margin_loss nanmean nansum pairwise_distance poisson_nll_loss sinc soft_margin_loss special_log_softmax \
             special_logsumexp special_sinc special_softmax trace triangular_solve upsample_nearest3d \
             upsample_trilinear3d i0 special_i0 special_i0e special_i1 special_i1e special_erfcx special_log_ndtr special_ndtri \
             polygamma special_polygamma special_psi special_zeta mvlgamma special_multigammaln logaddexp2 \
             embedding_renorm_ linalg_cholesky_ex linalg_inv_ex linalg_solve_ex linalg_lu linalg_lu_factor linalg_lu_factor_ex \
             linalg_lu_solve lu_solve lu_unpack linalg_matrix_rank linalg_cond geqrf ormqr linalg_tensorinv linalg_tensorsolve \
             linalg_vander vander sum_to_size _linalg_det _linalg_slogdet _linalg_solve_ex",
        ),
        (
            Precision::Widest,
            "arctan2 block_diag concat concatenate cross grid_sampler grid_sampler_2d grid_sampler_3d kron dstack ger greater \
             greater_equal hstack hypot index_add index_copy index_put less less_equal linalg_cross multiply not_equal outer row_stack \
             rsub scatter scatter_add scatter_reduce subtract divide true_divide vstack _unsafe_index_put column_stack \
             index_reduce ldexp put",
        ),
    ];
    let mut others = Vec::new();
    for (class, beside) in beside {
        let known: BTreeSet<&str> =
            [low, full, widest, beside].into_iter().flat_map(str::split_whitespace).collect();
        let new = found.iter().filter(|(n, c)| **c == Some(class) && !known.contains(n.as_str()));
        others.extend(new.map(|(n, _)| (n.as_str(), class)));
        let gone: Vec<_> =
            beside.split_whitespace().filter(|n| found.get(*n) != Some(&Some(class))).collect();
        others.extend(gone.into_iter().map(|n| (n, class)));
    }
    assert!(others.is_empty(), "on no list here, or listed and not so: {others:?}");
}

/// `loss = mse(softmax(bn(x · wᵀ)) · wᵀ, target)`-like: a weight used twice, batch norm, a buffer, a
/// converted norm.
fn model() -> Graph {
    let mut b = Builder::new();
    let f32s = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let w = b.parameter("w", DType::F32, &[4, 4]);
    let gamma = b.parameter("gamma", DType::F32, &[4]);
    let [mean, var, scale] =
        ["mean", "var", "scale"].map(|n| b.input(n, f32s(&[4]), InputRole::Buffer { persistent: true }));
    let x = b.input("x", f32s(&[2, 4]), InputRole::User);
    let h = b.one(&LINEAR, &[x, w], Attrs::new()).unwrap();
    let attrs = Attrs::new().with("training", true).with("momentum", 0.1).with("eps", 1e-5);
    let bn = b.apply(&BATCH_NORM, &[Some(h), Some(gamma), None, Some(mean), Some(var)], attrs).unwrap();
    let p = b.one(&SOFTMAX, &[bn[0]], Attrs::new().with("dim", -1)).unwrap();
    // `x.float()` and `.to(x.dtype)` as they are in an export in f32.
    let up = b.one(&TO, &[p], Attrs::new().with("dtype", DType::F32)).unwrap();
    let up = b.mul(up, up).unwrap();
    let down = b.one(&TO, &[up], Attrs::new().with("dtype", DType::F32)).unwrap();
    let twice = b.add(scale, scale).unwrap();
    let scaled = b.mul(down, twice).unwrap();
    let y = b.one(&LINEAR, &[scaled, w], Attrs::new()).unwrap();
    let loss = b.sum(y, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.output("mean", bn[3], OutputRole::Mutation(mean));
    b.output("var", bn[4], OutputRole::Mutation(var));
    b.finish()
}

fn mixed(settings: PrecisionSettings) -> Mixed {
    let m = apply(&model(), &settings.properties(&Target::default()).unwrap()).unwrap();
    crate::graph::verify(&m.graph).unwrap();
    m
}

/// Dtypes the nodes compute in, in order.
fn dtypes(m: &Mixed) -> Vec<&'static str> {
    m.decisions.iter().map(|d| d.dtype.map_or("", DType::name)).collect()
}

fn casts_of(m: &Mixed, name: &str) -> usize {
    let v = m.graph.input(name).unwrap().value;
    m.graph.nodes.iter().filter(|n| *n.op == TO && n.inputs[0] == Some(v)).count()
}

#[test]
fn o1_casts_around_operators_and_each_weight_once() {
    let level = PrecisionSettings { level: Level::O1, ..PrecisionSettings::default() };
    let m = mixed(PrecisionSettings { dtype: Some(DType::F16), ..level });
    // linear, batch norm, softmax, to, mul, to, add, mul, linear, sum
    assert_eq!(dtypes(&m), ["f16", "f32", "f32", "f32", "f32", "f32", "f32", "f32", "f16", "f32"]);
    assert_eq!(casts_of(&m, "w"), 1);
    assert!(m.graph.inputs.iter().all(|i| m.graph.ty(i.value).dtype == DType::F32));
    // Softmax is on no list of the CPU's autocast, sum on none either.
    let m = mixed(PrecisionSettings { policy: Some(Policy::Torch), ..level });
    assert_eq!(m.decisions.iter().find(|d| *d.op == SOFTMAX).unwrap().dtype, Some(DType::BF16));
    assert_eq!(m.graph.ty(m.graph.outputs[0].value).dtype, DType::F32, "the loss");
    let m = mixed(PrecisionSettings { policy: Some(Policy::TorchCuda), ..level });
    assert_eq!(m.decisions.iter().find(|d| *d.op == SOFTMAX).unwrap().dtype, Some(DType::F32));
}

#[test]
fn o2_keeps_batch_norm_and_o3_does_not() {
    let stored = |m: &Mixed, name: &str| m.graph.ty(m.graph.input(name).unwrap().value).dtype;
    let low = DType::BF16;
    let m = mixed(PrecisionSettings { level: Level::O2, ..PrecisionSettings::default() });
    let want =
        [("w", low), ("gamma", DType::F32), ("mean", DType::F32), ("scale", DType::F32), ("x", DType::F32)];
    want.iter().for_each(|&(name, dtype)| assert_eq!(stored(&m, name), dtype, "{name}"));
    // The model's conversions to f32, without lines that tell otherwise; the product computes in its weight's
    // type.
    assert_eq!(dtypes(&m), ["bf16", "f32", "bf16", "f32", "f32", "f32", "f32", "f32", "bf16", "bf16"]);
    assert_eq!(m.graph.ty(m.graph.outputs[0].value).dtype, DType::F32, "the loss");
    let m = mixed(PrecisionSettings { level: Level::O3, ..PrecisionSettings::default() });
    let want = [("w", low), ("gamma", low), ("mean", low), ("scale", DType::F32)];
    want.iter().for_each(|&(name, dtype)| assert_eq!(stored(&m, name), dtype, "{name}"));
    let m = mixed(PrecisionSettings {
        level: Level::O3,
        keep_batchnorm: Some(true),
        ..PrecisionSettings::default()
    });
    assert_eq!((stored(&m, "gamma"), stored(&m, "mean")), (DType::F32, DType::F32));
    // O0 is the graph as it was.
    let m = mixed(PrecisionSettings::default());
    assert_eq!(m.graph.to_string(), pass::decompose::expand(model(), &|_| false).unwrap().to_string());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let base = PrecisionSettings::default();
    let refused = |s: PrecisionSettings| s.properties(&Target::default()).unwrap_err().to_string();
    let o2 = PrecisionSettings { level: Level::O2, ..base.clone() };
    assert!(
        refused(PrecisionSettings { dtype: Some(DType::F32), ..o2.clone() }).contains("f16 or bf16, not f32")
    );
    assert!(
        refused(PrecisionSettings { dtype: Some(DType::F32), ..o2.clone() }).contains("f16 or bf16, not f32")
    );
    assert!(
        refused(PrecisionSettings { policy: Some(Policy::Torch), ..o2.clone() })
            .contains("at O2 there are no such casts")
    );
    let o1 = PrecisionSettings { level: Level::O1, ..base.clone() };
    assert!(
        refused(PrecisionSettings { keep_batchnorm: Some(false), ..o1.clone() })
            .contains("at O1 all weights are f32")
    );
    assert!(
        refused(PrecisionSettings { masters: Some(true), ..base.clone() })
            .contains("at O0 the weights are f32")
    );
    assert!(
        PrecisionSettings { masters: Some(true), level: Level::O3, ..base.clone() }
            .properties(&Target::default())
            .unwrap()
            .masters
    );
    assert!("O4".parse::<Level>().unwrap_err().contains("O0, O1, O2 and O3"));
}

#[test]
fn the_low_precision_is_one_that_the_target_multiplies() {
    let mut target = Target::default();
    let at = |level, dtype, target: &Target| {
        let found = PrecisionSettings { level, dtype, ..PrecisionSettings::default() }.properties(target);
        found.map(|p| p.dtype).map_err(|e| e.message)
    };
    let (f16, bf16) = (DType::F16, DType::BF16);
    assert_eq!(at(Level::O2, None, &target), Ok(bf16));
    target.products.retain(|p| p.operands != bf16);
    for level in [Level::O1, Level::O2, Level::O3] {
        assert_eq!(at(level, None, &target), Ok(f16));
        assert_eq!(at(level, Some(f16), &target), Ok(f16));
        assert_eq!(at(level, Some(bf16), &target).unwrap_err(), "generic has no products of bf16: take f16");
    }
    target.products.retain(|p| p.operands != f16);
    assert_eq!(
        at(Level::O2, None, &target).unwrap_err(),
        "generic has no products of 16-bit floats: take O0, which is all f32"
    );
    assert!(at(Level::O0, None, &target).is_ok());
}

#[test]
fn a_refused_loss_says_why() {
    use crate::ops::loss::binary_cross_entropy::BINARY_CROSS_ENTROPY;
    let mut b = Builder::new();
    let w = b.parameter("w", DType::F32, &[2, 2]);
    let target = b.input("t", TensorType::new(DType::F32, [2, 2]), InputRole::User);
    let y = b.one(&LINEAR, &[w, w], Attrs::new()).unwrap();
    let loss = b.one(&BINARY_CROSS_ENTROPY, &[y, target], Attrs::new().with("reduction", 1)).unwrap();
    b.output("loss", loss, OutputRole::User);
    let graph = b.finish();
    let at = |policy| {
        let s = PrecisionSettings { level: Level::O1, policy: Some(policy), ..PrecisionSettings::default() };
        apply(&graph, &s.properties(&Target::default()).unwrap()).map(|m| m.decisions[1].dtype)
    };
    let e = at(Policy::Apex).unwrap_err().to_string();
    assert!(e.contains("refused in bf16") && e.contains("with_logits"), "{e}");
    assert!(at(Policy::TorchCuda).is_err());
    // The CPU's autocast takes it, in f32.
    assert_eq!(at(Policy::Torch).unwrap(), Some(DType::F32));
}

/// `y = to(x · wᵀ)` and `loss = sum(to(y · y) · b)`, from the source lines of the two conversions.
fn converting(up: &str, down: &str) -> Graph {
    let mut b = Builder::new();
    let w = b.parameter("w", DType::F32, &[4, 4]);
    let x = b.input("x", TensorType::new(DType::F32, [2, 4]), InputRole::User);
    let bias = b.parameter("bias", DType::F32, &[4]);
    let to = |b: &mut Builder, v, code: &str| {
        b.at(graph::Origin { code: code.into(), ..Default::default() });
        b.one(&TO, &[v], Attrs::new().with("dtype", DType::F32)).unwrap()
    };
    let h = b.one(&LINEAR, &[x, w], Attrs::new()).unwrap();
    let wide = to(&mut b, h, up);
    let square = b.mul(wide, wide).unwrap();
    let back = to(&mut b, square, down);
    let scaled = b.mul(back, bias).unwrap();
    let loss = b.sum(scaled, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.finish()
}

#[test]
fn a_models_own_conversions_bind_by_what_their_line_says() {
    let at = |level, policy, up: &str, down: &str| {
        let s = PrecisionSettings { level, policy, ..PrecisionSettings::default() };
        let m = apply(&converting(up, down), &s.properties(&Target::default()).unwrap()).unwrap();
        crate::graph::verify(&m.graph).unwrap();
        // linear, to, mul, to, mul, sum
        dtypes(&m).join(" ")
    };
    let named = "h = h.float()";
    for level in [Level::O2, Level::O3] {
        assert_eq!(at(level, None, named, "y = y.to(dtype)"), "bf16 f32 f32 bf16 bf16 bf16");
        assert_eq!(at(level, None, named, "y = y.to(torch.float32)"), "bf16 f32 f32 f32 f32 f32");
        // A conversion to the dtype of another tensor is none where all are low.
        assert_eq!(at(level, None, "h = h.to(x.dtype)", "y = y.to(dtype)"), "bf16 bf16 bf16 bf16 bf16 bf16");
        // Without lines all are to f32, which loses nothing.
        assert_eq!(at(level, None, "", ""), "bf16 f32 f32 f32 f32 f32");
    }
    // Under autocast weights stay f32, and so does what they are multiplied with.
    let o1 = |up, down| at(Level::O1, Some(Policy::Torch), up, down);
    assert_eq!(o1(named, "y = y.float()"), "bf16 f32 f32 f32 f32 f32");
    assert_eq!(o1(named, "y = y.to(dtype)"), "bf16 f32 f32 bf16 f32 f32");
    assert_eq!(o1("", ""), "bf16 f32 f32 f32 f32 f32");
}

#[test]
fn constants_saturate_when_they_are_cast() {
    use crate::ops::create::full::FULL;
    use crate::ops::pointwise::add::ADD;
    let min = f32::MIN as f64;
    for (dtype, least) in [(DType::BF16, -DType::BF16.max_value()), (DType::F16, -65504.0)] {
        let mut b = Builder::new();
        let w = b.parameter("w", DType::F32, &[4, 4]);
        let mask = b.input("mask", TensorType::new(DType::F32, [4, 4]), InputRole::Constant);
        let h = b.one(&LINEAR, &[w, w], Attrs::new()).unwrap();
        let masked = b.one(&ADD, &[h, mask], Attrs::new()).unwrap();
        let attrs =
            Attrs::new().with("size", vec![4i64, 4]).with("fill_value", min).with("dtype", DType::F32);
        let full = b.one(&FULL, &[], attrs).unwrap();
        let other = b.one(&ADD, &[h, full], Attrs::new()).unwrap();
        let loss = b.sum(masked, &[0, 1], false).unwrap();
        for (name, v) in [("loss", loss), ("masked", masked), ("full", other)] {
            b.output(name, v, OutputRole::User);
        }
        let s = PrecisionSettings { level: Level::O3, dtype: Some(dtype), ..PrecisionSettings::default() };
        let graph = apply(&b.finish(), &s.properties(&Target::default()).unwrap()).unwrap().graph;
        let zeros = crate::Tensor::full(&TensorType::new(dtype, [4, 4]), 0.0);
        let mut elements = vec![0.0; 16];
        elements[..3].copy_from_slice(&[min, f64::NEG_INFINITY, -2.0]);
        let mask = crate::Tensor::float(DType::F32, [4, 4], elements);
        let out = crate::reference::run(&graph, &[zeros, mask]).unwrap();
        assert_eq!(out[1].floats()[..4], [least, f64::NEG_INFINITY, -2.0, 0.0], "{dtype}");
        assert!(out[2].floats().iter().all(|&x| x == least), "{dtype}");
    }
}
