//! The server of connections, for a daemon that waits for many things at once: no operation blocks.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{AcceptConn, PeerCredentials};
use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;

use crate::error::{Context, Error, Kind, Result};
use crate::sys;

/// A socket that accepts connections of root, and of the user of this process.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    /// The path to remove at the end; `None` if another program created the socket.
    path: Option<PathBuf>,
}

impl Listener {
    /// Creates a socket in the file system, which only its owner may connect to. Replaces one at which no process
    /// listens any more, such as one that was killed.
    pub fn bind(path: &Path) -> Result<Listener> {
        let what = || format!("listen at {path:?}");
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).context(what)?;
        }
        if Listener::require_unused(path)? {
            fs::remove_file(path).context(what)?;
        }
        // No other user may connect even before the mode could be changed.
        let before = umask(Mode::from_bits_truncate(0o177));
        let socket = UnixListener::bind(path);
        umask(before);
        let listener = Listener { socket: socket.context(what)?, path: Some(path.to_owned()) };
        listener.socket.set_nonblocking(true).context(what)?;
        Ok(listener)
    }

    /// Fails if a process listens at the path. Returns whether a socket is left there.
    pub fn require_unused(path: &Path) -> Result<bool> {
        match UnixStream::connect(path) {
            Ok(_) => Err(Error::new(Kind::Other, format!("another process listens at {path:?}"))),
            Err(error) => Ok(error.kind() == ErrorKind::ConnectionRefused),
        }
    }

    /// Removes the path: no process can connect any more, except those that have begun to.
    pub fn unpublish(&mut self) {
        if let Some(path) = self.path.take() {
            let _ = fs::remove_file(path);
        }
    }

    /// Takes over the socket that the service manager passed to this process as its first descriptor.
    pub fn passed() -> Result<Listener> {
        let what = || "use the socket of the service manager";
        let missing = || Error::new(Kind::Other, "descriptor 3 is not open");
        let socket = sys::passed_descriptor().ok_or_else(missing).context(what)?;
        if !getsockopt(&socket, AcceptConn).context(what)? {
            return Err(Error::new(Kind::Other, "descriptor 3 is not a listening socket")).context(what);
        }
        let socket = UnixListener::from(socket);
        socket.set_nonblocking(true).context(what)?;
        Ok(Listener { socket, path: None })
    }

    /// Returns the listener of the parent process, whose descriptor this child process has kept open.
    pub fn inherited(&self) -> Result<Listener> {
        let socket = self.socket.try_clone().context(|| "use the socket of the parent process")?;
        Ok(Listener { socket, path: self.path.clone() })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> Option<PathBuf> {
        self.socket.local_addr().ok()?.as_pathname().map(Path::to_owned)
    }

    /// Accepts a connection; `None` if there is none, or if it was one of another user.
    pub fn accept(&self) -> io::Result<Option<Peer>> {
        let stream = match self.socket.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => return Ok(None),
            Err(error) => return Err(error),
        };
        let user = getsockopt(&stream, PeerCredentials)?.uid();
        if user != 0 && user != geteuid().as_raw() {
            return Ok(None);
        }
        stream.set_nonblocking(true)?;
        Ok(Some(Peer { stream }))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.unpublish();
    }
}

/// A connection of a client.
#[derive(Debug)]
pub struct Peer {
    stream: UnixStream,
}

impl Peer {
    /// Appends what has arrived to `to`. Returns whether the client can still send.
    pub fn receive(&mut self, to: &mut Vec<u8>) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => Ok(false),
            Ok(count) => {
                to.extend_from_slice(buffer.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Sends a short answer, for which the buffer of a new connection has room.
    pub fn send(&mut self, answer: &[u8]) -> io::Result<()> {
        self.stream.write_all(answer)
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_a_killed_process_left_is_replaced_and_one_in_use_is_not() {
        let directory = std::env::temp_dir().join(format!("cni0-listener-{}", std::process::id()));
        let path = directory.join("sub/socket");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a socket outlives its process");
        let listener = Listener::bind(&path).unwrap();
        let error = Listener::bind(&path).unwrap_err();
        assert!(error.to_string().contains("another process listens"), "{error}");
        assert_eq!(listener.path().as_deref(), Some(path.as_path()));
        let mut client = UnixStream::connect(&path).unwrap();
        // The attempt of the second listener was a connection, too.
        let peers: Vec<Peer> = std::iter::from_fn(|| listener.accept().unwrap()).collect();
        client.write_all(b"hello").unwrap();
        let mut received = Vec::new();
        let mut peer = peers.into_iter().next_back().unwrap();
        assert!(peer.receive(&mut received).unwrap());
        assert_eq!(received, b"hello");
        peer.send(b"answer").unwrap();
        drop(client);
        while peer.receive(&mut received).unwrap_or(false) {}
        drop(listener);
        assert!(!path.exists());
        fs::remove_dir_all(directory).unwrap();
    }
}
