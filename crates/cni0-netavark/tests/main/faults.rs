//! Faults: a system call fails, or the program is killed there.

use serde_json::{Value, json};
use testing::Lab;
use testing::fault::{Effect, inject_everywhere, kill_everywhere};

use crate::support::{Container, assert_clean, network, with};

fn everything(lab: &Lab) -> (Container<'_>, Value) {
    lab.sh("ip link set lo up");
    let ports = json!([{"host_ip": "", "host_port": 8080, "container_port": 80, "protocol": "tcp", "range": 2}]);
    let net = with(network(1), &json!({"options": {"isolate": "true", "promisc": "true"}}));
    (Container::new(lab, 2).publishing(ports), net)
}

#[test]
fn a_failing_system_call_leaves_nothing() {
    let lab = &Lab::without_plugins();
    let (a, net) = everything(lab);
    let calls =
        [("sendto", "ENOBUFS"), ("socket", "EMFILE"), ("flock", "ENOLCK"), ("openat", "EMFILE"), ("write", "EIO")];
    let failures = inject_everywhere(
        lab,
        &calls,
        || a.call_plugin("setup", &a.input(&net, "eth0")),
        |effect, _| {
            if effect != Effect::Failed {
                a.tear_down(&net);
            }
            lab.sh("rm -f /run/cni0/*.lock");
            assert_clean(lab);
        },
    );
    assert!(failures > 10, "only {failures} failures");
}

#[test]
fn teardown_removes_what_a_killed_setup_left() {
    let lab = &Lab::without_plugins();
    let (a, net) = everything(lab);
    let prepare = || a.call_plugin("setup", &a.input(&net, "eth0"));
    let killed = kill_everywhere(lab, &["sendto", "write"], prepare, |_| {
        a.tear_down(&net);
        // Without a mark, a bridge with a name that the user chose may be somebody else's.
        lab.sh("ip link del pod1 2>/dev/null || true; rm -f /run/cni0/*.lock");
        assert_clean(lab);
    });
    assert!(killed > 10, "only {killed} were killed");
}

#[test]
fn a_teardown_that_was_killed_is_completed_by_the_next() {
    let lab = &Lab::without_plugins();
    let (a, net) = everything(lab);
    let prepare = || {
        a.set_up(&net);
        a.call_plugin("teardown", &a.input(&net, "eth0"))
    };
    kill_everywhere(lab, &["sendto"], prepare, |_| {
        a.tear_down(&net);
        assert_clean(lab);
    });
}
