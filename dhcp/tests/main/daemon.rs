//! The daemon as a process: its flags, its socket, its permissions.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::json;
use testing::dhcp::{self, SOCKET, Wire, daemon, start_daemon};
use testing::{Lab, Pod, Process, wait_until};

use crate::support::{address, lan};

#[test]
fn the_socket_and_the_process_have_few_permissions() {
    let lab = &Lab::new();
    let daemon = daemon(lab, &["-pidfile", "/run/dhcp.pid"]);
    assert_eq!(fs::metadata(SOCKET).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_to_string("/run/dhcp.pid").unwrap(), daemon.pid().to_string());
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let bind_service_net_admin_net_raw_ptrace_admin = "0000000000283400";
    for set in ["CapEff", "CapPrm"] {
        assert!(status.contains(&format!("{set}:\t{bind_service_net_admin_net_raw_ptrace_admin}\n")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
    assert!(daemon.end());
    assert!(!Path::new(SOCKET).exists() && !Path::new("/run/dhcp.pid").exists());
}

#[test]
fn a_second_daemon_does_not_take_the_place_of_the_first() {
    let lab = &Lab::new();
    let first = daemon(lab, &[]);
    let second = start_daemon(lab, &[]);
    second.await_log("another process listens at \"/run/cni/dhcp.sock\"");
    assert!(!second.wait());
    // With another socket, it follows its own leases.
    let third = start_daemon(lab, &["-socketpath=/run/other/dhcp.sock"]);
    third.await_log("serving \"/run/other/dhcp.sock\"");
    assert!(first.end() && third.end());
}

#[test]
fn mistakes_in_the_command_line_are_reported() {
    let lab = &Lab::new();
    for (flags, wanted) in [
        (&["-nonsense"][..], "unknown flag -nonsense"),
        (&["-pidfile", "x"], "path not absolute"),
        (&["-timeout", "soon"], "is not a duration"),
        (&["-socketpath", "/proc/none/x"], "listen at \"/proc/none/x\""),
        (&["start"], "unexpected argument \"start\""),
    ] {
        let daemon = start_daemon(lab, flags);
        daemon.await_log(wanted);
        assert!(!daemon.wait(), "{flags:?}");
    }
    let help = Process::new(lab.bin().join("dhcp")).arg("daemon").arg("-help").run();
    assert_eq!((help.status, help.stderr.as_str()), (Some(0), ""));
    assert!(help.stdout.contains("-resendtimeout DURATION"), "{}", help.stdout);
}

/// A service manager creates the socket, and starts the daemon for the first connection.
#[test]
fn a_socket_of_the_service_manager_is_used() {
    let lab = &Lab::new();
    let script = "import os, socket, sys
s = socket.socket(socket.AF_UNIX)
os.makedirs('/run/cni', exist_ok=True)
s.bind('/run/cni/dhcp.sock')
s.listen()
os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS=sys.argv[2], LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[1], ['dhcp', 'daemon', '-pidfile', '/run/pid'])
";
    fs::write(lab.dir().join("activate.py"), script).unwrap();
    let start = |count: &str| {
        let (script, program) = (lab.dir().join("activate.py"), lab.bin().join("dhcp"));
        let [script, program] = [script, program].map(|path| path.to_str().unwrap().to_owned());
        let _ = fs::remove_file(SOCKET);
        dhcp::start(lab, "activated", "/usr/bin/python3", &[&script, &program, count])
    };
    let first = start("1");
    wait_until("the daemon to listen", || UnixStream::connect(SOCKET).is_ok() && Path::new("/run/pid").exists());
    let status = lan(json!({}));
    lab.plugin("dhcp", "STATUS").stdin(status.to_string()).run().ok();
    assert!(first.end() && !Path::new("/run/pid").exists());
    assert!(Path::new(SOCKET).exists(), "the socket is the service manager's");
    let second = start("2");
    second.await_log("Too many (2) FDs passed through socket activation");
    assert!(!second.wait());
}

#[test]
fn a_prefix_leads_to_the_root_of_the_host() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let test = "daemon::a_prefix_leads_to_the_root_of_the_host";
    let Some(_server) = wire.dnsmasq(test, &[]) else { return };
    lab.sh("mkdir -p /run/host/run; mount --rbind /run/netns /run/netns; mkdir /run/host/run/netns
            mount --rbind /run/netns /run/host/run/netns");
    let daemon = start_daemon(lab, &["-hostprefix", "/run/host", "-broadcast"]);
    let socket = "/run/host/run/cni/dhcp.sock";
    wait_until("the daemon to listen", || UnixStream::connect(socket).is_ok());
    let config = lan(json!({ "daemonSocketPath": socket }));
    let pod = Pod::new(lab, "c1");
    lab.sh("touch /run/host/run/netns/c1; mount --bind /run/netns/c1 /run/host/run/netns/c1");
    let result = pod.add(&config);
    assert!(address(&result).starts_with("10.66.0."));
    pod.check_result(&config, &result).ok();
    pod.del(&config);
    assert!(daemon.end());
}

/// Whatever a client sends, the daemon answers others.
#[test]
fn nonsense_on_the_socket_is_survived() {
    let lab = &Lab::new();
    let daemon = daemon(lab, &[]);
    let answers = [&b"nonsense\n"[..], b"{}\n", b"{\"command\":\"ADD\"}\n", b"\n", b"[[[[[[[\n"].map(|line| {
        let mut client = UnixStream::connect(SOCKET).unwrap();
        client.write_all(line).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    });
    assert!(answers.iter().all(|answer| answer.contains("read a request")), "{answers:?}");
    let idle: Vec<UnixStream> = (0..50).map(|_| UnixStream::connect(SOCKET).unwrap()).collect();
    lab.plugin("dhcp", "STATUS").stdin(lan(json!({})).to_string()).run().ok();
    drop(idle);
    assert!(daemon.end());
}
