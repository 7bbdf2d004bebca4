//! What every plugin that creates an interface must do.

use serde_json::json;
use testing::suite::Damage;

testing::interface_suite! {
    plugin: "tap",
    prepare: "",
    // `ip link add` creates no TAP device.
    link: "type veth peer name far",
    keys: |_| json!({}),
    reference_keys: |_| json!({}),
    needs_ipam: false,
    host_side: false,
    damages: Damage::ALL,
}
