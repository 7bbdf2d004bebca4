//! The memory of a process that lives for less than a millisecond.
//!
//! musl's allocator asks the kernel for each size of block apart, and gives it back just as eagerly; a tenth of a short
//! call goes into that. Here blocks come one after the other out of a fixed piece of memory, and most are never given
//! back. What does not fit goes to the allocator of the C library, so that a call that needs much is none the worse.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// More than most calls need. Of what they do not touch the kernel gives nothing.
const SIZE: usize = 64 << 10;

/// The strictest alignment that a block in the arena can have.
const ALIGN: usize = 16;

#[repr(align(16))]
struct Space(UnsafeCell<[u8; SIZE]>);

/// The allocator.
pub(crate) struct Arena {
    space: Space,
    /// Where the free part begins. Only whoever moves it owns what lies between; what the last owner wrote there comes
    /// before, whichever threads they are.
    used: AtomicUsize,
}

// SAFETY: the space is only handed out in pieces, and no piece twice, because each comes from its own step of `used`.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) const fn new() -> Arena {
        Arena { space: Space(UnsafeCell::new([0; SIZE])), used: AtomicUsize::new(0) }
    }

    fn base(&self) -> *mut u8 {
        self.space.0.get().cast()
    }

    /// Where in the arena `block` lies, if it does.
    fn offset(&self, block: *mut u8) -> Option<usize> {
        block.addr().checked_sub(self.base().addr()).filter(|offset| *offset < SIZE)
    }

    /// Takes `size` bytes; where they begin.
    fn take(&self, size: usize, align: usize) -> Option<usize> {
        let mut used = self.used.load(Acquire);
        loop {
            let start = used.checked_next_multiple_of(align).filter(|_| align <= ALIGN)?;
            let end = start.checked_add(size).filter(|end| *end <= SIZE)?;
            match self.used.compare_exchange_weak(used, end, AcqRel, Acquire) {
                Ok(_) => return Some(start),
                Err(now) => used = now,
            }
        }
    }

    /// Moves the end of the newest block; `false` if there is a newer one, or no room.
    fn resize(&self, start: usize, old: usize, new: usize) -> bool {
        match start.checked_add(new) {
            Some(end) if end <= SIZE => self.used.compare_exchange(start + old, end, AcqRel, Acquire).is_ok(),
            _ => false,
        }
    }
}

// SAFETY: blocks do not overlap (see `take`), are as large and as aligned as asked for, and stay where they are; those
// that are not in the arena are System's from beginning to end.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.take(layout.size(), layout.align()) {
            // SAFETY: the offset is inside the space.
            Some(start) => unsafe { self.base().add(start) },
            // SAFETY: the caller's promises about the layout are passed on.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.offset(block) {
            // The newest can be had again, others are forgotten.
            Some(start) => drop(self.resize(start, layout.size(), 0)),
            // SAFETY: it came from System.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(start) = self.offset(block) else {
            // SAFETY: it came from System.
            return unsafe { System.realloc(block, layout, size) };
        };
        if self.resize(start, layout.size(), size) {
            // Not `block` itself, by which only the old size may be reached.
            // SAFETY: the offset is inside the space.
            return unsafe { self.base().add(start) };
        }
        // SAFETY: the size is not zero and does not overflow, as the caller promised.
        let larger = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as above; both blocks are at least as long as what is copied, and they are different ones.
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
        let arena = Arena::new();
        assert_eq!(arena.take(5, 1), Some(0));
        assert_eq!(arena.take(8, 8), Some(8));
        assert_eq!(arena.take(1, 32), None, "stricter than the arena is");
        assert_eq!(arena.take(SIZE, 1), None);
        assert_eq!(arena.take(SIZE - 16, 16), Some(16));
        assert_eq!(arena.take(1, 1), None);
        assert_eq!(arena.take(usize::MAX, 16), None);
    }

    #[test]
    fn the_newest_block_grows_and_goes() {
        let arena = Arena::new();
        let (a, b) = (arena.take(16, 1).unwrap(), arena.take(16, 1).unwrap());
        assert!(!arena.resize(a, 16, 32), "b is in its way");
        assert!(arena.resize(b, 16, 32) && !arena.resize(b, 32, SIZE));
        assert!(arena.resize(b, 32, 0));
        assert_eq!(arena.take(4, 4), Some(16));
    }

    #[test]
    fn a_block_that_grew_can_be_used_to_its_end() {
        let arena = Arena::new();
        let sized = |size| Layout::from_size_align(size, 1).unwrap();
        // SAFETY: no layout is empty, and each block is used inside, and not after it was given back.
        unsafe {
            let block = arena.alloc(sized(2));
            // A pointer that stands for these two bytes, as that of a box does. Only miri minds if it is used for more.
            let block = std::ptr::from_mut(&mut *block.cast::<[u8; 2]>()).cast::<u8>();
            block.write(7);
            let larger = arena.realloc(block, sized(2), 64);
            larger.add(63).write(8);
            assert_eq!((larger.addr(), larger.read(), larger.add(63).read()), (block.addr(), 7, 8));
            let outside = arena.realloc(larger, sized(64), SIZE + 1);
            assert_eq!((arena.offset(outside), outside.read(), outside.add(63).read()), (None, 7, 8));
            arena.dealloc(outside, sized(SIZE + 1));
        }
        assert_eq!(arena.take(1, 1), Some(0), "all of it was given back");
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many steps")]
    fn contents_survive_the_way_out_of_the_arena() {
        // The arena is this process's allocator too.
        let mut bytes = Vec::new();
        for n in 0..200_000_u32 {
            bytes.extend(n.to_le_bytes());
        }
        assert!(bytes.chunks_exact(4).zip(0..200_000_u32).all(|(chunk, n)| chunk == n.to_le_bytes()));
    }
}
