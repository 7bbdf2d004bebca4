//! Parses the text of a pattern. Accepts nothing that Go's `regexp` rejects, and gives it the same meaning.

use std::iter::Peekable;
use std::str::Chars;

use super::{Assertion, CharSet, Mistake, flaw};

/// How deep groups may be nested.
const MAX_DEPTH: usize = 100;
/// The greatest number in `{m,n}`, as in Go.
const MAX_REPEAT: u32 = 1000;

/// A parsed pattern.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: Node,
    pub(super) sets: Vec<CharSet>,
}

#[derive(Debug)]
pub(super) enum Node {
    /// One character of the set at this place.
    Char(usize),
    Assert(Assertion),
    Concat(Vec<Node>),
    Alternate(Vec<Node>),
    Repeat {
        node: Box<Node>,
        min: u32,
        /// `None` for any number.
        max: Option<u32>,
    },
}

pub(super) fn parse(text: &str) -> Result<Tree, Mistake> {
    let mut parser = Parser { rest: text.chars().peekable(), sets: Vec::new(), flags: Flags::default(), depth: 0 };
    let root = parser.alternation()?;
    match parser.rest.next() {
        None => Ok(Tree { root, sets: parser.sets }),
        Some(_) => flaw("a group is closed that was not opened"),
    }
}

/// The flags that are set by `(?i)` and `(?s)`.
#[derive(Clone, Copy, Default)]
struct Flags {
    fold: bool,
    dot_all: bool,
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    sets: Vec<CharSet>,
    flags: Flags,
    depth: usize,
}

impl Parser<'_> {
    /// Parses to the end of the text or of the group.
    fn alternation(&mut self) -> Result<Node, Mistake> {
        let mut options = vec![self.concatenation()?];
        while self.rest.next_if_eq(&'|').is_some() {
            options.push(self.concatenation()?);
        }
        match options.len() {
            1 => options.pop().map_or_else(|| Ok(Node::Concat(Vec::new())), Ok),
            _ => Ok(Node::Alternate(options)),
        }
    }

    fn concatenation(&mut self) -> Result<Node, Mistake> {
        let mut nodes = Vec::new();
        while let Some(c) = self.rest.peek().copied().filter(|c| !matches!(c, '|' | ')')) {
            if self.repetition().is_some() {
                return flaw(format!("nothing precedes the repetition {:?}", c.to_string()));
            }
            self.rest.next();
            if let Some(node) = self.atom(c)? {
                nodes.push(self.repeated(node)?);
            }
        }
        Ok(Node::Concat(nodes))
    }

    /// Parses what a repetition can follow; `None` for flags.
    fn atom(&mut self, c: char) -> Result<Option<Node>, Mistake> {
        Ok(Some(match c {
            '(' => return self.group(),
            '[' => self.class()?,
            '.' => {
                let ranges = if self.flags.dot_all { Vec::new() } else { vec![('\n', '\n')] };
                self.set(CharSet { ranges, negated: true, fold: false })
            }
            '^' => Node::Assert(Assertion::Start),
            '$' => Node::Assert(Assertion::End),
            '\\' => self.escape()?,
            c => self.literal(c),
        }))
    }

    fn set(&mut self, set: CharSet) -> Node {
        self.sets.push(set);
        Node::Char(self.sets.len() - 1)
    }

    fn literal(&mut self, c: char) -> Node {
        self.set(CharSet { ranges: vec![(c, c)], negated: false, fold: self.flags.fold })
    }

    /// Parses the repetition after a node, if there is one.
    fn repeated(&mut self, node: Node) -> Result<Node, Mistake> {
        let Some((min, max)) = self.repetition() else { return Ok(node) };
        if min > MAX_REPEAT || max.is_some_and(|max| max > MAX_REPEAT || max < min) {
            return flaw(format!("the count of a repetition is above {MAX_REPEAT}, or the second one below the first"));
        }
        // Whether few or many repetitions are preferred makes no difference to whether the pattern matches.
        self.rest.next_if_eq(&'?');
        if self.repetition().is_some() {
            return flaw("a repetition follows another");
        }
        Ok(Node::Repeat { node: Box::new(node), min, max })
    }

    /// Reads a repetition. An incomplete one in braces is not read: it stands for its characters.
    fn repetition(&mut self) -> Option<(u32, Option<u32>)> {
        let simple = match self.rest.peek()? {
            '*' => Some((0, None)),
            '+' => Some((1, None)),
            '?' => Some((0, Some(1))),
            '{' => None,
            _ => return None,
        };
        if simple.is_some() {
            self.rest.next();
            return simple;
        }
        let mut ahead = self.rest.clone();
        ahead.next();
        let min = number(&mut ahead)?;
        let max = match ahead.next_if_eq(&',') {
            None => Some(min),
            Some(_) if ahead.peek() == Some(&'}') => None,
            Some(_) => Some(number(&mut ahead)?),
        };
        ahead.next_if_eq(&'}')?;
        self.rest = ahead;
        Some((min, max))
    }

    /// Parses a group after its opening parenthesis; `None` if it only sets flags.
    fn group(&mut self) -> Result<Option<Node>, Mistake> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return flaw(format!("groups are nested more than {MAX_DEPTH} deep"));
        }
        let outside = self.flags;
        if self.rest.next_if_eq(&'?').is_some() && !self.group_flags()? {
            // The flags are those of the rest of the surrounding group.
            self.depth -= 1;
            return Ok(None);
        }
        let node = self.alternation()?;
        if self.rest.next() != Some(')') {
            return flaw("a group is not closed");
        }
        self.flags = outside;
        self.depth -= 1;
        Ok(Some(node))
    }

    /// Parses what follows `(?`. Returns whether a group follows, instead of the end of the parentheses.
    fn group_flags(&mut self) -> Result<bool, Mistake> {
        let (mut value, mut is_set) = (true, false);
        loop {
            match self.rest.next() {
                Some('i') => self.flags.fold = value,
                Some('s') => self.flags.dot_all = value,
                Some('-') if value => {
                    (value, is_set) = (false, false);
                    continue;
                }
                Some(':') if value || is_set => return Ok(true),
                Some(')') if is_set => return Ok(false),
                Some('P' | '<') => return flaw("names of groups are not supported: write (?:…)"),
                other => {
                    let other: String = other.into_iter().collect();
                    return flaw(format!("the flag {other:?} of a group is not supported"));
                }
            }
            is_set = true;
        }
    }

    /// Parses an escape after its backslash.
    fn escape(&mut self) -> Result<Node, Mistake> {
        let Some(c) = self.rest.next() else { return flaw("the pattern ends with a backslash") };
        Ok(match c {
            'b' => Node::Assert(Assertion::WordBoundary),
            'B' => Node::Assert(Assertion::NoWordBoundary),
            'A' => Node::Assert(Assertion::Start),
            'z' => Node::Assert(Assertion::End),
            c => match abbreviation(c) {
                Some((ranges, negated)) => self.set(CharSet { ranges, negated, fold: self.flags.fold }),
                None => {
                    let c = self.character(c)?;
                    self.literal(c)
                }
            },
        })
    }

    /// Returns the character that an escape stands for.
    fn character(&mut self, c: char) -> Result<char, Mistake> {
        match c {
            'a' => Ok('\x07'),
            'f' => Ok('\x0c'),
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            'v' => Ok('\x0b'),
            'x' => self.hexadecimal(),
            c if c.is_ascii_punctuation() || c == ' ' => Ok(c),
            c => flaw(format!("the escape {:?} is not supported", format!("\\{c}"))),
        }
    }

    /// Returns the character of `\x7f` or `\x{10ffff}`.
    fn hexadecimal(&mut self) -> Result<char, Mistake> {
        let mut digits = String::new();
        match self.rest.next_if_eq(&'{') {
            Some(_) => {
                while let Some(c) = self.rest.next_if(|c| *c != '}') {
                    digits.push(c);
                }
                if self.rest.next().is_none() {
                    digits.clear();
                }
            }
            None => digits.extend(self.rest.by_ref().take(2)),
        }
        let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit());
        let number = u32::from_str_radix(&digits, 16).ok().filter(|_| is_number);
        match number.and_then(char::from_u32) {
            Some(c) => Ok(c),
            None => flaw(format!("{digits:?} is not the hexadecimal number of a character")),
        }
    }

    /// Parses a class after its opening bracket.
    fn class(&mut self) -> Result<Node, Mistake> {
        let mut set = CharSet { fold: self.flags.fold, ..CharSet::default() };
        set.negated = self.rest.next_if_eq(&'^').is_some();
        let mut is_first = true;
        loop {
            let Some(c) = self.rest.next() else { return flaw("a class is not closed by ]") };
            match c {
                ']' if !is_first => return Ok(self.set(set)),
                '[' if self.rest.peek() == Some(&':') => self.named_class(&mut set)?,
                '\\' if self.rest.peek().copied().and_then(abbreviation).is_some() => {
                    let Some((ranges, negated)) = self.rest.next().and_then(abbreviation) else { continue };
                    set.ranges.extend(if negated { complement(ranges) } else { ranges });
                }
                c => self.range(c, &mut set)?,
            }
            is_first = false;
        }
    }

    /// Parses a character in a class, or a range of them.
    fn range(&mut self, c: char, set: &mut CharSet) -> Result<(), Mistake> {
        let first = self.class_character(c)?;
        let mut ahead = self.rest.clone();
        let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']');
        if !is_range {
            set.ranges.push((first, first));
            return Ok(());
        }
        self.rest.next();
        let Some(c) = self.rest.next() else { return flaw("a class is not closed by ]") };
        let last = self.class_character(c)?;
        if last < first {
            return flaw(format!("the range {first:?} to {last:?} is empty"));
        }
        set.ranges.push((first, last));
        Ok(())
    }

    fn class_character(&mut self, c: char) -> Result<char, Mistake> {
        if c != '\\' {
            return Ok(c);
        }
        match self.rest.next() {
            Some(c) => self.character(c),
            None => flaw("a class is not closed by ]"),
        }
    }

    /// Parses a class such as `[:alnum:]` after its first bracket.
    fn named_class(&mut self, set: &mut CharSet) -> Result<(), Mistake> {
        self.rest.next();
        let negated = self.rest.next_if_eq(&'^').is_some();
        let mut name = String::new();
        while let Some(c) = self.rest.next_if(char::is_ascii_lowercase) {
            name.push(c);
        }
        let is_closed = self.rest.next() == Some(':') && self.rest.next() == Some(']');
        let ranges: &[(char, char)] = match name.as_str() {
            "alnum" => &[('0', '9'), ('A', 'Z'), ('a', 'z')],
            "alpha" => &[('A', 'Z'), ('a', 'z')],
            "ascii" => &[('\0', '\x7f')],
            "blank" => &[('\t', '\t'), (' ', ' ')],
            "cntrl" => &[('\0', '\x1f'), ('\x7f', '\x7f')],
            "digit" => &[('0', '9')],
            "graph" => &[('!', '~')],
            "lower" => &[('a', 'z')],
            "print" => &[(' ', '~')],
            "punct" => &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')],
            "space" => &[('\t', '\r'), (' ', ' ')],
            "upper" => &[('A', 'Z')],
            "word" => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
            "xdigit" => &[('0', '9'), ('A', 'F'), ('a', 'f')],
            _ => &[],
        };
        if ranges.is_empty() || !is_closed {
            return flaw(format!("the class {:?} is not supported", format!("[:{name}:]")));
        }
        set.ranges.extend(if negated { complement(ranges.to_vec()) } else { ranges.to_vec() });
        Ok(())
    }
}

/// Returns the characters of `\d`, `\s` and `\w`, and whether the escape means all others.
fn abbreviation(c: char) -> Option<(Vec<(char, char)>, bool)> {
    let ranges: &[(char, char)] = match c.to_ascii_lowercase() {
        'd' => &[('0', '9')],
        's' => &[('\t', '\n'), ('\x0c', '\r'), (' ', ' ')],
        'w' => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
        _ => return None,
    };
    Some((ranges.to_vec(), c.is_ascii_uppercase()))
}

/// Returns all other characters. The ranges are sorted, and do not touch.
fn complement(ranges: Vec<(char, char)>) -> Vec<(char, char)> {
    let mut others = Vec::new();
    let mut next = '\0';
    for (first, last) in ranges {
        if let Some(before) = char::from_u32(u32::from(first).wrapping_sub(1)).filter(|before| next <= *before) {
            others.push((next, before));
        }
        next = char::from_u32(u32::from(last) + 1).unwrap_or(char::MAX);
    }
    others.push((next, char::MAX));
    others
}

/// Reads a decimal number.
fn number(rest: &mut Peekable<Chars<'_>>) -> Option<u32> {
    let mut number = None;
    while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
        rest.next();
        number = Some(number.unwrap_or(0_u32).saturating_mul(10).saturating_add(digit));
    }
    number
}
