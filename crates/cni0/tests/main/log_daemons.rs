//! The log of a call at the host's log daemon: the journal, or syslog.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{IoSliceMut, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::cmsg_space;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use serde_json::{Value, json};
use testing::{Lab, Outcome, timeout};

const JOURNAL: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";

/// The fields of a message in the journal.
type Fields = BTreeMap<String, String>;

/// Binds a socket where the daemon has its own. The paths are private to the lab.
fn daemon(lab: &Lab, path: &str) -> UnixDatagram {
    if path.starts_with("/dev/") {
        // Only two files of the machine's /dev are visible here, and never below a directory that is removed.
        lab.sh("mkdir /run/dev
             for file in null urandom; do touch /run/dev/$file; mount --bind /dev/$file /run/dev/$file; done
             mount --rbind /run/dev /dev");
    }
    fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(timeout())).unwrap();
    socket
}

/// Receives one datagram, and the file that came with it.
fn receive(socket: &UnixDatagram) -> (Vec<u8>, Option<File>) {
    let mut buffer = vec![0; 1 << 20];
    let mut space = cmsg_space!([i32; 1]);
    let mut room = [IoSliceMut::new(&mut buffer)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut room, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC).unwrap();
    let mut file = None;
    for control in message.cmsgs().unwrap() {
        let ControlMessageOwned::ScmRights(descriptors) = control else { panic!("{control:?}") };
        file = Some(File::open(format!("/proc/thread-self/fd/{}", descriptors[0])).unwrap());
        nix::unistd::close(descriptors[0]).unwrap();
    }
    let length = message.bytes;
    buffer.truncate(length);
    (buffer, file)
}

/// Returns the messages that are in the queue.
fn messages(socket: &UnixDatagram) -> Vec<Vec<u8>> {
    socket.set_nonblocking(true).unwrap();
    let mut buffer = vec![0; 1 << 20];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())).collect()
}

/// Parses the native protocol of journald.
fn parse(mut bytes: &[u8]) -> Fields {
    let mut fields = Fields::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|byte| [b'=', b'\n'].contains(byte)).unwrap();
        let name = str::from_utf8(&bytes[..end]).unwrap().to_owned();
        let is_simple = bytes[end] == b'=';
        bytes = &bytes[end + 1..];
        let length = match is_simple {
            true => bytes.iter().position(|byte| *byte == b'\n').unwrap(),
            false => {
                let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
                bytes = rest;
                u64::from_le_bytes(*length).try_into().unwrap()
            }
        };
        let value = str::from_utf8(&bytes[..length]).unwrap().to_owned();
        assert_eq!(bytes[length], b'\n');
        bytes = &bytes[length + 1..];
        assert!(fields.insert(name, value).is_none());
    }
    fields
}

/// Calls `bridge` for the container `c1`.
fn call(lab: &Lab, command: &str, more: Value) -> Outcome {
    let ipam = json!({"type": "host-local", "subnet": "10.1.0.0/24"});
    let mut config = json!({"cniVersion": "1.1.0", "name": "net1", "type": "bridge", "bridge": "br0", "ipam": ipam});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    lab.attach("bridge", command, "/run/netns/c1").stdin(config.to_string()).run()
}

#[test]
fn the_journal_gets_one_message_per_call_with_its_fields() {
    let lab = Lab::new();
    let journal = daemon(&lab, JOURNAL);
    lab.netns("c1");
    let log = json!({"logFile": "journal", "logLevel": "info"});
    let result = call(&lab, "ADD", log.clone()).ok();
    let mut with_result = log.clone();
    with_result["prevResult"] = result;
    for command in ["CHECK", "DEL"] {
        call(&lab, command, with_result.clone()).silent();
    }
    let messages: Vec<Fields> = messages(&journal).iter().map(|bytes| parse(bytes)).collect();
    assert_eq!(messages.len(), 3, "{messages:?}");
    for (fields, command) in messages.iter().zip(["ADD", "CHECK", "DEL"]) {
        let (message, others) = (&fields["MESSAGE"], fields.len());
        let start = format!("{command} net=net1 container=c1 if=eth0: ok ms=");
        assert!(message.starts_with(&start) && message.ends_with(" ips=10.1.0.2/24"), "{message}");
        let wanted = [
            ("PRIORITY", "6"),
            ("SYSLOG_IDENTIFIER", "bridge"),
            ("CNI_COMMAND", command),
            ("CNI_NETWORK", "net1"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
        ];
        assert!(wanted.iter().all(|(name, value)| fields[*name] == *value), "{fields:?}");
        assert_eq!(others, wanted.len() + 1, "{fields:?}");
    }
}

#[test]
fn failures_are_errors_in_the_journal_however_large() {
    let lab = Lab::new();
    let journal = daemon(&lab, JOURNAL);
    lab.netns("c1");
    let log = json!({"logFile": "journal", "logLevel": "error"});
    call(&lab, "ADD", log.clone()).ok();
    assert_eq!(messages(&journal).len(), 0, "level error has no successes");
    journal.set_nonblocking(false).unwrap();
    call(&lab, "NONSENSE", log.clone()).error(4);
    let (bytes, _) = receive(&journal);
    let fields = parse(&bytes);
    assert!(fields["MESSAGE"].contains(": failed ms=") && fields["MESSAGE"].contains(" code=4 msg="), "{fields:?}");
    assert_eq!((fields["PRIORITY"].as_str(), fields.get("CNI_CONTAINERID")), ("3", None));
    let mut large = log;
    large["ipam"] = json!({"type": "x".repeat(1 << 19)});
    call(&lab, "ADD", large).error(999);
    let (bytes, file) = receive(&journal);
    assert_eq!(bytes, b"", "a file takes the place of the datagram");
    let (mut file, mut bytes) = (file.unwrap(), Vec::new());
    file.read_to_end(&mut bytes).unwrap();
    assert!(parse(&bytes)["MESSAGE"].len() > 1 << 19);
    let seals = SealFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GET_SEALS).unwrap());
    assert!(seals.contains(SealFlag::F_SEAL_WRITE), "journald refuses a file that can change");
}

#[test]
fn syslog_gets_a_line() {
    let lab = Lab::new();
    let syslog = daemon(&lab, SYSLOG);
    lab.netns("c1");
    call(&lab, "ADD", json!({"logFile": "syslog", "logLevel": "info"})).ok();
    let messages = messages(&syslog);
    assert_eq!(messages.len(), 1);
    let line = String::from_utf8(messages[0].clone()).unwrap();
    assert!(line.starts_with("<30>bridge[") && line.contains("]: ADD net=net1 container=c1 if=eth0: ok ms="), "{line}");
    call(&lab, "DEL", json!({"logFile": "syslog"})).silent();
    let debug = self::messages(&syslog);
    assert!(debug.len() > 2 && debug.iter().any(|line| line.starts_with(b"<31>bridge[")), "without a level: debug");
}

#[test]
fn a_missing_or_busy_daemon_neither_fails_nor_delays_a_call() {
    let lab = Lab::new();
    lab.netns("c1");
    let log = json!({"logFile": "journal", "logLevel": "info"});
    let outcome = call(&lab, "ADD", log.clone());
    outcome.ok();
    assert!(outcome.stderr.contains("WARN") && outcome.stderr.contains(JOURNAL), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 2, "the warning and the outcome: {}", outcome.stderr);
    // Nothing reads from the socket, so its queue fills up.
    let _journal = daemon(&lab, JOURNAL);
    let client = UnixDatagram::unbound().unwrap();
    client.set_nonblocking(true).unwrap();
    while client.send_to(b"MESSAGE=full\n", JOURNAL).is_ok() {}
    let outcome = call(&lab, "DEL", json!({"logFile": "journal"}));
    outcome.ok();
    let lost = format!("warning: send to the log daemon at {JOURNAL}: ");
    assert!(outcome.stderr.starts_with(&lost) && outcome.stderr.lines().count() == 1, "{}", outcome.stderr);
}
