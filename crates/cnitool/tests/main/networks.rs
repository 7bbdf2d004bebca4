//! `cnitool networks`.

use serde_json::json;

use crate::node::{attach, host, json, leak, lose_namespace, network, page, snapshot};
use crate::support::Host;

#[test]
fn a_network_is_listed_with_plugins_ranges_and_attachments() {
    let host = host("10.181.0.0/24");
    attach(&host, "blue");
    let lost = attach(&host, "lost");
    lose_namespace(&host, "lost", &lost);
    let other = r#"{"cniVersion": "0.4.0", "name": "other", "plugins": [{"type": "loopback"}, {"type": "absent"}]}"#;
    host.configure("20-other.conflist", other);
    let before = snapshot(&host);
    let answer = json(&host, "networks --json");
    let (bin, conf) = (host.lab.bin(), host.conf_dir());
    let plugins = ["host-local", "bridge"].map(|name| json!({ "type": name, "path": bin.join(name) }));
    let range = json!({
        "range": "10.181.0.1-10.181.0.254", "subnet": "10.181.0.0/24", "gateway": "10.181.0.1", "size": 253,
        "used": 2, "free": 251,
    });
    let pods = json!({
        "name": "pods", "file": conf.join("10-pods.conflist"), "cniVersion": "1.1.0", "plugins": plugins,
        "bridge": "br-pods", "link": null, "ranges": [range], "attachments": { "alive": 1, "noPort": 0, "gone": 1, "unknown": 0 },
    });
    assert_eq!(answer["networks"][0], pods);
    let other = &answer["networks"][1];
    assert_eq!((&other["name"], &other["bridge"], &other["ranges"]), (&json!("other"), &json!(null), &json!([])));
    assert_eq!(other["plugins"][1], json!({ "type": "absent", "path": null }));
    let text = page(&host.run("networks"));
    for part in
        ["network pods\n", "cniVersion 1.1.0, bridge br-pods\n", "attachments: 1 alive, 1 gone\n", "10.181.0.0/24"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(text.contains("absent    not found in CNI_PATH\n"), "{text}");
    assert_eq!(snapshot(&host), before, "it changes nothing");
}

#[test]
fn broken_and_shadowed_files_come_last() {
    let host = host("10.182.0.0/24");
    host.configure("05-broken.conflist", "{\n  \"name\": }");
    host.configure("99-pods.conflist", &network("pods", "10.183.0.0/24", &json!({})).to_string());
    let answer = json(&host, "networks --json");
    assert_eq!(answer["networks"].as_array().unwrap().len(), 1);
    assert_eq!(answer["shadowed"], json!([{ "name": "pods", "file": host.conf_dir().join("99-pods.conflist") }]));
    let broken = &answer["broken"][0];
    assert_eq!((&broken["line"], &broken["column"]), (&json!(2), &json!(11)), "{broken}");
    assert_eq!(broken["file"], json!(host.conf_dir().join("05-broken.conflist")));
    let text = page(&host.run("networks"));
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"));
    assert!(at("network pods") < at("not used:") && at("not used:") < at("broken:"), "{text}");
}

#[test]
fn without_a_directory_there_is_no_network() {
    let host = Host::new();
    let outcome = host.call("networks").env("NETCONFPATH", "/missing").run();
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(0), "there is no network in /missing\n"));
    // A network without a configuration is not listed here; leases shows it.
    leak("10.1.1.1", "c1\r\neth0");
    assert_eq!(json(&host, "networks --json")["networks"], json!([]));
}
