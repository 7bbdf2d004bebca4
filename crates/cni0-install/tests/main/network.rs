//! The network of a cluster: written once, kept if it is another one, and removed if it is ours.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::{Value, json};
use testing::{Process, program_path};

use crate::kill::kill_everywhere;
use crate::support::{Host, failure, success};

/// A host with the files of the manifests, as the kubelet mounts them.
struct Node(Host);

impl Node {
    fn new() -> Node {
        let node = Node(Host::new());
        let manifest = include_str!("../../../../deploy/network/configmap.yaml");
        let list = manifest.split_once("10-cni0.conflist: |\n").unwrap().1;
        node.write(list);
        fs::create_dir_all(node.path("ranges/..data")).unwrap();
        node.range("node-1.example", "10.244.1.0/24,fd00:10:244:1::/64\n");
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.lab.dir().join(name)
    }

    fn write(&self, list: &str) {
        fs::write(self.path("list"), list).unwrap();
    }

    fn range(&self, node: &str, text: &str) {
        fs::write(self.path("ranges/..data").join(node), text).unwrap();
        let _ = symlink(format!("..data/{node}"), self.path("ranges").join(node));
    }

    fn file(&self) -> PathBuf {
        self.0.net_d().join("10-cni0.conflist")
    }

    fn configuring(&self, node: &str) -> Process {
        let call = Process::new(program_path("cni0-install")).arg("network").arg("--from").arg(self.path("list"));
        call.arg("--ranges").arg(self.path("ranges")).arg("--node").arg(node).arg("--conf").arg(self.0.net_d())
    }

    fn configure(&self) -> String {
        success(&self.configuring("node-1.example").run())
    }

    fn removing(&self) -> Process {
        Process::new(program_path("cni0-install")).arg("remove-network").arg("--conf").arg(self.0.net_d())
    }

    fn remove(&self) -> String {
        success(&self.removing().run())
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.net_d()).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }
}

#[test]
fn a_node_gets_its_ranges() {
    let node = Node::new();
    assert!(node.configure().contains("the network is configured"));
    let list: Value = serde_json::from_str(&fs::read_to_string(node.file()).unwrap()).unwrap();
    let ranges = json!([[{ "subnet": "10.244.1.0/24" }], [{ "subnet": "fd00:10:244:1::/64" }]]);
    assert_eq!(list["plugins"][0]["ipam"]["ranges"], ranges);
    let inode = || fs::metadata(node.file()).unwrap().ino();
    let before = inode();
    assert!(node.configure().contains("it has this network already"));
    assert_eq!(inode(), before);
    // An update of the network.
    node.range("node-1.example", "10.244.9.0/24");
    assert!(node.configure().contains("the network is configured"));
    assert!(fs::read_to_string(node.file()).unwrap().contains("10.244.9.0/24"));
    assert!(node.remove().contains("is removed"));
    assert_eq!(node.files(), [""; 0]);
    assert!(node.remove().contains("no network of this program"));
}

#[test]
fn networks_of_others_stay() {
    let node = Node::new();
    fs::create_dir_all(node.0.net_d()).unwrap();
    let other = node.0.net_d().join("10-calico.conflist");
    fs::write(&other, "{}").unwrap();
    assert!(node.configure().contains("is unchanged: it contains 10-calico.conflist"));
    assert!(node.remove().contains("no network of this program"));
    assert_eq!(node.files(), ["10-calico.conflist"]);
    fs::rename(other, node.file()).unwrap();
    assert!(node.configure().contains("is unchanged: it was modified, or something else has written it"));
    node.remove();
    assert_eq!(fs::read_to_string(node.file()).unwrap(), "{}");
    fs::remove_file(node.file()).unwrap();
    // One that was modified since.
    node.configure();
    fs::write(node.file(), "{ }").unwrap();
    assert!(node.configure().contains("is unchanged: it was modified"));
    assert!(node.remove().contains("is unchanged: it was modified"));
    assert_eq!(
        (node.files(), fs::read_to_string(node.file()).unwrap().as_str()),
        (vec!["10-cni0.conflist".to_owned()], "{ }")
    );
}

#[test]
fn mistakes_change_nothing() {
    let node = Node::new();
    let refuse = |name: &str, text: &str| {
        let line = failure(&node.configuring(name).run());
        assert!(line.contains(text), "{text}: {line}");
        assert!(!node.0.net_d().exists(), "{text}");
    };
    refuse("node-2", "node \"node-2\" has no ranges");
    node.range("node-3", "10.244.3.0");
    refuse("node-3", "the ranges of node \"node-3\": ");
    node.range("node-3", "");
    refuse("node-3", "the ranges of node \"node-3\": ");
    let call = Process::new(program_path("cni0-install")).arg("network").arg("--conf").arg(node.0.net_d());
    let line = failure(&call.arg("--from").arg(node.path("list")).run());
    assert!(line.contains("no ranges are given"), "{line}");
    for (list, why) in [
        ("{", "EOF"),
        ("{}", "is missing"),
        (r#"{"name": "pods", "plugins": []}"#, "is missing"),
        (r#"{"name": "pods", "plugins": [{}]}"#, "is missing"),
    ] {
        node.write(list);
        refuse("node-1.example", why);
    }
    fs::remove_file(node.path("list")).unwrap();
    refuse("node-1.example", "read ");
}

/// The list of flannel has no ranges.
#[test]
fn a_list_without_ranges_needs_none() {
    let node = Node::new();
    let manifest = include_str!("../../../../deploy/network-flannel/kustomization.yaml");
    node.write(manifest.split_once("value: |\n").unwrap().1);
    success(&node.configuring("unknown").run());
    assert!(fs::read_to_string(node.file()).unwrap().contains("flannel"));
}

/// A process that is killed leaves a complete network or none, and the next call completes or removes it. Temporary
/// files are in the directory itself: containerd does not notice a file that comes from another one.
#[test]
fn killed_calls_can_be_repeated() {
    let node = Node::new();
    let whole = || {
        node.configure();
        fs::read_to_string(node.file()).unwrap()
    };
    let (first, mut places) = (whole(), 0);
    node.range("node-1.example", "10.244.7.0/24");
    let second = whole();
    let is_whole = |place: &str| {
        let found = fs::read_to_string(node.file()).ok();
        assert!([None, Some(&first), Some(&second)].contains(&found.as_ref()), "{place}: {found:?}");
        let seen = node.files().into_iter().filter(|name| name.ends_with("conflist")).count();
        assert!(seen <= 1 && node.files().iter().all(|name| name.contains("10-cni0")), "{place}: {:?}", node.files());
    };
    for (text, end) in [("10.244.1.0/24,fd00:10:244:1::/64", &first), ("10.244.7.0/24", &second)] {
        let begin = || {
            node.remove();
            node.range("node-1.example", if end == &first { "10.244.7.0/24" } else { "10.244.1.0/24" });
            node.configure();
            node.range("node-1.example", text);
            node.configuring("node-1.example")
        };
        places += kill_everywhere(&node.0, begin, |place| {
            let all = [Some(&first), Some(&second)];
            let found = fs::read_to_string(node.file()).unwrap();
            assert!(found.contains("10.244.") && found.trim_end().ends_with('}'), "{place}: {found} {all:?}");
            assert!(!node.configure().contains("modified"), "{place}");
            assert_eq!(&fs::read_to_string(node.file()).unwrap(), end, "{place}");
        });
    }
    places += kill_everywhere(
        &node.0,
        || {
            node.configure();
            node.removing()
        },
        |place| {
            is_whole(place);
            node.remove();
            assert_eq!(node.files(), [""; 0], "{place}");
        },
    );
    assert!(places > 10, "{places}");
}
