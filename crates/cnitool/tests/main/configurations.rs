//! Finding and reading network configurations.

use crate::support::{Host, failure};

fn list(name: &str, more: &str) -> String {
    format!(r#"{{"name": "{name}", "plugins": [{{"type": "first"}}]{more}}}"#)
}

fn host() -> Host {
    let host = Host::new();
    host.recorder("first");
    host.lab.netns("blue");
    host
}

#[test]
fn lists_come_before_single_plugins_and_the_first_name_wins() {
    let host = host();
    host.configure("05-a.conf", r#"{"cniVersion": "0.4.0", "name": "net", "type": "first", "from": "a"}"#);
    host.configure(
        "20-c.conflist",
        r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "first", "from": "c"}]}"#,
    );
    host.configure(
        "10-b.conflist",
        r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "first", "from": "b"}]}"#,
    );
    let from = || {
        host.run("add net /run/netns/blue").ok();
        host.seen("first", "ADD")["from"].clone()
    };
    assert_eq!(from(), "b");
    host.lab.sh(&format!("rm {}/10-b.conflist", host.conf_dir().display()));
    assert_eq!(from(), "c");
    host.lab.sh(&format!("rm {}/20-c.conflist", host.conf_dir().display()));
    assert_eq!(from(), "a");
    assert_eq!(host.seen("first", "ADD")["cniVersion"], "0.4.0");
    host.configure("04-z.json", r#"{"cniVersion": "1.0.0", "name": "net", "type": "first", "from": "z"}"#);
    host.configure("03-y.txt", r#"{"name": "net", "type": "first", "from": "y"}"#);
    assert_eq!(from(), "z", "before 05-a.conf");
}

#[test]
fn the_newest_supported_version_is_used() {
    let host = host();
    for (more, version) in [
        ("", "0.1.0"),
        (r#", "cniVersion": "1.0.0""#, "1.0.0"),
        (r#", "cniVersion": "0.3.1", "cniVersions": ["0.4.0", "1.0.0", "9.9.9"]"#, "1.0.0"),
        (r#", "cniVersion": "1.1.0", "cniVersions": ["0.4.0"]"#, "1.1.0"),
        (r#", "cniVersion": "0.4.0", "cniVersions": ["9.0.0"]"#, "0.4.0"),
        (r#", "cniVersions": ["1.0.0"]"#, "1.0.0"),
    ] {
        host.configure("net.conflist", &list("net", more));
        host.run("status net").ok();
        host.run("del net /run/netns/blue").ok();
        assert_eq!(host.seen("first", "DEL")["cniVersion"], version, "{more}");
    }
}

#[test]
fn plugins_in_a_folder_of_the_networks_name() {
    let host = host();
    host.recorder("second");
    host.recorder("third");
    let folder = host.conf_dir().join("net");
    std::fs::create_dir(&folder).unwrap();
    host.configure("net/2.conf", r#"{"type": "third"}"#);
    host.configure("net/1.conf", r#"{"type": "second"}"#);
    host.configure("net/0.conflist", "not read");
    host.configure("net.conflist", &list("net", r#", "cniVersion": "1.0.0""#));
    host.run("add net /run/netns/blue").ok();
    assert_eq!(host.calls(), ["ADD first", "ADD second", "ADD third"]);
    host.configure("net.conflist", r#"{"name": "net"}"#);
    host.run("del net /run/netns/blue").ok();
    assert_eq!(host.calls()[3..], ["DEL third", "DEL second"], "a list without plugins of its own works");
    host.configure("net.conflist", &list("net", r#", "loadOnlyInlinedPlugins": true"#));
    host.run("del net /run/netns/blue").ok();
    assert_eq!(host.calls()[5..], ["DEL first"]);
    host.configure("net.conflist", &list("net", ""));
    host.configure("net/1.conf", "{\"type\":\n\"second\"");
    let why = failure(&host.run("add net /run/netns/blue"));
    assert!(why.contains("/net.d/net/1.conf:2:8: invalid JSON"), "{why}");
}

#[test]
fn a_broken_file_is_named_with_its_place_and_others_work() {
    let host = host();
    host.configure("99-net.conflist", &list("net", ""));
    for (name, text, want) in [
        ("00.conflist", "{\n  \"name\": \"x\",\n  \"plugins\": [,]\n}", ":3:15: invalid JSON: expected value"),
        ("00.conflist", "", ":1:1: invalid JSON: EOF while parsing a value"),
        ("00.conflist", "[]", ":1:1: expected an object, got a list"),
        ("00.conflist", "{\"plugins\": [{\"type\": \"a\"}]}", ":1:1: the network configuration has no \"name\""),
        (
            "00.conflist",
            "{\"name\": \"a/b\",\n \"plugins\": [{\"type\": \"a\"}]}",
            ":1:10: invalid network name \"a/b\"",
        ),
        (
            "00.conflist",
            "{\"name\": \"x\",\n \"plugins\": []}",
            ":2:13: \"plugins\" must be a list of at least one plugin",
        ),
        (
            "00.conflist",
            "{\"name\": \"x\"}",
            ":1:1: the network has no \"plugins\"; a single plugin must be in a file that ends in .conf",
        ),
        ("00.conflist", "{\"name\": \"x\",\n \"plugins\": {}}", ":2:13: key \"plugins\": expected a list"),
        (
            "00.conflist",
            "{\"name\": \"x\",\n\"plugins\": [\n {\"type\": \"a\"},\n {}]}",
            ":4:2: a plugin needs a \"type\"",
        ),
        ("00.conflist", "{\"Name\": \"x\", \"plugins\": [{\"type\": \"a\"}]}", "has no \"name\""),
        (
            "00.conflist",
            &list("x", ",\n\"cniVersion\": \"7\""),
            ":2:15: cniVersion \"7\" is not supported; use one of 0.1.0, ",
        ),
        ("00.conflist", &list("x", ",\n\"cniVersions\": [\"x\"]"), ":2:16: cniVersion \"x\" is not a version number"),
        (
            "00.conflist",
            &list("x", ",\n\"disableCheck\": 1"),
            ":2:17: key \"disableCheck\": expected true or false, got 1",
        ),
        ("00.conf", "{\"name\": \"é\",\n  \"type\": 5}", ":1:10: invalid network name"),
        ("00.conf", "{\"name\": \"x\",\n  \"type\": 5}", ":2:11: key \"type\": expected a string, got 5"),
        ("00.json", &list("x", ""), ":1:26: a list of plugins must be in a file that ends in .conflist"),
    ] {
        host.configure(name, text);
        let outcome = host.run("status net");
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        let path = host.conf_dir().join(name);
        let line = format!("cnitool: ignored: {}", path.display());
        assert!(outcome.stderr.starts_with(&line) && outcome.stderr.contains(want), "{want}\n{}", outcome.stderr);
        // The other line is about the valid network.
        assert_eq!(outcome.stderr.lines().filter(|line| !line.contains("has no STATUS")).count(), 1);
        let why = failure(&host.run("status x"));
        assert!(
            why.contains("there is no network \"x\" in ") && why.contains("(the networks are net; broken: "),
            "{why}"
        );
        assert!(why.contains(want), "{why}");
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(host.conf_dir().join("00.conflist"), b"{\n\"\xff\"}").unwrap();
    assert!(host.run("status net").stderr.contains("00.conflist:2:2: it is not UTF-8"));
    host.lab.sh(&format!(
        "cd {0}; rm 00.conflist; ln -s nowhere 00.conflist; mkdir 01.conflist",
        host.conf_dir().display()
    ));
    let stderr = host.run("status net").stderr;
    assert!(stderr.contains("00.conflist: cannot be read: No such file or directory"), "{stderr}");
    let about_files = stderr.lines().filter(|line| !line.contains("has no STATUS"));
    assert_eq!(about_files.count(), 1, "a directory is not a configuration: {stderr}");
    assert_eq!(stderr.lines().count(), 2, "plugins that were not called are not reported as ready: {stderr}");
}

#[test]
fn a_file_that_is_not_regular_or_too_large_is_broken() {
    let host = host();
    host.configure("net.conflist", &list("net", r#", "cniVersion": "1.1.0""#));
    host.lab.sh(&format!(
        "cd {}; mkfifo 01.conf; ln -s /dev/zero 02.conf; truncate -s 2M 03.json; mkdir net; mkfifo net/9.txt",
        host.conf_dir().display()
    ));
    let outcome = host.run("add net /run/netns/blue");
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    for want in [
        "01.conf: cannot be read: it is not a regular file",
        "02.conf: cannot be read: it is not a regular file",
        "03.json: cannot be read: it is larger than 1 MiB",
    ] {
        assert!(outcome.stderr.contains(want), "{want} in {}", outcome.stderr);
    }
    host.lab.sh(&format!("mkfifo {}/net/1.conf", host.conf_dir().display()));
    let why = failure(&host.run("status net"));
    assert!(why.contains("net/1.conf: cannot be read: it is not a regular file"), "{why}");
    host.lab.sh("mkfifo /var/lib/cni/results/net-x-eth0");
    let outcome = host.run("leases");
    assert_eq!(outcome.status, Some(0), "a FIFO in the cache: {outcome:?}");
}
