//! The line that the log has for each call: outcome, duration and addresses.

use std::fmt;
use std::time::{Duration, Instant};

use linux::ip::Cidr;
use linux::log::{error, info};

use crate::error::{Error, Result};
use crate::result::AddResult;

/// What the log says about a call when it ends.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// When the log started; `None` if the log is off.
    began: Option<Instant>,
    addresses: Vec<Cidr>,
}

impl Summary {
    /// Returns the summary of a call whose log started at `began`.
    pub(super) fn since(began: Instant) -> Summary {
        Summary { began: Some(began), addresses: Vec::new() }
    }

    /// Records the addresses of the attachment. `result` is not called if the log is off.
    pub(crate) fn record(&mut self, result: impl FnOnce() -> Option<AddResult>) {
        if self.began.is_some()
            && let Some(result) = result()
        {
            self.addresses = result.ips.iter().map(|ip| ip.address).collect();
        }
    }

    /// Logs the outcome, as an error if the call failed.
    pub(crate) fn log(&self, outcome: &Result<()>) {
        let Some(began) = self.began else { return };
        let line = Line { elapsed: began.elapsed(), addresses: &self.addresses, error: outcome.as_ref().err() };
        match outcome {
            Ok(()) => info!("{line}"),
            Err(_) => error!("{line}"),
        }
    }
}

/// The line. Texts of other programs are quoted, so that it is always a single one.
struct Line<'a> {
    elapsed: Duration,
    addresses: &'a [Cidr],
    error: Option<&'a Error>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = if self.error.is_some() { "failed" } else { "ok" };
        let micros = self.elapsed.subsec_micros();
        write!(f, "{outcome} ms={}.{:03}", self.elapsed.as_millis(), micros % 1_000)?;
        for (at, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if at == 0 { " ips=" } else { "," })?;
        }
        let Some(error) = self.error else { return Ok(()) };
        write!(f, " code={} msg={:?}", error.code().0, error.to_string())?;
        match error.details_text() {
            "" => Ok(()),
            details => write!(f, " details={details:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn a_line_is_a_single_one() {
        let error = Error::new(Code::CONFIG, "two\nlines").details("say \"no\"");
        let addresses = ["10.1.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()];
        let line = |error| Line { elapsed: Duration::from_micros(1_500), addresses: &addresses, error }.to_string();
        assert_eq!(line(None), "ok ms=1.500 ips=10.1.0.2/24,fd00::2/64");
        let wanted = r#"failed ms=1.500 ips=10.1.0.2/24,fd00::2/64 code=7 msg="two\nlines" details="say \"no\"""#;
        assert_eq!(line(Some(&error)), wanted);
    }
}
