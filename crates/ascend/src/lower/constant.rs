//! Tensors that the graph holds: devices have their bytes from the time when a plan is loaded, steps copy
//! them.

use super::launch::{LoweredArg, Refusal};
use super::sequence::{Sequence, Tensor};
use crate::chip::Arch;
use headwater_core::attr::Attr;
use headwater_core::ops::OpCx;
use headwater_core::plan::{Place, SegmentId, TensorView};
use headwater_core::{DType, Layout, Shape};

/// The tensor of the attribute `value`, copied to a contiguous result.
///
/// # Errors
/// A value that is no tensor of the result's type; infinities in an odd number of f16 on 310P, whose
/// conversions saturate.
pub fn constant(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let write = s.output(0)?.view;
    let Some(Attr::Tensor(value)) = cx.attrs.get("value") else {
        return Err(Refusal::new("a constant without a value"));
    };
    if value.ty.dtype != write.dtype || value.ty.shape != write.layout.shape {
        return Err(Refusal::new("a constant of another type"));
    }
    let bytes = value.to_bytes();
    if bytes.is_empty() {
        return Ok(());
    }
    let saturates = s.chip.arch == Arch::P310 && write.dtype == DType::F16 && bytes.len() % 4 != 0;
    if saturates && !value.floats().iter().all(|x| x.is_finite()) {
        return Err(Refusal::new("infinities in an odd number of f16"));
    }
    // Bits are moved as they are, in words where there are whole ones.
    let (dtype, shape) = match bytes.len() % 4 {
        0 => (DType::I32, Shape::new(&[bytes.len() / 4])),
        _ => (write.dtype, write.layout.shape.clone()),
    };
    let layout = Layout::contiguous(&shape);
    let view = TensorView { place: Place { segment: SegmentId(u32::MAX), offset: 0 }, dtype, layout };
    s.copy(&Tensor { arg: LoweredArg::Constant { bytes: 0 }, view: view.clone() }, &Tensor::write(0, &view))?;
    s.lowered.constants = bytes;
    Ok(())
}
