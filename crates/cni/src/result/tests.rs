//! Prints and reads results in all layouts, and compares them with `testdata/result`.

use std::path::Path;

use super::*;
use crate::name::ContainerId;

fn full() -> AddResult {
    let interface = |name: &str, mac: &str, sandbox: &str| Interface {
        name: name.into(),
        mac: mac.into(),
        sandbox: sandbox.into(),
        ..Interface::default()
    };
    let ip = |address: &str, gateway: &str| IpConfig {
        address: address.parse().unwrap(),
        gateway: gateway.parse().ok(),
        interface: Some(2),
    };
    let route = |dst: &str, gw: &str| Route::new(dst.parse().unwrap(), gw.parse().ok());
    AddResult {
        interfaces: vec![
            interface("cni0", "1e:64:78:d6:dc:00", ""),
            Interface {
                mtu: 1500,
                socket_path: "/run/vhost".into(),
                pci_id: "0000:00:1f.6".into(),
                ..interface("veth1", "", "")
            },
            interface("eth0", "9a:ef:ce:ba:72:9d", "/run/netns/<a&b>"),
        ],
        ips: vec![ip("10.77.0.8/24", "10.77.0.1"), ip("10.78.0.8/24", ""), ip("fd77::8/64", "fd77::1")],
        routes: vec![
            Route { mtu: 1300, advmss: 1200, priority: 5, ..route("192.168.77.0/24", "") },
            Route { table: Some(0), scope: Some(0), ..route("0.0.0.0/0", "10.77.0.1") },
            Route { table: Some(1000), scope: Some(253), ..route("::/0", "fd77::1") },
        ],
        dns: Dns {
            nameservers: vec!["10.77.0.1".into()],
            domain: "example.org".into(),
            search: vec!["a.example".into(), "b.example".into()],
            options: vec!["ndots:5".into()],
        },
    }
}

/// Returns a result with an address and nothing else.
fn plain() -> AddResult {
    let address = "10.77.0.8/24".parse().unwrap();
    AddResult { ips: vec![IpConfig { address, gateway: None, interface: None }], ..AddResult::default() }
}

fn expected(version: Version, case: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/result");
    let path = dir.join(version.as_str()).join(case).with_extension("json");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

#[test]
fn output_matches_the_reference() {
    for version in Version::ALL {
        for (case, result) in [("full", full()), ("plain", plain())] {
            let text = String::from_utf8(result.print(version).unwrap()).unwrap();
            assert_eq!(text, expected(version, case), "{version} {case}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many steps")]
fn results_survive_printing_as_far_as_the_version_allows() {
    for version in Version::ALL {
        for result in [full(), plain()] {
            let text = String::from_utf8(result.print(version).unwrap()).unwrap();
            let seen = AddResult::read_answer(&text, Version::NEWEST).unwrap();
            assert_eq!(seen, result.to_version(version).unwrap(), "{version}");
            assert_eq!(String::from_utf8(seen.print(version).unwrap()).unwrap(), text, "{version}");
        }
    }
    assert_eq!(full().to_version(Version::NEWEST).unwrap(), full());
    let old = full().to_version(Version::V0_2_0).unwrap();
    assert!(old.interfaces.is_empty());
    assert_eq!(old.ips.iter().map(|ip| ip.address.to_string()).collect::<Vec<_>>(), ["10.77.0.8/24", "fd77::8/64"]);
    assert_eq!(old.routes.len(), 3);
    let middle = full().to_version(Version::V0_4_0).unwrap();
    assert_eq!((middle.interfaces[1].mtu, middle.ips.len(), &middle.routes), (0, 3, &full().routes));
}

#[test]
fn the_oldest_versions_need_an_address() {
    let none = AddResult { interfaces: full().interfaces, ..AddResult::default() };
    for version in Version::ALL {
        assert_eq!(none.to_version(version).is_err(), version < Version::V0_3_0);
        assert_eq!(none.print(version).is_err(), version < Version::V0_3_0);
    }
    // Routes of a family without an address are omitted.
    let mut v4 = full();
    v4.ips.truncate(1);
    assert!(v4.to_version(Version::V0_1_0).unwrap().routes.iter().all(|route| route.dst.ip().is_ipv4()));
}

#[test]
fn the_link_of_an_attachment_is_found_in_the_results_of_different_plugins() {
    let at = Attachment {
        container: ContainerId::parse("c1".as_ref()).unwrap(),
        ifname: IfName::from_config("eth0").unwrap(),
        netns: None,
    };
    type Interfaces<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Interfaces<'_>, Option<&str>); 7] = [
        (&[("cni0", ""), ("veth1", ""), ("eth0", "/n")], Some("veth1")),
        (&[("veth1", ""), ("eth0", "/n")], Some("veth1")),
        (&[("cali1", "")], Some("cali1")),
        (&[("eth0", "/n")], None),
        (&[], None),
        (&[("a name too long for a link", ""), ("eth0", "/n")], None),
        (&[("cni0", ""), ("veth1", ""), ("eth0", "/n"), ("bwp1", "")], Some("veth1")),
    ];
    for (interfaces, want) in cases {
        let interfaces = interfaces.iter().map(|(name, sandbox)| Interface::new(*name, None, *sandbox)).collect();
        let result = AddResult { interfaces, ..AddResult::default() };
        assert_eq!(result.host_link(&at), want, "{result:?}");
    }
}
