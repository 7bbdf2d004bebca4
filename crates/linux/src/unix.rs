//! A server on this host, over a UNIX domain socket: a connection with a deadline for everything, or datagrams that are
//! sent without waiting. `server` is the other side of a connection.

mod server;

use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, sendmsg, setsockopt,
    socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::error::{Error, Kind, Result};
use crate::wait::Deadline;

pub use server::{Listener, Peer};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket in the file system.
    Path(PathBuf),
    /// A name in the network namespace.
    Abstract(Vec<u8>),
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    deadline: Deadline,
}

impl Connection {
    /// Connects to a server. The deadline is for all operations together, so that a server that is slow at each of them
    /// cannot delay the caller further.
    pub fn open(address: &Address, deadline: Deadline) -> Result<Connection> {
        let address = match address {
            Address::Path(path) => UnixAddr::new(path)?,
            Address::Abstract(name) => UnixAddr::new_abstract(name)?,
        };
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        loop {
            // The kernel blocks while the server's queue of new connections is full. Zero would mean no limit.
            let left = i32::try_from(deadline.left().as_millis()).unwrap_or(i32::MAX).max(1);
            setsockopt(&socket, SendTimeout, &TimeVal::milliseconds(left.into()))?;
            match connect(socket.as_raw_fd(), &address) {
                Ok(()) => return Ok(Connection { socket, deadline }),
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => return Err(too_late(deadline)),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends all of `bytes`.
    pub fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            // Without MSG_NOSIGNAL, a server that has closed the connection would kill this process.
            match send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => self.wait(PollFlags::POLLOUT)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Receives what has arrived, at least one byte and at most the length of `buffer`; 0 if the server has closed the
    /// connection.
    ///
    /// The deadline ends only waits: bytes that have arrived are received even later. A caller that reads in a loop
    /// must limit the number of bytes.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match recv(self.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(received) => return Ok(received),
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => self.wait(PollFlags::POLLIN)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn wait(&self, event: PollFlags) -> Result<()> {
        match self.deadline.poll(&mut [PollFd::new(self.socket.as_fd(), event)])? {
            true => Ok(()),
            false => Err(too_late(self.deadline)),
        }
    }
}

/// A socket that sends datagrams to a server, and never waits for it.
#[derive(Debug)]
pub struct Datagrams {
    socket: OwnedFd,
}

impl Datagrams {
    /// Connects to the server at this path.
    pub fn connect(path: &Path) -> Result<Datagrams> {
        let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Datagrams { socket })
    }

    /// Sends one datagram. Fails with EAGAIN if the server's queue is full, and with EMSGSIZE if the datagram is too
    /// large.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        self.send_with(bytes, &[])
    }

    /// Sends the bytes as a sealed file in memory, to a server that accepts one in place of a large datagram.
    pub fn send_as_file(&self, bytes: &[u8]) -> Result<()> {
        let file = memfd_create(c"datagram", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        let mut file = File::from(file);
        file.write_all(bytes)?;
        // The server can read the file at leisure, because it cannot change any more.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        self.send_with(&[], &[ControlMessage::ScmRights(&[file.as_raw_fd()])])
    }

    fn send_with(&self, bytes: &[u8], control: &[ControlMessage<'_>]) -> Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        sendmsg::<UnixAddr>(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)?;
        Ok(())
    }
}

fn too_late(deadline: Deadline) -> Error {
    let what = format!("no answer within {:?}", deadline.length());
    Error::new(Kind::Transient, what)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
    use std::time::Duration;

    use nix::sys::socket::{Backlog, bind, listen};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(240);

    fn name(test: &str) -> Vec<u8> {
        format!("cni0-test-{}-{test}", std::process::id()).into_bytes()
    }

    fn listener(test: &str) -> (UnixListener, Address) {
        let address = SocketAddr::from_abstract_name(name(test)).unwrap();
        (UnixListener::bind_addr(&address).unwrap(), Address::Abstract(name(test)))
    }

    #[test]
    fn more_than_the_buffers_hold_is_sent_and_received() {
        let (listener, address) = listener("exchange");
        let big = vec![7; 8 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut server, _) = listener.accept().unwrap();
                let mut bytes = vec![0; big.len()];
                server.read_exact(&mut bytes).unwrap();
                server.write_all(&bytes).unwrap();
            });
            let mut connection = Connection::open(&address, Deadline::after(TIMEOUT)).unwrap();
            connection.send(&big).unwrap();
            let mut received = Vec::new();
            let mut buffer = [0; 4096];
            loop {
                match connection.receive(&mut buffer).unwrap() {
                    0 => break,
                    n => received.extend_from_slice(&buffer[..n]),
                }
            }
            assert!(received == big);
        });
    }

    #[test]
    fn a_server_that_does_not_answer_is_left_at_the_deadline() {
        let (_listener, address) = listener("silent");
        let mut connection = Connection::open(&address, Deadline::after(Duration::from_millis(50))).unwrap();
        let error = connection.receive(&mut [0; 16]).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Transient, "no answer within 50ms"));
        let error = connection.send(&vec![0; 8 << 20]).unwrap_err();
        assert_eq!(error.kind(), Kind::Transient, "nothing reads, and the buffers are full");
    }

    #[test]
    fn a_server_that_does_not_accept_is_left_at_the_deadline() {
        let server = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(server.as_raw_fd(), &UnixAddr::new_abstract(&name("full")).unwrap()).unwrap();
        listen(&server, Backlog::new(0).unwrap()).unwrap();
        let address = Address::Abstract(name("full"));
        let open = || Connection::open(&address, Deadline::after(Duration::from_millis(50)));
        let _queued = open().unwrap();
        let error = open().unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Transient, "no answer within 50ms"));
    }

    #[test]
    fn a_closed_connection_is_an_error() {
        let (listener, address) = listener("closed");
        let mut connection = Connection::open(&address, Deadline::after(TIMEOUT)).unwrap();
        drop(listener.accept().unwrap());
        assert_eq!(connection.receive(&mut [0; 16]).unwrap(), 0);
        assert_eq!(connection.send(b"x").unwrap_err().errno(), Some(libc::EPIPE));
        drop(listener);
        let error = Connection::open(&address, Deadline::after(TIMEOUT)).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ECONNREFUSED));
        let missing = Address::Path("/nonexistent/socket".into());
        let error = Connection::open(&missing, Deadline::after(TIMEOUT)).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOENT));
    }

    #[test]
    fn datagrams_never_wait() {
        let path = std::env::temp_dir().join(format!("cni0-test-{}-datagrams", std::process::id()));
        let server = UnixDatagram::bind(&path).unwrap();
        let sender = Datagrams::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        sender.send(b"one").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(server.recv(&mut buffer).unwrap(), 3);
        assert_eq!(sender.send(&vec![0; 16 << 20]).unwrap_err().errno(), Some(libc::EMSGSIZE));
        let full = (0..100_000).find_map(|_| sender.send(b"more").err());
        assert_eq!(full.unwrap().errno(), Some(libc::EAGAIN), "nothing reads, and the queue is full");
        drop(server);
        assert_eq!(sender.send(b"lost").unwrap_err().errno(), Some(libc::ECONNREFUSED));
        assert_eq!(Datagrams::connect(&path).unwrap_err().errno(), Some(libc::ENOENT));
    }
}
