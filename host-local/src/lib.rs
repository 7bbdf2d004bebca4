//! The `host-local` plugin. It is not finished: it speaks the protocol and refuses to work, so that nobody takes it for
//! more than it is.

use cni::{AddResult, Attachment, Call, Code, Error, Plugin, Result};

/// The `host-local` plugin.
#[derive(Debug)]
pub struct HostLocal;

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn add(&self, _call: &Call<'_>, _at: &Attachment) -> Result<AddResult> {
        Err(unfinished())
    }

    fn del(&self, _call: &Call<'_>, _at: &Attachment) -> Result<()> {
        Err(unfinished())
    }

    fn check(&self, _call: &Call<'_>, _at: &Attachment) -> Result<()> {
        Err(unfinished())
    }

    fn gc(&self, _call: &Call<'_>) -> Result<()> {
        Err(unfinished())
    }

    fn status(&self, _call: &Call<'_>) -> Result<()> {
        Err(unfinished().code_is(Code::NOT_AVAILABLE))
    }
}

fn unfinished() -> Error {
    let error = Error::new(
        Code::INTERNAL,
        "the host-local plugin of this version of cni0 does not work yet",
    );
    error.details(
        "use that of containernetworking-plugins; README.md tells the state of each plugin",
    )
}
