//! What every plugin that creates an interface must do.

use serde_json::json;
use testing::suite::Damage;

testing::interface_suite! {
    plugin: "vlan",
    prepare: "ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up",
    link: "link uplink type vlan id 9",
    keys: |n| json!({ "master": "uplink", "vlanId": 100 + u16::from(n) }),
    reference_keys: |n| json!({ "master": "uplink", "vlanId": 100 + u16::from(n) }),
    needs_ipam: false,
    host_side: false,
    damages: Damage::ALL,
}

testing::upgrade_suite! {}
