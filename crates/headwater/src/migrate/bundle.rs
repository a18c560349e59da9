//! The last step: the checkpoint in PyTorch's names, read back from disk.

use super::Found;
use super::training::Trained;
use crate::core::DType;
use crate::report::{Block, Table, text};
use crate::runtime::Dataset;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// 8: what is left to use.
pub(super) fn bundle(t: Trained, out: &Path) -> Result<((), Found)> {
    let checkpoint = t.checkpoint.context("no checkpoint was written")?;
    let weights = checkpoint.join("model.safetensors");
    let file = Dataset::open(&weights)?;
    let finite = file.columns().iter().all(|c| finite(c.ty.dtype, c.bytes()));
    let mut table = Table::new("Files", &["file", ">bytes", "what"]);
    let mut list = |path: PathBuf, what: &str| {
        let bytes = std::fs::metadata(&path).map_or(0, |m| m.len() as usize);
        table.row([path.display().to_string(), text::bytes(bytes), what.to_string()]);
    };
    list(weights, "parameters and buffers under their PyTorch names: load_state_dict takes them");
    list(checkpoint.join("state.safetensors"), "the optimizer's moments, for --resume");
    list(out.join("log.jsonl"), "every event of the run");
    let summary = format!(
        "{} tensors in {}, {}",
        file.columns().len(),
        checkpoint.display(),
        if finite { "all finite" } else { "SOME NOT FINITE" }
    );
    let found = Found::new(finite && !file.columns().is_empty(), summary)
        .value("checkpoint", checkpoint.display().to_string())
        .value("tensors", file.columns().len())
        .value("bytes", std::fs::metadata(checkpoint.join("model.safetensors")).map_or(0, |m| m.len()))
        .value("finite", finite);
    Ok(((), found.with(Block::Table(table))))
}

/// True if no element is inf or NaN, by its bits and in place: a checkpoint may be larger than what memory is
/// left.
fn finite(dtype: DType, bytes: &[u8]) -> bool {
    let size = dtype.size();
    // The exponent, all ones, in the element's last bytes.
    let mask: u64 = match dtype {
        DType::F16 => 0x7c00,
        DType::BF16 => 0x7f80,
        DType::F32 => 0x7f80_0000,
        DType::F64 => 0x7ff0_0000_0000_0000,
        _ => return true,
    };
    bytes.chunks_exact(size).all(|element| {
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(element);
        u64::from_le_bytes(bits) & mask != mask
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Tensor;

    #[test]
    fn what_is_not_finite_is_seen_in_every_dtype() {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let of = |x: f64| finite(dtype, &Tensor::float(dtype, [3], vec![0.0, x, -1.0]).to_bytes());
            assert!(of(1.5) && of(-0.0) && of(if dtype == DType::F16 { 65504.0 } else { 1e38 }), "{dtype}");
            assert!(!of(f64::INFINITY) && !of(f64::NEG_INFINITY) && !of(f64::NAN), "{dtype}");
        }
        assert!(finite(DType::I64, &[0xff; 16]));
    }
}
