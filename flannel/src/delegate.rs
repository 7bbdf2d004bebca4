//! The configuration of the delegate: the keys in `delegate` and `ipam`, and what the subnet file adds.

use std::collections::BTreeMap;

use cni::json::{self, Raw};
use cni::{Call, Result, Route, Version};
use linux::ip::Cidr;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::config::{BRIDGE, Config, is_delegate};
use crate::subnet::SubnetFile;

/// Keys that a runtime adds for one call, besides the previous result. The delegate gets them unchanged.
const LISTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];
const PREV_RESULT: &str = "prevResult";

/// The key of a state file that names the interface. Delegates ignore it.
pub(crate) const IFNAME_KEY: &str = "cni0/ifname";

/// The configuration of the delegate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DelegateConfig {
    /// All keys but `ipam`.
    keys: Map<String, Value>,
    ipam: Map<String, Value>,
}

impl DelegateConfig {
    /// Generates the configuration from the subnet file. A key of `delegate` takes precedence over the generated value.
    pub(crate) fn generate(call: &Call<'_>, config: &Config, file: &SubnetFile) -> Result<DelegateConfig> {
        let mut delegate = DelegateConfig::without_subnets(call, config)?;
        let to_cluster = file.networks.iter().map(|network| Route::new(*network, None));
        let routes = config.routes.iter().cloned().chain(to_cluster).map(|route| json!(route));
        delegate.ipam.insert("routes".to_owned(), routes.collect());
        delegate.set_subnets(&file.subnets);
        delegate.set_default("ipMasq", json!(!file.ip_masq));
        delegate.set_default("mtu", json!(file.mtu));
        if config.exclude_cluster {
            delegate.set_default("ipMasqExclude", json!(file.networks));
        }
        Ok(delegate)
    }

    /// Generates a configuration for DEL and GC without a subnet file. The subnets are those of the previous result, if
    /// there is one.
    pub(crate) fn generate_to_clean_up(call: &Call<'_>, config: &Config) -> Result<DelegateConfig> {
        let mut delegate = DelegateConfig::without_subnets(call, config)?;
        let subnets: Vec<Cidr> = call.prev_result_to_clean_up().ips.iter().map(|ip| ip.address.network()).collect();
        if !subnets.is_empty() {
            delegate.set_subnets(&subnets);
        }
        Ok(delegate)
    }

    fn without_subnets(call: &Call<'_>, config: &Config) -> Result<DelegateConfig> {
        let mut delegate = DelegateConfig { keys: config.delegate.clone(), ipam: config.ipam.clone() };
        delegate.set_default("type", json!(BRIDGE));
        if delegate.kind() == Some(BRIDGE) {
            delegate.set_default("isGateway", json!(true));
        }
        delegate.ipam.entry("type").or_insert_with(|| json!("host-local"));
        delegate.keys.insert("name".to_owned(), json!(call.network.as_str()));
        delegate.set_version(call)?;
        if let Some(runtime_config) = &config.runtime_config {
            delegate.keys.insert("runtimeConfig".to_owned(), runtime_config.clone().into());
        }
        Ok(delegate)
    }

    /// Parses the configuration of an earlier ADD; `None` if it cannot be one of this network: each has an object
    /// `ipam`, the name of a delegate, and a supported version.
    pub(crate) fn parse(text: &str, network: &str) -> Option<DelegateConfig> {
        let mut keys: Map<String, Value> = serde_json::from_str(text).ok()?;
        let Some(Value::Object(ipam)) = keys.remove("ipam") else { return None };
        let delegate = DelegateConfig { keys, ipam };
        let is_of_network = delegate.keys.get("name").and_then(Value::as_str) == Some(network);
        let has_version = match delegate.keys.get("cniVersion") {
            None | Some(Value::Null) => true,
            Some(version) => version.as_str().and_then(Version::exact).is_some(),
        };
        (is_of_network && has_version && delegate.kind().is_some_and(is_delegate)).then_some(delegate)
    }

    /// Parses a state file like [`DelegateConfig::parse`]. Also returns the text that the delegate got at ADD.
    pub(crate) fn parse_state(text: &str, network: &str) -> Result<Option<(DelegateConfig, String)>> {
        let Some(mut delegate) = DelegateConfig::parse(text, network) else { return Ok(None) };
        let text = match delegate.keys.remove(IFNAME_KEY) {
            Some(_) => delegate.to_text()?,
            None => text.to_owned(),
        };
        Ok(Some((delegate, text)))
    }

    /// Prints the state file of an attachment with this interface.
    pub(crate) fn to_state(&self, ifname: &str) -> Result<String> {
        let mut state = self.clone();
        state.keys.insert(IFNAME_KEY.to_owned(), json!(ifname));
        state.to_text()
    }

    /// Returns the name of the delegate.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.keys.get("type").and_then(Value::as_str)
    }

    /// Returns the MTU of containers; `None` if the kernel chooses it.
    pub(crate) fn mtu(&self) -> Option<u32> {
        self.keys.get("mtu").and_then(Value::as_u64).and_then(|mtu| u32::try_from(mtu).ok()).filter(|mtu| *mtu > 0)
    }

    /// Replaces the subnets of an earlier ADD. If the node has another subnet now, the delegate can then tell which of
    /// its gateway addresses are outdated.
    pub(crate) fn replace_subnets(&mut self, subnets: &[Cidr]) {
        // Before 2021, the reference wrote `subnet` into its state files.
        if !self.ipam.contains_key("ranges") {
            self.ipam.remove("subnet");
        }
        self.set_subnets(subnets);
    }

    fn set_subnets(&mut self, subnets: &[Cidr]) {
        let sets = subnets.iter().map(|subnet| json!([{ "subnet": subnet }]));
        self.ipam.insert("ranges".to_owned(), sets.collect());
    }

    /// Replaces the version by that of the call, unless the call has none.
    pub(crate) fn set_version(&mut self, call: &Call<'_>) -> Result<()> {
        if let Some(version) = version(call)? {
            self.keys.insert("cniVersion".to_owned(), json!(version));
        }
        Ok(())
    }

    /// Adds what the runtime sent with this call: the previous result, and the list of valid attachments.
    pub(crate) fn add_call_keys(&mut self, call: &Call<'_>) -> Result<()> {
        let sent: BTreeMap<String, Raw<'_>> = call.parse()?;
        // Plugins refuse a previous result in another version, even for DEL.
        let own_version = self.keys.get("cniVersion").and_then(Value::as_str).unwrap_or_default();
        let is_same = own_version == version(call)?.unwrap_or_default();
        for key in LISTS.into_iter().chain(is_same.then_some(PREV_RESULT)) {
            if let Some(value) = sent.get(key).and_then(|raw| serde_json::from_str(raw.text()).ok()) {
                self.keys.insert(key.to_owned(), value);
            }
        }
        Ok(())
    }

    /// Prints the configuration as the reference does: compact, with sorted keys.
    pub(crate) fn to_text(&self) -> Result<String> {
        let mut whole = self.keys.clone();
        whole.insert("ipam".to_owned(), Value::Object(self.ipam.clone()));
        Ok(String::from_utf8_lossy(&json::compact(&whole)?).into_owned())
    }

    fn set_default(&mut self, key: &str, value: Value) {
        self.keys.entry(key).or_insert(value);
    }
}

/// Returns the version in the configuration of the call, if it has one.
fn version(call: &Call<'_>) -> Result<Option<String>> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Head {
        cni_version: String,
    }
    let Head { cni_version } = call.parse()?;
    Ok(Some(cni_version).filter(|version| !version.is_empty()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SUBNET: &str =
        "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=true\n";
    const SUBNET6: &str = "FLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\n";

    /// Returns what the delegate gets for a configuration with these keys.
    fn generated(keys: Value, subnet: &str) -> Value {
        let mut config = json!({"name": "cni-flannel", "type": "flannel"});
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let text = config.to_string();
        let call = Call::for_config(&text).unwrap();
        let file = SubnetFile::parse(Path::new("subnet.env"), subnet).unwrap();
        let delegate = DelegateConfig::generate(&call, &Config::parse(&call).unwrap(), &file).unwrap();
        serde_json::from_str(&delegate.to_text().unwrap()).unwrap()
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let wanted = json!({
            "name": "cni-flannel", "type": "bridge", "ipMasq": false, "isGateway": true, "mtu": 1472,
            "ipam": {
                "type": "host-local", "ranges": [[{"subnet": "10.1.17.0/24"}]], "routes": [{"dst": "10.1.0.0/16"}],
            },
        });
        assert_eq!(generated(json!({}), SUBNET), wanted);
        assert_eq!(generated(json!({"delegate": null, "ipam": null, "dns": {}, "ipMasq": true}), SUBNET), wanted);
        let dual = generated(json!({}), &format!("{SUBNET6}{SUBNET}"));
        assert_eq!(dual["ipam"]["ranges"], json!([[{"subnet": "10.1.17.0/24"}], [{"subnet": "fc00::/64"}]]));
        assert_eq!(dual["ipam"]["routes"], json!([{"dst": "10.1.0.0/16"}, {"dst": "fc00::/48"}]));
    }

    #[test]
    fn keys_of_the_delegate_take_precedence() {
        let delegate = json!({
            "type": "bridge", "mtu": null, "ipMasq": true, "isGateway": false, "cniVersion": "0.4.0",
            "hairpinMode": true, "runtimeConfig": {"a": 1},
        });
        let config = generated(json!({"delegate": delegate, "runtimeConfig": {"b": 2}, "cniVersion": "1.0.0"}), SUBNET);
        assert_eq!(
            (&config["mtu"], &config["ipMasq"], &config["isGateway"]),
            (&json!(null), &json!(true), &json!(false))
        );
        assert_eq!(config["cniVersion"], "1.0.0");
        assert_eq!(config["runtimeConfig"], json!({"b": 2}));
        assert_eq!(config["hairpinMode"], true);
        let config = generated(json!({"delegate": {"type": "macvlan", "cniVersion": "0.4.0"}}), SUBNET);
        assert_eq!((config.get("isGateway"), &config["mtu"]), (None, &json!(1472)));
        assert_eq!(config["cniVersion"], "0.4.0", "an absent version leaves that of the delegate");
    }

    #[test]
    fn own_routes_precede_those_to_the_cluster() {
        let ipam = json!({
            "type": "my-ipam", "foo": "bar", "subnet": "10.9.0.0/24",
            "routes": [{"dst": "10.96.0.0/12", "other": 1}, {"dst": "192.168.244.0/24", "gw": "10.1.17.20", "mtu": 1400}],
        });
        let config = generated(json!({"ipam": ipam}), SUBNET);
        let routes = json!([
            {"dst": "10.96.0.0/12"}, {"dst": "192.168.244.0/24", "gw": "10.1.17.20", "mtu": 1400}, {"dst": "10.1.0.0/16"},
        ]);
        let ranges = json!([[{"subnet": "10.1.17.0/24"}]]);
        let wanted =
            json!({"type": "my-ipam", "foo": "bar", "subnet": "10.9.0.0/24", "ranges": ranges, "routes": routes});
        assert_eq!(config["ipam"], wanted);
        let config = generated(json!({"ipam": {"routes": null, "ranges": []}}), SUBNET);
        assert_eq!(config["ipam"]["type"], "host-local");
        assert_eq!(config["ipam"]["ranges"], ranges);
    }

    #[test]
    fn own_keys_of_the_ipam_plugin_stay_for_every_family() {
        let own = json!([{"dst": "10.96.0.0/12"}, {"dst": "192.168.244.0/24", "gw": "10.1.17.20"}]);
        let rest = SUBNET.split_once("FLANNEL_MTU").map(|(_, rest)| format!("FLANNEL_MTU{rest}")).unwrap();
        let two = SUBNET.replace("10.1.0.0/16", "10.1.0.0/16,192.168.0.0/16");
        for (file, subnets, networks) in [
            (SUBNET.to_owned(), vec!["10.1.17.0/24"], vec!["10.1.0.0/16"]),
            (two, vec!["10.1.17.0/24"], vec!["10.1.0.0/16", "192.168.0.0/16"]),
            (format!("{SUBNET6}{rest}"), vec!["fc00::/64"], vec!["fc00::/48"]),
            (format!("{SUBNET6}{SUBNET}"), vec!["10.1.17.0/24", "fc00::/64"], vec!["10.1.0.0/16", "fc00::/48"]),
        ] {
            let mut routes = own.as_array().unwrap().clone();
            routes.extend(networks.iter().map(|network| json!({"dst": network})));
            let ranges: Value = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
            for (keys, kind) in [(json!({"type": "my-ipam"}), "my-ipam"), (json!({}), "host-local")] {
                let mut ipam = keys;
                ipam.as_object_mut()
                    .unwrap()
                    .extend([("foo".to_owned(), json!("bar")), ("routes".to_owned(), own.clone())]);
                let wanted = json!({"type": kind, "foo": "bar", "ranges": ranges, "routes": routes});
                assert_eq!(generated(json!({"ipam": ipam}), &file)["ipam"], wanted, "{file}");
            }
        }
    }

    #[test]
    fn the_cluster_can_be_excluded_from_masquerade() {
        let config = generated(json!({"ipMasqExcludeCluster": true}), &format!("{SUBNET6}{SUBNET}"));
        assert_eq!(config["ipMasqExclude"], json!(["10.1.0.0/16", "fc00::/48"]));
        let own = json!({"ipMasqExcludeCluster": true, "delegate": {"ipMasqExclude": []}});
        assert_eq!(generated(own, SUBNET)["ipMasqExclude"], json!([]));
    }

    #[test]
    fn the_text_is_that_of_the_reference() {
        let text =
            r#"{"cniVersion": "0.3.1", "name": "cbr0", "delegate": {"isDefaultGateway": true, "hairpinMode": true}}"#;
        let call = Call::for_config(text).unwrap();
        let subnet = SUBNET.replace("10.1.17.1", "10.1.18.1");
        let file = SubnetFile::parse(Path::new("subnet.env"), &subnet).unwrap();
        let delegate = DelegateConfig::generate(&call, &Config::parse(&call).unwrap(), &file).unwrap();
        assert_eq!(
            delegate.to_text().unwrap(),
            "{\"cniVersion\":\"0.3.1\",\"hairpinMode\":true,\"ipMasq\":false,\"ipam\":{\"ranges\":[[{\"subnet\":\
             \"10.1.18.0/24\"}]],\"routes\":[{\"dst\":\"10.1.0.0/16\"}],\"type\":\"host-local\"},\"isDefaultGateway\":true,\
             \"isGateway\":true,\"mtu\":1472,\"name\":\"cbr0\",\"type\":\"bridge\"}"
        );
    }

    #[test]
    fn only_a_configuration_of_the_network_is_an_earlier_one() {
        for (text, is_valid) in [
            (r#"{"name": "pods", "type": "bridge", "ipam": {}}"#, true),
            (r#"{"name": "pods", "type": "bridge", "ipam": {}, "cniVersion": ""}"#, true),
            (r#"{"name": "pods", "type": "bridge", "ipam": {}, "cniVersion": "0.3.1"}"#, true),
            (r#"{"name": "pods", "type": "bridge", "ipam": {}, "cniVersion": "9.9.9"}"#, false),
            (r#"{"name": "pods", "type": "bridge", "ipam": {}, "cniVersion": 1}"#, false),
            (r#"{"name": "pods", "type": "bridge", "ipam": 5}"#, false),
            (r#"{"name": "pods", "type": "bridge"}"#, false),
            (r#"{"name": "other", "type": "bridge", "ipam": {}}"#, false),
            (r#"{"name": "pods", "type": "flannel", "ipam": {}}"#, false),
            (r#"{"name": "pods", "type": "../bridge", "ipam": {}}"#, false),
            (r#"{"name": "pods", "type": "", "ipam": {}}"#, false),
            (r#"{"name": "pods", "ipam": {}}"#, false),
            (r#"{"name": "pods", "type": "bri"#, false),
            ("", false),
            ("[]", false),
        ] {
            assert_eq!(DelegateConfig::parse(text, "pods").is_some(), is_valid, "{text}");
        }
    }

    #[test]
    fn a_call_key_reaches_the_delegate() {
        let previous = r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.1.17.5/24"}]}"#;
        let text = format!(
            r#"{{"cniVersion": "1.0.0", "name": "pods", "prevResult": {previous}, "cni.dev/attachments": []}}"#
        );
        let call = Call::for_config(&text).unwrap();
        let config = Config::parse(&call).unwrap();
        let mut delegate = DelegateConfig::generate_to_clean_up(&call, &config).unwrap();
        delegate.add_call_keys(&call).unwrap();
        assert_eq!(delegate.ipam["ranges"], json!([[{"subnet": "10.1.17.0/24"}]]));
        assert!(delegate.keys.contains_key(PREV_RESULT) && delegate.keys.contains_key("cni.dev/attachments"));
        let mut earlier =
            DelegateConfig::parse(r#"{"cniVersion": "0.4.0", "name": "pods", "type": "bridge", "ipam": {}}"#, "pods")
                .unwrap();
        earlier.add_call_keys(&call).unwrap();
        assert!(!earlier.keys.contains_key(PREV_RESULT), "it is in another version");
    }

    #[test]
    fn new_subnets_replace_those_of_an_old_state_file() {
        let text = r#"{"name": "pods", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"}}"#;
        let mut earlier = DelegateConfig::parse(text, "pods").unwrap();
        earlier.replace_subnets(&["10.1.3.0/24".parse().unwrap()]);
        assert_eq!(json!(earlier.ipam), json!({"type": "host-local", "ranges": [[{"subnet": "10.1.3.0/24"}]]}));
    }
}
