//! Packets of a probe: from one namespace to another, and back.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cni::{Context, Result};
use linux::Deadline;

use super::scene::{Scene, Spot};
use crate::echo::{Echo, Ping};

/// The port on which the receiver of a probe listens.
pub(super) const PORT: u16 = 8080;

/// What a probe sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// An ICMP echo with this number of bytes after its header.
    Echo {
        payload: usize,
    },
    Tcp,
    /// One datagram, and one back.
    Udp,
}

/// Packets from one namespace to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) packet: Packet,
    pub(super) from: Spot,
    /// The receiver, which listens there unless it is another machine.
    pub(super) to: Spot,
    /// Where the sender sends. The port of an echo is 0.
    pub(super) target: SocketAddr,
    /// The address of the receiver, if the target is translated to it.
    pub(super) receiver: IpAddr,
    /// The link of a link-local target, or 0.
    pub(super) scope: u32,
}

/// How a probe ended: the time to the answer, or what was seen instead.
pub(super) type Attempt = Result<Result<Duration, String>>;

impl Flow {
    /// Returns echoes without a payload.
    pub(super) fn echo(from: Spot, to: Spot, ip: IpAddr) -> Flow {
        Flow::to_port(Packet::Echo { payload: 0 }, from, to, SocketAddr::new(ip, 0))
    }

    pub(super) fn to_port(packet: Packet, from: Spot, to: Spot, target: SocketAddr) -> Flow {
        Flow { packet, from, to, target, receiver: target.ip(), scope: 0 }
    }

    /// Sends once and waits for the answer.
    pub(super) fn attempt(&self, scene: &Scene, timeout: Duration) -> Attempt {
        let late = || format!("no answer within {} ms", timeout.as_millis());
        match self.packet {
            Packet::Echo { payload } => {
                let echo = scene.within(self.from, || Echo::open(self.target.ip()))?;
                let ping = Ping { to: self.target.ip(), scope: self.scope, payload, timeout };
                Ok(echo.ping(&ping)?.ok_or_else(late))
            }
            Packet::Tcp => self.connect(scene, timeout),
            Packet::Udp => {
                let receiver = scene.within(self.to, || udp(self.receiver, PORT))?;
                let sender = scene.within(self.from, || udp(self.target.ip(), 0))?;
                let began = Instant::now();
                if let Err(error) = sender.send_to(b"?", self.target) {
                    return Ok(Err(error.to_string()));
                }
                let deadline = Deadline::after(timeout);
                let Some(peer) = receive(&receiver, deadline)? else { return Ok(Err(late())) };
                if let Err(error) = receiver.send_to(b"!", peer) {
                    return Ok(Err(error.to_string()));
                }
                match receive(&sender, deadline)? {
                    Some(_) => Ok(Ok(began.elapsed())),
                    None => Ok(Err(format!("the datagram arrived from {}, but {}", peer.ip(), late()))),
                }
            }
        }
    }

    fn connect(&self, scene: &Scene, timeout: Duration) -> Attempt {
        let listener = scene.within(self.to, || listen(self.receiver, PORT))?;
        let began = Instant::now();
        let mut client = match scene.within(self.from, || Ok(TcpStream::connect_timeout(&self.target, timeout)))? {
            Ok(client) => client,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Ok(Err(format!("no answer within {} ms", timeout.as_millis())));
            }
            Err(error) => return Ok(Err(error.to_string())),
        };
        let deadline = Deadline::after(timeout);
        let mut exchange = || -> io::Result<()> {
            deadline.readable(listener.as_fd())?;
            let (mut server, _) = listener.accept()?;
            for stream in [&client, &server] {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(timeout))?;
            }
            let mut byte = [0];
            client.write_all(b"?").and_then(|()| server.read_exact(&mut byte))?;
            server.write_all(b"!").and_then(|()| client.read_exact(&mut byte))
        };
        match exchange() {
            Ok(()) => Ok(Ok(began.elapsed())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Ok(Err(format!("connected, but no data within {} ms", timeout.as_millis())))
            }
            Err(error) => Ok(Err(format!("connected, but {error}"))),
        }
    }
}

/// Returns the addresses of all links, of the family of `like`.
pub(super) fn any(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Opens a listener in the namespace of the calling thread.
pub(super) fn listen(like: IpAddr, port: u16) -> Result<TcpListener> {
    let what = || format!("listen on port {port} of TCP");
    let listener = TcpListener::bind((any(like), port)).context(what)?;
    listener.set_nonblocking(true).context(what)?;
    Ok(listener)
}

/// Opens a socket in the namespace of the calling thread.
pub(super) fn udp(like: IpAddr, port: u16) -> Result<UdpSocket> {
    let what = || format!("open port {port} of UDP");
    let socket = UdpSocket::bind((any(like), port)).context(what)?;
    socket.set_nonblocking(true).context(what)?;
    Ok(socket)
}

/// Receives a datagram. Returns its sender; `None` at the deadline.
pub(super) fn receive(socket: &UdpSocket, deadline: Deadline) -> Result<Option<SocketAddr>> {
    let mut datagram = [0; 512];
    while deadline.readable(socket.as_fd()).context(|| "wait for a datagram")? {
        match socket.recv_from(&mut datagram) {
            Ok((_, from)) => return Ok(Some(from)),
            // An ICMP error that an earlier datagram caused is reported here, once.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error).context(|| "receive a datagram"),
        }
    }
    Ok(None)
}
