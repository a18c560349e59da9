//! Steps of plans on bytes of memory, through the interpreter: what a device runs where it has no kernel of
//! its own.

use super::{apply, rows};
use crate::diagnostic::Result;
use crate::plan::{SegmentId, Step, TensorView, Work};
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};

/// The bytes of a plan's segments.
pub trait Segments {
    /// The bytes of a segment; `None` if there is no such.
    fn bytes(&self, segment: SegmentId) -> Option<&[u8]>;
    /// The bytes of a segment that a step writes; `None` if there is no such.
    fn bytes_mut(&mut self, segment: SegmentId) -> Option<&mut [u8]>;
}

impl Segments for Vec<Vec<u8>> {
    fn bytes(&self, segment: SegmentId) -> Option<&[u8]> {
        self.get(segment.0 as usize).map(Vec::as_slice)
    }

    fn bytes_mut(&mut self, segment: SegmentId) -> Option<&mut [u8]> {
        self.get_mut(segment.0 as usize).map(Vec::as_mut_slice)
    }
}

/// Runs a step on the bytes of a plan's segments, in order. What it writes is rounded once to the operand's
/// dtype.
///
/// # Errors
/// `Plan` for a view outside its segment, `Value` for data out of range, and what the operator refuses.
pub fn step(step: &Step, segments: &mut dyn Segments) -> Result<()> {
    let mut reads: Vec<Option<&TensorView>> = step.reads.iter().map(Option::as_ref).collect();
    if let (true, Some(first)) = (step.work.is_update(), reads.first_mut()) {
        *first = step.writes.first();
    }
    let inputs = reads.into_iter().map(|v| v.map(|v| load(v, segments)).transpose());
    let inputs = inputs.collect::<Result<Vec<Option<Tensor>>>>()?;
    let outs: Vec<TensorType> = step.writes.iter().map(TensorView::ty).collect();
    let results = match &step.work {
        Work::Rows(program) => rows::run(program, &inputs.iter().flatten().collect::<Vec<_>>(), &outs)?,
        Work::Kernel { op, attrs } => {
            apply(op, attrs, &inputs.iter().map(Option::as_ref).collect::<Vec<_>>(), &outs)?
        }
    };
    step.writes.iter().zip(&results).try_for_each(|(v, t)| store(v, t, segments))
}

/// First byte of every element of a view, in row-major order, in a segment of so many bytes.
///
/// # Errors
/// `Plan` if it leaves its segment.
pub fn places(view: &TensorView, bytes: usize) -> Result<Vec<usize>> {
    let outside = || fail!(Plan, "the view {view:?} lies outside its segment of {bytes} bytes");
    let size = view.dtype.size();
    let layout = &view.layout;
    if layout.shape.checked_numel().ok_or_else(outside)? == 0 {
        return Ok(Vec::new());
    }
    // Walking takes a stride more than there are steps.
    let walks = |(&n, &stride): (&usize, &isize)| isize::try_from(n).ok()?.checked_mul(stride);
    let all = layout.shape.iter().zip(&layout.strides).map(walks);
    let reach = all.map(|w| w?.checked_abs()).try_fold(0isize, |sum, w| sum.checked_add(w?));
    reach.and_then(|r| r.checked_add(layout.offset.checked_abs()?)).ok_or_else(outside)?;
    let place = |o: isize| {
        let at = isize::try_from(view.place.offset).ok()?.checked_add(o.checked_mul(size as isize)?)?;
        usize::try_from(at).ok().filter(|at| at.checked_add(size).is_some_and(|end| end <= bytes))
    };
    layout.offsets().into_iter().map(place).collect::<Option<_>>().ok_or_else(outside)
}

/// Reads a view.
///
/// # Errors
/// `Plan` if it is outside its segment.
pub fn load(view: &TensorView, segments: &dyn Segments) -> Result<Tensor> {
    let segment = segments.bytes(view.place.segment);
    let segment = segment.ok_or_else(|| fail!(Plan, "the view {view:?} names no segment"))?;
    let size = view.dtype.size();
    let bytes: Vec<u8> =
        places(view, segment.len())?.into_iter().flat_map(|at| &segment[at..at + size]).copied().collect();
    Ok(Tensor::from_bytes(&view.ty(), &bytes))
}

/// Writes a tensor of a view's type.
///
/// # Errors
/// `Graph` if its type is another, `Plan` if the view is outside its segment.
pub fn store(view: &TensorView, t: &Tensor, segments: &mut dyn Segments) -> Result<()> {
    ensure!(t.ty == view.ty(), Graph, "a result is {}, planned as {}", t.ty, view.ty());
    let segment = segments.bytes_mut(view.place.segment);
    let segment = segment.ok_or_else(|| fail!(Plan, "the view {view:?} names no segment"))?;
    let size = view.dtype.size();
    for (at, element) in places(view, segment.len())?.into_iter().zip(t.to_bytes().chunks_exact(size)) {
        segment[at..at + size].copy_from_slice(element);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Place;
    use crate::{DType, Layout};

    fn view(offset: usize, shape: &[usize], strides: &[isize]) -> TensorView {
        TensorView {
            place: Place { segment: SegmentId(0), offset },
            dtype: DType::I16,
            layout: Layout { shape: shape.into(), strides: strides.into(), offset: 0 },
        }
    }

    #[test]
    fn strided_views_are_read_and_written_where_they_lie() {
        let mut segments = vec![(0..12u16).flat_map(u16::to_le_bytes).collect::<Vec<u8>>()];
        let transposed = view(2, &[3, 2], &[1, 4]);
        let t = load(&transposed, &segments).unwrap();
        assert_eq!(t.ints(), [1, 5, 2, 6, 3, 7]);
        store(&view(2, &[3, 2], &[2, 1]), &t, &mut segments).unwrap();
        assert_eq!(load(&view(0, &[8], &[1]), &segments).unwrap().ints(), [0, 1, 5, 2, 6, 3, 7, 7]);
    }

    #[test]
    fn views_outside_their_segment_are_refused() {
        let segments = vec![vec![0; 8]];
        for v in [view(2, &[4], &[1]), view(0, &[2], &[-1]), view(0, &[2], &[isize::MAX])] {
            assert_eq!(load(&v, &segments).unwrap_err().code, crate::Code::Plan);
        }
    }
}
