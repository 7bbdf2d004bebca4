//! The link on top of which a plugin creates the one of the container.

use cni::json::invalid;
use cni::{Attachment, Code, Context, Error, IfName, Namespaces, Result};
use linux::netlink::{Link, Netlink};
use serde::Deserialize;

/// The keys that choose the link.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MasterKeys {
    master: String,
    link_in_container: bool,
    mtu: i64,
}

/// The link on top of which the plugin creates the one of the container.
#[derive(Debug, PartialEq, Eq)]
pub struct Master {
    /// Its name; `None` for the link of the default route.
    pub name: Option<IfName>,
    /// Whether it is in the container, and not on the host.
    pub in_container: bool,
    mtu: i64,
}

impl Master {
    /// Reads and validates the keys.
    pub fn parse(call: &cni::Call<'_>) -> Result<Master> {
        let MasterKeys { master, link_in_container: in_container, mtu } = call.parse()?;
        let name = match master.as_str() {
            "" => None,
            name => {
                let remedy = "write the name of a link, or remove the key for the link of the default route";
                let refuse = |why| invalid("master", format_args!("{name:?} {why}"), remedy);
                Some(IfName::from_config(name).map_err(refuse)?)
            }
        };
        Ok(Master { name, in_container, mtu })
    }

    /// Finds the link in its namespace.
    pub fn find(&self, namespaces: &mut Namespaces, at: &Attachment) -> Result<Link> {
        match self.in_container {
            true => self.find_by(&mut namespaces.open_guest(at)?.netlink).context(|| format!("in {:?}", at.sandbox())),
            false => self.find_by(&mut namespaces.host.netlink),
        }
    }

    /// Finds the link in the namespace of the socket.
    pub fn find_by(&self, netlink: &mut Netlink) -> Result<Link> {
        let found = match &self.name {
            Some(name) => netlink.link(name.as_str())?,
            None => match netlink.default_routes()?.iter().find_map(|route| route.link) {
                Some(link) => netlink.link(link)?,
                None => {
                    let error = Error::new(Code::INTERNAL, "find the master: no default route interface found");
                    return Err(error.details("set \"master\""));
                }
            },
        };
        let Some(link) = found else {
            let name = self.name.as_ref().map_or("", IfName::as_str);
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
