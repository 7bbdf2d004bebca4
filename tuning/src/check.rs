//! CHECK: compares the container with the configuration. Changes nothing.

use cni::{Attachment, Call, Code, Context, Error, ErrorCollector, Guest, Namespaces, Result};
use linux::sysctl;

use crate::attributes::Attributes;
use crate::config::Config;
use crate::sysctl::{Sysctl, same_value};

/// Returns an error if something differs.
pub(crate) fn run(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<()> {
    if config.is_empty() {
        return Ok(());
    }
    let namespaces = Namespaces::open(call, at)?;
    namespaces.in_guest(|| {
        let mut failures = ErrorCollector::default();
        for sysctl in &config.sysctls {
            failures.record(compare(sysctl, at));
        }
        if !config.attributes.is_empty() {
            let link = Guest::open_here(at)?.interface()?;
            failures.record(compare_attributes(config.attributes, config.attributes.of(&link), at));
        }
        failures.into_result()
    })
}

fn difference(what: String) -> Result<()> {
    Err(Error::new(Code::INTERNAL, what)
        .details("another program changed it; detach the container and attach it again"))
}

/// Compares a sysctl in the namespace of this thread. One that can only be written has no value.
fn compare(sysctl: &Sysctl, at: &Attachment) -> Result<()> {
    let Sysctl { key, value, .. } = sysctl;
    let now = match read(sysctl) {
        Err(error) if error.errno() == Some(libc::EACCES) => return Ok(()),
        now => now.context(|| format!("in {:?}", at.sandbox()))?,
    };
    match now {
        Some(now) if same_value(&now, value) => Ok(()),
        Some(now) => difference(format!("sysctl {:?} is {now:?} instead of {value:?}", key.to_string())),
        None => difference(format!("there is no sysctl {:?} in {:?}", key.to_string(), at.sandbox())),
    }
}

/// Returns the value of a sysctl in the namespace of this thread; `None` if it does not exist.
pub(crate) fn read(sysctl: &Sysctl) -> linux::Result<Option<String>> {
    let parts: Vec<&str> = sysctl.path.iter().map(String::as_str).collect();
    sysctl::read(&parts)
}

fn compare_attributes(wanted: Attributes, now: Attributes, at: &Attachment) -> Result<()> {
    let ifname = at.ifname.as_str();
    let mut failures = ErrorCollector::default();
    let now: Vec<_> = now.values().collect();
    for (key, value) in wanted.values() {
        let found = now.iter().find(|(found, _)| *found == key).map_or("unknown", |(_, now)| now.as_str());
        if found != value {
            failures.record(difference(format!("{key:?} of interface {ifname:?} is {found} instead of {value}")));
        }
    }
    failures.into_result()
}
