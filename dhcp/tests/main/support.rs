//! What the tests have in common.

use std::fs;

use serde_json::{Value, json};
use testing::config::with;
use testing::dhcp::{Reply, Request, Service};
use testing::{Pod, wait_until};

/// Returns a network of containers on the wire, with more keys for `ipam`.
pub(crate) fn lan(ipam: Value) -> Value {
    let ipam = with(json!({"type": "dhcp"}), ipam);
    json!({"cniVersion": "1.1.0", "name": "lan", "type": "macvlan", "master": "eth1", "ipam": ipam})
}

/// Returns the addresses in a result, without their prefixes.
pub(crate) fn addresses_of(result: &Value) -> Vec<String> {
    let address = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    result["ips"].as_array().unwrap().iter().map(address).collect()
}

/// Returns the only address in a result, without its prefix.
#[track_caller]
pub(crate) fn address(result: &Value) -> String {
    let [address] = &addresses_of(result)[..] else { panic!("{result}") };
    address.clone()
}

/// Returns the IPv4 addresses of a pod's interface.
pub(crate) fn addresses(pod: &Pod<'_>) -> Vec<String> {
    let links = pod.ip("-4 address show");
    let links = links.as_array().cloned().unwrap_or_default();
    let found = links.iter().filter(|link| link["ifname"] == "eth0");
    found
        .flat_map(|link| link["addr_info"].as_array().cloned().unwrap_or_default())
        .filter_map(|address| Some(address["local"].as_str()?.to_owned()))
        .collect()
}

/// Waits until a pod's interface has only this address, or none.
#[track_caller]
pub(crate) fn await_address(pod: &Pod<'_>, address: Option<&str>) {
    let want: Vec<String> = address.into_iter().map(str::to_owned).collect();
    wait_until(&format!("{want:?} on the interface"), || addresses(pod) == want);
}

/// Returns the recorded leases of the network.
pub(crate) fn recorded() -> Vec<Value> {
    let entries = fs::read_dir("/run/cni0/dhcp/lan").into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "json"));
    // The daemon may remove a file meanwhile.
    let found = paths.filter_map(|path| fs::read_to_string(path).ok());
    found.map(|text| serde_json::from_str(&text).unwrap()).collect()
}

/// Returns what a server does that gives each client an address of its own.
pub(crate) fn pool(times: [u32; 3]) -> impl FnMut(&Request) -> Vec<Reply> + Send + 'static {
    pool_for(move || times)
}

/// Returns such a server, whose leases have times that can change.
pub(crate) fn pool_for(
    mut times: impl FnMut() -> [u32; 3] + Send + 'static,
) -> impl FnMut(&Request) -> Vec<Reply> + Send + 'static {
    let mut known: Vec<[u8; 16]> = Vec::new();
    move |request| {
        let place = known.iter().position(|mac| *mac == request.mac).unwrap_or_else(|| {
            known.push(request.mac);
            known.len() - 1
        });
        Reply::grant(request, [10, 66, 0, 60 + u8::try_from(place).unwrap()], times())
    }
}

/// Returns the number of open descriptors of a process. That of a daemon which has just begun to listen can include the
/// connection by which the test has noticed it.
pub(crate) fn descriptors(service: &Service) -> usize {
    fs::read_dir(format!("/proc/{}/fd", service.pid())).unwrap().count()
}

/// Returns the IPv6 addresses of a pod's interface that are valid beyond the link, as `ip` prints them.
pub(crate) fn global_ipv6(pod: &Pod<'_>) -> Vec<Value> {
    let links = pod.ip("-6 address show dev eth0 scope global");
    let links = links.as_array().cloned().unwrap_or_default();
    let all = links.iter().flat_map(|link| link["addr_info"].as_array().cloned().unwrap_or_default());
    // `ip` prints empty elements for what it leaves out.
    all.filter(|address| address.get("local").is_some()).collect()
}
