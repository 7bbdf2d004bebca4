//! Which rules belong to an attachment, if others share its chain.

use std::net::IpAddr;

use cni::{AttachmentKey, Result, evidence};
use linux::iptables::{Step, View};
use linux::netlink::Netlink;

use super::Plan;
use super::found::{self, Found};
use super::names::ContainerChain;
use crate::mapping::Mapping;

/// The attachment whose rules are removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Removal<'a> {
    pub(crate) owner: AttachmentKey<'a>,
    /// The addresses of the attachment; empty if unknown.
    pub(crate) ips: &'a [IpAddr],
    /// The link of the attachment on this host, if known.
    pub(crate) link: Option<&'a str>,
    /// Whether the attachment ends, so that rules of unknown interfaces must not stay. An ADD leaves them alone.
    pub(crate) is_del: bool,
}

impl<'a> Removal<'a> {
    /// Returns the removal of all attachments of a container to a network.
    pub(crate) fn of_container(network: &'a str, container: &'a str) -> Removal<'a> {
        Removal { owner: AttachmentKey { network, container, ifname: "" }, ips: &[], link: None, is_del: true }
    }

    /// Forgets addresses and link if they are those of another interface of the container: a runtime may pass its result.
    pub(super) fn without_result_of_sibling(self) -> Result<Removal<'a>> {
        let Removal { owner, ips, link, .. } = self;
        let mut host = Netlink::open()?;
        for ip in ips {
            if evidence::is_sibling(&mut host, owner, *ip, link.unwrap_or_default())? == Some(true) {
                return Ok(Removal { ips: &[], link: None, ..self });
            }
        }
        Ok(self)
    }

    /// Returns the steps that remove the attachment's rules of a chain, and the chain if no other rule leads to it and
    /// `delete_chain`.
    ///
    /// - Another container can have a chain of the same name: its entry rules have another comment.
    /// - Other attachments of the container share the chain and the comment: their rules lead to other addresses.
    pub(super) fn plan<'c>(
        &self,
        view: &mut View<'_>,
        chain: &'c ContainerChain,
        delete_chain: bool,
    ) -> Result<Plan<'c>> {
        if !view.has_chain(&chain.name)? {
            return Ok(Plan::default());
        }
        let rules = found::list(view, &chain.name)?;
        let mut entries = found::list(view, chain.entries)?;
        entries.retain(|entry| entry.jump.as_deref() == Some(&chain.name));
        let (ours, others): (Vec<Found>, Vec<Found>) =
            entries.into_iter().partition(|entry| entry.comment == chain.comment);

        let translations: Vec<(&Found, Mapping)> =
            rules.iter().filter_map(|rule| Some((rule, rule.mapping()?))).collect();
        let covers = |entry: &&Found, mapping: &Mapping| entry.covers(mapping.key.protocol, mapping.key.port);
        // Two attachments may publish the same port, at different addresses of this host: then the link is unknown.
        let link_of = |mapping: &Mapping| {
            let mut links = ours.iter().filter(|entry| covers(entry, mapping)).map(|entry| &*entry.link);
            links.next().map(|link| if links.all(|other| other == link) { link } else { "" })
        };
        let leads_to_us = |mapping: &&Mapping| self.ips.contains(&mapping.target.ip());
        let mut links: Vec<&str> =
            translations.iter().map(|(_, m)| m).filter(leads_to_us).filter_map(link_of).collect();
        links.extend(self.link);
        links.retain(|link| !link.is_empty());

        let has_our_link = |mapping: &Mapping| link_of(mapping).is_some_and(|link| links.contains(&link));
        let is_known = translations.iter().any(|(_, mapping)| leads_to_us(&mapping) || has_our_link(mapping));
        let (mut removed, mut siblings, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
        for (rule, mapping) in translations {
            let link = link_of(&mapping);
            if others.iter().any(|entry| covers(&entry, &mapping)) && !(link.is_some() && leads_to_us(&&mapping)) {
                foreign.push(mapping);
            } else if self.is_ours(mapping.target.ip(), link.unwrap_or_default(), &links, is_known)? {
                removed.push((rule, mapping));
            } else {
                siblings.push(mapping);
            }
        }

        // A rule without translations may belong to a sibling: the reference lists the ports of the other family, too.
        let has_own_link = |entry: &Found| links.contains(&&*entry.link);
        let leads_to = |entry: &&Found, mapping: &Mapping| {
            let others = || ours.iter().any(|other| covers(&other, mapping) && !has_own_link(other));
            covers(entry, mapping) && !(has_own_link(entry) && others())
        };
        let is_kept = |entry: &&Found| {
            siblings.iter().any(|mapping| leads_to(entry, mapping))
                || (!siblings.is_empty() && !removed.iter().any(|(_, mapping)| covers(entry, mapping)))
        };
        let (kept, dropped): (Vec<&Found>, Vec<&Found>) = ours.iter().partition(is_kept);
        let mut steps: Vec<Step<'c>> =
            dropped.into_iter().map(|entry| Step::Delete(chain.entries, entry.listed.clone())).collect();
        if kept.is_empty() && others.is_empty() && siblings.is_empty() {
            steps.push(Step::Flush(&chain.name));
            if delete_chain {
                steps.push(Step::DeleteChain(&chain.name));
            }
        } else {
            let is_needed = |rule: &Found| siblings.iter().chain(&foreign).any(|mapping| rule.marks_for(mapping));
            let marks = rules.iter().filter(|rule| {
                removed.iter().any(|(_, mapping)| rule.translates_to.is_none() && rule.marks_for(mapping))
                    && !is_needed(rule)
            });
            let obsolete = marks.chain(removed.iter().map(|(rule, _)| *rule));
            steps.extend(obsolete.map(|rule| Step::Delete(&chain.name, rule.listed.clone())));
        }
        Ok(Plan { steps, removed: removed.into_iter().map(|(_, mapping)| mapping).collect() })
    }

    /// Returns whether a port that leads to this address belongs to the attachment, and not to another one of the same
    /// container to the same network. `link` is the link on this host that the rule names, `links` are those of the
    /// attachment.
    ///
    /// Without evidence it does if the addresses of the attachment are unknown: the container is gone then. It also does if
    /// neither address nor link of the attachment `is_known` to the chain: the previous result is that of another ADD. But it
    /// does not if the alias of any link shows that the container has another attachment.
    fn is_ours(&self, ip: IpAddr, link: &str, links: &[&str], is_known: bool) -> Result<bool> {
        let Removal { owner, ips, is_del, .. } = *self;
        if (owner.ifname.is_empty() && ips.is_empty()) || ips.contains(&ip) {
            return Ok(true);
        }
        let mut host = Netlink::open()?;
        // It may have been renamed.
        let is_lost = !link.is_empty() && host.link_index(link)?.is_none();
        Ok(match evidence::is_sibling(&mut host, owner, ip, if is_lost { "" } else { link })? {
            Some(is_sibling) => !is_sibling,
            // `links` has no unknown ones.
            None if links.contains(&link) => true,
            None if !host.find_veths_by_alias(&|alias| owner.is_sibling_alias(alias))?.is_empty() => false,
            // A link that exists, and is not that of the attachment, may be a sibling's.
            None => ips.is_empty() || is_lost || (is_del && link.is_empty() && !is_known),
        })
    }
}
