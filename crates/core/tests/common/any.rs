//! A device that takes everything as it is, without workspace.

use headwater_core::device::{Caps, Port, Support};
use headwater_core::{OpCx, OpDef, TensorType};

pub struct Any;

impl Caps for Any {
    fn support(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> Support {
        Support::Native
    }
    fn workspace(&self, _: &OpDef, _: &OpCx, _: &[TensorType]) -> usize {
        0
    }
    fn strided(&self, _: &OpDef, _: Port) -> bool {
        true
    }
}
