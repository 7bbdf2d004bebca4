//! The `tuning` plugin: sets sysctls and attributes of the interface in a container.
//!
//! `config` validates the keys. `add` applies them, `check` compares, `removal` restores for DEL and removes for GC.
//!
//! - `sysctl` reads the names of sysctls, `allowlist` restricts them, and `pattern` has the regular expressions of that
//!   list.
//! - `interface` is the interface in the container, `attributes` are what can be tuned of it, and `backup` is the file
//!   that has them as they were before ADD.
//! - `inspect` is for `cnitool`.

mod add;
mod allowlist;
mod attributes;
mod backup;
mod check;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
mod interface;
mod pattern;
mod removal;
mod status;
mod sysctl;

use cni::{AddResult, Attachment, AttachmentKey, Call, Context, ErrorCollector, Keep, Plugin, Result, Rollback};

use config::Config;

/// The `tuning` plugin.
#[derive(Debug)]
pub struct Tuning;

impl Plugin for Tuning {
    fn name(&self) -> &'static str {
        "tuning"
    }

    /// Without keys, as in podman's default list, no namespace is opened. Otherwise ADD and DEL exclude the plugin's
    /// own one.
    fn uses_netns(&self) -> bool {
        false
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        Ok(self.add_with_rollback(call, at)?.0)
    }

    /// Unlike DEL, which does not know their former values, the rollback also restores the sysctls.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        let config = Config::parse(call, Some(at))?;
        let (result, changed) = add::run(call, at, &config, call.chained_result()?)?;
        let roll_back = move || {
            let mut failures = ErrorCollector::default();
            failures.record(self.del(call, at));
            for sysctl in changed.iter().rev() {
                failures.record(sysctl.restore().context(|| "restore a sysctl"));
            }
            failures.into_result()
        };
        Ok((result, Box::new(roll_back)))
    }

    /// Restores what ADD changed, whatever the configuration says now.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        removal::restore(call, at, AttachmentKey::new(call, at))
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call, Some(at))?;
        call.chained_result()?;
        check::run(call, at, &config)
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        let valid = call.valid_attachments()?;
        removal::collect(&config::data_dir(call), &Keep::new(call.network.as_str(), &valid))
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        status::run(&Config::parse(call, None)?)
    }
}
