//! The link on top of which a plugin creates the one of the container.

use cni::json::invalid;
use cni::{Attachment, Code, Context, Error, IfName, Namespaces, Result};
use linux::netlink::{Link, Netlink};
use serde::Deserialize;

/// The keys that choose the link, and that what others send on its wire makes necessary.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MasterKeys {
    master: String,
    link_in_container: bool,
    mtu: i64,
    accept_ra: Option<bool>,
}

/// The link on top of which the plugin creates the one of the container.
#[derive(Debug, PartialEq, Eq)]
pub struct Master {
    /// Its name; `None` for the link of the default route.
    pub name: Option<IfName>,
    /// Whether it is in the container, and not on the host.
    pub in_container: bool,
    /// Whether the container follows the router advertisements on the wire; `None` for its kernel's default.
    pub accept_ra: Option<bool>,
    /// The interfaces that earlier plugins of the list created in the container: without a name, the last one is the
    /// link.
    earlier: Vec<String>,
    mtu: i64,
}

impl Master {
    /// Reads and validates the keys.
    pub fn parse(call: &cni::Call<'_>) -> Result<Master> {
        let MasterKeys { master, link_in_container: in_container, mtu, accept_ra } = call.parse()?;
        let name = match master.as_str() {
            "" => None,
            name => {
                let remedy = "write the name of a link, or remove the key for the link of the default route";
                let refuse = |why| invalid("master", format_args!("{name:?} {why}"), remedy);
                Some(IfName::from_config(name).map_err(refuse)?)
            }
        };
        let mut earlier = Vec::new();
        if in_container && name.is_none() {
            let created = call.prev_result()?.unwrap_or_default().interfaces.into_iter();
            earlier.extend(created.filter(|listed| !listed.sandbox.is_empty()).map(|listed| listed.name));
        }
        Ok(Master { name, in_container, accept_ra, earlier, mtu })
    }

    /// Returns whether the configuration, or an earlier plugin of the list, names the link.
    pub fn is_named(&self) -> bool {
        self.name.is_some() || !self.earlier.is_empty()
    }

    /// Finds the link in its namespace.
    pub fn find(&self, namespaces: &mut Namespaces, at: &Attachment) -> Result<Link> {
        match self.in_container {
            true => {
                let earlier = self.earlier.iter().rfind(|name| **name != at.ifname.as_str());
                let name = self.name.as_ref().map(IfName::as_str).or_else(|| earlier.map(String::as_str));
                let found = self.find_named(name, &mut namespaces.open_guest(at)?.netlink);
                found.context(|| format!("in {:?}", at.sandbox()))
            }
            false => self.find_by(&mut namespaces.host.netlink),
        }
    }

    /// Finds the link in the namespace of the socket.
    pub fn find_by(&self, netlink: &mut Netlink) -> Result<Link> {
        self.find_named(self.name.as_ref().map(IfName::as_str), netlink)
    }

    /// Finds the link of this name; `None` for that of the default route.
    fn find_named(&self, name: Option<&str>, netlink: &mut Netlink) -> Result<Link> {
        let found = match name {
            Some(name) => netlink.link(name)?,
            None => match netlink.default_routes()?.iter().find_map(|route| route.link) {
                Some(link) => netlink.link(link)?,
                None => {
                    let error = Error::new(Code::INTERNAL, "find the master: no default route interface found");
                    return Err(error.details("set \"master\""));
                }
            },
        };
        let Some(link) = found else {
            let name = name.unwrap_or_default();
            let error = Error::new(Code::INTERNAL, format!("find master {name:?}: Link not found"));
            return Err(error.details(format!("correct \"master\": there are {}", names(&netlink.links(None)?))));
        };
        self.refuse_mtu(&link).map(|()| link)
    }

    /// Returns an error if the configured MTU does not fit.
    pub(crate) fn refuse_mtu(&self, master: &Link) -> Result<()> {
        if (0..=i64::from(master.mtu)).contains(&self.mtu) {
            return Ok(());
        }
        // The text of the reference, by which users recognise the mistake.
        let what = format_args!("invalid MTU {}, must be [0, master MTU({})]", self.mtu, master.mtu);
        Err(invalid("mtu", what, format!("use at most that of {:?}, or raise that", master.name)))
    }
}

/// Lists the names of links for an error.
fn names(links: &[Link]) -> String {
    let others = links.iter().filter(|link| link.index.number() != 1);
    let mut names: Vec<_> = others.map(|link| format!("{:?}", link.name)).collect();
    if names.len() > LISTED {
        let rest = names.len() - LISTED;
        names.truncate(LISTED);
        names.push(format!("and {rest} more links"));
    }
    match names.as_slice() {
        [] => "no links but lo".to_owned(),
        names => names.join(", "),
    }
}

/// How many links an error names.
const LISTED: usize = 10;
