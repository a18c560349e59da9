//! The signature. It makes graph inputs of parameters, buffers, constants and user inputs, and graph outputs
//! of results and of the new contents of buffers. Tied weights become one input.

use crate::error::{Error, Result, refuse, shown};
use crate::functionalize::TensorId;
use crate::importer::Importer;
use crate::program::Program;
use crate::report::Unsupported;
use crate::schema::{Argument, InputSpec, Named, OutputSpec, SymIntArgument};
use crate::scope::{Scope, Slot};
use crate::weights::{Placed, StoredTensor};
use headwater_core::ValueId;
use headwater_core::graph::{InputRole, Origin, OutputRole};
use std::collections::{HashMap, HashSet};

/// A graph input that holds state.
#[derive(Debug)]
struct Holder {
    tensor: TensorId,
    value: ValueId,
    name: String,
    placed: Placed,
    stored: Option<StoredTensor>,
    trainable: bool,
}

/// The state of a model while it is imported.
#[derive(Debug, Default)]
pub(crate) struct State {
    holders: Vec<Holder>,
    /// User inputs: tensor, value and name.
    users: Vec<(TensorId, ValueId, String)>,
    /// Every name of a parameter, buffer or constant to its holder.
    names: HashMap<String, usize>,
    /// Stored content of the graph's inputs, by position.
    pub stored: Vec<Option<StoredTensor>>,
}

impl State {
    /// Makes the graph's inputs and gives them their names in the scope.
    pub fn inputs<'a>(
        &mut self,
        program: &'a Program,
        importer: &mut Importer<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        // By memory: storage, and whatever else makes two stored tensors the same.
        let mut by_entry: HashMap<String, Vec<usize>> = HashMap::new();
        let mut seen: HashSet<&str> = HashSet::new();
        for spec in &program.model.graph_module.signature.input_specs {
            let (arg, name, role) = match spec {
                InputSpec::Parameter { arg, parameter_name } => {
                    (arg, parameter_name, InputRole::Parameter { trainable: false, aliases: vec![] })
                }
                InputSpec::Buffer { arg, buffer_name, persistent } => {
                    (arg, buffer_name, InputRole::Buffer { persistent: *persistent })
                }
                InputSpec::TensorConstant { arg, tensor_constant_name } => {
                    (arg, tensor_constant_name, InputRole::Constant)
                }
                InputSpec::UserInput { arg } => {
                    self.user_input(arg, importer, scope)?;
                    continue;
                }
                _ => continue,
            };
            if name.is_empty() || !seen.insert(name) {
                return Err(refuse!(
                    Signature,
                    "the name `{}` of a tensor is empty or stands twice",
                    shown(name)
                ));
            }
            let slot = self.held(program, importer, scope, arg, name, role, &mut by_entry)?;
            scope.slots.insert(&arg.name, Slot::Tensor(slot));
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn held(
        &mut self,
        program: &Program,
        importer: &mut Importer,
        scope: &Scope,
        arg: &Named,
        name: &str,
        role: InputRole,
        by_entry: &mut HashMap<String, Vec<usize>>,
    ) -> Result<TensorId> {
        let (placed, stored) = program.tensors.find(name)?;
        let meta = scope.meta(&arg.name)?;
        let ty = importer.sizes.ty(meta, &arg.name)?;
        if (ty.dtype, &ty.shape) != (placed.dtype, &placed.layout.shape) {
            let (dtype, shape) = (placed.dtype, &placed.layout.shape);
            let how = if stored.is_some() { "stored" } else { "given" };
            return Err(refuse!(
                Weights,
                "`{}` is {how} as {dtype}{shape}, the graph uses {ty}",
                shown(name)
            ));
        }
        let parameter = matches!(role, InputRole::Parameter { .. });
        let trainable = parameter && meta.requires_grad && ty.dtype.is_float();
        let peers = by_entry.entry(placed.storage.clone()).or_default();
        if let Some(&at) = peers.iter().find(|&&at| self.holders[at].placed.same_as(&placed)) {
            return self.tie(importer, at, name, role, trainable);
        }
        peers.push(self.holders.len());
        let role = match role {
            InputRole::Parameter { aliases, .. } => InputRole::Parameter { trainable, aliases },
            other => other,
        };
        let layout = placed.layout.clone();
        let value = importer.b.input(name, ty, role);
        let tensor = importer.tensors.root(value, layout);
        self.names.insert(name.to_string(), self.holders.len());
        self.stored.push(stored.clone());
        self.holders.push(Holder { tensor, value, name: name.to_string(), placed, stored, trainable });
        Ok(tensor)
    }

    /// Gives a holder another name. What is no parameter itself sees a parameter without gradient.
    fn tie(
        &mut self,
        importer: &mut Importer,
        at: usize,
        name: &str,
        role: InputRole,
        trainable: bool,
    ) -> Result<TensorId> {
        self.names.insert(name.to_string(), at);
        let holder = &mut self.holders[at];
        holder.trainable |= trainable;
        let graph = importer.b.graph_mut();
        let position = graph.input_index(holder.value).unwrap_or_default();
        let input = &mut graph.inputs[position];
        match (&mut input.role, &role) {
            (InputRole::Parameter { trainable: t, aliases }, _) => {
                *t |= trainable;
                aliases.push(name.to_string());
            }
            // The parameter keeps its role; the name met first becomes the alias.
            (own, InputRole::Parameter { .. }) => {
                let alias = std::mem::replace(&mut input.name, name.to_string());
                *own = InputRole::Parameter { trainable, aliases: vec![alias] };
                holder.name = name.to_string();
            }
            // Both names stay in the state dict, as inputs of their own, which share memory while importing.
            _ => {
                let ty = graph.ty(holder.value).clone();
                let (placed, stored) = (holder.placed.clone(), holder.stored.clone());
                let tensor = holder.tensor;
                let value = importer.b.input(name, ty, role);
                self.names.insert(name.to_string(), self.holders.len());
                self.stored.push(stored.clone());
                let name = name.to_string();
                self.holders.push(Holder { tensor, value, name, placed, stored, trainable: false });
                return Ok(tensor);
            }
        }
        let tensor = holder.tensor;
        match role {
            InputRole::Parameter { .. } => Ok(tensor),
            _ => importer.tensors.without_gradient(&mut importer.b, tensor),
        }
    }

    fn user_input<'a>(
        &mut self,
        arg: &'a Argument,
        importer: &mut Importer<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        match arg {
            Argument::AsTensor(t) => {
                let meta = scope.meta(&t.name)?;
                let ty = importer.sizes.ty(meta, &t.name)?;
                let layout = importer.sizes.layout(meta, &ty)?;
                let value = importer.b.input(&t.name, ty, InputRole::User);
                let tensor = importer.tensors.root(value, layout);
                self.stored.push(None);
                self.users.push((tensor, value, t.name.clone()));
                scope.slots.insert(&t.name, Slot::Tensor(tensor));
            }
            Argument::AsSymInt(SymIntArgument::AsName(name)) => {
                let value = scope.recorded(name, &mut importer.sizes)?;
                scope.slots.insert(name, Slot::Number(value));
            }
            other => {
                let slot = scope.value(other);
                other.names(&mut |n| {
                    scope.slots.insert(n, slot);
                });
            }
        }
        Ok(())
    }

    /// Names the graph's outputs.
    pub fn outputs<'a>(
        &self,
        program: &'a Program,
        importer: &mut Importer<'a>,
        scope: &Scope<'a>,
    ) -> Result<()> {
        let mut position = 0;
        let mut contents: HashMap<ValueId, ValueId> = HashMap::new();
        let read = |importer: &mut Importer<'a>, name: &str| match scope.slot(name) {
            Slot::Tensor(t) if importer.selected.contains_key(&t) => {
                let mut report = Unsupported::default();
                let reason =
                    "the model returns elements that a mask selects; how many they are depends on the data";
                report.add(name, reason, &Origin::default());
                Err(Error::Unsupported(report))
            }
            Slot::Tensor(t) => importer.tensors.read(&mut importer.b, t),
            _ => Err(refuse!(Signature, "output `{}` is not a tensor", shown(name))),
        };
        for spec in &program.model.graph_module.signature.output_specs {
            match spec {
                OutputSpec::UserOutput { arg } => {
                    if let Argument::AsTensor(t) = arg {
                        let value = read(importer, &t.name)?;
                        importer.b.output(format!("output.{position}"), value, OutputRole::User);
                    } else {
                        let message =
                            format!("user output {position} is {}, not a tensor; left out", arg.kind());
                        importer.notes.add(message, &importer.origin);
                    }
                    position += 1;
                }
                OutputSpec::LossOutput { arg } => {
                    let value = read(importer, &arg.name)?;
                    importer.b.output(format!("output.{position}"), value, OutputRole::User);
                    position += 1;
                }
                OutputSpec::BufferMutation { arg, buffer_name: name }
                | OutputSpec::ParameterMutation { arg, parameter_name: name } => {
                    let holder = self.names.get(name).and_then(|&at| self.holders.get(at));
                    let holder = holder.ok_or_else(|| {
                        refuse!(Signature, "the model writes `{}`, which it does not have", shown(name))
                    })?;
                    if matches!(spec, OutputSpec::ParameterMutation { .. }) {
                        let mut report = Unsupported::default();
                        let reason = "the forward pass writes this parameter, as momentum encoders do, and decomposed its \
                                      gradients are not those of the module: export with decompose=False";
                        report.add(name, reason, &Origin::default());
                        return Err(Error::Unsupported(report));
                    }
                    let value = read(importer, &arg.name)?;
                    // Every name of the memory sees it.
                    for peer in self.holders.iter().filter(|h| h.tensor == holder.tensor) {
                        contents.insert(peer.value, value);
                    }
                }
                OutputSpec::UserInputMutation { arg, user_input_name: name } => {
                    let user = self.users.iter().find(|u| u.2 == *name);
                    let &(_, target, _) = user.ok_or_else(|| {
                        refuse!(Signature, "the model writes input `{}`, which it has not", shown(name))
                    })?;
                    contents.insert(target, read(importer, &arg.name)?);
                }
                OutputSpec::Token { .. } => {}
                OutputSpec::GradientToParameter { .. } | OutputSpec::GradientToUserInput { .. } => {
                    return Err(refuse!(
                        Signature,
                        "the export contains its own backward pass; export the forward computation of the loss"
                    ));
                }
            }
        }
        // Buffers and parameters that were written in place.
        let held = self.holders.iter().map(|h| (h.tensor, h.value));
        for (tensor, target) in held.chain(self.users.iter().map(|u| (u.0, u.1))) {
            let (root, written) = importer.tensors.root_of(tensor);
            if written {
                contents.insert(target, importer.tensors.read(&mut importer.b, root)?);
            }
        }
        // Inputs are fed anew each time: nobody would read their new content, unless he says so.
        for (_, target, name) in self.users.iter().filter(|_| !program.function) {
            if contents.remove(target).is_some_and(|new| new != *target) {
                let note =
                    format!("the model writes its input `{}`; what is fed stays as it is", shown(name));
                importer.notes.add(note, &Origin::default());
            }
        }
        let users = self.users.iter().map(|u| (u.1, &u.2));
        for (target, name) in self.holders.iter().map(|h| (h.value, &h.name)).chain(users) {
            let Some(&value) = contents.get(&target).filter(|&&v| v != target) else { continue };
            if importer.b.ty(value) != importer.b.ty(target) {
                let (got, want) = (importer.b.ty(value).clone(), importer.b.ty(target));
                return Err(refuse!(Mismatch, "`{}` of type {want} is written as {got}", shown(name)));
            }
            importer.b.output(name.clone(), value, OutputRole::Mutation(target));
        }
        self.check_sharing(&contents)
    }

    /// Places of all tensors of state.
    pub fn placed(&self) -> impl Iterator<Item = &Placed> + Clone {
        self.holders.iter().map(|h| &h.placed)
    }

    /// Memory that changes must not be shared in part: its other tensors would not follow.
    fn check_sharing(&self, contents: &HashMap<ValueId, ValueId>) -> Result<()> {
        let mut by_entry: HashMap<&str, Vec<(bool, &Holder)>> = HashMap::new();
        for h in &self.holders {
            let changes = h.trainable || contents.contains_key(&h.value);
            by_entry.entry(&h.placed.storage).or_default().push((changes, h));
        }
        for holders in by_entry.values_mut() {
            // Holders that change come first: they claim their bytes, the others must not touch these.
            holders.sort_by_key(|(changes, h)| (!changes, h.placed.extent()));
            holders.dedup_by_key(|(_, h)| h.tensor);
            let apart = holders.windows(2).all(|w| w[0].1.placed.extent().1 <= w[1].1.placed.extent().0);
            if !holders[0].0 || apart {
                continue;
            }
            let length = holders[0].1.placed.length;
            let mut claimed = vec![0u64; length / 64 + 1];
            let mut budget = length.saturating_mul(64);
            for (changes, h) in holders {
                let size = h.placed.dtype.size();
                budget = budget.checked_sub(h.placed.layout.shape.numel() * size).ok_or_else(|| {
                    refuse!(Budget, "too many tensors share the storage `{}`", shown(&h.placed.storage))
                })?;
                for at in crate::weights::walk(&h.placed.layout) {
                    for byte in at as usize * size..(at as usize + 1) * size {
                        let (word, bit) = (&mut claimed[byte / 64], 1 << (byte % 64));
                        if *word & bit != 0 {
                            return Err(refuse!(
                                Weights,
                                "`{}` shares part of its memory with another tensor, and one of them changes; make them \
                                 separate tensors before exporting",
                                shown(&h.name)
                            ));
                        }
                        *word |= if *changes { bit } else { 0 };
                    }
                }
            }
        }
        Ok(())
    }
}
