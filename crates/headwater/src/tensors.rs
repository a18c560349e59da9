//! Small safetensors files as reference tensors: goldens, and the inputs and outputs of single operators. Big
//! data and checkpoints go through the runtime, which does not hold them in memory.

use crate::core::{DType, Shape, Tensor, TensorType};
use crate::runtime::data::{from_safetensors, safetensors_file, to_safetensors};
use anyhow::{Context, Error, Result, bail};
use safetensors::{SafeTensors, tensor::TensorView};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Tensors by name, with the file's metadata.
#[derive(Clone, Debug, Default)]
pub struct TensorFile {
    /// The tensors.
    pub tensors: BTreeMap<String, Tensor>,
    /// The metadata.
    pub metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Reads a whole file.
    ///
    /// # Errors
    /// If it cannot be read, is no safetensors file, or holds a dtype Headwater has not.
    pub fn read(path: &Path) -> Result<TensorFile> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&bytes).with_context(|| format!("{} is no usable safetensors file", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<TensorFile> {
        let file = safetensors_file(bytes).map_err(Error::msg)?;
        let (_, head) = SafeTensors::read_metadata(bytes)?;
        let metadata = head.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            let dtype = from_safetensors(view.dtype())
                .with_context(|| format!("tensor {name} is {:?}", view.dtype()))?;
            let ty = TensorType::new(dtype, view.shape().to_vec());
            tensors.insert(name, Tensor::from_bytes(&ty, view.data()));
        }
        Ok(TensorFile { tensors, metadata })
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let bytes: Vec<(&String, &Tensor, Vec<u8>)> =
            self.tensors.iter().map(|(n, t)| (n, t, t.to_bytes())).collect();
        let views = bytes
            .iter()
            .map(|(n, t, b)| {
                Ok((n.as_str(), TensorView::new(to_safetensors(t.dtype()), t.shape().to_vec(), b)?))
            })
            .collect::<Result<Vec<_>>>()?;
        let metadata: HashMap<String, String> = self.metadata.clone().into_iter().collect();
        let metadata = (!metadata.is_empty()).then_some(metadata);
        let out = safetensors::serialize(views, metadata)?;
        std::fs::write(path, out).with_context(|| format!("cannot write {}", path.display()))
    }

    /// A tensor that must be there.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        match self.tensors.get(name) {
            Some(t) => Ok(t),
            None => {
                let have: Vec<_> = self.tensors.keys().map(String::as_str).take(12).collect();
                bail!("there is no tensor `{name}`; the file has {}", have.join(", "))
            }
        }
    }

    /// A vector of numbers that must be there.
    pub fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        Ok(self.get(name)?.to_f64())
    }
}

/// The SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// If it cannot be read.
pub fn sha256(path: &Path) -> Result<String> {
    let failed = || format!("cannot read {}", path.display());
    let mut file = std::fs::File::open(path).with_context(failed)?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash).with_context(failed)?;
    Ok(hexadecimal(hash))
}

/// The SHA-256 of bytes, in hexadecimal.
pub fn sha256_of(bytes: &[u8]) -> String {
    hexadecimal(Sha256::new().chain_update(bytes))
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// A scalar tensor.
pub fn scalar(dtype: DType, x: f64) -> Tensor {
    Tensor::full(&TensorType { dtype, shape: Shape::default() }, x)
}
