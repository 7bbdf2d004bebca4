//! Sockets in namespaces, and whether packets reach them.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use linux::Netns;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use crate::{timeout, wait_until};

/// How long to wait for a packet that should not arrive. On a slow machine, a packet may arrive later: then the test
/// passes with a broken plugin, but it never fails with a correct one.
const SILENCE: Duration = Duration::from_millis(300);

/// What becomes of a connection: a TCP connection or a UDP request, and its reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It reaches the server, which sees this client address, and the reply reaches the client.
    From(IpAddr),
    /// It reaches the server, but the reply does not reach the client.
    Unanswered,
    /// The client gets an error at once.
    Refused,
    /// None of these.
    Lost,
}

/// Returns the delivery of a connection whose client has this address for the server.
pub fn from(ip: &str) -> Delivery {
    Delivery::From(ip.parse().unwrap())
}

/// Opens something in a namespace, or on the host.
pub fn within<T>(netns: Option<&Path>, open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let Some(path) = netns else { return open() };
    let opened = Netns::open(path).unwrap().run(&Netns::current().unwrap(), || Ok::<_, linux::Error>(open()));
    opened.unwrap()
}

/// Returns the unspecified address of the family of `ip`.
fn any(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "0.0.0.0" } else { "::" }
}

fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Opens a socket with a fixed port. A child process of another test may still have a copy of an earlier one.
fn open_server<T>(netns: Option<&Path>, open: impl Fn() -> io::Result<T>) -> T {
    let mut opened = None;
    wait_until("the port to be free", || {
        match within(netns, &open) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            socket => opened = Some(socket.unwrap()),
        }
        opened.is_some()
    });
    opened.unwrap()
}

/// Opens a UDP socket in a namespace, or on the host.
pub fn udp(netns: Option<&Path>, ip: &str, port: u16) -> UdpSocket {
    let socket = open_server(netns, || UdpSocket::bind(address(ip, port)));
    socket.set_read_timeout(Some(timeout())).unwrap();
    socket
}

/// The server of a protocol, waiting for its clients.
#[derive(Debug)]
pub enum Server {
    /// A server of TCP.
    Tcp(TcpListener),
    /// A server of UDP.
    Udp(UdpSocket),
}

impl Server {
    /// Starts a server in a namespace, or on the host. `ip` is the address it listens on.
    pub fn start(protocol: &str, netns: Option<&Path>, ip: &str, port: u16) -> Server {
        match protocol {
            "tcp" => Server::Tcp(open_server(netns, || TcpListener::bind(address(ip, port)))),
            _ => Server::Udp(udp(netns, ip, port)),
        }
    }
}

/// A client in a namespace, or on the host, with a source address of its own choice if it has one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Client<'a> {
    /// The namespace; `None` for the host.
    pub netns: Option<&'a Path>,
    /// The source address; the kernel selects one if there is none.
    pub source: Option<&'a str>,
}

/// A client on the host.
pub const HOST: Client<'static> = Client { netns: None, source: None };

impl<'a> Client<'a> {
    /// Returns a client in a namespace.
    pub fn in_netns(netns: &'a Path) -> Client<'a> {
        Client { netns: Some(netns), source: None }
    }

    /// Returns the same client with this source address.
    pub fn with_source(self, source: &'a str) -> Client<'a> {
        Client { source: Some(source), ..self }
    }

    /// Connects to `ip` and expects `want`. Nothing is repeated: the first packet must arrive.
    #[track_caller]
    pub fn expect(self, want: &Delivery, ip: &str, port: u16, server: &Server) {
        let limit = if *want == Delivery::Lost { SILENCE } else { timeout() };
        let to = address(ip, port);
        let got = match server {
            Server::Tcp(server) => self.tcp(to, server, limit),
            Server::Udp(server) => self.udp(to, server, want, limit),
        };
        let protocol = if matches!(server, Server::Tcp(_)) { "tcp" } else { "udp" };
        assert_eq!(got, *want, "{protocol} {to} from {self:?}");
    }

    fn source_for(self, ip: IpAddr) -> SocketAddr {
        address(self.source.unwrap_or_else(|| any(ip)), 0)
    }

    fn tcp(self, to: SocketAddr, server: &TcpListener, limit: Duration) -> Delivery {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let opened = within(self.netns, || {
            let client = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            // It also limits `connect`.
            setsockopt(&client, sockopt::SendTimeout, &time(limit))?;
            bind(client.as_raw_fd(), &SockaddrStorage::from(self.source_for(to.ip())))?;
            connect(client.as_raw_fd(), &SockaddrStorage::from(to))?;
            Ok(TcpStream::from(client))
        });
        let mut client = match opened {
            Ok(client) => client,
            Err(error) => return failure(&error),
        };
        let (mut stream, peer) = server.accept().unwrap();
        client.set_read_timeout(Some(timeout())).unwrap();
        stream.write_all(b"reply").unwrap();
        let mut reply = [0; 5];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"reply");
        Delivery::From(peer.ip())
    }

    fn udp(self, to: SocketAddr, server: &UdpSocket, want: &Delivery, limit: Duration) -> Delivery {
        // A connected socket gets only packets from there, so the reply must be translated back.
        let client = within(self.netns, || {
            let client = UdpSocket::bind(self.source_for(to.ip()))?;
            client.connect(to)?;
            Ok(client)
        });
        let client = client.unwrap();
        client.set_read_timeout(Some(if *want == Delivery::Unanswered { SILENCE } else { limit })).unwrap();
        server.set_read_timeout(Some(limit)).unwrap();
        if let Err(error) = client.send(b"request") {
            return failure(&error);
        }
        let mut buffer = [0; 16];
        if *want != Delivery::Refused
            && let Ok((len, peer)) = server.recv_from(&mut buffer)
        {
            assert_eq!(&buffer[..len], b"request");
            server.send_to(b"reply", peer).unwrap();
            return client.recv(&mut buffer).map_or(Delivery::Unanswered, |_| Delivery::From(peer.ip()));
        }
        client.recv(&mut buffer).map_or_else(|error| failure(&error), |_| panic!("a reply from nowhere"))
    }
}

fn failure(error: &io::Error) -> Delivery {
    if error.kind() == io::ErrorKind::ConnectionRefused { Delivery::Refused } else { Delivery::Lost }
}

/// Returns a duration as an option of a socket.
pub fn time(duration: Duration) -> TimeVal {
    TimeVal::new(duration.as_secs().try_into().unwrap(), duration.subsec_micros().into())
}

/// Sends one datagram, and returns the source address that the receiver sees, or `None` if it does not arrive. Nothing
/// is repeated: the first packet must arrive.
pub fn send(from: &UdpSocket, to: &UdpSocket, ip: &str) -> Option<IpAddr> {
    // Without a route, sending fails.
    from.send_to(b"hello", address(ip, to.local_addr().unwrap().port())).ok()?;
    to.set_read_timeout(Some(timeout())).unwrap();
    let mut buffer = [0; 64];
    let (len, sender) = to.recv_from(&mut buffer).ok()?;
    assert_eq!(&buffer[..len], b"hello");
    Some(sender.ip())
}

/// Sends one datagram, and panics if it arrives.
#[track_caller]
pub fn assert_nothing_arrives(from: &UdpSocket, to: &UdpSocket, ip: &str) {
    let _ = from.send_to(b"lost", address(ip, to.local_addr().unwrap().port()));
    to.set_read_timeout(Some(SILENCE)).unwrap();
    let mut buffer = [0; 64];
    if let Ok((_, sender)) = to.recv_from(&mut buffer) {
        panic!("a packet from {sender} arrived at {ip}");
    }
}
