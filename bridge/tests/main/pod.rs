//! Helpers for all tests: configurations, pods, a scripted IPAM plugin, and sockets in namespaces.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::Netns;
use serde_json::{Value, json};
use testing::{Lab, Outcome, Process, REFERENCE, timeout};

/// How long to wait for a packet that should not arrive. On a slow machine, a packet may arrive later: then the test
/// passes with a broken plugin, but it never fails with a correct one.
const SILENCE: Duration = Duration::from_millis(300);

/// Returns a configuration with the scripted IPAM plugin, with the keys of `more` added or replaced.
pub(crate) fn layer3(more: Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.1.0", "name": "net1", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": { "type": "scripted" },
    });
    merge(&mut config, more);
    config
}

/// Returns a configuration without IPAM, with the keys of `more` added or replaced.
pub(crate) fn layer2(more: Value) -> Value {
    let mut config = json!({ "cniVersion": "1.1.0", "name": "net1", "type": "bridge", "bridge": "br0" });
    merge(&mut config, more);
    config
}

/// Adds or replaces the keys of `more` in `config`.
pub(crate) fn merge(config: &mut Value, more: Value) {
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        config[key] = value;
    }
}

/// A container with one interface.
pub(crate) struct Pod<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) id: String,
    pub(crate) ifname: String,
    pub(crate) netns: PathBuf,
}

impl<'a> Pod<'a> {
    pub(crate) fn new(lab: &'a Lab, id: &str) -> Pod<'a> {
        install_scripted(lab);
        Pod { lab, id: id.to_owned(), ifname: "eth0".to_owned(), netns: lab.netns(id) }
    }

    /// Creates a pod for which the scripted IPAM plugin returns `ips`.
    pub(crate) fn with_ips(lab: &'a Lab, id: &str, ips: &[&str]) -> Pod<'a> {
        let pod = Pod::new(lab, id);
        let ips: Vec<_> = ips.iter().map(|ip| json!({ "address": ip })).collect();
        pod.answer(json!({ "ips": ips }));
        pod
    }

    /// Sets the result of the scripted IPAM plugin for this pod.
    pub(crate) fn answer(&self, answer: Value) {
        let mut whole = json!({ "cniVersion": "1.1.0" });
        merge(&mut whole, answer);
        fs::write(self.lab.dir().join(format!("answer.{}", self.id)), whole.to_string()).unwrap();
    }

    pub(crate) fn call(&self, command: &str, config: &Value) -> Process {
        let path = format!("{}:{REFERENCE}", self.lab.bin().display());
        self.lab
            .plugin("bridge", command)
            .env("CNI_PATH", path)
            .attachment(&self.id, &self.ifname, &self.netns)
            .stdin(config.to_string())
    }

    #[track_caller]
    pub(crate) fn add(&self, config: &Value) -> Value {
        self.call("ADD", config).run().ok()
    }

    #[track_caller]
    pub(crate) fn del(&self, config: &Value) {
        self.call("DEL", config).run().ok();
    }

    pub(crate) fn check(&self, config: &Value, previous: &Value) -> Outcome {
        let mut config = config.clone();
        config["prevResult"] = previous.clone();
        self.call("CHECK", &config).run()
    }

    /// Runs a shell command in the pod's namespace.
    pub(crate) fn sh(&self, command: &str) -> String {
        self.lab.sh(&format!("nsenter --net={} sh -ec '{command}'", self.netns.display()))
    }

    /// Returns the output of `ip -j -d ARGUMENTS` in the pod's namespace.
    pub(crate) fn ip(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.sh(&format!("ip -j -d {arguments}"))).unwrap_or(Value::Null)
    }

    /// Opens a UDP socket in the pod's namespace.
    pub(crate) fn udp(&self, address: &str) -> UdpSocket {
        udp(Some(&self.netns), address)
    }

    /// Returns the name of the host veth.
    pub(crate) fn port(&self, result: &Value) -> String {
        result["interfaces"][1]["name"].as_str().unwrap().to_owned()
    }
}

/// Opens a UDP socket in a namespace, or on the host.
pub(crate) fn udp(netns: Option<&Path>, address: &str) -> UdpSocket {
    let bind =
        || Ok::<_, linux::Error>(UdpSocket::bind(address).unwrap_or_else(|error| panic!("bind {address}: {error}")));
    let socket = match netns {
        None => bind(),
        Some(path) => Netns::open(path).unwrap().run(&Netns::current().unwrap(), bind),
    };
    socket.unwrap()
}

/// Sends one datagram, and returns the source address that the receiver sees, or `None` if it does not arrive. Nothing
/// is repeated: the first packet must arrive.
pub(crate) fn send(from: &UdpSocket, to: &UdpSocket, address: &str) -> Option<IpAddr> {
    let port = to.local_addr().unwrap().port();
    let ip: IpAddr = address.parse().unwrap();
    // Without a route, sending fails.
    from.send_to(b"hello", (ip, port)).ok()?;
    to.set_read_timeout(Some(timeout())).unwrap();
    let mut buffer = [0; 64];
    let (len, sender) = to.recv_from(&mut buffer).ok()?;
    assert_eq!(&buffer[..len], b"hello");
    Some(sender.ip())
}

/// Sends one datagram, and panics if it arrives.
pub(crate) fn assert_nothing_arrives(from: &UdpSocket, to: &UdpSocket, address: &str) {
    let port = to.local_addr().unwrap().port();
    let ip: IpAddr = address.parse().unwrap();
    let _ = from.send_to(b"lost", (ip, port));
    to.set_read_timeout(Some(SILENCE)).unwrap();
    let mut buffer = [0; 64];
    if let Ok((_, sender)) = to.recv_from(&mut buffer) {
        panic!("a packet from {sender} arrived at {address}");
    }
}

/// Creates a namespace outside of the host, with 192.0.2.2 and 2001:db8::2 and without routes to pods.
pub(crate) fn outside(lab: &Lab) -> PathBuf {
    let path = lab.netns("outside");
    lab.sh(&format!(
        "ip link set lo up
         ip link add uplink type veth peer name eth0 netns outside
         ip address add 192.0.2.1/24 dev uplink
         ! [ -e /proc/sys/net/ipv6 ] || ip address add 2001:db8::1/64 dev uplink nodad
         ip link set uplink up
         nsenter --net={} sh -ec 'ip address add 192.0.2.2/24 dev eth0
             ! [ -e /proc/sys/net/ipv6 ] || ip address add 2001:db8::2/64 dev eth0 nodad
             ip link set eth0 up'
         # On a busy machine it takes a while until both ends are ready, and ping fails when a neighbour is unreachable.
         until ping -q -c 1 -W 5 192.0.2.2; do :; done
         ! [ -e /proc/sys/net/ipv6 ] || until ping -6 -q -c 1 -W 5 2001:db8::2; do :; done",
        path.display()
    ));
    path
}

/// Asserts that no ports, rules or leases are left after a failed ADD or a DEL.
#[track_caller]
pub(crate) fn assert_clean(lab: &Lab) {
    let links = lab.sh("ip -o link show type veth");
    let veths: Vec<_> = links.lines().filter(|line| !line.contains("uplink")).collect();
    assert!(veths.is_empty(), "left: {veths:?}");
    let rules = lab.sh("nft -a list ruleset");
    for trace in ["masquerade comment", "macspoofchk", "cni-br-iface", "CNI-"] {
        assert!(!rules.contains(trace), "left: {rules}");
    }
    let leases = lab.sh("find /var/lib/cni -type f ! -name lock ! -name 'last_reserved*' 2>/dev/null || true");
    assert_eq!(leases, "", "left");
}

/// Returns the calls of the scripted IPAM plugin, such as `["ADD a eth0"]`.
pub(crate) fn ipam_calls(lab: &Lab) -> Vec<String> {
    let log = fs::read_to_string(lab.dir().join("calls")).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

/// Returns the veth links that existed at the last DEL of the scripted IPAM plugin.
pub(crate) fn links_at_release(lab: &Lab) -> String {
    fs::read_to_string(lab.dir().join("links.DEL")).unwrap()
}

/// Makes the scripted IPAM plugin fail `command` from now on.
pub(crate) fn ipam_fails(lab: &Lab, command: &str) {
    fs::write(lab.dir().join(format!("fail.{command}")), "").unwrap();
}

fn install_scripted(lab: &Lab) {
    if lab.bin().join("scripted").exists() {
        return;
    }
    let dir = lab.dir().display();
    let script = format!(
        r#"echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" | sed 's/ *$//' >>{dir}/calls
cat >{dir}/stdin.$CNI_COMMAND
[ $CNI_COMMAND != DEL ] || ip -o link show type veth >{dir}/links.DEL
[ ! -e {dir}/fail.$CNI_COMMAND ] || {{ echo '{{"code": 123, "msg": "scripted failure"}}'; exit 1; }}
[ $CNI_COMMAND != ADD ] || cat {dir}/answer.$CNI_CONTAINERID"#
    );
    lab.script("scripted", &script);
}
