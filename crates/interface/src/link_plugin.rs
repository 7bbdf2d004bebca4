//! A whole plugin, for those that create a link in the container: the kernel deletes it with the container's namespace.
//! What some of them also have on the host, such as a link that containers share, DEL and GC remove by hooks. The
//! plugin implements [`LinkType`], and calls the macro `link_plugin`.

use std::fmt::Debug;

use cni::inspect::{self, Command, ContainerLink, Finding, Id, NetworkView, Settings, Shape, Subject};
use cni::{
    AddResult, Attachment, AttachmentKey, Call, Code, Delegate, Error, ErrorCollector, IfName, Keep, Namespaces, Result,
};
use linux::netlink::{FrameRules, Link, LinkKind, Netlink, TapDevice, Upper, VlanTag};

use crate::attach::{Add, explain_forbidden, prepare_ipam};
use crate::check::Checker;
use crate::config::{Common, MacSource, ipam_to_clean_up};
use crate::host_access::HostAccess;
use crate::ipam::remove_and_release;
use crate::lock::HostLock;
use crate::master::Master;
use crate::{removal, shared_vlan};

mod attach;

/// The name of the check of the master.
const MASTER: &str = "master";

/// What distinguishes one such plugin from others.
pub trait LinkType: Debug + Sync {
    /// The plugin's `type`.
    const NAME: &'static str;
    /// The kinds of its links.
    const KINDS: &'static [&'static str];
    /// Its validated configuration.
    type Config: Debug;

    /// Parses and validates the configuration and `CNI_ARGS`.
    fn parse(call: &Call<'_>) -> Result<Self::Config>;
    /// Returns the part of the configuration that all such plugins have.
    fn common(config: &Self::Config) -> &Common;
    /// Returns the kind of the link to create.
    fn kind(config: &Self::Config) -> LinkKind<'_>;
    /// Returns where its MAC address comes from.
    fn mac(config: &Self::Config) -> MacSource;
    /// Returns the link on top of which it is created, if its kind needs one.
    fn master(_: &Self::Config) -> Option<&Master> {
        None
    }
    /// Returns the bridge in the container of which it becomes a port.
    fn bridge(_: &Self::Config) -> Option<&IfName> {
        None
    }
    /// Returns how the link treats its frames.
    fn frames(_: &Self::Config) -> Option<FrameRules<'_>> {
        None
    }
    /// ADD: returns an error if the link on the master would change those of other containers there. The lock is held
    /// until the link is created.
    fn agree(_: &Self::Config, _: &mut Namespaces, _master: &Link) -> Result<Option<HostLock>> {
        Ok(None)
    }
    /// Returns the VLAN of the master on whose link it is created, if containers share that.
    fn shared_vlan(_: &Self::Config) -> Option<VlanTag> {
        None
    }
    /// Returns the addresses at which containers reach the host, if it gets a link of its own on the master.
    fn host_access(_: &Self::Config) -> Option<&HostAccess> {
        None
    }
    /// DEL: removes what the host has for an attachment, after the link in the container.
    fn remove_from_host(_: &Call<'_>, _: AttachmentKey<'_>) -> Result<()> {
        Ok(())
    }
    /// GC: removes what the host has for attachments that are not kept.
    fn collect_on_host(_: &Call<'_>, _: &Keep<'_>) -> Result<()> {
        Ok(())
    }
    /// For tools: returns the links that ADD created on the host and that no container needs any more.
    fn unused_on_host(_: &Self::Config, _: &NetworkView<'_>) -> Result<Vec<Link>> {
        Ok(Vec::new())
    }
    /// Returns the result of the previous plugin, if the addresses come from that.
    fn previous(_: &Self::Config) -> Option<&AddResult> {
        None
    }
    /// Returns the keys that the plugin reads, for tools.
    fn shape() -> Shape;
}

/// Implements [`Plugin`](cni::Plugin) and [`Inspect`](cni::inspect::Inspect) for a [`LinkType`].
#[macro_export]
macro_rules! link_plugin {
    ($plugin:ty) => {
        impl ::cni::Plugin for $plugin {
            fn name(&self) -> &'static str {
                <$plugin as $crate::LinkType>::NAME
            }

            fn add(&self, call: &::cni::Call<'_>, at: &::cni::Attachment) -> ::cni::Result<::cni::AddResult> {
                $crate::link_plugin::add::<$plugin>(call, at)
            }

            fn del(&self, call: &::cni::Call<'_>, at: &::cni::Attachment) -> ::cni::Result<()> {
                $crate::link_plugin::del::<$plugin>(call, at)
            }

            fn check(&self, call: &::cni::Call<'_>, at: &::cni::Attachment) -> ::cni::Result<()> {
                $crate::link_plugin::check::<$plugin>(call, at)
            }

            fn gc(&self, call: &::cni::Call<'_>) -> ::cni::Result<()> {
                $crate::link_plugin::gc::<$plugin>(call)
            }

            fn status(&self, call: &::cni::Call<'_>) -> ::cni::Result<()> {
                $crate::link_plugin::status::<$plugin>(call)
            }
        }

        impl ::cni::inspect::Inspect for $plugin {
            fn shape(&self) -> ::cni::inspect::Shape {
                <$plugin as $crate::LinkType>::shape()
            }

            fn settings(&self, call: &::cni::Call<'_>) -> ::cni::Result<::cni::inspect::Settings> {
                $crate::link_plugin::settings::<$plugin>(call)
            }

            fn collect(&self, call: &::cni::Call<'_>, keep: &::cni::Keep<'_>) -> ::cni::Result<()> {
                <$plugin as $crate::LinkType>::collect_on_host(call, keep)
            }

            fn findings(
                &self,
                network: &::cni::inspect::NetworkView<'_>,
            ) -> ::cni::Result<::std::vec::Vec<::cni::inspect::Finding>> {
                $crate::link_plugin::findings::<$plugin>(network)
            }
        }
    };
}

/// ADD: creates the link, and configures it.
pub fn add<T: LinkType>(call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
    let config = T::parse(call)?;
    let mut ipam = find_ipam(call, T::common(&config))?;
    prepare_ipam(call, at, ipam.as_mut())?;
    Add::run(call, at, |add| attach::attach::<T>(add, &config, ipam.as_ref()))
}

/// DEL: removes everything of the attachment. A failed step does not prevent the later ones.
pub fn del<T: LinkType>(call: &Call<'_>, at: &Attachment) -> Result<()> {
    let mut failures = ErrorCollector::default();
    let ipam = failures.keep(ipam_of::<T>(call)).flatten();
    remove_and_release(
        &mut failures,
        ipam.as_ref(),
        |ipam| ipam.del(at),
        |failures| {
            let removed = failures.keep(removal::delete_container_link(call, at, T::KINDS, ipam.as_ref())).is_some();
            failures.record(T::remove_from_host(call, AttachmentKey::new(call, at)));
            removed
        },
    );
    failures.into_result()
}

/// CHECK: compares the link with the result of ADD.
pub fn check<T: LinkType>(call: &Call<'_>, at: &Attachment) -> Result<()> {
    let config = T::parse(call)?;
    let ipam = find_ipam(call, T::common(&config))?;
    if let Some(ipam) = &ipam {
        ipam.check(at)?;
    }
    let mut checker = Checker::open(call, at)?;
    let link = checker.interface(T::kind(&config).name(), true)?;
    checker.link(&link, T::kind(&config), T::common(&config).mtu)?;
    if let Some(bridge) = T::bridge(&config) {
        checker.bridge(&link, bridge)?;
    }
    if let Some(master) = T::master(&config) {
        checker.master(&link, master, T::shared_vlan(&config))?;
    }
    if ipam.is_some() || T::previous(&config).is_some() {
        let ips = checker.addresses(&link)?;
        checker.routes(&link)?;
        if let (Some(access), Some(master)) = (T::host_access(&config), T::master(&config)) {
            let master = master.find_by(&mut checker.host)?;
            access.check(&mut checker.host, AttachmentKey::new(call, at), &master, &ips)?;
        }
    }
    Ok(())
}

/// GC: removes what stale attachments left on the host: leases, and links for containers.
pub fn gc<T: LinkType>(call: &Call<'_>) -> Result<()> {
    // An IPAM plugin may accept a call without the list.
    let valid = call.valid_attachments()?;
    let mut failures = ErrorCollector::default();
    failures.record(T::collect_on_host(call, &Keep::new(call.network.as_str(), &valid)));
    failures.record(ipam_of::<T>(call).and_then(|ipam| ipam.map_or(Ok(()), |ipam| ipam.gc())));
    failures.into_result()
}

/// STATUS: returns an error if an ADD would fail now.
pub fn status<T: LinkType>(call: &Call<'_>) -> Result<()> {
    let config = T::parse(call)?;
    let not_available = |error| explain_forbidden(error).with_code(Code::NOT_AVAILABLE);
    let ipam = find_ipam(call, T::common(&config)).map_err(not_available)?;
    can_create::<T>(call, &config).map_err(not_available)?;
    ipam.map_or(Ok(()), |ipam| ipam.status())
}

/// Returns what the configuration requests, for tools.
pub fn settings<T: LinkType>(call: &Call<'_>) -> Result<Settings> {
    let config = T::parse(call)?;
    let mut what = match kind_on_master::<T>(&config) {
        LinkKind::Upper(upper) => format!("{}, {upper}", upper.kind()),
        LinkKind::Tap { tap, .. } => tap.to_string(),
        kind => kind.name().to_owned(),
    };
    if let Some(bridge) = T::bridge(&config) {
        what += &format!(", port of {bridge} in the container");
    }
    let master = T::master(&config).map(|master| inspect::Master {
        name: master.name.as_ref().map(IfName::to_string),
        in_container: master.in_container,
    });
    Ok(Settings { link: Some(ContainerLink { what, master }), ..Settings::default() })
}

/// Reports a master by which no packet passes, and links of the host that no container needs any more.
pub fn findings<T: LinkType>(network: &NetworkView<'_>) -> Result<Vec<Finding>> {
    let config = T::parse(network.call)?;
    let Some(master) = T::master(&config).filter(|master| !master.in_container) else { return Ok(Vec::new()) };
    let containers = || network.alive.iter().map(|at| at.subject.clone());
    let link = match master.find_by(&mut Netlink::open()?) {
        Ok(link) => link,
        Err(missing) => return Ok(vec![Finding::error(MASTER, Id("master-missing"), &missing).about(containers())]),
    };
    let about = |finding: Finding| finding.about([Subject::link(&link.name)]);
    let name = &link.name;
    let is_port = link.port.is_some() && !matches!(kind_on_master::<T>(&config), LinkKind::Upper(Upper::Vlan(_)));
    let mut findings = vec![match () {
        () if is_port => about(Finding::fail(
            MASTER,
            Id("master-is-port"),
            format!("{name} is a port of a bridge, which gets all its frames"),
        ))
        .remedy("use the bridge as \"master\", or take the link off the bridge"),
        () if !link.up => {
            about(Finding::fail(MASTER, Id("master-down"), format!("{name} is down: containers have no connection")))
                .about(containers())
                .run([Command::SetUp.line(&[name])])
        }
        () if !link.running => about(Finding::warn(
            MASTER,
            Id("master-no-carrier"),
            format!("{name} has no carrier: containers have no connection"),
        ))
        .about(containers())
        .remedy("check the cable, or the link at its other end"),
        () => about(Finding::ok(MASTER, Id("master-up"), format!("{name} is up"))),
    }];
    for Link { name, .. } in T::unused_on_host(&config, network)? {
        let finding =
            Finding::warn(MASTER, Id("link-unused"), format!("{name} was created for containers, and none uses it"));
        findings.push(finding.about([Subject::link(&name)]).run([Command::DeleteLink.line(&[&name])]));
    }
    Ok(findings)
}

/// Returns an error if the kernel lacks the kind of link, or the host the master.
fn can_create<T: LinkType>(call: &Call<'_>, config: &T::Config) -> Result<()> {
    let mut host = Netlink::open()?;
    for kind in [kind_on_master::<T>(config), T::kind(config)] {
        match kind {
            LinkKind::Tap { .. } => TapDevice::check_available()?,
            _ if host.can_create(kind)? => {}
            _ => return Err(no_such_kind(kind)),
        }
    }
    match T::master(config).filter(|master| !master.in_container) {
        Some(master) => {
            let link = master.find_by(&mut host)?;
            refuse_down(&link)?;
            if let Some(access) = T::host_access(config) {
                access.refuse_used(&mut host, call.network.as_str())?;
            }
            let shared = T::shared_vlan(config).map(|tag| shared_vlan::find(&mut host, &link, tag)).transpose()?;
            shared.flatten().filter(|vlan| !shared_vlan::is_marked(vlan)).map_or(Ok(()), |vlan| refuse_down(&vlan))
        }
        None => Ok(()),
    }
}

/// Returns an error if the link on top of which containers have theirs is down.
fn refuse_down(master: &Link) -> Result<()> {
    match master.up {
        true => Ok(()),
        false => Err(Error::new(Code::NOT_AVAILABLE, format!("master {:?} is down", master.name))
            .details(format!("run `ip link set {} up`", master.name))),
    }
}

/// Returns the error for a kind of link that the kernel does not know.
pub fn no_such_kind(kind: LinkKind<'_>) -> Error {
    let kind = kind.name();
    let module = if kind == "vlan" { "8021q" } else { kind };
    Error::new(Code::INTERNAL, format!("this kernel has no {kind} interfaces"))
        .details(format!("load the module {module:?}, or use a kernel that has it"))
}

/// Finds the IPAM plugin, if the network has one.
fn find_ipam<'a>(call: &'a Call<'a>, common: &Common) -> Result<Option<Delegate<'a>>> {
    common.ipam.as_deref().map(|name| Delegate::find(call, name)).transpose()
}

/// Finds the IPAM plugin for DEL and GC.
fn ipam_of<'a, T: LinkType>(call: &'a Call<'a>) -> Result<Option<Delegate<'a>>> {
    ipam_to_clean_up(call, T::parse(call).map(|config| T::common(&config).ipam.clone()))
}

/// Returns the kind of the link on the master: that of the container, or a VLAN link that containers share.
fn kind_on_master<T: LinkType>(config: &T::Config) -> LinkKind<'_> {
    T::shared_vlan(config).map_or_else(|| T::kind(config), |tag| LinkKind::Upper(Upper::Vlan(tag)))
}
