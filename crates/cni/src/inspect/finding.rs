//! The outcome of a check: its severity, what it is about, and what to do.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use super::command::CommandLine;
use crate::error::Error;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It works.
    Ok,
    /// It works only partly, or may stop working.
    Warn,
    /// An ADD fails, or traffic is blocked.
    Fail,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of finding it is, for programs.
    pub id: Id,
    /// The name of the check.
    pub check: &'static str,
    /// Its severity.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What it is about: for example, the affected containers.
    pub subjects: Vec<Subject>,
    /// What to do about it, or what to decide. May be empty if there is a fix, or if the level is `Ok`.
    pub remedy: String,
    /// What repairs it without a restart of a container and without a decision, if anything does.
    pub fix: Option<Fix>,
}

/// What repairs a finding without a restart of a container. It changes nothing of another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// [`Inspect::repair`](super::Inspect::repair) for the attachments of the network.
    Repair,
    /// Removal of what containers that are gone have left on the network; on all networks if the finding is about none.
    Prune,
    /// These commands, in this order.
    Run(Vec<CommandLine>),
}

/// The identifier of a kind of finding, in lower case with hyphens. It keeps its meaning in all versions; the documents
/// list all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(pub &'static str);

impl Finding {
    /// Returns a finding without subjects and without a remedy.
    pub fn new(level: Level, check: &'static str, id: Id, what: impl Into<String>) -> Finding {
        Finding { id, check, level, what: what.into(), subjects: Vec::new(), remedy: String::new(), fix: None }
    }

    /// Returns a finding that something works.
    pub fn ok(check: &'static str, id: Id, what: impl Into<String>) -> Finding {
        Finding::new(Level::Ok, check, id, what)
    }

    /// Returns a finding that something works only partly, or may stop working.
    pub fn warn(check: &'static str, id: Id, what: impl Into<String>) -> Finding {
        Finding::new(Level::Warn, check, id, what)
    }

    /// Returns a finding that an ADD fails, or that traffic is blocked.
    pub fn fail(check: &'static str, id: Id, what: impl Into<String>) -> Finding {
        Finding::new(Level::Fail, check, id, what)
    }

    /// Returns a failure from an error whose details are the remedy.
    pub fn error(check: &'static str, id: Id, error: &Error) -> Finding {
        Finding::fail(check, id, error.to_string()).remedy(error.details_text())
    }

    /// Adds what the finding is about.
    #[must_use]
    pub fn about(mut self, subjects: impl IntoIterator<Item = Subject>) -> Finding {
        self.subjects.extend(subjects);
        self
    }

    /// Sets what to do.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Finding {
        Finding { remedy: remedy.into(), ..self }
    }

    /// Sets what repairs it.
    #[must_use]
    pub fn fix(self, fix: Fix) -> Finding {
        Finding { fix: Some(fix), ..self }
    }

    /// Sets the commands that repair it. Without any, there is no fix.
    #[must_use]
    pub fn run(self, commands: impl IntoIterator<Item = CommandLine>) -> Finding {
        let commands: Vec<CommandLine> = commands.into_iter().collect();
        Finding { fix: (!commands.is_empty()).then_some(Fix::Run(commands)), ..self }
    }
}

/// Something that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// What it is, such as `container` or `address`.
    pub kind: &'static str,
    /// Its name: for example, the ID of the container.
    pub name: String,
    /// The interface of the container, if it is known.
    pub interface: Option<String>,
}

impl Subject {
    /// The kind of containers.
    pub const CONTAINER: &'static str = "container";

    /// Returns something of this kind.
    pub fn new(kind: &'static str, name: impl Into<String>) -> Subject {
        Subject { kind, name: name.into(), interface: None }
    }

    /// Returns an attachment; its interface is unknown if a lease names only the container.
    pub fn container(id: &str, interface: Option<&str>) -> Subject {
        Subject { interface: interface.map(str::to_owned), ..Subject::new(Subject::CONTAINER, id) }
    }

    /// Returns an address.
    pub fn address(ip: IpAddr) -> Subject {
        Subject::new("address", ip.to_string())
    }

    /// Returns a link of the host.
    pub fn link(name: &str) -> Subject {
        Subject::new("link", name)
    }

    /// Returns a port of the host that leads to a container, such as `tcp 0.0.0.0:8080`.
    pub fn published_port(name: impl Into<String>) -> Subject {
        Subject::new("published port", name)
    }

    /// Returns a file or directory.
    pub fn file(path: &Path) -> Subject {
        Subject::new("file", path.display().to_string())
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Subject { kind, name, interface } = self;
        match interface {
            Some(interface) => write!(f, "{kind} {name} {interface}"),
            None => write!(f, "{kind} {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::Command;

    #[test]
    fn a_finding_without_commands_has_no_fix() {
        let finding = Finding::warn("mtu", Id("x"), "x");
        assert_eq!(finding.clone().run([]).fix, None);
        let command = Command::SetUp.line(&["x"]);
        assert_eq!(finding.run([command.clone()]).fix, Some(Fix::Run(vec![command])));
    }

    #[test]
    fn subjects_are_named_with_their_kind() {
        assert_eq!(Subject::container("c1", Some("eth0")).to_string(), "container c1 eth0");
        assert_eq!(Subject::container("c1", None).to_string(), "container c1");
        assert_eq!(Subject::address(IpAddr::from([10, 1, 0, 2])).to_string(), "address 10.1.0.2");
    }
}
