//! STATUS: whether the kernel can limit traffic, without changing anything.

use std::fs;

use testing::{Lab, Process};

use crate::pod::{both, state};

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
    let config = crate::pod::config(serde_json::json!({ "ingressRate": 8 }));
    lab.plugin("bandwidth", "STATUS").stdin(config.to_string()).run().error(7);
}
