//! An allocator that counts the memory of each thread, so that a test can bound what a decoder
//! takes.

#![allow(unsafe_code)] // the interface of allocators

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count for each thread.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// The memory that this thread has allocated and not freed, and the highest such value.
    static USED: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    // A thread that ends may free memory after its counters are gone.
    let _ = USED.try_with(|used| {
        let (now, peak) = used.get();
        let now = now + bytes;
        used.set((now, peak.max(now)));
    });
}

// SAFETY: every call is passed on to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of this function, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// Returns the result of `act`, and the highest memory in bytes that it took on this thread.
pub(crate) fn measured<T>(act: impl FnOnce() -> T) -> (T, usize) {
    let (before, _) = USED.get();
    USED.set((before, before));
    let result = act();
    let (_, peak) = USED.get();
    (result, (peak - before) as usize)
}
