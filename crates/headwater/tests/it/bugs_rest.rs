//! Small models and files whose results were wrong, or were refused as a defect: ties of medians, reductions
//! of nothing, tokenizers, tables, and sizes of 1.

use crate::common::agrees;
use headwater::check::{CheckReport, check};
use headwater::core::DType;
use headwater::devices;
use headwater::golden::Golden;
use headwater::model::Model;
use headwater::tensors::TensorFile;
use std::path::{Path, PathBuf};
use std::process::Command;

fn bugs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/bugs").join(name)
}

fn checked(name: &str, precision: DType, on: &str) -> CheckReport {
    let model = Model::open(&bugs(&format!("{name}.pt2"))).unwrap_or_else(|e| panic!("{name}: {e:#}"));
    let golden = Golden::read(&bugs(&format!("{name}.golden.safetensors"))).unwrap();
    let device = devices::open(on, 2).unwrap();
    check(&model, &golden, precision, &*device)
        .unwrap_or_else(|e| panic!("{name} in {precision} on {on}: {e:#}"))
}

/// Runs the command line; what it says, and whether it succeeds.
fn headwater(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_headwater")).args(args).output().unwrap();
    let said = [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    (output.status.success(), said.concat())
}

const DEVICES: [&str; 3] = ["cpu", "ascend-sim:910b1", "ascend-sim:310p"];

#[test]
fn ties_share_a_medians_gradient_and_reductions_of_nothing_are_pytorchs() {
    let names = [
        "median_ties",
        "median_even_ties",
        "median_dim_ties",
        "median_zeros_of_both_signs",
        "nanmedian_ties",
        "nanmedian_ties_beside_nan",
        "extremes_ties",
        "empty_sum_of_slice",
        "empty_mean",
        "empty_embedding_sum",
    ];
    for name in names {
        for device in DEVICES {
            for precision in [DType::F64, DType::F32, DType::F16] {
                let report = checked(name, precision, device);
                let wrong: Vec<_> = report.compared.iter().filter(|c| !agrees(c, precision)).collect();
                assert!(
                    wrong.is_empty() && report.missing.is_empty(),
                    "{name} in {precision} on {device}: {wrong:?} {:?}",
                    report.missing
                );
                assert!(report.compared.len() > 1, "{name} compares too little");
                assert!(report.departures.is_empty(), "{:?}", report.departures);
            }
        }
    }
}

#[test]
fn what_pytorch_gets_wrong_is_said_beside_the_difference() {
    for (name, operator, what) in [
        ("pytorch_wrong_scatter_amin", "scatter", "gives it a share of the gradient"),
        ("pytorch_wrong_scatter_amax", "scatter", "gives it a share of the gradient"),
        ("pytorch_wrong_index_reduce_amax", "index_reduce", "gives it a share of the gradient"),
        ("pytorch_wrong_bag_last_offset", "embedding_bag", "takes the indices behind it into the last bag"),
        (
            "pytorch_wrong_bag_last_offset_mean",
            "embedding_bag",
            "takes the indices behind it into the last bag",
        ),
        ("pytorch_wrong_negative_scale_causal", "scaled_dot_product_attention", "gives NaN"),
    ] {
        let report = checked(name, DType::F64, "cpu");
        assert!(!report.passed(), "{name} agrees: PyTorch is no longer wrong");
        let said = report.evidence().join("\n");
        assert!(said.contains(&format!("PyTorch may be wrong here: {operator}, at ")), "{said}");
        assert!(said.contains(what), "{said}");
    }
}

#[test]
fn a_size_of_1_that_squeeze_drops_is_refused_with_a_way_out() {
    let (model, golden) = (bugs("squeeze_batch_one.pt2"), bugs("squeeze_batch_one.golden.safetensors"));
    let (ok, said) = headwater(&["check", model.to_str().unwrap(), golden.to_str().unwrap()]);
    assert!(!ok && said.contains("HW-I014") && said.contains("x.squeeze(dim)"), "{said}");
    let (ok, said) = headwater(&["inspect", model.to_str().unwrap(), "--batch", "2"]);
    assert!(ok, "{said}");
}

#[test]
fn a_batch_beyond_all_sizes_is_an_error_of_ours() {
    let model = bugs("inspect_simulated_large_batch.pt2");
    for batch in ["9223372036854775807", "9223372036854775808", "18446744073709551615"] {
        let (ok, said) = headwater(&["inspect", model.to_str().unwrap(), "--batch", batch]);
        assert!(!ok && said.contains("HW-") && !said.contains("conversion"), "{batch}: {said}");
    }
}

#[test]
fn files_of_other_writers_are_read_right() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    let predict = |model: &str, data: &str| {
        let (model, data) = (bugs(model), bugs(data));
        let args = [
            model.to_str().unwrap(),
            "--data",
            data.to_str().unwrap(),
            "--out",
            out.to_str().unwrap(),
            "--overwrite",
        ];
        let (ok, said) = headwater(&[&["predict"], &args[..]].concat());
        assert!(ok, "{said}");
        let file = TensorFile::read(&out).unwrap();
        let rows = file.tensors.values().find(|t| t.shape().rank() == 2).unwrap();
        (rows.shape().to_vec(), rows.to_f64())
    };
    // The first row and the last, as pyarrow reads them.
    let (shape, got) = predict("parquet_rows_span_pages.pt2", "parquet_rows_span_pages.parquet");
    assert_eq!(shape, [11, 3]);
    let ends = [&got[..3], &got[30..]].concat();
    let want = [0.12573022, -0.13210486, 0.64042264, -1.0096182, -0.20917557, -0.15922502];
    assert_eq!(ends, want.map(|x: f32| x as f64));
    // Hugging Face's tokens of each line.
    for (folder, want) in [
        ("tokenizer_added_special_token", vec![vec![18, 19], vec![0, 18]]),
        ("tokenizer_bpe_dropout", vec![vec![36, 42, 39, 40], vec![41, 36, 40]]),
        (
            "tokenizer_regex_word_class",
            vec![vec![2, 3, 4], vec![5, 3, 6, 3, 7, 3, 8], vec![9, 10, 11], vec![12, 3, 13]],
        ),
    ] {
        let (shape, got) = predict("tokens_out.pt2", folder);
        assert_eq!(shape, [want.len(), 24], "{folder}");
        let want = want.into_iter().flat_map(|mut ids: Vec<i64>| {
            ids.resize(24, 0);
            ids
        });
        assert_eq!(got, want.map(|id| id as f64).collect::<Vec<_>>(), "{folder}");
    }
}
