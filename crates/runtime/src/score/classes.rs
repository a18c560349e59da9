//! Labels of samples, tokens or pixels counted against logits.

use super::{ByClass, LISTED, OneClass};
use headwater_core::{Tensor, TensorType};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Labels that PyTorch's cross entropy leaves out by default.
const IGNORED: i64 = -100;

/// Classes beyond which there are no counts by label and prediction.
pub(super) const CLASSES: usize = 1000;

/// Mean negative log-likelihoods this near to the loss, relative, are the loss.
pub(super) const SAME_LOSS: f64 = 1e-3;

/// Logits that are counted in one piece. Pieces depend on sizes alone, so that sums have the same bits on any
/// number of threads.
const PIECE: usize = 1 << 18;

/// Logits of a batch, with classes along one dimension.
#[derive(Clone, Copy)]
pub(super) struct Logits<'a> {
    pub ty: &'a TensorType,
    /// Row-major, little-endian.
    pub bytes: &'a [u8],
    /// The dimension of the classes.
    pub dim: usize,
    pub classes: usize,
    /// True if a place is a token, which the logits of the one before may predict.
    pub tokens: bool,
    /// True if likelihoods are requested, which tokens need in any case.
    pub likely: bool,
    /// Number of the largest logits that count for the top-k accuracy.
    pub k: usize,
}

/// Counts of labels by the logits at their places.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub counted: u64,
    pub right: u64,
    pub top: u64,
    /// Sum of the negative log-likelihoods, if requested.
    pub nll: f64,
    /// Counts by label, then by prediction; empty if there are too many classes.
    pub confusion: Vec<u64>,
    /// Distance of the mean negative log-likelihood from the loss, relative, summed over the batches.
    apart: f64,
    batches: usize,
}

/// Counts of a piece of a batch.
#[derive(Default)]
struct Part {
    counted: u64,
    right: u64,
    top: u64,
    nll: f64,
    /// Cells of the confusion matrix.
    cells: Vec<u32>,
}

impl Counts {
    /// True if the logits, read this way, give the model's loss.
    pub fn fits(&self) -> bool {
        self.counted > 0 && self.apart / self.batches as f64 <= SAME_LOSS
    }
}

/// Counts a batch: in `counts[0]` labels by the logits at their own place, in `counts[1]`, of tokens, by
/// those one place before.
pub(super) fn add(counts: &mut [Counts; 2], labels: &[i64], logits: Logits, loss: f64) {
    let shape = &logits.ty.shape;
    let inner: usize = shape[logits.dim + 1..].iter().product();
    let outer: usize = shape[..logits.dim].iter().product();
    let block = inner * logits.classes;
    if block == 0 {
        return;
    }
    let together = (PIECE / block).max(1);
    let mut parts = in_parallel(outer.div_ceil(together), |piece| {
        let blocks = piece * together..outer.min((piece + 1) * together);
        part(labels, logits, inner, blocks)
    });
    for (shift, counts) in counts.iter_mut().enumerate().take(1 + logits.tokens as usize) {
        if counts.confusion.is_empty() && logits.classes <= CLASSES {
            counts.confusion = vec![0; logits.classes * logits.classes];
        }
        let (mut nll, mut counted) = (0.0, 0);
        for part in parts.iter_mut().map(|p| std::mem::take(&mut p[shift])) {
            nll += part.nll;
            counted += part.counted;
            counts.right += part.right;
            counts.top += part.top;
            part.cells.into_iter().for_each(|cell| counts.confusion[cell as usize] += 1);
        }
        counts.nll += nll;
        counts.counted += counted;
        if counted > 0 && logits.tokens {
            let mean = nll / counted as f64;
            counts.apart += ((mean - loss) / loss.abs().max(f64::MIN_POSITIVE)).abs();
            counts.batches += 1;
        }
    }
}

/// Counts the labels of some blocks `[classes, inner]` of the logits.
fn part(labels: &[i64], logits: Logits, inner: usize, blocks: std::ops::Range<usize>) -> [Part; 2] {
    let Logits { ty, bytes, dim, classes, tokens, likely, k } = logits;
    let mut parts = <[Part; 2]>::default();
    let block = inner * classes;
    let size = ty.dtype.size() * block;
    let piece = TensorType::new(ty.dtype, [blocks.len() * block]);
    let values = Tensor::from_bytes(&piece, &bytes[blocks.start * size..blocks.end * size]);
    let length = if tokens { ty.shape[dim - 1] } else { 0 };
    let class = |place: usize| {
        let label = labels.get(place).copied().filter(|label| *label != IGNORED)?;
        usize::try_from(label).ok().filter(|class| *class < classes)
    };
    let mut row = vec![0.0; classes];
    for (at, values) in blocks.clone().zip(values.floats().chunks_exact(block)) {
        for i in 0..inner {
            let place = at * inner + i;
            // The logits of a sequence's last token predict none of it.
            let next = (tokens && !(place + 1).is_multiple_of(length)).then(|| class(place + 1)).flatten();
            let predicted = [class(place), next];
            if predicted == [None; 2] {
                continue;
            }
            row.iter_mut().enumerate().for_each(|(c, x)| *x = values[c * inner + i]);
            let largest = row.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let sum = if likely { row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln() } else { 0.0 };
            // A row with NaN is never right.
            let known = !row.iter().any(|x| x.is_nan());
            let best = row.iter().position(|x| *x == largest).filter(|_| known && classes <= CLASSES);
            for (part, class) in parts.iter_mut().zip(predicted) {
                let Some(class) = class else { continue };
                let own = row[class];
                // The first of equal logits wins.
                let ahead = |(c, x): (usize, &f64)| *x > own || (*x == own && c < class);
                let before = row.iter().enumerate().filter(|at| ahead(*at)).count();
                part.counted += 1;
                part.right += (known && before == 0) as u64;
                part.top += (known && before < k) as u64;
                part.nll += largest + sum - own;
                part.cells.extend(best.map(|best| (class * classes + best) as u32));
            }
        }
    }
    parts
}

/// The results of `work` for 0 to `n`, in order, by as many threads as the machine has.
fn in_parallel<T: Send>(n: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(n)));
    let run = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                return;
            }
            let result = work(i);
            done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((i, result));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |t| t.get()).min(n);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // If the system starts no thread, this one does all of the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, run);
        }
        run();
    });
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_unstable_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Means over the classes that occur as label or prediction.
pub(super) fn by_class(confusion: &[u64], classes: usize) -> ByClass {
    let (mut sums, mut present, mut each) = (ByClass::default(), 0.0, Vec::new());
    let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    for c in 0..classes {
        let hits = confusion[c * classes + c];
        let labelled: u64 = confusion[c * classes..][..classes].iter().sum();
        let predicted: u64 = (0..classes).map(|l| confusion[l * classes + c]).sum();
        if classes <= LISTED {
            each.push(OneClass {
                name: None,
                labels: labelled,
                predicted,
                precision: ratio(hits, predicted),
                recall: ratio(hits, labelled),
                f1: ratio(2 * hits, labelled + predicted),
            });
        }
        if labelled + predicted == 0 {
            continue;
        }
        present += 1.0;
        sums.precision += ratio(hits, predicted);
        sums.recall += ratio(hits, labelled);
        sums.f1 += ratio(2 * hits, labelled + predicted);
        sums.iou += ratio(hits, labelled + predicted - hits);
    }
    let rows = confusion.chunks(classes).map(<[u64]>::to_vec).collect();
    let mean = |x: f64| if present > 0.0 { x / present } else { 0.0 };
    ByClass {
        precision: mean(sums.precision),
        recall: mean(sums.recall),
        f1: mean(sums.f1),
        iou: mean(sums.iou),
        confusion: rows,
        each,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_core::DType;

    /// A batch of several pieces is the sum of its samples one by one, up to the order of a sum.
    #[test]
    fn pieces_add_up() {
        let (batch, length, classes) = (3, 700, 257);
        assert!(batch * length * classes > 2 * PIECE);
        let noise = |i: usize| ((i * 2_654_435_761) % 1009) as f64 / 1009.0;
        let ty = TensorType::new(DType::F32, [batch, length, classes]);
        let all = Tensor::float(DType::F32, ty.shape.clone(), (0..ty.shape.numel()).map(noise).collect());
        let labels: Vec<i64> = (0..batch * length).map(|i| (i * 31 % classes) as i64).collect();
        let bytes = all.to_bytes();
        let counted = |ty: &TensorType, labels: &[i64], bytes: &[u8], counts: &mut [Counts; 2]| {
            add(counts, labels, Logits { ty, bytes, dim: 2, classes, tokens: true, likely: true, k: 5 }, 1.0);
        };
        let mut whole = <[Counts; 2]>::default();
        counted(&ty, &labels, &bytes, &mut whole);
        let mut single = <[Counts; 2]>::default();
        let one = TensorType::new(DType::F32, [1, length, classes]);
        for (labels, bytes) in labels.chunks(length).zip(bytes.chunks(one.bytes())) {
            counted(&one, labels, bytes, &mut single);
        }
        for (a, b) in whole.iter().zip(&single) {
            assert_eq!((a.counted, a.right, a.top), (b.counted, b.right, b.top));
            assert_eq!(a.confusion, b.confusion);
            // Sums of 2,100 numbers of one sign in another order.
            assert!((a.nll - b.nll).abs() <= 2100.0 * f64::EPSILON * a.nll, "{} and {}", a.nll, b.nll);
        }
        assert_eq!((whole[0].counted, whole[1].counted), (2100, 2097));
        assert!(whole[0].confusion.iter().sum::<u64>() == 2100 && whole[0].right != whole[1].right);
    }
}
