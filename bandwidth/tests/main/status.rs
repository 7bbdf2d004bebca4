//! STATUS: whether the kernel can limit traffic, without changing anything.

use std::fs;

use serde_json::json;
use testing::{Lab, Process};

use crate::pod::{both, config, container, state};

fn status(lab: &Lab) -> Process {
    lab.plugin("bandwidth", "STATUS").stdin(both().to_string())
}

#[test]
fn nothing_is_changed() {
    let lab = &Lab::new();
    let before = (state(lab), lab.ip("link show"));
    status(lab).run().ok();
    assert_eq!((state(lab), lab.ip("link show")), before);
}

/// A kernel without a part of traffic control refuses a change. The first messages are queries.
#[test]
fn a_kernel_that_cannot_limit_is_reported() {
    let lab = &Lab::new();
    let trace = lab.dir().join("trace");
    let mut reported = 0;
    for n in 1..30 {
        let inject = format!("inject=sendto:error=EOPNOTSUPP:when={n}");
        let options = ["-qq", "-o", trace.to_str().unwrap(), "-e", "trace=sendto", "-e", &inject];
        let outcome = status(lab).strace(&options).run();
        if !fs::read_to_string(&trace).unwrap().contains("INJECTED") {
            outcome.ok();
            break;
        }
        // The queue is divided fairly if possible.
        if outcome.status == Some(1) {
            let error = outcome.error(50);
            let is_hint =
                error["details"].as_str().is_some_and(|text| text.contains("load the kernel modules sch_tbf, ifb"));
            reported += usize::from(is_hint);
        }
    }
    assert!(reported >= 4, "only {reported}");
}

#[test]
fn an_invalid_configuration_is_reported() {
    let lab = &Lab::new();
    let config = config(json!({ "ingressRate": 8 }));
    lab.plugin("bandwidth", "STATUS").stdin(config.to_string()).run().error(7);
}

/// Runtimes evict the containers of a node whose STATUS fails. Most containers have no limits.
#[test]
fn limits_that_only_a_runtime_sets_do_not_make_status_fail() {
    let lab = &Lab::new();
    let trace = lab.dir().join("trace");
    let inject = "inject=sendto:error=EOPNOTSUPP:when=5+";
    let options = ["-qq", "-o", trace.to_str().unwrap(), "-e", "trace=sendto", "-e", inject];
    let call = lab.plugin("bandwidth", "STATUS").stdin(config(json!({})).to_string()).env("CNI_LOG", "warn");
    let outcome = call.strace(&options).run();
    outcome.ok();
    for part in ["a container with limits cannot be attached", "load the kernel modules sch_tbf, ifb"] {
        assert!(outcome.stderr.contains(part), "{outcome:?}");
    }
}

#[test]
#[ignore = "needs a kernel without ifb links: `ci/kernels no-ifb`"]
fn on_a_kernel_without_ifb_only_what_a_container_receives_is_limited() {
    let lab = &Lab::new();
    assert!(lab.sh("ip link add ifb0 type ifb 2>&1 || true").contains("rror"), "this kernel has ifb links");
    let pod = container(lab);
    let before = state(lab);
    for (call, code) in [(status(lab), 50), (pod.call("ADD", &both()), 999)] {
        let error = call.run().error(code);
        assert!(error["msg"].as_str().unwrap().contains("create"), "{error}");
        assert!(error["details"].as_str().unwrap().contains("load the kernel modules sch_tbf, ifb"), "{error}");
        assert_eq!(state(lab), before);
    }
    pod.del(&both());
    let unlimited = config(json!({}));
    let ingress = config(json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000 }));
    for config in [unlimited, ingress] {
        lab.plugin("bandwidth", "STATUS").stdin(config.to_string()).run().ok();
        pod.add(&config);
        pod.check(&config).ok();
        pod.sh("ping -q -c 1 -w 60 10.9.0.1");
        pod.del(&config);
    }
}
