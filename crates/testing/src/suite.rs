//! What every plugin that creates an interface must do, as tests that a plugin runs by describing itself:
//!
//! ```ignore
//! testing::interface_suite! {
//!     plugin: "macvlan",
//!     prepare: "ip link add uplink type veth peer name far; ip link set uplink up; ip link set far up",
//!     link: "link uplink type macvlan mode bridge",
//!     keys: |_| json!({ "master": "uplink" }),
//!     reference_keys: |_| json!({ "master": "uplink" }),
//!     needs_ipam: false,
//!     host_side: false,
//!     damages: Damage::ALL,
//! }
//! ```
//!
//! The tests assume nothing about the kind of the link, or that the host has a part of it. On their host, a neighbour
//! is attached to the same network, and the host has its own interface of the same name and kind. No call may change
//! either.

mod host;

use serde_json::{Value, json};

use crate::config::with;
use crate::fault::{Effect, inject_everywhere, kill_everywhere};
use crate::{Lab, Outcome, Pod, Scripted, reference};

use host::{Host, assert_no_link, container_state};

/// A plugin that creates an interface, as the suite has to know it.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// The name of the plugin.
    pub plugin: &'static str,
    /// A shell command that creates what the plugin needs on the host, such as the parent of its links; or nothing.
    pub prepare: &'static str,
    /// The arguments of `ip link add NAME` that create a link of the same kind. If the kernel cannot, the tests are
    /// skipped.
    pub link: &'static str,
    /// Returns the plugin's own keys for container `n`. They differ only if containers cannot share all of them.
    pub keys: fn(n: u8) -> Value,
    /// Returns the same for a network whose containers the reference adds and deletes too, without what only one of
    /// both removes.
    pub reference_keys: fn(n: u8) -> Value,
    /// Whether ADD fails without IPAM.
    pub needs_ipam: bool,
    /// Whether DEL and GC find the link from the host, without the namespace of the container.
    pub host_side: bool,
    /// The damages that CHECK must report.
    pub damages: &'static [Damage],
}

/// A change in the container after ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The link is down.
    Down,
    /// The link has another MAC address.
    Mac,
    /// An address is missing.
    Address,
    /// A route is missing.
    Route,
    /// The link is missing.
    Link,
}

impl Damage {
    /// All kinds of damage.
    pub const ALL: &'static [Damage] = &[Damage::Down, Damage::Mac, Damage::Address, Damage::Route, Damage::Link];

    /// Returns a command that does the damage to container 0, and the object that the error of CHECK must name.
    fn command(self) -> (&'static str, &'static str) {
        match self {
            Damage::Down => ("ip link set eth0 down", "\"eth0\""),
            Damage::Mac => ("ip link set eth0 address 02:00:00:00:00:09", "\"eth0\""),
            Damage::Address => ("ip address del 10.1.0.2/24 dev eth0", "10.1.0.2/24"),
            Damage::Route => ("ip route del 10.9.0.0/16", "10.9.0.0/16"),
            Damage::Link => ("ip link del eth0", "\"eth0\""),
        }
    }
}

/// Defines a test for each function of [`suite`](crate::suite). The keys are the fields of `Interface`.
#[macro_export]
macro_rules! interface_suite {
    ($($key:ident: $value:expr),+ $(,)?) => {
        const PLUGIN: $crate::suite::Interface = $crate::suite::Interface { $($key: $value),+ };
        $crate::interface_suite! { @tests
            add_check_and_del_leave_nothing_behind
            del_of_an_unknown_attachment_changes_nothing
            del_does_not_depend_on_the_namespace
            add_rejects_an_existing_attachment
            add_rejects_a_name_that_is_taken
            check_reports_damage
            gc_removes_only_stale_attachments
            every_version_gets_a_result_in_its_own_layout
            an_unusable_ipam_result_is_rolled_back
            a_failed_ipam_plugin_is_rolled_back
            a_failing_system_call_of_add_leaves_nothing_behind
            a_failing_system_call_of_del_leaves_nothing_to_the_next_del
            a_killed_call_leaves_nothing_to_the_next_del
        }
    };
    (@tests $($test:ident)+) => {
        $(#[test]
        fn $test() {
            $crate::suite::$test(&PLUGIN, stringify!($test));
        })+
    };
}

/// Defines the tests of the suite that need the plugin of the reference, after [`interface_suite`].
#[macro_export]
macro_rules! upgrade_suite {
    () => {
        $crate::interface_suite! { @tests
            attachments_of_the_reference_are_taken_over
            the_reference_takes_over_attachments
        }
    };
}

impl Interface {
    /// Returns the configuration of container `n`, with the scripted IPAM plugin.
    fn config(&self, n: u8) -> Value {
        with(self.config_without_ipam(n), json!({ "ipam": { "type": Scripted::NAME } }))
    }

    fn config_without_ipam(&self, n: u8) -> Value {
        with(json!({ "cniVersion": "1.1.0", "name": "net1", "type": self.plugin }), (self.keys)(n))
    }

    /// Returns the configuration of container 0 for both implementations, each with its own `host-local`.
    fn config_with_host_local(&self) -> Value {
        let range = |subnet: &str, start: &str| json!([{ "subnet": subnet, "rangeStart": start }]);
        let ranges = json!([range("10.1.0.0/24", "10.1.0.100"), range("fd01::/64", "fd01::100")]);
        let routes = json!([{ "dst": "10.9.0.0/16", "gw": "10.1.0.1" }]);
        let ipam = json!({ "type": "host-local", "ranges": ranges, "routes": routes });
        let common = json!({ "cniVersion": "1.0.0", "name": "net1", "type": self.plugin, "ipam": ipam });
        with(common, (self.reference_keys)(0))
    }

    /// Calls GC for the network of `config`, with a list of valid containers.
    fn gc(&self, lab: &Lab, config: &Value, valid: &[&Pod<'_>]) -> Outcome {
        let valid: Vec<_> = valid.iter().map(|pod| json!({ "containerID": pod.id, "ifname": pod.ifname })).collect();
        let config = with(config.clone(), json!({ "cni.dev/valid-attachments": valid }));
        lab.plugin(self.plugin, "GC").stdin(config.to_string()).run()
    }
}

/// Creates container `n`, for which the scripted IPAM plugin has an answer.
fn pod<'a>(lab: &'a Lab, id: &str, n: u8) -> Pod<'a> {
    let pod = Pod::new(lab, id);
    pod.answer(json!({
        "ips": [
            { "address": format!("10.1.0.{}/24", n + 2), "gateway": "10.1.0.1" },
            { "address": format!("fd01::{}/64", n + 2), "gateway": "fd01::1" },
        ],
        "routes": [{ "dst": "10.9.0.0/16", "gw": "10.1.0.1" }, { "dst": "fd09::/64", "gw": "fd01::1" }],
    }));
    pod
}

/// Runs `test` on a prepared host with container 0, which is not attached, and its configuration.
fn on_host(plugin: &Interface, name: &str, test: impl Fn(&Host<'_>, &Pod<'_>, &Value)) {
    let lab = &Lab::new();
    let Some(host) = Host::new(plugin, lab, name) else { return };
    test(&host, &pod(lab, "a", 0), &plugin.config(0));
    host.check_neighbour();
}

/// With a delegate in the process and an executed one, with and without IPAM.
pub fn add_check_and_del_leave_nothing_behind(plugin: &Interface, name: &str) {
    Lab::for_each_way_to_delegate(|lab| {
        let Some(host) = Host::new(plugin, lab, name) else { return };
        let pod = pod(lab, "a", 0);
        for config in [plugin.config(0), plugin.config_without_ipam(0)] {
            let has_ipam = config.get("ipam").is_some();
            if plugin.needs_ipam && !has_ipam {
                pod.call("ADD", &config).run().error(7);
                host.assert_unchanged("ADD without IPAM");
                continue;
            }
            let result = pod.add(&config);
            assert_eq!(result.get("ips").is_some(), has_ipam, "{result}");
            let state = container_state(&pod);
            for part in ["10.1.0.2/24", "fd01::2/64", "10.9.0.0/16", "fd09::/64"] {
                assert_eq!(state.contains(part), has_ipam, "{part}: {state}");
            }
            pod.check_result(&config, &result).ok();
            for time in ["first", "second"] {
                pod.del(&config);
                host.assert_unchanged(&format!("{time} DEL"));
                assert_no_link(&pod, &format!("{time} DEL"));
            }
        }
        let calls = Scripted::of(lab).calls_for("a");
        assert_eq!(calls, ["ADD a eth0", "CHECK a eth0", "DEL a eth0", "DEL a eth0"]);
    });
}

/// On a host where no ADD has prepared anything.
pub fn del_of_an_unknown_attachment_changes_nothing(plugin: &Interface, name: &str) {
    let lab = &Lab::new();
    if host::prepare(plugin, lab, name).is_none() {
        return;
    }
    let pod = pod(lab, "a", 0);
    let before = host::state(lab);
    pod.del(&plugin.config(0));
    assert_eq!(host::state(lab), before);
}

/// The path of the namespace may be unknown, or lead elsewhere by now. DEL succeeds, releases the addresses, removes
/// what it finds from the host, and nothing that belongs to another container or to the host.
pub fn del_does_not_depend_on_the_namespace(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, pod, config| {
        host.lab.sh("touch /run/netns/file");
        let neighbour = host.neighbour.netns.to_str().unwrap();
        for path in ["", "/run/netns/nowhere", "/run/netns/file", "/run/netns", neighbour, "/proc/self/ns/net"] {
            for has_result in [true, false] {
                let what = format!("DEL in {path:?}, result of ADD: {has_result}");
                let result = pod.add(config);
                // Without a link that the plugin takes from the host.
                let attached = host::state(host.lab);
                let late =
                    if has_result { with(config.clone(), json!({ "prevResult": result })) } else { config.clone() };
                let call = pod.call("DEL", &late);
                let call = if path.is_empty() { call.without("CNI_NETNS") } else { call.env("CNI_NETNS", path) };
                let outcome = call.run();
                assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(0), ""), "{what}: {}", outcome.stderr);
                assert_eq!(Scripted::of(host.lab).calls_for("a").last().unwrap(), "DEL a eth0", "{what}");
                if !plugin.host_side {
                    assert_eq!(host::state(host.lab), attached, "the host after {what}");
                    pod.del(&late);
                }
                host.assert_unchanged(&what);
                assert_no_link(pod, &what);
            }
        }
    });
}

/// The rollback of the second ADD must leave everything of the first. After DEL, the attachment can be added again.
pub fn add_rejects_an_existing_attachment(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, pod, config| {
        let result = pod.add(config);
        let state = || (host::state(host.lab), container_state(pod), Scripted::of(host.lab).calls_for("a"));
        let before = state();
        let error = pod.call("ADD", config).run().error(999);
        assert!(error["msg"].as_str().unwrap().contains("\"eth0\" already exists"), "{error}");
        assert_eq!(state(), before);
        pod.check_result(config, &result).ok();
        pod.del(config);
        pod.add(config);
        pod.del(config);
        host.assert_unchanged("DEL");
    });
}

/// Another program has created a link of that name in the container, of the same kind. Neither ADD nor DEL changes it.
pub fn add_rejects_a_name_that_is_taken(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, pod, config| {
        // The host's own link can be the only one of its kind.
        host.lab.sh(&format!("ip link set eth0 netns {}", pod.id));
        pod.sh("ip link set eth0 up");
        let before = (host::state(host.lab), container_state(pod));
        let error = pod.call("ADD", config).run().error(999);
        assert!(error["msg"].as_str().unwrap().contains("\"eth0\" already exists"), "{error}");
        assert_eq!((host::state(host.lab), container_state(pod)), before, "ADD");
        assert_ne!(Scripted::of(host.lab).calls_for("a").last().map(String::as_str), Some("ADD a eth0"));
        pod.del(config);
        assert_eq!((host::state(host.lab), container_state(pod)), before, "DEL");
    });
}

/// CHECK succeeds after ADD, and after each damage fails with an error that names the object. DEL works in spite of the
/// damage.
pub fn check_reports_damage(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, pod, config| {
        for damage in plugin.damages {
            let result = pod.add(config);
            pod.check_result(config, &result).ok();
            let (command, object) = damage.command();
            pod.sh(command);
            let error = pod.check_result(config, &result).error(999);
            let msg = error["msg"].as_str().unwrap();
            assert!(msg.contains(object), "{damage:?}: {msg}");
            pod.del(config);
            host.assert_unchanged(&format!("DEL after {damage:?}"));
            assert_no_link(pod, &format!("DEL after {damage:?}"));
        }
        // IPAM is asked too.
        let result = pod.add(config);
        Scripted::of(host.lab).fail("CHECK");
        pod.check_result(config, &result).error(Scripted::CODE);
        Scripted::of(host.lab).recover("CHECK");
        pod.del(config);
    });
}

/// GC keeps listed attachments and those of other networks, passes the list to IPAM, and needs a list.
pub fn gc_removes_only_stale_attachments(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, stale, config| {
        let (foreign, other) = (pod(host.lab, "foreign", 2), with(plugin.config(2), json!({ "name": "net2" })));
        let foreign_result = foreign.add(&other);
        let before = host::state(host.lab);
        let result = stale.add(config);
        host.lab.plugin(plugin.plugin, "GC").stdin(config.to_string()).run().error(7);
        plugin.gc(host.lab, config, &[&host.neighbour, stale]).ok();
        stale.check_result(config, &result).ok();
        let ipam = Scripted::of(host.lab);
        plugin.gc(host.lab, config, &[&host.neighbour]).ok();
        assert_eq!(ipam.calls().last().unwrap(), "GC");
        let listed = ipam.config("GC")["cni.dev/valid-attachments"].clone();
        assert_eq!(listed, json!([{ "containerID": host.neighbour.id, "ifname": "eth0" }]));
        if plugin.host_side {
            assert_no_link(stale, "GC");
            assert_eq!(host::state(host.lab), before);
        }
        host.check_neighbour();
        foreign.check_result(&other, &foreign_result).ok();
        // The rest is removed even if IPAM fails.
        ipam.fail("GC");
        plugin.gc(host.lab, &other, &[]).error(Scripted::CODE);
        if plugin.host_side {
            assert_no_link(&foreign, "GC after IPAM failed");
        }
    });
}

/// From 0.1.0 to 1.1.0, key by key.
pub fn every_version_gets_a_result_in_its_own_layout(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, pod, config| {
        for version in ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let config = with(config.clone(), json!({ "cniVersion": version }));
            let result = pod.add(&config);
            let version = if version.is_empty() { "0.1.0" } else { version };
            assert_eq!(result["cniVersion"], version, "{result}");
            if version < "0.3.0" {
                assert_layout_before_0_3(&result);
            } else {
                assert_layout(version, pod, &result);
            }
            if version >= "0.4.0" {
                pod.check_result(&config, &result).ok();
            }
            pod.del(&config);
            host.assert_unchanged(version);
        }
    });
}

/// Asserts that an object has all of `required`, and no keys besides these and `optional`.
#[track_caller]
fn assert_keys(object: &Value, required: &[&str], optional: &[&str]) {
    let keys: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    let missing: Vec<_> = required.iter().filter(|key| !keys.contains(key)).collect();
    let unknown: Vec<_> = keys.iter().filter(|key| !required.contains(key) && !optional.contains(key)).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing {missing:?}, unknown {unknown:?}: {object}");
}

#[track_caller]
fn assert_layout_before_0_3(result: &Value) {
    assert_keys(result, &["cniVersion", "ip4", "ip6"], &["dns"]);
    for (family, ip, route) in [("ip4", "10.1.0.2/24", "10.9.0.0/16"), ("ip6", "fd01::2/64", "fd09::/64")] {
        assert_keys(&result[family], &["ip", "gateway", "routes"], &[]);
        assert_eq!(result[family]["ip"], ip);
        let routes = result[family]["routes"].as_array().unwrap();
        assert!(routes.iter().any(|found| found["dst"] == route), "{result}");
        routes.iter().for_each(|route| assert_keys(route, &["dst"], &["gw"]));
    }
}

#[track_caller]
fn assert_layout(version: &str, pod: &Pod<'_>, result: &Value) {
    let (is_old, is_new) = (version < "1.0.0", version >= "1.1.0");
    assert_keys(result, &["cniVersion", "interfaces", "ips", "routes"], &["dns"]);
    let interfaces = result["interfaces"].as_array().unwrap();
    let optional: &[&str] = if is_new { &["sandbox", "mtu", "socketPath", "pciID"] } else { &["sandbox"] };
    interfaces.iter().for_each(|interface| assert_keys(interface, &["name", "mac"], optional));
    let inside: Vec<_> = interfaces.iter().filter(|interface| interface.get("sandbox").is_some()).collect();
    assert_eq!(inside.len(), 1, "{result}");
    assert_eq!(inside[0]["name"], "eth0");
    assert_eq!(inside[0]["sandbox"], pod.netns.to_str().unwrap());
    assert_eq!(inside[0]["mac"], pod.ip("link show eth0")[0]["address"]);
    let index = interfaces.iter().position(|interface| interface.get("sandbox").is_some());
    let ips = result["ips"].as_array().unwrap();
    for (ip, (address, family)) in ips.iter().zip([("10.1.0.2/24", "4"), ("fd01::2/64", "6")]) {
        let required: &[&str] = if is_old { &["address", "interface", "version"] } else { &["address", "interface"] };
        assert_keys(ip, required, &["gateway"]);
        assert_eq!((&ip["address"], &ip["interface"]), (&json!(address), &json!(index)), "{result}");
        assert!(!is_old || ip["version"] == family, "{result}");
    }
    assert_eq!(ips.len(), 2, "{result}");
    let optional: &[&str] = if is_new { &["gw", "mtu", "advmss", "priority", "table", "scope"] } else { &["gw"] };
    let routes = result["routes"].as_array().unwrap();
    routes.iter().for_each(|route| assert_keys(route, &["dst"], optional));
    for route in ["10.9.0.0/16", "fd09::/64"] {
        assert!(routes.iter().any(|found| found["dst"] == route), "{result}");
    }
}

/// IPAM succeeded, but its result has no address, or one that is not usable, or cannot be expressed in the version of
/// the network.
pub fn an_unusable_ipam_result_is_rolled_back(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, pod, config| {
        for (version, answer) in [
            ("1.1.0", json!({})),
            ("1.1.0", json!({ "ips": [{ "address": "10.1.0.2" }] })),
            (
                "1.1.0",
                json!({ "ips": [{ "address": "10.1.0.2/24" }], "routes": [{ "dst": "10.9.0.0/16", "gw": "fd01::9" }] }),
            ),
            ("0.2.0", json!({ "cniVersion": "0.2.0" })),
        ] {
            pod.answer(answer.clone());
            let config = with(config.clone(), json!({ "cniVersion": version }));
            let outcome = pod.call("ADD", &config).run();
            assert_eq!(outcome.status, Some(1), "{answer}: {}", outcome.stdout);
            assert_rolled_back(host, pod, &answer.to_string());
        }
    });
}

/// IPAM may have leased an address before it failed, so its DEL is called, after the interface is gone. Its error is
/// returned.
pub fn a_failed_ipam_plugin_is_rolled_back(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, pod, config| {
        let ipam = Scripted::of(host.lab);
        ipam.fail("ADD");
        let error = pod.call("ADD", config).run().error(Scripted::CODE);
        assert_eq!(error["msg"], "scripted failure", "passed on unchanged");
        assert_rolled_back(host, pod, "IPAM failed");
        ipam.recover("ADD");
        // DEL removes the rest if IPAM cannot release the address, and reports that.
        pod.add(config);
        ipam.fail("DEL");
        pod.call("DEL", config).run().error(Scripted::CODE);
        host.assert_unchanged("IPAM failed to release the address");
        assert_no_link(pod, "IPAM failed to release the address");
    });
}

#[track_caller]
fn assert_rolled_back(host: &Host<'_>, pod: &Pod<'_>, what: &str) {
    host.assert_unchanged(what);
    assert_no_link(pod, what);
    let ipam = Scripted::of(host.lab);
    assert!(ipam.calls_for("a").ends_with(&["ADD a eth0".to_owned(), "DEL a eth0".to_owned()]), "{what}");
    let links = ipam.links_at_release();
    assert!(!links.contains("eth0"), "{what}: an address that is still in use is not released: {links}");
}

/// The system calls of a plugin that change something, or that it needs for a change, each with a plausible error.
const FAULTS: [(&str, &str); 9] = [
    ("sendto", "ENOBUFS"),
    ("recvfrom", "ENOMEM"),
    ("setns", "EPERM"),
    ("socket", "EMFILE"),
    ("setsockopt", "EINVAL"),
    ("openat", "EMFILE"),
    ("open", "EMFILE"),
    ("ioctl", "EPERM"),
    ("pwrite64", "EIO"),
];

/// Each system call of ADD fails in turn: ADD succeeds, or leaves nothing behind, even without a DEL.
pub fn a_failing_system_call_of_add_leaves_nothing_behind(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, pod, config| {
        let add = || pod.call("ADD", config);
        let failures = inject_everywhere(host.lab, &FAULTS, add, |effect, place| {
            if effect != Effect::Failed {
                pod.del(config);
            }
            host.assert_unchanged(place);
            assert_no_link(pod, place);
            if effect == Effect::Failed {
                pod.del(config);
            }
        });
        assert!(failures >= 10, "only {failures} failures");
        host.assert_unchanged("DEL after a failed ADD");
    });
}

/// Each system call of DEL fails in turn. If DEL fails, the next one does the rest.
pub fn a_failing_system_call_of_del_leaves_nothing_to_the_next_del(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, pod, config| {
        let del = || {
            pod.add(config);
            pod.call("DEL", config)
        };
        let failures = inject_everywhere(host.lab, &FAULTS, del, |effect, place| {
            // A namespace that cannot be opened counts as gone.
            if effect == Effect::Failed || !plugin.host_side {
                pod.del(config);
            }
            host.assert_unchanged(place);
            assert_no_link(pod, place);
        });
        assert!(failures >= 3, "only {failures} failures");
    });
}

/// ADD and DEL are killed at each system call that changes something in turn. The next DEL does the rest.
pub fn a_killed_call_leaves_nothing_to_the_next_del(plugin: &Interface, name: &str) {
    on_host(plugin, name, |host, pod, config| {
        for command in ["ADD", "DEL"] {
            let call = || {
                if command == "DEL" {
                    pod.add(config);
                }
                pod.call(command, config)
            };
            let killed = kill_everywhere(host.lab, &["sendto", "setns", "pwrite64"], call, |place| {
                pod.del(config);
                host.assert_unchanged(&format!("{command} {place}"));
                assert_no_link(pod, &format!("{command} {place}"));
            });
            assert!(killed >= 2, "{command} was killed only {killed} times");
        }
    });
}

/// Runs `test` with the configuration of both implementations, if the reference has the plugin. Before, each has
/// attached and detached a container, so that what stays on the host exists.
fn beside_reference(plugin: &Interface, name: &str, test: impl Fn(&Host<'_>, &Pod<'_>, &Value)) {
    if reference(plugin.plugin, name).is_none() {
        return;
    }
    Lab::for_each_way_to_delegate(|lab| {
        let Some(mut host) = Host::new(plugin, lab, name) else { return };
        let (pod, config) = (Pod::new(lab, "a"), plugin.config_with_host_local());
        pod.call_reference("ADD", &config).run().ok();
        pod.call_reference("DEL", &config).run().ok();
        pod.add(&config);
        pod.del(&config);
        host.remember();
        test(&host, &pod, &config);
    });
}

/// With the result of ADD, as newer runtimes pass it, and without: then the lease proves to which attachment the link
/// belongs.
pub fn attachments_of_the_reference_are_taken_over(plugin: &Interface, name: &str) {
    beside_reference(plugin, name, |host, pod, config| {
        for has_result in [true, false] {
            let what = format!("result of ADD: {has_result}");
            let result = pod.call_reference("ADD", config).run().ok();
            pod.check_result(config, &result).ok();
            pod.del(&if has_result { with(config.clone(), json!({ "prevResult": result })) } else { config.clone() });
            host.assert_unchanged(&what);
            assert_no_link(pod, &what);
        }
    });
}

/// A downgrade to the reference.
pub fn the_reference_takes_over_attachments(plugin: &Interface, name: &str) {
    beside_reference(plugin, name, |host, pod, config| {
        let result = pod.add(config);
        let with_result = with(config.clone(), json!({ "prevResult": result }));
        pod.call_reference("CHECK", &with_result).run().ok();
        pod.call_reference("DEL", &with_result).run().ok();
        host.assert_unchanged("DEL of the reference");
        assert_no_link(pod, "DEL of the reference");
    });
}
