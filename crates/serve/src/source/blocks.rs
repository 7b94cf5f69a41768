//! Unpacked blocks of a snapshot, kept for a while: neighbours are in one block, and so are the
//! pages that clones of one image touch.
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// Most blocks kept: 32 MiB.
const BLOCKS_MAX: usize = 512;

/// Which block: the file's number in its chain, and the block's in the file.
pub(crate) type Key = (u32, u32);

/// An unpacked block.
pub(crate) struct Block {
    /// Which one.
    pub key: Key,
    /// The bytes of its pages.
    pub bytes: Vec<u8>,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Blocks {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    by_key: HashMap<Key, Arc<Block>>,
    /// The oldest first.
    order: VecDeque<Key>,
}

impl Blocks {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(|held| held.into_inner())
    }

    /// The block, if it is kept.
    pub fn get(&self, key: Key) -> Option<Arc<Block>> {
        self.kept().by_key.get(&key).cloned()
    }

    /// Keeps a block; the oldest goes.
    pub fn put(&self, block: &Arc<Block>) {
        let mut kept = self.kept();
        if kept.by_key.insert(block.key, Arc::clone(block)).is_some() {
            return;
        }
        kept.order.push_back(block.key);
        if kept.order.len() > BLOCKS_MAX
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.by_key.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_blocks_are_kept() {
        let blocks = Blocks::default();
        let block = |number| {
            Arc::new(Block {
                key: (0, number),
                bytes: vec![number as u8],
            })
        };
        (0..BLOCKS_MAX as u32 + 2).for_each(|number| blocks.put(&block(number)));
        blocks.put(&block(5));
        assert!(blocks.get((0, 1)).is_none());
        assert_eq!(blocks.get((0, 5)).unwrap().bytes, [5]);
        assert!(blocks.get((0, 2)).is_some());
    }
}
