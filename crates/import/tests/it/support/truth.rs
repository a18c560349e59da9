//! Goldens: an imported graph, lifted to float64, against what PyTorch recorded.

use headwater_core::graph::OutputRole;
use headwater_core::pass::{decompose, differentiate, upcast};
use headwater_core::tensor::{Tensor, TensorType};
use headwater_core::{DType, Registry, reference};
use headwater_import::{Dims, Imported, Program};
use safetensors::{Dtype, SafeTensors};
use std::path::Path;

fn lifted(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { dtype }
}

/// A recorded file.
pub struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    /// The one beside an archive.
    pub fn of(archive: &Path) -> Golden {
        Golden { bytes: std::fs::read(archive.with_extension("golden.safetensors")).unwrap() }
    }

    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    /// Names that begin so, without it.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        self.file().names().iter().filter_map(|n| n.strip_prefix(prefix)).map(String::from).collect()
    }

    /// A tensor, its floats lifted.
    pub fn tensor(&self, name: &str) -> Tensor {
        let file = self.file();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let dtype = match view.dtype() {
            Dtype::F64 => DType::F64,
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::I64 => DType::I64,
            Dtype::I32 => DType::I32,
            Dtype::BOOL => DType::Bool,
            other => panic!("{name} is of {other:?}"),
        };
        let t = Tensor::from_bytes(&TensorType::new(dtype, view.shape()), view.data());
        t.cast(lifted(dtype))
    }
}

/// Opens and binds an archive to the shapes of its golden's inputs.
pub fn import(archive: &Path, golden: &Golden) -> (Program, Imported) {
    let program = Program::open(archive).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
    let mut dims = Dims::new();
    for input in program.inputs() {
        let shape = golden.tensor(&format!("input.{}", input.position)).shape().to_vec();
        dims = dims.shape(&input.name, &shape);
    }
    let imported =
        program.bind(&dims, Registry::standard()).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
    (program, imported)
}

/// Runs forward and backward in float64 and compares everything that was recorded, norm-wise.
pub fn check(archive: &Path, tolerance: f64) {
    let golden = Golden::of(archive);
    let (program, imported) = import(archive, &golden);
    headwater_core::graph::verify::verify(&imported.graph).unwrap();
    let graph = decompose(upcast(&imported.graph, DType::F64).unwrap()).unwrap();
    let loss = graph.outputs[0].value;
    let forward = differentiate(graph, loss).unwrap();
    let mut inputs = Vec::new();
    for (i, input) in forward.graph.inputs.iter().enumerate() {
        inputs.push(match imported.stored.get(i).and_then(Option::as_ref) {
            Some(s) => {
                let ty = TensorType::new(s.dtype, s.layout.shape.clone());
                Tensor::from_bytes(&ty, &s.to_bytes()).cast(lifted(s.dtype))
            }
            None => {
                let user = program.inputs().iter().find(|u| u.name == input.name);
                golden.tensor(&format!("input.{}", user.unwrap_or_else(|| panic!("{}", input.name)).position))
            }
        });
    }
    let results =
        reference::run(&forward.graph, &inputs).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
    let mut found = std::collections::HashMap::new();
    for (o, t) in forward.graph.outputs.iter().zip(results) {
        let name = match o.role {
            OutputRole::Mutation(_) => format!("buffer.{}", o.name),
            _ => o.name.clone(),
        };
        found.insert(name, t);
    }
    for prefix in ["output.", "grad.", "buffer."] {
        for name in golden.names(prefix) {
            let name = format!("{prefix}{name}");
            let want = golden.tensor(&name);
            let got = found.remove(&name).unwrap_or_else(|| panic!("{}: no {name}", archive.display()));
            assert_eq!(
                (got.dtype(), got.shape()),
                (want.dtype(), want.shape()),
                "{}: {name}",
                archive.display()
            );
            let (got, want) = (got.to_f64(), want.to_f64());
            let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
            let error = norm(&mut got.iter().zip(&want).map(|(a, b)| a - b));
            let scale = norm(&mut want.iter().copied()).max(f64::MIN_POSITIVE);
            assert!(
                error <= tolerance * scale,
                "{}: {name} differs by {:e} of its norm\n got {:.6?}\nwant {:.6?}",
                archive.display(),
                error / scale,
                &got[..got.len().min(20)],
                &want[..want.len().min(20)]
            );
        }
    }
    // Nothing is written that PyTorch does not write.
    assert!(
        !found.keys().any(|k| k.starts_with("buffer.")),
        "{}: also {:?}",
        archive.display(),
        found.keys()
    );
}
