//! `cnitool prune` and `cnitool gc`: remove what attachments that are gone have left.
//!
//! The command GC removes everything that is not in its list of valid attachments. Other runtimes attach containers at
//! any time, so no list is complete. Therefore this removes what belongs to attachments that are proved to be gone, by
//! name, and looks at each of them again at the moment of the removal.

mod cached;
mod liveness;
mod report;

use cni::inspect::{Lease, LeaseHolder, Object, Owner};
use cni::{Code, Context, Error, ErrorCollector, Gone, Keep, Result, Suspect, ValidAttachment, key};

use crate::cache::{Cache, Entry};
use crate::chain::{Chain, Endpoint};
use crate::conf::{self, NetworkList};
use crate::lock::Lock;
use crate::node::{Attachment, Network, Node, State, require_host};
use crate::privilege::require_capabilities;
use crate::settings;
use crate::table::Paint;
pub(crate) use cached::list_of;
use liveness::Liveness;
use report::Report;

/// Attempts to remove everything. A runtime that attaches and detaches a container meanwhile can leave it half removed
/// for a moment.
const ATTEMPTS: u32 = 3;

/// What to remove from one network, and what to keep.
#[derive(Debug, Default)]
struct PrunePlan {
    /// Attachments whose namespace is gone.
    dead: Vec<Attachment>,
    /// Leases without an owner.
    empty: Vec<Lease>,
    /// What plugins have created for an attachment that is not in `keep`.
    objects: Vec<Object>,
    keep: Vec<Attachment>,
}

/// Something that is removed.
struct PrunedItem<'a> {
    /// What it is, as a noun.
    kind: &'static str,
    what: String,
    /// The attachment that it belongs to, if that is known.
    owner: Option<&'a Attachment>,
    /// The container that it names itself.
    container: Option<&'a str>,
    why: &'static str,
}

impl PrunedItem<'_> {
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
    let name = network.name.as_str();
    match &network.list {
        Some(list) if list.disable_gc => Ok(Some(disables_gc())),
        Some(list) => carry_out(|| plan_of(name), |plan| execute(list, plan), dry_run, report).map(|()| None),
        None => {
            let (plan, obstacle) = cached::keep_removable(plan_of(name)?, name)?;
            if plan.is_empty() {
                return Ok(Some(obstacle.unwrap_or_else(|| without_configuration(network))));
            }
            let plan = || Ok(cached::keep_removable(plan_of(name)?, name)?.0);
            carry_out(plan, |plan| cached::execute(name, plan), dry_run, report).map(|()| None)
        }
    }
}

fn disables_gc() -> Error {
    Error::new(Code::CONFIG, "its configuration has \"disableGC\"")
}

/// Removes what `plan_of` finds by `execute`, until nothing is left.
fn carry_out(
    plan_of: impl Fn() -> Result<PrunePlan>,
    execute: impl Fn(&PrunePlan) -> Result<()>,
    dry_run: bool,
    report: &mut Report,
) -> Result<()> {
    let plan = plan_of()?;
    report.plan(&plan, dry_run)?;
    if dry_run || plan.is_empty() {
        return Ok(());
    }
    // The lock is taken after the output, so that a slow reader of the output does not delay an add.
    let _lock = Lock::exclusive()?;
    let announced = plan.dead.len();
    // Other runtimes do not use the lock. What the first inspection found had its port before the second one looked for
    // it.
    let plan = plan_of()?.confirmed_by(&plan);
    if plan.dead.len() < announced {
        report.spared(&plan, announced - plan.dead.len())?;
    }
    let mut left = plan;
    for _ in 0..ATTEMPTS {
        if left.is_empty() {
            return Ok(());
        }
        execute(&left)?;
        left = plan_of()?.confirmed_by(&left);
    }
    if left.is_empty() {
        return Ok(());
    }
    let what = format!("the plugins left {}", left.describe().join(", "));
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
fn plan_of(network: &str) -> Result<PrunePlan> {
    let node = Node::inspect()?;
    let network = node.networks.iter().find(|found| found.name == network);
    Ok(network.map_or_else(PrunePlan::default, |network| plan(&node, network)))
}

/// Returns what to remove from the network, and what to keep.
fn plan(node: &Node, network: &Network) -> PrunePlan {
    let attachments = node.attachments(network);
    let mut objects = node.left_objects(network, &attachments);
    let (dead, keep): (Vec<_>, Vec<_>) = attachments.into_iter().partition(|at| at.state == State::Gone);
    // The owner of an object may be known by nothing else.
    let is_used = |object: &Object| object.address.is_some_and(|ip| node.is_used(ip));
    objects.retain(|object| dead.iter().any(|at| at.owns(object)) || !is_used(object));
    let is_left = |object: &&Object| matches!(&object.owner, Owner::Port(port) if network.creates(object.kind) && node.link(port).is_none());
    objects.extend(node.objects.iter().filter(is_left));
    let empty = network.leases.iter().filter(|lease| lease.owner == LeaseHolder::Garbled);
    PrunePlan { dead, empty: empty.cloned().collect(), objects: objects.into_iter().cloned().collect(), keep }
}

impl PrunePlan {
    fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.empty.is_empty() && self.objects.is_empty()
    }

    /// Returns the plan reduced to what `earlier` removes as well; keeps the rest.
    fn confirmed_by(self, earlier: &PrunePlan) -> PrunePlan {
        let was_dead = |at: &Attachment| {
            earlier.dead.iter().any(|other| (&other.container, &other.ifname) == (&at.container, &at.ifname))
        };
        let (dead, new): (Vec<_>, Vec<_>) = self.dead.into_iter().partition(was_dead);
        let mut objects = self.objects;
        objects.retain(|object| earlier.objects.contains(object) && !new.iter().any(|at| at.owns(object)));
        let mut empty = self.empty;
        empty.retain(|lease| earlier.empty.contains(lease));
        PrunePlan { dead, empty, objects, keep: self.keep.into_iter().chain(new).collect() }
    }

    /// Returns everything that is removed.
    fn removals(&self) -> Vec<PrunedItem<'_>> {
        let mut removals = Vec::new();
        for at in &self.dead {
            let mut push =
                |kind, what| removals.push(PrunedItem { kind, what, owner: Some(at), container: None, why: at.why });
            at.leases.iter().for_each(|lease| push("lease", lease.ip.to_string()));
            if at.cached {
                push("result", "in the cache".to_owned());
            }
        }
        for lease in &self.empty {
            let why = "it is empty or garbled";
            removals.push(PrunedItem { kind: "lease", what: lease.ip.to_string(), owner: None, container: None, why });
        }
        for object in &self.objects {
            let owner = self.dead.iter().find(|at| at.owns(object));
            let (container, why) = match &object.owner {
                Owner::Marked(_) => (None, "its container is gone"),
                Owner::Port(_) => (None, "its link is gone"),
                Owner::Container(id) => (Some(id.as_str()), "its container is gone"),
            };
            removals.push(PrunedItem { kind: object.kind.noun, what: object.name.clone(), owner, container, why });
        }
        removals
    }

    /// Returns the number of attachments that are kept, by state.
    fn kept(&self) -> [(State, usize); 3] {
        let count = |state| self.keep.iter().filter(|at| at.state == state).count();
        [State::Alive, State::NoPort, State::Unknown].map(|state| (state, count(state)))
    }

    /// Describes everything that is removed.
    fn describe(&self) -> Vec<String> {
        let dead = self.dead.iter().map(|at| format!("container {:?}", at.container));
        let empty = self.empty.iter().map(|lease| format!("the lease of {}", lease.ip));
        let objects = self.objects.iter().map(|object| format!("the {} {:?}", object.kind.noun, object.comment));
        dead.chain(empty).chain(objects).collect()
    }
}

/// Runs `cnitool gc`. Unlike `prune`, keeps all attachments in the cache.
pub(crate) fn collect(list: &NetworkList) -> Result<()> {
    // Stop if an entry cannot be read: it may be that of a live container.
    Cache::of_host().of_network(list.name.as_str())?;
    let _lock = Lock::exclusive()?;
    let plan = plan_of(list.name.as_str())?;
    let (cached, dead): (Vec<_>, Vec<_>) = plan.dead.into_iter().partition(|at| at.cached);
    let mut plan = PrunePlan { dead, keep: plan.keep.into_iter().chain(cached).collect(), ..plan };
    plan.objects.retain(|object| !plan.keep.iter().any(|at| at.owns(object)));
    if plan.is_empty() { Ok(()) } else { execute(list, &plan) }
}

/// Removes everything in the plan whose attachment is still gone.
fn execute(list: &NetworkList, plan: &PrunePlan) -> Result<()> {
    let network = list.name.as_str();
    let chain = Chain::find(list, &settings::plugins())?;
    // Stop if an entry cannot be read: it may be that of a live container.
    let cached = Cache::of_host().of_network(network)?;
    let endpoint = |at: &Attachment| {
        let without_arguments = Entry {
            network: network.to_owned(),
            container: at.container.clone(),
            // An old record has no interface name.
            ifname: at.ifname.clone().unwrap_or_else(|| "eth0".to_owned()),
            ..Entry::default()
        };
        Endpoint::of_entry(cached.iter().find(|entry| entry.is_same(&without_arguments)).unwrap_or(&without_arguments))
    };
    let gone = plan.dead.iter().map(endpoint).collect::<Result<Vec<_>>>()?;
    let valid = |container: &str, ifname: Option<&str>| ValidAttachment {
        container: container.to_owned(),
        ifname: ifname.unwrap_or_default().to_owned(),
    };
    let mut attachments: Vec<_> = plan.dead.iter().map(|at| valid(&at.container, at.ifname.as_deref())).collect();
    let marks = plan.objects.iter().filter_map(|object| match &object.owner {
        Owner::Marked(mark) => Some(mark.as_str()),
        Owner::Port(_) | Owner::Container(_) => None,
    });
    let mut digests = Vec::new();
    for mark in marks {
        match key::container_in_iptables_comment(network, mark) {
            Some(container) => attachments.push(valid(container, None)),
            None => digests.extend(key::digest_in(mark).map(str::to_owned)),
        }
    }
    let kept: Vec<_> = plan.keep.iter().map(|at| valid(&at.container, at.ifname.as_deref())).collect();
    let leases: Vec<_> =
        plan.dead.iter().flat_map(|at| &at.leases).chain(&plan.empty).map(|l| (l.ip, l.since)).collect();
    let liveness = Liveness { network, dead: &plan.dead };
    let is_alive = |suspect: Suspect<'_>| liveness.is_alive(suspect);
    let keep = Keep::all_but(
        network,
        Gone { attachments: &attachments, digests: &digests, kept: &kept, leases: &leases, is_alive: &is_alive },
    );
    let mut failures = ErrorCollector::default();
    failures.record(chain.collect(&keep, &gone, &|at| liveness.has(at)));
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
