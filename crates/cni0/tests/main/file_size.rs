//! Calls with a limit for the size of files (RLIMIT_FSIZE), beyond which the kernel sends SIGXFSZ to a writer.

use std::fs;

use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Pod};

/// Returns the files of leases, states and backups, and the links.
fn state(lab: &Lab) -> String {
    lab.sh("find /var/lib/cni /run/cni -type f ! -name lock ! -name 'last_reserved_ip.*' | sort
            ip -o link | sed 's/^[0-9]*: \\([^:]*\\):.*/\\1/'; ip -n c1 -o link | sed 's/state.*//'")
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_and_nothing_is_left() {
    let lab = &Lab::new();
    fs::create_dir_all("/run/flannel").unwrap();
    fs::create_dir_all("/run/cni").unwrap();
    let subnet = "FLANNEL_NETWORK=10.8.0.0/16\nFLANNEL_SUBNET=10.8.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    fs::write("/run/flannel/subnet.env", subnet).unwrap();
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }]] });
    let network = json!({ "cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": ipam });
    let pod = Pod::attached(lab, "c1", &network);
    let fixed = json!({ "type": "static", "leases": true, "addresses": [{ "address": "10.9.0.77/24" }] });
    let plugin = |name: &str, keys: Value| with(with(network.clone(), json!({ "type": name })), keys);
    let other = pod.interface("eth1", &["10.9.0.9/24"]);
    for (pod, config, is_written) in [
        (&other, plugin("host-local", json!({})), "lease"),
        (&other, plugin("static", json!({ "ipam": fixed })), "lease"),
        (&other, plugin("bridge", json!({})), "lease"),
        (&other, plugin("flannel", json!({ "delegate": { "bridge": "cni1" } })), "state file"),
        (&pod, plugin("tuning", json!({ "mtu": 1400 })), "backup file"),
    ] {
        // The bridge stays.
        pod.add(&config);
        pod.del(&config);
        let before = state(lab);
        // A lease has 8 bytes, the other files have more than 100. A write up to the limit succeeds in part.
        for limit in [0, 1, 7, 100] {
            let call = pod.call("ADD", &config).via_shell(&format!("exec prlimit --fsize={limit} \"$0\""));
            let outcome = call.run();
            if limit == 100 && is_written == "lease" {
                outcome.ok();
                pod.del(&config);
            } else {
                let error = outcome.error(5).to_string();
                assert!(error.contains("File too large"), "{config} {limit}: {error}");
                assert!(limit < 100 || error.contains(is_written), "{config} {limit}: {error}");
            }
            assert_eq!(state(lab), before, "{config} {limit}");
        }
        // Files that only make the next call faster are not needed: DEL removes everything all the same.
        pod.add(&config);
        pod.call("DEL", &config).via_shell("exec prlimit --fsize=0 \"$0\"").run().ok();
        assert_eq!(state(lab), before, "{config}");
        pod.add(&config);
        pod.del(&config);
    }
}
