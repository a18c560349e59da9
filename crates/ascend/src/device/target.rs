//! What passes see of an NPU. Every step runs through the reference as long as no kernels are made for it here, so
//! types are those of the interpreter, and no kernel needs a workspace.

use crate::chip::Arch;
use crate::host::memory::ALIGN;
use headwater_core::TensorType;
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::row::RowProgram;
use headwater_core::target::{MemorySpace, Operators, Port, Support, Target};
use std::sync::Arc;

/// Operators of an NPU.
#[derive(Debug)]
struct OnHost;

impl Operators for OnHost {
    fn support(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> Support {
        Support::Reference
    }

    fn workspace(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        0
    }

    fn strided(&self, _: &OpDef, _: &OpCx, _: &[TensorType], _: Port) -> bool {
        true
    }

    fn program(&self, _: &RowProgram) -> Support {
        Support::Reference
    }
}

/// The target of a device with so many bytes of memory.
pub(super) fn target(name: &str, arch: Arch, bytes: usize) -> Target {
    let space = if arch == Arch::P310 { "ddr" } else { "hbm" };
    let mut target = Target::generic(Arc::new(OnHost));
    target.name = name.into();
    target.memory.alignment = ALIGN;
    target.memory.spaces = vec![MemorySpace { name: space.into(), bytes: Some(bytes as u64), host: false }];
    target
}
