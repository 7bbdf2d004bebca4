//! ADD: limits what a container receives and sends.

use cni::{Code, Error, Result, Undo};
use linux::log::{debug, warn};
use linux::netlink::{
    Change, Classifier, Link, LinkChange, LinkIndex, LinkKind, Netlink, NewLink, Qdisc, QdiscPlace, Redirect,
};

use crate::ifb::{self, IFB};
use crate::limits::Limits;
use crate::removal::{self, delete_qdisc};

/// The remedy if the kernel lacks a part of traffic control.
pub(crate) const FIX_HINT: &str = "load the kernel modules sch_tbf, ifb, sch_ingress, act_mirred and cls_u32 or cls_matchall; \
                                   some distributions have them in a package such as linux-modules-extra or kernel-modules-extra";
/// The length of an Ethernet header. The burst must have space for it, too.
const ETHERNET: u32 = 14;

/// What exists of the limits of an attachment, and of those of others.
struct Present {
    /// The queueing discipline of what the veth sends.
    root: Option<Qdisc>,
    /// That of what it receives.
    ingress: Option<Qdisc>,
    /// The filters of what the veth receives.
    redirects: Vec<Redirect>,
    /// The ifb links of the attachment.
    own: Vec<Link>,
    /// All ifb links.
    all: Vec<Link>,
}

impl Limits<'_> {
    /// Sets the limits. Replaces those of an earlier ADD of the same attachment. Returns the ifb link, if what the
    /// container sends is limited.
    pub(crate) fn set(&self, host: Netlink) -> Result<Option<Link>> {
        for limit in [self.config.ingress, self.config.egress].iter().flatten() {
            if limit.burst < self.veth.mtu.saturating_add(ETHERNET) {
                let mtu = self.veth.mtu;
                warn!("a burst of {} bytes drops packets of {:?}, whose MTU is {mtu}", limit.burst, self.veth.name);
            }
        }
        let mut undo = Undo::new(host);
        match self.set_with(&mut undo) {
            Ok(ifb) => {
                undo.commit();
                Ok(ifb)
            }
            Err(error) => Err(undo.roll_back(error.details_if(is_unsupported, FIX_HINT))),
        }
    }

    /// Sets the limits. Registers the rollback step of each change in `undo`.
    fn set_with<'s>(&'s self, undo: &mut Undo<'s, Netlink>) -> Result<Option<Link>> {
        let present = Present::read(self, undo.context())?;
        self.prepare(undo, &present)?;
        let ifb = match (self.config.egress, present.own.first()) {
            (Some(_), None) => Some(self.create_ifb(undo, &present)?),
            (wanted, own) => {
                undo.context().apply(&self.veth_changes(&present))?;
                wanted.and(own).cloned()
            }
        };
        self.remove_obsolete(undo.context(), &present, ifb.as_ref())?;
        if let Some(ifb) = &ifb {
            self.redirect(undo, &present, ifb)?;
        }
        self.divide_fairly(undo.context(), ifb.as_ref());
        Ok(ifb)
    }

    /// Registers the rollback of [`Limits::veth_changes`]. Returns an error if another program limits what the veth
    /// sends.
    fn prepare<'s>(&'s self, undo: &mut Undo<'s, Netlink>, present: &Present) -> Result<()> {
        let veth = self.veth.index;
        if self.config.ingress.is_some() {
            match present.root.as_ref().filter(|root| !root.is_default) {
                Some(root) if root.token_bucket().is_some() => {}
                Some(other) => {
                    let (name, kind) = (&self.veth.name, &other.kind);
                    let what = format!("link {name:?} has the queueing discipline {kind:?} of another program");
                    let hint = "limit what containers receive in one place: remove it, or ingressRate and ingressBurst";
                    return Err(Error::new(Code::INTERNAL, what).details(hint));
                }
                None => {
                    undo.push("delete the limit of the host veth", move |host| {
                        delete_qdisc(host, veth, QdiscPlace::Root)
                    });
                }
            }
        }
        if self.config.egress.is_some() && present.ingress.is_none() {
            undo.push("delete the filters of the host veth", move |host| delete_qdisc(host, veth, QdiscPlace::Ingress));
        }
        Ok(())
    }

    /// Returns the changes that limit what the veth sends, and prepare it for a filter of what it receives. They can be
    /// repeated.
    fn veth_changes(&self, present: &Present) -> Vec<Change<'static>> {
        let limit = self.config.ingress.map(|limit| Change::set_token_bucket(self.veth.index, limit));
        // Unlike the reference, which adds `ingress`: other programs want `clsact`, and a link can have only one.
        let needs_filters = self.config.egress.is_some() && present.ingress.is_none();
        limit.into_iter().chain(needs_filters.then(|| Change::add_clsact(self.veth.index))).collect()
    }

    /// Creates the ifb link, and changes the veth with the same message.
    fn create_ifb<'s>(&'s self, undo: &mut Undo<'s, Netlink>, present: &Present) -> Result<Link> {
        let mut taken: Vec<&str> = present.all.iter().map(|link| link.name.as_str()).collect();
        let names = self.owner.ifb_names();
        for name in &names {
            if taken.contains(&name.as_str()) {
                continue;
            }
            let created = name.clone();
            undo.push(format!("delete link {name:?}"), move |host| removal::remove_created(host, self.owner, &created));
            let new = NewLink { name: Some(name), mtu: Some(self.veth.mtu), ..NewLink::of(LinkKind::Ifb) };
            let mut changes = vec![Change::create_link(&new)];
            changes.extend(self.veth_changes(present));
            match undo.context().create(&changes) {
                // Another ADD was faster.
                Err(error) if error.errno() == Some(libc::EEXIST) => {
                    undo.pop();
                    taken.push(name);
                }
                outcome => return Ok(outcome?),
            }
        }
        let [shared, unique] = &names;
        let what = format!("other attachments have the links {shared:?} and {unique:?}");
        Err(Error::new(Code::INTERNAL, what)
            .details("`ip -d link show type ifb` shows whose they are; delete stale ones"))
    }

    /// Removes ifb links of the attachment that `ifb` replaces, and filters that lead to a link that is gone, which
    /// drop all packets. A direction without a rate stays as it is: another `bandwidth` in the list may limit it.
    fn remove_obsolete(&self, host: &mut Netlink, present: &Present, ifb: Option<&Link>) -> Result<()> {
        let veth = self.veth.index;
        let is_replaced = |link: &&Link| ifb.is_some_and(|ifb| ifb.index != link.index);
        let replaced: Vec<LinkIndex> = present.own.iter().filter(is_replaced).map(|link| link.index).collect();
        let is_obsolete = |redirect: &&Redirect| redirect.to.is_none_or(|to| replaced.contains(&to));
        let redirects = present.redirects.iter().filter(is_obsolete);
        let mut changes: Vec<_> = redirects.map(|redirect| Change::delete_redirect(veth, redirect)).collect();
        changes.extend(replaced.iter().map(|link| Change::delete_link(*link)));
        Ok(host.apply(&changes)?)
    }

    /// Marks the ifb link, limits what it sends, sets it up, and redirects to it what the veth receives.
    fn redirect<'s>(&'s self, undo: &mut Undo<'s, Netlink>, present: &Present, ifb: &Link) -> Result<()> {
        let (veth, index) = (self.veth.index, ifb.index);
        let Some(limit) = self.config.egress else { return Ok(()) };
        let alias = self.owner.alias();
        // By its index: the kernel does not stop at a change that fails, so with the creation of the link, by its name,
        // this could be the link of another attachment. The reference sets no alias, and something may have set the
        // link down.
        let marked = LinkChange { alias: Some(&alias), ..LinkChange::default() };
        let up = LinkChange { up: Some(true), ..LinkChange::default() };
        let is_redirected = present.redirects.iter().any(|redirect| redirect.to == Some(index));
        if !is_redirected {
            undo.push("delete the redirection of the host veth", move |host| {
                removal::delete_redirects(host, veth, index)
            });
        }
        let mut apply = |classifier| {
            let mut changes = vec![
                Change::set_link(index, &marked),
                Change::set_token_bucket(index, limit),
                // Last: to change a link that is up, the kernel waits for all processors and looks at all routes.
                Change::set_link(index, &up),
            ];
            changes.extend((!is_redirected).then(|| Change::redirect(veth, index, classifier)));
            undo.context().apply(&changes)
        };
        match apply(Classifier::U32) {
            Err(error) if error.errno() == Some(libc::ENOENT) => {
                debug!("use matchall instead of u32: {error}");
                Ok(apply(Classifier::Matchall)?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Divides the queues of limited links fairly, if the kernel can: a large download must not delay everything else.
    fn divide_fairly(&self, host: &mut Netlink, ifb: Option<&Link>) {
        let veth = self.config.ingress.map(|limit| (self.veth.index, limit));
        let ifb = ifb.map(|ifb| ifb.index).zip(self.config.egress);
        let changes: Vec<Change<'_>> =
            veth.into_iter().chain(ifb).map(|(link, limit)| Change::add_fair_queue(link, limit)).collect();
        if let Err(error) = host.apply(&changes) {
            debug!("queues are not divided: {error}");
        }
    }
}

impl Present {
    fn read(limits: &Limits<'_>, host: &mut Netlink) -> Result<Present> {
        let veth = limits.veth.index;
        let root = host.qdisc(veth, QdiscPlace::Root)?;
        let ingress = host.qdisc(veth, QdiscPlace::Ingress)?;
        let redirects = if ingress.is_some() { host.redirects(veth)? } else { Vec::new() };
        let all = host.links_of_kind(IFB)?;
        let leads_to = |link: &Link| redirects.iter().any(|redirect| redirect.to == Some(link.index));
        let is_own = |link: &&Link| {
            ifb::is_marked(link, limits.owner) || (ifb::may_be_of_reference(link, limits.owner) && leads_to(link))
        };
        let own = all.iter().filter(is_own).cloned().collect();
        Ok(Present { root, ingress, redirects, own, all })
    }
}

/// Returns whether an error means that the kernel lacks a part of traffic control.
pub(crate) fn is_unsupported(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::ENOENT | libc::EOPNOTSUPP))
}
