//! The step that shows a published port.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use cni::{Context, Error, Result};
use linux::Netns;

use super::print::{commands, lines, timed};
use super::{CONTAINER_PORT, CONTAINERS, Demo, GATEWAY, HOST_PORT, TIMEOUT, netns};

const GREETING: &str = "hello from blue\n";

impl Demo {
    /// Serves a line in one container, and fetches it from the other by the host's port.
    pub(super) fn published_port(&mut self) -> Result<()> {
        let [blue, green] = CONTAINERS;
        let (answer, time) = timed(|| fetch(blue, green))?;
        self.title(
            &format!("portmap: port {HOST_PORT} of this host leads to port {CONTAINER_PORT} of {blue}"),
            Some(time),
        )?;
        let serve = format!("echo {} | ip netns exec {blue} nc -l -p {CONTAINER_PORT} &", GREETING.trim_end());
        commands([serve, format!("ip netns exec {green} nc {GATEWAY} {HOST_PORT}")])?;
        lines(&answer)?;
        lines(&format!("(port {HOST_PORT} was given to ADD as \"runtimeConfig\", from \"portMappings\")\n"))
    }
}

/// Returns what a server in the namespace `to` sends to a client in the namespace `from`.
fn fetch(to: &str, from: &str) -> Result<String> {
    let home = Netns::current()?;
    let what = || format!("connect to port {HOST_PORT}");
    let listener = Netns::open(&netns(to))?.run(&home, || {
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, CONTAINER_PORT))
            .context(|| format!("listen on port {CONTAINER_PORT}"))
    })?;
    let host = SocketAddr::from((GATEWAY, HOST_PORT));
    let mut client = Netns::open(&netns(from))?
        .run(&home, || TcpStream::connect_timeout(&host, TIMEOUT).map_err(Error::from))
        .context(what)?;
    client.set_read_timeout(Some(TIMEOUT)).context(what)?;
    // The kernel has accepted the connection already, or another program has.
    listener.set_nonblocking(true).context(what)?;
    listener.accept().and_then(|(mut server, _)| server.write_all(GREETING.as_bytes())).context(what)?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).context(what)?;
    Ok(answer)
}
