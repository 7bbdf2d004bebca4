//! Counts calls, failures and durations for monitoring, if the directory [`DIR`] exists. A failure to count never fails
//! a call, and nothing waits: a plugin that finds a file locked takes the next one, and `cnitool metrics` adds them up.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs2::FileExt as _;

use crate::error::{Code, Context, Result};

/// The directory of the files. It is the switch: plugins count only if it exists.
pub const DIR: &str = "/run/cni0/calls";

/// The commands that are counted. VERSION only describes the plugin.
pub const COMMANDS: [&str; 5] = ["ADD", "CHECK", "DEL", "GC", "STATUS"];

/// The upper bounds of the buckets for durations, in microseconds. One more bucket has longer calls.
pub const BOUNDS: [u64; 12] =
    [500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 5_000_000];

/// The codes with counters of their own. One more counter has all other codes.
pub const CODES: [u32; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 11, 50, 51, 100, 101, 999];

/// The start of each file: its kind, and the version of its layout.
const MAGIC: [u8; 8] = *b"cni0cal\x01";
/// The numbers per command: the sum of the durations, the buckets, and the failures.
const NUMBERS: usize = 1 + BOUNDS.len() + 1 + CODES.len() + 1;
/// The size of a file: its start, and numbers of 64 bits for each command.
const SIZE: usize = MAGIC.len() + COMMANDS.len() * NUMBERS * 8;
/// How many files a plugin can have. As many calls can end at the same moment without one being lost.
const FILES: usize = 16;

/// The calls of one command of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// The sum of the durations in microseconds.
    pub micros: u64,
    /// Calls by duration, in the order of [`BOUNDS`].
    pub durations: [u64; BOUNDS.len() + 1],
    /// Failed calls by code, in the order of [`CODES`].
    pub failures: [u64; CODES.len() + 1],
}

impl Calls {
    fn numbers_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        [&mut self.micros].into_iter().chain(&mut self.durations).chain(&mut self.failures)
    }
}

/// The calls of a plugin by command, in the order of [`COMMANDS`].
pub type ByCommand = [Calls; COMMANDS.len()];

/// Counts a call, if calls are counted.
pub(crate) fn count(plugin: &str, command: &str, took: Duration, failure: Option<Code>) {
    if let Some(place) = COMMANDS.iter().position(|known| *known == command) {
        // Nothing may wait for this or fail because of it.
        let _ = count_in(Path::new(DIR), plugin, place, took, failure);
    }
}

fn count_in(dir: &Path, plugin: &str, command: usize, took: Duration, failure: Option<Code>) -> io::Result<()> {
    for number in 0..FILES {
        let path = dir.join(format!("{plugin}.{number}"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // Without O_NONBLOCK, a FIFO at the path would block forever.
        let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        // The lock ends with the descriptor. A file with another content is left alone.
        if file.try_lock_exclusive().is_ok()
            && let Some(mut content) = read(&file)
        {
            count_call(&mut content, command, took, failure);
            return file.write_all_at(&content, 0);
        }
    }
    Ok(())
}

/// The content of a file.
type Content = [u8; SIZE];

/// Reads a file, which can be empty; `None` if it is anything else.
fn read(file: &File) -> Option<Content> {
    // One byte more shows that a file is too long.
    let mut bytes = [0; SIZE + 1];
    let length = file.read_at(&mut bytes, 0).ok()?;
    let mut content = *bytes.first_chunk()?;
    let start = content.first_chunk_mut()?;
    if length == 0 {
        *start = MAGIC;
    }
    (*start == MAGIC && [0, SIZE].contains(&length)).then_some(content)
}

fn count_call(content: &mut Content, command: usize, took: Duration, failure: Option<Code>) {
    let mut add = |place: usize, number: u64| {
        let start = MAGIC.len() + (command * NUMBERS + place) * 8;
        if let Some(bytes) = content.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
            // Like the counters of the kernel, this wraps.
            *bytes = u64::from_le_bytes(*bytes).wrapping_add(number).to_le_bytes();
        }
    };
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    add(0, micros);
    add(1 + BOUNDS.partition_point(|bound| *bound < micros), 1);
    if let Some(code) = failure {
        add(1 + BOUNDS.len() + 1 + CODES.iter().position(|known| *known == code.0).unwrap_or(CODES.len()), 1);
    }
}

/// What was counted on this host.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The calls by plugin, sorted.
    pub plugins: Vec<(String, ByCommand)>,
    /// Files that cannot be read, or that no plugin wrote.
    pub unreadable: Vec<PathBuf>,
}

/// Reads what was counted; `None` if calls are not counted.
pub fn counted() -> Result<Option<Counted>> {
    counted_in(Path::new(DIR))
}

fn counted_in(dir: &Path) -> Result<Option<Counted>> {
    let what = || format!("read the directory {}", dir.display());
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries.context(what)?,
    };
    let mut counted = Counted::default();
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().context(what)?;
    paths.sort();
    for path in paths {
        let plugin = path.file_stem().filter(|_| path.extension().is_some()).and_then(|stem| stem.to_str());
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path);
        let (Some(plugin), Some(content)) = (plugin, file.ok().and_then(|file| read(&file))) else {
            counted.unreadable.push(path);
            continue;
        };
        if counted.plugins.last().is_none_or(|(last, _)| last != plugin) {
            counted.plugins.push((plugin.to_owned(), ByCommand::default()));
        }
        let sums = counted.plugins.last_mut().into_iter().flat_map(|(_, calls)| calls).flat_map(Calls::numbers_mut);
        let numbers = content.get(MAGIC.len()..).unwrap_or_default().as_chunks().0;
        sums.zip(numbers).for_each(|(sum, number)| *sum = sum.wrapping_add(u64::from_le_bytes(*number)));
    }
    Ok(Some(counted))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::thread;

    use super::*;

    /// Returns an empty directory of this test.
    fn directory(test: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("cni0-calls-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        dir
    }

    fn total(dir: &Path, plugin: &str) -> u64 {
        let counted = counted_in(dir).unwrap().unwrap();
        let found = counted.plugins.iter().find(|(name, _)| name == plugin);
        found.map_or(0, |(_, calls)| calls.iter().flat_map(|calls| calls.durations).sum())
    }

    #[test]
    fn a_call_is_in_its_bucket_and_its_failure_under_its_code() {
        let dir = directory("bucket");
        for (micros, failure) in
            [(0, None), (500, None), (501, Some(7)), (5_000_001, Some(4242)), (u64::MAX, Some(999))]
        {
            count_in(&dir, "bridge", 0, Duration::from_micros(micros), failure.map(Code)).unwrap();
        }
        count_in(&dir, "host-local", 2, Duration::from_millis(3), None).unwrap();
        let Counted { plugins, unreadable } = counted_in(&dir).unwrap().unwrap();
        let [(bridge, calls), (host_local, others)] = plugins.as_slice() else { panic!("{plugins:?}") };
        assert_eq!((bridge.as_str(), host_local.as_str(), unreadable.len()), ("bridge", "host-local", 0));
        assert_eq!(calls[0].durations, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        let failures = |code: u32| calls[0].failures[CODES.iter().position(|known| *known == code).unwrap()];
        assert_eq!((failures(7), failures(999), calls[0].failures[CODES.len()], failures(11)), (1, 1, 1, 0));
        assert_eq!((others[2].micros, others[2].durations[3], &others[0]), (3_000, 1, &Calls::default()));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn no_call_is_lost_if_many_end_at_once() {
        let dir = directory("parallel");
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        count_in(&dir, "bridge", 0, Duration::ZERO, None).unwrap();
                    }
                });
            }
        });
        assert_eq!(total(&dir, "bridge"), 1_600);
        fs::remove_dir_all(dir).unwrap();
    }

    /// Neither a stopped process that holds a lock nor garbage keeps others from counting.
    #[test]
    fn a_file_that_cannot_be_used_is_skipped_and_left_alone() {
        let dir = directory("garbage");
        let path = |number: usize| dir.join(format!("bridge.{number}"));
        let count = || count_in(&dir, "bridge", 0, Duration::ZERO, None);
        count().unwrap();
        let held = File::open(path(0)).unwrap();
        held.lock_exclusive().unwrap();
        let garbage = [b"short".to_vec(), vec![0; SIZE], vec![b'x'; SIZE + 1], [&MAGIC[..], &[0; 3]].concat()];
        for (number, content) in garbage.iter().enumerate() {
            fs::write(path(1 + number), content).unwrap();
        }
        nix::unistd::mkfifo(&path(5), nix::sys::stat::Mode::S_IRWXU).unwrap();
        count().unwrap();
        assert_eq!((total(&dir, "bridge"), path(6).exists()), (2, true));
        assert_eq!(counted_in(&dir).unwrap().unwrap().unreadable, (1..=5).map(path).collect::<Vec<_>>());
        for (number, content) in garbage.iter().enumerate() {
            assert_eq!(fs::read(path(1 + number)).unwrap(), *content);
        }
        drop(held);
        // A symbolic link and a directory are errors, which the caller ignores.
        fs::remove_file(path(0)).unwrap();
        symlink("/dev/null", path(0)).unwrap();
        assert!(count().is_err());
        fs::remove_file(path(0)).unwrap();
        fs::create_dir(path(0)).unwrap();
        assert!(count().is_err());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn without_the_directory_nothing_is_counted() {
        let dir = directory("missing").join("missing");
        assert!(count_in(&dir, "bridge", 0, Duration::ZERO, None).is_err());
        assert!(!dir.exists() && counted_in(&dir).unwrap().is_none());
    }
}
