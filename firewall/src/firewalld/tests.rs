//! Tests with the real firewalld on a real bus, in namespaces of their own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use testing::Lab;
use testing::firewalld::{ADDRESS, Firewalld as Daemon, SERVICES};

use super::*;

/// The bus would start firewalld by this program, if a client asked for it.
const SERVICE: &str = "[D-BUS Service]
Name=org.fedoraproject.FirewallD1
Exec=/usr/bin/touch /run/activated
User=root
";

/// Returns a host; `None` if the test cannot run here.
fn lab(test: &str) -> Option<Lab> {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        testing::skip(test, "it needs root, or unshare -r");
        return None;
    }
    Some(Lab::without_plugins())
}

/// Starts firewalld on a host; `None` if that is not possible here.
fn start<'a>(lab: &'a Lab, test: &str) -> Option<Daemon<'a>> {
    fs::create_dir(SERVICES).unwrap();
    fs::write(format!("{SERVICES}/org.fedoraproject.FirewallD1.service"), SERVICE).unwrap();
    let mut host = Daemon::prepare(lab, test)?;
    host.start();
    Some(host)
}

fn connect() -> Option<Firewalld> {
    Firewalld::on_bus(Bus::open(ADDRESS, Deadline::after(testing::timeout())).unwrap()).unwrap()
}

/// Connects to firewalld, which must be running.
fn firewalld() -> Firewalld {
    connect().unwrap()
}

fn zone(name: &str) -> Zone {
    Zone::parse(name).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn addresses_are_bound_and_removed() {
    let test = "addresses_are_bound_and_removed";
    let Some(lab) = &lab(test) else { return };
    let Some(host) = start(lab, test) else { return };
    let mut firewalld = firewalld();
    let trusted = zone("trusted");
    let ips = [ip("10.9.0.2"), ip("fd00::2")];
    let rules = || lab.sh("nft list ruleset | grep -c 'saddr 10.9.0.2 ' || true");
    assert_eq!(rules(), "0\n");
    for _ in 0..2 {
        for ip in ips {
            firewalld.add(&trusted, ip).unwrap();
            assert_eq!(firewalld.query(&trusted, ip), Ok(true));
            assert_eq!(firewalld.query(&zone("public"), ip), Ok(false));
        }
    }
    assert_eq!(host.sources("trusted"), ["10.9.0.2/32", "fd00::2/128"]);
    assert_ne!(rules(), "0\n", "firewalld has changed the kernel's rules");
    // An IPv4 address in the form of an IPv6 address is the same.
    assert_eq!(firewalld.query(&trusted, ip("::ffff:10.9.0.2")), Ok(true));
    for _ in 0..2 {
        for ip in ips {
            firewalld.remove(&trusted, ip, ZoneScope::GivenZone).unwrap();
            assert_eq!(firewalld.query(&trusted, ip), Ok(false));
        }
    }
    assert_eq!(host.sources("trusted"), [] as [&str; 0]);
    assert_eq!(rules(), "0\n");
}

#[test]
fn an_address_that_a_lost_del_has_left_is_moved() {
    let test = "an_address_that_a_lost_del_has_left_is_moved";
    let Some(lab) = &lab(test) else { return };
    let Some(host) = start(lab, test) else { return };
    let mut firewalld = firewalld();
    firewalld.add(&zone("work"), ip("10.9.0.2")).unwrap();
    firewalld.add(&zone("trusted"), ip("10.9.0.2")).unwrap();
    assert_eq!((host.sources("work"), host.sources("trusted")), (Vec::new(), vec!["10.9.0.2/32".to_owned()]));

    // But not if the administrator has put it there.
    host.firewall_cmd("--permanent --zone=drop --add-source=10.9.0.3/32");
    host.firewall_cmd("--reload");
    let error = firewalld.add(&zone("trusted"), ip("10.9.0.3")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "add 10.9.0.3/32 to firewalld zone \"trusted\": the permanent configuration of firewalld has it in zone \"drop\""
    );
    assert!(error.details_text().contains("firewall-cmd --permanent --zone=drop --remove-source=10.9.0.3/32"));
    assert_eq!(host.sources("drop"), ["10.9.0.3/32"]);
}

#[test]
fn an_address_in_another_zone_is_removed_if_asked_for() {
    let test = "an_address_in_another_zone_is_removed_if_asked_for";
    let Some(lab) = &lab(test) else { return };
    let Some(host) = start(lab, test) else { return };
    let mut firewalld = firewalld();
    let address = ip("10.9.0.2");
    for configured in ["trusted", "nonexistent"] {
        firewalld.add(&zone("work"), address).unwrap();
        firewalld.remove(&zone(configured), address, ZoneScope::GivenZone).unwrap();
        assert_eq!(firewalld.query(&zone("work"), address), Ok(true));
        firewalld.remove(&zone(configured), address, ZoneScope::AnyZone).unwrap();
        assert_eq!(firewalld.query(&zone("work"), address), Ok(false));
        firewalld.remove(&zone(configured), address, ZoneScope::AnyZone).unwrap();
    }
    host.firewall_cmd("--permanent --zone=drop --add-source=10.9.0.2/32");
    host.firewall_cmd("--reload");
    firewalld.remove(&zone("trusted"), address, ZoneScope::AnyZone).unwrap();
    assert_eq!(host.sources("drop"), ["10.9.0.2/32"], "the administrator has put it there");
}

#[test]
fn refusals_say_what_to_do() {
    let test = "refusals_say_what_to_do";
    let Some(lab) = &lab(test) else { return };
    let Some(host) = start(lab, test) else { return };
    let mut firewalld = firewalld();
    let address = ip("10.9.0.2");
    for error in [
        firewalld.add(&zone("nonexistent"), address).unwrap_err(),
        firewalld.query(&zone("nonexistent"), address).unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::CONFIG);
        let text = error.to_string();
        assert!(text.contains("firewalldZone") && text.ends_with("firewalld has no zone \"nonexistent\""), "{text}");
        assert!(error.details_text().contains("firewall-cmd --get-zones"), "{error:?}");
    }
    let error = firewalld.call("noSuchMethod", &[]).unwrap_err().into_error(&zone("trusted"));
    assert!(error.to_string().contains("noSuchMethod is not a valid method"), "{error:?}");
    host.firewall_cmd("--panic-on");
    let error = firewalld.add(&zone("trusted"), address).unwrap_err();
    assert_eq!(error.code(), Code::TRY_LATER);
    assert_eq!(error.to_string(), "add 10.9.0.2/32 to firewalld zone \"trusted\": firewalld is in panic mode");
    host.firewall_cmd("--panic-off");
    firewalld.add(&zone("trusted"), address).unwrap();
}

#[test]
fn bindings_do_not_survive_a_reload() {
    let test = "bindings_do_not_survive_a_reload";
    let Some(lab) = &lab(test) else { return };
    let Some(host) = start(lab, test) else { return };
    let mut firewalld = firewalld();
    firewalld.add(&zone("trusted"), ip("10.9.0.2")).unwrap();
    host.firewall_cmd("--reload");
    assert_eq!(firewalld.query(&zone("trusted"), ip("10.9.0.2")), Ok(false));
    firewalld.remove(&zone("trusted"), ip("10.9.0.2"), ZoneScope::AnyZone).unwrap();
    firewalld.add(&zone("trusted"), ip("10.9.0.2")).unwrap();
}

#[test]
fn firewalld_may_be_absent_and_is_never_started() {
    let test = "firewalld_may_be_absent_and_is_never_started";
    let Some(lab) = &lab(test) else { return };
    let Some(mut host) = start(lab, test) else { return };
    let mut firewalld = firewalld();
    let (trusted, address) = (zone("trusted"), ip("10.9.0.2"));
    firewalld.add(&trusted, address).unwrap();
    host.stop();
    // The connection is that of before.
    for error in [firewalld.add(&trusted, address).unwrap_err(), firewalld.query(&trusted, address).unwrap_err()] {
        assert_eq!(error.code(), Code::TRY_LATER, "{error:?}");
        assert!(error.to_string().ends_with("firewalld is not running"), "{error:?}");
    }
    firewalld.remove(&trusted, address, ZoneScope::AnyZone).unwrap();
    assert!(connect().is_none());
    assert!(!Path::new("/run/activated").exists(), "the bus was made to start firewalld");

    host.start();
    assert_eq!(firewalld.query(&trusted, address), Ok(false), "the connection still works");
    firewalld.add(&trusted, address).unwrap();

    // The bus ends too.
    drop(host);
    let error = firewalld.add(&trusted, address).unwrap_err();
    assert!([Code::IO, Code::TRY_LATER].contains(&error.code()), "{error:?}");
    assert!(Bus::open(ADDRESS, Deadline::after(testing::timeout())).unwrap().is_none());
}

#[test]
fn a_firewalld_that_hangs_is_left_at_the_deadline() {
    let test = "a_firewalld_that_hangs_is_left_at_the_deadline";
    let Some(lab) = &lab(test) else { return };
    let Some(host) = start(lab, test) else { return };
    let pid = host.pid();
    lab.sh(&format!("kill -STOP {pid}"));
    // On a busy machine, the deadline may pass before the call.
    let bus = Bus::open(ADDRESS, Deadline::after(Duration::from_millis(500)));
    let added = bus
        .and_then(Firewalld::on_bus)
        .and_then(|firewalld| firewalld.expect("firewalld has its name").add(&zone("trusted"), ip("10.9.0.2")));
    let error = added.unwrap_err();
    assert_eq!(error.code(), Code::TRY_LATER, "{error:?}");
    assert!(error.to_string().ends_with("no answer within 500ms"), "{error:?}");
}

#[test]
fn firewalld_that_ends_during_a_call_is_not_running() {
    // dbus-daemon and dbus-broker send these, with and without an earlier owner of the name.
    for name in ["ServiceUnknown", "NameHasNoOwner", "NoReply"] {
        let error = RemoteError { name: format!("org.freedesktop.DBus.Error.{name}"), text: String::new() };
        assert_eq!(Reason::of(&error), Reason::NotRunning);
    }
    let denied =
        RemoteError { name: "org.freedesktop.DBus.Error.AccessDenied".to_owned(), text: "PANIC_MODE".to_owned() };
    assert_eq!(Reason::of(&denied), Reason::Other);
}
