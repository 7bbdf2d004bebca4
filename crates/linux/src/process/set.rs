//! The set of programs that were built together. Each program has the ID of its set in a note, and recognises the
//! others by it.

use std::io::{self, Read};
use std::path::Path;

use nix::fcntl::OFlag;

use super::elf::{array, segments};
use crate::sys;

/// The length of an ID: a SHA-256 hash.
pub const ID_LENGTH: usize = 32;

/// The name of the note, padded to a multiple of four.
const NAME: [u8; 8] = *b"cni0\0\0\0\0";
/// The type of the note. Each name has its own types.
const KIND: u32 = 1;
/// Size of a note header: the lengths of name and value, and the type.
const NOTE_HEADER: usize = 12;

/// The note of a program, as ELF defines it. The compiler leaves the ID empty, which stands for no set: a program
/// cannot contain a hash of itself. `ci/build` writes a hash of all programs into each of them.
#[derive(Debug)]
#[repr(C)]
pub struct Note {
    name_length: u32,
    length: u32,
    kind: u32,
    name: [u8; 8],
    id: [u8; ID_LENGTH],
}

impl Note {
    /// The note of a program without a set.
    #[expect(clippy::cast_possible_truncation, reason = "it is small, and `try_into` is not const")]
    pub const EMPTY: Note =
        Note { name_length: 5, length: ID_LENGTH as u32, kind: KIND, name: NAME, id: [0; ID_LENGTH] };
}

/// Returns whether the file is a program of the same set as the running program: both have the same ID.
///
/// The running program's ID is read from memory because its file may have been replaced since it started.
pub fn is_of_this_set(path: &Path) -> bool {
    let is_same = || -> io::Result<bool> {
        let Some(own) = find(sys::program_head()).filter(|id| *id != [0; ID_LENGTH]) else { return Ok(false) };
        let mut head = [0; sys::PROGRAM_HEAD];
        sys::open(path, OFlag::O_RDONLY)?.read_exact(&mut head)?;
        Ok(find(&head) == Some(own))
    };
    // A file that cannot be read may still be executable.
    is_same().unwrap_or(false)
}

/// Returns the ID in the first page of an ELF file; all zeroes if the program has no set. Accepts arbitrary bytes.
pub fn find(head: &[u8]) -> Option<&[u8]> {
    find_note(head, &NAME, KIND).filter(|id| id.len() == ID_LENGTH)
}

fn find_note<'a>(head: &'a [u8], name: &[u8], kind: u32) -> Option<&'a [u8]> {
    segments(head).filter(|segment| segment.kind == libc::PT_NOTE).find_map(|segment| {
        let notes = head.get(segment.offset..segment.offset.checked_add(segment.length)?)?;
        find_in_notes(notes, name, kind)
    })
}

fn find_in_notes<'a>(mut notes: &'a [u8], wanted_name: &[u8], wanted_kind: u32) -> Option<&'a [u8]> {
    loop {
        let (header, rest) = notes.split_at_checked(NOTE_HEADER)?;
        let name_length = u32::from_ne_bytes(array(header, 0)?);
        let length = u32::from_ne_bytes(array(header, 4)?);
        let kind = u32::from_ne_bytes(array(header, 8)?);
        let (name, rest) = rest.split_at_checked(padded(name_length)?)?;
        if kind == wanted_kind && name == wanted_name {
            return rest.get(..usize::try_from(length).ok()?);
        }
        notes = rest.get(padded(length)?..)?;
    }
}

/// Rounds the length of a note's name or value up to a multiple of four.
fn padded(length: u32) -> Option<usize> {
    usize::try_from(length).ok()?.checked_next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test program has no set, but the linker gives it a build ID, which is a note, too.
    const BUILD_ID: (&[u8], u32) = (b"GNU\0", 3);

    /// Returns a segment of two notes; the second is that of a set.
    fn notes(id: &[u8]) -> Vec<u8> {
        let mut notes = Vec::new();
        for (kind, name, value) in [(1_u32, &b"Odd\0\0\0\0\0"[..5], &b"x"[..]), (KIND, &NAME[..5], id)] {
            for number in [u32::try_from(name.len()).unwrap(), u32::try_from(value.len()).unwrap(), kind] {
                notes.extend(number.to_ne_bytes());
            }
            for bytes in [name, value] {
                notes.extend(bytes);
                notes.resize(notes.len().next_multiple_of(4), 0);
            }
        }
        notes
    }

    #[test]
    fn the_note_is_found_among_others() {
        let find = |notes: &[u8]| find_in_notes(notes, &NAME, KIND).map(<[u8]>::to_vec);
        assert_eq!(find(&notes(b"a hash of all programs.")), Some(b"a hash of all programs.".to_vec()));
        assert_eq!(find(&notes(b"")), Some(Vec::new()));
        assert_eq!(find(&[]), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "the linker's symbol is unknown there")]
    fn damaged_heads_do_not_panic() {
        let own = sys::program_head();
        let build_id = |head: &[u8]| find_note(head, BUILD_ID.0, BUILD_ID.1).map(<[u8]>::to_vec);
        let id = build_id(own).expect("this program is linked with a build ID");
        assert!(id.len() >= 8, "{id:?}");
        for length in 0..own.len() {
            assert!(build_id(&own[..length]).is_none_or(|found| found == id), "{length}");
        }
        for place in 0..1024 {
            let mut head = *own;
            head[place..place + 8].fill(0xff);
            build_id(&head);
            head[place..place + 8].fill(0);
            build_id(&head);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the linker's symbol is unknown there")]
    fn a_program_without_a_set_recognises_none() {
        assert!(!is_of_this_set(&std::env::current_exe().unwrap()), "itself");
        assert!(!is_of_this_set(Path::new("/nowhere")), "no file");
    }
}
