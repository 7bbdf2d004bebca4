use std::collections::BTreeSet;

use super::*;

/// Returns the paths of all keys in a schema, in the notation of [`Shape::keys`].
fn paths(schema: &Value, path: &str, into: &mut BTreeSet<String>) {
    if let Some(item) = schema.get("items") {
        paths(item, &format!("{path}[]"), into);
    }
    let keys = schema.get("properties").and_then(Value::as_object);
    for (key, schema) in keys.into_iter().flatten() {
        let dot = if path.is_empty() { "" } else { "." };
        paths(schema, &format!("{path}{dot}{key}"), into);
    }
    if keys.is_none() && !path.ends_with("[]") {
        into.insert(path.to_owned());
    }
}

fn paths_in(schema: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    paths(schema, "", &mut found);
    found
}

fn at<'a>(schema: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(schema, |schema, key| {
        let name = key.trim_end_matches("[]");
        let schema = &schema["properties"][name];
        (0..key.matches("[]").count()).fold(schema, |schema, _| &schema["items"])
    })
}

fn plugin(name: &str) -> Value {
    Schemas::new().unwrap().plugin(inspect(name).unwrap()).unwrap()
}

#[test]
fn a_schema_has_exactly_the_keys_that_the_plugin_reads() {
    for plugin in PLUGINS {
        let mut wanted: BTreeSet<String> = common_shape().keys().into_keys().collect();
        wanted.extend(conf::PLUGIN_KEYS.map(str::to_owned));
        let own: BTreeSet<String> = plugin.shape().keys().into_keys().collect();
        wanted.extend(own.iter().filter(|path| !path.starts_with("ipam.")).cloned());
        if own.contains("ipam.type") {
            let host_local = inspect("host-local").unwrap().shape().keys();
            wanted.extend(host_local.into_keys().filter(|path| !path.starts_with("ipam.")));
        }
        let has_ipam = own.iter().any(|path| path.starts_with("ipam."));
        wanted.extend(has_ipam.then(|| "ipam.type".to_owned()));
        wanted.extend(plugin.ignored_keys().iter().filter(|key| !key.contains('.')).map(|key| (*key).to_owned()));
        // Objects that any plugin may have.
        for key in known::GENERAL.iter().chain(&known::OPEN) {
            if !wanted.iter().any(|path| path.starts_with(&format!("{key}."))) {
                wanted.insert((*key).to_owned());
            }
        }
        let schema = Schemas::new().unwrap().plugin(*plugin).unwrap();
        assert_eq!(paths_in(&schema), wanted, "{}", plugin.name());
    }
}

#[test]
fn the_schema_of_ipam_has_exactly_the_keys_that_the_plugin_reads() {
    for plugin in known::ipam_plugins() {
        let schema = Schemas::new().unwrap().ipam(plugin).unwrap();
        let mut wanted: BTreeSet<String> = BTreeSet::from(["type".to_owned()]);
        let own = plugin.shape().keys().into_keys();
        wanted.extend(own.filter_map(|path| path.strip_prefix("ipam.").map(str::to_owned)));
        assert_eq!(paths_in(&schema), wanted, "{}", plugin.name());
    }
}

#[test]
fn every_key_is_described() {
    for plugin in PLUGINS {
        let schema = Schemas::new().unwrap().plugin(*plugin).unwrap();
        for (path, _) in plugin.shape().and(common_shape()).keys() {
            if !path.starts_with("ipam.") && !path.contains('/') {
                let described = at(&schema, &path)["description"].as_str().unwrap_or_default();
                assert!(!described.is_empty(), "{} {path}", plugin.name());
                assert!(!described.contains("]("), "{described}");
            }
        }
    }
}

#[test]
fn the_page_describes_the_keys_for_the_runtime() {
    let described: BTreeSet<String> = keys(RUNTIME).unwrap().into_iter().map(|key| key.path).collect();
    let common: BTreeSet<String> = keys(COMMON).unwrap().into_iter().map(|key| key.path).collect();
    let list = conf::LIST_KEYS.iter().map(|key| (*key).to_owned()).filter(|key| !common.contains(key));
    let plugin = conf::PLUGIN_KEYS.iter().map(|key| format!("plugins[].{key}"));
    assert_eq!(described, list.chain(plugin).collect());
}

#[test]
fn a_value_has_the_type_that_the_plugin_reads() {
    for (name, path, wanted) in [
        ("bridge", "isGateway", json!({ "type": "boolean" })),
        ("bridge", "ipMasqExclude[]", json!({ "type": "string" })),
        ("bridge", "mtu", json!({ "type": "integer", "minimum": null, "maximum": null })),
        ("portmap", "runtimeConfig.portMappings", json!({ "type": "array" })),
        ("tuning", "sysctl", json!({ "type": "object" })),
        ("tuning", "txQLen", json!({ "type": "integer", "minimum": null })),
        ("bandwidth", "ingressRate", json!({ "type": "integer", "minimum": 0, "maximum": null })),
        ("firewall", "firewalldZone", json!({ "type": "string", "default": "trusted" })),
        ("flannel", "delegate", json!({ "type": "object" })),
    ] {
        let schema = plugin(name);
        for (key, value) in wanted.as_object().unwrap() {
            assert_eq!(&at(&schema, path)[key], value, "{name} {path} {key}");
        }
    }
}

#[test]
fn references_lead_to_definitions() {
    let schemas = Schemas::new().unwrap();
    let single = PLUGINS.iter().map(|plugin| schemas.of_plugin(*plugin).unwrap());
    for schema in [schemas.list().unwrap(), schemas.single().unwrap()].into_iter().chain(single) {
        let text = schema.to_string();
        for reference in text.split("\"#/definitions/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schema["definitions"].get(name).is_some(), "{name}");
        }
    }
}

#[test]
fn links_are_removed_from_descriptions() {
    let text = plain("the [log](operating.md#x): `[[a]]`, [b and (c) `d[]`, [e](f)");
    assert_eq!(text, "the log: `[[a]]`, [b and (c) `d[]`, e");
}

#[test]
fn an_unknown_plugin_is_refused() {
    assert_eq!(unknown("bridg").details_text(), "did you mean \"bridge\"?");
    assert!(unknown("sriov").details_text().starts_with("use one of bandwidth, bridge, "));
}
