//! Random numbers from a counter: the same for the same key on every device, at any time, in any order.
//!
//! Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//! The key is the run's seed; the counter is the element's block, the node's stream and the step. Knows no
//! tensors.

/// Four words from a counter and a key. Words are held in 64 bits, and nothing is called, so that a loop over
/// counters becomes one over vectors.
#[inline(always)]
pub fn philox(counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const LOW: u64 = u32::MAX as u64;
    let [mut c0, mut c1, mut c2, mut c3] =
        [counter[0] as u64, counter[1] as u64, counter[2] as u64, counter[3] as u64];
    for _ in 0..10 {
        let (a, b) = ((c0 & LOW) * 0xD251_1F53, (c2 & LOW) * 0xCD9E_8D57);
        (c0, c1) = (b >> 32 ^ c1 ^ key[0] as u64, b);
        (c2, c3) = (a >> 32 ^ c3 ^ key[1] as u64, a);
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    [c0 as u32, c1 as u32, c2 as u32, c3 as u32]
}

/// The random words of one node in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    seed: u64,
    step: u64,
    stream: u32,
}

/// Words a stream holds.
pub const WORDS: u64 = 1 << 34;

impl Stream {
    /// The stream numbered `stream` of the key `[seed, step]`.
    pub fn new(seed: i64, step: i64, stream: u32) -> Self {
        Stream { seed: seed as u64, step: step as u64, stream }
    }

    /// Words `4 · block` to `4 · block + 3`.
    #[inline(always)]
    pub fn block(&self, block: u32) -> [u32; 4] {
        let (seed, step) = (self.seed, self.step);
        philox([block, self.stream, step as u32, (step >> 32) as u32], [seed as u32, (seed >> 32) as u32])
    }

    /// [`Stream::block`] of `N` numbers from `first` on, modulo 2³², computed in parallel lanes.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    pub fn blocks<const N: usize>(&self, first: u32) -> [[u32; 4]; N] {
        let mut blocks = [[0; 4]; N];
        for i in 0..N {
            blocks[i] = self.block(first.wrapping_add(i as u32));
        }
        blocks
    }

    /// Word `i`, less than [`WORDS`].
    pub fn word(&self, i: u64) -> u32 {
        self.block((i / 4) as u32)[(i % 4) as usize]
    }

    /// Element `i` of a uniform tensor: see [`uniform`].
    pub fn uniform(&self, i: u64) -> f64 {
        uniform(self.word(i))
    }
}

/// A word as a number in `[0, 1)`: its upper 24 bits, so that f32 and wider hold it exactly.
pub fn uniform(word: u32) -> f64 {
    (word >> 8) as f64 / (1u32 << 24) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_published_vectors() {
        // Random123's known answers for philox4x32-10.
        assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn words_are_counted_through_blocks() {
        let s = Stream::new(-3, 1 << 40, 7);
        assert_eq!((4..8).map(|i| s.word(i)).collect::<Vec<_>>(), s.block(1));
        let wrapped = [u32::MAX - 1, u32::MAX, 0, 1].map(|b| s.block(b));
        assert_eq!(s.blocks::<4>(u32::MAX - 1), wrapped);
        assert_ne!(s.block(0), Stream::new(-3, 1 << 40, 8).block(0));
        assert_ne!(s.block(0), Stream::new(-3, 0, 7).block(0));
        assert!((0..100).all(|i| (0.0..1.0).contains(&s.uniform(i))));
    }
}
