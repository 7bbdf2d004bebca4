//! Tests with a fake bus, which can misbehave. Those of `firewalld` have a real one.

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use super::wire::{HEADER, Message, Reply};
use super::*;

const PING: Method<'_> = Method { destination: "a.b", path: "/a", interface: "a.b", name: "Ping" };

/// Runs `client` with the address of a server that handles one connection with `serve`.
fn with_server<T>(serve: impl FnOnce(UnixStream) + Send, client: impl FnOnce(&str) -> T) -> T {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("cni0-bus-{}-{count}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || serve(listener.accept().unwrap().0));
        client(&format!("unix:abstract={name}"))
    })
}

/// Reads a request, which ends with a call of `member`.
fn read_call(stream: &mut UnixStream, member: &str) {
    let mut read = Vec::new();
    let mut piece = [0; 512];
    while !read.windows(member.len()).any(|bytes| bytes == member.as_bytes()) {
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0, "no call of {member}");
        read.extend_from_slice(&piece[..n]);
    }
}

/// Authenticates a client, and answers its first call.
fn welcome(stream: &mut UnixStream) {
    read_call(stream, "Hello");
    stream.write_all(b"DATA\r\nOK 1234\r\n").unwrap();
    stream.write_all(&message(2, 1, "s", &text(":1.1"))).unwrap();
}

/// Returns a message with the header fields of a reply.
fn message(kind: u8, reply_to: u32, signature: &str, body: &[u8]) -> Vec<u8> {
    let mut fields = vec![5, 1, b'u', 0];
    fields.extend(reply_to.to_le_bytes());
    fields.extend([4, 1, b's', 0]);
    fields.extend(text("a.Error"));
    fields.resize(fields.len().next_multiple_of(8), 0);
    fields.extend([8, 1, b'g', 0, u8::try_from(signature.len()).unwrap()]);
    fields.extend(signature.bytes());
    fields.push(0);
    let mut bytes = vec![b'l', kind, 0, 1];
    bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend(7_u32.to_le_bytes());
    bytes.extend(u32::try_from(fields.len()).unwrap().to_le_bytes());
    bytes.extend(fields);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(body);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    [&length[..], text.as_bytes(), &[0]].concat()
}

fn deadline() -> Deadline {
    Deadline::after(testing::timeout())
}

/// Returns the reply to a call to which the bus answers `bytes`.
fn reply(bytes: &[u8]) -> Result<Reply> {
    let serve = |mut stream: UnixStream| {
        welcome(&mut stream);
        read_call(&mut stream, "Ping");
        stream.write_all(bytes).unwrap();
    };
    with_server(serve, |address| Bus::open(address, deadline()).unwrap().unwrap().call(&PING, &["x"]))
}

#[test]
fn replies_are_read() {
    assert_eq!(reply(&message(2, 2, "s", &text("trusted"))), Ok(Reply::Text("trusted".to_owned())));
    assert_eq!(reply(&message(2, 2, "b", &[1, 0, 0, 0])), Ok(Reply::Bool(true)));
    assert_eq!(reply(&message(2, 2, "b", &[0, 0, 0, 0])), Ok(Reply::Bool(false)));
    assert_eq!(reply(&message(2, 2, "", &[])), Ok(Reply::Other));
    assert_eq!(reply(&message(2, 2, "as", &[0, 0, 0, 0])), Ok(Reply::Other));
    let error = |text: &str| Ok(Reply::Error(RemoteError { name: "a.Error".to_owned(), text: text.to_owned() }));
    assert_eq!(reply(&message(3, 2, "s", &text("BAD: x"))), error("BAD: x"));
    assert_eq!(reply(&message(3, 2, "", &[])), error(""));
}

#[test]
fn other_messages_are_ignored() {
    let (call, signal, old) = (message(1, 2, "", &[]), message(4, 2, "s", &text("x")), message(2, 1, "", &[]));
    let unknown = message(9, 2, "", &[]);
    let all = [call, signal, old, unknown, message(2, 2, "b", &[1, 0, 0, 0])].concat();
    assert_eq!(reply(&all), Ok(Reply::Bool(true)));
}

#[test]
fn the_byte_order_is_that_of_the_sender() {
    let big = [
        &[b'B', 2, 0, 1, 0, 0, 0, 4, 0, 0, 0, 7, 0, 0, 0, 15][..],
        &[5, 1, b'u', 0, 0, 0, 0, 2, 8, 1, b'g', 0, 1, b'b', 0, 0],
        &[0, 0, 0, 1],
    ];
    assert_eq!(reply(&big.concat()), Ok(Reply::Bool(true)));
}

#[test]
fn the_summary_of_a_stack_trace_is_its_last_line() {
    let summary = |text: &str| RemoteError { name: "a.Error".to_owned(), text: text.to_owned() }.summary();
    assert_eq!(summary("Traceback:\n  File\nUnknown method: x\n"), "Unknown method: x");
    assert_eq!(summary(" \n"), "a.Error");
    assert_eq!(summary(&"ä".repeat(1000)), "ä".repeat(300));
}

#[test]
fn an_invalid_reply_is_an_error() {
    let invalid = |bytes: &[u8]| {
        let error = reply(bytes).unwrap_err();
        assert_eq!(
            (error.code(), error.to_string().as_str()),
            (Code::INTERNAL, "call Ping of \"a.b\": the bus sent an invalid message")
        );
    };
    invalid(&[b'x'; 64]);
    invalid(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    // A message of 128 MiB, and one whose length is more than a number can hold.
    invalid(&[b'l', 2, 0, 1, 0, 0, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0]);
    invalid(&[b'l', 2, 0, 1, 255, 255, 255, 255, 1, 0, 0, 0, 255, 255, 255, 255]);
    invalid(&message(2, 2, "b", &[2, 0, 0, 0]));
    invalid(&message(2, 2, "s", &[255, 255, 255, 255, 0]));
    invalid(&message(2, 2, "s", &[1, 0, 0, 0, 0xff, 0]));
}

#[test]
fn no_message_makes_the_parser_fail() {
    let valid = message(3, 2, "s", &text("ZONE_CONFLICT: x"));
    assert!(Message::parse(&valid).unwrap().into_reply().is_some());
    for length in 0..valid.len() {
        assert!(Message::parse(&valid[..length]).is_none(), "{length}");
    }
    for at in 0..valid.len() {
        for value in 0..=255 {
            let mut bytes = valid.clone();
            bytes[at] = value;
            let _ = Message::length(bytes.first_chunk::<HEADER>().unwrap());
            let _ = Message::parse(&bytes).and_then(Message::into_reply);
        }
    }
}

#[test]
fn a_bus_that_closes_the_connection_is_an_error() {
    for answer in [&b""[..], b"DATA\r\n", b"OK 1\r\n", &message(2, 2, "s", &text("trusted"))[..20]] {
        let error = reply(answer).unwrap_err();
        assert_eq!(error.code(), Code::TRY_LATER, "{error:?}");
        assert!(error.to_string().ends_with("the bus closed the connection"), "{error:?}");
    }
}

#[test]
fn a_rejected_authentication_is_an_error() {
    let reject = |answer: &'static [u8]| {
        let serve = move |mut stream: UnixStream| {
            read_call(&mut stream, "Hello");
            stream.write_all(answer).unwrap();
        };
        with_server(serve, |address| Bus::open(address, deadline()).unwrap_err())
    };
    let error = reject(b"REJECTED EXTERNAL\r\n");
    assert!(error.to_string().ends_with("the bus rejected the authentication: \"REJECTED EXTERNAL\""), "{error:?}");
    assert!(error.to_string().starts_with("connect to the system bus at abstract socket \"cni0-bus-"), "{error:?}");
    reject(b"\xff\xff\r\n");
    let error = reject(&[b'x'; 5000]);
    assert!(error.to_string().ends_with("the bus sent an invalid message"), "{error:?}");
}

#[test]
fn a_bus_that_does_not_answer_is_left_at_the_deadline() {
    let answers: [&[u8]; 3] = [b"", b"DATA\r\nOK 1", &[b"OK 1\r\n", &message(2, 1, "s", &text("x"))[..30]].concat()];
    for answer in answers {
        let serve = |mut stream: UnixStream| {
            stream.write_all(answer).unwrap();
            // Until the client closes the connection.
            let _ = stream.read_to_end(&mut Vec::new());
        };
        let error =
            with_server(serve, |address| Bus::open(address, Deadline::after(Duration::from_millis(100))).unwrap_err());
        assert_eq!(error.code(), Code::TRY_LATER);
        assert!(error.to_string().ends_with(": no answer within 100ms"), "{error:?}");
    }
}

#[test]
fn a_bus_that_sends_without_end_is_left() {
    let signal = message(4, 2, "s", &text("x"));
    let serve = |mut stream: UnixStream| {
        welcome(&mut stream);
        loop {
            match stream.write_all(&signal) {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => break,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let error =
        with_server(serve, |address| Bus::open(address, deadline()).unwrap().unwrap().call(&PING, &[]).unwrap_err());
    assert!(error.to_string().ends_with("the bus sent more than 1 MiB"), "{error:?}");
}

#[test]
fn the_addresses_of_the_bus_are_parsed() {
    let path = |path: &str| Address::Path(path.into());
    let name = |name: &[u8]| Address::Abstract(name.to_vec());
    assert_eq!(parse_addresses("unix:path=/run/bus"), [path("/run/bus")]);
    assert_eq!(parse_addresses("unix:guid=12,path=/a%20b%2fc"), [path("/a b/c")]);
    assert_eq!(parse_addresses("unix:abstract=/tmp/x,guid=1;unix:path=/y"), [name(b"/tmp/x"), path("/y")]);
    assert_eq!(parse_addresses("tcp:host=127.0.0.1,port=1;unix:path=/y;autolaunch:"), [path("/y")]);
    for none in
        ["", ";", "unix:", "unix:path", "unix:path=", "unix:path=%2", "unix:path=%zz", "unix:dir=/tmp", "/run/x"]
    {
        assert_eq!(parse_addresses(none), [], "{none}");
    }
    let error = Bus::open("tcp:host=127.0.0.1", deadline()).unwrap_err();
    assert_eq!(error.code(), Code::ENVIRONMENT, "{error:?}");
}

#[test]
fn the_first_address_with_a_server_is_taken() {
    let serve = |mut stream: UnixStream| welcome(&mut stream);
    let bus = with_server(serve, |address| {
        Bus::open(&format!("unix:path=/nonexistent/bus;unix:path=/dev/null/x;{address}"), deadline())
    });
    assert!(bus.unwrap().is_some());
    assert!(Bus::open("unix:path=/nonexistent/bus", deadline()).unwrap().is_none());
    let error = Bus::open(&format!("unix:path=/{}", "x".repeat(200)), deadline()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENAMETOOLONG), "{error:?}");
}

#[test]
fn a_text_with_a_nul_is_not_sent() {
    let serve = |mut stream: UnixStream| welcome(&mut stream);
    let error = with_server(serve, |address| {
        Bus::open(address, deadline()).unwrap().unwrap().call(&PING, &["a\0b"]).unwrap_err()
    });
    assert!(error.to_string().contains("bug in cni0"), "{error:?}");
}
