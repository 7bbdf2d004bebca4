//! What every plugin that creates an interface must do.

use serde_json::json;
use testing::suite::Damage;

testing::interface_suite! {
    plugin: "ipvlan",
    prepare: "ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up",
    link: "link uplink type ipvlan mode l2",
    keys: |_| json!({ "master": "uplink" }),
    reference_keys: |_| json!({ "master": "uplink" }),
    needs_ipam: false,
    host_side: false,
    // The MAC address is that of the master, and cannot be changed.
    damages: &[Damage::Down, Damage::Address, Damage::Route, Damage::Link],
}

testing::upgrade_suite! {}
