//! Measures what a limited connection carries.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use cni::{Code, Context, Error, Result};
use linux::Deadline;
use serde_json::{Map, Value};

use super::flow::{PORT, listen};
use super::report::Outcome;
use super::scene::{Scene, Spot};

/// How long a measurement takes after the burst.
const TIME: Duration = Duration::from_millis(700);
/// How much more than the limit a connection may carry: the kernel counts the headers of packets, and in steps.
const TOLERANCE: f64 = 1.25;
/// A larger burst takes too long to use up.
const GREATEST_BURST: u64 = 64 << 20;
const CHUNK: usize = 64 << 10;

/// A limit in bits per second, and the bits that may pass at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) rate: u64,
    pub(super) burst: u64,
}

/// Returns the limits of what a container receives and sends. `of_runtime` is what the runtime passes, for which the
/// configuration can have a largest burst.
pub(super) fn limits(config: &Map<String, Value>, of_runtime: &Value) -> [Option<Limit>; 2] {
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).filter(|number| *number > 0);
    let keys = [["ingressRate", "ingressBurst"], ["egressRate", "egressBurst"]];
    let is_own = keys.as_flattened().iter().any(|key| config.get(*key).is_some_and(|value| !value.is_null()));
    let max_burst = number(config.get("maxBurst")).filter(|_| !is_own).unwrap_or(u64::MAX);
    keys.map(|pair| {
        let [rate, burst] = pair.map(|key| number(if is_own { config.get(key) } else { of_runtime.get(key) }));
        Some(Limit { rate: rate?, burst: burst?.min(max_burst) })
    })
}

/// Sends to the first container, or lets it send, for a moment.
pub(super) fn measure(scene: &Scene, ip: IpAddr, limit: Limit, to_container: bool) -> Result<Outcome> {
    let Limit { rate, burst } = limit;
    if burst / 8 > GREATEST_BURST {
        let why = format!("the burst of {burst} bits is too large to use up in a test");
        return Ok(Outcome::Skipped(format!("{why}; \"maxBurst\" limits what a runtime passes")));
    }
    let container = Spot::Member(0);
    let listener = scene.within(container, || listen(ip, PORT))?;
    let connected = TcpStream::connect_timeout(&SocketAddr::new(ip, PORT), Duration::from_secs(3));
    let Ok(client) = connected else {
        return Ok(Outcome::Skipped("this host cannot connect to the container".to_owned()));
    };
    let what = || "accept a connection in the container";
    Deadline::after(Duration::from_secs(3)).readable(listener.as_fd()).context(what)?;
    let (server, _) = listener.accept().context(what)?;
    server.set_nonblocking(false).context(what)?;
    let (sender, receiver) = if to_container { (client, server) } else { (server, client) };
    let bits = transfer(sender, receiver, burst)?;
    let measured = bits as f64 / TIME.as_secs_f64();
    let seen = format!("{} of {} Mbit/s", mega(measured), mega(rate as f64));
    // A segment that waits in a queue is counted when it arrives.
    let allowed = (rate as f64).mul_add(TOLERANCE, 8.0 * CHUNK as f64);
    Ok(match measured > allowed {
        true => Outcome::Failed(format!("the limit does not hold: {seen}"), Vec::new()),
        false => Outcome::Passed(seen),
    })
}

fn mega(bits: f64) -> String {
    format!("{:.2}", bits / 1e6)
}

/// Sends as much as possible. Returns the bits that arrived in [`TIME`], after the burst.
fn transfer(mut sender: TcpStream, mut receiver: TcpStream, burst: u64) -> Result<u64> {
    let what = || "measure a connection";
    sender.set_write_timeout(Some(TIME)).context(what)?;
    receiver.set_read_timeout(Some(TIME)).context(what)?;
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let chunk = vec![0; CHUNK];
            while sender.write(&chunk).is_ok() {}
        });
        let outcome = count(&mut receiver, burst).context(what);
        // Ends the sender.
        drop(receiver.shutdown(std::net::Shutdown::Both));
        drop(receiver);
        sending.join().map_err(|_| Error::new(Code::INTERNAL, "a thread panicked"))?;
        outcome
    })
}

fn count(receiver: &mut TcpStream, burst: u64) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut received = 0;
    let mut read = |received: &mut u64| match receiver.read(&mut buffer) {
        Ok(length) => {
            *received += 8 * length as u64;
            Ok(length > 0)
        }
        // Nothing arrived for a while: the limit is low.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    };
    let patience = Deadline::after(Duration::from_secs(5));
    while received < burst && !patience.has_passed() {
        if !read(&mut received)? {
            return Ok(0);
        }
    }
    let (after_burst, began) = (received, Instant::now());
    while began.elapsed() < TIME && read(&mut received)? {}
    Ok(received - after_burst)
}
