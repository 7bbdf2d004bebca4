//! Entry points for the fuzzer: they parse arbitrary configurations and files, and assert the properties that must
//! hold.
#![allow(clippy::expect_used, reason = "the fuzzer detects a failure by a panic")]

use std::path::Path;

use cni::Call;

use crate::config::{Config, is_delegate};
use crate::delegate::DelegateConfig;
use crate::generate_to_clean_up;
use crate::subnet::SubnetFile;

/// A valid subnet file.
const SUBNET: &str =
    "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=true\n";

/// Parses a configuration, and asserts that DEL understands what ADD generates, and that it accepts every mistake.
pub fn config(call: &Call<'_>) {
    let file = SubnetFile::parse(Path::new("subnet.env"), SUBNET).expect("a valid file");
    let to_clean_up = Config::without_mistakes(call, &drop).expect("DEL accepts every configuration");
    for file in [None, Some(&file)] {
        let (kind, text) = generate_to_clean_up(call, &to_clean_up, file).expect("a configuration for DEL");
        assert!(is_delegate(&kind), "{text}");
    }
    let Ok(config) = Config::parse(call) else { return };
    let delegate = DelegateConfig::generate(call, &config, &file).expect("a configuration for ADD");
    let text = delegate.to_text().expect("JSON can be printed");
    // The delegate's own version can be wrong; then ADD fails.
    if call.with_config(&text).is_ok() {
        state(text.as_bytes(), call.network.as_str());
        assert!(DelegateConfig::parse(&text, call.network.as_str()).is_some(), "{text}");
    }
}

/// Parses a subnet file.
pub fn subnet_file(content: &[u8]) {
    let text = String::from_utf8_lossy(content);
    let Ok(file) = SubnetFile::parse(Path::new("subnet.env"), &text) else { return };
    assert!(!file.networks.is_empty() && (1..=2).contains(&file.subnets.len()), "{file:?}");
    assert!(file.networks.iter().chain(&file.subnets).all(|cidr| cidr.network() == *cidr), "{file:?}");
    assert!(file.warnings().len() <= file.subnets.len(), "{file:?}");
    let printed = |texts: &[linux::ip::Cidr]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    // One key for each subnet, so that the order stays.
    let subnets = ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"].into_iter().zip(printed(&file.subnets));
    let subnets: String = subnets.map(|(key, subnet)| format!("{key}={subnet}\n")).collect();
    let networks = printed(&file.networks).join(",");
    let again =
        format!("FLANNEL_NETWORK={networks}\n{subnets}FLANNEL_MTU={}\nFLANNEL_IPMASQ={}\n", file.mtu, file.ip_masq);
    assert_eq!(SubnetFile::parse(Path::new("subnet.env"), &again).as_ref(), Ok(&file), "{again}");
}

/// Parses the content of a state file of `network`, and asserts that it stays valid for DEL when the subnet changes.
pub fn state(content: &[u8], network: &str) {
    let text = String::from_utf8_lossy(content);
    let Some(mut delegate) = DelegateConfig::parse(&text, network) else { return };
    assert!(delegate.kind().is_some_and(is_delegate), "{text}");
    delegate.replace_subnets(&["10.1.18.0/24".parse().expect("a network")]);
    let again = delegate.to_text().expect("JSON can be printed");
    let parsed = DelegateConfig::parse(&again, network).expect("still a configuration of the network");
    assert_eq!(parsed.kind(), delegate.kind());
}
