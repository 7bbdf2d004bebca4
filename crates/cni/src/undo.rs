//! Rollback steps: registered before each change, and run newest first unless everything succeeded.

use std::fmt;

use linux::log::{debug, warn};

use crate::error::{Error, Result};

/// Rolls back an ADD that has succeeded.
pub type Rollback<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

type Step<'a, C> = Box<dyn FnOnce(&mut C) -> Result<()> + 'a>;

/// A context (sockets, a store) that is changed step by step, with the steps to revert the changes.
///
/// A rollback step is registered before its change, because the kernel's answer can be lost after it acted. So the step
/// must treat "does not exist" as success.
pub struct Undo<'a, C> {
    context: C,
    steps: Vec<(String, Step<'a, C>)>,
}

impl<'a, C> Undo<'a, C> {
    /// Creates a rollback without steps.
    pub fn new(context: C) -> Undo<'a, C> {
        Undo { context, steps: Vec::new() }
    }

    /// Returns the context.
    pub fn context(&mut self) -> &mut C {
        &mut self.context
    }

    /// Registers a rollback step; `what` is a verb phrase: `delete link "veth1"`.
    pub fn push(&mut self, what: impl Into<String>, step: impl FnOnce(&mut C) -> Result<()> + 'a) {
        self.steps.push((what.into(), Box::new(step)));
    }

    /// Removes the newest step, whose change turned out not to be ours.
    pub fn pop(&mut self) {
        self.steps.pop();
    }

    /// Discards all steps: everything succeeded.
    pub fn commit(mut self) {
        self.steps.clear();
    }

    /// Runs all steps because of `error`, and adds the steps that failed to its details.
    #[must_use]
    pub fn roll_back(mut self, error: Error) -> Error {
        self.run().into_iter().fold(error, Error::details)
    }

    fn run(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        while let Some((what, step)) = self.steps.pop() {
            left.extend(report(&what, step(&mut self.context)));
        }
        left
    }
}

/// Logs the outcome of a step, and returns the text for the error if it failed.
fn report(what: &str, outcome: Result<()>) -> Option<String> {
    match outcome {
        Ok(()) => {
            debug!("undone: {what}");
            None
        }
        Err(error) => {
            warn!("not undone: {what}: {error:?}");
            Some(format!("not undone: {what}: {error}"))
        }
    }
}

/// Returning early with `?` rolls back as well. Steps that fail are then reported only in the log.
impl<C> Drop for Undo<'_, C> {
    fn drop(&mut self) {
        self.run();
    }
}

impl<C> fmt::Debug for Undo<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.steps.iter().map(|(what, _)| what)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn steps_run_newest_first_and_past_failures() {
        let mut undo = Undo::new(Vec::new());
        undo.push("a", |log: &mut Vec<&str>| {
            log.push("a");
            Ok(())
        });
        undo.push("b", |_| Err(Error::new(Code::IO, "stuck")));
        undo.push("c", |log| {
            log.push("c");
            Ok(())
        });
        undo.push("never", |log| {
            log.push("never");
            Ok(())
        });
        undo.pop();
        assert_eq!(undo.run(), ["not undone: b: stuck"]);
        assert_eq!(undo.context, ["c", "a"]);
    }

    #[test]
    fn the_error_lists_failed_steps() {
        let mut undo = Undo::new(());
        undo.push("delete link \"x\"", |()| Err(Error::new(Code::IO, "busy")));
        let error = undo.roll_back(Error::new(Code::INTERNAL, "no"));
        assert_eq!(format!("{error:?}"), "[999] no (not undone: delete link \"x\": busy)");
    }

    #[test]
    fn a_commit_undoes_nothing_and_a_drop_everything() {
        let count = std::cell::Cell::new(0);
        let one = || {
            let mut undo = Undo::new(());
            undo.push("count", |()| {
                count.set(count.get() + 1);
                Ok(())
            });
            undo
        };
        one().commit();
        assert_eq!(count.get(), 0);
        drop(one());
        assert_eq!(count.get(), 1);
    }
}
