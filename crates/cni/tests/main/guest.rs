//! The two sides of an attachment.

use std::ffi::OsStr;

use cni::{Attachment, Call, ContainerId, Error, IfName, Namespaces};
use linux::{Netns, sysctl};
use testing::Lab;

const CONFIG: &str = r#"{"cniVersion": "1.1.0", "name": "net1"}"#;
const FORWARDING: [&str; 3] = ["net", "ipv4", "ip_forward"];

fn attachment(lab: &Lab, name: &str, ifname: &str) -> Attachment {
    let ifname = IfName::from_config(ifname).unwrap();
    Attachment { container: ContainerId::parse(OsStr::new(name)).unwrap(), ifname, netns: Some(lab.netns(name)) }
}

#[test]
fn the_interface_is_the_containers() {
    let lab = Lab::new();
    let call = Call::for_config(CONFIG).unwrap();
    let at = attachment(&lab, "c1", "eth0");
    lab.sh("ip link add eth0 type bridge");
    lab.sh("ip -n c1 link add eth0 address 02:00:00:00:00:01 type bridge");
    let namespaces = Namespaces::open(&call, &at).unwrap();
    let mut guest = namespaces.open_guest(&at).unwrap();
    let link = guest.interface().unwrap();
    assert_eq!(link.mac.unwrap().to_string(), "02:00:00:00:00:01");
    assert_eq!(guest.find_interface_index().unwrap(), Some(link.index));

    lab.sh("ip -n c1 link del eth0");
    assert_eq!(guest.find_interface().unwrap(), None);
    assert_eq!(guest.find_interface_index().unwrap(), None);
    let error = guest.interface().unwrap_err();
    assert_eq!(error.to_string(), r#"there is no link "eth0" in "/run/netns/c1""#);
}

#[test]
fn sysctls_are_the_containers() {
    let lab = Lab::new();
    let call = Call::for_config(CONFIG).unwrap();
    let at = attachment(&lab, "c1", "eth0");
    let namespaces = Namespaces::open(&call, &at).unwrap();
    let before = sysctl::read(&FORWARDING).unwrap();
    let other = if before.as_deref() == Some("1") { "0" } else { "1" };
    namespaces.in_guest(|| Ok(sysctl::set(&FORWARDING, other)?)).unwrap();
    assert_eq!(sysctl::read(&FORWARDING).unwrap(), before, "on the host");
    let inside = namespaces.in_guest(|| Ok(sysctl::read(&FORWARDING)?)).unwrap();
    assert_eq!(inside.as_deref(), Some(other));
}

#[test]
fn the_thread_returns_to_the_host_after_an_error() {
    let lab = Lab::new();
    let call = Call::for_config(CONFIG).unwrap();
    let at = attachment(&lab, "c1", "eth0");
    let namespaces = Namespaces::open(&call, &at).unwrap();
    let is_on_host = || Netns::current().unwrap().same_as(&namespaces.host.netns).unwrap();
    namespaces.in_guest(|| Err::<(), _>(Error::bug("a failure"))).unwrap_err();
    assert!(is_on_host());
    // The thread stays in the container namespace, as after a failed return.
    namespaces.guest.run(&namespaces.guest, || Ok::<_, Error>(())).unwrap();
    assert!(!is_on_host());
    namespaces.return_to_host().unwrap();
    assert!(is_on_host());
}

#[test]
fn without_a_namespace_there_are_no_sides() {
    let lab = Lab::new();
    let call = Call::for_config(CONFIG).unwrap();
    let mut at = attachment(&lab, "c1", "eth0");
    assert!(Namespaces::open_if_exists(&call, &at).unwrap().is_some());
    at.netns = Some("/run/netns/gone".into());
    assert!(Namespaces::open_if_exists(&call, &at).unwrap().is_none());
    Namespaces::open(&call, &at).unwrap_err();
}
