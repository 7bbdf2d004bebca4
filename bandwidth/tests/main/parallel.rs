//! Calls at the same time.

use std::thread;

use serde_json::json;
use testing::{Lab, Pod};

use crate::pod::{both, container_named, ifbs, second, with};

#[test]
fn attachments_are_added_and_removed_at_the_same_time() {
    let lab = &Lab::new();
    let pods: Vec<Pod<'_>> = (0..8).map(|n| container_named(lab, &format!("c{n}"))).collect();
    for _ in 0..3 {
        thread::scope(|scope| pods.iter().for_each(|pod| drop(scope.spawn(|| pod.add(&both())))));
        assert_eq!(ifbs(lab).len(), 8);
        pods.iter().for_each(|pod| drop(pod.check(&both()).ok()));
        thread::scope(|scope| pods.iter().for_each(|pod| drop(scope.spawn(|| pod.del(&both())))));
        assert_eq!(ifbs(lab), [""; 0]);
    }
}

/// All of them want the same name.
#[test]
fn interfaces_of_a_container_are_added_at_the_same_time() {
    let lab = &Lab::new();
    let first = container_named(lab, "c1");
    let pods = [second(&first), first];
    for _ in 0..10 {
        thread::scope(|scope| pods.iter().for_each(|pod| drop(scope.spawn(|| pod.add(&both())))));
        assert_eq!(ifbs(lab).len(), 2);
        pods.iter().for_each(|pod| drop(pod.check(&both()).ok()));
        let blind = with(both(), json!({ "prevResult": null }));
        thread::scope(|scope| pods.iter().for_each(|pod| drop(scope.spawn(|| pod.del(&blind)))));
        assert_eq!(ifbs(lab), [""; 0]);
    }
}
