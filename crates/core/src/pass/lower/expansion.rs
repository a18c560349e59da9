//! Nodes that a device computes by their expansion.

use super::Lowering;
use super::draft::{Buffer, Storage};
use crate::attr::Attrs;
use crate::diagnostic::{Code, Error, Result};
use crate::expand::{self, Memory, View};
use crate::graph::Node;
use crate::ops::{OpCx, OpDef};
use crate::plan::Work;
use crate::shape::Layout;
use crate::target::Port;
use crate::tensor::TensorType;

impl Lowering<'_> {
    /// Lowers a node to the steps of its expansion. False if these layouts have none: the node stays one
    /// step, which the device refuses or runs through the reference.
    pub(super) fn expanded(
        &mut self,
        node: &Node,
        cx: &OpCx,
        reads: &[Option<Storage>],
        writes: &[Storage],
        flops: f64,
    ) -> Result<bool> {
        let Some(expansion) = expand::find(node.op) else { return Ok(false) };
        let view = |memory, s: &Storage| View { memory, dtype: s.dtype, layout: s.layout.clone() };
        let inputs = reads.iter().enumerate().map(|(i, s)| s.as_ref().map(|s| view(Memory::Read(i), s)));
        let outputs = writes.iter().enumerate().map(|(i, s)| view(Memory::Write(i), s));
        let sequence =
            match expansion.steps(cx, inputs.collect(), outputs.collect(), self.target.memory.expansion) {
                Ok(sequence) => sequence,
                Err(e) if e.code == Code::Unsupported => return Ok(false),
                Err(e) => return Err(e),
            };
        let first = self.buffers.len();
        let temporary = |&bytes: &usize| Buffer { value: node.outputs[0], bytes, place: None };
        self.buffers.extend(sequence.temporaries.iter().map(temporary));
        let storage = |view: View| {
            let buffer = match view.memory {
                Memory::Read(i) => reads[i].as_ref().map(|s| s.buffer),
                Memory::Write(i) => Some(writes[i].buffer),
                Memory::Temporary(i) => Some(first + i),
            };
            let missing = || Error::new(Code::Graph, "an expansion reads an input that is left out");
            Ok(Storage { buffer: buffer.ok_or_else(missing)?, dtype: view.dtype, layout: view.layout })
        };
        // The node's operations count once.
        let mut flops = flops;
        for step in sequence.steps {
            let reads: Vec<_> =
                step.reads.into_iter().map(|v| v.map(storage).transpose()).collect::<Result<_>>()?;
            let writes = step.writes.into_iter().map(storage).collect::<Result<_>>()?;
            let flops = std::mem::take(&mut flops);
            match step.work {
                Work::Kernel { op, attrs } => self.kernel_of(node, op, attrs, reads, writes, flops),
                rows => self.push(node, rows, reads, writes, None, flops),
            }
        }
        Ok(true)
    }

    /// Adds a step of an expansion that is an operator of its own: with its workspace, on contiguous copies
    /// where the device does not take an operand with its strides.
    fn kernel_of(
        &mut self,
        node: &Node,
        op: &'static OpDef,
        attrs: Attrs,
        mut reads: Vec<Option<Storage>>,
        mut writes: Vec<Storage>,
        flops: f64,
    ) {
        let ty = |s: &Storage| TensorType { dtype: s.dtype, shape: s.layout.shape.clone() };
        let types: Vec<Option<TensorType>> = reads.iter().map(|s| s.as_ref().map(ty)).collect();
        let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: &attrs };
        let outs: Vec<TensorType> = writes.iter().map(ty).collect();
        let operators = &self.target.operators;
        let taken = |s: &Storage, port| s.layout.is_contiguous() || operators.strided(op, &cx, &outs, port);
        let strided: Vec<usize> = (0..reads.len())
            .filter(|&i| reads[i].as_ref().is_some_and(|s| !taken(s, Port::Read(i))))
            .collect();
        let gapped: Vec<usize> = (0..writes.len()).filter(|&i| !taken(&writes[i], Port::Write(i))).collect();
        let bytes = operators.workspace(op, &cx, &outs);
        for i in strided {
            let Some(own) = reads[i].clone() else { continue };
            let copy = self.temporary(node, &own);
            self.copy(node, own, copy.clone());
            reads[i] = Some(copy);
        }
        let targets: Vec<(Storage, Storage)> = gapped
            .into_iter()
            .map(|i| {
                let copy = self.temporary(node, &writes[i]);
                (copy.clone(), std::mem::replace(&mut writes[i], copy))
            })
            .collect();
        let workspace = (bytes > 0).then(|| self.workspace(node, bytes));
        self.push(node, Work::Kernel { op, attrs }, reads, writes, workspace, flops);
        for (from, to) in targets {
            self.copy(node, from, to);
        }
    }

    /// Contiguous memory for the elements of an operand, in a buffer of its own.
    fn temporary(&mut self, node: &Node, of: &Storage) -> Storage {
        let layout = Layout::contiguous(&of.layout.shape);
        let bytes = layout.shape.numel() * of.dtype.size();
        self.buffers.push(Buffer { value: node.outputs[0], bytes, place: None });
        Storage { buffer: self.buffers.len() - 1, dtype: of.dtype, layout }
    }
}
