//! Going on after a failure, and telling all of them in the end.

use crate::error::{Error, Result};

/// What went wrong so far.
#[derive(Debug, Default)]
pub struct Failures(Option<Error>);

impl Failures {
    /// Notes how a step ended. The first failure is the answer, the others stand in its details.
    pub fn note(&mut self, step: Result<()>) {
        if let Err(error) = step {
            self.0 = Some(match self.0.take() {
                None => error,
                Some(first) => first.details(format!("also: {error:?}")),
            });
        }
    }

    /// The outcome of all steps.
    pub fn into_result(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
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
}
