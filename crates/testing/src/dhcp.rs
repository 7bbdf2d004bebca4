//! A network with DHCP servers, and the daemon of the plugin `dhcp`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::packets::within;
use crate::{Lab, PATH, dhcp6, skip, wait_until};

/// The socket of the daemon.
pub const SOCKET: &str = "/run/cni/dhcp.sock";
/// The address of the server.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);

/// A process that ends with the test, even if the test is killed.
#[derive(Debug)]
pub struct Service {
    child: Child,
    log: PathBuf,
}

impl Service {
    fn start(lab: &Lab, name: &str, command: &mut Command) -> Service {
        let log = lab.dir().join(format!("{name}.log"));
        let file = File::options().append(true).create(true).open(&log).unwrap();
        command.env_clear().env("PATH", PATH).env("CNI_LOG", "debug").stdin(Stdio::null());
        let child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        Service { child, log }
    }

    /// Returns what the process has printed.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Returns the number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has printed a text.
    #[track_caller]
    pub fn await_log(&self, text: &str) {
        wait_until(&format!("{text:?} in {:?}", self.log), || self.log().contains(text));
    }

    /// Asks the process to end, and waits for it. Returns whether it succeeded.
    pub fn end(mut self) -> bool {
        Command::new("kill").arg(self.pid().to_string()).status().unwrap();
        self.child.wait().unwrap().success()
    }

    /// Waits until the process ends by itself. Returns whether it succeeded.
    pub fn wait(mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prepares a program that ends with the test.
fn program(path: impl AsRef<Path>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(path.as_ref());
    command
}

/// Starts another program that ends with the test.
pub fn start(lab: &Lab, name: &str, path: impl AsRef<Path>, arguments: &[&str]) -> Service {
    Service::start(lab, name, program(path).args(arguments))
}

/// Starts the daemon with these flags, without waiting for it.
pub fn start_daemon(lab: &Lab, flags: &[&str]) -> Service {
    Service::start(lab, "daemon", program(lab.bin().join("dhcp")).arg("daemon").args(flags))
}

/// Starts the daemon with these flags, and waits until it listens.
pub fn daemon(lab: &Lab, flags: &[&str]) -> Service {
    let daemon = start_daemon(lab, flags);
    wait_until("the daemon to listen", || UnixStream::connect(SOCKET).is_ok());
    daemon
}

/// A wire, on which the host has `eth1`, and a server `w0` in another namespace.
#[derive(Debug)]
pub struct Wire<'a> {
    lab: &'a Lab,
    /// The namespace of the server.
    pub netns: PathBuf,
}

impl<'a> Wire<'a> {
    /// Creates the wire.
    pub fn new(lab: &'a Lab) -> Wire<'a> {
        lab.sh("ip link add eth1 type veth peer name w0; ip link set eth1 up");
        Wire::with_end(lab, "w0")
    }

    /// Makes a link of the host the server's end of a wire.
    pub fn with_end(lab: &'a Lab, link: &str) -> Wire<'a> {
        let netns = lab.netns("wire");
        lab.sh(&format!("ip link set {link} down; ip link set {link} name w0 netns wire"));
        // The link-local address is ready at once: a router needs it.
        lab.sh("ip -n wire link set lo up
                nsenter --net=/run/netns/wire sysctl -qw net.ipv6.conf.w0.accept_dad=0 || [ ! -e /proc/sys/net/ipv6 ]
                ip -n wire address add 10.66.0.1/24 dev w0
                ip -n wire address add 10.66.0.2/24 dev w0
                [ ! -e /proc/sys/net/ipv6 ] || ip -n wire address add fd66::1/64 dev w0 nodad
                [ ! -e /proc/sys/net/ipv6 ] || ip -n wire address add fd67::1/64 dev w0 nodad
                ip -n wire link set w0 up
                ip -n wire route add default dev w0");
        Wire { lab, netns }
    }

    /// Starts dnsmasq with more options than a range of addresses; `None` without the program, which skips the test.
    pub fn dnsmasq(&self, test: &str, options: &[&str]) -> Option<Service> {
        let range = ["--dhcp-range=10.66.0.50,10.66.0.150,255.255.255.0,1h"];
        self.start(test, &[&range, options].concat(), "DHCP, sockets bound exclusively")
    }

    /// Starts dnsmasq with these ranges of IPv6 as the router fd66::1 and fd67::1; `None` without the program, which
    /// skips the test.
    pub fn router(&self, test: &str, options: &[&str]) -> Option<Service> {
        self.start(test, &[&["--enable-ra"], options].concat(), "IPv6 router advertisement enabled")
    }

    fn start(&self, test: &str, options: &[&str], started: &str) -> Option<Service> {
        if !Path::new("/usr/sbin/dnsmasq").exists() {
            skip(test, "dnsmasq-base is not installed");
            return None;
        }
        let mut command = program("nsenter");
        command.arg(format!("--net={}", self.netns.display())).args([
            "/usr/sbin/dnsmasq",
            "--no-daemon",
            "--no-ping",
            "--port=0",
            "--interface=w0",
            "--bind-dynamic",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--user=root",
            "--log-dhcp",
            "--dhcp-leasefile=/run/leases",
        ]);
        let server = Service::start(self.lab, "dnsmasq", command.args(options));
        server.await_log(started);
        Some(server)
    }

    /// Returns the leases of dnsmasq.
    pub fn leases(&self) -> String {
        fs::read_to_string("/run/leases").unwrap_or_default()
    }

    /// Starts a server that does what `behaviour` says.
    pub fn server(&self, behaviour: impl FnMut(&Request) -> Vec<Reply> + Send + 'static) -> Server {
        self.server_of(behaviour)
    }

    /// Starts a server of DHCPv6 that does what `behaviour` says.
    pub fn server6(
        &self,
        behaviour: impl FnMut(&dhcp6::Request) -> Vec<dhcp6::Reply> + Send + 'static,
    ) -> Server<dhcp6::Request> {
        self.server_of(behaviour)
    }

    fn server_of<Q: Question>(&self, behaviour: impl FnMut(&Q) -> Vec<Q::Reply> + Send + 'static) -> Server<Q> {
        let socket = within(Some(&self.netns), Q::open).unwrap();
        let shared = Arc::new(Shared { requests: Mutex::default(), behaviour: Mutex::new(Box::new(behaviour)) });
        let own = Arc::clone(&shared);
        let thread = thread::spawn(move || serve(&socket, &own));
        Server { shared, thread: Some(thread), netns: self.netns.clone() }
    }
}

/// A message of a client, of either family.
pub trait Question: Clone + Send + 'static {
    /// What a server answers.
    type Reply: Send;
    /// The port of servers, at the loopback address.
    const HERE: &'static str;
    /// Opens the socket of a server, in its namespace.
    fn open() -> io::Result<UdpSocket>;
    /// Parses a message.
    fn parse(bytes: &[u8], from: SocketAddr) -> Self;
    /// Returns an answer, and where it goes.
    fn answer(&self, reply: &Self::Reply) -> (Vec<u8>, SocketAddr);
}

type Behaviour<Q> = Box<dyn FnMut(&Q) -> Vec<<Q as Question>::Reply> + Send>;

struct Shared<Q: Question> {
    requests: Mutex<Vec<Q>>,
    behaviour: Mutex<Behaviour<Q>>,
}

impl<Q: Question> fmt::Debug for Shared<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

/// A server that a test controls.
#[derive(Debug)]
pub struct Server<Q: Question = Request> {
    shared: Arc<Shared<Q>>,
    thread: Option<JoinHandle<()>>,
    netns: PathBuf,
}

impl<Q: Question> Server<Q> {
    /// Returns the messages that have arrived.
    pub fn requests(&self) -> Vec<Q> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Forgets the messages that have arrived.
    pub fn forget(&self) {
        self.shared.requests.lock().unwrap().clear();
    }

    /// Waits for a message. Returns the first one for which the condition is true.
    #[track_caller]
    pub fn await_request(&self, what: &str, condition: impl Fn(&Q) -> bool) -> Q {
        let mut found = None;
        wait_until(what, || {
            found = self.requests().into_iter().find(&condition);
            found.is_some()
        });
        found.unwrap()
    }

    /// Changes what the server does.
    pub fn behave(&self, behaviour: impl FnMut(&Q) -> Vec<Q::Reply> + Send + 'static) {
        *self.shared.behaviour.lock().unwrap() = Box::new(behaviour);
    }
}

impl<Q: Question> Drop for Server<Q> {
    fn drop(&mut self) {
        let any = if Q::HERE.starts_with('[') { "[::1]:0" } else { "127.0.0.1:0" };
        let end = within(Some(&self.netns), || UdpSocket::bind(any));
        let _ = end.and_then(|socket| socket.send_to(b"end", Q::HERE));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve<Q: Question>(socket: &UdpSocket, shared: &Shared<Q>) {
    let mut buffer = [0; 2048];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).unwrap();
        if &buffer[..length] == b"end" {
            return;
        }
        let request = Q::parse(&buffer[..length], from);
        let replies = (shared.behaviour.lock().unwrap())(&request);
        shared.requests.lock().unwrap().push(request.clone());
        for reply in replies {
            let (bytes, to) = request.answer(&reply);
            // The container may be gone.
            let _ = socket.send_to(&bytes, to);
        }
    }
}

/// Kinds of messages.
pub const DISCOVER: u8 = 1;
/// A server offers an address.
pub const OFFER: u8 = 2;
/// A client asks for an address.
pub const REQUEST: u8 = 3;
/// A server grants it.
pub const ACK: u8 = 5;
/// A server refuses it.
pub const NAK: u8 = 6;
/// A client gives it back.
pub const RELEASE: u8 = 7;

/// A message of a client.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it is.
    pub kind: u8,
    /// The number of the exchange.
    pub xid: [u8; 4],
    /// Whether the answer must be a broadcast.
    pub broadcast: bool,
    /// The address that the client has.
    pub client: Ipv4Addr,
    /// The MAC address, with its padding.
    pub mac: [u8; 16],
    /// The options.
    pub options: BTreeMap<u8, Vec<u8>>,
    /// Where the datagram came from.
    pub from: SocketAddr,
}

impl Question for Request {
    type Reply = Reply;
    const HERE: &'static str = "127.0.0.1:67";

    fn open() -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind("0.0.0.0:67")?;
        socket.set_broadcast(true)?;
        Ok(socket)
    }

    fn answer(&self, reply: &Reply) -> (Vec<u8>, SocketAddr) {
        let to = match self.client.is_unspecified() || reply.kind == NAK {
            true => Ipv4Addr::BROADCAST,
            false => self.client,
        };
        (reply.write(self), (to, 68).into())
    }

    fn parse(bytes: &[u8], from: SocketAddr) -> Request {
        let mut options = BTreeMap::new();
        let mut rest = &bytes[240..];
        while let [number, more @ ..] = rest {
            rest = match (number, more) {
                (0, _) => more,
                (255, _) => break,
                (_, [length, more @ ..]) => {
                    let (value, more) = more.split_at(usize::from(*length));
                    options.insert(*number, value.to_vec());
                    more
                }
                _ => panic!("an option that is cut: {bytes:?}"),
            };
        }
        Request {
            kind: options[&53][0],
            xid: bytes[4..8].try_into().unwrap(),
            broadcast: bytes[10] & 0x80 != 0,
            client: Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[12..16]).unwrap()),
            mac: bytes[28..44].try_into().unwrap(),
            options,
            from,
        }
    }
}

impl Request {
    /// Returns the address that the client asks for.
    pub fn requested(&self) -> Option<Ipv4Addr> {
        Some(Ipv4Addr::from(<[u8; 4]>::try_from(self.options.get(&50)?.as_slice()).unwrap()))
    }
}

/// A message of a server.
#[derive(Clone, Debug)]
pub struct Reply {
    /// What it is.
    pub kind: u8,
    /// The address that the client gets.
    pub address: Ipv4Addr,
    /// The options, without the kind.
    pub options: Vec<(u8, Vec<u8>)>,
}

impl Reply {
    /// Returns what a server with one address answers: an offer, or a lease with these times of T1, T2 and its end in
    /// seconds.
    pub fn grant(request: &Request, address: [u8; 4], times: [u32; 3]) -> Vec<Reply> {
        let kind = match request.kind {
            DISCOVER => OFFER,
            REQUEST => ACK,
            _ => return Vec::new(),
        };
        let [t1, t2, end] = times.map(|time| time.to_be_bytes().to_vec());
        let options = vec![
            (1, vec![255, 255, 255, 0]),
            (3, SERVER.octets().to_vec()),
            (51, end),
            (54, SERVER.octets().to_vec()),
            (58, t1),
            (59, t2),
        ];
        vec![Reply { kind, address: address.into(), options }]
    }

    /// Returns a refusal.
    pub fn refusal() -> Vec<Reply> {
        let options = vec![(54, SERVER.octets().to_vec()), (56, b"not here".to_vec())];
        vec![Reply { kind: NAK, address: Ipv4Addr::UNSPECIFIED, options }]
    }

    fn write(&self, to: &Request) -> Vec<u8> {
        let mut bytes = vec![0; 240];
        bytes[..4].copy_from_slice(&[2, 1, 6, 0]);
        bytes[4..8].copy_from_slice(&to.xid);
        bytes[12..16].copy_from_slice(&to.client.octets());
        bytes[16..20].copy_from_slice(&self.address.octets());
        bytes[28..44].copy_from_slice(&to.mac);
        bytes[236..240].copy_from_slice(&[99, 130, 83, 99]);
        bytes.extend([53, 1, self.kind]);
        for (number, value) in &self.options {
            bytes.extend([*number, u8::try_from(value.len()).unwrap()]);
            bytes.extend(value);
        }
        bytes.push(255);
        bytes
    }
}
