//! For tools: lists limits, reports those that are missing or left over, and restores them.

use cni::inspect::{
    Command, Finding, Fix, Id, Inspect, NetworkView, Object, ObjectKind, Owner, Property, Settings, Shape, Subject,
};
use cni::key::AliasOwner;
use cni::{Attachment, AttachmentKey, Call, Context, Keep, Result};
use linux::log::debug;
use linux::netlink::{Link, Netlink, QdiscPlace, TokenBucket};

use crate::add::{FIX_HINT, is_unsupported};
use crate::config::{self, Config};
use crate::ifb::{IFB, sources};
use crate::limits::Limits;
use crate::{Bandwidth, check, removal, status};

/// The kind of objects that the plugin creates.
static KINDS: [ObjectKind; 1] = [ObjectKind {
    name: "bandwidth",
    noun: "bandwidth limit",
    flag: "limited",
    json: "bandwidthLimits",
    is_listed: true,
}];

impl Inspect for Bandwidth {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn ignored_keys(&self) -> &'static [&'static str] {
        &[
            "shapedSubnets",
            "unshapedSubnets",
            "runtimeConfig.bandwidth.shapedSubnets",
            "runtimeConfig.bandwidth.unshapedSubnets",
        ]
    }

    fn is_chained(&self) -> bool {
        true
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        Config::parse(call).map(|_| Settings::default())
    }

    fn kinds(&self) -> &'static [ObjectKind] {
        &KINDS
    }

    /// Lists the ifb links and the limited host veths with an alias. Those of the reference have no known owner.
    fn objects(&self) -> Result<Vec<Object>> {
        let mut host = Netlink::open()?;
        let mut objects = Vec::new();
        for (kind, direction) in [("veth", "ingress"), (IFB, "egress")] {
            for link in host.links_of_kind(kind)? {
                let limit = host.qdisc(link.index, QdiscPlace::Root)?.and_then(|qdisc| qdisc.token_bucket());
                // An ifb link without a limit is left of an ADD that was killed.
                if limit.is_some() || kind == IFB {
                    objects.extend(object(&link, direction, limit));
                }
            }
        }
        Ok(objects)
    }

    fn collect(&self, call: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        removal::collect(call, keep)
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        let config = Config::parse(network.call)?;
        let left = left_by_reference(&mut Netlink::open()?)?;
        // The limits of the network itself are a matter of STATUS.
        let unsupported = if config.is_empty() { unsupported_limits(network.call) } else { None };
        Ok(missing_limits(network).into_iter().chain(left).chain(unsupported).collect())
    }

    fn needs_repair(&self, call: &Call<'_>, at: &Attachment) -> Result<bool> {
        let config = Config::parse(call)?;
        let Some(result) = call.prev_result()? else { return Ok(false) };
        let found = Limits::find(call, at, &config, &result)?;
        Ok(found.is_some_and(|(limits, mut host)| check::run(&limits, &mut host).is_err()))
    }

    /// Sets the limits of an attachment again if CHECK finds a difference.
    fn repair(&self, call: &Call<'_>, at: &Attachment) -> Result<Option<&'static str>> {
        let restored = restore(call, at).context(|| "limit the bandwidth again")?;
        Ok(restored.then_some("bandwidth limits"))
    }
}

/// Returns a limited link as an object; `None` if its alias does not name an attachment.
fn object(link: &Link, direction: &'static str, limit: Option<TokenBucket>) -> Option<Object> {
    let AliasOwner { network, attachment } = AliasOwner::parse(&link.alias)?;
    let (container, ifname) = attachment?;
    let (rate, burst) = limit.map_or((0, 0), |limit| (limit.rate.saturating_mul(8), u64::from(limit.burst) * 8));
    Some(Object {
        kind: &KINDS[0],
        owner: Owner::Marked(AttachmentKey { network: &network, container: &container, ifname: &ifname }.mark()),
        backend: "tc",
        address: None,
        name: link.name.clone(),
        detail: match limit {
            Some(_) => format!("{direction} {rate} bit/s, burst {burst} bit by {}", link.name),
            None => format!("{direction} unlimited by {}", link.name),
        },
        properties: vec![
            ("direction", Property::Text(direction.to_owned())),
            ("link", Property::Text(link.name.clone())),
            ("rate", Property::Number(rate)),
            ("burst", Property::Number(burst)),
        ],
        comment: link.alias.clone(),
        about: format!("{network}, if: {ifname}, id: {container}"),
    })
}

/// Reports live attachments whose limits CHECK misses. One that cannot be compared is a matter of CHECK.
fn missing_limits(network: &NetworkView<'_>) -> Option<Finding> {
    let (mut count, mut differences, mut affected) = (0, Vec::new(), Vec::new());
    for at in network.alive {
        let Some(added) = &at.added else { continue };
        let compared = added.with_call(|call, at| {
            let config = Config::parse(call)?;
            count += usize::from(!config.is_empty());
            let found = Limits::find(call, at, &config, &call.chained_result()?)?;
            Ok(found.and_then(|(limits, mut host)| check::run(&limits, &mut host).err()))
        });
        match compared {
            Ok(Some(difference)) => {
                differences.push(difference);
                affected.push(at.subject.clone());
            }
            Ok(None) => {}
            Err(error) => debug!("the limits of {} are unknown: {error}", added.attachment.container),
        }
    }
    let Some(first) = differences.first() else {
        return (count > 0)
            .then(|| Finding::ok(KINDS[0].name, Id("bandwidth-complete"), "live containers have their limits"));
    };
    let what = format!("{} of {count} live containers lack their limits: {first}", differences.len());
    let remedy = "something changed the host's traffic control; `cnitool repair` restores it";
    Some(Finding::warn(KINDS[0].name, Id("bandwidth-missing"), what).remedy(remedy).about(affected).fix(Fix::Repair))
}

/// Reports a kernel that cannot set the limits of a runtime.
fn unsupported_limits(call: &Call<'_>) -> Option<Finding> {
    let error = status::try_both(call).err().filter(is_unsupported)?;
    Some(
        Finding::warn(
            KINDS[0].name,
            Id("bandwidth-unsupported"),
            format!("a container with limits cannot be attached: {error}"),
        )
        .remedy(FIX_HINT),
    )
}

/// Reports ifb links with names of the reference that no veth uses. They do not name their network, so GC cannot remove
/// them.
fn left_by_reference(host: &mut Netlink) -> Result<Option<Finding>> {
    let mut left = host.links_of_kind(IFB)?;
    left.retain(|link| link.alias.is_empty() && link.name.len() == 15 && link.name.starts_with("bwp"));
    let used: Vec<_> = match left.is_empty() {
        true => Vec::new(),
        false => sources(host, None, &left.iter().map(|link| link.index).collect::<Vec<_>>())?,
    };
    left.retain(|link| !used.iter().any(|source| source.redirect.to == Some(link.index)));
    let Some(first) = left.first() else { return Ok(None) };
    let what = match left.len() {
        1 => format!("1 ifb link of the reference that no container uses: {}", first.name),
        count => format!("{count} ifb links of the reference that no container uses, such as {}", first.name),
    };
    let commands = left.iter().map(|link| Command::DeleteLink.line(&[&link.name]));
    let subjects = left.iter().map(|link| Subject::link(&link.name));
    Ok(Some(Finding::warn(KINDS[0].name, Id("bandwidth-unused-link"), what).about(subjects).run(commands)))
}

/// Sets the limits of an attachment. Returns `false` if there is nothing to restore.
fn restore(call: &Call<'_>, at: &Attachment) -> Result<bool> {
    let config = Config::parse(call)?;
    let Some(result) = call.prev_result()? else { return Ok(false) };
    let Some((limits, mut host)) = Limits::find(call, at, &config, &result)? else { return Ok(false) };
    match check::run(&limits, &mut host) {
        Ok(()) => Ok(false),
        Err(difference) => {
            debug!("limit again: {difference}");
            limits.set(host).map(|_| true)
        }
    }
}
