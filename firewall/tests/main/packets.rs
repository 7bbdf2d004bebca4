//! Datagrams between namespaces: whether a request reaches a server, and its reply the client.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use linux::Netns;
use testing::timeout;

/// How long to wait for a packet that should not arrive. On a slow machine, a packet may arrive later: then the test
/// passes with a broken plugin, but it never fails with a correct one.
const SILENCE: Duration = Duration::from_millis(300);

/// Opens a socket in a namespace, or on the host.
fn open(netns: Option<&Path>, address: SocketAddr) -> UdpSocket {
    let open = || UdpSocket::bind(address).unwrap();
    match netns {
        None => open(),
        Some(path) => {
            Netns::open(path).unwrap().run(&Netns::current().unwrap(), || Ok::<_, linux::Error>(open())).unwrap()
        }
    }
}

/// A server that waits for requests.
pub(crate) struct Server(UdpSocket);

impl Server {
    pub(crate) fn start(netns: &Path, ip: &str) -> Server {
        Server(open(Some(netns), SocketAddr::new(ip.parse().unwrap(), 80)))
    }
}

/// Sends a request to `ip` from a namespace, or from the host, and expects the server to get it and the client to get its
/// reply, or the server not to get it. Nothing is repeated: the first packet must arrive.
#[track_caller]
pub(crate) fn expect(reaches: bool, netns: Option<&Path>, ip: &str, port: u16, server: &Server, what: &str) {
    let ip: IpAddr = ip.parse().unwrap();
    let any = if ip.is_ipv4() { "0.0.0.0" } else { "::" };
    // A connected socket gets only packets from there, so the reply must be translated back.
    let client = open(netns, SocketAddr::new(any.parse().unwrap(), 0));
    client.connect(SocketAddr::new(ip, port)).unwrap();
    client.set_read_timeout(Some(timeout())).unwrap();
    server.0.set_read_timeout(Some(if reaches { timeout() } else { SILENCE })).unwrap();
    let request = client.local_addr().unwrap().to_string();
    client.send(request.as_bytes()).unwrap();
    let mut buffer = [0; 128];
    let found = server.0.recv_from(&mut buffer);
    assert_eq!(found.is_ok(), reaches, "{what}: {found:?}");
    if let Ok((len, peer)) = found {
        assert_eq!(&buffer[..len], request.as_bytes(), "{what}");
        server.0.send_to(b"reply", peer).unwrap();
        let len = client.recv(&mut buffer).unwrap_or_else(|error| panic!("{what}: no reply: {error}"));
        assert_eq!(&buffer[..len], b"reply", "{what}");
    }
}
