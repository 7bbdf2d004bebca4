//! Gives a device back to the host: from the container, or, if the kernel has moved it out of a namespace that is gone,
//! on the host itself, where it still has the name that it had in the container.

use std::slice;
use std::time::Duration;

use cni::{
    Attachment, AttachmentKey, Call, Code, Context, Delegate, Error, ErrorCollector, IfName, Keep, Namespaces, Result,
};
use interface::link_state::LinkState;
use interface::lock::HostLock;
use interface::removal;
use linux::log::{debug, warn};
use linux::netlink::{Change, Event, Link, LinkChange, LinkIndex, LinkRef, Netlink, Watch};
use linux::{Deadline, Kind, Sysfs, tolerate};

use crate::device::{Device, name_on_host};
use crate::record::Record;

/// How long DEL waits for the kernel, which removes a namespace some time after its last process is gone.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The device of an attachment, as it is recognised and given back.
#[derive(Clone, Debug)]
pub(crate) struct GiveBack<'a> {
    pub(crate) key: AttachmentKey<'a>,
    pub(crate) record: Option<Record>,
    /// For the rollback of ADD: what the device was.
    pub(crate) state: Option<LinkState>,
}

/// What became of the namespace of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    Exists,
    Gone,
}

/// Returns the marks of the attachments that have, or had, this device.
pub(crate) fn marks(link: &Link) -> impl Iterator<Item = &str> {
    link.alternative_names.iter().filter_map(|name| cni::key::mark_in_alternative_name(name))
}

/// Returns the alternative names that are not marks.
pub(crate) fn other_names(link: &Link) -> impl Iterator<Item = &str> {
    let is_other = |name: &&str| cni::key::mark_in_alternative_name(name).is_none();
    link.alternative_names.iter().map(String::as_str).filter(is_other)
}

/// Returns whether a device has the mark of another attachment than the one with this alternative name.
pub(crate) fn has_other_mark(link: &Link, own: &str) -> bool {
    !link.alternative_names.iter().any(|name| name == own) && marks(link).next().is_some()
}

impl<'a> GiveBack<'a> {
    pub(crate) fn new(key: AttachmentKey<'a>) -> GiveBack<'a> {
        GiveBack { key, record: Record::read(key), state: None }
    }

    /// Opens sysfs for the namespace of this thread; `None` if the kernel does not permit it.
    pub(crate) fn open_sysfs() -> Result<Option<Sysfs>> {
        Ok(tolerate("a virtual device is recognised by its marks", Sysfs::open().map(Some))?)
    }

    /// Returns the device among the links of the container.
    fn find<'b>(&self, namespaces: &Namespaces, links: &'b [Link]) -> Result<Option<&'b Link>> {
        let identity = self.record.as_ref().and_then(|record| record.identity);
        let sysfs = identity.map_or(Ok(None), |_| namespaces.in_guest(GiveBack::open_sysfs))?;
        let Some(sysfs) = sysfs else { return Ok(links.iter().find(|link| self.is_device(link))) };
        for link in links {
            if sysfs.identity(link)? == identity {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }

    /// Returns whether a link of the container is the device, unless there is no record of it.
    pub(crate) fn may_be_of(&self, namespaces: &Namespaces, link: &Link) -> Result<bool> {
        Ok(self.record.is_none() || self.find(namespaces, slice::from_ref(link))?.is_some())
    }

    /// Returns whether a link can be the device, by all but its identity. A container can change its name and alias,
    /// remove the mark, and give the mark to another link, but it cannot change the kind of a link, or its hardware.
    fn is_device(&self, link: &Link) -> bool {
        let can_be = self.record.as_ref().is_none_or(|record| record.is_of(link));
        let is_physical = self.record.as_ref().is_some_and(|record| !record.hardware.is_empty());
        let is_marked = link.alternative_names.contains(&self.key.alternative_name());
        can_be && (is_marked || is_physical && !self.is_of_another(link)) && link.index != LinkIndex::LOOPBACK
    }

    /// Returns whether another attachment has the device: its mark counts only with a record of the same hardware.
    fn is_of_another(&self, link: &Link) -> bool {
        let others = marks(link).filter_map(Record::read_by_mark);
        others.into_iter().any(|other| other.key() != self.key && other.is_of(link))
    }

    /// Returns the name and the alias of the device on the host.
    fn origin<'b>(&'b self, link: &'b Link) -> (&'b str, &'b str) {
        match &self.record {
            Some(record) => (&record.name, &record.alias),
            None => (name_on_host(link, self.key.ifname), ""),
        }
    }

    /// DEL: moves the device from the container to the host. If the container does not have it, returns what became of
    /// its namespace.
    pub(crate) fn take_from_container(
        &self,
        call: &Call<'_>,
        at: &Attachment,
        device: Option<&Device>,
        ipam: Option<&Delegate<'_>>,
    ) -> Result<Option<Namespace>> {
        let Some(mut namespaces) = Namespaces::open_if_exists(call, at)? else {
            return self.await_return().map(|()| Some(Namespace::Gone));
        };
        let mut guest = namespaces.open_guest(at)?;
        let links = guest.netlink.links(None)?;
        let is_known = |link: &&Link| self.record.is_some() || !link.hardware.is_empty();
        if let Some(link) = self.find(&namespaces, &links)?.filter(is_known) {
            return self.move_home(&mut guest.netlink, &mut namespaces, &links, link).map(|()| None);
        }
        // The reference writes no record, and sets no mark. A container can have created any other link.
        let is_named = |link: &&Link| link.name == at.ifname.as_str() && marks(link).next().is_none();
        let is_candidate = |link: &&Link| (self.is_device(link) || is_named(link)) && link.index != LinkIndex::LOOPBACK;
        let candidate = links.iter().find(is_candidate).filter(|link| IfName::from_config(&link.alias).is_ok());
        let Some(link) = candidate.filter(|_| self.record.is_none()) else { return Ok(Some(Namespace::Exists)) };
        let is_ours = device.is_some_and(|device| device.is_link(link, &link.alias))
            || removal::is_ours(call, at, &mut guest, link, ipam)?;
        // After a first DEL, the host has the device.
        let was_given_back = link.hardware.is_empty() && namespaces.host.netlink.link_index(&link.alias)?.is_some();
        if !is_ours || was_given_back {
            warn!("keep {:?} in {:?}: cannot prove that it belongs to this attachment", link.name, at.sandbox());
            return Ok(Some(Namespace::Exists));
        }
        let theirs = Record { name: link.alias.clone(), ..Record::default() };
        let theirs = GiveBack { record: Some(theirs), ..self.clone() };
        theirs.move_home(&mut guest.netlink, &mut namespaces, &links, link).map(|()| None)
    }

    /// The rollback of an ADD. The device may be in the container, or still on the host.
    pub(crate) fn undo(&self, namespaces: &mut Namespaces) -> Result<()> {
        let mut guest = namespaces.in_guest(|| Ok(Netlink::open()?))?;
        let links = guest.links(None)?;
        match self.find(namespaces, &links)? {
            Some(link) => self.move_home(&mut guest, namespaces, &links, link),
            None => self.on_host(&mut namespaces.host.netlink, Namespace::Gone, None),
        }
    }

    /// Moves the device to the host. It gets its name in the container, so that no program of the host sees another
    /// one, unless the container has a link with that name. `links` are those of the container.
    fn move_home(&self, guest: &mut Netlink, namespaces: &mut Namespaces, links: &[Link], link: &Link) -> Result<()> {
        let (name, alias) = self.origin(link);
        let host = &mut namespaces.host;
        refuse_taken(&mut host.netlink, name)?;
        // Links on top of a device stay when it moves. By them, the container would still be on its wire.
        let is_above = |other: &&Link| other.lower == Some(link.index) && other.lower_netns.is_none();
        let above = links.iter().filter(is_above).filter(|other| other.kind != "veth");
        let above: Vec<_> = above.map(|other| Change::delete_link(other.index)).collect();
        if !above.is_empty() {
            guest.apply_ignoring(&above, &[libc::ENODEV, libc::ENXIO])?;
        }
        let down = LinkChange { up: Some(false), ..LinkChange::default() };
        let mut changes = Vec::new();
        if link.up {
            changes.push(Change::set_link(link.index, &down));
        }
        // The kernel lets no device move that has a name of another link there.
        changes.extend(self.added_names(link, &mut host.netlink)?.into_iter().map(Change::delete_alternative_name));
        let renames = link.name != name && guest.link_index(name)?.is_none();
        if renames {
            changes.push(Change::set_link(link.index, &LinkChange { name: Some(name), ..down }));
        }
        let home = LinkChange { name: Some(name), alias: Some(alias), ..LinkChange::default() };
        changes.push(Change::move_link(link.index, &host.netns, &home));
        if let Err(error) = guest.apply(&changes) {
            // Another program was faster. What the device was in the container, it is again, if it is still there.
            let former = LinkChange { name: renames.then_some(link.name.as_str()), ..LinkChange::default() };
            let up = LinkChange { up: Some(link.up), ..LinkChange::default() };
            let undone = guest.apply(&[Change::set_link(link.index, &former), Change::set_link(link.index, &up)]);
            debug!("the device is as before in the container: {undone:?}");
            return Err(error).context(|| format!("give back {name:?}"));
        }
        self.finish(&mut host.netlink, name)
    }

    /// Returns the alternative names that the container has given to the device. Without a record of its own ones,
    /// these are the names that links of the host have.
    fn added_names<'b>(&self, link: &'b Link, host: &mut Netlink) -> Result<Vec<&'b str>> {
        let own = self.record.as_ref().and_then(|record| record.alternative_names.as_ref());
        let mut added = Vec::new();
        for name in other_names(link) {
            let is_added = match own {
                Some(own) => !own.iter().any(|own| own == name),
                None => host.link(LinkRef::AlternativeName(name))?.is_some(),
            };
            if is_added {
                added.push(name);
            }
        }
        Ok(added)
    }

    /// Gives the device its name again on the host, if the host has it. A device of the reference has no mark:
    /// `described` are the name in the container, and what the configuration describes.
    pub(crate) fn on_host(
        &self,
        host: &mut Netlink,
        namespace: Namespace,
        described: Option<(&str, Option<&Device>)>,
    ) -> Result<()> {
        if let Some(link) = self.find_on_host(host)? {
            return self.rename(host, &link);
        }
        if let Some((ifname, Some(device))) = described
            && let Ok(link) = device.find(host, ifname)
            && marks(&link).next().is_none()
            && name_on_host(&link, ifname) != link.name
        {
            let theirs = Record { name: name_on_host(&link, ifname).to_owned(), ..Record::default() };
            return GiveBack { record: Some(theirs), ..self.clone() }.rename(host, &link);
        }
        let Some(record) = &self.record else { return Ok(()) };
        let is_gone = match (record.hardware.is_empty(), namespace) {
            // It comes back later, if no other attachment has it.
            (false, _) => record.has_successor(),
            // The kernel deletes a virtual device with its namespace.
            (true, Namespace::Gone) => true,
            // The record proves to a later DEL, too, that no other link in the namespace is the device.
            (true, Namespace::Exists) => {
                warn!("{:?} stays: the container has deleted it, or moved it to another namespace", record.name);
                false
            }
        };
        if is_gone { Record::remove(&self.key.mark()) } else { Ok(()) }
    }

    fn find_on_host(&self, host: &mut Netlink) -> Result<Option<Link>> {
        let name = self.key.alternative_name();
        if let Some(link) = host.link(LinkRef::AlternativeName(&name))?.filter(|link| self.is_device(link)) {
            return Ok(Some(link));
        }
        match &self.record {
            Some(record) if !record.hardware.is_empty() => {
                Ok(host.links(None)?.into_iter().find(|link| self.is_device(link)))
            }
            // An ADD that was killed may have written the record, but not set the mark.
            Some(Record { name, identity: Some(identity), .. }) => {
                let sysfs = GiveBack::open_sysfs()?;
                let Some((sysfs, link)) = sysfs.zip(host.link(name.as_str())?) else { return Ok(None) };
                Ok((sysfs.identity(&link)? == Some(*identity)).then_some(link))
            }
            _ => Ok(None),
        }
    }

    fn rename(&self, host: &mut Netlink, link: &Link) -> Result<()> {
        let (name, alias) = self.origin(link);
        if link.up && ![&link.name, &link.alias].into_iter().any(|own| own == name) {
            // The host has given it another name since, and uses it.
            return self.finish(host, &link.name);
        }
        // An alias that is not the name is that of the container, or, if the device has its name, one that a user set
        // since.
        let alias = (link.alias == name || link.name != name).then_some(alias);
        if link.name != name {
            refuse_taken(host, name)?;
            let down = LinkChange { up: Some(false), ..LinkChange::default() };
            let change = LinkChange { name: Some(name), alias, ..LinkChange::default() };
            host.apply(&[Change::set_link(link.index, &down), Change::set_link(link.index, &change)])?;
        } else if alias.is_some() {
            host.apply(&[Change::set_link(link.index, &LinkChange { alias, ..LinkChange::default() })])?;
        }
        self.finish(host, name)
    }

    /// Restores what ADD was asked to restore, and removes marks and record.
    fn finish(&self, host: &mut Netlink, name: &str) -> Result<()> {
        let record = self.record.as_ref();
        let Some(link) = host.link(name)? else { return Ok(()) };
        if let Some(mac) = record.filter(|record| record.has_other_mac).and_then(|record| record.mac.parse().ok()) {
            let change = LinkChange { mac: Some(mac), ..LinkChange::default() };
            host.apply(&[Change::set_link(link.index, &change)])?;
        }
        if let Some(state) = self.state.as_ref().or_else(|| record?.restore.as_ref())
            && let Err(error) = state.restore(host, &link)
        {
            warn!("{:?} is not entirely as before: {error:?}", link.name);
        }
        let own = record.and_then(|record| record.alternative_names.as_deref());
        let is_own = |name: &str| own.is_none_or(|own| own.iter().any(|own| own == name));
        // Marks of whichever attachment: a container with two devices can have exchanged them.
        let kept: Vec<&str> = other_names(&link).filter(|name| is_own(name)).collect();
        let names = link.alternative_names.iter().map(String::as_str);
        let obsolete = names.filter(|name| !kept.contains(name)).map(Change::delete_alternative_name);
        let lost = own.unwrap_or_default().iter().map(String::as_str).filter(|name| !kept.contains(name));
        let lost = lost.map(|name| Change::add_alternative_name(link.index, name));
        let changes: Vec<_> = obsolete.chain(lost).collect();
        if !changes.is_empty() {
            // Another link of the host may have one of the names by now.
            host.apply_ignoring(&changes, &[libc::EEXIST])?;
        }
        Record::remove(&self.key.mark())
    }

    /// Waits until the kernel has moved the device out of a namespace that is gone.
    fn await_return(&self) -> Result<()> {
        let Some(record) = self.record.as_ref().filter(|record| !record.hardware.is_empty()) else { return Ok(()) };
        let (mut host, mut watch) = (Netlink::open()?, Watch::open(Event::Link)?);
        let look = || self.find_on_host(&mut host).map_err(|error| linux::Error::new(Kind::Other, error.to_string()));
        let what = format!("{:?} to come back from a namespace that is gone", record.name);
        match watch.wait_for(&what, Deadline::after(TIMEOUT), look) {
            Err(error) if error.kind() == Kind::Transient => {
                warn!("{error}: its name is restored when it is back, by the next ADD or GC");
                Ok(())
            }
            outcome => Ok(outcome.map(drop)?),
        }
    }
}

/// GC: gives back the devices of stale attachments that are on the host, with the name that they had in a container.
pub(crate) fn collect(keep: &Keep<'_>) -> Result<()> {
    let _lock = HostLock::acquire()?;
    let mut host = Netlink::open()?;
    let mut failures = ErrorCollector::default();
    for record in Record::all()?.into_iter().filter(|record| keep.is_stale(record.key())) {
        let key = record.key();
        let give_back = GiveBack { key, record: Some(record.clone()), state: None };
        failures.record(give_back.on_host(&mut host, Namespace::Gone, None));
    }
    // Those without a record.
    for link in host.links(None)? {
        for mark in marks(&link).filter(|mark| keep.is_stale_comment(mark)) {
            if Record::read_by_mark(mark).is_none() {
                failures.record(forget(&mut host, &link, mark));
            }
        }
    }
    failures.into_result()
}

/// Renames a device without a record, and removes its mark.
fn forget(host: &mut Netlink, link: &Link, mark: &str) -> Result<()> {
    let name = name_on_host(link, "");
    if name != link.name {
        refuse_taken(host, name)?;
        let down = LinkChange { up: Some(false), ..LinkChange::default() };
        let change = LinkChange { name: Some(name), alias: Some(""), ..LinkChange::default() };
        host.apply(&[Change::set_link(link.index, &down), Change::set_link(link.index, &change)])?;
    }
    let own = link.alternative_names.iter().find(|name| cni::key::mark_in_alternative_name(name) == Some(mark));
    own.map_or(Ok(()), |own| Ok(host.apply(&[Change::delete_alternative_name(own)])?))
}

/// Returns an error if a link of the host has the name of the device.
fn refuse_taken(host: &mut Netlink, name: &str) -> Result<()> {
    let Some(other) = host.link(name)? else { return Ok(()) };
    let kind = if other.kind.is_empty() { "device" } else { &other.kind };
    let what = format!("give back {name:?}: the host has another link with this name, a {kind}");
    Err(Error::new(Code::INTERNAL, what)
        .details("rename or delete that link; the next DEL or GC gives the device back"))
}
