//! Which rules belong to an attachment, if others share its chain.

use std::net::IpAddr;

use cni::{Judgement, NamedLink, Ownership, Result, Trace};
use linux::iptables::{Step, View};

use super::TablePlan;
use super::found::{self, Found};
use super::names::ContainerChain;
use crate::host::Host;
use crate::mapping::Mapping;
use crate::publication::PortRemoval;

impl<'a> PortRemoval<'a> {
    /// Forgets addresses and link if they are those of another interface of the container: a runtime may pass its
    /// result.
    pub(super) fn without_result_of_sibling(self, host: &mut Host) -> Result<PortRemoval<'a>> {
        let PortRemoval { owner, ips, link, .. } = self;
        if ips.is_empty() {
            return Ok(self);
        }
        let (ownership, named) = (Ownership::new(owner), &NamedLink::find(host.socket()?, link.unwrap_or_default())?);
        let is_siblings = |ip: &IpAddr| ownership.judge(Trace::OnNetwork { ip: *ip, link: named }).is_others();
        Ok(if ips.iter().any(is_siblings) { PortRemoval { ips: &[], link: None, ..self } } else { self })
    }

    /// Returns the steps that remove the attachment's rules of a chain, and the chain if no other rule leads to it and
    /// `delete_chain`.
    ///
    /// - Another container can have a chain of the same name: its entry rules have another comment.
    /// - Other attachments of the container share the chain and the comment: their rules lead to other addresses.
    pub(super) fn plan<'c>(
        &self,
        host: &mut Host,
        view: &mut View<'_>,
        chain: &'c ContainerChain,
        delete_chain: bool,
    ) -> Result<TablePlan<'c>> {
        if !view.has_chain(&chain.name)? {
            return Ok(TablePlan::default());
        }
        let present = ChainRules::read(view, chain)?;
        let translations = present.translations();
        let links = self.links(&present, &translations);
        let shares = self.divide(host, &present, translations, &links)?;
        let steps = present.removal_steps(chain, &shares, &links, delete_chain);
        Ok(TablePlan { steps, removed: shares.removed.into_iter().map(|(_, mapping)| mapping).collect() })
    }

    fn leads_to_us(&self, mapping: &Mapping) -> bool {
        self.ips.contains(&mapping.target.ip())
    }

    /// Returns the links of the attachment on this host: the one that is known, and those that rules for its addresses
    /// name.
    fn links<'f>(&'f self, present: &'f ChainRules, translations: &[(&Found, Mapping)]) -> Vec<&'f str> {
        let own = translations.iter().map(|(_, mapping)| mapping).filter(|mapping| self.leads_to_us(mapping));
        let mut links: Vec<&str> = own.filter_map(|mapping| present.link_of(mapping)).collect();
        links.extend(self.link);
        links.retain(|link| !link.is_empty());
        links
    }

    /// Divides the translations of a chain among the attachments that share it. `links` are those of this attachment.
    fn divide<'f>(
        &self,
        host: &mut Host,
        present: &ChainRules,
        translations: Vec<(&'f Found, Mapping)>,
        links: &[&str],
    ) -> Result<Shares<'f>> {
        let has_our_link = |mapping: &Mapping| present.link_of(mapping).is_some_and(|link| links.contains(&link));
        let is_known = translations.iter().any(|(_, mapping)| self.leads_to_us(mapping) || has_our_link(mapping));
        let mut shares = Shares::default();
        for (rule, mapping) in translations {
            let link = present.link_of(&mapping);
            if present.is_covered_by_others(&mapping) && !(link.is_some() && self.leads_to_us(&mapping)) {
                shares.foreign.push(mapping);
            } else if self.is_ours(host, mapping.target.ip(), link.unwrap_or_default(), links, is_known)? {
                shares.removed.push((rule, mapping));
            } else {
                shares.siblings.push(mapping);
            }
        }
        Ok(shares)
    }

    /// Returns whether a port that leads to this address belongs to the attachment, and not to another one of the same
    /// container to the same network. `link` is the link on this host that the rule names, `links` are those of the
    /// attachment.
    ///
    /// Without evidence it does if the addresses of the attachment are unknown: the container is gone then. It also
    /// does if neither address nor link of the attachment `is_known` to the chain: the previous result is that of
    /// another ADD. But it does not if the alias of any link shows that the container has another attachment.
    fn is_ours(&self, host: &mut Host, ip: IpAddr, link: &str, links: &[&str], is_known: bool) -> Result<bool> {
        let PortRemoval { owner, ips, is_del, .. } = *self;
        if (owner.ifname.is_empty() && ips.is_empty()) || ips.contains(&ip) {
            return Ok(true);
        }
        let host = host.socket()?;
        let named = NamedLink::find(host, link)?;
        let is_lost = named == NamedLink::Gone;
        // It may have been renamed.
        let named = if is_lost { &NamedLink::None } else { &named };
        Ok(match Ownership::new(owner).judge(Trace::OnNetwork { ip, link: named }) {
            Judgement::Ours(_) => true,
            Judgement::Others(_) => false,
            // `links` has no unknown ones.
            _ if links.contains(&link) => true,
            _ if !host.find_veths_by_alias(&|alias| owner.is_sibling_alias(alias))?.is_empty() => false,
            // A link that exists, and is not that of the attachment, may be a sibling's.
            _ => ips.is_empty() || is_lost || (is_del && link.is_empty() && !is_known),
        })
    }
}

/// The rules of a container's chain, and those that lead to it.
struct ChainRules {
    rules: Vec<Found>,
    /// The entry rules of the container.
    entries: Vec<Found>,
    /// The entry rules of other containers, whose chain has the same name.
    other_entries: Vec<Found>,
}

/// The translations of a chain, by owner.
#[derive(Default)]
struct Shares<'f> {
    /// Those of the attachment, with their rules.
    removed: Vec<(&'f Found, Mapping)>,
    /// Those of other attachments of the container.
    siblings: Vec<Mapping>,
    /// Those of other containers.
    foreign: Vec<Mapping>,
}

impl ChainRules {
    fn read(view: &mut View<'_>, chain: &ContainerChain) -> Result<ChainRules> {
        let rules = found::list(view, &chain.name)?;
        let mut entries = found::list(view, chain.entries)?;
        entries.retain(|entry| entry.jump.as_deref() == Some(&chain.name));
        let (entries, other_entries) = entries.into_iter().partition(|entry| entry.comment == chain.comment);
        Ok(ChainRules { rules, entries, other_entries })
    }

    fn translations(&self) -> Vec<(&Found, Mapping)> {
        self.rules.iter().filter_map(|rule| Some((rule, rule.mapping()?))).collect()
    }

    /// Returns the link that the entry rules of a port name; `None` without such a rule. Empty if they differ: two
    /// attachments may publish the same port, at different addresses of this host.
    fn link_of(&self, mapping: &Mapping) -> Option<&str> {
        let mut links = self.entries.iter().filter(|entry| covers(entry, mapping)).map(|entry| &*entry.link);
        links.next().map(|link| if links.all(|other| other == link) { link } else { "" })
    }

    fn is_covered_by_others(&self, mapping: &Mapping) -> bool {
        self.other_entries.iter().any(|entry| covers(entry, mapping))
    }

    /// Returns the steps that remove the share of an attachment, whose links are `links`, and the chain if nothing else
    /// needs it and `delete_chain`.
    fn removal_steps<'c>(
        &self,
        chain: &'c ContainerChain,
        shares: &Shares<'_>,
        links: &[&str],
        delete_chain: bool,
    ) -> Vec<Step<'c>> {
        let (kept, dropped): (Vec<&Found>, Vec<&Found>) =
            self.entries.iter().partition(|entry| self.is_entry_kept(entry, shares, links));
        let delete = |rule: &Found, chain: &'c str| Step::Delete(chain, rule.listed.clone());
        let mut steps: Vec<Step<'c>> = dropped.into_iter().map(|entry| delete(entry, chain.entries)).collect();
        if kept.is_empty() && self.other_entries.is_empty() && shares.siblings.is_empty() {
            steps.push(Step::Flush(&chain.name));
            steps.extend(delete_chain.then_some(Step::DeleteChain(&chain.name)));
            return steps;
        }
        let Shares { removed, siblings, foreign } = shares;
        let marks_removed =
            |rule: &&Found| rule.translates_to.is_none() && removed.iter().any(|(_, mapping)| rule.marks_for(mapping));
        let is_needed = |rule: &Found| siblings.iter().chain(foreign).any(|mapping| rule.marks_for(mapping));
        let marks = self.rules.iter().filter(marks_removed).filter(|rule| !is_needed(rule));
        steps.extend(marks.chain(removed.iter().map(|(rule, _)| *rule)).map(|rule| delete(rule, &chain.name)));
        steps
    }

    /// Returns whether an entry rule of the container leads to ports of other attachments. One without translations
    /// may: the reference lists the ports of the other family, too.
    fn is_entry_kept(&self, entry: &Found, shares: &Shares<'_>, links: &[&str]) -> bool {
        let has_own_link = |entry: &Found| links.contains(&&*entry.link);
        let is_covered_elsewhere =
            |mapping: &Mapping| self.entries.iter().any(|other| covers(other, mapping) && !has_own_link(other));
        let leads_to =
            |mapping: &Mapping| covers(entry, mapping) && !(has_own_link(entry) && is_covered_elsewhere(mapping));
        let is_removed = || shares.removed.iter().any(|(_, mapping)| covers(entry, mapping));
        shares.siblings.iter().any(leads_to) || (!shares.siblings.is_empty() && !is_removed())
    }
}

/// Returns whether an entry rule matches the packets to a published port.
fn covers(entry: &Found, mapping: &Mapping) -> bool {
    entry.covers(mapping.key.protocol, mapping.key.port)
}
