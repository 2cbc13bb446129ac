//! Memory that programs in the kernel write, and this process maps.

#![allow(unsafe_code, reason = "memory that is shared with the kernel")]

use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// The values of an array map with BPF_F_MMAPABLE, word by word.
#[derive(Debug)]
pub struct Words {
    at: NonNull<c_void>,
    words: usize,
}

// SAFETY: the mapping belongs to no thread, and is read and written as atomics alone.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// The map lives as long as the mapping, whatever becomes of its descriptor.
    ///
    /// # Errors
    /// The kernel's: a map that may not be mapped, or that is shorter.
    pub fn map(map: impl AsFd, words: usize) -> io::Result<Self> {
        let bytes = NonZeroUsize::new(words * size_of::<u64>()).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(None, bytes, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, map, 0) }?;
        Ok(Words { at, words })
    }

    pub fn get(&self) -> &[AtomicU64] {
        // SAFETY: the kernel mapped at least so many bytes of a map, which no write shortens; they start at a page.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.words) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping is of `map`, and no reference to it outlives this value.
        let _ = unsafe { munmap(self.at, self.words * size_of::<u64>()) };
    }
}
