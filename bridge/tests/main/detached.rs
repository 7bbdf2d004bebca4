//! DEL returns when the link is gone, and a detached child waits for the kernel. The child must not affect anything
//! else.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::{Value, json};
use testing::fault::inject_all;
use testing::{Lab, Pod, skip};

use crate::pod::{assert_clean, host_veth, layer3};

fn everything() -> Value {
    layer3(json!({ "ipMasq": true, "macspoofchk": true, "isDefaultGateway": true }))
}

/// Returns the /proc directories of the bridge processes in this network namespace.
fn bridge_processes() -> Vec<PathBuf> {
    let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
    let is_ours = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|name| name == "bridge\n")
            && fs::read_link(process.join("ns/net")).is_ok_and(|netns| netns == own)
    };
    fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()).filter(is_ours).collect()
}

/// Skips `test` in a container: if its first process is not an init, DEL starts no child.
fn init_reaps_orphans(test: &str) -> Option<()> {
    let first = fs::metadata("/proc/self/ns/pid").unwrap().ino() == 0xefff_fffc;
    first.then_some(()).or_else(|| {
        skip(test, "this is not the PID namespace in which the machine was started");
        None
    })
}

#[test]
fn without_an_init_that_reaps_orphans_there_is_no_child() {
    let lab = &Lab::new();
    let config = layer3(json!({ "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" } }));
    let pod = Pod::new(lab, "a");
    let trace = lab.dir().join("trace");
    for (first, child) in [("sh", false), ("init", true)] {
        pod.add(&config);
        // The first process of a PID namespace has this name. It must not replace itself with the plugin.
        let path = lab.dir().join(first);
        lab.sh(&format!("ln -s /bin/sh {}", path.display()));
        let script = format!("exec unshare --pid --fork --mount-proc {} -ec '\"$0\"; exit 0' \"$0\"", path.display());
        let options = ["-f", "-qq", "-e", "trace=chdir", "-o", trace.to_str().unwrap()];
        pod.call("DEL", &config).via_shell(&script).strace(&options).run().ok();
        let log = fs::read_to_string(&trace).unwrap();
        assert_eq!(log.contains("chdir(\"/\")"), child, "{first}: {log}");
        assert_clean(lab);
    }
}

#[test]
fn a_deleted_attachment_is_gone_and_can_be_added_again_at_once() {
    Lab::for_each_way_to_delegate(|lab| {
        let config = everything();
        let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24", "fd01::2/64"]);
        for _ in 0..30 {
            let result = pod.add(&config);
            let mut config = config.clone();
            config["prevResult"] = result;
            pod.del(&config);
            // Read without another process, which might take as long as the child waits.
            assert_eq!(ports(), [""; 0]);
        }
        assert_clean(lab);
    });
}

/// Returns the names of host veths.
fn ports() -> Vec<String> {
    let links = fs::read_dir("/proc/sys/net/ipv4/conf").unwrap();
    let names = links.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("veth")).collect()
}

/// The child of a DEL lives for about 10 ms. To observe it, strace delays its first `recvfrom`, which follows the
/// deletion. (This also delays the first `recvfrom` of the DEL itself, which comes long before.) If the delay was too
/// short on a busy machine, the test repeats with a longer one.
#[test]
fn the_child_that_waits_for_the_kernel_delays_no_other_process() {
    if init_reaps_orphans("the_child_that_waits_for_the_kernel_delays_no_other_process").is_none() {
        return;
    }
    let lab = &Lab::new();
    let config = everything();
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let fifo = lab.dir().join("fifo");
    lab.sh(&format!("mkfifo {}", fifo.display()));
    let trace = lab.dir().join("trace");
    for seconds in [1, 4, 16, 64] {
        pod.add(&config);
        // A pipe that a careless runtime passes to its plugins.
        let script = format!("exec 7>{}; exec \"$0\"", fifo.display());
        let inject = format!("inject=recvfrom:delay_enter={seconds}000000:when=1");
        // With -D, the DEL is the child of this process, which then does not wait for strace.
        let options = ["-D", "-f", "-qq", "-o", trace.to_str().unwrap(), "-e", "trace=recvfrom", "-e", &inject];
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| File::open(&fifo).unwrap().read_to_end(&mut Vec::new()));
            // Waits until the DEL has exited and the pipe is closed.
            pod.call("DEL", &config).via_shell(&script).strace(&options).run().ok();
            reader.join().unwrap().unwrap();
        });
        let children: Vec<(PathBuf, Vec<PathBuf>)> = bridge_processes()
            .into_iter()
            .filter_map(|child| {
                let open = fs::read_dir(child.join("fd")).ok()?;
                let open: Vec<_> = open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()).collect();
                // A process without open files is about to exit.
                (!open.is_empty()).then_some((child, open))
            })
            .collect();
        for (child, open) in &children {
            let (sockets, others): (Vec<_>, Vec<_>) =
                open.iter().partition(|path| path.to_string_lossy().starts_with("socket:"));
            assert!(others.iter().all(|path| path.starts_with("/dev/null")), "{open:?}");
            assert!(sockets.len() <= 2, "the socket that deletes the link, and the socket of the rules: {open:?}");
            let place = fs::read_link(child.join("cwd"));
            assert!(place.is_err() || place.is_ok_and(|path| path.parent().is_none()), "it keeps a directory busy");
            let pid = child.file_name().unwrap().to_string_lossy();
            lab.sh(&format!("kill -9 {pid} 2>/dev/null || true"));
        }
        if !children.is_empty() {
            return;
        }
    }
    panic!("no child was seen: DEL starts none, or waits for it");
}

#[test]
fn del_succeeds_if_the_child_cannot_start_or_is_killed() {
    if init_reaps_orphans("del_succeeds_if_the_child_cannot_start_or_is_killed").is_none() {
        return;
    }
    let lab = &Lab::new();
    // With an IPAM plugin that runs in the same process.
    let config = layer3(json!({
        "ipMasq": true, "macspoofchk": true, "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" },
    }));
    let pod = Pod::new(lab, "a");
    for (call, how) in [
        ("unshare", "error=EPERM"),
        ("?fork,?vfork,clone,clone3", "error=EAGAIN"),
        ("pidfd_open", "error=ENOSYS"),
        ("chdir", "error=EACCES"),
        ("close_range", "error=ENOSYS"),
        ("close_range", "signal=KILL"),
    ] {
        pod.add(&config);
        inject_all(lab, pod.call("DEL", &config), call, how).ok();
        assert_clean(lab);
    }
}

#[test]
fn a_link_that_cannot_be_deleted_is_reported() {
    let lab = &Lab::new();
    let config = layer3(json!({ "isGateway": true }));
    let pod = Pod::with_ips(lab, "a", &["10.1.0.2/24"]);
    let result = pod.add(&config);
    let unable = pod.call("DEL", &config).via_shell("exec setpriv --bounding-set=-net_admin \"$0\"");
    let error = unable.run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("delete link"), "{error}");
    assert!(error.to_string().contains("not permitted"), "{error}");
    assert!(ports().contains(&host_veth(&result)), "the port still exists, as reported");
    pod.del(&config);
    assert_clean(lab);
}
