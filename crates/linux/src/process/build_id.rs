//! The build ID: a hash that the linker writes into the program. A program recognises its own copies by it.

use std::io::{self, Read};
use std::path::Path;

use nix::fcntl::OFlag;

use super::elf::{array, segments};
use crate::sys;

/// elf.h: the type of the build ID note. It is unique among notes with the name `GNU`.
const NT_GNU_BUILD_ID: u32 = 3;
/// Size of a note header: the lengths of name and value, and the type.
const NOTE_HEADER: usize = 12;

/// Returns whether the file is a copy of the running program: both have a build ID, and the IDs are equal.
///
/// The running program's ID is read from memory because its file may have been replaced since it started.
pub fn is_this_program(path: &Path) -> bool {
    let is_same = || -> io::Result<bool> {
        let mut head = [0; sys::PROGRAM_HEAD];
        sys::open(path, OFlag::O_RDONLY)?.read_exact(&mut head)?;
        Ok(find(sys::program_head()).is_some_and(|own| find(&head) == Some(own)))
    };
    // A file that cannot be read may still be executable.
    is_same().unwrap_or(false)
}

/// Returns the build ID in the first page of an ELF file. Accepts arbitrary bytes.
pub fn find(head: &[u8]) -> Option<&[u8]> {
    segments(head)
        .filter(|segment| segment.kind == libc::PT_NOTE)
        .find_map(|segment| find_in_notes(head.get(segment.offset..segment.offset.checked_add(segment.length)?)?))
}

fn find_in_notes(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let (header, rest) = notes.split_at_checked(NOTE_HEADER)?;
        let name_length = u32::from_ne_bytes(array(header, 0)?);
        let length = u32::from_ne_bytes(array(header, 4)?);
        let kind = u32::from_ne_bytes(array(header, 8)?);
        let (name, rest) = rest.split_at_checked(padded(name_length)?)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
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

    /// Returns a segment of two notes; the second is the build ID.
    fn notes(id: &[u8]) -> Vec<u8> {
        let mut notes = Vec::new();
        for (kind, name, value) in [(1_u32, &b"Odd\0\0\0\0\0"[..5], &b"x"[..]), (NT_GNU_BUILD_ID, b"GNU\0", id)] {
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
        assert_eq!(find_in_notes(&notes(b"a hash of the bytes.")), Some(&b"a hash of the bytes."[..]));
        assert_eq!(find_in_notes(&notes(b"")), Some(&b""[..]));
        assert_eq!(find_in_notes(&[]), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "the linker's symbol is unknown there")]
    fn damaged_heads_do_not_panic() {
        let own = sys::program_head();
        let id = find(own).expect("this program is linked with a build id");
        assert!(id.len() >= 8, "{id:?}");
        for length in 0..own.len() {
            assert!(find(&own[..length]).is_none_or(|found| found == id), "{length}");
        }
        for place in 0..1024 {
            let mut head = *own;
            head[place..place + 8].fill(0xff);
            find(&head);
            head[place..place + 8].fill(0);
            find(&head);
        }
    }

    #[test]
    fn only_a_copy_is_this_program() {
        let dir = std::env::temp_dir().join(format!("cni0-build-id-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let is_same = |content: Option<&[u8]>| {
            let path = dir.join("program");
            match content {
                Some(content) => std::fs::write(&path, content).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            is_this_program(&path)
        };
        let content = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(is_same(Some(&content)), "a copy");
        assert!(!is_same(Some(&content[..1000])), "shorter than a page");
        assert!(!is_same(Some(&[0; sys::PROGRAM_HEAD])), "not a program");
        assert!(!is_same(None), "no file");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
