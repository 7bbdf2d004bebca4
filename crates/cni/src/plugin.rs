//! The plugin trait and its inputs: a call for a network, and usually one attachment to it.

use std::cell::RefCell;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use linux::Netns;
use linux::ip::Cidr;
use linux::log::debug;
use linux::netlink::Netlink;
use serde::Deserialize;

use crate::config::{self, Head, Previous, ValidAttachment};
use crate::error::{Code, Context, Error, Result};
use crate::misspelt::ReadKeys;
use crate::name::{ContainerId, IfName, NetworkName};
use crate::result::AddResult;
use crate::undo::Rollback;
use crate::version::Version;

/// What `CNI_NETNS` must be.
const NETNS_HINT: &str = "CNI_NETNS must be the path of a live network namespace, such as /run/netns/NAME";

/// A CNI plugin. Inputs of its methods are validated; their results are converted and printed by the caller.
pub trait Plugin: Sync {
    /// Returns the plugin's `type`, which is also the name of its file.
    fn name(&self) -> &'static str;
    /// Validates an ADD without side effects, so that a delegating plugin can fail before it changes anything. Returns
    /// the validated ADD, which needs no second parse; `None` if validation is left to [`Plugin::add`]. Plugins that
    /// others delegate to should implement it, and call it in their own `add`.
    fn prepare<'a>(&self, _: &'a Call<'a>, _: &Attachment) -> Result<Option<Box<dyn Prepared + 'a>>> {
        Ok(None)
    }
    /// Returns whether the plugin, or one that it delegates to, works in the container namespace. A plugin that does
    /// not, such as an IPAM plugin, ignores `CNI_NETNS`: the path may no longer exist, or lead to another namespace.
    ///
    /// If it returns `true`, the plugin's own namespace is excluded before the call. A plugin that often does not need
    /// the namespace returns `false`, and opens it with
    /// [`Namespaces::open_excluding_own`](crate::Namespaces::open_excluding_own).
    fn uses_netns(&self) -> bool {
        true
    }
    /// Attaches a container's interface to the network.
    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult>;
    /// Reverts an ADD, even an incomplete one; succeeds if nothing is left.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()>;
    /// Attaches as [`Plugin::add`] does, and returns the rollback for a result that cannot be written to stdout: no
    /// runtime knows of it. The default is DEL. A plugin whose DEL does less, or more, than its ADD implements it.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        Ok((self.add(call, at)?, Box::new(|| self.del(call, at))))
    }
    /// Verifies that the kernel's state matches what ADD created.
    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()>;
    /// Removes everything that belongs to no attachment in [`Call::valid_attachments`].
    fn gc(&self, call: &Call<'_>) -> Result<()>;
    /// Fails if an ADD would fail now.
    fn status(&self, call: &Call<'_>) -> Result<()>;
    /// Returns the plugin as an IPAM plugin; `None` if it is not one.
    fn ipam(&self) -> Option<&dyn Ipam> {
        None
    }
}

/// A plugin that leases addresses, and can be queried by a delegating plugin in the same process.
pub trait Ipam: Plugin {
    /// Returns the addresses that are leased to an attachment, so that a delegating plugin can find the owner of an
    /// interface.
    fn leased_to(&self, call: &Call<'_>, at: &Attachment) -> Result<Vec<IpAddr>>;
    /// Returns whether an attachment of any network may hold an address of `subnet`. A delegating plugin calls it
    /// before it removes a gateway address.
    fn uses_subnet(&self, call: &Call<'_>, subnet: Cidr) -> Result<bool>;
}

/// A validated ADD that has not changed anything yet.
pub trait Prepared {
    /// Executes the ADD for the attachment with which it was validated.
    fn add(&self, at: &Attachment) -> Result<AddResult>;
}

impl fmt::Debug for dyn Prepared + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prepared")
    }
}

impl fmt::Debug for dyn Plugin + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One interface of one container, which ADD creates and DEL removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// `CNI_CONTAINERID`
    pub container: ContainerId,
    /// `CNI_IFNAME`
    pub ifname: IfName,
    /// `CNI_NETNS` as given; `None` only for DEL.
    pub netns: Option<PathBuf>,
}

impl Attachment {
    /// Opens the container's network namespace.
    pub fn open_netns(&self) -> Result<Netns> {
        match &self.netns {
            Some(path) => Netns::open(path).map_err(|error| match error.errno() {
                None => Error::from(error).details(NETNS_HINT),
                Some(_) => error.into(),
            }),
            None => Err(Error::bug("an attachment without a namespace")),
        }
    }

    /// Opens the container's network namespace for DEL; `None` if it is gone: no path, no file at the path, a file that
    /// is not a namespace (any more), or one that cannot be opened.
    pub fn open_netns_if_exists(&self) -> Result<Option<Netns>> {
        self.netns.as_deref().map_or(Ok(None), |path| Ok(Netns::open_to_clean_up(path)?))
    }

    /// Returns `CNI_NETNS` as text, for the `sandbox` of an interface in a result.
    pub fn sandbox(&self) -> String {
        self.netns.as_ref().map_or_else(String::new, |path| path.to_string_lossy().into_owned())
    }
}

/// A call of a plugin for a network.
#[derive(Debug)]
pub struct Call<'a> {
    /// The name of the network.
    pub network: NetworkName,
    /// The version of the configuration and of the answer.
    pub version: Version,
    /// `CNI_ARGS`
    pub args: &'a str,
    /// The directories of `CNI_PATH`.
    pub path: &'a [PathBuf],
    /// The configuration.
    pub config: &'a str,
    /// The exact bytes of stdin, for a delegate.
    pub(crate) stdin: &'a [u8],
    /// Whether an ADD may use the plugin's own namespace (`CNI_NETNS_OVERRIDE`).
    pub(crate) any_netns: bool,
    /// The delegates in this program.
    pub(crate) builtin: &'a [&'a dyn Plugin],
    /// Whether the delegates in this program need no file in `path`.
    pub(crate) is_embedded: bool,
    /// The keys that the plugins of this process have read.
    pub(crate) keys: ReadKeys,
    /// The plugin's own namespace and socket that were opened to validate the call.
    pub(crate) home: RefCell<Option<Home>>,
}

/// The namespace in which a plugin was called, and a socket there.
#[derive(Debug)]
pub struct Home {
    /// The namespace.
    pub netns: Netns,
    /// The socket.
    pub netlink: Netlink,
}

impl Home {
    pub(crate) fn open() -> Result<Home> {
        let (netlink, netns) = Netlink::open_with_netns()?;
        Ok(Home { netns, netlink })
    }
}

impl<'a> Call<'a> {
    /// Creates a call that is never executed, to find out what a plugin reads from a configuration.
    pub fn for_config(config: &'a str) -> Result<Call<'a>> {
        let head = Head::parse(config)?;
        Ok(Call {
            network: head.network()?,
            version: head.version("ADD")?,
            args: "",
            path: &[],
            config,
            stdin: config.as_bytes(),
            any_netns: false,
            builtin: &[],
            is_embedded: false,
            keys: ReadKeys::default(),
            home: RefCell::default(),
        })
    }

    /// Creates a call of a plugin that a program of another protocol contains, with all the delegates that it may have.
    pub(crate) fn embedded(config: &'a str, delegates: &'a [&'a dyn Plugin], home: Option<Home>) -> Result<Call<'a>> {
        Ok(Call { builtin: delegates, is_embedded: true, home: home.into(), ..Call::for_config(config)? })
    }

    /// Returns this call with another configuration, for a plugin that generates the configuration of its delegate. The
    /// network's name and the version are those of `config`. Everything else is passed on, as the environment of an
    /// executed delegate would be.
    pub fn with_config<'b>(&'b self, config: &'b str) -> Result<Call<'b>> {
        let head = Head::parse(config).context(|| "read the generated configuration")?;
        Ok(Call {
            network: head.network()?,
            version: head.version("ADD")?,
            config,
            stdin: config.as_bytes(),
            // The delegate takes over what was opened to validate the call; this plugin opens its own again if needed.
            home: self.home.take().into(),
            keys: ReadKeys::default(),
            ..*self
        })
    }

    /// Verifies that the version of the configuration has `command`. `process` does so for the configuration on stdin.
    pub(crate) fn require(&self, command: &str) -> Result<()> {
        if self.version >= Version::since(command) {
            return Ok(());
        }
        Head::parse(self.config)?.version(command).map(drop)
    }

    /// Returns the plugin's own namespace and a socket: those that were opened to validate the call, later new ones.
    pub fn home(&self) -> Result<Home> {
        self.home.take().map_or_else(Home::open, Ok)
    }

    /// Parses the configuration as the plugin's own type.
    pub fn parse<T: Deserialize<'a>>(&self) -> Result<T> {
        self.keys.record::<T>();
        config::parse(self.config)
    }

    /// Returns the previous result, if the configuration has one. Fails if it cannot be passed on in this version.
    pub fn prev_result(&self) -> Result<Option<AddResult>> {
        let Previous { prev_result } = self.parse()?;
        prev_result.map(|raw| AddResult::read_previous(raw, self.version)).transpose()
    }

    /// Returns the previous result for ADD and CHECK of a chained plugin, which cannot work without one. The plugin's
    /// ADD returns it as its own result.
    pub fn chained_result(&self) -> Result<AddResult> {
        self.prev_result()?.ok_or_else(|| {
            // The texts of the plugins of the reference, by which users recognise the mistake.
            let error = Error::new(Code::CONFIG, "Required prevResult missing: must be called as chained plugin");
            error.details("missing prevResult from earlier plugin: list this plugin after one that adds an interface")
        })
    }

    /// Returns the previous result for DEL; an empty one if it is missing or invalid, because DEL must remove what it
    /// can find without it. An invalid one is only logged.
    pub fn prev_result_to_clean_up(&self) -> AddResult {
        self.prev_result()
            .unwrap_or_else(|mistake| {
                debug!("ignore the previous result: {mistake:?}");
                None
            })
            .unwrap_or_default()
    }

    /// Returns the attachments that GC must keep. A missing list is an error, because an empty list means that all
    /// attachments are removed.
    pub fn valid_attachments(&self) -> Result<Vec<ValidAttachment>> {
        config::valid_attachments(self.config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(version: Version, rest: &str) -> String {
        format!(r#"{{"cniVersion": "{version}", "name": "net"{rest}}}"#)
    }

    #[test]
    fn a_chained_plugin_needs_a_previous_result() {
        for version in Version::ALL {
            for rest in ["", r#", "prevResult": null"#] {
                let config = config(version, rest);
                let error = Call::for_config(&config).unwrap().chained_result().unwrap_err();
                assert_eq!(error.code(), Code::CONFIG);
                let text = format!("{error} {}", error.details_text());
                for wanted in [
                    "must be called as chained plugin",
                    "Required prevResult missing",
                    "missing prevResult from earlier plugin",
                ] {
                    assert!(text.contains(wanted), "{text}");
                }
            }
        }
    }

    #[test]
    fn del_needs_no_previous_result() {
        for version in Version::ALL {
            for invalid in ["", "5", "[]", r#"{"cniVersion": "9.9.9"}"#, r#"{"ips": 5}"#, r#"{"ip4": {}}"#] {
                let rest = if invalid.is_empty() { String::new() } else { format!(r#", "prevResult": {invalid}"#) };
                let config = config(version, &rest);
                let result = Call::for_config(&config).unwrap().prev_result_to_clean_up();
                assert_eq!(result, AddResult::default(), "{version} {invalid}");
            }
        }
        let config = config(Version::NEWEST, r#", "prevResult": {"ips": [{"address": "10.1.0.2/24"}]}"#);
        assert_eq!(Call::for_config(&config).unwrap().prev_result_to_clean_up().ips.len(), 1);
    }
}
