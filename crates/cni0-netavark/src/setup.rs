//! `setup` and `teardown`.

use std::ffi::OsStr;
use std::path::Path;

use cni::{AddResult, Attachment, ContainerId, Context, ErrorCollector, IfName, Result, json};
use serde_json::{Value, json};

use crate::input::Input;
use crate::list;
use crate::shared::SharedBridge;

/// Attaches a container, and passes its status to `deliver`. If that fails, nothing is left.
pub(crate) fn set_up(netns: &Path, text: &str, deliver: &dyn Fn(Value) -> Result<()>) -> Result<()> {
    let (input, at) = read(netns, text)?;
    let network = input.network.key()?;
    let list = list::to_add(&input, network.as_str())?;
    let bridge = SharedBridge::of(&input.network)?;
    let in_use = bridge.start_use()?;
    let added = list.add(at.clone(), &|result| {
        in_use.mark()?;
        deliver(status(&at, result))
    });
    added.map_err(|error| match in_use.abandon() {
        Ok(()) => error,
        Err(left) => error.details(format!("not undone: {left}")),
    })
}

/// Detaches a container. Succeeds if nothing is left of it.
pub(crate) fn tear_down(netns: &Path, text: &str) -> Result<()> {
    let (input, at) = read(netns, text)?;
    let network = input.network.key()?;
    let (list, known) = list::to_del(&input, network.as_str());
    let mut failures = ErrorCollector::default();
    failures.record(list.del(at, &known));
    failures.record(SharedBridge::of(&input.network).and_then(|bridge| bridge.remove_if_unused()));
    failures.into_result()
}

fn read(netns: &Path, text: &str) -> Result<(Input, Attachment)> {
    let input: Input = json::parse(text).context(|| "read stdin")?;
    let at = Attachment {
        container: ContainerId::parse(OsStr::new(&input.container_id))?,
        ifname: IfName::parse(OsStr::new(&input.container.interface_name))?,
        netns: Some(netns.to_owned()),
    };
    Ok((input, at))
}

/// Returns the status of a container as netavark prints it.
fn status(at: &Attachment, result: &AddResult) -> Value {
    let is_own = |name: &str, sandbox: &str| name == at.ifname.as_str() && !sandbox.is_empty();
    let own = result.interfaces.iter().find(|interface| is_own(&interface.name, &interface.sandbox));
    let subnets: Vec<Value> = result.ips.iter().map(|ip| json!({"ipnet": ip.address, "gateway": ip.gateway})).collect();
    let interface = json!({"mac_address": own.map_or("", |interface| &interface.mac), "subnets": subnets});
    json!({"dns_search_domains": [], "dns_server_ips": [], "interfaces": {at.ifname.as_str(): interface}})
}
