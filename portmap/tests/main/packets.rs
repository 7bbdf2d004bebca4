//! Sockets in namespaces, and what becomes of a connection between two of them.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use linux::Netns;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, recvfrom, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use testing::{timeout, wait_until};

/// How long to wait for a packet that should not arrive. On a slow machine, a packet may arrive later: then the test
/// passes with a broken plugin, but it never fails with a correct one.
const SILENCE: Duration = Duration::from_millis(300);

/// What becomes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It reaches the server, which sees this client address, and the reply reaches the client.
    From(IpAddr),
    /// The client gets an error at once.
    Refused,
    /// Neither.
    Lost,
}

/// Returns the outcome of a connection whose client has this address for the server.
pub(crate) fn from(ip: &str) -> Outcome {
    Outcome::From(ip.parse().unwrap())
}

/// Opens something in a namespace, or on the host.
fn within<T>(netns: Option<&Path>, open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
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
pub(crate) fn udp(netns: Option<&Path>, ip: &str, port: u16) -> UdpSocket {
    let socket = open_server(netns, || UdpSocket::bind(address(ip, port)));
    socket.set_read_timeout(Some(timeout())).unwrap();
    socket
}

/// The server of a protocol, waiting for its clients.
pub(crate) enum Server {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Server {
    /// Starts a server in a namespace, or on the host. `ip` is the address it listens on.
    pub(crate) fn start(protocol: &str, netns: Option<&Path>, ip: &str, port: u16) -> Server {
        match protocol {
            "tcp" => Server::Tcp(open_server(netns, || TcpListener::bind(address(ip, port)))),
            _ => Server::Udp(udp(netns, ip, port)),
        }
    }
}

/// A client in a namespace, or on the host, with a source address of its own choice if it has one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Client<'a> {
    pub(crate) netns: Option<&'a Path>,
    pub(crate) source: Option<&'a str>,
}

/// A client on the host.
pub(crate) const HOST: Client<'static> = Client { netns: None, source: None };

impl<'a> Client<'a> {
    pub(crate) fn in_netns(netns: &'a Path) -> Client<'a> {
        Client { netns: Some(netns), source: None }
    }

    pub(crate) fn with_source(self, source: &'a str) -> Client<'a> {
        Client { source: Some(source), ..self }
    }

    /// Connects to `ip` and expects `want`. Nothing is repeated: the first packet must arrive.
    #[track_caller]
    pub(crate) fn expect(self, want: &Outcome, ip: &str, port: u16, server: &Server) {
        let patience = if *want == Outcome::Lost { SILENCE } else { timeout() };
        let to = address(ip, port);
        let got = match server {
            Server::Tcp(server) => self.tcp(to, server, patience),
            Server::Udp(server) => self.udp(to, server, want, patience),
        };
        let protocol = if matches!(server, Server::Tcp(_)) { "tcp" } else { "udp" };
        assert_eq!(got, *want, "{protocol} {to} from {self:?}");
    }

    fn source_for(self, ip: IpAddr) -> SocketAddr {
        address(self.source.unwrap_or_else(|| any(ip)), 0)
    }

    fn tcp(self, to: SocketAddr, server: &TcpListener, patience: Duration) -> Outcome {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let opened = within(self.netns, || {
            let client = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            // It also limits `connect`.
            setsockopt(&client, sockopt::SendTimeout, &time(patience))?;
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
        Outcome::From(peer.ip())
    }

    fn udp(self, to: SocketAddr, server: &UdpSocket, want: &Outcome, patience: Duration) -> Outcome {
        // A connected socket gets only packets from there, so the reply must be translated back.
        let client = within(self.netns, || {
            let client = UdpSocket::bind(self.source_for(to.ip()))?;
            client.connect(to)?;
            Ok(client)
        });
        let client = client.unwrap();
        client.set_read_timeout(Some(patience)).unwrap();
        server.set_read_timeout(Some(patience)).unwrap();
        if let Err(error) = client.send(b"request") {
            return failure(&error);
        }
        let mut buffer = [0; 16];
        if *want != Outcome::Refused
            && let Ok((len, peer)) = server.recv_from(&mut buffer)
        {
            assert_eq!(&buffer[..len], b"request");
            server.send_to(b"reply", peer).unwrap();
            return client.recv(&mut buffer).map_or_else(|error| failure(&error), |_| Outcome::From(peer.ip()));
        }
        client.recv(&mut buffer).map_or_else(|error| failure(&error), |_| panic!("a reply from nowhere"))
    }
}

fn failure(error: &io::Error) -> Outcome {
    if error.kind() == io::ErrorKind::ConnectionRefused { Outcome::Refused } else { Outcome::Lost }
}

fn time(duration: Duration) -> TimeVal {
    TimeVal::new(duration.as_secs().try_into().unwrap(), duration.subsec_micros().into())
}

/// A raw socket for SCTP packets, which needs no SCTP in the kernel.
pub(crate) struct Sctp {
    socket: OwnedFd,
    is_ipv4: bool,
}

impl Sctp {
    /// Opens a socket in a namespace, or on the host, that gets all SCTP packets of the family of `ip`.
    pub(crate) fn open(netns: Option<&Path>, ip: IpAddr) -> Sctp {
        let family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let opened = within(netns, || {
            let opened = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)?;
            setsockopt(&opened, sockopt::ReceiveTimeout, &time(timeout()))?;
            Ok(opened)
        });
        Sctp { socket: opened.unwrap(), is_ipv4: ip.is_ipv4() }
    }

    /// Sends the first packet of an association: a common header and a chunk INIT.
    pub(crate) fn send(&self, ip: IpAddr, port: u16) {
        let mut packet = Vec::new();
        packet.extend(4000_u16.to_be_bytes());
        packet.extend(port.to_be_bytes());
        packet.extend([0; 8]); // verification tag, checksum
        packet.extend([1, 0, 0, 20]); // chunk type, flags, length
        packet.extend([0, 0, 0, 1]); // initiate tag
        packet.extend([0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]); // window, streams, first number
        let checksum = crc32c(&packet).to_le_bytes();
        packet[8..12].copy_from_slice(&checksum);
        let to = SockaddrStorage::from(SocketAddr::new(ip, 0));
        sendto(self.socket.as_raw_fd(), &packet, &to, MsgFlags::empty()).unwrap();
    }

    /// Returns the source address and the destination port of the next packet.
    pub(crate) fn receive(&self) -> (IpAddr, u16) {
        let mut buffer = [0; 256];
        let (len, sender) = recvfrom::<SockaddrStorage>(self.socket.as_raw_fd(), &mut buffer).unwrap();
        // Only packets of IPv4 come with their IP header.
        let packet = &buffer[if self.is_ipv4 { 20 } else { 0 }..len];
        let sender = sender.unwrap();
        let source = match (sender.as_sockaddr_in(), sender.as_sockaddr_in6()) {
            (Some(ipv4), _) => IpAddr::from(ipv4.ip()),
            (_, Some(ipv6)) => IpAddr::from(ipv6.ip()),
            _ => panic!("no address"),
        };
        (source, u16::from_be_bytes([packet[2], packet[3]]))
    }
}

/// The checksum of SCTP packets, which connection tracking verifies.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}
