//! A project around an operator's kernels that builds and runs without Headwater. It has a PyTorch extension
//! for torch_npu, a Python package, a test and a README. Its files are in the folder `project`; a few places
//! in them are filled in, and the tables of kernels are written here.

use super::operators::{Kernel, Operator, Variant, Variants, dtype, joined};
use anyhow::{Result, ensure};
use headwater_ascend::Chip;
use headwater_ascend::emit::emit;
use headwater_ascend::host::CoreKind;
use headwater_ascend::host::compile::ccec_flags;
use headwater_ascend::kernel::{Elem, ParamKind};
use headwater_ascend::kernels::Operand;
use std::fmt::Write;

/// Operands of a kernel that the extension's table can hold.
const OPERANDS: usize = 6;

/// Parts of a project.
#[derive(Clone, Copy, Debug)]
pub(super) struct Project<'a> {
    /// The operator.
    pub operator: Operator,
    /// The chip.
    pub chip: &'a Chip,
    /// Shapes as requested.
    pub shapes: &'a [Vec<u64>],
    /// Number that RMS norm adds to the mean of squares.
    pub eps: f32,
    /// The kernels.
    pub variants: &'a Variants,
}

macro_rules! template {
    ($path:literal) => {
        include_str!(concat!("project/", $path))
    };
}

/// Files that every project has: path, text.
const COMMON: [(&str, &str); 6] = [
    ("csrc/launch.h", template!("launch.h")),
    ("csrc/launch.cpp", template!("launch.cpp")),
    ("src/headwater_OPERATOR/_library.py", template!("library.py")),
    ("build_kernels.py", template!("build_kernels.py")),
    ("setup.py", template!("setup.py")),
    ("comparison.py", template!("comparison.py")),
];

/// Gradients of RMS norm, in its own project and in that of the norm.
const RMS_NORM_BACKWARD: [(&str, &str); 2] = [
    ("csrc/rms_norm_backward.cpp", template!("rms_norm_grad/rms_norm_backward.cpp")),
    ("src/headwater_OPERATOR/_rms_norm_backward.py", template!("rms_norm_grad/rms_norm_backward.py")),
];

/// Files of an operator: path, text.
fn own(operator: Operator) -> Vec<(&'static str, &'static str)> {
    let init = "src/headwater_OPERATOR/__init__.py";
    let mut files = match operator {
        Operator::Add => vec![
            (init, template!("add/init.py")),
            ("src/headwater_OPERATOR/_add.py", template!("add/operator.py")),
            ("csrc/add.cpp", template!("add/add.cpp")),
            ("test_add.py", template!("add/test.py")),
        ],
        Operator::RmsNorm => vec![
            (init, template!("rms_norm/init.py")),
            ("src/headwater_OPERATOR/_rms_norm.py", template!("rms_norm/operator.py")),
            ("csrc/rms_norm.cpp", template!("rms_norm/rms_norm.cpp")),
            ("test_rms_norm.py", template!("rms_norm/test.py")),
        ],
        Operator::RmsNormGrad => vec![
            (init, template!("rms_norm_grad/init.py")),
            ("src/headwater_OPERATOR/_rms_norm.py", template!("rms_norm_grad/operator.py")),
            ("test_rms_norm_grad.py", template!("rms_norm_grad/test.py")),
        ],
        Operator::EmbeddingGrad => vec![
            (init, template!("embedding_grad/init.py")),
            (
                "src/headwater_OPERATOR/_embedding_dense_backward.py",
                template!("embedding_grad/embedding_dense_backward.py"),
            ),
            ("src/headwater_OPERATOR/_embedding.py", template!("embedding_grad/operator.py")),
            ("csrc/embedding_dense_backward.cpp", template!("embedding_grad/embedding_dense_backward.cpp")),
            ("test_embedding_grad.py", template!("embedding_grad/test.py")),
        ],
    };
    if operator.with_gradient().contains(&Operator::RmsNormGrad) {
        files.extend(RMS_NORM_BACKWARD);
    }
    files
}

/// The page's first part: what the operator is.
const fn page(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => template!("add/README.md"),
        Operator::RmsNorm => template!("rms_norm/README.md"),
        Operator::RmsNormGrad => template!("rms_norm_grad/README.md"),
        Operator::EmbeddingGrad => template!("embedding_grad/README.md"),
    }
}

impl Project<'_> {
    /// Every file: its path in the project's folder, and its text.
    ///
    /// # Errors
    /// A kernel whose parameters the extension cannot pass.
    pub fn files(&self) -> Result<Vec<(String, String)>> {
        let package = format!("headwater_{}", self.operator.name());
        let mut files: Vec<(String, String)> = Vec::new();
        let page = format!("{}{}", page(self.operator), template!("README.tail.md"));
        for (path, text) in COMMON.into_iter().chain(own(self.operator)) {
            files.push((path.into(), self.filled(text)));
        }
        files.push(("README.md".into(), self.filled(&page)));
        files.push(("csrc/kernels.h".into(), self.header()?));
        files.push(("src/headwater_OPERATOR/_kernels.py".into(), self.table()));
        for (path, text) in &mut files {
            *path = path.replace("headwater_OPERATOR", &package);
            *text = text.replace("headwater_OPERATOR", &package);
        }
        for Kernel { program, .. } in self.variants.built.iter().flat_map(|v| &v.kernels) {
            files.push((format!("kernels/{}.cpp", program.name), emit(program)));
        }
        files.sort();
        Ok(files)
    }

    /// The command that writes the project's kernels.
    fn command(&self) -> String {
        let mut command = format!("headwater kernels {} --target {}", self.operator.name(), self.chip.name);
        for shape in self.shapes {
            let _ = write!(command, " --shape {}", joined(shape, "x"));
        }
        if self.operator == Operator::RmsNorm {
            let _ = write!(command, " --eps {:?}", self.eps);
        }
        command
    }

    /// The kind of core that the kernels are for.
    fn core(&self) -> CoreKind {
        if self.chip.arch.split() { CoreKind::Vector } else { CoreKind::Mixed }
    }

    fn filled(&self, text: &str) -> String {
        let operator = self.operator;
        let name = operator.name();
        let flags = wrapped(&ccec_flags(self.chip.arch, self.core()).unwrap_or_default());
        let shape = self.shapes.first().map_or(&[][..], Vec::as_slice);
        let first = self.variants.built.first();
        let sizes = first.map_or([1; 3], |v| v.sizes);
        let dim = sizes[operator.rank() - 1];
        let more: Vec<u64> =
            shape.iter().enumerate().map(|(i, &s)| if i == 0 { s / 2 + 1 } else { s }).collect();
        let with_index = first.is_some_and(|v| v.index.is_some());
        let (head, rule) = if with_index { (" indices |", "---|") } else { ("", "") };
        let mut kernels = format!("| kernel | dtype |{head} {} |\n|---|---|{rule}---|\n", operator.meaning());
        for (v, program) in
            self.variants.built.iter().flat_map(|v| v.kernels.iter().map(move |k| (v, &k.program)))
        {
            let sizes = joined(&v.sizes[..operator.rank()], " x ");
            let index = v.index.map(|index| format!(" {} |", dtype(index))).unwrap_or_default();
            let _ = writeln!(kernels, "| `{}` | {} |{index} {sizes} |", program.name, dtype(v.elem));
        }
        let mut refused = String::new();
        if !self.variants.refused.is_empty() {
            refused += "\nNot there:\n\n| dtype and shape | reason |\n|---|---|\n";
            for (what, why) in &self.variants.refused {
                let _ = writeln!(refused, "| {what} | {why} |");
            }
        }
        let tokens = [
            ("PACKAGE", "headwater_OPERATOR".into()),
            ("TEST", format!("test_{name}.py")),
            ("FLAGS", flags),
            ("DESCRIPTION", format!("The operator {name} for Ascend NPUs with torch_npu")),
            ("CHIP", format!("{} (`--target {}`)", self.chip.soc, self.chip.name)),
            ("COMMAND", self.command()),
            ("EXAMPLE", joined(shape, ", ")),
            ("INDICES", sizes[0].to_string()),
            ("ROWS", sizes[1].to_string()),
            ("LAST", dim.to_string()),
            ("DTYPE", first.map_or("float32", |v| dtype(v.elem)).into()),
            ("EPS", format!("{:?}", self.eps)),
            ("MORE", joined(&more, "x")),
            ("KERNELS", kernels.trim_end().into()),
            ("REFUSED", refused),
            ("VERSION", env!("CARGO_PKG_VERSION").into()),
        ];
        tokens
            .iter()
            .fold(text.to_string(), |text, (token, value)| text.replace(&format!("@{token}@"), value))
    }

    /// The extension's table of kernels.
    fn header(&self) -> Result<String> {
        let operator = self.operator;
        let mut out = String::from("// The kernels of this project. Written by Headwater.\n#pragma once\n\n");
        out += "#include \"launch.h\"\n\nnamespace headwater {\n\n";
        out += "// Kind of core that the kernels are for, as aclrtBinaryLoadOption states it.\n";
        let _ = writeln!(out, "inline constexpr uint32_t MAGIC = {:#x};", self.core().magic());
        out += "// Sizes that a kernel is for, and their meaning.\n";
        let _ = writeln!(out, "inline constexpr size_t SIZES = {};", operator.rank());
        let _ = writeln!(out, "inline constexpr const char *MEANING = \"{}\";", operator.meaning());
        out += "// The command that wrote the kernels.\n";
        let _ = writeln!(out, "inline constexpr const char *COMMAND =\n    \"{}\";", self.command());
        if operator == Operator::RmsNorm {
            out += "// Added to the mean of squares.\n";
            let _ = writeln!(out, "inline constexpr float EPS = {:?}f;", self.eps);
        }
        let mut families: Vec<&str> =
            self.variants.built.first().map_or(&[][..], |v| &v.kernels).iter().map(|k| k.family).collect();
        families.dedup();
        for family in families {
            let _ = writeln!(out, "\ninline constexpr Kernel {}[] = {{", family.to_uppercase());
            for v in &self.variants.built {
                let launches: Vec<_> = v.kernels.iter().filter(|k| k.family == family).collect();
                for (i, kernel) in launches.iter().enumerate() {
                    out += &self.row(v, kernel, launches.len() - i)?;
                }
            }
            out += "};\n";
        }
        out += "\n} // namespace headwater\n";
        Ok(out)
    }

    /// A kernel's row in that table, the first of so many launches.
    fn row(&self, v: &Variant, kernel: &Kernel, launches: usize) -> Result<String> {
        let program = &kernel.program;
        let mut bytes = Vec::new();
        for param in &program.params {
            ensure!(
                matches!(param.kind, ParamKind::Pointer { .. }),
                "the parameter `{}` of `{}` is no pointer",
                param.name,
                program.name
            );
            let too_large = || anyhow::anyhow!("`{}` of `{}` is too large", param.name, program.name);
            bytes.push(i64::try_from(param.bytes()).map_err(|_| too_large())? as u64);
        }
        ensure!(bytes.len() <= OPERANDS, "`{}` has more than {OPERANDS} parameters", program.name);
        ensure!(!program.cores_meet(), "the cores of `{}` wait for each other", program.name);
        bytes.resize(OPERANDS, 0);
        let mut operands = Vec::new();
        for operand in &kernel.operands {
            operands.push(match *operand {
                Operand::Index => "INDICES".into(),
                Operand::Grad => "GRADIENTS".into(),
                Operand::Table => "TABLE".into(),
                Operand::Fault => "REPORTS".into(),
                Operand::Workspace(start) => start.to_string(),
            });
        }
        Ok(format!(
            "    {{\"{}\", {}, {}, {{{}}}, {}, {{{}}}, {launches}, {}, {{{}}}}},\n",
            program.name,
            scalar_type(Some(v.elem)),
            scalar_type(v.index),
            joined(&v.sizes, ", "),
            kernel.blocks.unwrap_or(self.chip.vector_cores),
            joined(&bytes, ", "),
            v.workspace,
            operands.join(", ")
        ))
    }

    /// The package's table of kernels.
    fn table(&self) -> String {
        let mut out = String::from("\"\"\"The kernels of this project. Written by Headwater.\"\"\"\n\n");
        let _ = writeln!(out, "CHIP = \"{}\"", self.chip.soc);
        if self.operator == Operator::RmsNorm {
            let _ = writeln!(out, "# Added to the mean of squares.\nEPS = {:?}", self.eps);
        }
        let _ = writeln!(out, "# Name: operator, dtype, dtype of the indices, {}.", self.operator.meaning());
        out += "KERNELS = {\n";
        for v in &self.variants.built {
            let index = v.index.map_or("None".into(), |index| format!("\"{}\"", dtype(index)));
            let sizes = joined(&v.sizes[..self.operator.rank()], ", ");
            let comma = if self.operator.rank() == 1 { "," } else { "" };
            for Kernel { family, program, .. } in &v.kernels {
                let elem = dtype(v.elem);
                let _ = writeln!(
                    out,
                    "    \"{}\": (\"{family}\", \"{elem}\", {index}, ({sizes}{comma})),",
                    program.name
                );
            }
        }
        out += "}\n";
        out
    }
}

/// Words in lines of a hundred characters.
fn wrapped(words: &[&str]) -> String {
    let mut lines = vec![String::from("   ")];
    for word in words {
        if lines.last().is_some_and(|line| line.len() + 1 + word.len() > 100) {
            lines.push("   ".into());
        }
        if let Some(line) = lines.last_mut() {
            let _ = write!(line, " {word}");
        }
    }
    lines.join("\n")
}

/// A dtype as `at::ScalarType` calls it.
const fn scalar_type(elem: Option<Elem>) -> &'static str {
    match elem {
        Some(Elem::F16) => "at::ScalarType::Half",
        Some(Elem::F32) => "at::ScalarType::Float",
        Some(Elem::I64) => "at::ScalarType::Long",
        Some(_) => "at::ScalarType::Int",
        None => "at::ScalarType::Undefined",
    }
}
