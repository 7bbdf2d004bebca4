//! The documents against the programs: what they say works, and what the programs know is said.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cni::testing::document::{self, Key, code, keys_under, rows, section, value_at};
use cni::testing::{Calling, Lab, Outcome, PLUGINS, reference};
use serde_json::{Value, json};

/// A network with everything on the way to `path` that the key needs around it.
fn around(path: &str) -> Value {
    let range = json!({"subnet": "10.22.0.0/16"});
    let mut config = json!({"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": {"type": "host-local"}});
    // Keys of a range stand in one, wherever ranges are.
    let place = path.rsplit_once('.').map_or("", |(place, _)| place);
    match place {
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
    if path == "disableContainerInterface" {
        config.as_object_mut().unwrap().remove("ipam");
    }
    config
}

fn with(key: &Key, value: Value) -> Value {
    let mut config = around(&key.path);
    *value_at(&mut config, &key.path) = value;
    config
}

/// The keys of all plugins.
fn all_keys() -> Vec<Key> {
    ["Every network", "bridge", "host-local"].into_iter().flat_map(keys_under).collect()
}

/// Succeeded, or was understood and needs a kernel that can do it.
#[track_caller]
fn works(outcome: &Outcome, config: &Value) -> bool {
    let needs_vlans = config.get("vlan").is_some() || config.get("vlanTrunk").is_some();
    if needs_vlans && outcome.status != Some(0) {
        let error = outcome.error(2);
        assert!(error["details"].as_str().unwrap().contains("CONFIG_BRIDGE_VLAN_FILTERING"), "{error}");
        return false;
    }
    assert_eq!(outcome.status, Some(0), "{config}\n{}{}", outcome.stdout, outcome.stderr);
    true
}

/// ADD, CHECK with its answer, DEL.
#[track_caller]
fn lives(lab: &Lab, name: &str, config: &Value, args: &str) {
    let plugin = config["type"].as_str().unwrap();
    let netns = lab.netns(name);
    let call = |command: &str, config: &Value| {
        let call = lab.plugin(plugin, command).attachment(name, "eth0", &netns);
        call.env("CNI_ARGS", args).stdin(config.to_string()).run()
    };
    let added = call("ADD", config);
    if works(&added, config) {
        let mut config = config.clone();
        config["prevResult"] = added.ok();
        works(&call("CHECK", &config), &config);
        works(&call("DEL", &config), &config);
    }
}

#[test]
fn every_example_of_a_key_works() {
    let lab = Lab::new();
    lab.sh("mkdir -p /run/systemd/resolve; echo nameserver 10.0.0.1 >/run/systemd/resolve/resolv.conf");
    for (count, key) in all_keys().into_iter().enumerate() {
        let config = with(&key, key.example.clone());
        if key.path.starts_with("cni.dev/") {
            lab.plugin("bridge", "GC").stdin(config.to_string()).run().ok();
        } else {
            lives(&lab, &format!("c{count}"), &config, "");
        }
    }
}

/// A wrong type at the key is noticed, and called by the name that the document has for it. So the key is known.
#[test]
fn every_key_is_known_by_its_path() {
    let lab = Lab::new();
    let netns = lab.netns("c1");
    let mut asked = 0;
    for key in keys_under("bridge").into_iter().chain(keys_under("host-local")) {
        let wrong = if ["text", "boolean"].contains(&key.kind.as_str()) { json!(5) } else { json!("x") };
        let config = with(&key, wrong);
        let error = lab.attach("bridge", "ADD", &netns).stdin(config.to_string()).run().error(6);
        let path = key.path.replace("[]", "[0]");
        assert!(error["msg"].as_str().unwrap().contains(&format!("{path:?}")), "{path}: {error}");
        asked += 1;
    }
    assert!(asked > 40, "only {asked} keys");
}

/// Which keys the reference knows, seen by whether it minds a wrong type. The one at hand is of the oldest version that
/// the document tells of, or later: what it must not know is only known to be missing in ours.
#[test]
fn the_reference_knows_what_it_is_said_to_know() {
    let test = "documents::the_reference_knows_what_it_is_said_to_know";
    let (Some(bridge), Some(_)) = (reference("bridge", test), reference("host-local", test)) else { return };
    let _lab = Lab::bare();
    for (heading, plugin) in [("bridge", "bridge"), ("host-local", "host-local")] {
        for key in keys_under(heading) {
            let wrong = if ["text", "boolean"].contains(&key.kind.as_str()) { json!(5) } else { json!("x") };
            let mut config = with(&key, wrong);
            config["cniVersion"] = json!("1.0.0");
            let call = Calling::new(&bridge.with_file_name(plugin), "DEL").attachment("c1", "eth0", "");
            let outcome = call.env("CNI_PATH", bridge.parent().unwrap()).stdin(config.to_string()).run();
            let minds = outcome.stdout.contains("cannot unmarshal");
            match key.reference.as_str() {
                "1.1.1" => assert!(minds, "{}: {}", key.path, outcome.stdout),
                "no" => assert!(!minds, "{}: {}", key.path, outcome.stdout),
                "1.9.1" => {}
                other => panic!("{}: no version {other:?}", key.path),
            }
        }
    }
}

/// Each of our plugins in each network that the documents show works, on a host of its own.
#[test]
fn every_network_in_the_documents_works() {
    let mut lived = 0;
    for (path, text) in documents() {
        for block in text.split("```json\n").skip(1) {
            let block = block.split("```").next().unwrap();
            let whole: Value = serde_json::from_str(block).unwrap_or_else(|error| panic!("{path:?}: {error}: {block}"));
            let single = vec![whole.clone()];
            for plugin in whole["plugins"].as_array().unwrap_or(&single) {
                // Answers, and plugins of others.
                if !plugin["type"].as_str().is_some_and(|name| PLUGINS.contains(&name)) {
                    continue;
                }
                let mut config = plugin.clone();
                for key in ["cniVersion", "name"] {
                    config[key] = whole[key].clone();
                }
                lives(&Lab::new(), "c1", &config, "");
                lived += 1;
            }
        }
    }
    assert!(lived >= 4, "only {lived} networks");
}

#[test]
fn every_argument_is_described_and_works() {
    let text = document::read("docs/configuration.md");
    let lab = Lab::new();
    let mut described = BTreeSet::new();
    for row in rows(section(&text, "CNI_ARGS")) {
        described.extend(code(row[0]).into_iter().map(str::to_owned));
        let [args] = code(row[2])[..] else { panic!("{row:?}") };
        lives(&lab, &format!("c{}", described.len()), &around(""), args);
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
    let mut known = BTreeSet::from(["PATH".to_owned()]);
    for (_, source) in sources() {
        let names = literals(&source).into_iter().map(|(_, text)| text);
        known.extend(names.filter(|text| {
            text.strip_prefix("CNI_").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        }));
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
    // What nobody answers needs no description.
    for name in ["UNKNOWN_CONTAINER", "LIMITED"] {
        let used = sources().iter().any(|(_, source)| source.contains(&format!("Code::{name}")));
        assert!(!used, "{name} is used: describe it, and take it off this list");
    }
    known.retain(|code| ![3, 51].contains(code));
    assert_eq!(described, known);
}

/// What an error says at its core, with `…` for what differs from case to case. The steps that led there stand before it.
#[test]
fn every_error_is_described() {
    let text = document::read("docs/operating.md");
    let described: BTreeSet<String> =
        rows(section(&text, "Texts")).iter().flat_map(|row| code(row[0])).map(str::to_owned).collect();
    let (mut said, mut all) = (BTreeSet::new(), BTreeSet::new());
    for (_, source) in sources() {
        for (before, text) in literals(&source) {
            let text = blank(&text);
            if ERRORS.iter().any(|begin| before.ends_with(begin)) || makes_error(&before) {
                said.insert(text.clone());
            }
            all.insert(text);
        }
    }
    // Nothing but what another text says.
    said.retain(|text| text.chars().any(char::is_alphabetic));
    assert!(said.len() > 100, "only {} texts found", said.len());
    let missing: Vec<_> = said.difference(&described).collect();
    assert!(missing.is_empty(), "docs/operating.md lacks {missing:#?}");
    let gone: Vec<_> = described.difference(&all).collect();
    assert!(gone.is_empty(), "docs/operating.md has what no program says: {gone:#?}");
}

/// What stands in front of an error's text in the source.
const ERRORS: [&str; 15] = [
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
    "missing(format!(",
    "Fault::shape(",
    "Invalid(format!(",
];

/// `Error::new(CODE, ` and `Error::new(CODE, format!(`.
fn makes_error(before: &str) -> bool {
    let call = before.rsplit_once("Error::new(").map(|(_, rest)| rest.trim_end_matches("format!("));
    call.and_then(|rest| rest.strip_suffix(", ")).is_some_and(|code| !code.contains([' ', '(']))
}

/// A format's text, with `…` for each of its values.
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

/// Every text in a source, with what stands before it, white space taken together.
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
                        // The line goes on, without the white space before it.
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

/// The sources of the plugins, without comments and tests.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for package in ["cni", "bridge", "host-local", "loopback", "cni0"] {
        walk(&root.join(package).join("src"), "rs", &mut files);
    }
    // What no plugin has in it.
    let shipped = |path: &str| !["tests.rs", "/testing", "/fuzzing"].iter().any(|part| path.contains(part));
    files.retain(|(path, _)| shipped(&path.to_string_lossy()));
    for (_, text) in &mut files {
        let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines = shipped.lines().filter(|line| !line.trim_start().starts_with("//"));
        // Quotes that are characters would seem to begin a text.
        *text = lines.map(|line| line.replace("'\"'", "' '") + "\n").collect();
    }
    assert!(files.len() > 30);
    files
}

/// Everything that people read.
fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
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
