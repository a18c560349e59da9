//! Decoded columns of row groups that are kept in memory: those used last, within one budget for all files.

use super::block::Block;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of all that is kept.
const BUDGET: usize = 2 << 30;

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// A column of an open file, and a row group of it.
type Key = (u64, usize);

#[derive(Default)]
struct Kept {
    /// With the time of their last use.
    blocks: HashMap<Key, (Arc<Block>, u64)>,
    bytes: usize,
    clock: u64,
}

impl Kept {
    fn remove(&mut self, key: Key) {
        if let Some((block, _)) = self.blocks.remove(&key) {
            self.bytes -= size(&block);
        }
    }
}

fn size(block: &Block) -> usize {
    block.bytes.capacity()
        + block.ends.capacity() * size_of::<usize>()
        + block.sizes.capacity() * size_of::<u32>()
}

fn with<T>(f: impl FnOnce(&mut Kept) -> T) -> T {
    // The cache is whole between two calls, whatever happened to a thread.
    f(KEPT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// The block of a key, decoded if it is not kept.
pub(super) fn get<E>(key: Key, decode: impl FnOnce() -> Result<Block, E>) -> Result<Arc<Block>, E> {
    let found = with(|kept| {
        kept.clock += 1;
        let clock = kept.clock;
        kept.blocks.get_mut(&key).map(|(block, last)| {
            *last = clock;
            block.clone()
        })
    });
    if let Some(block) = found {
        return Ok(block);
    }
    let block = Arc::new(decode()?);
    with(|kept| {
        kept.remove(key);
        while kept.bytes + size(&block) > BUDGET {
            let oldest = kept.blocks.iter().min_by_key(|(_, (_, last))| *last).map(|(key, _)| *key);
            let Some(oldest) = oldest else { return };
            kept.remove(oldest);
        }
        kept.bytes += size(&block);
        kept.blocks.insert(key, (block.clone(), kept.clock));
    });
    Ok(block)
}

/// Forgets all of a column whose file is closed.
pub(super) fn forget(column: u64) {
    with(|kept| {
        let keys: Vec<Key> = kept.blocks.keys().filter(|(c, _)| *c == column).copied().collect();
        keys.into_iter().for_each(|key| kept.remove(key));
    });
}
