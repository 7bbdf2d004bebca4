//! The cost of a call beside that of its delegate, so that it grows only on purpose.

use serde_json::json;
use testing::{Lab, Pod, cost};

use crate::node::{config, join_cluster, read_state};

#[test]
fn beside_its_delegate_the_plugin_only_uses_files() {
    let lab = &Lab::new();
    join_cluster();
    let config = config(json!({}));
    // The first pod creates the bridge.
    Pod::new(lab, "c0").add(&config);
    let (pod, other) = (Pod::new(lab, "c1"), Pod::new(lab, "c2"));
    for (command, limit) in [("ADD", 30), ("DEL", 32)] {
        let own = cost::of(lab, pod.call(command, &config));
        let delegate = lab.plugin("bridge", command).attachment(&other.id, &other.ifname, &other.netns);
        let delegate = cost::of(lab, delegate.stdin(read_state("c0")));
        assert_eq!(own.children, delegate.children, "{command}");
        // A listing that the kernel interrupts, because a link goes meanwhile, is repeated.
        assert!(own.messages.abs_diff(delegate.messages) <= 1, "{command}: {own:?}, the delegate alone {delegate:?}");
        let more = own.calls.saturating_sub(delegate.calls);
        assert!(more <= limit, "{command}: {own:?}, the delegate alone {delegate:?}");
    }
}
