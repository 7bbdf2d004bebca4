//! Messages of D-Bus in their binary form.

use cni::Error;
use linux::Kind;

/// The length of the part of a message that determines its length.
pub(super) const HEADER: usize = 16;

/// The version of the protocol.
const PROTOCOL: u8 = 1;
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
/// The flag by which the bus does not start a service that is not running.
const NO_AUTO_START: u8 = 2;

/// The fields of the header.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// A method of an object of a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method<'a> {
    pub(crate) destination: &'a str,
    pub(crate) path: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) name: &'a str,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Text(String),
    Bool(bool),
    /// Nothing, or values of other types.
    Other,
    Error(RemoteError),
}

/// An error that the bus or the service returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteError {
    /// The name of the kind of error, such as `org.freedesktop.DBus.Error.ServiceUnknown`.
    pub(crate) name: String,
    /// The text, which may be empty.
    pub(crate) text: String,
}

impl RemoteError {
    /// Returns the line of the text that describes the failure. The other lines are a stack trace of Python, which ends
    /// with that line.
    pub(crate) fn summary(&self) -> String {
        let line = self.text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or(&self.name);
        line.chars().take(300).collect()
    }

    pub(crate) fn into_error(self) -> Error {
        let what = format!("the service failed: {}", self.summary());
        linux::Error::new(Kind::Program, what).into()
    }
}

/// Encodes a call with texts as arguments. `None` if a text is not allowed in D-Bus.
pub(super) fn encode_call(serial: u32, method: &Method<'_>, arguments: &[&str]) -> Option<Vec<u8>> {
    let mut body = Encoder::default();
    for argument in arguments {
        body.text(argument)?;
    }
    let mut fields = Encoder::default();
    fields.field(PATH, "o", method.path)?;
    fields.field(INTERFACE, "s", method.interface)?;
    fields.field(MEMBER, "s", method.name)?;
    fields.field(DESTINATION, "s", method.destination)?;
    if !arguments.is_empty() {
        fields.align(8);
        fields.0.push(SIGNATURE);
        fields.signature("g")?;
        fields.signature(&"s".repeat(arguments.len()))?;
    }
    let mut message = Encoder(vec![b'l', METHOD_CALL, NO_AUTO_START, PROTOCOL]);
    message.number(u32::try_from(body.0.len()).ok()?);
    message.number(serial);
    // The fields begin at a multiple of 8 of the message, and are aligned in themselves.
    message.number(u32::try_from(fields.0.len()).ok()?);
    message.0.extend(fields.0);
    message.align(8);
    message.0.extend(body.0);
    Some(message.0)
}

#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, number: u32) {
        self.align(4);
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) -> Option<()> {
        self.number(u32::try_from(text.len()).ok()?);
        self.terminated(text)
    }

    fn signature(&mut self, text: &str) -> Option<()> {
        self.0.push(u8::try_from(text.len()).ok()?);
        self.terminated(text)
    }

    fn terminated(&mut self, text: &str) -> Option<()> {
        self.0.extend(text.bytes());
        self.0.push(0);
        (!text.contains('\0')).then_some(())
    }

    fn field(&mut self, code: u8, kind: &str, text: &str) -> Option<()> {
        self.align(8);
        self.0.push(code);
        self.signature(kind)?;
        self.text(text)
    }
}

/// A received message, as far as it matters here.
#[derive(Debug)]
pub(super) struct Message {
    kind: u8,
    reply_serial: Option<u32>,
    error_name: Option<String>,
    /// The first value of the body; only in replies.
    value: Option<Value>,
}

/// A value of a basic type.
#[derive(Debug)]
enum Value {
    Text(String),
    Bool(bool),
    Number(u32),
    Other,
}

impl Message {
    /// Returns the length of a message that begins with `header`; `None` if it is not a message.
    pub(super) fn length(header: &[u8; HEADER]) -> Option<usize> {
        let mut input = Decoder::new(header)?;
        input.at = 4;
        let body = usize::try_from(input.number()?).ok()?;
        let _serial = input.number()?;
        let fields = usize::try_from(input.number()?).ok()?;
        HEADER.checked_add(fields)?.checked_next_multiple_of(8)?.checked_add(body)
    }

    /// Parses a complete message; `None` if it is invalid.
    pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
        let mut input = Decoder::new(bytes)?;
        let [_, kind, _, PROTOCOL] = *bytes.first_chunk()? else { return None };
        input.at = 12;
        let end = HEADER.checked_add(usize::try_from(input.number()?).ok()?)?;
        let mut message = Message { kind, reply_serial: None, error_name: None, value: None };
        let mut signature = String::new();
        while input.at < end {
            input.align(8)?;
            let code = input.byte()?;
            let kind = input.signature()?;
            match (code, input.value(&kind)?) {
                (REPLY_SERIAL, Value::Number(serial)) => message.reply_serial = Some(serial),
                (ERROR_NAME, Value::Text(name)) => message.error_name = Some(name),
                (SIGNATURE, Value::Text(text)) => signature = text,
                (REPLY_SERIAL | ERROR_NAME | SIGNATURE, _) => return None,
                _ => {}
            }
        }
        if input.at != end {
            return None;
        }
        input.align(8)?;
        message.value = match (kind, signature.get(..1)) {
            (METHOD_RETURN, Some(first)) if signature.len() == 1 => Some(input.value(first)?),
            // The first value of an error is its text, if it is a text.
            (ERROR, Some("s")) => Some(input.value("s")?),
            _ => None,
        };
        Some(message)
    }

    /// Returns the reply and the number of the call that it belongs to; `None` if the message is not a reply.
    pub(super) fn into_reply(self) -> Option<(u32, Reply)> {
        let serial = self.reply_serial?;
        let reply = match (self.kind, self.value) {
            (METHOD_RETURN, Some(Value::Text(text))) => Reply::Text(text),
            (METHOD_RETURN, Some(Value::Bool(answer))) => Reply::Bool(answer),
            (METHOD_RETURN, _) => Reply::Other,
            (ERROR, Some(Value::Text(text))) => Reply::Error(RemoteError { name: self.error_name?, text }),
            (ERROR, _) => Reply::Error(RemoteError { name: self.error_name?, text: String::new() }),
            _ => return None,
        };
        Some((serial, reply))
    }
}

struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    big_endian: bool,
}

impl<'a> Decoder<'a> {
    /// Starts to decode a message, in the byte order of its sender.
    fn new(bytes: &'a [u8]) -> Option<Decoder<'a>> {
        let big_endian = match bytes.first()? {
            b'l' => false,
            b'B' => true,
            _ => return None,
        };
        Some(Decoder { bytes, at: 0, big_endian })
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn align(&mut self, to: usize) -> Option<()> {
        let padding = self.take(self.at.checked_next_multiple_of(to)? - self.at)?;
        padding.iter().all(|byte| *byte == 0).then_some(())
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4)?;
        let bytes = *self.take(4)?.first_chunk()?;
        Some(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        self.terminated(length)
    }

    fn signature(&mut self) -> Option<String> {
        let length = usize::from(self.byte()?);
        self.terminated(length)
    }

    fn terminated(&mut self, length: usize) -> Option<String> {
        let text = str::from_utf8(self.take(length)?).ok()?;
        (self.byte()? == 0 && !text.contains('\0')).then(|| text.to_owned())
    }

    /// Decodes a value of a basic type. The header of a message has no others, unless a later version adds them.
    fn value(&mut self, signature: &str) -> Option<Value> {
        Some(match signature {
            "s" | "o" => Value::Text(self.text()?),
            "g" => Value::Text(self.signature()?),
            "b" => match self.number()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return None,
            },
            "u" => Value::Number(self.number()?),
            "i" | "h" => {
                self.number()?;
                Value::Other
            }
            "y" => {
                self.byte()?;
                Value::Other
            }
            "n" | "q" => {
                self.align(2)?;
                self.take(2)?;
                Value::Other
            }
            "x" | "t" | "d" => {
                self.align(8)?;
                self.take(8)?;
                Value::Other
            }
            _ => return None,
        })
    }
}

/// Reads arbitrary bytes as the bus does: a call to the limits and the parser.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(mut bytes: &[u8]) {
    while let Some(length) = bytes.first_chunk().and_then(Message::length) {
        let Some((message, rest)) = bytes.split_at_checked(length) else { return };
        assert!(length >= HEADER, "a message without a length would be read for ever");
        let Some(message) = Message::parse(message) else { return };
        if let Some((_, Reply::Error(error))) = message.into_reply() {
            assert!(error.summary().chars().count() <= 300);
        }
        bytes = rest;
    }
}
