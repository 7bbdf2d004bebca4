//! Invalid input: one CNI error with the right code that names the culprit, exit status 1, no changes.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use testing::{Lab, Process, plugins};

/// A variable and its new value; `None` removes it.
type Change = (&'static str, Option<&'static [u8]>);

struct Case {
    env: Vec<Change>,
    stdin: Vec<u8>,
    code: u32,
    culprit: &'static str,
}

fn case(env: &[Change], stdin: impl Into<Vec<u8>>, code: u32, culprit: &'static str) -> Case {
    Case { env: env.to_vec(), stdin: stdin.into(), code, culprit }
}

const GOOD: &str = r#"{"cniVersion": "1.1.0", "name": "net"}"#;

/// Invalid environments, with a valid configuration.
fn environments() -> Vec<Case> {
    let mut cases = Vec::new();
    for command in ["", "CHECK", "DEL"] {
        let with = |change: Change| {
            if command.is_empty() { vec![change] } else { vec![("CNI_COMMAND", Some(command.as_bytes())), change] }
        };
        for (name, value, culprit) in [
            ("CNI_CONTAINERID", None, "CNI_CONTAINERID"),
            ("CNI_CONTAINERID", Some(&b""[..]), "CNI_CONTAINERID"),
            ("CNI_CONTAINERID", Some(b"a/b"), "a/b"),
            ("CNI_CONTAINERID", Some(b".."), "\"..\""),
            ("CNI_CONTAINERID", Some(b"-a"), "-a"),
            ("CNI_CONTAINERID", Some(b"a b"), "a b"),
            ("CNI_CONTAINERID", Some(b"a\n"), "a\\n"),
            ("CNI_CONTAINERID", Some(b"\xff"), "xFF"),
            ("CNI_CONTAINERID", Some("ä".as_bytes()), "ä"),
            ("CNI_IFNAME", None, "CNI_IFNAME"),
            ("CNI_IFNAME", Some(b""), "CNI_IFNAME"),
            ("CNI_IFNAME", Some(b"a-name-of-16-byt"), "a-name-of-16-byt"),
            ("CNI_IFNAME", Some("äöüäöüäö".as_bytes()), "äöüäöüäö"),
            ("CNI_IFNAME", Some(b"."), "\".\""),
            ("CNI_IFNAME", Some(b".."), "\"..\""),
            ("CNI_IFNAME", Some(b"../x"), "../x"),
            ("CNI_IFNAME", Some(b"a:b"), "a:b"),
            ("CNI_IFNAME", Some(b"eth%d"), "eth%d"),
            ("CNI_IFNAME", Some(b"a b"), "a b"),
            ("CNI_IFNAME", Some(b"a\t"), "a\\t"),
            ("CNI_IFNAME", Some("a\u{a0}".as_bytes()), "a\\u{a0}"),
            ("CNI_IFNAME", Some("à".as_bytes()), "à"),
            ("CNI_IFNAME", Some(b"\xff\xfe"), "xFF"),
            ("CNI_PATH", None, "CNI_PATH"),
            ("CNI_PATH", Some(b""), "CNI_PATH"),
        ] {
            cases.push(case(&with((name, value)), GOOD, 4, culprit));
        }
    }
    for command in ["ADD", "CHECK"] {
        let command = ("CNI_COMMAND", Some(command.as_bytes()));
        cases.push(case(&[command, ("CNI_NETNS", None)], GOOD, 4, "CNI_NETNS"));
        cases.push(case(&[command, ("CNI_NETNS", Some(b""))], GOOD, 4, "CNI_NETNS"));
        for path in
            ["/nowhere", "relative", "/", "/etc/passwd/x", "/dev/null", "/proc/self/ns/mnt", "/proc/1/ns/nonsense"]
        {
            cases.push(case(&[command, ("CNI_NETNS", Some(path.as_bytes()))], GOOD, 8, path));
        }
    }
    for command in ["GC", "STATUS"] {
        cases.push(case(&[("CNI_COMMAND", Some(command.as_bytes())), ("CNI_PATH", None)], GOOD, 4, "CNI_PATH"));
    }
    for command in ["add", "ADD ", " ADD", "ADDX", "GC\n", "VERSIONS", "ADD;DEL"] {
        cases.push(case(&[("CNI_COMMAND", Some(command.as_bytes()))], GOOD, 4, "unknown CNI_COMMAND: "));
    }
    cases.push(case(&[("CNI_COMMAND", Some(b"\xff"))], GOOD, 4, "unknown CNI_COMMAND: "));
    cases.push(case(&[("CNI_NETNS", Some(b"/proc/self/ns/net"))], GOOD, 8, "/proc/self/ns/net"));
    cases
}

/// Invalid configurations, in a valid environment.
fn configurations() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut bad = |stdin: &[u8], code, culprit| cases.push(case(&[], stdin, code, culprit));
    // Not JSON, or not an object.
    for text in [
        "",
        " ",
        "\n\n",
        "nonsense",
        "{",
        "}",
        "[",
        "{\"name\"",
        "{\"name\":",
        "{\"name\":\"net\"",
        "{\"name\":\"net\",}",
        "{name:\"net\"}",
        "{'name':'net'}",
        "{\"name\":\"net\"} x",
        "{\"name\":\"net\"}{}",
        "{\"name\":\"net\"},",
        "{\"name\":\"ne\nt\"}",
        "{\"name\":\"\\x\"}",
        "{\"name\":\"\\u12\"}",
        "{\"a\":01,\"name\":\"net\"}",
        "{\"a\":+1}",
        "{\"a\":.5}",
        "{\"a\":1.}",
        "{\"a\":0x10}",
        "{\"a\":NaN}",
        "{\"a\":tru}",
        "{\"a\":True}",
        "{\"a\" \"b\"}",
        "// comment\n{\"name\":\"net\"}",
        "\u{feff}{\"name\":\"net\"}",
        "\0",
        "{\"name\":\"net\"}\0",
        "undefined",
    ] {
        bad(text.as_bytes(), 6, "stdin");
    }
    for text in ["[]", "[{\"name\":\"net\"}]", "\"net\"", "5", "true", "1.5"] {
        bad(text.as_bytes(), 6, "object");
    }
    bad(b"\xff\xfe{\x00}\x00", 6, "stdin");
    bad(&[0xff; 100], 6, "stdin");
    bad("[".repeat(100_000).as_bytes(), 6, "stdin");
    bad("{\"a\":".repeat(100_000).as_bytes(), 6, "stdin");
    // The name.
    bad(b"null", 7, "name");
    bad(b"{}", 7, "name");
    bad(br#"{"cniVersion": "1.1.0"}"#, 7, "name");
    bad(br#"{"name": null}"#, 7, "name");
    bad(br#"{"name": ""}"#, 7, "name");
    for (value, culprit) in [("5", "5"), ("true", "true"), ("[]", "list"), ("{}", "object"), ("1.5", "1.5")] {
        bad(format!(r#"{{"name": {value}}}"#).as_bytes(), 6, culprit);
    }
    for (name, culprit) in [
        ("a/b", "a/b"),
        ("..", "\"..\""),
        (".", "\".\""),
        ("../../etc", "../../etc"),
        ("-net", "-net"),
        ("_net", "_net"),
        ("ne t", "ne t"),
        (r"net\n", "net\\n"),
        (r"\u0000", "\\0"),
        ("ä", "ä"),
        ("net!", "net!"),
        ("a\u{202e}b", "b"),
    ] {
        bad(format!(r#"{{"cniVersion": "1.1.0", "name": "{name}"}}"#).as_bytes(), 7, culprit);
    }
    bad(br#"{"cniVersion": "1.1.0", "name": "net", "NAME": "a/b"}"#, 7, "a/b");
    bad(b"{\"cniVersion\": \"1.1.0\", \"name\": \"\xff\"}", 7, "\u{fffd}");
    // The version.
    for (value, culprit) in [("5", "5"), ("1.1", "1.1"), ("true", "true"), ("[]", "list"), ("{}", "object")] {
        bad(format!(r#"{{"name": "net", "cniVersion": {value}}}"#).as_bytes(), 6, culprit);
    }
    for version in
        ["1.1", "1", "v1.1.0", "1.1.0 ", "0.5.0", "1.2.0", "2.0.0", "nonsense", "1.1.0-rc1", "0.0.0", "1.1.0.0"]
    {
        bad(format!(r#"{{"name": "net", "cniVersion": "{version}"}}"#).as_bytes(), 1, version);
    }
    // The previous result.
    for (previous, code, culprit) in [
        ("5", 6, "prevResult"),
        ("[]", 6, "prevResult"),
        (r#""x""#, 6, "prevResult"),
        (r#"{"cniVersion": "0.4.0"}"#, 999, "0.4.0"),
        (r#"{"cniVersion": "9.9.9"}"#, 999, "9.9.9"),
        (r#"{"cniVersion": 1}"#, 6, "cniVersion"),
        (r#"{"ips": {}}"#, 6, "ips"),
        (r#"{"ips": [null]}"#, 6, "ips[0]"),
        (r#"{"ips": [{}]}"#, 7, "ips[0].address"),
        (r#"{"ips": [{"address": 5}]}"#, 6, "ips[0].address"),
        (r#"{"ips": [{"address": "10.0.0.1"}]}"#, 7, "10.0.0.1"),
        (r#"{"ips": [{"address": "10.0.0.1/33"}]}"#, 7, "10.0.0.1/33"),
        (r#"{"ips": [{"address": "10.0.0.1/8", "gateway": "x"}]}"#, 7, "\"x\""),
        (r#"{"ips": [{"address": "10.0.0.1/8", "interface": -1}]}"#, 7, "interface"),
        (r#"{"ips": [{"address": "10.0.0.1/8", "interface": "0"}]}"#, 6, "interface"),
        (r#"{"routes": [{"gw": "10.0.0.1"}]}"#, 7, "routes[0].dst"),
        (r#"{"routes": [{"dst": "10.0.0.0/8", "mtu": "1500"}]}"#, 6, "routes[0].mtu"),
        (r#"{"routes": [{"dst": "10.0.0.0/8", "scope": 256}]}"#, 7, "256"),
        (r#"{"routes": [{"dst": "10.0.0.0/8", "table": 4294967296}]}"#, 7, "4294967296"),
        (r#"{"interfaces": [{"name": 5}]}"#, 6, "interfaces[0].name"),
        (r#"{"interfaces": "eth0"}"#, 6, "interfaces"),
        (r#"{"dns": []}"#, 6, "dns"),
        (r#"{"dns": {"nameservers": "10.0.0.1"}}"#, 6, "dns.nameservers"),
        (r#"{"dns": {"search": [5]}}"#, 6, "dns.search[0]"),
    ] {
        bad(format!(r#"{{"cniVersion": "1.1.0", "name": "net", "prevResult": {previous}}}"#).as_bytes(), code, culprit);
    }
    cases
}

/// Prepares a call of `loopback` that would succeed, except for the changes of the case.
fn calling(lab: &Lab, case: &Case) -> Process {
    let call = lab.attach("loopback", "ADD", "/run/netns/c1").stdin(case.stdin.clone());
    case.env.iter().fold(call, |call, (name, value)| match value {
        Some(value) => call.env(name, OsStr::from_bytes(value)),
        None => call.without(name),
    })
}

#[test]
fn is_reported_with_the_code_and_the_culprit() {
    let lab = Lab::new();
    lab.netns("c1");
    let cases: Vec<Case> = environments().into_iter().chain(configurations()).collect();
    assert!(cases.len() >= 120, "{}", cases.len());
    for case in &cases {
        let what = || {
            let stdin: OsString = OsString::from_vec(case.stdin.iter().take(200).copied().collect());
            format!("{:?} {stdin:?}", case.env)
        };
        let outcome = calling(&lab, case).run();
        assert_eq!(outcome.status, Some(1), "{}: {outcome:?}", what());
        let error = outcome.error(case.code);
        let said = format!("{} {}", error["msg"].as_str().unwrap(), error["details"].as_str().unwrap_or(""));
        assert!(said.contains(case.culprit), "{}: {:?} in {said}", what(), case.culprit);
        assert_eq!(outcome.stderr, "", "{}", what());
    }
    let lo = lab.ip("-n c1 link show dev lo");
    assert!(!lo[0]["flags"].as_array().unwrap().contains(&"UP".into()), "nothing was done");
    let good = case(&[], GOOD, 0, "");
    calling(&lab, &good).run().ok();
}

#[test]
fn that_cannot_be_read_or_answered_is_reported() {
    let lab = Lab::new();
    lab.netns("c1");
    let shell = |script: &str| {
        let script = format!("exec {}/loopback {script}", lab.bin().display());
        let call = Process::new("sh").arg("-c").arg(script).env("CNI_COMMAND", "ADD").env("CNI_PATH", "/x");
        call.attachment("c1", "eth0", "/run/netns/c1").stdin(GOOD).run()
    };
    let error = shell("</").error(5);
    assert!(error["msg"].as_str().unwrap().contains("stdin"), "{error}");
    shell("<&-").error(6);
    let outcome = shell(">/dev/full");
    assert_eq!(outcome.status, Some(1));
    assert!(outcome.stderr.contains("stdout"), "{outcome:?}");
    shell("2>&-").ok();
}

/// Non-blocking pipes, as some runtimes pass them.
#[test]
fn on_slow_non_blocking_pipes_is_waited_for() {
    let lab = Lab::new();
    lab.netns("c1");
    let traced = |options: &[&str]| {
        let trace = lab.dir().join("trace");
        let options = [&["-qq", "-o", trace.to_str().unwrap()], options].concat();
        lab.attach("loopback", "ADD", "/run/netns/c1").stdin(GOOD).strace(&options).run().ok();
        fs::read_to_string(trace).unwrap()
    };
    for (call, stream) in [("read", "read(0, "), ("write", "write(1, ")] {
        let which = format!("trace={call}");
        let before = traced(&["-e", &which]).lines().take_while(|line| !line.starts_with(stream)).count();
        let inject = format!("inject={call}:error=EAGAIN:when={}", before + 1);
        let log = traced(&["-e", &which, "-e", &inject]);
        assert!(log.lines().any(|line| line.starts_with(stream) && line.contains("INJECTED")), "{log}");
    }
}

/// loopback does not use `CNI_ARGS`, so its content is ignored.
#[test]
fn in_unused_variables_is_ignored() {
    let lab = Lab::new();
    lab.netns("c1");
    for args in ["nonsense", ";;;", "A=1;B", "=", "IgnoreUnknown=maybe"] {
        lab.attach("loopback", "ADD", "/run/netns/c1").env("CNI_ARGS", args).stdin(GOOD).run().ok();
    }
}

#[test]
fn of_any_size_needs_little_memory() {
    let lab = Lab::new();
    lab.netns("c1");
    let filler = |piece: &str, size: usize| piece.repeat(size / piece.len());
    let object = |inside: String| format!("{{\"cniVersion\": \"1.1.0\", \"name\": \"net\", {inside}}}");
    let refused = [
        (filler(" ", 50 << 20), 6),
        (filler("[", 50 << 20), 6),
        (object(format!("\"x\": [{}0]", filler("0,", 50 << 20))), 6),
        (format!("{{\"name\": \"{}\"}}", filler("a", 50 << 20)), 6),
        (object(format!("{}\"cniVersion\": 5", filler("\"\":0,", 1_000_000))), 6),
        (object(format!("\"x\": [{}0], \"cniVersion\": 5", filler("0,", 1_000_000))), 6),
        (object(format!("\"prevResult\": {{\"ips\": [{}0]}}", filler("{},", 1_000_000))), 7),
        (object(format!("\"prevResult\": {{\"dns\": {{\"search\": [{}0]}}}}", filler("\"\",", 200_000))), 6),
    ];
    // The address space, in KB, for the program, its stack and its input.
    let run = |command: &str, space: u32, stdin: String| {
        let script = format!("ulimit -v {space}; exec {}/loopback", lab.bin().display());
        let call = Process::new("sh").arg("-c").arg(script).env("CNI_COMMAND", command).env("CNI_PATH", "/x");
        call.attachment("c1", "eth0", "/run/netns/c1").stdin(stdin).run()
    };
    for (stdin, code) in refused {
        run("ADD", 48_000, stdin).error(code);
    }
    // A container can have many ports, and GC's list can be as long as the node has containers.
    let attachment = format!("{{\"containerID\": \"{}\", \"ifname\": \"eth0\"}},", "a".repeat(64));
    let many_keys = |size| object(format!("{}\"x\": 1", filler("\"\":0,", size)));
    let many_attachments = |size| object(format!("\"cni.dev/valid-attachments\": [{}{{}}]", filler(&attachment, size)));
    run("ADD", 48_000, many_keys(16_000_000)).ok();
    run("GC", 48_000, many_attachments(16_000_000)).ok();
    // DEL and GC never fail because of the size alone.
    run("DEL", 64_000, many_keys(20 << 20)).ok();
    run("GC", 64_000, many_attachments(20 << 20)).ok();
    run("GC", 160_000, filler(" ", 50 << 20)).error(6);
}

#[test]
fn nested_deeply_needs_no_stack() {
    let lab = Lab::new();
    lab.netns("c1");
    let keys = ["x", "name", "ipam", "args", "capabilities", "runtimeConfig", "prevResult", "dns", "vlanTrunk", "mtu"];
    let inner = [("ipam", "ranges"), ("ipam", "routes"), ("prevResult", "ips"), ("prevResult", "dns"), ("args", "cni")];
    let deep = [("[", "]"), ("{\"a\":", "}")].map(|(open, close)| {
        let depth = 90_000 / (open.len() + close.len());
        format!("{}1{}", open.repeat(depth), close.repeat(depth))
    });
    for plugin in plugins() {
        // Much less stack than one frame per level would need.
        let script = format!("ulimit -s 256; exec {}/{plugin}", lab.bin().display());
        for value in &deep {
            let outer = keys.map(|key| format!("\"{key}\": {value}"));
            let inner = inner.map(|(key, inner)| {
                let kind = if key == "ipam" { "\"type\": \"host-local\", " } else { "" };
                format!("\"{key}\": {{{kind}\"{inner}\": {value}}}")
            });
            for member in outer.iter().chain(&inner) {
                let stdin = format!("{{\"cniVersion\": \"1.1.0\", \"name\": \"net\", {member}}}");
                for command in ["CHECK", "STATUS"] {
                    let call = Process::new("sh").arg("-c").arg(&script).env("CNI_COMMAND", command);
                    let call = call.env("CNI_PATH", lab.bin()).attachment("c1", "eth0", "/run/netns/c1");
                    let outcome = call.stdin(stdin.clone()).run();
                    let what = &stdin[..80];
                    assert!(matches!(outcome.status, Some(0 | 1)), "{plugin} {command} {what}: {:?}", outcome.status);
                    assert_eq!(outcome.stdout.is_empty(), outcome.status == Some(0), "{plugin} {command} {what}");
                }
            }
        }
    }
}

#[test]
fn a_plugin_that_aborts_prints_an_error() {
    let lab = Lab::new();
    let netns = lab.netns("a");
    // Sends SIGABRT, as abort() does, in the middle of the work.
    let trace = lab.dir().join("trace");
    let options = ["-qq", "-o", trace.to_str().unwrap(), "-e", "inject=setsockopt:signal=ABRT:when=1"];
    let error = lab.attach("loopback", "ADD", netns).stdin(GOOD).strace(&options).run().error(999);
    assert!(error["details"].as_str().unwrap().contains("DEL"), "{error}");
}
