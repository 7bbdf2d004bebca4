//! How the demonstration measures and prints.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni::{Context, Result};

use crate::out;
use crate::table::WIDTH;

/// The result of a step, and the time it took.
pub(super) type Timed<T> = Result<(T, Duration)>;

/// Runs `work` and measures its time.
pub(super) fn timed<T>(work: impl FnOnce() -> Result<T>) -> Timed<T> {
    let began = Instant::now();
    let done = work()?;
    Ok((done, began.elapsed()))
}

/// Returns the files of a directory with their contents, sorted by name.
pub(super) fn files(dir: &str) -> Result<Vec<(PathBuf, String)>> {
    let what = || format!("read {dir}");
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).context(what)? {
        let path = entry.context(what)?.path();
        let text = fs::read(&path).context(what)?;
        found.push((path, String::from_utf8_lossy(&text).into_owned()));
    }
    found.sort();
    Ok(found)
}

/// Prints commands.
pub(super) fn commands(typed: impl IntoIterator<Item = impl AsRef<str>>) -> Result<()> {
    typed.into_iter().try_for_each(|line| out::print(format!("    $ {}\n", line.as_ref())))
}

/// Prints indented lines.
pub(super) fn lines(text: &str) -> Result<()> {
    text.lines().try_for_each(|line| out::print(format!("{}\n", format!("      {line}").trim_end())))
}

/// Prints a long line, wrapped between words.
pub(super) fn wrapped(text: &str) -> Result<()> {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if 6 + line.len() + 1 + word.len() > WIDTH {
            lines(&line)?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines(&line)
}
