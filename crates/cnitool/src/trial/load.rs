//! `cnitool test --count`: attaches many containers, several at the same time, and measures.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cni::{Code, Context, Error, Result};
use linux::Netns;
use linux::netlink::Netlink;
use serde_json::{Value, json};

use super::flow::Flow;
use super::scene::{Scene, Spot};
use super::session::{Member, Session, Signals};
use super::{Options, PORTS, left_of, percentile, with_what_is_left};
use crate::chain::Chain;
use crate::conf::NetworkList;
use crate::lock::Lock;
use crate::node::Network;
use crate::table::{Paint, Table, Tone, duration};
use crate::{out, settings};

/// How long the first packet may take.
const FIRST_PACKET: Duration = Duration::from_secs(5);
/// Errors that are reported in full. The rest is counted.
const REPORTED: usize = 5;

/// The times and failures of one step.
#[derive(Debug, Default)]
struct Step {
    times: Vec<Duration>,
    failures: Vec<String>,
}

impl Step {
    fn record(&mut self, outcome: Result<Duration, String>) {
        match outcome {
            Ok(time) => self.times.push(time),
            Err(why) => self.failures.push(why),
        }
    }

    fn json(&self) -> Value {
        let milliseconds =
            |percent| percentile(&self.times, percent).map(|time| (time.as_secs_f64() * 1e6).round() / 1e3);
        json!({
            "count": self.times.len(),
            "failures": self.failures,
            "p50Milliseconds": milliseconds(50),
            "p99Milliseconds": milliseconds(99),
            "worstMilliseconds": milliseconds(100),
        })
    }
}

/// What all threads share.
struct Shared<'a> {
    chain: &'a Chain<'a>,
    session: &'a Session,
    network: &'a Network,
    /// The number of the next container.
    next: AtomicUsize,
    add: Mutex<Step>,
    first_packet: Mutex<Step>,
    members: Mutex<Vec<Member>>,
    del: Mutex<Step>,
}

/// Attaches `count` containers, detaches them, and prints the times.
pub(super) fn run(list: &NetworkList, signals: &Signals, options: &Options, count: usize) -> Result<(bool, Value)> {
    let network = Network::read(list.clone());
    let chain = signals.chain(list)?;
    let mut capabilities = settings::capabilities()?.unwrap_or_default();
    // A port of this host can be published once.
    capabilities.remove(PORTS);
    let session = Session::begin(list, &capabilities)?;
    let workers = options.parallel.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).min(count);
    let shared = Shared {
        chain: &chain,
        session: &session,
        network: &network,
        next: AtomicUsize::new(1),
        add: Mutex::default(),
        first_packet: Mutex::default(),
        members: Mutex::default(),
        del: Mutex::default(),
    };
    let lock = Lock::shared()?;
    let is_shown = !options.json && std::io::IsTerminal::is_terminal(&std::io::stderr());
    let began = Instant::now();
    let attached = in_parallel(workers, |_| {
        while signals.check().is_ok() {
            let number = shared.next.fetch_add(1, Ordering::Relaxed);
            if number > count {
                break;
            }
            shared.attach(number, capabilities.clone())?;
            if is_shown {
                out::progress(&format!("attached {} of {count}", shared.members.lock().map_or(0, |all| all.len())));
            }
        }
        Ok(())
    });
    let detached = in_parallel(workers, |_| {
        loop {
            let Some(mut member) = shared.members.lock().map_err(|_| poisoned())?.pop() else { return Ok(()) };
            shared.detach(&mut member)?;
        }
    });
    drop(lock);
    let time = began.elapsed();
    let left = left_of(&session.name)?;
    attached.and(detached)?;
    let steps = [shared.add, shared.first_packet, shared.del].map(Mutex::into_inner);
    let [mut add, mut first, mut del] = steps.map(|step| step.unwrap_or_default());
    let is_complete = del.failures.is_empty();
    if is_complete {
        session.end()?;
    }
    signals.check().map_err(|error| with_what_is_left(error, is_complete))?;
    for step in [&mut add, &mut first, &mut del] {
        step.times.sort_unstable();
    }
    let rows = [("ADD", &add), ("first packet", &first), ("DEL", &del)];
    let healthy = left.is_empty() && rows.iter().all(|(_, step)| step.failures.is_empty());
    if !options.json {
        print(list, count, workers, &rows, &left, time)?;
    }
    let answer = json!({
        "network": list.name.as_str(),
        "healthy": healthy,
        "containers": count,
        "parallel": workers,
        "seconds": (time.as_secs_f64() * 1e3).round() / 1e3,
        "add": add.json(),
        "firstPacket": first.json(),
        "del": del.json(),
        "left": left,
    });
    Ok((healthy, answer))
}

impl Shared<'_> {
    fn attach(&self, number: usize, capabilities: serde_json::Map<String, Value>) -> Result<()> {
        let home = Netns::current()?;
        let at = self.session.endpoint(number, capabilities)?;
        let attached = Member::attach(&home, self.chain, at, format!("container {number}"));
        let outcome = attached.as_ref().map(|member| member.added).map_err(out::one_line);
        self.add.lock().map_err(|_| poisoned())?.record(outcome);
        let Ok(member) = attached else { return Ok(()) };
        let (member, first) = self.first_packet(home, member)?;
        if let Some(first) = first {
            self.first_packet.lock().map_err(|_| poisoned())?.record(first);
        }
        self.members.lock().map_err(|_| poisoned())?.push(member);
        Ok(())
    }

    /// Measures the time until the container answers this host, or its gateway the container.
    fn first_packet(&self, home: Netns, member: Member) -> Result<(Member, Option<Result<Duration, String>>)> {
        let mut scene = Scene {
            home,
            host: Netlink::open()?,
            members: vec![member],
            bridge: self.network.bridge.clone(),
            excluded: None,
            table: String::new(),
        };
        let ip = scene.members.first().and_then(|member| member.ips().first().cloned());
        let flow = match ip {
            None => None,
            Some(ip) if scene.host_side(0)?.is_some() => Some(Flow::echo(Spot::Host, Spot::Member(0), ip.address.ip())),
            Some(ip) => ip.gateway.map(|gateway| Flow::echo(Spot::Member(0), Spot::Outside, gateway)),
        };
        let title = scene.members.first().map(|member| member.title.clone()).unwrap_or_default();
        let first = flow.map(|flow| flow.attempt(&scene, FIRST_PACKET)).transpose()?;
        let first = first.map(|first| first.map_err(|why| format!("{title}: {why}")));
        let member = scene.members.pop().ok_or_else(|| Error::new(Code::INTERNAL, "the container is gone"))?;
        Ok((member, first))
    }

    fn detach(&self, member: &mut Member) -> Result<()> {
        let outcome = member.detach(self.chain).map_err(|error| format!("{}: {}", member.title, out::one_line(&error)));
        self.del.lock().map_err(|_| poisoned())?.record(outcome);
        Ok(Netns::remove(&member.at.netns)?)
    }
}

fn poisoned() -> Error {
    Error::new(Code::INTERNAL, "a thread panicked")
}

/// Runs `work` in threads, and returns the first error.
fn in_parallel(threads: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        let ended = running.into_iter().map(|thread| thread.join().map_err(|_| poisoned()).flatten());
        ended.fold(Ok(()), Result::and)
    })
}

fn print(
    list: &NetworkList,
    count: usize,
    workers: usize,
    rows: &[(&str, &Step)],
    left: &[String],
    time: Duration,
) -> Result<()> {
    let paint = Paint::of_stdout();
    let mut table = Table::new(&["", "COUNT", "FAILED", "P50", "P99", "WORST"]);
    for (name, step) in rows {
        let at = |percent| percentile(&step.times, percent).map_or_else(String::new, duration);
        let tone = if step.failures.is_empty() { Tone::Plain } else { Tone::Bad };
        table.row(vec![
            (Tone::Plain, (*name).to_owned()),
            (Tone::Plain, step.times.len().to_string()),
            (tone, step.failures.len().to_string()),
            (Tone::Plain, at(50)),
            (Tone::Plain, at(99)),
            (Tone::Plain, at(100)),
        ]);
    }
    let title =
        format!("Network {}: {count} containers, {workers} at a time, in {}", list.name.as_str(), duration(time));
    let mut text = format!("{}\n{}", paint.paint(Tone::Bold, &title), table.render(paint, 2));
    for (name, step) in rows {
        for why in step.failures.iter().take(REPORTED) {
            text += &crate::table::wrap(&format!("{name}: {why}"), 2);
        }
    }
    match left {
        [] => text += "  nothing is left\n",
        some => text += &crate::table::wrap(&format!("left: {}", some.join(", ")), 2),
    }
    out::print(text).context(|| "print the times")
}
