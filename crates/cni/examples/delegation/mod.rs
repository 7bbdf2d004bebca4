//! Three small plugins, each with its own program. They show how to write a plugin that delegates, and the tests of
//! delegation use them.
//!
//! - `stock` is a delegate, as `host-local` is. It returns what its configuration contains; its lease is a file.
//! - `relay` delegates to the plugin that `ipam.type` names, as `bridge` does, and returns an interface for the
//!   addresses.
//! - `preset` delegates with a generated configuration, as `flannel` does, and keeps that in a file until DEL.
//!
//! `preset` contains the other two, and `relay` contains `stock`. In one set they run in one process; a program of
//! another set is executed.
#![allow(dead_code, reason = "`stock` delegates to nothing, and `relay` not to `preset`")]

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use cni::{
    AddResult, Attachment, Call, Code, Delegate, Dns, Error, Interface, IpConfig, Plugin, Prepared, Result, Rollback,
    Route, Undo,
};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    ipam: Ipam,
    /// Makes `relay` fail after its delegate has succeeded.
    fail: Option<Refusal>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ipam {
    #[serde(rename = "type")]
    kind: String,
    ips: Vec<IpConfig>,
    routes: Vec<Route>,
    /// A file that stands for the lease: ADD creates it, DEL removes it.
    lease: Option<PathBuf>,
    refuse: Option<Refusal>,
    panic: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    code: u32,
    msg: String,
    #[serde(default)]
    details: String,
}

impl From<&Refusal> for Error {
    fn from(Refusal { code, msg, details }: &Refusal) -> Error {
        Error::new(Code(*code), msg).details(details)
    }
}

#[derive(Debug)]
pub(crate) struct Stock;

impl Stock {
    fn read(call: &Call<'_>) -> Result<Ipam> {
        let Conf { ipam, .. } = call.parse()?;
        if let Some(why) = &ipam.panic {
            #[expect(clippy::panic, reason = "the test checks what the caller gets")]
            {
                panic!("{why}");
            }
        }
        match &ipam.refuse {
            Some(refusal) => Err(refusal.into()),
            None => Ok(ipam),
        }
    }
}

/// The validated ADD of `stock`.
#[derive(Debug)]
struct PreparedStock<'a> {
    ipam: Ipam,
    args: &'a str,
}

impl<'a> PreparedStock<'a> {
    fn read(call: &'a Call<'_>) -> Result<PreparedStock<'a>> {
        Ok(PreparedStock { ipam: Stock::read(call)?, args: call.args })
    }
}

impl Prepared for PreparedStock<'_> {
    fn add(&self, _at: &Attachment) -> Result<AddResult> {
        let Ipam { ips, routes, lease, .. } = &self.ipam;
        if let Some(path) = lease {
            File::create_new(path)?;
        }
        let dns = Dns { domain: self.args.to_owned(), ..Dns::default() };
        Ok(AddResult { ips: ips.clone(), routes: routes.clone(), dns, ..AddResult::default() })
    }
}

impl Plugin for Stock {
    fn name(&self) -> &'static str {
        "stock"
    }

    fn prepare<'a>(&self, call: &'a Call<'a>, _at: &Attachment) -> Result<Option<Box<dyn Prepared + 'a>>> {
        Ok(Some(Box::new(PreparedStock::read(call)?)))
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        PreparedStock::read(call)?.add(at)
    }

    fn del(&self, call: &Call<'_>, _at: &Attachment) -> Result<()> {
        Stock::read(call)?.lease.as_deref().map_or(Ok(()), remove)
    }

    /// The rollback does nothing: the delegating plugin calls DEL if it gets no result.
    fn add_with_rollback<'a>(&'a self, call: &'a Call<'_>, at: &'a Attachment) -> Result<(AddResult, Rollback<'a>)> {
        Ok((self.add(call, at)?, Box::new(|| Ok(()))))
    }

    fn check(&self, call: &Call<'_>, _at: &Attachment) -> Result<()> {
        Stock::read(call).map(drop)
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        call.valid_attachments()?;
        Stock::read(call).map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        Stock::read(call).map(drop)
    }
}

#[derive(Debug)]
pub(crate) struct Relay;

impl Relay {
    fn ipam<'a>(call: &'a Call<'a>) -> Result<Delegate<'a>> {
        Delegate::find(call, &call.parse::<Conf>()?.ipam.kind)
    }
}

/// The validated ADD of `relay`.
#[derive(Debug)]
struct PreparedRelay<'a> {
    ipam: Delegate<'a>,
    fail: Option<Refusal>,
}

impl<'a> PreparedRelay<'a> {
    fn read(call: &'a Call<'a>, at: &Attachment) -> Result<PreparedRelay<'a>> {
        let Conf { ipam, fail } = call.parse()?;
        let mut ipam = Delegate::find(call, &ipam.kind)?;
        ipam.prepare(at)?;
        Ok(PreparedRelay { ipam, fail })
    }
}

impl Prepared for PreparedRelay<'_> {
    fn add(&self, at: &Attachment) -> Result<AddResult> {
        let mut undo = Undo::new(());
        undo.push("release the addresses", |()| self.ipam.del(at));
        let result = self.ipam.add(at).map_err(|failure| failure.without_del(&mut undo))?;
        if let Some(refusal) = &self.fail {
            return Err(refusal.into());
        }
        undo.commit();
        let interface = Interface { name: at.ifname.to_string(), sandbox: at.sandbox(), ..Interface::default() };
        // Everything that was received, for the test: the result's version may not be able to express it.
        let dns = Dns { domain: format!("{result:?}"), ..Dns::default() };
        Ok(AddResult { interfaces: vec![interface], dns, ..result })
    }
}

impl Plugin for Relay {
    fn name(&self) -> &'static str {
        "relay"
    }

    fn prepare<'a>(&self, call: &'a Call<'a>, at: &Attachment) -> Result<Option<Box<dyn Prepared + 'a>>> {
        Ok(Some(Box::new(PreparedRelay::read(call, at)?)))
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        PreparedRelay::read(call, at)?.add(at)
    }

    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        Relay::ipam(call)?.del(at)
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        Relay::ipam(call)?.check(at)
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        Relay::ipam(call)?.gc()
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        Relay::ipam(call)?.status()
    }
}

#[derive(Debug)]
pub(crate) struct Preset;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PresetConf {
    delegate: Map<String, Value>,
    state_file: PathBuf,
}

impl Preset {
    /// Generates the delegate's configuration: the keys of `delegate`, and of the others those that it lacks.
    fn generate(call: &Call<'_>) -> Result<String> {
        let PresetConf { delegate, .. } = call.parse()?;
        let mut config: Map<String, Value> = call.parse()?;
        config.extend(delegate);
        Ok(Value::Object(config).to_string())
    }

    /// Returns the file that keeps the configuration of ADD for CHECK and DEL.
    fn state_file(call: &Call<'_>) -> Result<PathBuf> {
        Ok(call.parse::<PresetConf>()?.state_file)
    }

    /// Runs `run` with a delegate that has this configuration.
    fn with_delegate<T>(call: &Call<'_>, config: &str, run: impl FnOnce(Delegate<'_>) -> Result<T>) -> Result<T> {
        #[derive(Deserialize)]
        struct Conf {
            #[serde(rename = "type")]
            kind: String,
        }
        let call = call.with_config(config)?;
        let Conf { kind } = call.parse()?;
        run(Delegate::find(&call, &kind)?)
    }
}

impl Plugin for Preset {
    fn name(&self) -> &'static str {
        "preset"
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let config = Preset::generate(call)?;
        let state = Preset::state_file(call)?;
        Preset::with_delegate(call, &config, |mut delegate| {
            delegate.prepare(at)?;
            let mut undo = Undo::new(());
            undo.push("remove the state file", |()| remove(&state));
            fs::write(&state, &config)?;
            undo.push("detach", |()| delegate.del(at));
            let result = delegate.add(at).map_err(|failure| failure.without_del(&mut undo))?;
            undo.commit();
            Ok(result)
        })
    }

    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let state = Preset::state_file(call)?;
        let config = match fs::read_to_string(&state) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            config => config?,
        };
        Preset::with_delegate(call, &config, |delegate| delegate.del(at))?;
        remove(&state)
    }

    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = fs::read_to_string(Preset::state_file(call)?)?;
        Preset::with_delegate(call, &config, |delegate| delegate.check(at))
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        Preset::with_delegate(call, &Preset::generate(call)?, |delegate| delegate.gc())
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        Preset::with_delegate(call, &Preset::generate(call)?, |delegate| delegate.status())
    }
}

/// Removes a file, if it exists.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
