//! Strided gather and scatter of the elements of a line.

use std::mem::size_of;

/// Gathers `n` elements with a stride of `stride` elements.
///
/// # Safety
/// They may be read, and so may the elements between them; `n` elements at `to` may be written, and overlap
/// none of them.
pub(super) unsafe fn gather<T: Copy>(from: *const T, stride: usize, n: usize, to: *mut T) {
    // SAFETY: the caller's promise.
    unsafe {
        match (stride, size_of::<T>()) {
            (1, _) => to.copy_from_nonoverlapping(from, n),
            (2, 2) => u16::gather(from.cast(), n, to.cast()),
            (2, 4) => u32::gather(from.cast(), n, to.cast()),
            _ => (0..n).for_each(|i| *to.add(i) = *from.add(i * stride)),
        }
    }
}

/// Scatters `n` elements to memory, with a stride of `stride` elements.
///
/// # Safety
/// `n` elements at `from` may be read; those at `to` may be written, and nobody else uses these or the
/// elements between them meanwhile.
pub(super) unsafe fn scatter<T: Copy>(from: *const T, n: usize, to: *mut T, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match (stride, size_of::<T>()) {
            (1, _) => to.copy_from_nonoverlapping(from, n),
            // Fewer are written one by one: nothing need be read before.
            (2, 2) if n >= 16 => u16::scatter(from.cast(), n, to.cast()),
            (2, 4) if n >= 16 => u32::scatter(from.cast(), n, to.cast()),
            _ => (0..n).for_each(|i| *to.add(i * stride) = *from.add(i)),
        }
    }
}

/// The same, and zeros between them.
///
/// # Safety
/// As [`scatter`]. Numbers whose bits are all zero are zero.
pub(super) unsafe fn scatter_zero<T: Copy>(from: *const T, n: usize, to: *mut T, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match (stride, size_of::<T>()) {
            (1, _) => to.copy_from_nonoverlapping(from, n),
            (2, 2) => u16::spread(from.cast(), n, to.cast()),
            (2, 4) => u32::spread(from.cast(), n, to.cast()),
            _ => {
                to.write_bytes(0, n.saturating_sub(1) * stride + usize::from(n > 0));
                (0..n).for_each(|i| *to.add(i * stride) = *from.add(i));
            }
        }
    }
}

/// Every second element, by pairs of them. Of a few the first half are the earlier ones of pairs, the others
/// the later ones: so nothing is touched before the first or after the last.
macro_rules! halves {
    ($one:ty, $pair:ty) => {
        impl Halves for $one {
            #[inline(always)]
            unsafe fn gather_few<const H: usize>(from: *const Self, to: *mut Self) {
                // SAFETY: the caller's promise.
                unsafe {
                    let early = from.cast::<[$pair; H]>().read_unaligned().map(|x| x.to_le() as $one);
                    let late = from.add(2 * H - 1).cast::<[$pair; H]>().read_unaligned();
                    let late = late.map(|x| (x.to_le() >> <$one>::BITS) as $one);
                    to.cast::<[$one; H]>().write_unaligned(early.map(<$one>::from_le));
                    to.add(H).cast::<[$one; H]>().write_unaligned(late.map(<$one>::from_le));
                }
            }
            #[inline(always)]
            unsafe fn spread_few<const N: usize>(from: *const Self, to: *mut Self) {
                // SAFETY: the caller's promise.
                unsafe {
                    let all = from.cast::<[$one; N]>().read_unaligned();
                    let all = all.map(|x| <$pair>::from_le(<$pair>::from(x.to_le())));
                    to.cast::<[$pair; N]>().write_unaligned(all);
                }
            }
            #[inline(always)]
            unsafe fn scatter_few<const H: usize>(from: *const Self, to: *mut Self) {
                const LOW: $pair = <$one>::MAX as $pair;
                // SAFETY: the caller's promise.
                unsafe {
                    let early = from.cast::<[$one; H]>().read_unaligned();
                    let late = from.add(H).cast::<[$one; H]>().read_unaligned();
                    let [first, second] = [to, to.add(2 * H - 1)].map(|to| to.cast::<[$pair; H]>());
                    // Both are read before one is written: they overlap, and what is on its way to memory is
                    // slow to read.
                    let mut pairs = [first, second].map(|pairs| pairs.read_unaligned());
                    for (pair, x) in pairs[0].iter_mut().zip(early) {
                        *pair = <$pair>::from_le(pair.to_le() & !LOW | <$pair>::from(x.to_le()));
                    }
                    for (pair, x) in pairs[1].iter_mut().zip(late) {
                        let x = <$pair>::from(x.to_le()) << <$one>::BITS;
                        *pair = <$pair>::from_le(pair.to_le() & LOW | x);
                    }
                    first.write_unaligned(pairs[0]);
                    second.write_unaligned(pairs[1]);
                }
            }
        }
    };
}
halves!(u16, u32);
halves!(u32, u64);

/// See [`halves`].
trait Halves: Copy {
    /// `2 H` of them.
    ///
    /// # Safety
    /// As [`gather`].
    unsafe fn gather_few<const H: usize>(from: *const Self, to: *mut Self);
    /// `2 H` of them.
    ///
    /// # Safety
    /// As [`scatter`].
    unsafe fn scatter_few<const H: usize>(from: *const Self, to: *mut Self);

    /// `N` of them, each followed by a zero.
    ///
    /// # Safety
    /// As [`Self::spread`], and one element more may be written.
    unsafe fn spread_few<const N: usize>(from: *const Self, to: *mut Self);

    /// # Safety
    /// As [`gather`].
    unsafe fn gather(from: *const Self, n: usize, to: *mut Self) {
        let mut at = 0;
        // SAFETY: the caller's promise.
        unsafe {
            while n - at >= 16 {
                Self::gather_few::<8>(from.add(2 * at), to.add(at));
                at += 16;
            }
            if n - at >= 8 {
                Self::gather_few::<4>(from.add(2 * at), to.add(at));
                at += 8;
            }
            if n - at >= 4 {
                Self::gather_few::<2>(from.add(2 * at), to.add(at));
                at += 4;
            }
            (at..n).for_each(|i| *to.add(i) = *from.add(2 * i));
        }
    }

    /// # Safety
    /// As [`scatter`].
    unsafe fn scatter(from: *const Self, n: usize, to: *mut Self) {
        let some = n / 16 * 16;
        // SAFETY: the caller's promise.
        unsafe {
            (0..some).step_by(16).for_each(|i| Self::scatter_few::<8>(from.add(i), to.add(2 * i)));
            (some..n).for_each(|i| *to.add(2 * i) = *from.add(i));
        }
    }

    /// # Safety
    /// As [`scatter_zero`].
    unsafe fn spread(from: *const Self, n: usize, to: *mut Self) {
        let mut at = 0;
        // SAFETY: the caller's promise: an element follows those that are loaded as a pair.
        unsafe {
            while n - at > 8 {
                Self::spread_few::<8>(from.add(at), to.add(2 * at));
                at += 8;
            }
            if n - at > 3 {
                Self::spread_few::<3>(from.add(at), to.add(2 * at));
                at += 3;
            }
            while n - at > 1 {
                Self::spread_few::<1>(from.add(at), to.add(2 * at));
                at += 1;
            }
            if n > at {
                *to.add(2 * at) = *from.add(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strided copies, for each count and stride, lose nothing and touch nothing else.
    fn check<T: Copy + PartialEq + std::fmt::Debug>(number: impl Fn(usize) -> T) {
        for stride in 1..4 {
            for n in (0..40_usize).chain([64, 67]) {
                let size = n.saturating_sub(1) * stride + usize::from(n > 0);
                let line: Vec<T> = (0..size).map(&number).collect();
                let mut to: Vec<T> = (0..n + 1).map(|_| number(7)).collect();
                // SAFETY: as many elements as there are.
                unsafe { gather(line.as_ptr(), stride, n, to.as_mut_ptr()) };
                let want: Vec<T> = (0..n).map(|i| number(i * stride)).chain([number(7)]).collect();
                assert_eq!(to, want, "{n} elements {stride} stride");

                let few: Vec<T> = (0..n).map(|i| number(1000 + i)).collect();
                // An element before, and one after.
                let mut all: Vec<T> = [number(7)].into_iter().chain(line).chain([number(7)]).collect();
                let mut want = all.clone();
                // SAFETY: as above.
                unsafe { scatter(few.as_ptr(), n, all[1..].as_mut_ptr(), stride) };
                (0..n).for_each(|i| want[1 + i * stride] = number(1000 + i));
                assert_eq!(all, want, "{n} elements {stride} stride");

                // SAFETY: as above.
                unsafe { scatter_zero(few.as_ptr(), n, all[1..].as_mut_ptr(), stride) };
                want[1..1 + size].fill(number(0));
                (0..n).for_each(|i| want[1 + i * stride] = number(1000 + i));
                assert_eq!(all, want, "{n} elements {stride} stride, and zeros");
            }
        }
    }

    #[test]
    fn lines_are_read_and_written() {
        check(|i| i as u16);
        check(|i| i as f32);
        check(|i| i as f64);
    }
}
