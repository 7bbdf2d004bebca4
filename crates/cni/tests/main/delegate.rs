//! Delegation: `relay` calls `stock` (see `examples/delegation`), in the same process or by executing it, or executes a
//! script.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cni::Version;
use serde_json::json;
use testing::{Lab, Outcome, Process, Set, copy_program, copy_to_set, parallel, write_script};

use crate::example;

/// Installs `relay`, and `stock` of this set.
fn install(lab: &Lab, stock: Set) -> PathBuf {
    let dir = lab.dir().join(format!("{stock:?}"));
    fs::create_dir_all(&dir).unwrap();
    copy_to_set(&example("relay"), &dir.join("relay"), Set::One);
    copy_to_set(&example("stock"), &dir.join("stock"), stock);
    dir
}

/// Prepares a call of `relay` in `dir` for an attachment.
fn relay(dir: &Path, command: &str, config: impl ToString) -> Process {
    let call = Process::plugin(&dir.join("relay"), command).env("CNI_PATH", dir);
    call.attachment("c1", "eth0", "/run/netns/c1").stdin(config.to_string())
}

/// Installs a script as the plugin `name`.
fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
    let path = dir.join(name);
    write_script(&path, body);
    path
}

fn asking(kind: &str) -> serde_json::Value {
    json!({"cniVersion": "1.1.0", "name": "net", "ipam": {"type": kind}})
}

#[test]
fn both_ways_to_delegate_have_the_same_outcome() {
    let lab = Lab::without_plugins();
    let (same, another) = (install(&lab, Set::One), install(&lab, Set::Another));
    let ips = json!([
        {"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "10.2.0.2/24"},
        {"address": "fd00::2/64", "gateway": "fd00::1", "interface": 0},
    ]);
    let routes = json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400}, {"dst": "::/0", "table": 0}]);
    let ipams = [
        json!({"ips": ips, "routes": routes}),
        json!({"ips": [{"address": "::ffff:10.1.0.2/120"}], "routes": [{"dst": "::ffff:10.0.0.0/104"}]}),
        json!({"ips": []}),
        json!({"ips": "nonsense"}),
        json!({"refuse": {"code": 11, "msg": "later", "details": "much later"}}),
        json!({"refuse": {"code": 123, "msg": "<own> code"}}),
        json!({"refuse": {"code": 0, "msg": "no code"}}),
        json!({"refuse": {"code": 5}}),
        json!({"panic": "a mistake of ours"}),
    ];
    let mut outcomes = Vec::new();
    for version in Version::ALL {
        for ipam in &ipams {
            for command in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
                let mut config = json!({"cniVersion": version.as_str(), "name": "net", "ipam": ipam});
                config["ipam"]["type"] = "stock".into();
                config["cni.dev/valid-attachments"] = json!([]);
                let [inside, executed] = [&same, &another].map(|dir| {
                    let mut outcome = relay(dir, command, &config).run();
                    outcome.stdout = outcome.stdout.replace(dir.to_str().unwrap(), "DIR");
                    outcome
                });
                assert_eq!(inside, executed, "{command} {config}");
                outcomes.push(inside);
            }
        }
    }
    assert_eq!(outcomes.len(), 315);
    assert!(outcomes.iter().any(|o| o.status == Some(0)) && outcomes.iter().any(|o| o.status == Some(1)));
}

#[test]
fn a_panic_is_a_cni_error() {
    let lab = Lab::without_plugins();
    let config =
        json!({"cniVersion": "1.1.0", "name": "net", "ipam": {"type": "stock", "panic": "two and two is five"}});
    let error = relay(&install(&lab, Set::One), "ADD", config).run().error(999);
    assert!(error["msg"].as_str().unwrap().contains("two and two is five"), "{error}");
}

#[test]
fn an_add_whose_result_is_lost_leaves_no_lease() {
    let lab = Lab::without_plugins();
    let lease = lab.dir().join("lease");
    let config = json!({"cniVersion": "1.1.0", "name": "net", "ipam": {"type": "stock", "lease": lease}});
    for set in [Set::One, Set::Another] {
        let add = |dir: &Path| relay(dir, "ADD", &config);
        let dir = install(&lab, set);
        add(&dir).run().ok();
        assert!(lease.exists());
        relay(&dir, "DEL", &config).run().ok();
        let outcome = add(&dir).via_shell("exec \"$0\" >/dev/full").run();
        assert_eq!(outcome.status, Some(1), "{outcome:?}");
        assert!(!lease.exists(), "in {dir:?}");
    }
}

#[test]
fn only_a_program_of_the_same_set_runs_in_the_process() {
    let lab = Lab::without_plugins();
    let starts = |dir: &Path| {
        let trace = lab.dir().join("trace");
        let options = ["-f", "-qq", "-e", "trace=execve", "-o", trace.to_str().unwrap()];
        relay(dir, "ADD", asking("stock")).strace(&options).run().ok();
        fs::read_to_string(&trace).unwrap().lines().filter(|line| line.contains("execve(")).count()
    };
    let dir = install(&lab, Set::One);
    let stock = dir.join("stock");
    assert_eq!(starts(&dir), 1, "the same set");
    fs::rename(&stock, dir.join("elsewhere")).unwrap();
    symlink("elsewhere", &stock).unwrap();
    assert_eq!(starts(&dir), 1, "a symbolic link");
    assert_eq!(starts(&install(&lab, Set::Another)), 2, "another set");
    assert_eq!(starts(&install(&lab, Set::None)), 2, "only relay has a set");
    fs::remove_file(&stock).unwrap();
    script(&dir, "stock", "echo '{}'");
    assert!(starts(&dir) >= 2, "a wrapper script");
    // As cargo builds them, and all programs with the same empty ID.
    for name in ["relay", "stock"] {
        copy_to_set(&example(name), &dir.join(name), Set::None);
    }
    assert_eq!(starts(&dir), 2, "no set");
    fs::write(dir.join("short"), &fs::read(example("stock")).unwrap()[..1000]).unwrap();
    copy_to_set(&example("relay"), &dir.join("relay"), Set::One);
    copy_program(&dir.join("short"), &stock);
    assert_eq!(relay(&dir, "ADD", asking("stock")).run().status, Some(1), "a damaged program is executed, too");
}

#[test]
fn a_program_whose_file_was_replaced_recognises_its_set() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::One);
    copy_to_set(&dir.join("relay"), &dir.join("new"), Set::Another);
    let upgrade = "exec 3<relay; mv new relay; exec -a relay /proc/self/fd/3";
    let trace = lab.dir().join("trace");
    let options = ["-f", "-qq", "-e", "trace=execve", "-o", trace.to_str().unwrap()];
    let call = Process::new("bash").arg("-ec").arg(format!("cd {}; {upgrade}", dir.display()));
    let call = call.env("CNI_COMMAND", "ADD").env("CNI_PATH", &dir).attachment("c1", "eth0", "/run/netns/c1");
    call.stdin(asking("stock").to_string()).strace(&options).run().ok();
    let trace = fs::read_to_string(&trace).unwrap();
    assert!(trace.contains("/proc/self/fd/3") && !trace.contains("stock"), "{trace}");
}

#[test]
fn a_result_is_read_by_its_own_version() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::One);
    let add = |answer: &str, version: &str| {
        script(&dir, "own", &format!("cat <<'EOF'\n{answer}\nEOF"));
        let config = json!({"cniVersion": version, "name": "net", "ipam": {"type": "own"}});
        relay(&dir, "ADD", config).run()
    };
    let address = |outcome: Outcome| outcome.ok()["ips"][0]["address"].clone();
    assert_eq!(
        address(add(r#"{"ips": [{"address": "10.1.0.2/24"}]}"#, "1.1.0")),
        "10.1.0.2/24",
        "without a version: that of the configuration"
    );
    assert_eq!(address(add(r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}"#, "1.1.0")), "10.1.0.2/24");
    assert_eq!(address(add(r#"{"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.2/24"}}"#, "1.1.0")), "10.1.0.2/24");
    let old = r#"{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.1.0.2/24", "gateway": ""}]}"#;
    assert_eq!(address(add(old, "0.3.1")), "10.1.0.2/24");
    assert_eq!(address(add(r#"{"CNIVersion": "0.2.0", "IP4": {"Ip": "10.1.0.2/24"}}"#, "1.1.0")), "10.1.0.2/24");
    assert_eq!(address(add(r#"{"ips": [{"address": "::ffff:10.1.0.2/120"}]}"#, "1.1.0")), "10.1.0.2/24");
    for nothing in ["null", "{}"] {
        assert_eq!(add(nothing, "1.1.0").ok()["ips"], serde_json::Value::Null);
    }
    for (bad, code, culprit) in [
        ("", 6, "own"),
        ("nonsense", 6, "own"),
        ("{} {}", 6, "own"),
        (r#"{"cniVersion": "9.9.9"}"#, 6, "9.9.9"),
        (r#"{"cniVersion": 1}"#, 6, "cniVersion"),
        (r#"{"ips": [{"address": "10.1.0.2"}]}"#, 7, "ips[0].address"),
        (r#"{"ips": [{}]}"#, 7, "ips[0].address"),
        (r#"{"ips": {}}"#, 6, "ips"),
        (r#"{"routes": [{"dst": "10.0.0.0/8", "gw": "x"}]}"#, 7, "routes[0].gw"),
    ] {
        let error = add(bad, "1.1.0").error(code);
        assert!(error["msg"].as_str().unwrap().contains(culprit), "{bad}: {error}");
    }
}

#[test]
fn the_child_gets_our_environment_and_our_stdin() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::One);
    let body = format!("env >{0}/env; cat >{0}/stdin; echo '{{}}'", lab.dir().display());
    script(&dir, "spy", &body);
    // Invalid UTF-8 in a text and white space at the end are passed on unchanged.
    let config = b"{\"cniVersion\":\"1.1.0\",\"name\":\"net\",\"x\":\"\xff\",\"ipam\":{\"type\":\"spy\"}}\n\n".to_vec();
    let call = relay(&dir, "CHECK", "").stdin(config.clone()).env("CNI_ARGS", "A=1;B=2").env("OTHER", "x y");
    call.run().ok();
    assert_eq!(fs::read(lab.dir().join("stdin")).unwrap(), config);
    let env = fs::read_to_string(lab.dir().join("env")).unwrap();
    for line in [
        "CNI_COMMAND=CHECK",
        "CNI_CONTAINERID=c1",
        "CNI_NETNS=/run/netns/c1",
        "CNI_IFNAME=eth0",
        "CNI_ARGS=A=1;B=2",
        "OTHER=x y",
        &format!("CNI_PATH={}", dir.display()),
    ] {
        assert!(env.lines().any(|l| l == line), "{line} in\n{env}");
    }
    // Descriptors that the test was started with are inherited; those that the plugin opened are not.
    let count = script(&dir, "count", "set -- /proc/$$/fd/*; echo $# >&2; echo '{}'");
    let direct = Process::new(count).run().stderr;
    assert_eq!(relay(&dir, "ADD", asking("count")).run().stderr, direct, "descriptors of the plugin are inherited");
}

#[test]
fn a_childs_stderr_is_never_lost() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::One);
    script(&dir, "loud", "echo 'for the log' >&2; echo '{}'");
    let outcome = relay(&dir, "ADD", asking("loud")).run();
    outcome.ok();
    assert_eq!(outcome.stderr, "for the log\n");
    script(&dir, "loud", r#"echo 'for the log' >&2; echo '{"code": 42, "msg": "no"}'; exit 1"#);
    let outcome = relay(&dir, "ADD", asking("loud")).run();
    assert_eq!(outcome.error(42), json!({"code": 42, "msg": "no"}), "the child's own error, unchanged");
    assert_eq!(outcome.stderr, "for the log\n".repeat(2), "of ADD, and of the DEL that rolls it back");
}

#[test]
fn a_failure_without_a_cni_error_is_reported() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::One);
    for (body, culprits) in [
        ("exit 3", &["exit status: 3"][..]),
        ("echo trouble >&2; exit 3", &["exit status: 3", "trouble"]),
        ("echo trouble; exit 1", &["trouble"]),
        ("echo '{}'; exit 1", &["exit status: 1"]),
        ("echo '[1]'; exit 1", &["[1]"]),
        ("kill -9 $$", &["signal: 9"]),
    ] {
        script(&dir, "broken", body);
        let error = relay(&dir, "ADD", asking("broken")).run().error(0);
        let text = format!("{} {}", error["msg"], error["details"]);
        for culprit in culprits.iter().chain(&["broken"]) {
            assert!(text.contains(culprit), "{body}: {culprit} in {text}");
        }
    }
}

#[test]
fn a_refused_version_names_the_plugin_and_what_it_supports() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::One);
    let refusal = r#"{"code": 1, "msg": "incompatible CNI versions"}"#;
    let supported = r#"{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0"]}"#;
    for (answer, versions) in [(supported, "0.3.1, 0.4.0"), (refusal, "unknown versions")] {
        let status = i32::from(answer == refusal);
        let version = format!("if [ $CNI_COMMAND = VERSION ]; then echo '{answer}'; exit {status}; fi");
        let old = script(&dir, "old", &format!("{version}; cat >/dev/null; echo '{refusal}'; exit 1"));
        for command in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            let error = relay(&dir, command, asking("old")).run().error(1);
            assert_eq!(error["msg"], format!("call plugin {old:?}: incompatible CNI versions"));
            let details = error["details"].as_str().unwrap();
            assert!(details.contains(&format!("plugin \"old\" supports cniVersion {versions};")), "{details}");
        }
    }
    // A plugin in the same process returns the same error as an executed one.
    let config = json!({"cniVersion": "0.2.0", "name": "net", "ipam": {"type": "stock", "ips": []}});
    let error = relay(&dir, "ADD", config).run().error(1);
    assert!(error["msg"].as_str().unwrap().starts_with(&format!("call plugin {:?}: ", dir.join("stock"))), "{error}");
    assert!(error["details"].as_str().unwrap().contains("plugin \"stock\" supports cniVersion 0.1.0, "), "{error}");
}

#[test]
fn a_status_that_hangs_ends_after_seconds() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::One);
    let slow = script(&dir, "slow", "exec sleep 1000");
    let error = relay(&dir, "STATUS", asking("slow")).run().error(50);
    assert_eq!(error["msg"], format!("call plugin {slow:?}: it did not exit within 5s"));
}

#[test]
fn a_child_may_ignore_stdin_and_leave_children() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::One);
    let filler = "x".repeat(300_000);
    let config = json!({"cniVersion": "1.1.0", "name": "net", "filler": filler, "ipam": {"type": "odd"}});
    script(&dir, "odd", "exec <&-; echo '{}'");
    relay(&dir, "ADD", &config).run().ok();
    script(&dir, "odd", "head -c 200000 /dev/zero | tr '\\0' ' '; cat >/dev/null; echo '{}'");
    relay(&dir, "ADD", &config).run().ok();
    // The grandchild keeps stdout and stderr open for longer than a test waits. Only the exit of the child counts.
    let pid = lab.dir().join("pid");
    script(&dir, "odd", &format!("cat >/dev/null; sleep 3600 & echo $! >{}; echo '{{}}'", pid.display()));
    relay(&dir, "ADD", &config).run().ok();
    lab.sh(&format!("kill $(cat {})", pid.display()));
}

/// Keeps a file open for writing until it is dropped. It is a separate process, because children of other tests would
/// inherit a descriptor of this process and keep it open for longer.
struct Writer(Child);

impl Writer {
    fn open(file: &Path) -> Writer {
        let mut shell = Command::new("sh");
        shell.arg("-ec").arg("exec 3>>\"$0\"; echo; exec sleep 3600").arg(file).stdout(Stdio::piped());
        let mut writer = Writer(shell.spawn().unwrap());
        // It prints a line after it has opened the file.
        writer.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        writer
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_file_that_is_open_for_writing_is_waited_for() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::Another);
    let stock = dir.join("stock");
    let mut writer = Some(Writer::open(&stock));
    // When the plugin watches the file, it is no longer busy.
    let options = ["-e", "trace=execve,inotify_add_watch", "-e", "inject=inotify_add_watch:signal=STOP"];
    let add = relay(&dir, "ADD", asking("stock"));
    let (outcome, log) = parallel::at_each_stop(&lab, add, &options, |_| drop(writer.take()));
    outcome.ok();
    assert!(log.contains("ETXTBSY"), "{log}");

    // A new file is renamed over the busy one, as package managers do.
    let writer = Writer::open(&stock);
    copy_program(&stock, &dir.join("new"));
    std::thread::scope(|scope| {
        let add = scope.spawn(|| relay(&dir, "ADD", asking("stock")).run().ok());
        fs::rename(dir.join("new"), &stock).unwrap();
        add.join().unwrap();
    });
    drop(writer);

    let _writer = Writer::open(&stock);
    let error = relay(&dir, "DEL", asking("stock")).run().error(11);
    assert!(error["msg"].as_str().unwrap().contains("stock"), "never taken for success: {error}");
}

#[test]
fn plugin_directories_are_searched_in_order() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::One);
    let dirs: Vec<PathBuf> = (0..4).map(|n| lab.dir().join(format!("path{n}"))).collect();
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::create_dir(dirs[0].join("which")).unwrap();
    File::create(dirs[1].join("which")).unwrap();
    script(&dirs[2], "which", "echo '{\"dns\": {\"domain\": \"second\"}}'");
    script(&dirs[3], "which", "echo '{\"dns\": {\"domain\": \"third\"}}'");
    let path = |dirs: &[&PathBuf]| std::env::join_paths(dirs).unwrap();
    let add = |path| relay(&dir, "ADD", asking("which")).env("CNI_PATH", path).run();
    let domain = |outcome: Outcome| outcome.ok()["dns"]["domain"].to_string();
    let nowhere = PathBuf::from("/nowhere");
    let all = path(&[&nowhere, &dirs[0], &dirs[1], &dirs[2], &dirs[3]]);
    assert!(domain(add(all)).contains("second"), "neither a directory nor a file that is not executable");
    assert!(domain(add(path(&[&dirs[3], &dirs[2]]))).contains("third"));
    let error = add(path(&[&dirs[0], &dirs[1]])).error(999);
    let wanted = format!("failed to find plugin \"which\" in path [{} {}]", dirs[0].display(), dirs[1].display());
    assert_eq!(error["msg"], wanted.as_str());
    assert!(error["details"].as_str().unwrap().contains("is not executable"), "{error}");
}

#[test]
fn a_type_cannot_be_a_path() {
    let lab = Lab::without_plugins();
    let dir = install(&lab, Set::One);
    script(lab.dir(), "outside", "touch /run/executed; echo '{}'");
    for kind in ["../outside", "/bin/true", "a/b", "", ".", "..", "./stock"] {
        for command in ["ADD", "DEL", "CHECK", "STATUS"] {
            let error = relay(&dir, command, asking(kind)).run().error(7);
            assert!(error["msg"].as_str().unwrap().contains(&format!("{kind:?}")), "{error}");
        }
    }
    assert!(!Path::new("/run/executed").exists());
}
