//! Calls the plugins of a network one after the other, as the specification requires of a runtime.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cni::inspect::{Generated, Inspect, LockHolder, Object, Owner};
use cni::{
    AddResult, Attachment, Call, Code, ContainerId, Context, Error, ErrorCollector, IfName, IpConfig, Keep, Program,
    Result, Version, json,
};
use linux::Netns;
use linux::ip::Cidr;
use linux::netlink::Netlink;
use linux::sha2::sha512;
use serde_json::{Map, Value};

use crate::cache::{Cache, Entry};
use crate::conf::{ExtraKey, NetworkList, Plugin};
use crate::node::{called_plugins, inspect, lease_store, misplaced};
use crate::progress;
use cni::nearest;

/// The container side of an attachment, and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) container: ContainerId,
    pub(crate) ifname: IfName,
    pub(crate) netns: PathBuf,
    /// `CNI_ARGS`
    pub(crate) args: Vec<(String, String)>,
    /// The arguments for plugins that declare the capability.
    pub(crate) capabilities: Map<String, Value>,
}

impl Endpoint {
    /// Returns the endpoint of a cached attachment, with the arguments of its add.
    pub(crate) fn of_entry(entry: &Entry) -> Result<Endpoint> {
        Ok(Endpoint {
            container: ContainerId::parse(OsStr::new(&entry.container))?,
            ifname: IfName::parse(OsStr::new(&entry.ifname))?,
            netns: entry.netns.clone().unwrap_or_default(),
            args: entry.args.clone(),
            capabilities: entry.capabilities.clone(),
        })
    }
}

/// Returns the id that the reference's tool gives to the container at the absolute path `netns`.
pub(crate) fn container_id(netns: &Path) -> Result<ContainerId> {
    ContainerId::parse(format!("cnitool-{}", sha512(20, &netns.to_string_lossy())).as_ref())
}

/// A plugin of a network, and its program.
#[derive(Debug)]
struct Link<'a> {
    plugin: &'a Plugin,
    program: Program,
}

/// A network whose plugins have all been located.
#[derive(Debug)]
pub(crate) struct Chain<'a> {
    list: &'a NetworkList,
    links: Vec<Link<'a>>,
    /// `CNI_PATH`
    path: OsString,
    cache: Cache,
}

impl<'a> Chain<'a> {
    /// Locates all plugins before any is called, so that nothing changes if one is missing.
    pub(crate) fn find(list: &'a NetworkList, dirs: &[PathBuf]) -> Result<Chain<'a>> {
        let links = list.plugins.iter().map(|plugin| Ok(Link { plugin, program: find_program(dirs, &plugin.kind)? }));
        let path = env::join_paths(dirs).map_err(|error| Error::new(Code::ENVIRONMENT, error.to_string()))?;
        let links = links.collect::<Result<_>>().context(|| list.path.display().to_string())?;
        Ok(Chain { list, links, path, cache: Cache::of_host() })
    }

    /// Lets no call run for long after `requests` has become readable.
    pub(crate) fn interrupt_on(mut self, requests: &Arc<OwnedFd>) -> Chain<'a> {
        self.links.iter_mut().for_each(|link| link.program.interrupt_on(requests));
        self
    }

    /// Calls ADD of all plugins. Rolls back if a plugin or the cache fails, which the specification leaves to runtimes.
    pub(crate) fn add(&self, at: &Endpoint) -> Result<AddResult> {
        self.add_and_deliver(at, |_| Ok(()))
    }

    /// Calls ADD of all plugins, and rolls back also if `deliver` fails.
    pub(crate) fn add_and_deliver(
        &self,
        at: &Endpoint,
        deliver: impl FnOnce(&AddResult) -> Result<()>,
    ) -> Result<AddResult> {
        let netns = Netns::open(&at.netns)?;
        let mut netlink = netns.run(&Netns::current()?, Netlink::open)?;
        // An existing interface belongs to an earlier ADD, which a rollback by DEL would undo.
        let existed_before = netlink.link(at.ifname.as_str())?.is_some();
        // Fails if the entry is unreadable or describes another attachment, because the ADD would overwrite it.
        self.cached(at)?;
        let mut previous = Vec::new();
        let mut result = AddResult::default();
        for (i, link) in self.links.iter().enumerate() {
            let step = self.add_one(link, at, &previous).and_then(|answer| {
                let value = self.list.print(&answer)?;
                if i + 1 == self.links.len() {
                    self.cache.store(&self.entry(at, value.clone()))?;
                }
                Ok((answer, value))
            });
            match step {
                Ok((answer, value)) => (result, previous) = (answer, vec![("prevResult", value)]),
                Err(error) => return Err(self.undo(at, i, existed_before, error)),
            }
        }
        deliver(&result).map_err(|error| self.undo(at, self.links.len().saturating_sub(1), existed_before, error))?;
        Ok(result)
    }

    fn add_one(&self, link: &Link<'_>, at: &Endpoint, previous: &[ExtraKey]) -> Result<AddResult> {
        let config = self.request(link.plugin, Some(at), previous)?;
        let answer =
            self.report_wait("ADD", link, || link.program.add(&self.variables(Some(at)), &config, self.list.version));
        answer.map_err(with_code).context(|| format!("plugin {:?}", link.plugin.kind))
    }

    /// Calls a command that has no result.
    fn run(&self, command: &str, link: &Link<'_>, at: Option<&Endpoint>, extra: &[ExtraKey]) -> Result<()> {
        let config = self.request(link.plugin, at, extra)?;
        let call = || link.program.run(command, &self.variables(at), &config);
        // STATUS answers soon, and doctor calls it too.
        let answer = if command == "STATUS" { call() } else { self.report_wait(command, link, call) };
        answer.map_err(with_code).context(|| format!("plugin {:?}", link.plugin.kind))
    }

    /// Calls a plugin. If that takes long, reports what is waited for.
    fn report_wait<T>(&self, command: &str, link: &Link<'_>, call: impl FnOnce() -> T) -> T {
        let (list, kind) = (self.list, &link.plugin.kind);
        let what = || {
            let held = lease_store(list).and_then(|(store, directory)| store.lock_holder(&directory));
            let held = held.map(|LockHolder { file, pid, program }| {
                format!(": process {pid} ({program}) holds the lock {}", file.display())
            });
            format!("waiting for {command} of plugin {kind:?}{}", held.unwrap_or_default())
        };
        progress::report(what, call)
    }

    /// Calls DEL of a plugin after `error`.
    fn roll_back(&self, link: &Link<'_>, at: &Endpoint, error: &Error) -> Result<()> {
        let config = self.request(link.plugin, Some(at), &[])?;
        let context = format!("plugin {:?}", link.plugin.kind);
        let error = error.to_string();
        let message = error.strip_prefix(&format!("{context}: ")).unwrap_or(&error);
        let answer =
            self.report_wait("DEL", link, || link.program.roll_back(&self.variables(Some(at)), &config, message));
        answer.map_err(with_code).context(|| context)
    }

    /// Rolls back after `error`: calls DEL of the plugins from `last` back to the first. Adds failed DELs to the error.
    fn undo(&self, at: &Endpoint, last: usize, existed_before: bool, error: Error) -> Error {
        if existed_before {
            return error.details(format!("no rollback, because interface {:?} existed before", at.ifname.as_str()));
        }
        let done = self.links.get(..=last).unwrap_or_default();
        let mut failures: Vec<Error> =
            done.iter().rev().filter_map(|link| self.roll_back(link, at, &error).err()).collect();
        if failures.is_empty() {
            // Removes an entry of an attachment that ended without a DEL, for example by a reboot.
            failures.extend(self.remove_from_cache(at).err());
        }
        // A plugin that refuses an ADD refuses its DEL with the same text. It left nothing, and the text is reported.
        failures.retain(|why| why.to_string() != error.to_string());
        failures.into_iter().fold(error, |error, why| error.details(format!("not undone: {why}")))
    }

    /// Calls DEL of all plugins in reverse order. Stops at the first error and keeps the cache entry, so that the DEL
    /// can be repeated.
    pub(crate) fn del(&self, at: &Endpoint) -> Result<()> {
        let previous = if self.list.version >= Version::V0_4_0 { self.previous(at)? } else { Vec::new() };
        for link in self.links.iter().rev() {
            self.run("DEL", link, Some(at), &previous)?;
        }
        self.remove_from_cache(at)
    }

    /// Calls DEL of the plugins that create objects of this kind, for an object that names only its container. The
    /// previous result has nothing but the object's address, by which a plugin recognises the object.
    pub(crate) fn del_object(&self, object: &Object) -> Result<()> {
        let (Owner::Container(container), Some(ip)) = (&object.owner, object.address) else { return Ok(()) };
        let at = Endpoint {
            container: ContainerId::parse(container.as_ref())?,
            // Of an attachment that is gone.
            ifname: IfName::parse("eth0".as_ref())?,
            netns: PathBuf::new(),
            args: Vec::new(),
            capabilities: Map::new(),
        };
        let ip = IpConfig { address: Cidr::host(ip), gateway: None, interface: None };
        let result = AddResult { ips: vec![ip], ..AddResult::default() };
        let previous = [("prevResult", self.list.print(&result)?)];
        let creates =
            |link: &&Link<'_>| inspect(&link.plugin.kind).is_some_and(|plugin| plugin.kinds().contains(object.kind));
        self.links.iter().filter(creates).try_for_each(|link| self.run("DEL", link, Some(&at), &previous))
    }

    /// Calls CHECK of all plugins.
    pub(crate) fn check(&self, at: &Endpoint) -> Result<()> {
        self.check_each(at, |link, previous| self.run("CHECK", link, Some(at), previous)).map_err(|(_, error)| error)
    }

    /// Calls CHECK of the plugins that `is_asked` selects, with a shorter deadline for each: a report on many
    /// attachments cannot wait for long. Returns the plugin that failed with its error.
    pub(crate) fn check_soon(
        &self,
        at: &Endpoint,
        is_asked: impl Fn(&str) -> bool,
    ) -> Result<(), (Option<&'a Plugin>, Error)> {
        self.check_each(at, |link, previous| {
            if !is_asked(&link.plugin.kind) {
                return Ok(());
            }
            let config = self.request(link.plugin, Some(at), previous)?;
            let answer = link.program.check_soon(&self.variables(Some(at)), &config);
            answer.map_err(with_code).context(|| format!("plugin {:?}", link.plugin.kind))
        })
    }

    /// Calls `check` for each plugin with the previous result, unless the version has no CHECK or the network disables
    /// it. Returns the plugin that failed with its error.
    fn check_each(
        &self,
        at: &Endpoint,
        check: impl Fn(&Link<'_>, &[ExtraKey]) -> Result<()>,
    ) -> Result<(), (Option<&'a Plugin>, Error)> {
        let previous = self.prepare_check(at).map_err(|error| (None, error))?;
        for link in self.links.iter().filter(|_| !self.list.disable_check) {
            check(link, &previous).map_err(|error| (Some(link.plugin), error))?;
        }
        Ok(())
    }

    /// Returns what CHECK gets of the ADD.
    fn prepare_check(&self, at: &Endpoint) -> Result<Vec<ExtraKey>> {
        if self.list.version < Version::V0_4_0 {
            let what = format!("cniVersion {} of the network does not have the command CHECK", self.list.version);
            return Err(Error::new(Code::VERSION, what).details("CHECK needs cniVersion 0.4.0 or newer"));
        }
        if self.list.disable_check {
            return Ok(Vec::new());
        }
        Netns::open(&at.netns)?;
        if self.cached(at)?.is_none() {
            let error = Error::new(Code::UNKNOWN_CONTAINER, "nothing was added there");
            return Err(error.details("the cache has no entry for it"));
        }
        self.previous(at)
    }

    /// Returns whether [`repair`](Chain::repair) restores something that this plugin misses.
    pub(crate) fn needs_repair(&self, at: &Endpoint, of: &Plugin) -> Result<bool> {
        let mut needs_repair = false;
        self.inspect_each(at, |plugin, call, attachment| {
            needs_repair |= plugin.name() == of.kind && plugin.needs_repair(call, attachment)?;
            Ok(())
        })?;
        Ok(needs_repair)
    }

    /// Restores what plugins find missing of an attachment. Returns what was missing.
    pub(crate) fn repair(&self, at: &Endpoint) -> Result<Vec<&'static str>> {
        let mut restored = Vec::new();
        self.inspect_each(at, |plugin, call, attachment| {
            restored.extend(plugin.repair(call, attachment)?);
            Ok(())
        })?;
        Ok(restored)
    }

    /// Calls `function` for each plugin of cni0, with what CHECK gets.
    fn inspect_each(
        &self,
        at: &Endpoint,
        mut function: impl FnMut(&dyn Inspect, &Call<'_>, &Attachment) -> Result<()>,
    ) -> Result<()> {
        let previous = self.previous(at)?;
        let attachment =
            Attachment { container: at.container.clone(), ifname: at.ifname.clone(), netns: Some(at.netns.clone()) };
        for link in &self.links {
            let Some(plugin) = inspect(&link.plugin.kind) else { continue };
            let config = self.request(link.plugin, Some(at), &previous)?;
            let config = String::from_utf8_lossy(&config);
            function(plugin, &Call::for_config(&config)?, &attachment)?;
        }
        Ok(())
    }

    /// Removes what is left of attachments that are gone, and continues after errors. The plugins of cni0 remove what
    /// `keep` does not keep, whichever implementation created it. Other plugins get a DEL for each of the attachments
    /// `gone`, unless `is_alive` returns true for it now.
    pub(crate) fn collect(
        &self,
        keep: &Keep<'_>,
        gone: &[Endpoint],
        is_alive: &dyn Fn(&Endpoint) -> bool,
    ) -> Result<()> {
        let mut failures = ErrorCollector::default();
        for link in self.links.iter().rev() {
            let is_ours = inspect(&link.plugin.kind).is_some();
            let kind = &link.plugin.kind;
            let config = String::from_utf8_lossy(&self.request(link.plugin, None, &[])?).into_owned();
            // A mistake in the configuration hides the delegates, but must not prevent the rest.
            let listed = Generated { kind: kind.clone(), config: config.clone(), is_complete: true };
            let called = called_plugins(kind, config).unwrap_or_else(|_| vec![listed]);
            // A delegate precedes its caller, and an address must be released last.
            for called in called.into_iter().rev() {
                if let Some(plugin) = inspect(&called.kind) {
                    failures.record(Call::for_config(&called.config).and_then(|call| plugin.collect(&call, keep)));
                } else if is_ours || called.kind == *kind {
                    // A plugin of another project calls its delegates itself.
                    for at in gone.iter().filter(|at| !is_alive(at)) {
                        failures.record(self.del_one(&called.kind, link, at));
                    }
                }
            }
        }
        for at in gone.iter().filter(|at| !is_alive(at)) {
            failures.record(self.remove_from_cache(at));
        }
        failures.into_result()
    }

    /// Calls DEL of the plugin of a link, or of its delegate.
    fn del_one(&self, kind: &str, link: &Link<'_>, at: &Endpoint) -> Result<()> {
        let previous = self.previous(at)?;
        if kind == link.plugin.kind {
            return self.run("DEL", link, Some(at), &previous);
        }
        let program = find_program(&env::split_paths(&self.path).collect::<Vec<_>>(), kind)?;
        self.run("DEL", &Link { plugin: link.plugin, program }, Some(at), &previous)
    }

    /// Calls STATUS of all plugins. Returns false if the version is before 1.1.0, which does not have STATUS. Fails in
    /// any version if every ADD fails because of the order of the list.
    pub(crate) fn status(&self) -> Result<bool> {
        if let Some((first, error)) = misplaced(self.list) {
            return Err(with_code(error)).context(|| format!("plugin {:?}", first.kind));
        }
        if self.list.version < Version::V1_1_0 {
            return Ok(false);
        }
        self.links.iter().try_for_each(|link| self.run("STATUS", link, None, &[])).map(|()| true)
    }

    /// Calls STATUS of the plugins that `is_asked` selects as if the network had version 1.1.0, for a network of an
    /// earlier version, which does not have STATUS.
    pub(crate) fn status_in_newer_version(&self, is_asked: impl Fn(&str) -> bool) -> Result<()> {
        let version = [newer_version()];
        let mut asked = self.links.iter().filter(|link| is_asked(&link.plugin.kind));
        asked.try_for_each(|link| self.run("STATUS", link, None, &version))
    }

    fn remove_from_cache(&self, at: &Endpoint) -> Result<()> {
        self.cache.remove(self.list.name.as_str(), at.container.as_str(), at.ifname.as_str())
    }

    fn cached(&self, at: &Endpoint) -> Result<Option<Entry>> {
        self.cache.load(self.list.name.as_str(), at.container.as_str(), at.ifname.as_str())
    }

    /// Returns the cached result in the network's version, if there is one, as `prevResult`.
    fn previous(&self, at: &Endpoint) -> Result<Vec<ExtraKey>> {
        let Some(result) = self.cached(at)?.and_then(|entry| entry.result) else { return Ok(Vec::new()) };
        let previous = self.list.prev_result(&result).context(|| {
            let path = self.cache.path(self.list.name.as_str(), at.container.as_str(), at.ifname.as_str());
            format!("read the result in the cache entry {}", path.display())
        })?;
        Ok(vec![previous])
    }

    fn entry(&self, at: &Endpoint, result: Value) -> Entry {
        Entry {
            network: self.list.name.to_string(),
            container: at.container.to_string(),
            ifname: at.ifname.to_string(),
            netns: Some(at.netns.clone()),
            args: at.args.clone(),
            capabilities: at.capabilities.clone(),
            config: self.list.text.clone().into_bytes(),
            result: Some(result),
        }
    }

    /// Returns the configuration for a call of a plugin.
    fn request(&self, plugin: &Plugin, at: Option<&Endpoint>, extra: &[ExtraKey]) -> Result<Vec<u8>> {
        let none = Map::new();
        json::compact(&self.list.request(plugin, at.map_or(&none, |at| &at.capabilities), extra))
    }

    /// Returns the variables for a plugin. Those that do not apply are empty, so that the plugin does not inherit them
    /// from the environment of `cnitool`.
    fn variables(&self, at: Option<&Endpoint>) -> Vec<(&'static str, OsString)> {
        let args: Vec<String> =
            at.iter().flat_map(|at| &at.args).map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            ("CNI_CONTAINERID", at.map_or_else(OsString::new, |at| at.container.as_str().into())),
            ("CNI_NETNS", at.map_or_else(OsString::new, |at| at.netns.clone().into())),
            ("CNI_IFNAME", at.map_or_else(OsString::new, |at| at.ifname.as_str().into())),
            ("CNI_ARGS", args.join(";").into()),
            ("CNI_PATH", self.path.clone()),
        ]
    }
}

/// Locates a plugin. The error names a plugin with a similar name.
fn find_program(dirs: &[PathBuf], name: &str) -> Result<Program> {
    Program::find(dirs, name).map_err(|error| {
        let files = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        let names: Vec<String> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        // A file of the same name is not executable, which the error says.
        match nearest(name, names.iter().map(String::as_str)).filter(|near| *near != name) {
            Some(near) => error.details(format!("did you mean {near:?}?")),
            None => error,
        }
    })
}

/// Returns the key for a command that the version of a network does not have.
fn newer_version() -> ExtraKey {
    ("cniVersion", Value::from(Version::V1_1_0.as_str()))
}

/// Adds the code of a plugin's error to its details.
fn with_code(error: Error) -> Error {
    let code = error.code().0;
    error.details(format!("code {code}"))
}
