//! Plugins: missing files, other implementations, old versions.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use testing::{copy_program, program_path};

use super::{assert_healthy, only_problem, problems, subjects};
use crate::node::{attach, host, json, network, page};
use crate::support::Host;

#[test]
fn plugins_that_are_missing_or_not_executable() {
    let host = host("10.139.0.0/24");
    attach(&host, "blue");
    let file = |name: &str| host.lab.bin().join(name);
    fs::rename(file("host-local"), file("away")).unwrap();
    let what = only_problem(&host, "plugins", "fail");
    assert!(what.contains("host-local") && what.contains(&*host.lab.bin().to_string_lossy()), "{what}");
    // The other plugins are hard links to the same file.
    copy_program(&file("away"), &file("host-local"));
    fs::set_permissions(file("host-local"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(only_problem(&host, "plugins", "fail").contains("is not executable"));
    fs::set_permissions(file("host-local"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(file("loopback")).unwrap();
    assert!(only_problem(&host, "plugins", "warn").contains("loopback"));
}

/// Replaces a plugin by a script that starts it. The plugin is `$real`.
fn wrap(host: &Host, name: &str, script: &str) {
    let (file, real) = (host.lab.bin().join(name), host.lab.dir().join(format!("real/{name}")));
    fs::create_dir_all(real.parent().unwrap()).unwrap();
    if !real.exists() {
        fs::rename(&file, &real).unwrap();
    }
    // Its name selects the plugin.
    host.lab.script(name, &format!("real={}\n{script}", real.display()));
}

#[test]
fn plugins_are_listed_with_path_and_build() {
    let host = host("10.240.0.0/24");
    let text = page(&host.run("doctor")).split_whitespace().collect::<Vec<_>>().join(" ");
    let bin = host.lab.bin().display().to_string();
    for plugin in ["bridge", "host-local", "loopback"] {
        assert!(text.contains(&format!("{plugin} {bin} v1.9.1+cni0.")), "{text}");
    }
}

#[test]
fn two_implementations_in_one_list() {
    let host = host("10.241.0.0/24");
    attach(&host, "blue");
    if testing::reference("host-local", "two_implementations_in_one_list").is_none() {
        return;
    }
    let mut config = network("pods", "10.241.0.0/24", &json!({}));
    config["cniVersion"] = json!("1.0.0");
    host.configure("10-pods.conflist", &config.to_string());
    host.reference("host-local");
    let what = only_problem(&host, "plugins", "warn");
    assert!(what.contains("two implementations") && what.contains("(another implementation)"), "{what}");
    assert_eq!(subjects(&what, "plugin").len(), 2, "{what}");
    // A plugin that cni0 does not have is not a mixture.
    let mut config = network("pods", "10.241.0.0/24", &json!({}));
    config["plugins"].as_array_mut().unwrap().push(json!({ "type": "own" }));
    host.configure("10-pods.conflist", &config.to_string());
    fs::remove_file(host.lab.bin().join("host-local")).unwrap();
    copy_program(&host.lab.bin().join("bridge"), &host.lab.bin().join("host-local"));
    host.lab.script(
        "own",
        r#"[ "$CNI_COMMAND" != VERSION ] || echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}'"#,
    );
    assert_healthy(&host, "a plugin of another program");
}

#[test]
fn two_versions_of_cni0_in_one_list() {
    let host = host("10.242.0.0/24");
    let other = r#"[ -n "$CNI_COMMAND" ] || { echo "CNI host-local plugin v1.9.0+cni0.0.0.9" >&2; exit; }
                   exec "$real""#;
    attach(&host, "blue");
    wrap(&host, "host-local", other);
    let what = only_problem(&host, "plugins", "warn");
    assert!(what.contains("two versions of cni0") && what.contains("v1.9.0+cni0.0.0.9"), "{what}");
}

#[test]
fn a_version_that_a_plugin_does_not_support() {
    let host = host("10.243.0.0/24");
    host.lab.sh("echo 1 >/proc/sys/net/ipv4/ip_forward");
    let old = r#"[ "$CNI_COMMAND" != VERSION ] || { echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'; exit; }
                 exec "$real""#;
    wrap(&host, "host-local", old);
    let what = only_problem(&host, "plugins", "fail");
    assert!(
        what.contains("\\\"cniVersion\\\" is 1.1.0") && what.contains("host-local supports 0.4.0, 1.0.0"),
        "{what}"
    );
    assert!(what.contains("set \\\"cniVersion\\\": \\\"1.0.0\\\" in"), "{what}");
    let mut config = network("pods", "10.243.0.0/24", &json!({}));
    config["cniVersion"] = json!("1.0.0");
    host.configure("10-pods.conflist", &config.to_string());
    assert_healthy(&host, "the remedy");
}

#[test]
fn a_plugin_that_does_not_answer_version() {
    let host = host("10.244.0.0/24");
    attach(&host, "blue");
    for (script, part) in [
        ("echo rubbish", "read the answer of plugin"),
        ("echo '{}'", "read the answer of plugin"),
        ("exit 7", "no CNI error"),
        ("exec sleep 1000", "it did not exit within 5s"),
    ] {
        let script = format!("[ \"$CNI_COMMAND\" != VERSION ] || {{ {script}; exit; }}\nexec \"$real\"");
        wrap(&host, "host-local", &script);
        let what = only_problem(&host, "plugins", "fail");
        assert!(
            what.contains("\\\"host-local\\\" does not report the versions") && what.contains(part),
            "{script}: {what}"
        );
    }
}

/// CHECK of the reference's `bridge` calls an IPAM plugin even if there is none, and fails.
#[test]
fn the_reference_without_ipam() {
    if testing::reference("bridge", "the_reference_without_ipam").is_none() {
        return;
    }
    let host = host("10.47.0.0/24");
    let plugins = json!([{ "type": "bridge", "bridge": "br-pods" }]);
    let list = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": plugins });
    host.configure("10-pods.conflist", &list.to_string());
    host.reference("bridge");
    attach(&host, "blue");
    let answer = json(&host, "doctor --json");
    assert_eq!(problems(&answer), [""; 0], "{answer:#}");
    let unseen = answer["notSeen"].to_string();
    assert!(
        unseen.contains("CHECK of plugin \\\"bridge\\\" for network pods: it always calls an IPAM plugin"),
        "{unseen}"
    );
    // Ours does not.
    fs::remove_file(host.lab.bin().join("bridge")).unwrap();
    copy_program(&program_path("bridge"), &host.lab.bin().join("bridge"));
    let answer = json(&host, "doctor --json");
    assert!(!answer["notSeen"].to_string().contains("CHECK of plugin"), "{answer:#}");
    assert!(answer.to_string().contains("CHECK of 1 attachment succeeds"), "{answer:#}");
}
