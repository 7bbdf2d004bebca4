//! A network of flannel: its delegates are checked, and what it leaves is pruned.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::doctor::{only_problem, problems};
use crate::node::{attach, host, json, lose_namespace, page};

const SUBNET_FILE: &str = "/run/flannel/subnet.env";

#[test]
fn a_missing_subnet_file_is_the_only_problem() {
    let host = host("10.214.0.0/24");
    let config = json!({
        "cniVersion": "1.1.0", "name": "pods",
        "plugins": [{ "type": "flannel", "delegate": { "bridge": "cni0", "isDefaultGateway": true } }],
    });
    host.configure("10-pods.conflist", &config.to_string());
    let write = || {
        let text =
            "FLANNEL_NETWORK=10.214.0.0/16\nFLANNEL_SUBNET=10.214.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        fs::create_dir_all("/run/flannel").unwrap();
        fs::write(SUBNET_FILE, text).unwrap();
    };
    write();
    attach(&host, "blue");
    let lost = attach(&host, "lost");
    assert_eq!(problems(&json(&host, "doctor --json")), [""; 0]);

    // Until flanneld has a subnet. Its delegates have no ranges then, which is not a mistake in the configuration.
    fs::remove_file(SUBNET_FILE).unwrap();
    let what = only_problem(&host, "flannel", "fail");
    assert!(what.contains("open /run/flannel/subnet.env: no such file or directory"), "{what}");
    assert!(page(&host.run("show")).contains("10.214.0.2/24"));

    // With a subnet, the delegates are checked.
    write();
    let wrong = config.to_string().replace(r#""bridge":"cni0""#, r#""bridge":"a/b""#);
    host.configure("10-pods.conflist", &wrong);
    let findings = json(&host, "doctor --json").to_string();
    assert!(findings.contains("a/b"), "{findings}");
    host.configure("10-pods.conflist", &config.to_string());

    lose_namespace(&host, "lost", &lost);
    let file = Path::new("/var/lib/cni/flannel").join(&lost);
    assert!(file.exists());
    let findings = json(&host, "doctor --json").to_string();
    assert!(findings.contains("1 state file of containers that are gone"), "{findings}");
    page(&host.run("prune --force pods"));
    assert!(!file.exists());
}
