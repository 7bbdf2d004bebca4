//! Compares the documents with the programs: examples work, and everything the programs support is described.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testing::dhcp::{self, Wire};
use testing::document::{self, Key, code, keys_under, rows, section, value_at};
use testing::{Lab, Outcome, Process, plugins, reference};

/// The heading of the keys that all plugins have.
const COMMON: &str = "Every network";

/// A plugin with keys, which `docs/configuration.md` describes under a heading.
struct Section {
    heading: String,
    /// The plugin to call: `bridge` for the common keys and for those of its delegate.
    plugin: String,
}

/// Returns the sections of all plugins that have keys.
fn sections() -> Vec<Section> {
    let text = document::read("docs/configuration.md");
    let mut headings = plugins();
    headings.retain(|plugin| !rows(section(&text, plugin)).is_empty());
    let plugin = |heading: &String| {
        if [COMMON, "host-local"].contains(&heading.as_str()) { "bridge".to_owned() } else { heading.clone() }
    };
    [vec![COMMON.to_owned()], headings]
        .concat()
        .into_iter()
        .map(|heading| Section { plugin: plugin(&heading), heading })
        .collect()
}

/// Returns a network of `plugin` with everything that the key at `path` needs around it.
fn around(plugin: &str, path: &str) -> Value {
    let range = json!({"subnet": "10.22.0.0/16"});
    let mut config = json!({"cniVersion": "1.1.0", "name": "pods", "type": plugin, "ipam": {"type": "host-local"}});
    // Keys of a range need a range around them.
    let place = path.rsplit_once('.').map_or("", |(place, _)| place);
    if plugin == "dhcp" {
        let ipam = json!({"type": "dhcp", "request": [{"option": "6"}], "provide": [{"option": "host-name"}]});
        return json!({"cniVersion": "1.1.0", "name": "lan", "type": "macvlan", "master": "eth1", "ipam": ipam});
    }
    match place {
        _ if plugin == "static" => {
            config["ipam"] = json!({"type": "static", "addresses": [{"address": "10.22.0.5/16"}]});
        }
        "ipam" if ["ipam.subnet", "ipam.rangeStart", "ipam.rangeEnd", "ipam.gateway"].contains(&path) => {
            config["ipam"]["subnet"] = range["subnet"].clone();
        }
        "runtimeConfig.ipRanges[][]" => config["runtimeConfig"] = json!({"ipRanges": [[range]]}),
        _ => config["ipam"]["ranges"] = json!([[range]]),
    }
    match place {
        "ipam.routes[]" => config["ipam"]["routes"] = json!([{"dst": "192.168.0.0/16"}]),
        "vlanTrunk[]" => config["vlanTrunk"] = json!([{"minID": 1, "maxID": 4094}]),
        "cni.dev/valid-attachments[]" | "cni.dev/attachments[]" => {
            *value_at(&mut config, place) = json!({"containerID": "c0", "ifname": "eth9"});
        }
        _ => {}
    }
    if plugin == "vrf" {
        config["vrfname"] = json!("blue");
    }
    if ["portmap", "firewall", "sbr", "tuning", "vrf"].contains(&plugin) {
        let interfaces = json!([{"name": "lo"}]);
        let ips = json!([{"address": "10.22.0.2/16"}]);
        config["prevResult"] = json!({"cniVersion": "1.1.0", "interfaces": interfaces, "ips": ips});
    }
    if plugin == "vlan" {
        config["master"] = json!("eth1");
        config["vlanId"] = json!(5);
    }
    let describes_device = ["device", "hwaddr", "kernelpath", "pciBusID", "runtimeConfig.deviceID"].contains(&path);
    if plugin == "host-device" && !describes_device {
        config["device"] = json!("eth2");
    }
    if plugin == "portmap" {
        let mapping = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
        config["runtimeConfig"] = json!({"portMappings": [mapping]});
    }
    if plugin == "bandwidth" {
        // A rate needs a burst, and the other way round.
        let both =
            json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000});
        match place {
            "" => config.as_object_mut().unwrap().extend(both.as_object().unwrap().clone()),
            _ => config["runtimeConfig"] = json!({"bandwidth": both}),
        }
    }
    if path == "disableContainerInterface" {
        config.as_object_mut().unwrap().remove("ipam");
    }
    config
}

fn with(plugin: &str, key: &Key, value: Value) -> Value {
    let mut config = around(plugin, &key.path);
    *value_at(&mut config, &key.path) = value;
    config
}

/// Returns all keys, each with the plugin to call.
fn all_keys() -> Vec<(String, Key)> {
    let keys =
        |section: Section| keys_under(&section.heading).into_iter().map(move |key| (section.plugin.clone(), key));
    sections().into_iter().flat_map(keys).collect()
}

/// Returns a value that the key cannot have.
fn wrong_value(key: &Key) -> Value {
    if ["text", "boolean"].contains(&key.kind.as_str()) { json!(5) } else { json!("x") }
}

/// Returns whether the call succeeded; `false` if only a feature of the kernel is missing.
#[track_caller]
fn works(outcome: &Outcome, config: &Value) -> bool {
    let needs_vlans = config.get("vlan").is_some() || config.get("vlanTrunk").is_some();
    if needs_vlans && outcome.status != Some(0) {
        let error = outcome.error(2);
        assert!(error["details"].as_str().unwrap().contains("CONFIG_BRIDGE_VLAN_FILTERING"), "{error}");
        return false;
    }
    // The kernel cannot create such a link; that of `ci/vm` can.
    if outcome.stdout.contains("this kernel has no ") {
        return false;
    }
    assert_eq!(outcome.status, Some(0), "{config}\n{}{}", outcome.stdout, outcome.stderr);
    true
}

/// Runs ADD, CHECK with its result, and DEL.
#[track_caller]
fn survives_add_check_del(lab: &Lab, name: &str, config: &Value, args: &str) {
    survives_as_chain(lab, name, std::slice::from_ref(config), args);
}

/// Runs ADD of all plugins of a list, each with the result of the one before, CHECK with the last result, and DEL in
/// the opposite order.
#[track_caller]
fn survives_as_chain(lab: &Lab, name: &str, configs: &[Value], args: &str) {
    let netns = lab.netns(name);
    if configs.iter().any(|config| config["linkInContainer"] == true) {
        lab.sh(&format!("nsenter --net={} sh -ec '{UPLINK}'", netns.display()));
    }
    let call = |command: &str, config: &Value| {
        let call = lab.plugin(config["type"].as_str().unwrap(), command).attachment(name, "eth0", &netns);
        call.env("CNI_ARGS", args).stdin(config.to_string()).run()
    };
    let with_result = |config: &Value, result: &Option<Value>| {
        let mut config = config.clone();
        if let Some(result) = result {
            config["prevResult"] = result.clone();
        }
        config
    };
    let mut result = None;
    for config in configs {
        let config = with_result(config, &result);
        let added = call("ADD", &config);
        if !works(&added, &config) {
            return;
        }
        result = Some(added.ok());
    }
    let has_check = |config: &&Value| config["cniVersion"].as_str().is_some_and(|version| version >= "0.4.0");
    let checks = configs.iter().filter(has_check).map(|config| ("CHECK", config));
    for (command, config) in checks.chain(configs.iter().rev().map(|config| ("DEL", config))) {
        let config = with_result(config, &result);
        works(&call(command, &config), &config);
    }
}

/// Creates a link that is the master in examples of keys.
const UPLINK: &str = "ip link add eth1 type veth peer name far1; ip link set eth1 up; ip link set far1 up; ip route add default dev eth1";

/// Creates a device of the host, as examples describe it.
const DEVICE: &str = "ip link add eth2 address 0a:58:0a:16:00:02 type veth peer name far2
    mount -t tmpfs sysfs /sys
    for dir in /sys/devices/pci0000:00/0000:00:1f.6 /sys/bus/pci/devices/0000:3d:00.1; do mkdir -p $dir/net/eth2; done";

/// Creates what examples need: the master, a device, and the file that `flannel` reads. Returns a DHCP server on the
/// wire of the master, and the daemon that asks it.
fn prepare_host(lab: &Lab) -> Dhcp {
    lab.sh(UPLINK);
    lab.sh(DEVICE);
    lab.sh("ip link add eth0 type veth peer name far0; ip link set eth0 up; ip link set far0 up");
    let lines = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    lab.sh(&format!("mkdir -p /run/flannel; printf '{lines}' >/run/flannel/subnet.env"));
    let mut leased = Vec::new();
    let wire = Wire::with_end(lab, "far1");
    let server = wire.server(move |request| {
        // Each container has another address.
        let known = leased.iter().position(|mac| *mac == request.mac);
        let place = known.unwrap_or_else(|| {
            leased.push(request.mac);
            leased.len() - 1
        });
        dhcp::Reply::grant(request, [10, 66, 0, 100 + u8::try_from(place).unwrap()], [1800, 3000, 3600])
    });
    let router = wire.router("documents: ipam.ipv6", &["--dhcp-range=fd66::,ra-only"]);
    Dhcp { _daemon: dhcp::daemon(lab, &[]), _server: server, router }
}

/// The daemon of `dhcp`, a server, and a router of IPv6 if it is installed.
struct Dhcp {
    _daemon: dhcp::Service,
    _server: dhcp::Server,
    router: Option<dhcp::Service>,
}

#[test]
fn every_example_of_a_key_works() {
    let lab = Lab::new();
    lab.sh("mkdir -p /run/systemd/resolve; echo nameserver 10.0.0.1 >/run/systemd/resolve/resolv.conf");
    let dhcp = prepare_host(&lab);
    for (count, (plugin, key)) in all_keys().into_iter().enumerate() {
        if key.path == "ipam.ipv6" && dhcp.router.is_none() {
            continue;
        }
        let config = with(&plugin, &key, key.example.clone());
        if key.path.starts_with("cni.dev/") {
            lab.plugin(&plugin, "GC").stdin(config.to_string()).run().ok();
        } else {
            // These plugins change an interface that another one creates.
            let mut chain = vec![config];
            if ["bandwidth", "sbr", "tuning", "vrf"].contains(&plugin.as_str()) {
                chain.insert(0, around("bridge", ""));
            }
            survives_as_chain(&lab, &format!("c{count}"), &chain, "");
        }
    }
}

/// Verifies that a wrong type at a key is reported with the path in the document, which proves that the key is read.
#[test]
fn every_key_is_read_under_its_path() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let mut asked = 0;
    let common = keys_under(COMMON).len();
    for (plugin, key) in all_keys().into_iter().skip(common) {
        let config = with(&plugin, &key, wrong_value(&key));
        let path = key.path.replace("[]", "[0]");
        let outcome = lab.attach(&plugin, "ADD", &netns).stdin(config.to_string()).run();
        assert_eq!(outcome.status, Some(1), "{plugin} does not read the key {path:?}");
        let error = outcome.error(6);
        assert!(error["msg"].as_str().unwrap().contains(&format!("{path:?}")), "{path}: {error}");
        asked += 1;
    }
    assert!(asked > 40, "only {asked} keys");
}

/// Verifies which keys the reference supports, by whether it reports a wrong type. The installed reference has the
/// oldest version in the document or a later one, so keys of newer versions are not checked.
#[test]
fn the_reference_supports_the_keys_as_described() {
    let test = "documents::the_reference_supports_the_keys_as_described";
    let _lab = Lab::without_plugins();
    // Another project has the reference of `flannel`, of which there is no package.
    let is_packaged = |section: &Section| ![COMMON, "flannel"].contains(&section.heading.as_str());
    // The daemon of the reference reads the keys of `dhcp`, and not the plugin.
    let is_read = |section: &Section| section.heading != "dhcp";
    for Section { heading, plugin } in sections().into_iter().filter(is_packaged).filter(is_read) {
        let Some(program) = reference(&heading, test) else { return };
        for key in keys_under(&heading) {
            let mut config = with(&plugin, &key, wrong_value(&key));
            config["cniVersion"] = json!("1.0.0");
            // `static` reads its keys only for ADD, which changes nothing.
            let (command, netns) = if plugin == "static" { ("ADD", "/none") } else { ("DEL", "") };
            let call = Process::plugin(&program, command).attachment("c1", "eth0", netns);
            let outcome = call.env("CNI_PATH", program.parent().unwrap()).stdin(config.to_string()).run();
            let minds = outcome.stdout.contains("cannot unmarshal");
            match key.reference.as_str() {
                "1.1.1" => assert!(minds, "{}: {}", key.path, outcome.stdout),
                "no" => assert!(!minds, "{}: {}", key.path, outcome.stdout),
                "1.9.1" => {}
                other => panic!("{}: column \"reference\" must be 1.1.1, 1.9.1 or no, not {other:?}", key.path),
            }
        }
    }
}

/// Verifies each of our plugins in each network of the documents, on a new host.
#[test]
fn every_network_in_the_documents_works() {
    let mut count = 0;
    for (path, text) in documents() {
        for block in document::blocks(&text, "json") {
            let whole: Value =
                serde_json::from_str(&block).unwrap_or_else(|error| panic!("{path:?}: {error}: {block}"));
            let single = vec![whole.clone()];
            let plugins_of = whole["plugins"].as_array().unwrap_or(&single).iter();
            // Skips results, and plugins of other projects.
            let ours = plugins_of
                .filter(|plugin| plugin["type"].as_str().is_some_and(|name| plugins().iter().any(|ours| ours == name)));
            let configs: Vec<Value> = ours
                .map(|plugin| {
                    let mut config = plugin.clone();
                    for key in ["cniVersion", "name"] {
                        config[key] = whole[key].clone();
                    }
                    config
                })
                .collect();
            let lab = Lab::new();
            let _dhcp = prepare_host(&lab);
            survives_as_chain(&lab, "c1", &configs, "");
            count += configs.len();
        }
    }
    assert!(count >= 4, "only {count} networks");
}

#[test]
fn every_argument_is_described_and_works() {
    let text = document::read("docs/configuration.md");
    let lab = Lab::new();
    let mut described = BTreeSet::new();
    for row in rows(section(&text, "CNI_ARGS")) {
        described.extend(code(row[0]).into_iter().map(str::to_owned));
        let [args] = code(row[2])[..] else { panic!("{row:?}") };
        survives_add_check_del(&lab, &format!("c{}", described.len()), &around("bridge", ""), args);
    }
    let mut known = BTreeSet::from(["IgnoreUnknown".to_owned()]);
    for (_, source) in sources() {
        for call in source.split("Args::parse(").skip(1) {
            let keys = call.split_once('[').and_then(|(_, rest)| rest.split_once(']')).unwrap().0;
            known.extend(keys.split(',').map(|key| key.trim().trim_matches('"').to_owned()));
        }
    }
    assert_eq!(described, known);
}

#[test]
fn every_variable_is_described() {
    let text = document::read("docs/configuration.md");
    let described: BTreeSet<String> =
        rows(section(&text, "Environment")).iter().flat_map(|row| code(row[0])).map(str::to_owned).collect();
    let is_variable = |before: &str, text: &str| {
        let of_protocol =
            text.strip_prefix("CNI_").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
        of_protocol || before.ends_with("process::env(") || before.ends_with("VARIABLE: &str = ")
    };
    let mut known = BTreeSet::new();
    // The names of fields in the journal are not variables.
    for (_, source) in sources().into_iter().filter(|(path, _)| !path.ends_with("logging/daemon.rs")) {
        let names = literals(&source).into_iter().filter(|(before, text)| is_variable(before, text));
        known.extend(names.map(|(_, text)| text));
    }
    assert_eq!(described, known);
}

#[test]
fn every_code_is_described() {
    let text = document::read("docs/operating.md");
    let described: BTreeSet<u32> = rows(section(&text, "Codes")).iter().filter_map(|row| row[0].parse().ok()).collect();
    let mut known = BTreeSet::new();
    for (_, source) in sources() {
        for constant in source.split(": Code = Code(").skip(1) {
            known.insert(constant.split(')').next().unwrap().parse().unwrap());
        }
    }
    // Codes that are never returned need no description.
    for name in ["UNKNOWN_CONTAINER", "LIMITED"] {
        let used = sources().iter().any(|(_, source)| source.contains(&format!("Code::{name}")));
        assert!(!used, "{name} is used: describe it, and remove it from this list");
    }
    known.retain(|code| ![3, 51].contains(code));
    assert_eq!(described, known);
}

/// Compares the text of each error with `docs/operating.md`, which has `…` for variable parts. The steps that precede
/// it are not compared.
#[test]
fn every_error_is_described() {
    let text = document::read("docs/operating.md");
    let described: BTreeSet<String> =
        rows(section(&text, "Texts")).iter().flat_map(|row| code(row[0])).map(str::to_owned).collect();
    let (mut printed, mut all) = (BTreeSet::new(), BTreeSet::new());
    for (_, source) in sources() {
        for (before, text) in literals(&source) {
            let text = blank(&text);
            if ERRORS.iter().any(|begin| before.ends_with(begin)) || makes_error(&before) {
                printed.insert(text.clone());
            }
            all.insert(text);
        }
    }
    // Skips texts that consist only of another text.
    printed.retain(|text| text.chars().any(char::is_alphabetic));
    assert!(printed.len() > 100, "only {} texts found", printed.len());
    let missing: Vec<_> = printed.difference(&described).collect();
    assert!(missing.is_empty(), "docs/operating.md lacks {missing:#?}");
    let gone: Vec<_> = described.difference(&all).collect();
    assert!(gone.is_empty(), "docs/operating.md has texts that no program prints: {gone:#?}");
}

/// The code that precedes an error's text in the sources.
const ERRORS: [&str; 20] = [
    "let what = ",
    "let what = format!(",
    "let what = format_args!(",
    ", format_args!(",
    "flaw(",
    "flaw(format!(",
    "Fault::value(",
    "Fault::value(format!(",
    "contradiction(",
    "contradiction(&format!(",
    "refuse(&format!(",
    "absent(format!(",
    "difference(format!(",
    "missing(format!(",
    "outdated(format!(",
    "refuse(format_args!(",
    "Fault::shape(",
    "Invalid(format!(",
    ".invalid(",
    ".invalid(format!(",
];

/// `Error::new(CODE, ` and `Error::new(CODE, format!(`.
fn makes_error(before: &str) -> bool {
    let call = before.rsplit_once("Error::new(").map(|(_, rest)| rest.trim_end_matches("format!("));
    call.and_then(|rest| rest.strip_suffix(", ")).is_some_and(|code| !code.contains([' ', '(']))
}

/// Returns a format string with `…` for each of its values.
fn blank(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        out.push('…');
        rest = after.split_once('}').map_or("", |(_, rest)| rest);
    }
    out + rest
}

/// Returns every text literal in a source, with the code that precedes it, white space reduced.
fn literals(source: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut before = String::new();
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                let mut text = String::new();
                while let Some(c) = chars.next().filter(|c| *c != '"') {
                    match (c, chars.peek()) {
                        // The line continues, without the leading white space.
                        ('\\', Some('\n')) => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                        ('\\', _) => text.extend(chars.next()),
                        _ => text.push(c),
                    }
                }
                let from = before.char_indices().rev().nth(200).map_or(0, |(at, _)| at);
                found.push((before[from..].to_owned(), text));
                before.push_str("\"\"");
            }
            c if c.is_whitespace() => {
                let spaced = before.ends_with(' ') || before.ends_with('(');
                before.push_str(if spaced { "" } else { " " });
            }
            c => before.push(c),
        }
    }
    found
}

/// Returns the sources of the plugins, without comments and tests.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for package in
        plugins().iter().map(String::as_str).chain(["crates/linux", "crates/cni", "crates/interface", "crates/cni0"])
    {
        walk(&root.join(package).join("src"), "rs", &mut files);
    }
    // Files that are not part of a plugin.
    let shipped = |path: &str| !["tests.rs", "/testing", "/fuzzing"].iter().any(|part| path.contains(part));
    files.retain(|(path, _)| shipped(&path.to_string_lossy()));
    for (_, text) in &mut files {
        let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines = shipped.lines().filter(|line| !line.trim_start().starts_with("//"));
        // A quote as a character literal would look like the beginning of a text.
        *text = lines.map(|line| line.replace("'\"'", "' '") + "\n").collect();
    }
    assert!(files.len() > 30);
    files
}

/// Returns all documents for readers.
fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![(root.join("README.md"), document::read("README.md"))];
    walk(&root.join("docs"), "md", &mut files);
    files
}

fn walk(dir: &Path, extension: &str, into: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, extension, into);
        } else if path.extension().is_some_and(|found| found == extension) {
            let text = fs::read_to_string(&path).unwrap();
            into.push((path, text));
        }
    }
}
