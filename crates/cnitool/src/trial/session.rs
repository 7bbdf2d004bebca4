//! The temporary containers of a test: named, recorded before they are attached, and removed in any case.
//!
//! A session locks a file with the configuration that it tests. The kernel releases the lock when the session ends in
//! any way, so that the next one recognises what a killed one has left, and removes it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::{AddResult, Code, ContainerId, Context, Error, ErrorCollector, IfName, IpConfig, Result};
use fs2::FileExt;
use linux::event::EndRequests;
use linux::ip::Cidr;
use linux::netlink::{Change, Link, LinkChange, Netlink};
use linux::{Deadline, Netns, random};
use serde_json::{Map, Value};

use crate::cache::{Cache, Entry};
use crate::chain::{Chain, Endpoint};
use crate::conf::{self, NetworkList};
use crate::lock::Lock;
use crate::settings;

/// The directory of the locked files.
const RECORDS: &str = "/run/cni0/test";
/// The directory of namespaces, where `ip netns` finds them.
const NAMESPACES: &str = "/run/netns";
/// The beginning of the names of namespaces, containers and files.
const PREFIX: &str = "cnitool-test-";

/// The signals that ask this process to end. They give the call of a plugin some seconds to complete.
#[derive(Debug)]
pub(super) struct Signals {
    requests: EndRequests,
    /// The same, for calls of plugins.
    shared: Arc<OwnedFd>,
}

impl Signals {
    pub(super) fn open() -> Result<Signals> {
        let what = || "block signals";
        let requests = EndRequests::open().context(what)?;
        let shared = Arc::new(requests.as_fd().try_clone_to_owned().context(what)?);
        Ok(Signals { requests, shared })
    }

    /// Locates the plugins of a network, whose calls a signal ends.
    pub(super) fn chain<'a>(&self, list: &'a NetworkList) -> Result<Chain<'a>> {
        Ok(Chain::find(list, &settings::plugins())?.interrupt_on(&self.shared))
    }

    /// Fails if a signal has arrived.
    pub(super) fn check(&self) -> Result<()> {
        match Deadline::after(Duration::ZERO).readable(self.requests.as_fd()).context(|| "look for signals")? {
            true => Err(Error::new(Code::INTERNAL, "interrupted by a signal")),
            false => Ok(()),
        }
    }
}

/// The temporary containers of one network.
#[derive(Debug)]
pub(super) struct Session {
    /// The beginning of the names of its containers.
    pub(super) name: String,
    record: PathBuf,
    _lock: File,
}

impl Session {
    /// Records a session before it creates anything.
    pub(super) fn begin(list: &NetworkList, capabilities: &Map<String, Value>) -> Result<Session> {
        let number = u32::from_ne_bytes(random().context(|| "choose a name for the test")?);
        let name = format!("{PREFIX}{number:08x}");
        let record = Path::new(RECORDS).join(&name);
        let what = || format!("write {}", record.display());
        for dir in [Path::new(RECORDS), Path::new(NAMESPACES)] {
            let mode = if dir == Path::new(RECORDS) { 0o700 } else { 0o755 };
            DirBuilder::new().recursive(true).mode(mode).create(dir).context(|| format!("create {}", dir.display()))?;
        }
        let entry = Entry {
            network: list.name.to_string(),
            container: name.clone(),
            ifname: settings::ifname()?.as_str().to_owned(),
            capabilities: capabilities.clone(),
            config: list.text.clone().into_bytes(),
            ..Entry::default()
        };
        // Under its final name, it is locked and complete.
        let draft = record.with_file_name(format!(".{name}"));
        let lock = File::create_new(&draft).context(what)?;
        FileExt::try_lock_exclusive(&lock).context(what)?;
        fs::write(&draft, entry.print()?).and_then(|()| fs::rename(&draft, &record)).context(what)?;
        Ok(Session { name, record, _lock: lock })
    }

    /// Returns the endpoint of a container.
    pub(super) fn endpoint(&self, number: usize, capabilities: Map<String, Value>) -> Result<Endpoint> {
        endpoint(&format!("{}-{number}", self.name), settings::ifname()?, capabilities)
    }

    /// Forgets the session, after everything was removed.
    pub(super) fn end(self) -> Result<()> {
        fs::remove_file(&self.record).context(|| format!("remove {}", self.record.display()))
    }
}

fn endpoint(name: &str, ifname: IfName, capabilities: Map<String, Value>) -> Result<Endpoint> {
    Ok(Endpoint {
        container: ContainerId::parse(name.as_ref())?,
        ifname,
        netns: Path::new(NAMESPACES).join(name),
        args: settings::args()?.unwrap_or_default(),
        capabilities,
    })
}

/// Removes what killed sessions have left. Returns their number.
pub(super) fn clean_up(signals: &Signals) -> Result<usize> {
    let mut failures = ErrorCollector::default();
    let mut cleaned = 0;
    for name in names_in(Path::new(RECORDS), PREFIX)? {
        let record = Path::new(RECORDS).join(&name);
        let what = || format!("remove what the interrupted test {name} has left");
        match File::open(&record) {
            // Its session has just ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => failures.record(Err(error).context(what)),
            // Its session is running.
            Ok(lock) if FileExt::try_lock_exclusive(&lock).is_err() => {}
            Ok(_lock) => {
                failures.record(clean_up_after(&name, &record, signals).context(what));
                cleaned += 1;
            }
        }
    }
    failures.into_result().map(|()| cleaned)
}

fn clean_up_after(name: &str, record: &Path, signals: &Signals) -> Result<()> {
    let text = fs::read_to_string(record).context(|| format!("read {}", record.display()))?;
    let entry =
        Entry::parse(&text).map_err(|why| Error::new(Code::IO, format!("{} is corrupt: {why}", record.display())))?;
    let list = conf::from_cache(record, &entry.config)?;
    let chain = signals.chain(&list)?;
    let ifname = IfName::parse(entry.ifname.as_ref())?;
    let _lock = Lock::shared()?;
    let mut failures = ErrorCollector::default();
    for container in names_in(Path::new(NAMESPACES), &format!("{name}-"))? {
        let at = endpoint(&container, ifname.clone(), entry.capabilities.clone())?;
        failures.record(chain.del(&at).and_then(|()| Ok(Netns::remove(&at.netns)?)));
    }
    // An attachment whose namespace was removed, but not the rest.
    let cached = Cache::of_host().of_network(&entry.network)?;
    for left in cached.iter().filter(|left| left.container.starts_with(&format!("{name}-"))) {
        failures.record(endpoint(&left.container, ifname.clone(), Map::new()).and_then(|at| chain.del(&at)));
    }
    failures.into_result()?;
    fs::remove_file(record).context(|| format!("remove {}", record.display()))
}

/// Returns the names in a directory that begin with `prefix`; none if there is no such directory.
fn names_in(dir: &Path, prefix: &str) -> Result<Vec<String>> {
    let what = || format!("read {}", dir.display());
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.context(what)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.context(what)?.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// An attached container.
#[derive(Debug)]
pub(super) struct Member {
    /// `container 1`
    pub(super) title: String,
    pub(super) at: Endpoint,
    pub(super) netns: Netns,
    pub(super) inside: Netlink,
    pub(super) result: AddResult,
    /// How long the ADD took.
    pub(super) added: Duration,
}

impl Member {
    /// Creates a namespace with `lo`, and attaches it. Removes the namespace if that fails.
    pub(super) fn attach(home: &Netns, chain: &Chain<'_>, at: Endpoint, title: String) -> Result<Member> {
        let member = Member::create(home, chain, &at, title);
        if member.is_err() {
            Netns::remove(&at.netns)?;
        }
        member
    }

    fn create(home: &Netns, chain: &Chain<'_>, at: &Endpoint, title: String) -> Result<Member> {
        let netns = Netns::create(&at.netns)?;
        let mut inside = netns.run(home, Netlink::open)?;
        // As the plugin `loopback` does for each container.
        inside.apply(&[Change::set_link("lo", &LinkChange { up: Some(true), ..LinkChange::default() })])?;
        let began = Instant::now();
        let result = chain.add(at)?;
        Ok(Member { title, at: at.clone(), netns, inside, result, added: began.elapsed() })
    }

    /// Returns the addresses of the interface, those of the preferred family first.
    pub(super) fn ips(&self) -> &[IpConfig] {
        &self.result.ips
    }

    /// Returns the address of the family of `like`.
    pub(super) fn ip_like(&self, like: Cidr) -> Option<Cidr> {
        let mut ips = self.ips().iter().map(|ip| ip.address);
        ips.find(|address| address.ip().is_ipv4() == like.ip().is_ipv4())
    }

    /// Returns the interface.
    pub(super) fn interface(&mut self) -> Result<Option<Link>> {
        Ok(self.inside.link(self.at.ifname.as_str())?)
    }

    /// Returns the end of the interface on the host; `None` if it has none.
    pub(super) fn host_side(&mut self, host: &mut Netlink) -> Result<Option<Link>> {
        let Some(interface) = self.interface()?.filter(|link| link.kind == "veth") else { return Ok(None) };
        let Some(lower) = interface.lower else { return Ok(None) };
        Ok(host.link(lower)?.filter(|link| link.kind == "veth"))
    }

    /// Detaches the container twice, as a runtime may, and removes its namespace. Returns how long the first DEL took.
    pub(super) fn detach(&self, chain: &Chain<'_>) -> Result<Duration> {
        let began = Instant::now();
        chain.del(&self.at)?;
        Ok(began.elapsed())
    }
}
