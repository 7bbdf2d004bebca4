//! Why packets do not arrive, for a reader and for programs.

use std::fmt;

use serde_json::{Value, json};

/// The programs that own tables and chains, by the beginning of their names.
const OWNERS: [(&str, &str); 18] = [
    ("cni_", "a CNI plugin"),
    ("CNI", "a CNI plugin"),
    ("DOCKER", "Docker"),
    ("docker", "Docker"),
    ("ufw", "ufw"),
    ("firewalld", "firewalld"),
    ("KUBE-", "kube-proxy or the kubelet"),
    ("kube-", "kube-proxy"),
    ("cali-", "Calico"),
    ("calico", "Calico"),
    ("CILIUM", "Cilium"),
    ("FLANNEL", "flannel"),
    ("flannel", "flannel"),
    ("netavark", "podman"),
    ("NETAVARK", "podman"),
    ("LIBVIRT", "libvirt"),
    ("libvirt", "libvirt"),
    ("LXC", "LXC"),
];

/// Why packets do not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    /// The stable name of the kind: `rule`, `route`, `forwarding`, `neighbour`, `link`, `address`, `mtu`,
    /// `translation` or `unknown`.
    pub(super) kind: &'static str,
    /// `this host`, or the container.
    pub(super) place: String,
    pub(super) text: String,
    /// The program that usually owns such an object.
    pub(super) owner: Option<&'static str>,
}

impl Cause {
    pub(super) fn json(&self) -> Value {
        json!({ "kind": self.kind, "place": self.place, "text": self.text, "owner": self.owner })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)?;
        self.owner.map_or(Ok(()), |owner| write!(f, " (usually of {owner})"))
    }
}

/// Returns the program that usually owns a table or chain of this name.
pub(super) fn owner(name: &str) -> Option<&'static str> {
    OWNERS.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, owner)| *owner)
}
