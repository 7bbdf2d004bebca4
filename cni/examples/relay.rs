//! Two small plugins in one program. They show how to write a plugin, and the tests of delegation use them.
//!
//! `relay` delegates to the plugin named by `ipam.type`, as `bridge` does, and returns an interface for its addresses.
//! `stock` is such a delegate: it returns what its configuration contains. If the program is copied under both names,
//! `stock` runs in the same process; if `stock` is another build, `relay` executes it.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use cni::{AddResult, Attachment, Call, Code, Delegate, Dns, Error, Interface, IpConfig, Plugin, Result, Route};
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    ipam: Ipam,
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

#[derive(Debug)]
struct Relay;

impl Relay {
    fn ipam<'a>(call: &'a Call<'a>) -> Result<Delegate<'a>> {
        Delegate::find(call, &call.parse::<Conf>()?.ipam.kind)
    }
}

impl Plugin for Relay {
    fn name(&self) -> &'static str {
        "relay"
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let result = Relay::ipam(call)?.add(at)?;
        let interface = Interface { name: at.ifname.to_string(), sandbox: at.sandbox(), ..Interface::default() };
        // Everything that was received, for the test: the result's version may not be able to express it.
        let dns = Dns { domain: format!("{result:?}"), ..Dns::default() };
        Ok(AddResult { interfaces: vec![interface], dns, ..result })
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
struct Stock;

impl Stock {
    fn stock(call: &Call<'_>) -> Result<Ipam> {
        let Conf { ipam } = call.parse()?;
        if let Some(why) = &ipam.panic {
            #[expect(clippy::panic, reason = "the test checks what the caller gets")]
            {
                panic!("{why}");
            }
        }
        match &ipam.refuse {
            Some(Refusal { code, msg, details }) => Err(Error::new(Code(*code), msg).details(details)),
            None => Ok(ipam),
        }
    }
}

impl Plugin for Stock {
    fn name(&self) -> &'static str {
        "stock"
    }

    fn add(&self, call: &Call<'_>, _at: &Attachment) -> Result<AddResult> {
        let Ipam { ips, routes, lease, .. } = Stock::stock(call)?;
        if let Some(path) = lease {
            File::create_new(path)?;
        }
        Ok(AddResult { ips, routes, ..AddResult::default() })
    }

    fn del(&self, call: &Call<'_>, _at: &Attachment) -> Result<()> {
        match Stock::stock(call)?.lease.map(fs::remove_file) {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Does nothing: the delegating plugin calls DEL if it gets no result.
    fn rollback_add(&self, _: &Call<'_>, _: &Attachment) -> Result<()> {
        Ok(())
    }

    fn check(&self, call: &Call<'_>, _at: &Attachment) -> Result<()> {
        Stock::stock(call).map(drop)
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        call.valid_attachments()?;
        Stock::stock(call).map(drop)
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        Stock::stock(call).map(drop)
    }
}

cni::main!(Relay, Stock);
