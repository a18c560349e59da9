//! A forward graph as PyTorch exported it, bound and ready to be planned.

use crate::error::{Failure, guarded};
use headwater_core::graph::{Graph, InputRole, OutputRole};
use headwater_core::{DType, Layout, Registry, Shape, pass};
use headwater_import::{Dims, GivenTensor};
use pyo3::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

/// A tensor of the model as Python describes it.
#[derive(FromPyObject)]
pub(crate) struct Described {
    name: String,
    dtype: String,
    sizes: Vec<usize>,
    strides: Vec<isize>,
    offset: isize,
    storage: u64,
    storage_bytes: usize,
}

impl Described {
    fn given(self) -> Result<GivenTensor, Failure> {
        let Described { name, dtype, sizes, strides, offset, storage, storage_bytes } = self;
        let unknown = |_| Failure::new("HW-I011", format!("{name} is of the unknown dtype {dtype}"));
        let dtype: DType = dtype.parse().map_err(unknown)?;
        let layout = Layout { shape: Shape::from(sizes), strides: strides.into_iter().collect(), offset };
        Ok(GivenTensor { name, dtype, layout, storage, storage_bytes })
    }
}

/// A forward graph; for a whole step its first output is the loss.
#[pyclass(frozen, module = "headwater._headwater")]
pub(crate) struct Program {
    pub graph: Arc<Graph>,
    /// True if a run draws random numbers.
    #[pyo3(get)]
    random: bool,
    /// Parameters that get a gradient, as far as the graph says.
    #[pyo3(get)]
    trained: Vec<String>,
    /// Parameters, buffers and inputs that a run writes.
    #[pyo3(get)]
    written: Vec<String>,
    /// Notes of the importer: parts of the program that it dropped or assumed.
    #[pyo3(get)]
    notes: Vec<String>,
}

#[pymethods]
impl Program {
    /// The same without dropout, all else as in training.
    fn still(&self, py: Python) -> PyResult<Program> {
        let (graph, trained) = (self.graph.clone(), self.trained.clone());
        let (written, notes) = (self.written.clone(), self.notes.clone());
        guarded(py, move || {
            let mut graph = (*graph).clone();
            pass::without_dropout(&mut graph);
            Ok(Program { random: draws(&graph)?, graph: Arc::new(graph), trained, written, notes })
        })
    }

    /// Imports PyTorch's JSON. `tensors` describes parameters, buffers and constants; those of `trained` get
    /// gradients. As a `function`, what is fed may require gradients, and its new contents are results.
    #[new]
    #[pyo3(signature = (json, tensors, trained, function = false))]
    fn new(
        py: Python,
        json: Vec<u8>,
        tensors: Vec<Described>,
        trained: HashSet<String>,
        function: bool,
    ) -> PyResult<Program> {
        guarded(py, move || {
            let tensors = tensors.into_iter().map(Described::given).collect::<Result<Vec<_>, _>>()?;
            let mut program = headwater_import::Program::from_json(&json, tensors)?;
            if function {
                program = program.as_function();
            }
            let imported = program.bind(&Dims::new().or_exported(), Registry::standard())?;
            let (mut graph, mut names) = (imported.graph, Vec::new());
            for input in &mut graph.inputs {
                if let InputRole::Parameter { trainable, .. } = &mut input.role {
                    *trainable &= trained.contains(&input.name);
                    names.extend(trainable.then(|| input.name.clone()));
                }
            }
            let written = graph.outputs.iter().filter_map(|o| match o.role {
                OutputRole::Mutation(v) => graph.input_index(v).map(|at| graph.inputs[at].name.clone()),
                _ => None,
            });
            let written = written.collect();
            let notes = imported.notes.iter().map(ToString::to_string).collect();
            Ok(Program { random: draws(&graph)?, graph: Arc::new(graph), trained: names, written, notes })
        })
    }
}

/// True if a graph draws random numbers when it runs.
pub(crate) fn draws(graph: &Graph) -> Result<bool, Failure> {
    let graph = pass::simplify(pass::decompose(graph.clone())?).graph;
    let key = graph.inputs.iter().find(|i| i.role == InputRole::Rng).map(|i| i.value);
    Ok(key.is_some_and(|key| graph.nodes.iter().any(|node| node.operands().any(|v| v == key))))
}
