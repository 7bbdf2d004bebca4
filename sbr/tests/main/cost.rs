//! Limits for the cost of a call in messages, so that it grows only on purpose.

use serde_json::json;
use testing::{Lab, cost};

use crate::support::{V4, V6, chained, pod};

#[test]
fn few_messages_are_sent() {
    let lab = &Lab::new();
    let pod = pod(lab, "c1", &[V4, V6]);
    let config = chained(&pod, json!({}), &[V4, V6]);
    let found = ["ADD", "CHECK", "DEL"].map(|command| cost::of(lab, pod.call(command, &config)));
    // Rules, routes, what is added, and what is removed.
    for (found, limit) in found.iter().zip([4, 2, 3]) {
        assert!(found.messages <= limit && found.children == 0, "{found:?}");
    }
}
