//! `cnitool prune`: lets the plugins of a network remove attachments whose namespace is gone.
//!
//! GC removes everything that is not in its list of valid attachments. So the list has all attachments that are alive or
//! whose state is unknown. If a live attachment cannot be named in the list, prune does nothing.

mod report;

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::inspect::{LeaseHolder, Object, Owner};
use cni::{AttachmentKey, Code, Context, Error, ErrorCollector, Result};

use crate::cache::{Cache, Entry};
use crate::chain::{Chain, Endpoint};
use crate::conf::{self, NetworkList};
use crate::lock::Lock;
use crate::node::{Attachment, Network, Node, State, owner, require_host};
use crate::privilege::require_capabilities;
use crate::settings;
use crate::table::Paint;
use report::Report;

/// What to remove from one network, and what to keep.
#[derive(Debug, Default)]
struct Plan {
    /// Attachments whose namespace is gone.
    dead: Vec<Attachment>,
    /// Leases without an owner.
    empty: Vec<IpAddr>,
    /// What plugins have created for an attachment that is not in `keep`.
    objects: Vec<Object>,
    keep: Vec<Attachment>,
}

/// Something that is removed.
struct Removal<'a> {
    /// What it is, as a noun.
    kind: &'static str,
    what: String,
    /// The attachment that it belongs to, if that is known.
    owner: Option<&'a Attachment>,
    /// The container that it names itself.
    container: Option<&'a str>,
    why: &'static str,
}

impl Removal<'_> {
    fn container(&self) -> Option<&str> {
        self.owner.map(|at| at.container.as_str()).or(self.container)
    }

    fn ifname(&self) -> Option<&str> {
        self.owner.and_then(|at| at.ifname.as_deref())
    }
}

/// Prunes a network, or all networks that have a configuration.
pub(crate) fn run(network: Option<&str>, dry_run: bool, force: bool, as_json: bool) -> Result<()> {
    if !dry_run {
        require_capabilities()?;
    }
    let refusal = if force { None } else { require_host().err() };
    if let (false, Some(error)) = (dry_run, &refusal) {
        return Err(error.clone());
    }
    let node = Node::inspect()?;
    let mut report = if as_json { Report::Json(Vec::new()) } else { Report::Text(Paint::of_stdout()) };
    let mut failures = ErrorCollector::default();
    let chosen = node.chosen(network)?;
    conf::warn_of_broken(&node.broken);
    for (at, one) in chosen.iter().enumerate() {
        report.begin(&one.name, at == 0)?;
        let pruned = prune(one, dry_run, &mut report).and_then(|skipped| match skipped {
            None => Ok(()),
            // A network named on the command line must be pruned; otherwise it may be skipped.
            Some(why) if network.is_some() => Err(why),
            Some(why) => report.skipped(&why),
        });
        if let Err(error) = &pruned {
            report.failed(error);
        }
        failures.record(pruned.context(|| format!("prune network {:?}", one.name)));
    }
    report.end(&node, dry_run, refusal.as_ref())?;
    failures.into_result()
}

/// Prunes a network, or returns why it is skipped.
fn prune(network: &Network, dry_run: bool, report: &mut Report) -> Result<Option<Error>> {
    let Some(list) = &network.list else { return Ok(Some(without_configuration(network))) };
    if list.disable_gc {
        return Ok(Some(Error::new(Code::CONFIG, "its configuration has \"disableGC\"")));
    }
    let plan = plan_of(list)?;
    report.plan(&plan, dry_run)?;
    // Without anything to remove, GC could only remove what another runtime is creating.
    if dry_run || plan.is_empty() {
        return Ok(None);
    }
    // The lock is taken after the output, so that a slow reader of the output does not delay an add.
    let _lock = Lock::exclusive()?;
    let announced = plan.dead.len();
    // Other runtimes do not use the lock. The second inspection keeps what they have created since the first.
    let plan = plan_of(list)?.confirmed_by(&plan);
    if plan.dead.len() < announced {
        report.spared(&plan, announced - plan.dead.len())?;
    }
    if plan.is_empty() {
        return Ok(None);
    }
    execute(list, &plan)?;
    let left = plan.left(&Node::inspect()?, list.name.as_str());
    if left.is_empty() {
        return Ok(None);
    }
    let what = format!("the plugins left {}", left.join(", "));
    Err(Error::new(Code::INTERNAL, what).details("remove it by hand: a plugin without GC, or another one, created it"))
}

fn without_configuration(network: &Network) -> Error {
    let error = Error::new(Code::CONFIG, "it has no configuration, so its plugins are unknown");
    match &network.store {
        Some((_, directory)) => error.details(format!("its leases are in {}", directory.display())),
        None => error,
    }
}

/// Inspects the node and returns what to remove from the network.
fn plan_of(list: &NetworkList) -> Result<Plan> {
    let node = Node::inspect()?;
    let network = node.chosen(Some(list.name.as_str()))?.into_iter().next();
    network.map_or_else(|| Ok(Plan::default()), |network| plan(&node, network))
}

/// Returns what to remove from the network, and what to keep. Fails if GC could remove something that is in use.
fn plan(node: &Node, network: &Network) -> Result<Plan> {
    let attachments = node.attachments(network);
    let mut objects = node.left_objects(network, &attachments);
    let (dead, keep): (Vec<_>, Vec<_>) = attachments.into_iter().partition(|at| at.state == State::Gone);
    let unnamed = |what: String| {
        let error =
            Error::new(Code::INTERNAL, format!("{what} is in use, and the full ID of its container is unknown"));
        Err(error.details("GC would remove it, so nothing was done: remove leftovers by hand"))
    };
    for link in &node.links {
        if owner(link).is_some_and(|owner| owner.network == network.name && owner.attachment.is_none()) {
            let is_its = |at: &Attachment| {
                let ifname = at.ifname.as_deref().unwrap_or_default();
                let key = AttachmentKey { network: &network.name, container: &at.container, ifname };
                key.aliases().contains(&link.alias)
            };
            if !keep.iter().any(is_its) {
                return unnamed(format!("port {}", link.name));
            }
        }
    }
    for object in objects.iter().filter(|object| !dead.iter().any(|at| at.owns(object))) {
        if let Some(ip) = object.address.filter(|ip| node.is_used(*ip)) {
            return unnamed(format!("the address {ip} of a {}", object.kind.noun));
        }
    }
    let is_left = |object: &&Object| matches!(&object.owner, Owner::Port(port) if network.creates(object.kind) && node.link(port).is_none());
    objects.extend(node.objects.iter().filter(is_left));
    let empty = network.leases.iter().filter(|lease| lease.owner == LeaseHolder::Garbled);
    let empty = empty.map(|lease| lease.ip).collect();
    Ok(Plan { dead, empty, objects: objects.into_iter().cloned().collect(), keep })
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.empty.is_empty() && self.objects.is_empty()
    }

    /// Returns the plan reduced to what `earlier` removes as well; keeps the rest.
    fn confirmed_by(self, earlier: &Plan) -> Plan {
        let was_dead = |at: &Attachment| {
            earlier.dead.iter().any(|other| (&other.container, &other.ifname) == (&at.container, &at.ifname))
        };
        let (dead, new): (Vec<_>, Vec<_>) = self.dead.into_iter().partition(was_dead);
        let mut objects = self.objects;
        objects.retain(|object| earlier.objects.contains(object) && !new.iter().any(|at| at.owns(object)));
        let mut empty = self.empty;
        empty.retain(|ip| earlier.empty.contains(ip));
        Plan { dead, empty, objects, keep: self.keep.into_iter().chain(new).collect() }
    }

    /// Returns everything that is removed.
    fn removals(&self) -> Vec<Removal<'_>> {
        let mut removals = Vec::new();
        for at in &self.dead {
            let mut push =
                |kind, what| removals.push(Removal { kind, what, owner: Some(at), container: None, why: at.why });
            at.leases.iter().for_each(|lease| push("lease", lease.ip.to_string()));
            if at.cached {
                push("result", "in the cache".to_owned());
            }
        }
        for ip in &self.empty {
            let why = "it is empty or garbled";
            removals.push(Removal { kind: "lease", what: ip.to_string(), owner: None, container: None, why });
        }
        for object in &self.objects {
            let owner = self.dead.iter().find(|at| at.owns(object));
            let (container, why) = match &object.owner {
                Owner::Marked(_) => (None, "its container is gone"),
                Owner::Port(_) => (None, "its link is gone"),
                Owner::Container(id) => (Some(id.as_str()), "its container is gone"),
            };
            removals.push(Removal { kind: object.kind.noun, what: object.name.clone(), owner, container, why });
        }
        removals
    }

    /// Returns the number of attachments that are kept, by state.
    fn kept(&self) -> [(State, usize); 3] {
        let count = |state| self.keep.iter().filter(|at| at.state == state).count();
        [State::Alive, State::NoPort, State::Unknown].map(|state| (state, count(state)))
    }

    /// Returns the attachments in `dead` that still exist.
    fn still_existing(&self, node: &Node, network: &str) -> Vec<&Attachment> {
        let networks = node.networks.iter().filter(|one| one.name == network);
        let there: BTreeSet<(String, Option<String>)> =
            networks.flat_map(|one| node.attachments(one)).map(|at| (at.container, at.ifname)).collect();
        self.dead.iter().filter(|at| there.contains(&(at.container.clone(), at.ifname.clone()))).collect()
    }

    /// Describes everything that should have been removed and still exists.
    fn left(&self, node: &Node, network: &str) -> Vec<String> {
        let dead = self.still_existing(node, network).into_iter().map(|at| format!("container {:?}", at.container));
        let objects = self.objects.iter().filter(|object| node.objects.contains(object));
        dead.chain(objects.map(|object| format!("the {} {:?}", object.kind.noun, object.comment))).collect()
    }
}

/// Returns all attachments of the network that are alive or whose state is unknown.
pub(crate) fn live_attachments(list: &NetworkList) -> Result<Vec<Entry>> {
    Ok(plan_of(list)?.keep.iter().map(|at| entry(list, at)).collect())
}

/// Converts an attachment to an entry for the list of valid attachments.
fn entry(list: &NetworkList, at: &Attachment) -> Entry {
    Entry {
        network: list.name.to_string(),
        container: at.container.clone(),
        // An old record has no interface name, and host-local keeps it for any interface of the container.
        ifname: at.ifname.clone().unwrap_or_else(|| "eth0".to_owned()),
        ..Entry::default()
    }
}

/// Calls GC, then DEL for what still exists: not all plugins have GC, and it cannot remove objects that do not name their
/// network.
fn execute(list: &NetworkList, plan: &Plan) -> Result<()> {
    let chain = Chain::find(list, &settings::plugins())?;
    let mut valid: Vec<Entry> = plan.keep.iter().map(|at| entry(list, at)).collect();
    // Keep what another runtime has added since the inspection.
    let dead: Vec<Entry> = plan.dead.iter().map(|at| entry(list, at)).collect();
    for new in Cache::of_host().of_network(list.name.as_str())? {
        if !dead.iter().chain(&valid).any(|known| known.is_same(&new)) {
            valid.push(new);
        }
    }
    // Stop if an entry cannot be read or a plugin fails.
    chain.gc(&valid)?;
    let mut failures = ErrorCollector::default();
    if !plan.dead.is_empty() {
        for at in plan.still_existing(&Node::inspect()?, list.name.as_str()) {
            failures.record(Endpoint::of_entry(&entry(list, at)).and_then(|at| chain.del(&at)));
        }
    }
    let mut nameless: Vec<&Object> = plan.objects.iter().collect();
    nameless.retain(|object| matches!(object.owner, Owner::Container(_)));
    nameless.dedup_by(|a, b| (&a.owner, a.address) == (&b.owner, b.address));
    if !nameless.is_empty() {
        let node = Node::inspect()?;
        for object in nameless.into_iter().filter(|object| node.objects.contains(object)) {
            failures.record(chain.del_object(object));
        }
    }
    failures.into_result()
}
