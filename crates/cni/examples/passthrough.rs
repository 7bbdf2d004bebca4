//! A chained plugin that does nothing: the beginning of a new one.
//!
//! A chained plugin follows another in a list, changes something about the interface that the other created, and passes
//! the previous result on.
#![no_main]

use cni::{AddResult, Attachment, Call, Plugin, Result};

#[derive(Debug)]
struct Passthrough;

impl Plugin for Passthrough {
    fn name(&self) -> &'static str {
        "passthrough"
    }

    fn add(&self, call: &Call<'_>, _at: &Attachment) -> Result<AddResult> {
        call.chained_result()
    }

    fn del(&self, _call: &Call<'_>, _at: &Attachment) -> Result<()> {
        Ok(())
    }

    fn check(&self, call: &Call<'_>, _at: &Attachment) -> Result<()> {
        call.chained_result().map(drop)
    }

    fn gc(&self, _call: &Call<'_>) -> Result<()> {
        Ok(())
    }

    fn status(&self, _call: &Call<'_>) -> Result<()> {
        Ok(())
    }
}

cni::main!(Passthrough);
