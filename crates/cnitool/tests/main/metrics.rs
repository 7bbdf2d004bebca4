//! `cnitool metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use testing::{Process, document, skip};

use crate::node::{attach, attach_with, host, leak, lose_namespace, network, powerless, snapshot};
use crate::support::{Host, failure};

/// The values by name and labels, as they are written.
type Metrics = BTreeMap<String, f64>;

/// Parses the text format of Prometheus strictly: each metric has HELP and TYPE before its samples and is not
/// interrupted by another, names and labels are valid, and no sample appears twice.
#[track_caller]
fn parse(text: &str) -> Metrics {
    assert!(text.ends_with('\n'), "the last line must end");
    let (mut metrics, mut seen) = (Metrics::new(), BTreeSet::new());
    let (mut current, mut is_histogram) = (String::new(), false);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(!help.is_empty() && seen.insert(name.to_owned()), "{line}");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert!(["gauge", "counter", "histogram"].contains(&kind), "{kind}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            is_histogram = kind == "histogram";
            current = name.to_owned();
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let suffix = name.strip_prefix(current.as_str()).unwrap_or_else(|| panic!("{line}"));
        assert!(
            if is_histogram { ["_bucket", "_sum", "_count"].contains(&suffix) } else { suffix.is_empty() },
            "{line}"
        );
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
        check_labels(&series[name.len()..]);
        let value: f64 = value.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(suffix == "_sum" || value.fract() == 0.0, "{line}");
        assert!(metrics.insert(series.to_owned(), value).is_none(), "twice: {line}");
    }
    metrics
}

/// Checks `{name="value",…}` with the escapes of the format.
#[track_caller]
fn check_labels(labels: &str) {
    let Some(mut rest) = labels.strip_prefix('{') else { return assert_eq!(labels, "") };
    loop {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{labels}"));
        assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{labels}");
        let mut escaped = false;
        let end = after.find(|letter| {
            let ends = letter == '"' && !escaped;
            assert!(!escaped || ['\\', '"', 'n'].contains(&letter), "{labels}");
            escaped = letter == '\\' && !escaped;
            ends
        });
        rest = &after[end.unwrap_or_else(|| panic!("{labels}")) + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return assert_eq!(rest, "}", "{labels}"),
        }
    }
}

fn metrics(host: &Host) -> Metrics {
    let outcome = host.run("metrics");
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    parse(&outcome.stdout)
}

#[test]
fn everything_is_counted() {
    let host = host("10.209.0.0/24");
    let mut with_ports = network("pods", "10.209.0.0/24", &json!({}));
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    with_ports["plugins"].as_array_mut().unwrap().push(portmap);
    host.configure("10-pods.conflist", &with_ports.to_string());
    host.configure("20-broken.conflist", "{");
    let mapping = |port: u16| json!({ "hostPort": port, "containerPort": 80, "protocol": "tcp" });
    let published = json!({ "portMappings": [mapping(8080), mapping(8081)] });
    attach_with(&host, "blue", &published.to_string());
    let lost = attach(&host, "lost");
    lose_namespace(&host, "lost", &lost);
    leak("10.209.0.77", "");
    fs::write("/var/lib/cni/results/pods-x-eth0", "garbage").unwrap();
    let before = snapshot(&host);
    let found = metrics(&host);
    assert_eq!(snapshot(&host), before, "it changes nothing");
    let range = r#"{network="pods",range="10.209.0.1-10.209.0.254"}"#;
    for (name, value) in [
        (format!("cnitool_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0),
        (format!("cni_range_addresses{range}"), 253.0),
        (format!("cni_range_addresses_used{range}"), 2.0),
        (format!("cni_range_addresses_free{range}"), 251.0),
        (r#"cni_attachments{network="pods",state="alive"}"#.to_owned(), 1.0),
        (r#"cni_attachments{network="pods",state="gone"}"#.to_owned(), 1.0),
        (r#"cni_attachments{network="pods",state="unknown"}"#.to_owned(), 0.0),
        (r#"cni_attachments{network="pods",state="no_port"}"#.to_owned(), 0.0),
        (r#"cni_stale_leases{network="pods"}"#.to_owned(), 2.0),
        (r#"cni_objects{network="pods",kind="portmap"}"#.to_owned(), 2.0),
        (r#"cni_objects{network="pods",kind="masquerade"}"#.to_owned(), 2.0),
        ("cni_broken_configurations".to_owned(), 1.0),
        (r#"cni_findings{id="lease-left",level="warn",network="pods"}"#.to_owned(), 1.0),
        ("cni_unreadable_results".to_owned(), 1.0),
    ] {
        assert_eq!(found.get(&name), Some(&value), "{name} in {found:#?}");
    }
}

#[test]
fn calls_are_counted_from_enable_to_disable() {
    let host = host("10.253.16.0/24");
    let count_of = |found: &Metrics, labels: &str| {
        found.get(&format!("cni_call_duration_seconds_count{{{labels}}}")).copied().unwrap_or_default()
    };
    let (add, del) = (r#"plugin="bridge",command="ADD""#, r#"plugin="bridge",command="DEL""#);
    attach(&host, "before");
    assert!(!metrics(&host).keys().any(|series| series.starts_with("cni_call_")), "off by default");
    assert_eq!(host.run("metrics --enable").status, Some(0));
    assert_eq!(fs::metadata(cni::calls::DIR).unwrap().permissions().mode() & 0o777, 0o700);

    let blue = attach(&host, "blue");
    let taken = failure(&host.call("add pods /run/netns/blue").run());
    assert!(taken.contains("(") && !blue.is_empty(), "{taken}");
    host.run("del pods /run/netns/blue").silent();
    fs::write("/run/cni0/calls/bridge.1", "garbage").unwrap();
    let found = metrics(&host);
    assert_eq!((count_of(&found, add), found["cni_not_inspected"]), (2.0, 1.0), "{found:#?}");
    assert!(count_of(&found, del) >= 1.0, "{found:#?}");
    let bucket = |le: &str| found[&format!("cni_call_duration_seconds_bucket{{{add},le=\"{le}\"}}")];
    assert!(bucket("0.0005") <= bucket("0.05") && bucket("+Inf") == 2.0, "{found:#?}");
    assert!(found[&format!("cni_call_duration_seconds_sum{{{add}}}")] > 0.0);
    let failures: f64 =
        found.iter().filter(|(series, _)| series.starts_with("cni_call_failures_total")).map(|(_, n)| n).sum();
    assert_eq!(failures, 1.0, "{found:#?}");
    assert!(found.keys().any(|series| series.starts_with(&format!("cni_call_failures_total{{{add},code=\""))));

    assert_eq!(host.run("metrics --disable").status, Some(0));
    attach(&host, "after");
    assert!(!fs::exists(cni::calls::DIR).unwrap() && host.run("metrics --disable").status == Some(0));
    for words in ["metrics --enable --disable", "metrics --enable --output x"] {
        let outcome = host.run(words);
        assert_eq!(outcome.status, Some(2));
        assert!(outcome.stderr.contains("only one of --output, --enable and --disable"), "{outcome:?}");
    }
}

/// Returns the words of a text that are names of metrics.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("cni_") || word.starts_with("cnitool_build")).collect()
}

/// A host with a full range, an invalid configuration and a failed call, whose calls are counted.
fn broken_host(subnet: &str) -> Host {
    let host = host(subnet);
    assert_eq!(host.run("metrics --enable").status, Some(0));
    attach(&host, "blue");
    let green = host.lab.netns("green");
    failure(&host.run(&format!("add pods {}", green.display())));
    host.configure("20-broken.conflist", "{");
    host
}

#[test]
fn rules_and_dashboard_use_metrics_that_exist() {
    let found = metrics(&broken_host("10.253.17.0/30"));
    let known: BTreeSet<&str> = found.keys().map(|series| series.split('{').next().unwrap()).collect();
    let unseen = BTreeSet::from(["cni_ended_leases"]); // only with leases of a server
    for file in ["cni0.rules.yml", "dashboard.json"] {
        let text = document::read(&format!("deploy/prometheus/{file}"));
        let used = names(&text);
        assert!(used.len() > 5 && used.iter().all(|name| known.contains(name) || unseen.contains(name)), "{used:?}");
    }
}

/// The metrics of a node with problems cause the alerts.
#[test]
fn the_rules_work_on_real_output() {
    let promtool = |arguments: &[&str]| arguments.iter().fold(Process::new("promtool"), |call, word| call.arg(word));
    if Process::new("sh").arg("-c").arg("command -v promtool").run().status != Some(0) {
        return skip("the_rules_work_on_real_output", "there is no promtool (Debian's package prometheus)");
    }
    let host = broken_host("10.253.18.0/30");
    let output = host.run("metrics").stdout;
    let checked = promtool(&["check", "metrics"]).stdin(output.clone()).run();
    assert_eq!((checked.status, checked.stderr.as_str()), (Some(0), ""), "{checked:?}");
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus/cni0.rules.yml");
    let own_tests = rules.replace("rules.yml", "test.yml");
    let series: Vec<Value> = parse(&output)
        .iter()
        .map(|(name, value)| {
            let is_counter = ["_total", "_bucket", "_count", "_sum"]
                .iter()
                .any(|end| name.split('{').next().unwrap().ends_with(end));
            // A counter grows by its value every minute.
            let growth = if is_counter { *value } else { 0.0 };
            json!({ "series": name, "values": format!("{value}+{growth}x120") })
        })
        .collect();
    let fires = ["CniBrokenConfiguration", "CniCallsFail", "CniFailure", "CniNoAddressesLeft"];
    let samples: Vec<Value> =
        fires.iter().map(|name| json!({ "labels": format!("{{alertname=\"{name}\"}}"), "value": 1 })).collect();
    let firing = format!("group by (alertname) (ALERTS{{alertstate=\"firing\",alertname=~\"{}\"}})", fires.join("|"));
    let test = json!({
        "rule_files": [rules], "evaluation_interval": "1m",
        "tests": [{ "interval": "1m", "input_series": series,
            "promql_expr_test": [{ "expr": firing, "eval_time": "110m", "exp_samples": samples }] }],
    });
    let file = host.lab.dir().join("test.yml");
    fs::write(&file, test.to_string()).unwrap();
    for tests in [own_tests.as_str(), file.to_str().unwrap()] {
        let outcome = promtool(&["test", "rules", tests]).run();
        assert_eq!(outcome.status, Some(0), "{outcome:?}\n{output}");
    }
}

#[test]
fn any_name_is_a_valid_label() {
    let host = Host::new();
    // Without a configuration, the name of a lease directory is the name of the network.
    for name in ["plain", "a\"b", "c\\d", "e\nf", "g\u{fc}", "{x=\"y\"}"] {
        let path = std::path::Path::new("/var/lib/cni/networks").join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("10.1.0.2"), "").unwrap();
    }
    let found = metrics(&host);
    for name in ["plain", "a\\\"b", "c\\\\d", "e\\nf", "g\u{fc}", "{x=\\\"y\\\"}"] {
        let series = format!("cni_stale_leases{{network=\"{name}\"}}");
        assert_eq!(found.get(&series), Some(&1.0), "{series} in {found:#?}");
    }
}

#[test]
fn a_large_range_is_a_number() {
    let host = host("fd00:191::/64");
    let series = r#"cni_range_addresses{network="pods",range="fd00:191::1-fd00:191::ffff:ffff:ffff:ffff"}"#;
    assert!(metrics(&host)[series] > 1e19);
}

#[test]
fn a_file_is_replaced_atomically() {
    let host = host("10.210.0.0/24");
    let dir = host.lab.dir().join("collector");
    fs::create_dir(&dir).unwrap();
    let file = dir.join("cnitool.prom");
    let run = |mask: &str| {
        let call = host.call(&format!("metrics --output {}", file.display()));
        call.via_shell(&format!("umask {mask}; exec \"$0\" \"$@\"")).run()
    };
    run("077").silent();
    parse(&fs::read_to_string(&file).unwrap());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644, "whatever the umask is");
    let old = fs::File::open(&file).unwrap();
    run("022").silent();
    assert_eq!(old.metadata().map(|inode| std::os::unix::fs::MetadataExt::nlink(&inode)).unwrap(), 0, "a new file");
    let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["cnitool.prom"], "no draft is left");
    let (_, trace) = host
        .call(&format!("metrics --output={}", file.display()))
        .trace(&host.lab, &["-f", "-e", "trace=openat,rename,renameat,renameat2,open"]);
    assert!(!trace.contains(&format!("\"{}\", O_WR", file.display())), "never written in place: {trace}");
}

#[test]
fn only_a_regular_file_is_replaced() {
    let host = host("10.212.0.0/24");
    let dir = host.lab.dir();
    std::os::unix::fs::symlink("/dev/null", dir.join("link")).unwrap();
    for (path, why) in [
        (dir.join("link"), "it exists and is not a regular file"),
        (dir.to_owned(), "it exists and is not a regular file"),
        ("/".into(), "it is not the path of a file"),
        (dir.join("no/such/x.prom"), "No such file or directory"),
    ] {
        let line = failure(&host.run(&format!("metrics --output {}", path.display())));
        assert!(line.starts_with(&format!("write {}: ", path.display())) && line.contains(why), "{line}");
    }
}

#[test]
fn without_root_numbers_that_are_unknown_are_missing() {
    let host = host("10.215.0.0/24");
    attach(&host, "blue");
    let outcome = powerless(&host, "metrics");
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    let found = parse(&outcome.stdout);
    assert!(found["cni_not_inspected"] > 0.0, "{found:#?}");
    let masquerade = found.keys().any(|series| series.contains("masquerade"));
    assert!(!masquerade, "rules cannot be listed without root: {found:#?}");
}
