//! Collects errors of several steps and reports all of them at the end.

use crate::error::{Error, Result};

/// The first ten errors are reported in full; the rest are counted.
const REPORTED: usize = 10;

/// Collects the errors of steps that must all run even if some fail.
#[derive(Debug, Default)]
pub struct ErrorCollector {
    first: Option<Error>,
    others: usize,
}

impl ErrorCollector {
    /// Records the outcome of a step. The first error is returned in the end; later ones are added to its details.
    pub fn record<E: Into<Error>>(&mut self, step: Result<(), E>) {
        let Err(error) = step.map_err(Into::into) else { return };
        self.first = Some(match self.first.take() {
            None => error,
            Some(first) => {
                self.others += 1;
                if self.others < REPORTED { first.details(format!("also: {error:?}")) } else { first }
            }
        });
    }

    /// Returns the value of a successful step; records the error of a failed one.
    pub fn keep<T, E: Into<Error>>(&mut self, step: Result<T, E>) -> Option<T> {
        match step {
            Ok(value) => Some(value),
            Err(error) => {
                self.record(Err(error));
                None
            }
        }
    }

    /// Returns the combined outcome of all steps.
    pub fn into_result(self) -> Result<()> {
        let unreported = (self.others + 1).saturating_sub(REPORTED);
        match self.first {
            None => Ok(()),
            Some(first) if unreported == 0 => Err(first),
            Some(first) => Err(first.details(format!("and {unreported} more"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn the_first_error_is_returned_with_the_others_in_its_details() {
        let mut failures = ErrorCollector::default();
        failures.record(Ok::<_, Error>(()));
        failures.record(Err(Error::new(Code::IO, "a").details("x")));
        failures.record(Ok::<_, Error>(()));
        failures.record(Err(Error::new(Code::INTERNAL, "b")));
        let error = failures.into_result().unwrap_err();
        assert_eq!(format!("{error:?}"), "[5] a (x; also: [999] b)");
        assert!(ErrorCollector::default().into_result().is_ok());
    }

    #[test]
    fn errors_beyond_the_limit_are_counted() {
        let mut failures = ErrorCollector::default();
        for n in 0..1000 {
            failures.record(Err(Error::new(Code::IO, format!("<{n}>"))));
        }
        let error = format!("{:?}", failures.into_result().unwrap_err());
        assert!(error.contains("<9>") && !error.contains("<10>") && error.ends_with("; and 990 more)"), "{error}");
    }
}
