//! Binding: from a program and concrete sizes to a graph, in one pass over the exported nodes.

use crate::dims::Dims;
use crate::error::{Error, Result};
use crate::importer::Importer;
use crate::program::Program;
use crate::report::{Note, Notes};
use crate::scope::Scope;
use crate::state::State;
use crate::weights::StoredTensor;
use headwater_core::graph::Graph;
use headwater_core::{Registry, ValueId};
use std::collections::{BTreeMap, HashMap};

/// A model bound to concrete sizes.
#[derive(Debug)]
pub struct Imported {
    /// The forward graph. Its inputs are the parameters (one for all names of a tied weight), buffers and
    /// constants, then what the user feeds; its outputs the user's, named `output.<position>`, then the new
    /// contents of the state it writes.
    pub graph: Graph,
    /// Initial content of each graph input; `None` for what the user feeds, and for tensors whose memory the
    /// caller keeps.
    pub stored: Vec<Option<StoredTensor>>,
    /// The value that each named tensor of the export had just after its node.
    pub values: HashMap<String, ValueId>,
    /// The symbolic sizes chosen.
    pub sizes: BTreeMap<String, i64>,
    /// Notes on things that were dropped or assumed.
    pub notes: Vec<Note>,
}

impl Program {
    /// Binds symbolic sizes and builds the graph. `registry` holds the operators known; users add their own
    /// to a copy of [`Registry::standard`].
    ///
    /// # Errors
    /// `Dimension` for the sizes; `Unsupported` with everything that cannot be imported; `Mismatch` if an
    /// operator's rule infers another type than PyTorch recorded; `Weights`, `Pickle`, `Missing` for stored
    /// tensors; `Argument`, `Expression`, `Assertion`, `Budget` for nodes.
    pub fn bind(&self, dims: &Dims, registry: &Registry) -> Result<Imported> {
        let mut notes = Notes::default();
        let env = dims.bind(self, &mut notes)?;
        let sizes = env.symbols.iter().map(|(k, v)| (k.clone(), *v)).collect();
        let graph = &self.model.graph_module.graph;
        let mut importer = Importer::new(registry, env, notes, self.names());
        if self.function {
            importer.tensors.of_users();
        }
        let mut scope = Scope::new(graph, true);
        let mut state = State::default();
        state.inputs(self, &mut importer, &mut scope)?;
        importer.nodes(&mut scope)?;
        if !importer.unsupported.is_empty() {
            return Err(Error::Unsupported(importer.unsupported));
        }
        state.outputs(self, &mut importer, &scope)?;
        let graph = importer.b.finish();
        self.tensors.check_total(state.placed())?;
        let mut stored = state.stored;
        stored.resize(graph.inputs.len(), None);
        Ok(Imported { graph, stored, values: importer.values, sizes, notes: importer.notes.finish() })
    }

    /// Number of named tensors, a measure of the model's size.
    fn names(&self) -> usize {
        fn of(g: &crate::schema::Graph) -> usize {
            let subs = g.nodes.iter().flat_map(|n| &n.inputs).map(|i| match &i.arg {
                crate::schema::Argument::AsGraph(s) => of(&s.graph),
                _ => 0,
            });
            g.tensor_values.len() + g.nodes.len() + subs.sum::<usize>()
        }
        of(&self.model.graph_module.graph)
    }
}
