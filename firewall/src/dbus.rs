//! A client of the system bus (D-Bus), as far as calls to firewalld need it: arguments are texts, and a reply is a
//! text, a boolean or an error. All waits together end at one deadline. Signals and all other messages are ignored.
//!
//! The format is that of the [D-Bus specification](https://dbus.freedesktop.org/doc/dbus-specification.html).

mod wire;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use cni::{Code, Context, Error, Result};
use linux::unix::{Address, Connection};
use linux::{Deadline, Kind, process};

#[cfg(feature = "fuzzing")]
pub(crate) use wire::fuzz;
use wire::{HEADER, Message};
pub(crate) use wire::{Method, RemoteError, Reply};

/// The variable with the addresses of the system bus.
const VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";
/// The sockets of the system bus without that variable.
const DEFAULT: [&str; 2] = ["/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket"];
/// The limit for everything that the bus sends on one connection. Replies of firewalld have less than 1 KiB.
const MAX_INPUT: usize = 1 << 20;

/// The methods of the bus itself.
const HELLO: Method<'_> = bus_method("Hello");
const NAME_HAS_OWNER: Method<'_> = bus_method("NameHasOwner");

const fn bus_method(name: &str) -> Method<'_> {
    let bus = "org.freedesktop.DBus";
    Method { destination: bus, path: "/org/freedesktop/DBus", interface: bus, name }
}

/// A connection to the bus.
#[derive(Debug)]
pub(crate) struct Bus {
    connection: Connection,
    /// The bytes that were received but not used yet.
    input: Vec<u8>,
    /// The number of all bytes received.
    received: usize,
    /// The number of the last call, by which its reply is recognised.
    serial: u32,
}

impl Bus {
    /// Connects to the system bus. `None` if there is none.
    pub(crate) fn system(deadline: Deadline) -> Result<Option<Bus>> {
        match process::env(VARIABLE).filter(|addresses| !addresses.is_empty()) {
            Some(addresses) => Bus::open(&addresses.to_string_lossy(), deadline),
            // Looking for a file is cheaper than connecting, and many hosts have no bus.
            None => {
                let existing = DEFAULT.map(PathBuf::from).into_iter().filter(|path| path.exists());
                Bus::connect(existing.map(Address::Path), deadline)
            }
        }
    }

    /// Connects to the first of these addresses at which a server listens. `None` if there is none.
    pub(crate) fn open(addresses: &str, deadline: Deadline) -> Result<Option<Bus>> {
        let usable = parse_addresses(addresses);
        if usable.is_empty() {
            let what = format!("{VARIABLE} has no address of a UNIX socket: {addresses:?}");
            return Err(Error::new(Code::ENVIRONMENT, what).details("write unix:path=/run/dbus/system_bus_socket"));
        }
        Bus::connect(usable.into_iter(), deadline)
    }

    fn connect(addresses: impl Iterator<Item = Address>, deadline: Deadline) -> Result<Option<Bus>> {
        let mut failure = None;
        for address in addresses {
            match Connection::open(&address, deadline) {
                Ok(connection) => return Bus::start(connection).context(|| describe(&address)).map(Some),
                Err(error) => match error.errno() {
                    Some(libc::ENOENT | libc::ENOTDIR | libc::ECONNREFUSED) => {}
                    _ => failure = Some(Error::from(error).context(describe(&address))),
                },
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// Authenticates, and registers at the bus.
    fn start(connection: Connection) -> Result<Bus> {
        let mut bus = Bus { connection, input: Vec::new(), received: 0, serial: 0 };
        // The identity is left empty: the bus takes that of the socket, which the kernel vouches for. The user ID as
        // this process sees it may be another if the bus is outside of its user namespace.
        //
        // Everything is sent at once, without waiting for the single answers.
        let mut bytes = b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n".to_vec();
        let serial = bus.append_call(&mut bytes, &HELLO, &[])?;
        bus.connection.send(&bytes)?;
        let mut line = bus.read_line()?;
        if line.trim_end() == "DATA" {
            line = bus.read_line()?;
        }
        if !line.starts_with("OK ") {
            let what = format!("the bus rejected the authentication: {line:?}");
            return Err(linux::Error::new(Kind::Program, what).into());
        }
        match bus.read_reply(serial)? {
            Reply::Error(error) => Err(error.into_error()),
            _ => Ok(bus),
        }
    }

    /// Returns whether a service with this name is running.
    pub(crate) fn has_owner(&mut self, name: &str) -> Result<bool> {
        match self.call(&NAME_HAS_OWNER, &[name])? {
            Reply::Bool(answer) => Ok(answer),
            Reply::Error(error) => Err(error.into_error()),
            _ => Err(invalid_message()),
        }
    }

    /// Calls a method and waits for the reply. Never starts the service.
    pub(crate) fn call(&mut self, method: &Method<'_>, arguments: &[&str]) -> Result<Reply> {
        let mut bytes = Vec::new();
        let serial = self.append_call(&mut bytes, method, arguments)?;
        let reply = self.connection.send(&bytes).map_err(Error::from).and_then(|()| self.read_reply(serial));
        reply.context(|| format!("call {} of {:?}", method.name, method.destination))
    }

    /// Appends a call to `bytes` and returns its number.
    fn append_call(&mut self, bytes: &mut Vec<u8>, method: &Method<'_>, arguments: &[&str]) -> Result<u32> {
        self.serial = self.serial.wrapping_add(1).max(1);
        let call = wire::encode_call(self.serial, method, arguments);
        bytes.extend(call.ok_or_else(|| Error::bug(format_args!("invalid arguments {arguments:?}")))?);
        Ok(self.serial)
    }

    fn read_reply(&mut self, serial: u32) -> Result<Reply> {
        loop {
            let message = self.read_message()?;
            if let Some((number, reply)) = message.into_reply()
                && number == serial
            {
                return Ok(reply);
            }
        }
    }

    fn read_message(&mut self) -> Result<Message> {
        loop {
            if let Some(header) = self.input.first_chunk::<HEADER>() {
                let length = Message::length(header).filter(|length| *length <= MAX_INPUT);
                let length = length.ok_or_else(invalid_message)?;
                if let Some(bytes) = self.input.get(..length) {
                    let message = Message::parse(bytes).ok_or_else(invalid_message)?;
                    self.input.drain(..length);
                    return Ok(message);
                }
            }
            self.receive()?;
        }
    }

    /// Reads a line of the authentication, without its end.
    fn read_line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.input.windows(2).position(|bytes| bytes == b"\r\n") {
                let line: Vec<u8> = self.input.drain(..end + 2).take(end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            if self.input.len() > 1024 {
                return Err(invalid_message());
            }
            self.receive()?;
        }
    }

    /// Receives what the bus sends next.
    fn receive(&mut self) -> Result<()> {
        let mut piece = [0; 2048];
        let received = self.connection.receive(&mut piece)?;
        if received == 0 {
            let what = "the bus closed the connection";
            return Err(linux::Error::new(Kind::Transient, what).into());
        }
        self.received += received;
        if self.received > MAX_INPUT {
            let what = format!("the bus sent more than {} MiB", MAX_INPUT >> 20);
            return Err(linux::Error::new(Kind::Program, what).into());
        }
        self.input.extend_from_slice(piece.get(..received).unwrap_or_default());
        Ok(())
    }
}

fn describe(address: &Address) -> String {
    match address {
        Address::Path(path) => format!("connect to the system bus at {path:?}"),
        Address::Abstract(name) => {
            format!("connect to the system bus at abstract socket {:?}", String::from_utf8_lossy(name))
        }
    }
}

fn invalid_message() -> Error {
    let what = "the bus sent an invalid message";
    linux::Error::new(Kind::Program, what).into()
}

/// Returns the UNIX sockets among addresses in the form of D-Bus, such as `unix:path=/run/bus,guid=…;tcp:…`.
fn parse_addresses(text: &str) -> Vec<Address> {
    text.split(';').filter_map(parse_address).collect()
}

fn parse_address(text: &str) -> Option<Address> {
    text.strip_prefix("unix:")?.split(',').find_map(|pair| match pair.split_once('=')? {
        (_, "") => None,
        ("path", path) => Some(Address::Path(OsString::from_vec(unescape(path)?).into())),
        ("abstract", name) => Some(Address::Abstract(unescape(name)?)),
        _ => None,
    })
}

/// Replaces `%` and two hexadecimal digits by the byte.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests;
