//! Regular expressions of the allow-list: the part of Go's syntax that such lists use, matched in linear time.
//!
//! A pattern is compiled to a program, and all states that the program can be in are simulated at once. So the time for a
//! text is at most its length times the size of the program, whatever the pattern is. `syntax` parses the text of a pattern.

mod syntax;
#[cfg(test)]
mod tests;

use std::fmt;

use syntax::{Node, Tree};

/// The greatest length of a pattern in characters.
const MAX_LENGTH: usize = 1000;
/// The greatest number of instructions. `(a{100}){100}` is a short text for a large program.
const MAX_SIZE: usize = 10_000;
const TOO_LARGE: &str = "the repetitions make the pattern too large";

/// A regular expression.
#[derive(Debug)]
pub(crate) struct Pattern {
    program: Vec<Instruction>,
    sets: Vec<CharSet>,
}

/// Why a text is not a pattern.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake(String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the error for a text that is not a pattern, or not one that is supported here.
fn flaw<T>(what: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake(what.into()))
}

#[derive(Clone, Copy, Debug)]
enum Instruction {
    /// Continues with the next instruction after a character of this set.
    Char(usize),
    /// Continues with the next instruction if the position is right.
    Assert(Assertion),
    /// Continues with both instructions.
    Split(usize, usize),
    /// Continues with this instruction.
    Jump(usize),
    Match,
}

/// A condition on a position between two characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Assertion {
    Start,
    End,
    WordBoundary,
    NoWordBoundary,
}

impl Assertion {
    fn holds(self, before: Option<char>, after: Option<char>) -> bool {
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        match self {
            Assertion::Start => before.is_none(),
            Assertion::End => after.is_none(),
            Assertion::WordBoundary => is_word(before) != is_word(after),
            Assertion::NoWordBoundary => is_word(before) == is_word(after),
        }
    }
}

/// A set of characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CharSet {
    ranges: Vec<(char, char)>,
    /// Whether the set has all other characters instead.
    negated: bool,
    /// Whether the set has the characters in both letter cases.
    fold: bool,
}

impl CharSet {
    fn contains(&self, c: char) -> bool {
        let listed = |c: char| self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&c));
        let found = listed(c) || (self.fold && (c.to_lowercase().any(listed) || c.to_uppercase().any(listed)));
        found != self.negated
    }
}

impl Pattern {
    /// Parses a regular expression.
    pub(crate) fn parse(text: &str) -> Result<Pattern, Mistake> {
        if text.chars().nth(MAX_LENGTH).is_some() {
            return flaw(format!("a pattern has at most {MAX_LENGTH} characters"));
        }
        let Tree { root, sets } = syntax::parse(text)?;
        let mut compiler = Compiler { program: Vec::new(), steps: 0 };
        compiler.add(&root)?;
        compiler.program.push(Instruction::Match);
        Ok(Pattern { program: compiler.program, sets })
    }

    /// Returns whether the pattern matches any part of the text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let (mut now, mut next) = (States::new(self), States::new(self));
        let mut before = None;
        let mut rest = text.chars();
        loop {
            // A match may begin at every position.
            let at = rest.clone().next();
            if now.enter(self, 0, before, at) {
                return true;
            }
            let Some(c) = rest.next() else { return false };
            let after = rest.clone().next();
            next.clear();
            for state in &now.waiting {
                let Some(Instruction::Char(set)) = self.program.get(*state) else { continue };
                let passes = self.sets.get(*set).is_some_and(|set| set.contains(c));
                if passes && next.enter(self, state + 1, Some(c), after) {
                    return true;
                }
            }
            std::mem::swap(&mut now, &mut next);
            before = Some(c);
        }
    }

    /// Returns the number of instructions.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn size(&self) -> usize {
        self.program.len()
    }
}

/// The states of a program at one position of the text.
struct States {
    /// Which instructions were reached.
    reached: Vec<bool>,
    /// The instructions that wait for a character.
    waiting: Vec<usize>,
    /// Instructions to follow.
    pending: Vec<usize>,
}

impl States {
    fn new(pattern: &Pattern) -> States {
        States { reached: vec![false; pattern.program.len()], waiting: Vec::new(), pending: Vec::new() }
    }

    fn clear(&mut self) {
        self.reached.fill(false);
        self.waiting.clear();
    }

    /// Adds an instruction and all that follow from it without a character. Returns whether the pattern matches.
    fn enter(&mut self, pattern: &Pattern, start: usize, before: Option<char>, after: Option<char>) -> bool {
        self.pending.push(start);
        while let Some(state) = self.pending.pop() {
            match self.reached.get_mut(state) {
                Some(reached) if !*reached => *reached = true,
                _ => continue,
            }
            match pattern.program.get(state) {
                Some(Instruction::Char(_)) => self.waiting.push(state),
                Some(Instruction::Assert(assertion)) if assertion.holds(before, after) => self.pending.push(state + 1),
                Some(Instruction::Split(one, other)) => self.pending.extend([*one, *other]),
                Some(Instruction::Jump(to)) => self.pending.push(*to),
                Some(Instruction::Match) => return true,
                Some(Instruction::Assert(_)) | None => {}
            }
        }
        false
    }
}

/// Translates a tree to a program.
struct Compiler {
    program: Vec<Instruction>,
    /// The number of nodes that were translated, because some have no instruction.
    steps: usize,
}

impl Compiler {
    fn add(&mut self, node: &Node) -> Result<(), Mistake> {
        self.steps += 1;
        if self.steps > 4 * MAX_SIZE {
            return flaw(TOO_LARGE);
        }
        match node {
            Node::Char(set) => self.push(Instruction::Char(*set)).map(drop),
            Node::Assert(assertion) => self.push(Instruction::Assert(*assertion)).map(drop),
            Node::Concat(nodes) => nodes.iter().try_for_each(|node| self.add(node)),
            Node::Alternate(nodes) => self.alternate(nodes),
            Node::Repeat { node, min, max } => {
                for _ in 0..*min {
                    self.add(node)?;
                }
                match max {
                    None => self.star(node),
                    Some(max) => self.optional(node, max.saturating_sub(*min)),
                }
            }
        }
    }

    /// Adds an instruction and returns its place.
    fn push(&mut self, instruction: Instruction) -> Result<usize, Mistake> {
        if self.program.len() >= MAX_SIZE {
            return flaw(TOO_LARGE);
        }
        self.program.push(instruction);
        Ok(self.program.len() - 1)
    }

    fn set(&mut self, place: usize, instruction: Instruction) {
        if let Some(found) = self.program.get_mut(place) {
            *found = instruction;
        }
    }

    fn alternate(&mut self, nodes: &[Node]) -> Result<(), Mistake> {
        let mut ends = Vec::new();
        let Some((last, others)) = nodes.split_last() else { return Ok(()) };
        for node in others {
            let split = self.push(Instruction::Match)?;
            self.add(node)?;
            ends.push(self.push(Instruction::Match)?);
            self.set(split, Instruction::Split(split + 1, self.program.len()));
        }
        self.add(last)?;
        for end in ends {
            self.set(end, Instruction::Jump(self.program.len()));
        }
        Ok(())
    }

    /// Adds any number of repetitions.
    fn star(&mut self, node: &Node) -> Result<(), Mistake> {
        let split = self.push(Instruction::Match)?;
        self.add(node)?;
        self.push(Instruction::Jump(split))?;
        self.set(split, Instruction::Split(split + 1, self.program.len()));
        Ok(())
    }

    /// Adds up to `count` repetitions.
    fn optional(&mut self, node: &Node, count: u32) -> Result<(), Mistake> {
        let mut splits = Vec::new();
        for _ in 0..count {
            splits.push(self.push(Instruction::Match)?);
            self.add(node)?;
        }
        for split in splits {
            self.set(split, Instruction::Split(split + 1, self.program.len()));
        }
        Ok(())
    }
}
