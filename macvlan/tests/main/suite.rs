//! What every plugin that creates an interface must do.

use serde_json::json;
use testing::suite::Damage;

testing::interface_suite! {
    plugin: "macvlan",
    prepare: "ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up",
    link: "link uplink type macvlan mode bridge",
    keys: |_| json!({ "master": "uplink" }),
    reference_keys: |_| json!({ "master": "uplink" }),
    needs_ipam: false,
    host_side: false,
    damages: Damage::ALL,
}

testing::upgrade_suite! {}
