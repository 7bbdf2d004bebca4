//! Hints for words that cnitool does not know.

use cni::Error;

use cni::nearest;

/// Adds to the error which known word `word` was probably meant to be; otherwise `alternative`.
pub(crate) fn add<'a>(
    error: Error,
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
    alternative: impl FnOnce() -> String,
) -> Error {
    let hint = nearest(word, known).map(|near| format!("did you mean {near:?}?"));
    error.details(hint.unwrap_or_else(alternative))
}
