//! Entry points for the fuzzer: they read arbitrary configurations and files, and assert the properties that must hold.
#![allow(clippy::panic, clippy::expect_used, reason = "the fuzzer detects a failure by a panic")]

use std::ffi::OsStr;
use std::net::IpAddr;

use cni::Call;
use cni::lease::{self, Index, LeaseOwner, bits};

use crate::config::{self, Config};
use crate::range::{Range, RangeSet, RangeSpec};
use crate::resolv;

/// Reads a configuration of this plugin.
pub fn config(call: &Call<'_>) {
    let dir = config::directory(call);
    let Ok(config) = Config::read(call) else { return };
    assert_eq!(dir.as_ref(), Ok(&config.dir), "DEL uses the directory of ADD");
    assert_eq!(config.dir.file_name(), Some(OsStr::new(call.network.as_str())));
    assert_eq!(config.sets.len(), config.requested.len());
    for (set, requested) in config.sets.iter().zip(&config.requested) {
        assert!(requested.is_none_or(|ip| set.contains(ip)));
        assert_eq!(config.sets.iter().filter(|other| set.overlaps(other)).count(), 1, "only itself");
        round(set, None);
        for ip in requested.iter().copied().chain(set.round(None).into_iter().flat_map(|span| [span.first, span.last]))
        {
            round(set, Some(ip));
        }
    }
}

/// Asserts that going around a set visits each of its addresses once, wherever it starts.
fn round(set: &RangeSet, last: Option<IpAddr>) {
    let spans = set.round(last);
    let mut visited = 0_u128;
    for span in &spans {
        assert!(set.contains(span.first) && set.contains(span.last), "{span:?}");
        let (first, last, gateway) = (bits(span.first), bits(span.last), bits(span.gateway));
        let all = (last - first).saturating_add(1);
        visited = visited.saturating_add(all - u128::from((first..=last).contains(&gateway)));
    }
    assert_eq!(visited, set.size(), "{set} from {last:?}");
    let free = Index::default().first_free(&spans).expect("pages in memory are valid");
    assert_eq!(free, spans.iter().find_map(|span| span.addresses().next()), "{set} from {last:?}");
    if let Some(ip) = free {
        assert_eq!(set.describe(ip).address.ip(), ip);
    }
}

/// Parses the name and the content of a lease file, and a resolver configuration file.
pub fn file(content: &[u8]) {
    if let Some(owner) = LeaseOwner::parse(content) {
        assert_eq!(LeaseOwner::parse(owner.record().as_bytes()), Some(owner));
    }
    let text = String::from_utf8_lossy(content);
    if let Some(ip) = lease::address(&text) {
        assert_eq!(ip.to_string(), text);
    }
    let dns = resolv::parse(&text);
    let words = dns.nameservers.iter().chain(&dns.search).chain(&dns.options);
    assert!(words.chain(Some(&dns.domain).filter(|domain| !domain.is_empty())).all(|word| !word.is_empty()));
}

/// Reads arbitrary pages of an index, with correct or wrong digests, and then uses the index.
pub fn index(content: &[u8]) {
    let Some((head, content)) = content.split_first_chunk::<4>() else { return };
    let [id, at, cut, sealed] = *head;
    let owner = LeaseOwner::new(&format!("c{}", id % 4), "eth0");
    let ip = IpAddr::from([10, 0, at, id]);
    let (held, taken) = content.split_at(usize::from(cut).saturating_mul(8).min(content.len()));
    let spec = RangeSpec { subnet: "10.0.0.0/16".parse().ok(), start: None, end: None, gateway: None };
    let set = Range::new(spec).and_then(|range| RangeSet::new(vec![range])).expect("a set");
    let Ok(mut index) = Index::of_pages(&owner, ip, [held, taken], sealed != 0) else { return };
    let before = index.held_by(&owner).expect("in memory");
    index.insert(ip, Some(&owner)).expect("in memory");
    let held = index.held_by(&owner).expect("in memory");
    assert!(held.contains(&ip) || before.contains(&ip), "{ip} of {held:?}");
    if let Some(free) = index.first_free(&set.round(Some(ip))).expect("in memory") {
        assert!(set.contains(free) && free != ip, "{free} is taken");
    }
    index.remove(ip, &owner).expect("in memory");
    let left = index.held_by(&owner).expect("in memory");
    assert!(left.len() < held.len(), "{left:?} of {held:?}");
}
