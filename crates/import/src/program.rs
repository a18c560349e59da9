//! An opened export: the parsed and structurally verified model, not yet bound to sizes.

use crate::archive::Archive;
use crate::error::{Result, refuse, shown};
use crate::schema::{self, Argument, Hint, InputSpec, Model, SymInt};
use crate::symbolic::Expr;
use crate::verify;
use crate::weights::{Element, GivenTensor, StoredTensor, Tensors, Weights};
use headwater_core::DType;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// An exported model: of a `.pt2` archive, or of its JSON alone with tensors that the caller keeps.
#[derive(Debug)]
pub struct Program {
    pub(crate) model: Model,
    pub(crate) tensors: Tensors,
    inputs: Vec<SymbolicInput>,
    symbols: Vec<Symbol>,
    ranges: Vec<(Expr, String, schema::Range)>,
    /// True if what the user feeds may require gradients, and its new contents are outputs of the graph.
    pub(crate) function: bool,
}

/// A tensor that the user feeds.
#[derive(Debug, Clone)]
pub struct SymbolicInput {
    /// Argument name.
    pub name: String,
    /// Position among all user inputs, those counted that are no tensors.
    pub position: usize,
    /// Element type.
    pub dtype: DType,
    /// Sizes, as expressions of the model's symbols.
    pub sizes: Vec<Expr>,
}

/// A size that is chosen when binding.
#[derive(Debug, Clone, PartialEq)]
pub struct Symbol {
    /// PyTorch's name, e.g. `s72`.
    pub name: String,
    /// Places of the size: `input_ids.0` is dimension 0 of that input.
    pub places: Vec<String>,
    /// Smallest size allowed.
    pub min: Option<i64>,
    /// Largest size allowed.
    pub max: Option<i64>,
    /// Its size when the model was exported.
    pub exported: Option<i64>,
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.name, self.places.join(", "))?;
        if self.min.is_some() || self.max.is_some() {
            let show = |x: Option<i64>| x.map_or("…".into(), |x| x.to_string());
            write!(f, "; {} to {}", show(self.min), show(self.max))?;
        }
        if let Some(x) = self.exported {
            write!(f, "; exported with {x}")?;
        }
        f.write_str(")")
    }
}

impl Program {
    /// Opens an archive through a memory map; the file must not be modified while the program or its tensors
    /// live.
    ///
    /// # Errors
    /// Every code that says what is wrong with a file: `Io`, `Zip`, `Entries`, `Unpack`, `Missing`,
    /// `ByteOrder`, `Version`, `Json`, `Name`, `DType`, `Signature`, `Expression`.
    pub fn open(path: impl AsRef<Path>) -> Result<Program> {
        Program::load(Archive::open(path.as_ref())?)
    }

    /// Lets the system have the memory that the mapped file takes, as once its weights are copied. The
    /// program and its tensors stay usable: what is touched again is read again.
    pub fn release(&self) {
        if let Tensors::Stored(archive, _) = &self.tensors {
            archive.release();
        }
    }

    /// The same from bytes in memory.
    ///
    /// # Errors
    /// As [`Program::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Program> {
        Program::load(Archive::from_vec(bytes)?)
    }

    /// A model from its JSON, as `torch.export.save` writes it to `models/model.json`, without an archive.
    /// Its parameters, buffers and constants are `tensors`; their memory stays the caller's, and nothing is
    /// read from it. Those of one storage share memory: equal ones are tied, and where one of several that
    /// overlap in part changes, [`Program::bind`] refuses them. Sizes of storages are taken at the caller's
    /// word.
    ///
    /// # Errors
    /// `Json`, `Version`, `Name`, `DType`, `Signature`, `Expression`; `Weights` for a tensor outside of its
    /// storage.
    pub fn from_json(json: &[u8], tensors: impl IntoIterator<Item = GivenTensor>) -> Result<Program> {
        let bad = |e: serde_json::Error| refuse!(Json, "the model: {}", shown(&e.to_string()));
        check_version(&serde_json::from_slice(json).map_err(bad)?)?;
        let model = serde_json::from_slice(json).map_err(bad)?;
        verify::model(&model)?;
        Program::new(model, Tensors::given(tensors)?)
    }

    fn load(archive: Archive) -> Result<Program> {
        let text = |name: &str| -> Result<String> {
            let bytes = archive.entry(name)?;
            Ok(String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).trim().to_string())
        };
        if !archive.contains("archive_format") && archive.contains("data.pkl") {
            return Err(refuse!(
                Pickle,
                "this is what `torch.save` writes, a pickle, which is never opened; export the model with \
                 `torch.export.save`, for which tools/README.md has a function"
            ));
        }
        let order = text("byteorder")?;
        if order != "little" {
            return Err(refuse!(ByteOrder, "byte order `{}`: only little-endian is read", shown(&order)));
        }
        let (format, version) = (text("archive_format")?, text("archive_version")?);
        if (format.as_str(), version.as_str()) != ("pt2", "0") {
            return Err(refuse!(
                Version,
                "archive format `{}` version `{}`: only `pt2` version `0` is read",
                shown(&format),
                shown(&version)
            ));
        }
        let name = model_name(&archive)?;
        let json = format!("models/{name}.json");
        check_version(&archive.json(&json)?)?;
        let model = archive.json(&json)?;
        verify::model(&model)?;
        let weights = Weights::read(&archive, &name)?;
        Program::new(model, Tensors::Stored(Arc::new(archive), weights))
    }

    fn new(model: Model, tensors: Tensors) -> Result<Program> {
        let mut ranges = Vec::new();
        for (text, range) in &model.range_constraints.0 {
            ranges.push((Expr::parse(text)?, text.clone(), range.clone()));
        }
        ranges.sort_by(|a, b| a.1.cmp(&b.1));
        let mut program =
            Program { model, tensors, inputs: vec![], symbols: vec![], ranges, function: false };
        program.read_inputs()?;
        Ok(program)
    }

    fn read_inputs(&mut self) -> Result<()> {
        let graph = &self.model.graph_module.graph;
        let mut position = 0;
        let mut found: Vec<(Expr, Option<i64>, String)> = Vec::new();
        for spec in &self.model.graph_module.signature.input_specs {
            match spec {
                InputSpec::UserInput { arg: Argument::AsTensor(t) } => {
                    let meta = &graph.tensor_values[&t.name];
                    let Element { dtype, complex } = crate::weights::element(meta, &t.name)?;
                    if complex {
                        return Err(refuse!(
                            DType,
                            "the input `{}` is of complex numbers: let the model take `torch.view_as_real` of it, {dtype} with a \
                             last dimension of 2, and begin with `torch.view_as_complex`",
                            shown(&t.name)
                        ));
                    }
                    let sizes = meta.sizes.iter().map(size_expr).collect::<Result<Vec<_>>>()?;
                    for (d, (expr, size)) in sizes.iter().zip(&meta.sizes).enumerate() {
                        found.push((expr.clone(), hint(size), format!("{}.{d}", t.name)));
                    }
                    self.inputs.push(SymbolicInput { name: t.name.clone(), position, dtype, sizes });
                }
                InputSpec::UserInput { arg: Argument::AsSymInt(schema::SymIntArgument::AsName(name)) } => {
                    if let Some(size) = graph.sym_int_values.get(name) {
                        found.push((size_expr(size)?, hint(size), name.clone()));
                    }
                }
                _ => {}
            }
            position +=
                matches!(spec, InputSpec::UserInput { .. } | InputSpec::ConstantInput { .. }) as usize;
        }
        for (expr, hint, place) in found {
            let plain = matches!(expr, Expr::Symbol(_));
            let mut names = Vec::new();
            expr.symbols(&mut |s| names.push(s.to_string()));
            names.dedup();
            for name in names {
                let at = match self.symbols.iter().position(|s| s.name == name) {
                    Some(at) => at,
                    None => {
                        let range = self.model.range_constraints.get(&name);
                        let (min, max) = range.map_or((None, None), |r| (r.min_val, r.max_val));
                        self.symbols.push(Symbol { name, places: vec![], min, max, exported: None });
                        self.symbols.len() - 1
                    }
                };
                let symbol = &mut self.symbols[at];
                symbol.places.push(place.clone());
                if plain {
                    symbol.exported = symbol.exported.or(hint);
                }
            }
        }
        Ok(())
    }

    /// Takes the model as a function of what the user feeds: that may require gradients, and where the model
    /// writes it, the new contents become outputs of role `Mutation`, as those of buffers are. Without it
    /// gradients end at parameters, and such writes are dropped, with a note.
    pub fn as_function(self) -> Program {
        Program { function: true, ..self }
    }

    /// The tensors the user feeds, in order.
    pub fn inputs(&self) -> &[SymbolicInput] {
        &self.inputs
    }

    /// The sizes to be chosen when binding; empty for a model exported with fixed sizes.
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// Version of PyTorch that made the export, as it says.
    pub fn torch_version(&self) -> &str {
        &self.model.torch_version
    }

    /// A stored parameter, buffer or constant, by its PyTorch name.
    ///
    /// # Errors
    /// `Missing`, also where the caller keeps all tensors; `Pickle`, `DType`, `Weights`.
    pub fn stored(&self, name: &str) -> Result<StoredTensor> {
        let none =
            || refuse!(Missing, "the program stores no tensor `{}`: the caller has its memory", shown(name));
        self.tensors.find(name)?.1.ok_or_else(none)
    }

    /// Reads every stored tensor through and compares checksums; opening does not, so that large models open
    /// fast.
    ///
    /// # Errors
    /// `Unpack` naming the damaged entry.
    pub fn verify_checksums(&self) -> Result<()> {
        match &self.tensors {
            Tensors::Stored(archive, weights) => weights.verify(archive),
            Tensors::Given(_) => Ok(()),
        }
    }

    pub(crate) fn ranges(&self) -> &[(Expr, String, schema::Range)] {
        &self.ranges
    }

    pub(crate) fn guards(&self) -> &[String] {
        &self.model.guards_code
    }
}

fn check_version(head: &schema::Head) -> Result<()> {
    if head.schema_version.major == schema::MAJOR {
        return Ok(());
    }
    Err(refuse!(
        Version,
        "export schema version {}.{}: only major version {} is read, which PyTorch 2.13 to 2.15 write; export \
         again with one of them",
        head.schema_version.major,
        head.schema_version.minor,
        schema::MAJOR
    ))
}

/// The one model of an archive, or the one named `model`.
fn model_name(archive: &Archive) -> Result<String> {
    let names: Vec<&str> = archive
        .names("models/")
        .into_iter()
        .filter_map(|n| n.strip_prefix("models/")?.strip_suffix(".json"))
        .filter(|n| !n.contains('/'))
        .collect();
    match &names[..] {
        [] => Err(refuse!(
            Missing,
            "the archive has no `models/*.json`; save with `torch.export.save` of PyTorch 2.13 or later"
        )),
        [one] => Ok(one.to_string()),
        many if many.contains(&"model") => Ok("model".into()),
        many => Err(refuse!(Missing, "the archive has {} models and none is named `model`", many.len())),
    }
}

/// A size as an expression.
pub(crate) fn size_expr(size: &SymInt) -> Result<Expr> {
    match size {
        SymInt::AsInt(i) => Ok(Expr::Number(crate::symbolic::Number::Int(*i))),
        SymInt::AsExpr(e) => Expr::parse(&e.expr_str),
    }
}

fn hint(size: &SymInt) -> Option<i64> {
    match size {
        SymInt::AsExpr(schema::SymExpr { hint: Some(Hint::AsInt(i)), .. }) => Some(*i),
        _ => None,
    }
}
