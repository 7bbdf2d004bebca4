//! The segments of a program, as the linker describes them to the kernel at the beginning of an ELF file.

use std::mem::offset_of;

#[cfg(target_pointer_width = "32")]
use libc::{Elf32_Ehdr as FileHeader, Elf32_Phdr as SegmentHeader};
#[cfg(target_pointer_width = "64")]
use libc::{Elf64_Ehdr as FileHeader, Elf64_Phdr as SegmentHeader};

/// A segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) kind: u32,
    /// Its place in the file.
    pub(crate) offset: usize,
    pub(crate) length: usize,
    /// Its place in memory, relative to the start of a position independent program.
    pub(crate) address: usize,
    /// Its length in memory.
    pub(crate) memory: usize,
}

/// Returns the segments that the first page of an ELF file lists. Accepts arbitrary bytes.
pub(crate) fn segments(head: &[u8]) -> impl Iterator<Item = Segment> {
    let table = array(head, offset_of!(FileHeader, e_phoff)).map_or(usize::MAX, usize::from_ne_bytes);
    let number = |offset| array(head, offset).map_or(0, u16::from_ne_bytes);
    let size = usize::from(number(offset_of!(FileHeader, e_phentsize)));
    (0..usize::from(number(offset_of!(FileHeader, e_phnum)))).map_while(move |index| {
        let header = head.get(table.checked_add(size * index)?..)?;
        let number = |offset| array(header, offset).map(usize::from_ne_bytes);
        Some(Segment {
            kind: u32::from_ne_bytes(array(header, offset_of!(SegmentHeader, p_type))?),
            offset: number(offset_of!(SegmentHeader, p_offset))?,
            length: number(offset_of!(SegmentHeader, p_filesz))?,
            address: number(offset_of!(SegmentHeader, p_vaddr))?,
            memory: number(offset_of!(SegmentHeader, p_memsz))?,
        })
    })
}

/// Returns the bytes at an offset, to be read as a number in the machine's byte order, which its programs use as well.
pub(super) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}
