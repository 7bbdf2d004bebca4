//! `cnitool schema`, judged by another implementation of JSON Schema.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testing::{Process, document, plugins, program_path, skip};

/// Reads `[SCHEMA, [DOCUMENT...]]` and prints for each document the messages of the validator.
const VALIDATOR: &str = "
import json, sys, jsonschema
schema, documents = json.load(sys.stdin)
jsonschema.Draft7Validator.check_schema(schema)
validator = jsonschema.Draft7Validator(schema)
print(json.dumps([[error.json_path + ': ' + error.message for error in validator.iter_errors(document)] for document in documents]))
";

fn schema(argument: Option<&str>) -> Value {
    let call = Process::new(program_path("cnitool")).arg("schema");
    argument.into_iter().fold(call, Process::arg).run().ok()
}

/// Returns the messages of the validator for each document; `None` if it is not installed.
fn judge(test: &str, schema: &Value, documents: &[Value]) -> Option<Vec<Vec<String>>> {
    if Process::new("/usr/bin/python3").arg("-c").arg("import jsonschema").run().status != Some(0) {
        skip(test, "python3-jsonschema is not installed");
        return None;
    }
    let input = json!([schema, documents]).to_string();
    let outcome = Process::new("/usr/bin/python3").arg("-c").arg(VALIDATOR).stdin(input).run();
    serde_json::from_value(outcome.ok()).unwrap()
}

/// Returns all networks in the documents and in the test data: lists, and networks of a single plugin.
fn networks() -> (Vec<Value>, Vec<Value>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut texts = vec![document::read("README.md")];
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            texts.push(fs::read_to_string(path).unwrap());
        }
    }
    let blocks =
        texts.iter().flat_map(|text| text.split("```json\n").skip(1)).map(|rest| rest.split("```").next().unwrap());
    let mut all: Vec<Value> = blocks.map(|block| serde_json::from_str(block).unwrap()).collect();
    for file in ["docs/example.conflist", "testdata/cache/net.conflist"] {
        all.push(serde_json::from_str(&document::read(file)).unwrap());
    }
    let lists = all.iter().filter(|network| network.get("plugins").is_some()).cloned().collect();
    all.retain(|network| network.get("type").is_some());
    (lists, all)
}

#[test]
fn the_networks_in_the_documents_match() {
    let test = "schema::the_networks_in_the_documents_match";
    let (lists, single) = networks();
    assert!(lists.len() > 5 && single.len() > 3, "{} {}", lists.len(), single.len());
    for (argument, documents) in [(None, lists), (Some("--single"), single.clone())] {
        let Some(verdicts) = judge(test, &schema(argument), &documents) else { return };
        for (document, messages) in documents.iter().zip(verdicts) {
            assert_eq!(messages, [""; 0], "{document:#}");
        }
    }
    for document in single {
        let name = document["type"].as_str().unwrap();
        if plugins().iter().any(|plugin| plugin == name) {
            let Some(verdicts) = judge(test, &schema(Some(name)), std::slice::from_ref(&document)) else { return };
            assert_eq!(verdicts, [[""; 0]], "{name}");
        }
    }
}

/// Verifies the example of each key, in the object where the key belongs.
#[test]
fn the_example_of_each_key_matches() {
    let test = "schema::the_example_of_each_key_matches";
    let page = document::read("docs/configuration.md");
    for plugin in plugins() {
        if document::rows(document::section(&page, &plugin)).is_empty() {
            continue;
        }
        let caller = if plugin == "host-local" { "bridge" } else { &plugin };
        let mut documents = Vec::new();
        for key in document::keys_under(&plugin) {
            let mut config = json!({"cniVersion": "1.1.0", "name": "net", "type": caller});
            // The example of a list has what its elements require.
            for list in document::keys_under(&plugin) {
                if key.path.starts_with(&format!("{}[]", list.path)) {
                    *document::value_at(&mut config, &list.path) = list.example;
                }
            }
            *document::value_at(&mut config, &key.path) = key.example;
            if plugin == "host-local" {
                config["ipam"]["type"] = json!("host-local");
            }
            documents.push(config);
        }
        let Some(verdicts) = judge(test, &schema(Some(caller)), &documents) else { return };
        for (document, messages) in documents.iter().zip(verdicts) {
            assert_eq!(messages, [""; 0], "{document:#}");
        }
    }
}

#[test]
fn mistakes_do_not_match() {
    let test = "schema::mistakes_do_not_match";
    let bridge = |keys: Value| {
        let mut plugin = json!({"type": "bridge"});
        plugin.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]})
    };
    let list = |plugin: Value| json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]});
    let mapping = |key: &str, value: Value| {
        let mut mapping = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
        mapping[key] = value;
        list(json!({"type": "portmap", "runtimeConfig": {"portMappings": [mapping]}}))
    };
    let wrong = [
        (json!({"name": "net"}), "$: 'plugins' is a required property"),
        (json!({"plugins": [{"type": "x"}]}), "$: 'name' is a required property"),
        (json!({"name": "net", "plugins": []}), "$.plugins: [] "),
        (json!({"name": "net", "plugins": [{}]}), "$.plugins[0]: 'type' is a required property"),
        (
            json!({"name": "net", "cniVersion": "1.2.0", "plugins": [{"type": "x"}]}),
            "$.cniVersion: '1.2.0' is not one of",
        ),
        (json!({"name": "net", "disableGC": "yes", "plugins": [{"type": "x"}]}), "$.disableGC: 'yes' is not of type"),
        (bridge(json!({"isDefaultGatway": true})), "$.plugins[0]: "),
        (bridge(json!({"isGateway": "true"})), "$.plugins[0].isGateway: 'true' is not of type 'boolean'"),
        (bridge(json!({"ipMasqExclude": [1]})), "$.plugins[0].ipMasqExclude[0]: 1 is not of type 'string'"),
        (bridge(json!({"ipam": {"type": "host-local", "range": []}})), "$.plugins[0].ipam: "),
        (
            bridge(json!({"ipam": {"type": "host-local", "ranges": [{}]}})),
            "$.plugins[0].ipam.ranges[0]: {} is not of type 'array'",
        ),
        (list(json!({"type": "loopback", "mtu": 5})), "$.plugins[0]: "),
        (mapping("hostip", json!("10.0.0.1")), "$.plugins[0].runtimeConfig.portMappings[0]: "),
    ];
    let right = [
        list(json!({"type": "sriov", "master": "eth0"})),
        bridge(
            json!({"ipam": {"type": "whereabouts", "range": "10.0.0.0/8"}, "$comment": "x", "args": {"labels": {}}}),
        ),
        mapping("protocol", json!("TCP")),
        list(json!({"type": "flannel", "delegate": {"type": "sriov", "master": "eth0"}})),
        list(json!({"type": "bandwidth", "shapedSubnets": ["10.0.0.0/8"]})),
        json!({"name": "net", "nerdctlID": "x", "plugins": [{"type": "portmap", "capabilities": {"portMappings": true}}]}),
    ];
    let documents: Vec<Value> = wrong.iter().map(|(document, _)| document.clone()).chain(right).collect();
    let Some(mut verdicts) = judge(test, &schema(None), &documents) else { return };
    let accepted = verdicts.split_off(wrong.len());
    for ((document, want), messages) in wrong.iter().zip(verdicts) {
        assert!(messages.iter().any(|message| message.starts_with(want)), "{document:#}: {messages:#?}");
    }
    for (messages, document) in accepted.iter().zip(&documents[wrong.len()..]) {
        assert_eq!(messages, &[""; 0], "{document:#}");
    }
}

#[test]
fn an_unknown_plugin_has_no_schema() {
    let outcome = Process::new(program_path("cnitool")).arg("schema").arg("bridg").run();
    assert_eq!(outcome.status, Some(1));
    assert_eq!(outcome.stderr, "cnitool: there is no schema of plugin \"bridg\" (did you mean \"bridge\"?)\n");
}
