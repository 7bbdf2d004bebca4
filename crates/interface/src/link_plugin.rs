//! A whole plugin, for those whose only object is a link in the container: the kernel deletes it with the container's
//! namespace, and nothing is left on the host. The plugin implements [`LinkType`], and calls the macro `link_plugin`.

use std::fmt::Debug;

use cni::inspect::Shape;
use cni::{AddResult, Attachment, Call, Code, Delegate, Error, ErrorCollector, Interface, Namespaces, Result};
use linux::netlink::{Change, LinkChange, LinkIndex, Netlink, NewLink};

use crate::attach::{Add, explain_forbidden, prepare_ipam};
use crate::check::Checker;
use crate::config::{Common, ipam_to_clean_up};
use crate::container::ContainerInterface;
use crate::plan::{Plan, Wanted};
use crate::{name, removal};

/// Attempts to create the link: its index may be taken.
const ATTEMPTS: u32 = 10;

/// What distinguishes one such plugin from others.
pub trait LinkType: Debug + Sync {
    /// The plugin's `type`.
    const NAME: &'static str;
    /// The kind of its links.
    const KIND: &'static str;
    /// Its validated configuration.
    type Config: Debug;

    /// Parses and validates the configuration and `CNI_ARGS`.
    fn parse(call: &Call<'_>) -> Result<Self::Config>;
    /// Returns the part of the configuration that all such plugins have.
    fn common(config: &Self::Config) -> &Common;
    /// Describes the link to create. Its MAC address is the one in the result.
    fn describe<'a>(config: &'a Self::Config, host: &mut Netlink) -> Result<NewLink<'a>>;
    /// STATUS: returns an error if the link could not be created.
    fn status(config: &Self::Config, host: &mut Netlink) -> Result<()>;
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
                <$plugin as $crate::LinkType>::parse(call).map(|_| ::cni::inspect::Settings::default())
            }
        }
    };
}

/// ADD: creates the link, and configures it.
pub fn add<T: LinkType>(call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
    let config = T::parse(call)?;
    let mut ipam = find_ipam(call, T::common(&config))?;
    prepare_ipam(call, at, ipam.as_mut())?;
    Add::run(call, at, |add| attach::<T>(add, &config, ipam.as_ref()))
}

/// DEL: removes everything of the attachment. A failed step does not prevent the later ones.
pub fn del<T: LinkType>(call: &Call<'_>, at: &Attachment) -> Result<()> {
    let mut failures = ErrorCollector::default();
    let ipam = failures.keep(ipam_of::<T>(call)).flatten();
    let removed = failures.keep(removal::delete_container_link(call, at, T::KIND, ipam.as_ref())).is_some();
    // An address must not be leased again while the interface that has it may still exist.
    if let Some(ipam) = ipam.as_ref().filter(|_| removed) {
        failures.record(ipam.del(at));
    }
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
    let link = checker.interface(T::KIND, true)?;
    if ipam.is_some() {
        checker.addresses(&link)?;
        checker.routes(&link)?;
    }
    Ok(())
}

/// GC: only the leases of stale attachments can be left on the host.
pub fn gc<T: LinkType>(call: &Call<'_>) -> Result<()> {
    // An IPAM plugin may accept a call without the list.
    call.valid_attachments()?;
    ipam_of::<T>(call)?.map_or(Ok(()), |ipam| ipam.gc())
}

/// STATUS: returns an error if an ADD would fail now.
pub fn status<T: LinkType>(call: &Call<'_>) -> Result<()> {
    let config = T::parse(call)?;
    let not_available = |error| explain_forbidden(error).with_code(Code::NOT_AVAILABLE);
    let ipam = find_ipam(call, T::common(&config)).map_err(not_available)?;
    T::status(&config, &mut Netlink::open()?).map_err(not_available)?;
    ipam.map_or(Ok(()), |ipam| ipam.status())
}

/// Finds the IPAM plugin, if the network has one.
fn find_ipam<'a>(call: &'a Call<'a>, common: &Common) -> Result<Option<Delegate<'a>>> {
    common.ipam.as_deref().map(|name| Delegate::find(call, name)).transpose()
}

/// Finds the IPAM plugin for DEL and GC.
fn ipam_of<'a, T: LinkType>(call: &'a Call<'a>) -> Result<Option<Delegate<'a>>> {
    ipam_to_clean_up(call, T::parse(call).map(|config| T::common(&config).ipam.clone()))
}

/// Creates the link, configures it, and returns the result.
fn attach<'a, T: LinkType>(
    add: &mut Add<'a>,
    config: &'a T::Config,
    ipam: Option<&'a Delegate<'a>>,
) -> Result<AddResult> {
    let common = T::common(config);
    let new = T::describe(config, &mut add.undo.context().host.netlink)?;
    let index = create(add, new)?;
    let mut interface = start(add, index)?;
    let plan = match ipam {
        Some(ipam) => {
            let leased = add.lease_addresses(ipam, move |namespaces| delete(namespaces, index))?;
            Plan::new(leased, &wanted(common))?
        }
        None => Plan::default(),
    };
    interface.configure(add.undo.context(), &plan)?;
    Ok(AddResult {
        interfaces: vec![Interface::new(add.at.ifname.as_str(), new.mac, add.at.sandbox())],
        ips: plan.ips,
        routes: plan.routes,
        dns: common.dns.clone().unwrap_or(plan.dns),
    })
}

/// Returns what the configuration says about layer 3.
fn wanted(common: &Common) -> Wanted<'_> {
    Wanted {
        ipam: common.ipam.as_deref().unwrap_or_default(),
        interface: 0,
        gateway: false,
        default_gateway: false,
        mtu: common.mtu,
        has_layer2: false,
    }
}

/// Creates the link in the container, without a name: older kernels refuse one that a link on the host has. The index is
/// chosen here, so that the link can be changed and deleted without looking for it.
fn create(add: &mut Add<'_>, new: NewLink<'_>) -> Result<LinkIndex> {
    let mut failure = None;
    for _ in 0..ATTEMPTS {
        let index = name::random_index()?;
        add.undo.push(format!("delete link {index}"), move |namespaces| delete(namespaces, index));
        let Namespaces { host, guest } = add.undo.context();
        let created = NewLink { netns: Some(guest), index: Some(index), ..new };
        let outcome = host.netlink.apply(&[Change::create_link(&created)]);
        match outcome {
            Ok(()) => return Ok(index),
            // Another link has the index.
            Err(error) if matches!(error.errno(), Some(libc::EEXIST | libc::EBUSY)) => {
                add.undo.pop();
                failure = Some(error.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(failure.unwrap_or_else(|| Error::bug("no attempt was made")))
}

/// Gives the link its name and the mark of its owner, and sets it up.
fn start<'a>(add: &mut Add<'a>, index: LinkIndex) -> Result<ContainerInterface<'a>> {
    let (at, alias) = (add.at, add.key.alias());
    let namespaces = add.undo.context();
    let guest = namespaces.open_guest(at)?;
    let mut interface = ContainerInterface { guest, index, mac: None, detects_duplicates: false };
    let change =
        LinkChange { name: Some(at.ifname.as_str()), alias: Some(&alias), up: Some(true), ..LinkChange::default() };
    match interface.set(&change) {
        Err(error) if error.errno() == Some(libc::EEXIST) => {
            namespaces.refuse_existing_interface(at)?;
            Err(error)
        }
        outcome => outcome.map(|()| interface),
    }
}

/// Deletes the link in the container.
fn delete(namespaces: &Namespaces, index: LinkIndex) -> Result<()> {
    namespaces.in_guest(|| Ok(Netlink::open()?.delete_link(index)?))
}
