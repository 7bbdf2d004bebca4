//! The memory allocator of a process that runs for less than a millisecond.
//!
//! musl's allocator requests memory from the kernel for each size class and returns it as eagerly, which takes a tenth
//! of a short call. Here blocks are cut from a fixed piece of memory one after the other, and most are never freed.
//! Blocks that do not fit come from the C library's allocator, so that calls with much data work as usual. If the
//! kernel has no more memory for that, there is a reserve, because a call that has begun to change something must be
//! able to finish.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// More than most calls need, on hosts with hundreds of links or for a container with hundreds of ports. The kernel
/// does not allocate pages that are never touched.
const SIZE: usize = 1 << 20;

/// The part at the end that is used only when there is no other memory: more than an ADD needs after its first change.
const RESERVE: usize = 256 << 10;

/// The strictest alignment of a block in the arena.
const ALIGN: usize = 16;

#[repr(align(16))]
struct Space(UnsafeCell<[u8; SIZE]>);

/// The allocator. The counters come first, on the same page as the first blocks.
#[repr(C)]
#[expect(missing_debug_implementations, reason = "its content is all memory of the process")]
pub struct Arena {
    /// The start of the free part. The thread that advances it owns the bytes between. Writes of the previous owner
    /// happen before, even if it was another thread.
    used: AtomicUsize,
    /// The end of all blocks that were ever freed. Free memory beyond was never used: it is still zero and does not
    /// have to be cleared.
    touched: AtomicUsize,
    space: Space,
}

// SAFETY: the space is only handed out in blocks, and no block twice, because each comes from its own step of `used`.
unsafe impl Sync for Arena {}

impl Arena {
    /// Creates an empty arena.
    #[expect(clippy::new_without_default, reason = "an arena is a static")]
    pub const fn new() -> Arena {
        Arena { used: AtomicUsize::new(0), touched: AtomicUsize::new(0), space: Space(UnsafeCell::new([0; SIZE])) }
    }

    fn base(&self) -> *mut u8 {
        self.space.0.get().cast()
    }

    /// Returns the offset of `block` in the arena; `None` if it is not in the arena.
    fn offset(&self, block: *mut u8) -> Option<usize> {
        block.addr().checked_sub(self.base().addr()).filter(|offset| *offset < SIZE)
    }

    /// Allocates `size` bytes before `limit`. Returns their offset, and how many of them were used before.
    fn take(&self, size: usize, align: usize, limit: usize) -> Option<(usize, usize)> {
        let mut used = self.used.load(Acquire);
        loop {
            let start = used.checked_next_multiple_of(align).filter(|_| align <= ALIGN)?;
            let end = start.checked_add(size).filter(|end| *end <= limit)?;
            match self.used.compare_exchange_weak(used, end, AcqRel, Acquire) {
                Ok(_) => return Some((start, self.touched.load(Acquire).saturating_sub(start).min(size))),
                Err(now) => used = now,
            }
        }
    }

    /// Like [`Arena::take`], but returns a pointer.
    fn block(&self, layout: Layout, limit: usize) -> Option<(*mut u8, usize)> {
        let (start, stale) = self.take(layout.size(), layout.align(), limit)?;
        // SAFETY: the offset is inside the space.
        Some((unsafe { self.base().add(start) }, stale))
    }

    /// Moves the end of the newest block; `false` if the block is not the newest, or if there is no space.
    fn resize(&self, start: usize, old: usize, new: usize) -> bool {
        let Some(end) = start.checked_add(new) else { return false };
        // Most blocks are not the newest, and this check is cheaper than a failing compare-and-exchange.
        if self.used.load(Acquire) != start + old || (end > SIZE - RESERVE && new >= old) {
            return false;
        }
        if new < old {
            // Recorded before the memory becomes free for other threads.
            self.touched.fetch_max(start + old, AcqRel);
        }
        self.used.compare_exchange(start + old, end, AcqRel, Acquire).is_ok()
    }
}

// SAFETY: blocks do not overlap (see `take`), have the requested size and alignment, and are never moved; blocks
// outside the arena are allocated, resized and freed by System.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some((block, _)) = self.block(layout, SIZE - RESERVE) {
            return block;
        }
        // SAFETY: the caller's guarantees about the layout are passed on.
        let block = unsafe { System.alloc(layout) };
        if block.is_null()
            && let Some((block, _)) = self.block(layout, SIZE)
        {
            return block;
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some((block, stale)) = self.block(layout, SIZE - RESERVE) {
            // SAFETY: the stale bytes are a part of the block.
            unsafe { block.write_bytes(0, stale) };
            return block;
        }
        // SAFETY: the caller's guarantees about the layout are passed on; a block has the requested size.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.offset(block) {
            // The newest block can be reused; any other stays allocated.
            Some(start) => drop(self.resize(start, layout.size(), 0)),
            // SAFETY: the block came from System.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(start) = self.offset(block) else {
            // SAFETY: the block came from System.
            let new = unsafe { System.realloc(block, layout, size) };
            // SAFETY: as for `alloc`. System keeps the old block if it has no larger one.
            return if new.is_null() { unsafe { self.move_to_larger(block, layout, size) } } else { new };
        };
        // A block that shrinks and is not the newest keeps its memory.
        if self.resize(start, layout.size(), size) || size <= layout.size() {
            // Not `block` itself, whose provenance covers only the old size.
            // SAFETY: the offset is inside the space.
            return unsafe { self.base().add(start) };
        }
        // SAFETY: the caller's guarantees are passed on.
        unsafe { self.move_to_larger(block, layout, size) }
    }
}

impl Arena {
    /// Moves a block for `realloc` if it cannot grow in place.
    ///
    /// # Safety
    ///
    /// The same as for [`GlobalAlloc::realloc`].
    unsafe fn move_to_larger(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the size is not zero and does not overflow, as the caller guarantees.
        let larger = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as above; both blocks are at least as long as the copied bytes, and they do not overlap.
        unsafe {
            let new = self.alloc(larger);
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_apart_and_in_bounds() {
        static ARENA: Arena = Arena::new();
        let arena = &ARENA;
        assert_eq!(arena.take(5, 1, SIZE), Some((0, 0)));
        assert_eq!(arena.take(8, 8, SIZE), Some((8, 0)));
        assert_eq!(arena.take(1, 32, SIZE), None, "stricter than the alignment of the arena");
        assert_eq!(arena.take(SIZE, 1, SIZE), None);
        assert_eq!(arena.take(1000, 1, 1000), None, "only the reserve is left");
        assert_eq!(arena.take(SIZE - 16, 16, SIZE), Some((16, 0)));
        assert_eq!(arena.take(1, 1, SIZE), None);
        assert_eq!(arena.take(usize::MAX, 16, SIZE), None);
    }

    #[test]
    fn the_newest_block_can_grow_and_be_freed() {
        static ARENA: Arena = Arena::new();
        let arena = &ARENA;
        let ((a, _), (b, _)) = (arena.take(16, 1, SIZE).unwrap(), arena.take(16, 1, SIZE).unwrap());
        assert!(!arena.resize(a, 16, 32), "b is newer");
        assert!(arena.resize(b, 16, 32) && !arena.resize(b, 32, SIZE));
        assert!(arena.resize(b, 32, 0));
        assert_eq!(arena.take(4, 4, SIZE), Some((16, 4)));
    }

    #[test]
    fn reused_memory_is_known_and_cleared() {
        static ARENA: Arena = Arena::new();
        let arena = &ARENA;
        let layout = |size| Layout::from_size_align(size, 1).unwrap();
        // SAFETY: blocks are written and read within their size, and freed once.
        unsafe {
            let block = arena.alloc(layout(8));
            block.write_bytes(7, 8);
            let block = arena.realloc(block, layout(8), 12);
            block.write_bytes(7, 12);
            arena.dealloc(block, layout(12));
            let block = arena.alloc_zeroed(layout(100));
            assert!(std::slice::from_raw_parts(block, 100).iter().all(|byte| *byte == 0));
        }
        assert_eq!(arena.take(4, 1, SIZE), Some((100, 0)), "memory beyond was never used");
    }

    #[test]
    fn memory_freed_by_shrinking_is_cleared() {
        static ARENA: Arena = Arena::new();
        let arena = &ARENA;
        let layout = |size| Layout::from_size_align(size, 1).unwrap();
        // SAFETY: blocks are written and read within their size.
        unsafe {
            let block = arena.alloc(layout(64));
            block.write_bytes(7, 64);
            let block = arena.realloc(block, layout(64), 8);
            let next = arena.alloc_zeroed(layout(100));
            assert_eq!(next.addr(), block.addr() + 8);
            assert!(std::slice::from_raw_parts(next, 100).iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_block_that_grew_can_be_used_to_its_end() {
        static ARENA: Arena = Arena::new();
        let arena = &ARENA;
        let sized = |size| Layout::from_size_align(size, 1).unwrap();
        // SAFETY: no layout is empty, and each block is used within its size, and not after it was freed.
        unsafe {
            let block = arena.alloc(sized(2));
            // A pointer with provenance for these two bytes, like that of a box. Only miri detects if it is used for
            // more.
            let block = std::ptr::from_mut(&mut *block.cast::<[u8; 2]>()).cast::<u8>();
            block.write(7);
            let larger = arena.realloc(block, sized(2), 64);
            larger.add(63).write(8);
            assert_eq!((larger.addr(), larger.read(), larger.add(63).read()), (block.addr(), 7, 8));
            let outside = arena.realloc(larger, sized(64), SIZE + 1);
            assert_eq!((arena.offset(outside), outside.read(), outside.add(63).read()), (None, 7, 8));
            arena.dealloc(outside, sized(SIZE + 1));
        }
        assert_eq!(arena.take(1, 1, SIZE), Some((0, 1)), "all of it was freed");
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many steps")]
    fn contents_survive_a_move_out_of_the_arena() {
        // The arena is also the allocator of this process.
        let mut bytes = Vec::new();
        for n in 0..200_000_u32 {
            bytes.extend(n.to_le_bytes());
        }
        assert!(bytes.as_chunks().0.iter().zip(0..200_000_u32).all(|(chunk, n)| *chunk == n.to_le_bytes()));
    }
}
