//! Two small plugins in one program, which show how plugins are written and serve the tests of delegation.
//!
//! `relay` asks the plugin that `ipam.type` names for addresses, as `bridge` does, and answers with an interface for
//! them. `stock` is such a plugin: it gives what its configuration says. Copied under both names, the call stays in
//! the process; `relay` executes another build of `stock`.
#![no_main]

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
        // All that was received, for a test to see: the answer's version may not show it.
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
    fn stock(call: &Call<'_>) -> Result<AddResult> {
        let Conf { ipam } = call.parse()?;
        if let Some(why) = ipam.panic {
            #[expect(clippy::panic, reason = "to see what a caller gets then")]
            {
                panic!("{why}");
            }
        }
        match ipam.refuse {
            Some(Refusal { code, msg, details }) => Err(Error::new(Code(code), msg).details(details)),
            None => Ok(AddResult { ips: ipam.ips, routes: ipam.routes, ..AddResult::default() }),
        }
    }
}

impl Plugin for Stock {
    fn name(&self) -> &'static str {
        "stock"
    }

    fn add(&self, call: &Call<'_>, _at: &Attachment) -> Result<AddResult> {
        Stock::stock(call)
    }

    fn del(&self, call: &Call<'_>, _at: &Attachment) -> Result<()> {
        Stock::stock(call).map(drop)
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
