//! What every plugin that creates an interface must do. Debian's packages of the reference do not have this plugin.

use serde_json::json;
use testing::suite::Damage;

testing::interface_suite! {
    plugin: "dummy",
    prepare: "",
    link: "type dummy",
    keys: |_| json!({}),
    reference_keys: |_| json!({}),
    needs_ipam: true,
    host_side: false,
    damages: Damage::ALL,
}
