//! What every plugin that creates an interface must do. A device is a veth here: the kernel deletes it with its
//! namespace.

use serde_json::json;
use testing::suite::Damage;

testing::interface_suite! {
    plugin: "host-device",
    prepare: "for n in 0 1 2; do ip link add nic$n type veth peer name far$n; ip link set far$n up; done",
    link: "type veth",
    keys: |n| json!({ "device": format!("nic{n}") }),
    reference_keys: |n| json!({ "device": format!("nic{n}") }),
    needs_ipam: false,
    host_side: false,
    damages: &[Damage::Down, Damage::Mac, Damage::Address, Damage::Route],
}

// The reference leaves the alias on a device that it gives back, so the rest is in `upgrade`.
testing::interface_suite! { @tests attachments_of_the_reference_are_taken_over }
