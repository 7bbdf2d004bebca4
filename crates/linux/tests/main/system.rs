//! Network namespaces and kernel settings.

use std::fs;

use linux::netlink::Netlink;
use linux::sysctl::{self, Setting, Sysctl};
use linux::{Error, Kind, Netns};
use testing::Lab;

#[test]
fn run_returns_to_the_own_namespace() {
    let lab = Lab::without_plugins();
    lab.sh("ip link add outside type bridge");
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    let home = Netns::current().unwrap();
    let mut netlink = guest.run(&home, Netlink::open).unwrap();
    assert_eq!(netlink.link("outside").unwrap(), None, "the socket stays inside");
    assert!(Netlink::open().unwrap().link("outside").unwrap().is_some(), "the thread does not");
    let refused = guest.run(&home, || Err::<(), _>(Error::new(Kind::Io, "no")));
    assert_eq!(refused.unwrap_err().to_string(), "no");
    assert!(Netlink::open().unwrap().link("outside").unwrap().is_some(), "not even after a failure");
}

#[test]
fn a_namespace_that_was_unmounted_is_gone() {
    let lab = Lab::without_plugins();
    let path = lab.netns("c1");
    assert!(Netns::open_if_exists(&path).unwrap().is_some());
    lab.sh("umount /run/netns/c1");
    assert!(path.exists() && Netns::open_if_exists(&path).unwrap().is_none(), "an empty file is left");
    lab.sh("rm /run/netns/c1; mkfifo /run/netns/c1");
    assert!(Netns::open_if_exists(&path).unwrap().is_none(), "a FIFO does not block");
}

#[test]
fn settings_are_written_only_where_they_differ() {
    let _lab = Lab::without_plugins();
    let key = ["net", "ipv4", "ip_forward"];
    assert_eq!(sysctl::set(&key, "1").unwrap(), Setting::Changed);
    assert_eq!(sysctl::set(&key, "1").unwrap(), Setting::Kept);
    assert_eq!(fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap(), "1\n");
    assert_eq!(sysctl::set(&["net", "ipv4", "conf", "absent", "arp_notify"], "1").unwrap(), Setting::Missing);
    let error = sysctl::set(&key, "nonsense").unwrap_err();
    assert!(error.to_string().starts_with("set net.ipv4.ip_forward to nonsense: "), "{error}");
}

#[test]
fn read_only_settings_are_reported() {
    let lab = Lab::without_plugins();
    lab.sh("mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys");
    let key = ["net", "ipv4", "ip_forward"];
    assert_eq!(sysctl::set(&key, "1").unwrap(), Setting::ReadOnly);
    assert_eq!(sysctl::set(&key, "0").unwrap(), Setting::Kept, "an unchanged setting only needs to be read");
}

#[test]
fn an_open_setting_stays_that_of_its_namespace() {
    let lab = Lab::without_plugins();
    let guest = Netns::open(&lab.netns("c1")).unwrap();
    let key = ["net", "core", "somaxconn"];
    let setting = guest.run(&Netns::current().unwrap(), || Ok::<_, Error>(Sysctl::open(&key))).unwrap().unwrap();
    let before = sysctl::read(&key).unwrap();
    assert_eq!(setting.value(), before.as_deref(), "the default");
    setting.write("77").unwrap();
    assert_eq!(lab.sh("ip netns exec c1 cat /proc/sys/net/core/somaxconn").trim(), "77");
    assert_eq!(sysctl::read(&key).unwrap(), before);
    setting.restore().unwrap();
    assert_eq!(lab.sh("ip netns exec c1 cat /proc/sys/net/core/somaxconn").trim(), before.unwrap());
    assert_eq!(Sysctl::open(&["net", "ipv4", "route", "flush"]).unwrap().value(), None);
    assert_eq!(Sysctl::open(&["net", "absent"]).unwrap_err().raw_os_error(), Some(libc::ENOENT));
}
