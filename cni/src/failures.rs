//! Going on after a failure, and telling all of them in the end.

use crate::error::{Error, Result};

/// So many are told; of what comes after them the number is.
const TOLD: usize = 10;

/// What went wrong so far.
#[derive(Debug, Default)]
pub struct Failures {
    first: Option<Error>,
    others: usize,
}

impl Failures {
    /// Notes how a step ended. The first failure is the answer, the others stand in its details.
    pub fn note(&mut self, step: Result<()>) {
        let Err(error) = step else { return };
        self.first = Some(match self.first.take() {
            None => error,
            Some(first) => {
                self.others += 1;
                if self.others < TOLD { first.details(format!("also: {error:?}")) } else { first }
            }
        });
    }

    /// Returns the value of a step that succeeded, and notes the failure of one that did not.
    pub fn keep<T>(&mut self, step: Result<T>) -> Option<T> {
        match step {
            Ok(value) => Some(value),
            Err(error) => {
                self.note(Err(error));
                None
            }
        }
    }

    /// The outcome of all steps.
    pub fn into_result(self) -> Result<()> {
        let untold = (self.others + 1).saturating_sub(TOLD);
        match self.first {
            None => Ok(()),
            Some(first) if untold == 0 => Err(first),
            Some(first) => Err(first.details(format!("and {untold} more"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn the_first_is_the_answer_and_none_is_lost() {
        let mut failures = Failures::default();
        failures.note(Ok(()));
        failures.note(Err(Error::new(Code::IO, "a").details("x")));
        failures.note(Ok(()));
        failures.note(Err(Error::new(Code::INTERNAL, "b")));
        let error = failures.into_result().unwrap_err();
        assert_eq!(format!("{error:?}"), "[5] a (x; also: [999] b)");
        assert!(Failures::default().into_result().is_ok());
    }

    #[test]
    fn a_thousand_are_counted() {
        let mut failures = Failures::default();
        for n in 0..1000 {
            failures.note(Err(Error::new(Code::IO, format!("<{n}>"))));
        }
        let error = format!("{:?}", failures.into_result().unwrap_err());
        assert!(error.contains("<9>") && !error.contains("<10>") && error.ends_with("; and 990 more)"), "{error}");
    }
}
