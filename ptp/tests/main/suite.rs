//! What every plugin that creates an interface must do.

use serde_json::json;
use testing::suite::Damage;

testing::interface_suite! {
    plugin: "ptp",
    prepare: "",
    link: "type veth",
    keys: |_| json!({ "ipMasq": true }),
    reference_keys: |_| json!({ "ipMasq": true, "ipMasqBackend": "iptables" }),
    needs_ipam: false,
    host_side: true,
    damages: Damage::ALL,
}

testing::upgrade_suite! {}
