//! Pieces of a file: ranges of equal length with a hash each, so that several ranks can share writing and
//! verifying a file.

use sha2::{Digest, Sha256};
use std::ops::Range;

/// Bytes of a piece.
pub(super) const PIECE: u64 = 8 << 20;

/// Lowercase hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Pieces of a file of so many bytes; the last one may be shorter.
pub(super) fn count(bytes: u64, piece: u64) -> u64 {
    bytes.div_ceil(piece)
}

/// Bytes of some pieces.
pub(super) fn range(pieces: Range<u64>, piece: u64, bytes: u64) -> Range<u64> {
    (pieces.start * piece).min(bytes)..(pieces.end * piece).min(bytes)
}

/// The SHA-256 of each piece of what is given to it, in hexadecimal.
pub(super) struct Hashes {
    piece: u64,
    hash: Sha256,
    /// Bytes of the piece that is not over yet.
    begun: u64,
    done: Vec<String>,
}

impl Hashes {
    pub fn new(piece: u64) -> Hashes {
        Hashes { piece, hash: Sha256::new(), begun: 0, done: Vec::new() }
    }

    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = usize::try_from(self.piece - self.begun).unwrap_or(usize::MAX).min(bytes.len());
            let (now, rest) = bytes.split_at(room);
            self.hash.update(now);
            self.begun += now.len() as u64;
            bytes = rest;
            if self.begun == self.piece {
                self.close();
            }
        }
    }

    fn close(&mut self) {
        self.done.push(hex(&self.hash.finalize_reset()));
        self.begun = 0;
    }

    pub fn finish(mut self) -> Vec<String> {
        if self.begun > 0 {
            self.close();
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_has_the_hash_of_its_bytes_however_they_arrive() {
        let bytes: Vec<u8> = (0..100).collect();
        for length in [0, 1, 7, 8, 9, 16, 100] {
            let want: Vec<String> = bytes[..length].chunks(8).map(|p| hex(&Sha256::digest(p))).collect();
            for step in [1, 3, 8, 50] {
                let mut hashes = Hashes::new(8);
                bytes[..length].chunks(step).for_each(|b| hashes.update(b));
                assert_eq!(hashes.finish(), want, "{length} bytes by {step}");
            }
            assert_eq!(count(length as u64, 8), want.len() as u64);
        }
        assert_eq!((range(1..3, 8, 20), range(3..3, 8, 20)), (8..20, 20..20));
    }
}
