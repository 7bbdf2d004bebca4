//! Many calls at the same time.

use std::collections::BTreeSet;

use serde_json::json;
use testing::parallel::{assert_added, assert_silent, run};
use testing::{Lab, Pod};

use crate::node::{assert_clean, config, join_cluster, leases, node_with_pod, read_state, second_name, state_files};

const PODS: usize = 20;

#[test]
fn many_pods_start_and_end_at_once() {
    Lab::for_each_way_to_delegate(|lab| {
        join_cluster();
        let config = config(json!({}));
        let pods: Vec<_> = (0..PODS).map(|n| Pod::new(lab, &format!("c{n}"))).collect();
        let results = run(pods.iter().map(|pod| pod.call("ADD", &config)).collect());
        let ips: BTreeSet<_> = results.iter().map(|outcome| outcome.ok()["ips"][0]["address"].to_string()).collect();
        assert_eq!((ips.len(), leases(lab).len(), state_files().len()), (PODS, PODS, PODS));
        for (pod, result) in pods.iter().zip(&results) {
            pod.check_result(&config, &result.ok()).silent();
        }
        assert_silent(&run(pods.iter().map(|pod| pod.call("DEL", &config)).collect()));
        assert_clean(lab);
    });
}

/// The interfaces of one container compete for the name that the reference uses.
#[test]
fn interfaces_of_one_container_start_and_end_at_once() {
    let lab = &Lab::new();
    let (pod, config) = node_with_pod(lab);
    let interfaces: Vec<_> = (0..5).map(|n| pod.interface(&format!("eth{n}"), &[])).collect();
    assert_added(&run(interfaces.iter().map(|pod| pod.call("ADD", &config)).collect()));
    // One of them has the name of the reference.
    let names = state_files();
    assert_eq!(names.len(), interfaces.len(), "{names:?}");
    let lacks_own = |pod: &&Pod<'_>| !names.contains(&second_name(pod));
    let first: Vec<_> = interfaces.iter().filter(lacks_own).map(|pod| format!("\"{}\"", pod.ifname)).collect();
    assert!(first.len() == 1 && read_state("c1").contains(&first[0]), "{first:?} {names:?}");
    assert_silent(&run(interfaces.iter().map(|pod| pod.call("DEL", &config)).collect()));
    assert_clean(lab);
}
