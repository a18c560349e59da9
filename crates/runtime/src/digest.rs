//! Digests of 8 bytes, by which ranks compare what should be the same on all of them. Not cryptographic: they
//! are for errors, not for forgeries.

/// Bytes of a block: one word for each of the sums.
const BLOCK: usize = 32;
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(FACTOR).rotate_left(29)
}

/// A digest of bytes that come in pieces. Bytes that differ in one word of 8 always have different digests;
/// others do but for one in 2⁶⁴ cases.
#[derive(Clone, Debug)]
pub(crate) struct Digest {
    /// Words by their number modulo 4: independent sums, which a processor computes at once.
    sums: [u64; 4],
    bytes: u64,
}

impl Digest {
    /// A digest of nothing, that begins with a number.
    pub fn new(begin: u64) -> Digest {
        Digest { sums: [begin, 1, 2, 3], bytes: 0 }
    }

    /// Adds bytes. A piece whose length is not a multiple of 32 is padded with zeros.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        blocks.iter().for_each(|b| self.block(b));
        if !rest.is_empty() {
            let mut last = [0; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            self.block(&last);
        }
    }

    fn block(&mut self, block: &[u8; BLOCK]) {
        for (sum, word) in self.sums.iter_mut().zip(block.as_chunks::<8>().0) {
            *sum = mix(*sum, u64::from_le_bytes(*word));
        }
    }

    /// The digest of what was added.
    pub fn end(self) -> u64 {
        let sum = self.sums.into_iter().fold(self.bytes, mix);
        mix(sum ^ sum >> 32, 0)
    }
}

/// The digest of bytes, after that of others.
pub(crate) fn digest(begin: u64, bytes: &[u8]) -> u64 {
    let mut digest = Digest::new(begin);
    digest.add(bytes);
    digest.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_see_each_bit_and_each_place() {
        let bytes: Vec<u8> = (0..77).collect();
        let of = digest(0, &bytes);
        for bit in 0..8 * bytes.len() {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(digest(0, &other), of, "bit {bit}");
        }
        assert_ne!(digest(0, &bytes[..76]), of);
        assert_ne!(digest(1, &bytes), of);
        assert_ne!(digest(0, &[0; 8]), digest(0, &[0; 16]));
        // Words that change places.
        let mut other = bytes.clone();
        other.swap(0, 8);
        assert_ne!(digest(0, &other), of);
    }

    #[test]
    fn pieces_of_whole_blocks_are_as_good_as_one() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut pieces = Digest::new(7);
        bytes.chunks(64).for_each(|piece| pieces.add(piece));
        assert_eq!(pieces.end(), digest(7, &bytes));
    }
}
