//! STATUS: returns an error if an ADD with ports would fail now.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::{Code, Result, try_edits};
use linux::netlink::nft::{self, Nftables};

use crate::add::FIX_HINT;
use crate::config::{Backend, Config};
use crate::iptables;
use crate::table::{Frame, Scope};

pub(crate) fn run(config: &Config) -> Result<()> {
    let outcome = match config.backend {
        Backend::Iptables => iptables::status(),
        Backend::Nftables => try_nftables(config).map_err(|error| error.details_if(nft::is_unavailable, FIX_HINT)),
        Backend::Auto => match try_nftables(config) {
            Err(error) if nft::is_unavailable(&error) => {
                iptables::status().map_err(|second| second.details(format!("nftables: {error}")))
            }
            outcome => outcome,
        },
    };
    outcome.map_err(|error| error.with_code(Code::NOT_AVAILABLE))
}

/// Finds out whether the kernel accepts the rules. If they exist, they have worked before.
fn try_nftables(config: &Config) -> Result<()> {
    let any = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
    let scopes = any.map(|ip| Scope::new(ip, config.conditions(ip)));
    let mut nft = Nftables::open()?;
    let edits = Frame::new(&scopes, true, None).create(&mut nft)?;
    try_edits(&mut nft, &edits)
}
