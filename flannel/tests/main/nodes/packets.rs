//! Traffic between network namespaces.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use linux::Netns;
use testing::{Process, timeout, wait_until};

/// Runs `work` in a namespace.
fn within<T>(netns: &Netns, work: impl FnOnce() -> T) -> T {
    netns.run(&Netns::current().unwrap(), || Ok::<_, linux::Error>(work())).unwrap()
}

/// Opens a socket for all addresses of the family of `ip`.
fn listen<T>(netns: &Netns, ip: IpAddr, port: u16, open: impl Fn(SocketAddr) -> io::Result<T>) -> T {
    let any = if ip.is_ipv4() { "0.0.0.0" } else { "::" };
    let mut opened = None;
    // A child process of another test has an earlier socket of the port until it executes its program.
    wait_until("the port is free", || {
        match within(netns, || open(SocketAddr::new(any.parse().unwrap(), port))) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            outcome => opened = Some(outcome.unwrap()),
        }
        opened.is_some()
    });
    opened.unwrap()
}

/// Returns whether `ip` answers a packet of `size` bytes, IP header included, that no router may fragment.
pub(crate) fn answers(from: &Netns, ip: IpAddr, size: u32) -> bool {
    let headers = if ip.is_ipv4() { 28 } else { 48 };
    let payload = size.checked_sub(headers).unwrap().to_string();
    let ping = Process::new("ping").arg("-c1").arg("-Mdo").arg("-s").arg(payload);
    let ping = ping.arg("-W").arg(timeout().as_secs().to_string()).arg(ip.to_string());
    let outcome = within(from, || ping.run());
    eprintln!("{}{}", outcome.stdout, outcome.stderr);
    outcome.status == Some(0)
}

/// Sends a datagram to `ip` and `port`, and the reply. Returns the source address that the server at `server_port`
/// sees. Nothing is repeated: the first packet must arrive.
#[track_caller]
pub(crate) fn source_seen(from: &Netns, (ip, port): (IpAddr, u16), server: &Netns, server_port: u16) -> IpAddr {
    let server = listen(server, ip, server_port, UdpSocket::bind);
    let client = listen(from, ip, 0, UdpSocket::bind);
    // A connected socket gets only packets from there, so the reply must be translated back.
    client.connect((ip, port)).unwrap();
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(timeout())).unwrap();
    }
    client.send(b"request").unwrap();
    let mut buffer = [0; 16];
    let (len, source) = server.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"request");
    server.send_to(b"reply", source).unwrap();
    let len = client.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"reply");
    source.ip()
}

/// Sends 4 MiB to `ip` over TCP, and back. All bytes must arrive.
pub(crate) fn transfer(from: &Netns, ip: IpAddr, server: &Netns) {
    let listener = listen(server, ip, 0, TcpListener::bind);
    let to = SocketAddr::new(ip, listener.local_addr().unwrap().port());
    let mut client = within(from, || TcpStream::connect_timeout(&to, timeout())).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    for stream in [&client, &accepted] {
        stream.set_read_timeout(Some(timeout())).unwrap();
        stream.set_write_timeout(Some(timeout())).unwrap();
    }
    // No two kilobytes are alike.
    let sent: Vec<u8> = (0..1_u32 << 20).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
    let mut returned = vec![0; sent.len()];
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut received = vec![0; sent.len()];
            accepted.read_exact(&mut received).unwrap();
            accepted.write_all(&received).unwrap();
        });
        client.write_all(&sent).unwrap();
        client.read_exact(&mut returned).unwrap();
    });
    assert!(returned == sent, "bytes were changed on the way to {ip}");
}
