//! Whether an ingress policy keeps out the containers of another bridge. For as long as the probe takes, a third
//! container is attached to another network of this host, whose bridge has a policy, too.

use cni::{Context, Result};
use linux::Netns;
use serde_json::Map;

use super::flow::Flow;
use super::probes::{Probes, TIMEOUT, family};
use super::scene::Spot;
use super::session::{Member, Session};
use crate::conf::{self, NetworkList};
use crate::lock::Lock;
use crate::node::Network;
use crate::{out, settings};

/// Another network, and its bridge.
struct Other {
    list: NetworkList,
    bridge: String,
}

/// Returns the ingress policy of a network, if it has one that keeps out the containers of other bridges.
pub(super) fn policy(list: &NetworkList) -> Option<&str> {
    let firewall = list.plugins.iter().find(|plugin| plugin.kind == "firewall")?;
    let policy = firewall.config.get("ingressPolicy")?.as_str()?;
    ["same-bridge", "isolated"].contains(&policy).then_some(policy)
}

/// Returns another network with a policy, and a bridge other than this one.
fn find(list: &NetworkList, bridge: &str) -> Result<Option<Other>> {
    let lists = conf::all(&settings::configurations())?.lists;
    let others = lists.into_iter().filter(|other| other.name != list.name && policy(other).is_some());
    let mut others = others.filter_map(|list| Some(Other { bridge: Network::read(list.clone()).bridge?.name, list }));
    Ok(others.find(|other| other.bridge != bridge))
}

impl Probes<'_> {
    /// Probes the policy of the network, if it has one, from a container of another bridge.
    pub(super) fn other_bridge(&mut self) -> Result<()> {
        self.signals.check()?;
        let Some(policy) = policy(self.list) else { return Ok(()) };
        let Some(bridge) = self.scene.bridge.as_ref().map(|bridge| bridge.name.clone()) else { return Ok(()) };
        let Some(Other { list, bridge }) = find(self.list, &bridge)? else {
            let why = format!("no other network of this host has a bridge and a policy: {policy:?} is not tried");
            self.skip("isolation", None, why);
            return Ok(());
        };
        let chain = self.signals.chain(&list)?;
        let session = Session::begin(&list, &Map::new())?;
        let at = session.endpoint(1, Map::new())?;
        let title = format!("a container of network {:?} on bridge {bridge}", list.name.as_str());
        let lock = Lock::shared()?;
        let attached = Member::attach(&self.scene.home, &chain, at, title.clone());
        drop(lock);
        match attached {
            Ok(member) => self.scene.members.push(member),
            Err(error) => {
                self.skip("isolation", None, format!("{title}: {}", out::one_line(&error)));
                return session.end();
            }
        }
        let probed = self.probe_from_last();
        let _lock = Lock::shared()?;
        if let Some(member) = self.scene.members.pop() {
            member.detach(&chain).context(|| title)?;
            Netns::remove(&member.at.netns)?;
        }
        session.end()?;
        probed
    }

    /// Sends from the last container to each address of the first one.
    fn probe_from_last(&mut self) -> Result<()> {
        let last = Spot::Member(self.scene.members.len().saturating_sub(1));
        for address in self.addresses(0) {
            let has_family = self.scene.members.last().is_some_and(|member| member.ip_like(address).is_some());
            if !has_family {
                continue;
            }
            // Otherwise silence would prove nothing.
            let gateway = self.gateway_of(address.ip()).map(|gateway| Flow::echo(last, Spot::Host, gateway));
            let is_routed = match gateway {
                Some(gateway) => gateway.attempt(self.scene, TIMEOUT)?.is_ok(),
                None => false,
            };
            let family = family(address.ip());
            if is_routed {
                let flow = Flow::echo(last, Spot::Member(0), address.ip());
                self.silent(family, &flow, &format!("\"ingressPolicy\" keeps out {}", self.scene.title(last)))?;
            } else {
                let why = format!("{} does not reach the gateway of the network either", self.scene.title(last));
                self.skip("isolation", Some(family), why);
            }
        }
        Ok(())
    }
}
