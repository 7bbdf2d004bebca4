//! Regular expressions of the allow-list: what the syntax of Go and that of `regex-lite` have in common.
//!
//! `regex-lite` matches in linear time. `Scanner` rejects what it accepts and Go rejects, or gives another meaning.

#[cfg(test)]
mod tests;

use std::iter::Peekable;
use std::str::Chars;

use regex_lite::{Regex, RegexBuilder};

/// The greatest length of a pattern in characters.
const MAX_LENGTH: usize = 1000;
/// The greatest number of groups. The memory for a search is the number of groups times the size of the compiled
/// pattern.
const MAX_GROUPS: usize = 100;
/// The greatest size of a compiled pattern in bytes. `(a{10}b{100}){10}` is a short text for a large one.
const MAX_SIZE: usize = 256 << 10;
/// The greatest count of a repetition, as in Go, also if repetitions are nested.
const MAX_REPEAT: u32 = 1000;

/// A regular expression.
#[derive(Debug)]
pub(crate) struct Pattern(Regex);

impl Pattern {
    /// Parses a regular expression. The error says why it is not one, or not one that is supported here.
    pub(crate) fn parse(text: &str) -> Result<Pattern, String> {
        if text.chars().nth(MAX_LENGTH).is_some() {
            return flaw(format!("a pattern has at most {MAX_LENGTH} characters"));
        }
        let regex = Scanner::new(text)
            .scan()
            .and_then(|()| RegexBuilder::new(text).size_limit(MAX_SIZE).build().map_err(|error| error.to_string()));
        regex.map(Pattern).map_err(|reason| format!("pattern {text:?}: {reason}"))
    }

    /// Returns whether the pattern matches any part of the text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

fn flaw<T>(what: impl Into<String>) -> Result<T, String> {
    Err(what.into())
}

/// Reads a pattern without a tree. What both engines reject is left to `regex-lite`.
struct Scanner<'a> {
    rest: Peekable<Chars<'a>>,
    /// Whether the letter case is ignored anywhere in the pattern.
    ignores_case: bool,
    /// Whether the engines disagree about the pattern if it ignores the letter case.
    needs_case: bool,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Scanner<'a> {
        Scanner { rest: text.chars().peekable(), ignores_case: false, needs_case: false }
    }

    fn scan(mut self) -> Result<(), String> {
        self.needs_case = !self.rest.clone().all(|c| c.is_ascii());
        // For each open group, and for the item before the current position: how often its content is repeated at most.
        let (mut open, mut item) = (vec![1], 1);
        let (mut groups, mut is_repeated) = (0, false);
        while let Some(c) = self.rest.next() {
            match c {
                '(' if self.rest.peek() == Some(&'?') && self.flags()? => continue,
                '*' | '+' | '?' | '{' if is_repeated => return flaw("a repetition follows another"),
                '*' | '+' | '?' | '{' => {
                    item *= if c == '{' { self.count()? } else { 1 };
                    self.rest.next_if_eq(&'?'); // whether few or many are preferred
                    if item > MAX_REPEAT {
                        return flaw(format!("nested repetitions have more than {MAX_REPEAT} in total"));
                    }
                }
                '(' => {
                    groups += 1;
                    open.push(1);
                }
                ')' => item = open.pop().unwrap_or(1),
                _ => {
                    item = 1;
                    match c {
                        '\\' => self.escape()?,
                        '[' => self.class()?,
                        _ => {}
                    }
                }
            }
            is_repeated = matches!(c, '*' | '+' | '?' | '{');
            if let Some(group) = open.last_mut().filter(|_| c != '(') {
                *group = item.max(*group);
            }
        }
        if groups > MAX_GROUPS {
            return flaw(format!("a pattern has at most {MAX_GROUPS} groups"));
        }
        if self.ignores_case && self.needs_case {
            return flaw("the flag i is supported only for ASCII, and not with \\x or [:^lower:] or [:^upper:]");
        }
        Ok(())
    }

    /// Reads the flags of a group from its `?` on. Returns whether there are only flags, without a group.
    fn flags(&mut self) -> Result<bool, String> {
        self.rest.next();
        loop {
            match self.rest.next() {
                Some('i') => self.ignores_case = true,
                Some('m' | 's' | 'U' | '-') => {}
                Some(':') => return Ok(false),
                Some(')') => return Ok(true),
                Some('P' | '<') => return flaw("names of groups are not supported: write (?:…)"),
                other => {
                    let other: String = other.into_iter().collect();
                    return flaw(format!("the flag {other:?} of a group is not supported"));
                }
            }
        }
    }

    /// Reads `2}`, `2,}` or `2,5}`, and returns the greatest number.
    fn count(&mut self) -> Result<u32, String> {
        let min = self.number();
        let max = match self.rest.next_if_eq(&',') {
            Some(_) if self.rest.peek() == Some(&'}') => min.map(|min| min.max(1)),
            Some(_) => self.number(),
            None => min,
        };
        match (min, max, self.rest.next()) {
            (Some(min), Some(max), Some('}')) if min.max(max) <= MAX_REPEAT => Ok(max),
            _ => flaw(format!(
                "braces have counts of at most {MAX_REPEAT}, without spaces or leading zeros: escape other braces"
            )),
        }
    }

    /// Reads a decimal number. Go takes a repetition with a leading zero for literal text.
    fn number(&mut self) -> Option<u32> {
        let mut digits = String::new();
        while let Some(digit) = self.rest.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        digits.parse().ok().filter(|_| digits == "0" || !digits.starts_with('0'))
    }

    /// Reads an escape after its backslash.
    fn escape(&mut self) -> Result<(), String> {
        match self.rest.next() {
            // The beginning and the end of a word in `regex-lite`, characters in Go; numbers of characters, unknown to
            // Go.
            Some(c @ ('<' | '>' | 'u' | 'U')) => {
                return flaw(format!("the escape {:?} is not supported", format!("\\{c}")));
            }
            Some('x') => {
                self.needs_case = true;
                if self.rest.next_if_eq(&'{').is_some() {
                    self.rest.by_ref().find(|c| *c == '}');
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads a class after its opening bracket.
    fn class(&mut self) -> Result<(), String> {
        self.rest.next_if_eq(&'^');
        let is_special = self.rest.next_if(|c| matches!(c, ']' | '-')).is_some();
        if is_special && self.rest.peek() == Some(&'-') {
            return flaw("a class begins with ]- or --: escape the first character");
        }
        // Whether the next character is the end of a range.
        let mut ends_range = false;
        while let Some(c) = self.rest.next() {
            match c {
                ']' => break,
                '[' if ends_range || self.rest.peek() != Some(&':') => return flaw("a class has [: write \\["),
                '[' => self.named_class(),
                '\\' => self.escape()?,
                _ => {}
            }
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']');
            ends_range = is_range && !ends_range && c != '[';
            if ends_range {
                self.rest.next();
            }
        }
        Ok(())
    }

    /// Reads a class such as `[:alnum:]` after its first bracket.
    fn named_class(&mut self) {
        let name: String = self.rest.by_ref().take_while(|c| *c != ']').collect();
        // `regex-lite` ignores the case only after it has taken all other characters.
        self.needs_case |= matches!(name.as_str(), ":^lower:" | ":^upper:");
    }
}
