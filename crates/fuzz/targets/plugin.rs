//! Configurations of the plugin that the variable `PLUGIN` names, with `CNI_ARGS`.
#![no_main]

use std::sync::LazyLock;

use cni::Call;
use interface::LinkType;
use interface::config::MacSource;
use libfuzzer_sys::fuzz_target;
use linux::ip::MacAddr;

type Parser = fn(&Call<'_>);

static PARSER: LazyLock<Parser> = LazyLock::new(|| parser(&std::env::var("PLUGIN").expect("PLUGIN names a plugin")));

fuzz_target!(|input: &[u8]| {
    let (args, stdin) = cni::fuzzing::split(input);
    cni::fuzzing::call(stdin, &args, *PARSER);
});

/// Returns what parses the configuration of a plugin, and asserts the properties that must hold.
fn parser(plugin: &str) -> Parser {
    match plugin {
        "bandwidth" => bandwidth::fuzzing::config,
        "bridge" => bridge::fuzzing::config,
        "dhcp" => dhcp::fuzzing::config,
        "dummy" => link::<dummy::Dummy>,
        "firewall" => firewall::fuzzing::config,
        "flannel" => flannel::fuzzing::config,
        "host-device" => host_device::fuzzing::config,
        "host-local" => host_local::fuzzing::config,
        "ipvlan" => link::<ipvlan::Ipvlan>,
        "loopback" => |_| {}, // reads only the keys that every plugin reads
        "macvlan" => link::<macvlan::Macvlan>,
        "portmap" => portmap::fuzzing::config,
        "ptp" => ptp::fuzzing::config,
        "sbr" => sbr::fuzzing::config,
        "static" => static_ipam::fuzzing::config,
        "tap" => link::<tap::Tap>,
        "tuning" => tuning::fuzzing::config,
        "vlan" => link::<vlan::Vlan>,
        "vrf" => vrf::fuzzing::config,
        _ => panic!("no parser for the plugin {plugin:?}"),
    }
}

/// Parses a configuration of a plugin that creates a link, and asserts that every accepted value is valid.
fn link<T: LinkType>(call: &Call<'_>) {
    let Ok(config) = T::parse(call) else { return };
    let common = T::common(&config);
    assert!(common.mtu.is_none_or(|mtu| (68..=65535).contains(&mtu)), "{config:?}");
    assert!(common.ipam.as_ref().is_none_or(|ipam| !ipam.is_empty()), "{config:?}");
    if let MacSource::Requested(MacAddr([first, ..])) = T::mac(&config) {
        assert_eq!(first & 1, 0, "a multicast address");
    }
    if let Some(tag) = T::shared_vlan(&config) {
        assert!(tag.id <= 4094, "{config:?}");
    }
}
