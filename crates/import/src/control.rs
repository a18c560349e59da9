//! Nodes that compute no tensor: assertions, symbolic numbers, and sub-graphs to be inlined, chosen branches
//! among them.

use crate::arguments::Obstacle;
use crate::error::{Result, refuse, shown};
use crate::importer::{Importer, Made, refused};
use crate::schema::{Argument, GraphArgument, Node, SymBoolArgument, SymFloatArgument, SymIntArgument};
use crate::scope::{self, Scope, Slot};
use crate::symbolic::{Function, Number};
use crate::ways_out;
use crate::weights::{Element, element_of};
use headwater_core::attr::KEEPS_TYPES;
use headwater_core::ops::movement::stack::STACK;
use headwater_core::shape::wrap_dim;
use headwater_core::{Attrs, Layout, Shape, ValueId};

impl<'a> Importer<'a> {
    /// Checks an assertion where its operands are known, otherwise drops it with a note.
    pub fn assertion(&mut self, scope: &mut Scope<'a>, node: &'a Node) -> Result<()> {
        let target = scope::short(&node.target);
        let operand = node.inputs.first().map_or(Slot::Nothing, |i| scope.value(&i.arg));
        for name in scope::output_names(&node.outputs).into_iter().flatten() {
            scope.slots.insert(name, Slot::Nothing);
        }
        match (scope::base(target).1, operand) {
            ("_assert_scalar" | "_functional_assert_scalar", Slot::Number(Some(n))) => {
                if n.float() == 0.0 {
                    let message = node.inputs.iter().find_map(|i| match &i.arg {
                        Argument::AsString(s) => Some(shown(s)),
                        _ => None,
                    });
                    let message = message.unwrap_or_default();
                    return Err(refuse!(
                        Assertion,
                        "an assertion of the model fails at these sizes: {message}"
                    ));
                }
            }
            ("_assert_tensor_metadata", Slot::Tensor(t)) => {
                let asked = node.inputs.iter().find(|i| i.name == "dtype").map(|i| &i.arg);
                let complex = node.inputs.first().is_some_and(|i| scope.is_complex(&i.arg));
                let have = Element { dtype: self.tensors.ty(&self.b, t).dtype, complex };
                if let Some(Argument::AsScalarType(code)) = asked
                    && element_of(*code) != Ok(have)
                {
                    let have = if complex { "complex numbers".into() } else { have.dtype.to_string() };
                    return Err(refuse!(
                        Assertion,
                        "the model asserts dtype code {code} of a tensor of {have}"
                    ));
                }
            }
            // The tensor that it would check is used by nothing.
            ("_assert_tensor_metadata", _) => {}
            _ => self.notes.add(format!("{target} dropped: what it checks depends on data"), &self.origin),
        }
        Ok(())
    }

    /// Takes nodes whose results are symbolic numbers. Whether it did.
    pub fn symbolic(&mut self, scope: &mut Scope<'a>, node: &'a Node) -> Result<bool, Obstacle> {
        let name = match &node.outputs[..] {
            [Argument::AsSymInt(SymIntArgument::AsName(n))]
            | [Argument::AsSymBool(SymBoolArgument::AsName(n))]
            | [Argument::AsSymFloat(SymFloatArgument::AsName(n))] => n,
            _ => return Ok(false),
        };
        if scope::base(&node.target).0 == "higher_order" {
            return Ok(false);
        }
        let recorded = scope.recorded(name, &mut self.sizes)?;
        let computed = self.compute(scope, node)?;
        if let (Some(a), Some(b)) = (recorded, computed)
            && Function::Eq.apply(&[a, b])? != Number::Bool(true)
        {
            return Err(refuse!(Mismatch, "`{}` is {b} here, PyTorch recorded {a}", shown(name)).into());
        }
        if let (Some(fixed), None) = (recorded, computed)
            && matches!(scope::base(&node.target), ("aten", "item" | "_local_scalar_dense"))
        {
            let message =
                format!("{} of data taken as {fixed}, as when exporting", scope::short(&node.target));
            self.notes.add(message, &self.origin);
        }
        scope.slots.insert(name, Slot::Number(computed.or(recorded)));
        Ok(true)
    }

    /// The number a symbolic node computes; `None` if only data tells it.
    fn compute(&self, scope: &Scope<'a>, node: &'a Node) -> Result<Option<Number>> {
        let int = |n: Option<usize>| n.and_then(|n| i64::try_from(n).ok()).map(Number::Int);
        let (namespace, name) = scope::base(&node.target);
        if namespace == "aten" {
            let [Slot::Tensor(t), rest @ ..] =
                &node.inputs.iter().map(|i| scope.value(&i.arg)).collect::<Vec<_>>()[..]
            else {
                return Ok(None);
            };
            if self.selected.contains_key(t) {
                return Ok(None);
            }
            let complex = node.inputs.first().is_some_and(|i| scope.is_complex(&i.arg));
            let sizes = &self.tensors.ty(&self.b, *t).shape[..];
            let sizes = &sizes[..sizes.len().saturating_sub(complex as usize)];
            let dim = || match rest.first()? {
                Slot::Number(Some(n)) => wrap_dim(n.int()?, sizes.len()),
                _ => None,
            };
            return Ok(match name {
                "sym_size" => int(dim().and_then(|d| sizes.get(d).copied())),
                "sym_numel" => int(Some(Shape::new(sizes).numel())),
                _ => None,
            });
        }
        let plain = matches!(namespace, "_operator" | "math" | "torch");
        let Some(function) = Function::named(name).filter(|_| plain) else { return Ok(None) };
        let mut numbers = Vec::new();
        for input in &node.inputs {
            for value in listed(scope, &input.arg) {
                match value {
                    Slot::Number(Some(n)) => numbers.push(n),
                    _ => return Ok(None),
                }
            }
        }
        function.apply(&numbers).map(Some)
    }

    /// Inlines the sub-graphs that only steer gradients or precision.
    pub fn higher_order(&mut self, scope: &mut Scope<'a>, node: &'a Node) -> Result<(), Obstacle> {
        let Some(at) = node.inputs.iter().position(|i| matches!(i.arg, Argument::AsGraph(_))) else {
            return Err(Obstacle::Unsupported(ways_out::unknown(&node.target)));
        };
        match scope::base(&node.target).1 {
            "cond" => return self.cond(scope, node),
            "scan" => return self.unrolled(scope, node, true),
            "map_impl" => return self.unrolled(scope, node, false),
            _ => {}
        }
        let flag = |i: usize| match node.inputs.get(i).map(|i| &i.arg) {
            Some(Argument::AsBool(b)) => Some(*b),
            _ => None,
        };
        let grad = match scope::base(&node.target).1 {
            "wrap_with_set_grad_enabled" => match flag(0) {
                Some(on) => on,
                None => return Err(refuse!(Argument, "the first argument must be a bool").into()),
            },
            "wrap_with_autocast" if flag(2) == Some(false) => scope.grad,
            "wrap_with_autocast" => {
                return Err(Obstacle::Unsupported(
                    "the model casts by itself inside `autocast`; export without it, precision is chosen when training"
                        .into(),
                ));
            }
            "tag_activation_checkpoint" | "wrap_activation_checkpoint" => scope.grad,
            _ => return Err(Obstacle::Unsupported(ways_out::unknown(&node.target))),
        };
        let Argument::AsGraph(sub) = &node.inputs[at].arg else { return Ok(()) };
        let operands: Vec<Slot> = node.inputs[at + 1..].iter().map(|i| scope.value(&i.arg)).collect();
        let first = self.b.graph().nodes.len();
        let inner = self.inline(sub, &operands, grad)?;
        if scope::base(&node.target).1 == "wrap_with_autocast" {
            for node in &mut self.b.graph_mut().nodes[first..] {
                node.attrs.set(KEEPS_TYPES, true);
            }
        }
        let names = scope::output_names(&node.outputs);
        let results = scope::output_names(&sub.graph.outputs);
        if names.len() > results.len() {
            let (a, b) = (names.len(), results.len());
            return Err(
                refuse!(Argument, "{a} results are named, sub-graph `{}` has {b}", shown(&sub.name)).into()
            );
        }
        for (name, result) in names.into_iter().zip(results) {
            let (Some(name), Some(result)) = (name, result) else { continue };
            let slot = inner.slot(result);
            if let Slot::Tensor(t) = slot {
                let (meta, ty) = (scope.meta(name)?, self.tensors.ty(&self.b, t).clone());
                let want = self.sizes.ty(meta, name)?;
                self.check(name, &want, &ty)?;
                let value = self.tensors.read(&mut self.b, t)?;
                self.values.entry(name.to_string()).or_insert(value);
            }
            scope.slots.insert(name, slot);
        }
        Ok(())
    }

    /// Imports a sub-graph's nodes on these operands; gives its scope, in which its results are.
    fn inline(&mut self, sub: &'a GraphArgument, operands: &[Slot], grad: bool) -> Result<Scope<'a>> {
        if operands.len() != sub.graph.inputs.len() {
            let (a, b) = (operands.len(), sub.graph.inputs.len());
            return Err(refuse!(Argument, "sub-graph `{}` takes {b} operands, got {a}", shown(&sub.name)));
        }
        let mut inner = Scope::new(&sub.graph, grad);
        for (input, &operand) in sub.graph.inputs.iter().zip(operands) {
            input.names(&mut |n| {
                inner.slots.insert(n, operand);
            });
        }
        self.nodes(&mut inner)?;
        Ok(inner)
    }

    /// Takes `torch.cond`: both branches are computed and the predicate chooses; only one of them where the
    /// sizes decide it. Branches that write are refused.
    fn cond(&mut self, scope: &mut Scope<'a>, node: &'a Node) -> Result<(), Obstacle> {
        let mut arguments = node.inputs.iter().map(|i| &i.arg);
        let (Some(predicate), Some(Argument::AsGraph(yes)), Some(Argument::AsGraph(no))) =
            (arguments.next(), arguments.next(), arguments.next())
        else {
            return Err(refuse!(Argument, "`cond` needs a predicate and two sub-graphs").into());
        };
        if [yes, no].iter().any(|sub| scope::writes(&sub.graph, self.registry)) {
            return Err(Obstacle::Unsupported(
                "a branch of `torch.cond` writes a tensor in place: return the new value instead".into(),
            ));
        }
        let operands: Vec<Slot> = arguments.flat_map(|argument| listed(scope, argument)).collect();
        let predicate = match scope.value(predicate) {
            Slot::Tensor(t) => Err(self.operand(scope, t)?.1),
            Slot::Number(Some(n)) => Ok(n.float() != 0.0),
            _ => return Err(Obstacle::Reported),
        };
        let branches = match predicate {
            Ok(known) => vec![if known { yes } else { no }],
            Err(_) => vec![yes, no],
        };
        let mut results = Vec::new();
        for sub in branches {
            let inner = self.inline(sub, &operands, scope.grad)?;
            let mut values = Vec::new();
            for name in scope::output_names(&sub.graph.outputs) {
                let Some(Slot::Tensor(t)) = name.map(|n| inner.slot(n)) else {
                    return Err(Obstacle::Unsupported("a branch of `torch.cond` returns no tensor".into()));
                };
                values.push(self.tensors.read(&mut self.b, t)?);
            }
            results.push(values);
        }
        let mut made: Vec<Made> = results[0].iter().map(|&v| Made::Value(v)).collect();
        if let (Err(predicate), [yes, no]) = (predicate, &results[..]) {
            if yes.len() != no.len() {
                let (a, b) = (yes.len(), no.len());
                return Err(refuse!(Argument, "the branches of `cond` give {a} and {b} results").into());
            }
            made.clear();
            for (&a, &b) in yes.iter().zip(no) {
                let chosen = self.b.choose(predicate, a, b).map_err(refused)?;
                made.push(Made::Value(chosen));
            }
            self.notes.add(
                "torch.cond: both branches are computed and the predicate chooses; where the derivative of the \
                 other branch is not finite, gradients are NaN",
                &self.origin,
            );
        }
        Ok(self.define(scope, node, &made)?)
    }

    /// Takes `scan` and `map`: the sub-graph once for each index of the first dimension, which is known here.
    /// The first results of a scan step are the first operands of the next. Results of all steps are
    /// stacked.
    fn unrolled(&mut self, scope: &mut Scope<'a>, node: &'a Node, carries: bool) -> Result<(), Obstacle> {
        let mut arguments = node.inputs.iter().filter(|i| i.name.is_empty()).map(|i| &i.arg);
        let Some(Argument::AsGraph(sub)) = arguments.next() else {
            return Err(refuse!(Argument, "a loop needs a sub-graph first").into());
        };
        if scope::writes(&sub.graph, self.registry) {
            return Err(Obstacle::Unsupported(
                "a step of the loop writes a tensor in place: return the new value instead".into(),
            ));
        }
        let mut lists = arguments.map(|argument| listed(scope, argument));
        let mut carry = if carries { lists.next().unwrap_or_default() } else { Vec::new() };
        let (rows, others) = (lists.next().unwrap_or_default(), lists.flatten().collect::<Vec<_>>());
        let mut sequences = Vec::new();
        for row in rows {
            let Slot::Tensor(t) = row else { return Err(Obstacle::Reported) };
            sequences.push(self.operand(scope, t)?.1);
        }
        let lengths: Vec<Option<usize>> =
            sequences.iter().map(|&v| self.b.ty(v).shape.first().copied()).collect();
        let steps = match lengths[..] {
            [Some(n), ..] if lengths.iter().all(|&l| l == Some(n)) => n,
            _ => return Err(refuse!(Argument, "a loop over tensors of different lengths").into()),
        };
        if steps == 0 {
            return Err(Obstacle::Unsupported("a loop without steps: leave it out at this size".into()));
        }
        let mut stacks: Vec<Vec<ValueId>> = Vec::new();
        for step in 0..steps {
            let mut operands = carry.clone();
            for &sequence in &sequences {
                let row = self.b.select(sequence, 0, step).map_err(refused)?;
                let layout = Layout::contiguous(&self.b.ty(row).shape);
                operands.push(Slot::Tensor(self.tensors.root(row, layout)));
            }
            operands.extend(&others);
            let inner = self.inline(sub, &operands, scope.grad)?;
            let mut results = Vec::new();
            for name in scope::output_names(&sub.graph.outputs) {
                let Some(Slot::Tensor(t)) = name.map(|n| inner.slot(n)) else {
                    return Err(Obstacle::Unsupported("a step of the loop returns no tensor".into()));
                };
                results.push(t);
            }
            if results.len() < carry.len() {
                let (a, b) = (results.len(), carry.len());
                return Err(refuse!(Argument, "a step gives {a} results and hands on {b}").into());
            }
            let made = results.split_off(carry.len());
            carry = results.into_iter().map(Slot::Tensor).collect();
            stacks.resize_with(made.len(), Vec::new);
            for (stack, t) in stacks.iter_mut().zip(made) {
                stack.push(self.tensors.read(&mut self.b, t)?);
            }
        }
        let mut made = Vec::new();
        for slot in carry {
            let Slot::Tensor(t) = slot else { return Err(Obstacle::Reported) };
            made.push(Made::Value(self.tensors.read(&mut self.b, t)?));
        }
        for stack in stacks {
            let all = self.b.one(&STACK, &stack, Attrs::new().with("dim", 0)).map_err(refused)?;
            made.push(Made::Value(all));
        }
        self.notes.add(format!("a loop is unrolled: {steps} steps"), &self.origin);
        Ok(self.define(scope, node, &made)?)
    }
}

/// The values of an argument that may be a list.
fn listed(scope: &Scope, argument: &Argument) -> Vec<Slot> {
    match argument {
        Argument::AsNone(_) => Vec::new(),
        Argument::AsTensors(tensors) => tensors.iter().map(|t| scope.slot(&t.name)).collect(),
        Argument::AsInts(list) => list.iter().map(|&i| Slot::Number(Some(Number::Int(i)))).collect(),
        Argument::AsSymInts(list) => list
            .iter()
            .map(|n| match n {
                SymIntArgument::AsInt(i) => Slot::Number(Some(Number::Int(*i))),
                SymIntArgument::AsName(n) => scope.slot(n),
            })
            .collect(),
        one => vec![scope.value(one)],
    }
}
