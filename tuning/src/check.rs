//! CHECK: compares the container with the configuration. Changes nothing.

use cni::inspect::shell_word;
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

/// Returns the commands of a shell that set again what differs. None if the interface does not exist.
pub(crate) fn commands(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<Vec<String>> {
    let namespaces = Namespaces::open(call, at)?;
    let nsenter = format!("nsenter --net={}", shell_word(&at.sandbox()));
    namespaces.in_guest(|| {
        let link = Guest::open_here(at)?.interface()?;
        let different = config.sysctls.iter().filter(|sysctl| compare(sysctl, at).is_err());
        // After a slash, dots are part of a name.
        let setting = |sysctl: &Sysctl| shell_word(&format!("{}={}", sysctl.path.join("/"), sysctl.value));
        let mut commands: Vec<String> =
            different.map(|sysctl| format!("{nsenter} sysctl -w {}", setting(sysctl))).collect();
        let now: Vec<_> = config.attributes.of(&link).values().collect();
        for (key, value) in config.attributes.values().filter(|wanted| !now.contains(wanted)) {
            let option = match key {
                "mac" => "address",
                "allmulti" => "allmulticast",
                "txQLen" => "txqueuelen",
                same => same,
            };
            let value = match value.as_str() {
                "true" => "on",
                "false" => "off",
                value => value,
            };
            commands.push(format!("{nsenter} ip link set {} {option} {value}", shell_word(at.ifname.as_str())));
        }
        Ok(commands)
    })
}

fn difference(what: String) -> Result<()> {
    Err(Error::new(Code::INTERNAL, what)
        .details("another program changed it; detach the container and attach it again"))
}

/// Compares a sysctl in the namespace of this thread. One that can only be written has no value.
fn compare(sysctl: &Sysctl, at: &Attachment) -> Result<()> {
    let Sysctl { key, path, value } = sysctl;
    let parts: Vec<&str> = path.iter().map(String::as_str).collect();
    let now = match sysctl::read(&parts) {
        Err(error) if error.errno() == Some(libc::EACCES) => return Ok(()),
        now => now.context(|| format!("in {:?}", at.sandbox()))?,
    };
    match now {
        Some(now) if same_value(&now, value) => Ok(()),
        Some(now) => difference(format!("sysctl {:?} is {now:?} instead of {value:?}", key.to_string())),
        None => difference(format!("there is no sysctl {:?} in {:?}", key.to_string(), at.sandbox())),
    }
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
