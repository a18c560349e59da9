//! Operators whose kernels can be had alone, for shapes that a user names.

use anyhow::{Context, Result, bail, ensure};
use headwater_ascend::Chip;
use headwater_ascend::kernel::{Elem, Program, finding};
use headwater_ascend::kernels::{
    EmbeddingGrad, Operand, RmsNorm, Rung, Stages, add, embedding_grad, rms_norm, rms_norm_grad,
    rms_norm_grad_gamma,
};
use std::collections::BTreeMap;

/// Bytes of a tile of `add`: six of them are in UB.
const TILE: u64 = 16 << 10;

/// Elements that no chip's memory holds.
const MOST: u64 = 1 << 40;

/// An operator whose kernels can be had alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operator {
    /// Elementwise sum.
    Add,
    /// RMS norm of rows.
    RmsNorm,
    /// Gradients of an RMS norm.
    RmsNormGrad,
    /// Dense gradient of an embedding's table.
    EmbeddingGrad,
}

/// Kernels for one dtype and shape.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Type of the elements, f16 or f32.
    pub elem: Elem,
    /// Type of the indices, i32 or i64, where there are some.
    pub index: Option<Elem>,
    /// Sizes as [`Operator::sizes`] gives them.
    pub sizes: [u64; 3],
    /// Kernels in the order of their launches, under names of their own.
    pub kernels: Vec<Kernel>,
    /// Bytes of workspace that launches of one family share.
    pub workspace: u64,
}

/// A kernel and its place in a sequence of launches.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Family: launches of one family for one dtype and shape follow each other.
    pub family: &'static str,
    /// The program.
    pub program: Program,
    /// An operand for each parameter, where launches share a workspace; else they are those of the operator,
    /// in order.
    pub operands: Vec<Operand>,
    /// Blocks that have work; none: one for each core.
    pub blocks: Option<u32>,
}

impl Kernel {
    fn new(family: &'static str, program: Program) -> Kernel {
        Kernel { family, program, operands: Vec::new(), blocks: None }
    }
}

/// Kernels for several shapes.
#[derive(Clone, Debug, Default)]
pub struct Variants {
    /// Variants that were built.
    pub built: Vec<Variant>,
    /// Dtypes that the chip has no kernel for, by dtype and shape, with the reason.
    pub refused: BTreeMap<String, String>,
}

impl Operator {
    /// Every one.
    pub const ALL: [Operator; 4] =
        [Operator::Add, Operator::RmsNorm, Operator::RmsNormGrad, Operator::EmbeddingGrad];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Operator::Add => "add",
            Operator::RmsNorm => "rms_norm",
            Operator::RmsNormGrad => "rms_norm_grad",
            Operator::EmbeddingGrad => "embedding_grad",
        }
    }

    /// The operator of a name.
    pub fn from_name(name: &str) -> Option<Operator> {
        Operator::ALL.into_iter().find(|operator| operator.name() == name)
    }

    /// The operators that training with it needs: itself, and its gradient where that is kernels too.
    pub const fn with_gradient(self) -> &'static [Operator] {
        match self {
            Operator::Add => &[Operator::Add],
            Operator::RmsNorm => &[Operator::RmsNorm, Operator::RmsNormGrad],
            Operator::RmsNormGrad => &[Operator::RmsNormGrad],
            Operator::EmbeddingGrad => &[Operator::EmbeddingGrad],
        }
    }

    /// Number of sizes of a shape that kernels depend on.
    pub const fn rank(self) -> usize {
        match self {
            Operator::Add => 1,
            Operator::RmsNorm | Operator::RmsNormGrad => 2,
            Operator::EmbeddingGrad => 3,
        }
    }

    /// Sizes of a shape in words.
    pub const fn meaning(self) -> &'static str {
        match self {
            Operator::Add => "elements",
            Operator::RmsNorm | Operator::RmsNormGrad => "rows x columns",
            Operator::EmbeddingGrad => "indices x rows of the table x columns",
        }
    }

    /// A shape on the command line.
    pub const fn example(self) -> &'static str {
        if self.rank() == 3 { "8192x32000x1024" } else { "4096x4096" }
    }

    /// Sizes that kernels depend on, followed by ones, of a shape: of any tensor for `add`.
    ///
    /// # Errors
    /// Another number of sizes, a size of 0, too many elements.
    pub fn sizes(self, shape: &[u64]) -> Result<[u64; 3]> {
        let name = self.name();
        ensure!(shape.iter().all(|&s| s > 0), "`{name}` has no kernel for a shape with a size of 0");
        Ok(match (self, shape) {
            (Operator::Add, [_, ..]) => {
                let elements = shape.iter().try_fold(1u64, |n, &s| n.checked_mul(s));
                [elements.filter(|n| *n <= MOST).context("the shape is too large")?, 1, 1]
            }
            (Operator::RmsNorm | Operator::RmsNormGrad, &[rows, dim]) => [rows, dim, 1],
            (Operator::EmbeddingGrad, &[indices, rows, dim]) => [indices, rows, dim],
            _ => bail!("a shape of `{name}` is {}, such as {}", self.meaning(), self.example()),
        })
    }

    /// Its kernels for a shape, in the order of their launches, and the bytes of workspace that they share.
    /// `index` counts where there are indices, `eps` for the norm alone.
    ///
    /// # Errors
    /// As of the kernels: dtypes and shapes that they refuse.
    pub fn kernels(
        self,
        chip: &Chip,
        elem: Elem,
        index: Elem,
        sizes: [u64; 3],
        eps: f32,
    ) -> finding::Result<(Vec<Kernel>, u64)> {
        let arch = chip.arch;
        let norm = RmsNorm { elem, rows: sizes[0], dim: sizes[1], eps };
        let [indices, rows, dim] = sizes;
        let kernels = match self {
            Operator::Add => vec![Kernel::new("add", add(arch, elem, sizes[0], TILE / elem.size())?)],
            Operator::RmsNorm => vec![Kernel::new("rms_norm", rms_norm(arch, &norm)?)],
            Operator::RmsNormGrad => vec![
                Kernel::new("rms_norm_grad", rms_norm_grad(arch, &norm)?),
                Kernel::new("rms_norm_grad_gamma", rms_norm_grad_gamma(arch, &norm)?),
            ],
            Operator::EmbeddingGrad => {
                let cores = chip.vector_cores;
                let shape = EmbeddingGrad {
                    elem,
                    index,
                    indices,
                    rows,
                    dim,
                    padding: None,
                    by_frequency: false,
                    cores,
                };
                let Stages { stages, workspace } = embedding_grad(arch, &shape, Rung::Pipelined)?;
                let kernels = stages.into_iter().map(|stage| Kernel {
                    family: "embedding_grad",
                    program: stage.program,
                    operands: stage.operands,
                    blocks: Some(stage.blocks),
                });
                return Ok((kernels.collect(), workspace));
            }
        };
        Ok((kernels, 0))
    }

    /// Kernels of the operator and its gradient in f16 and f32, with indices of i32 and i64, for every shape.
    ///
    /// # Errors
    /// A shape that is none, or that has a kernel in no dtype, with the reasons.
    pub fn variants(self, chip: &Chip, shapes: &[Vec<u64>], eps: f32) -> Result<Variants> {
        let mut variants = Variants::default();
        let indices: &[Option<Elem>] = match self {
            Operator::EmbeddingGrad => &[Some(Elem::I32), Some(Elem::I64)],
            _ => &[None],
        };
        for shape in shapes {
            let sizes = self.sizes(shape)?;
            if variants.built.iter().any(|v| v.sizes == sizes) {
                continue;
            }
            let (before, mut reasons) = (variants.built.len(), Vec::new());
            for (elem, index) in
                [Elem::F16, Elem::F32].into_iter().flat_map(|e| indices.iter().map(move |i| (e, *i)))
            {
                match self.variant(chip, elem, index, sizes, eps) {
                    Ok(variant) => variants.built.push(variant),
                    Err(finding) => {
                        let label = label(elem, index, self.rank(), sizes);
                        reasons.push(format!("{label}: {}", finding.message));
                        variants.refused.insert(label, finding.message.clone());
                    }
                }
            }
            ensure!(
                variants.built.len() > before,
                "`{}` has no kernel for {}: {}",
                self.name(),
                chip.name,
                reasons.join("; ")
            );
        }
        Ok(variants)
    }

    fn variant(
        self,
        chip: &Chip,
        elem: Elem,
        index: Option<Elem>,
        sizes: [u64; 3],
        eps: f32,
    ) -> finding::Result<Variant> {
        let (mut kernels, mut workspace) = (Vec::new(), 0);
        for operator in self.with_gradient() {
            let (own, bytes) = operator.kernels(chip, elem, index.unwrap_or(Elem::I32), sizes, eps)?;
            kernels.extend(own);
            workspace = bytes.max(workspace);
        }
        for Kernel { program, .. } in &mut kernels {
            let index = index.map(|index| format!("_{index}")).unwrap_or_default();
            program.name = format!("{}{index}_{}", program.name, joined(&sizes[..self.rank()], "x"));
        }
        Ok(Variant { elem, index, sizes, kernels, workspace })
    }
}

/// A dtype as PyTorch calls it.
pub(super) const fn dtype(elem: Elem) -> &'static str {
    match elem {
        Elem::F16 => "float16",
        Elem::F32 => "float32",
        Elem::I64 => "int64",
        _ => "int32",
    }
}

/// A dtype and shape in words.
fn label(elem: Elem, index: Option<Elem>, rank: usize, sizes: [u64; 3]) -> String {
    let index = index.map(|index| format!(" by {}", dtype(index))).unwrap_or_default();
    format!("{}{index} {}", dtype(elem), joined(&sizes[..rank], "x"))
}

/// Sizes with a sign between them.
pub(super) fn joined(sizes: &[u64], sign: &str) -> String {
    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(sign)
}
