//! `cnitool test`: proves on temporary containers that networks work, and explains what does not.

mod apart;
mod cause;
mod explain;
mod flow;
mod load;
mod probes;
mod rate;
mod report;
mod scene;
mod session;
mod trace;

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use cni::inspect::{LeaseHolder, Owner};
use cni::{Code, Context, Error, Result};
use linux::Netns;
use linux::ip::Cidr;
use linux::netlink::Netlink;
use serde_json::{Map, Value, json};

use crate::chain::Chain;
use crate::conf::{self, NetworkList, Plugin};
use crate::lock::Lock;
use crate::node::{Network, Node};
use crate::privilege::require_capabilities;
use crate::table::Paint;
use crate::{out, settings, table};
use probes::{Probes, Published};
use report::{Outcome, Report};
use scene::Scene;
use session::{Member, Session, Signals};

/// The capability of plugins that publish ports.
const PORTS: &str = "portMappings";
/// Plugins that give the same device to each container: a second one would get none.
const SINGLE: [&str; 1] = ["host-device"];

/// What to test, and how.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `None` for all networks.
    pub(crate) network: Option<String>,
    /// The address that stands for everything outside of this host; `None` for the next hop of the default route.
    pub(crate) outside: Option<IpAddr>,
    /// Attaches this number of containers instead of probing two.
    pub(crate) count: Option<usize>,
    /// The number of containers that are attached at the same time; `None` for one per processor.
    pub(crate) parallel: Option<usize>,
    pub(crate) json: bool,
}

/// Runs `cnitool test`. Returns false if a probe has failed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let lists = chosen(options.network.as_deref())?;
    require_capabilities()?;
    let signals = Signals::open()?;
    match session::clean_up(&signals) {
        Ok(0) => {}
        // What cannot be removed, for example because its plugins are gone, must not prevent other tests.
        Err(error) => out::print_error(&error),
        Ok(number) => out::warn(&format!("removed what {} left", table::count(number, "interrupted test"))),
    }
    let (mut healthy, mut answers) = (true, Vec::new());
    for list in &lists {
        let outcome = match options.count {
            Some(count) => load::run(list, &signals, options, count),
            None => test(list, &signals, options),
        };
        let (is_healthy, answer) = outcome.context(|| format!("test network {:?}", list.name.as_str()))?;
        healthy &= is_healthy;
        answers.push(answer);
    }
    if options.json {
        out::print_versioned(json!({ "healthy": healthy, "networks": answers }))?;
    }
    Ok(healthy)
}

/// Returns the network of this name, or all networks. Of several with the same name, the first one counts.
fn chosen(name: Option<&str>) -> Result<Vec<NetworkList>> {
    let dir = settings::configurations();
    if let Some(name) = name {
        let (list, broken) = conf::find(&dir, name)?;
        conf::warn_of_broken(&broken);
        return Ok(vec![list]);
    }
    let found = conf::all(&dir)?;
    conf::warn_of_broken(&found.broken);
    let mut lists: Vec<NetworkList> = Vec::new();
    for list in found.lists {
        if !lists.iter().any(|other| other.name == list.name) {
            lists.push(list);
        }
    }
    if lists.is_empty() {
        return Err(Error::new(Code::CONFIG, conf::why_empty(&dir)));
    }
    Ok(lists)
}

/// Probes a network. Returns whether all is well, and the answer in JSON.
fn test(list: &NetworkList, signals: &Signals, options: &Options) -> Result<(bool, Value)> {
    let began = Instant::now();
    if !options.json {
        let plugins: Vec<&str> = list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect();
        let title = format!("Network {}: {}", list.name.as_str(), plugins.join(", "));
        out::print(format!("{}\n", Paint::of_stdout().paint(table::Tone::Bold, &title)))?;
    }
    let mut report = Report::default();
    probe(list, signals, options, &mut report)?;
    if !options.json {
        out::print(report.text(Paint::of_stdout()) + &report.summary(began.elapsed()))?;
    }
    let healthy = report.failures() == 0;
    Ok((healthy, json!({ "network": list.name.as_str(), "healthy": healthy, "probes": report.json() })))
}

/// Attaches two containers, runs all probes, and removes everything.
fn probe(list: &NetworkList, signals: &Signals, options: &Options, report: &mut Report) -> Result<()> {
    let network = Network::read(list.clone());
    let chain = signals.chain(list)?;
    let mut capabilities = settings::capabilities()?.unwrap_or_default();
    let published = match capabilities.get(PORTS) {
        _ if !publishes(list) => None,
        Some(mappings) => Published::chosen(mappings),
        None => Some(Published { port: free_port()?, has_udp: true }),
    };
    let session = Session::begin(list, &capabilities)?;
    let mut scene = Scene {
        home: Netns::current()?,
        host: Netlink::open()?,
        members: Vec::new(),
        bridge: network.bridge.clone(),
        excluded: list.plugins.iter().find_map(excluded),
        table: session.name.replace('-', "_"),
    };
    // A port of this host can be published once.
    let mut others = capabilities.clone();
    others.remove(PORTS);
    if let Some(published) = published {
        capabilities.entry(PORTS).or_insert_with(|| published.mappings());
    }
    let attached = attach(list, &chain, &session, &mut scene, [capabilities, others], signals, report);
    let probed = attached.and_then(|attached| match attached {
        true => Probes {
            list,
            network: &network,
            chain: &chain,
            scene: &mut scene,
            report,
            signals,
            published,
            outside: options.outside,
            unreachable: Vec::new(),
        }
        .run(),
        false => Ok(()),
    });
    let is_complete = detach(&chain, &session, &mut scene, report)?;
    if is_complete {
        session.end()?;
    }
    probed.map_err(|error| with_what_is_left(error, is_complete))
}

/// Adds whether a test that has ended early has left anything.
fn with_what_is_left(error: Error, is_complete: bool) -> Error {
    error.details(if is_complete { "everything was removed" } else { "the next test removes what is left" })
}

/// Returns the networks to which a plugin does not masquerade; `None` if it masquerades nothing.
fn excluded(plugin: &Plugin) -> Option<Vec<Cidr>> {
    let networks = plugin.config.get("ipMasqExclude").and_then(Value::as_array).into_iter().flatten();
    let networks = networks.filter_map(|network| network.as_str()?.parse().ok()).collect();
    (plugin.config.get("ipMasq") == Some(&Value::Bool(true))).then_some(networks)
}

/// Attaches the containers. Returns whether all ADDs succeeded.
fn attach(
    list: &NetworkList,
    chain: &Chain<'_>,
    session: &Session,
    scene: &mut Scene,
    capabilities: [Map<String, Value>; 2],
    signals: &Signals,
    report: &mut Report,
) -> Result<bool> {
    let is_single = list.plugins.iter().any(|plugin| SINGLE.contains(&plugin.kind.as_str()));
    for (number, capabilities) in (1..).zip(capabilities).take(if is_single { 1 } else { 2 }) {
        signals.check()?;
        let title = format!("container {number}");
        let at = session.endpoint(number, capabilities)?;
        let lock = Lock::shared()?;
        let member = Member::attach(&scene.home, chain, at, title.clone());
        drop(lock);
        match member {
            Ok(member) => {
                let ips: Vec<String> = member.ips().iter().map(|ip| ip.address.to_string()).collect();
                let seen = if ips.is_empty() {
                    format!("{title}, without an address")
                } else {
                    format!("{title}: {}", ips.join(" "))
                };
                report.push("add", None, Outcome::Passed(seen), Some(member.added));
                scene.members.push(member);
            }
            Err(error) => {
                signals.check()?;
                let seen = format!("{title}: {}", out::one_line(&error));
                report.push("add", None, Outcome::Failed(seen, Vec::new()), None);
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Detaches all containers, twice, and reports what is left. Returns false if a DEL failed, which the next test
/// repeats.
fn detach(chain: &Chain<'_>, session: &Session, scene: &mut Scene, report: &mut Report) -> Result<bool> {
    let _lock = Lock::shared()?;
    let mut is_complete = true;
    for number in 0..scene.members.len() {
        let port = scene.host_side(number).ok().flatten();
        let Some(member) = scene.members.get_mut(number) else { break };
        let title = member.title.clone();
        let outcome = member.detach(chain).and_then(|time| {
            chain.del(&member.at).context(|| "again")?;
            let left = match member.interface()? {
                Some(link) => vec![format!("interface {} in the container", link.name)],
                None => Vec::new(),
            };
            Ok((time, left))
        });
        Netns::remove(&member.at.netns)?;
        let (outcome, time) = match outcome {
            Err(error) => {
                is_complete = false;
                (Outcome::Failed(format!("{title}: {}", out::one_line(&error)), Vec::new()), None)
            }
            Ok((time, mut left)) => {
                if let Some(port) = port
                    && scene.host.link(port.index)?.is_some_and(|link| link.name == port.name)
                {
                    left.push(format!("link {}", port.name));
                }
                match left.is_empty() {
                    true => (Outcome::Passed(title), Some(time)),
                    false => (Outcome::Failed(format!("{title}: left {}", left.join(", ")), Vec::new()), Some(time)),
                }
            }
        };
        report.push("del", None, outcome, time);
    }
    let left = left_of(&session.name)?;
    if is_complete && !left.is_empty() {
        report.push("del", None, Outcome::Failed(format!("left {}", left.join(", ")), Vec::new()), None);
    }
    Ok(is_complete)
}

/// Returns what exists of containers whose names begin with `prefix`: leases, objects and entries of the cache.
fn left_of(prefix: &str) -> Result<Vec<String>> {
    let node = Node::inspect()?;
    let leases = node.networks.iter().flat_map(|network| &network.leases);
    let leases = leases.filter(|lease| matches!(&lease.owner, LeaseHolder::Container(id, _) if id.starts_with(prefix)));
    let objects = node.objects.iter().filter(|object| {
        let is_owner = matches!(&object.owner, Owner::Container(id) if id.starts_with(prefix));
        is_owner || object.comment.contains(prefix) || object.about.contains(prefix)
    });
    let leases = leases.map(|lease| format!("the lease of {}", lease.ip));
    Ok(leases.chain(objects.map(|object| format!("{} {}", object.kind.noun, object.name))).collect())
}

/// Returns whether a plugin of the network publishes ports.
fn publishes(list: &NetworkList) -> bool {
    list.plugins
        .iter()
        .any(|plugin| plugin.config.get("capabilities").and_then(|all| all.get(PORTS)) == Some(&Value::Bool(true)))
}

/// Returns a port that no program of this host uses.
fn free_port() -> Result<u16> {
    let what = || "find a free port";
    for _ in 0..20 {
        let listener = TcpListener::bind(("0.0.0.0", 0)).context(what)?;
        let port = listener.local_addr().context(what)?.port();
        if UdpSocket::bind(("0.0.0.0", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::new(Code::TRY_LATER, "find a free port: all that were tried are in use"))
}

/// Returns the value at a percentile of sorted times.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}
