//! Proof by traffic. A limit guarantees that no more than the burst and the rate times the time arrives, on the busiest
//! machine too: time passes before the first byte is sent and after the last one was received. Nothing else is compared
//! with the time.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use linux::Netns;
use serde_json::json;
use testing::{Lab, Pod, skip, timeout};

use crate::pod::{both, config, container};

/// Bytes per second, and bytes.
const RATE: u64 = 1_000_000;
const BURST: u64 = 100_000;
/// How much is sent: the burst does not matter.
const AMOUNT: u64 = 1_500_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Ingress,
    Egress,
}

/// Limits one direction, and returns the pod.
fn limited(lab: &Lab, direction: Direction, rate: u64, burst: u64) -> Pod<'_> {
    let pod = container(lab);
    pod.add(&match direction {
        Direction::Ingress => config(json!({ "ingressRate": rate * 8, "ingressBurst": burst * 8 })),
        Direction::Egress => config(json!({ "egressRate": rate * 8, "egressBurst": burst * 8 })),
    });
    pod
}

/// Opens a socket in the namespace of the pod.
fn inside<T>(pod: &Pod<'_>, open: impl FnOnce() -> T) -> T {
    let home = Netns::current().unwrap();
    Netns::open(&pod.netns).unwrap().run(&home, || Ok::<T, linux::Error>(open())).unwrap()
}

#[track_caller]
fn is_within_limit(received: u64, began: Instant, rate: u64, burst: u64) {
    let elapsed = began.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let allowed = (burst as f64) + (rate as f64) * elapsed * 1.02;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let received = received as f64;
    assert!(received <= allowed, "{received} bytes in {elapsed} s, but {allowed} are allowed");
}

/// Sends `amount` bytes over TCP. Returns when all have arrived.
fn send_tcp(pod: &Pod<'_>, direction: Direction, amount: u64) {
    let (listener, mut sender) = match direction {
        Direction::Ingress => {
            let listener = inside(pod, || TcpListener::bind("10.9.0.2:0").unwrap());
            let to = listener.local_addr().unwrap();
            (listener, TcpStream::connect(to).unwrap())
        }
        Direction::Egress => {
            let listener = TcpListener::bind("10.9.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            (listener, inside(pod, || TcpStream::connect(to).unwrap()))
        }
    };
    let (mut receiver, _) = listener.accept().unwrap();
    receiver.set_read_timeout(Some(timeout())).unwrap();
    sender.set_write_timeout(Some(timeout())).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let chunk = [0; 10_000];
            (0..amount / 10_000).for_each(|_| sender.write_all(&chunk).unwrap());
        });
        let mut received = 0;
        let mut buffer = vec![0; 65536];
        while received < amount {
            let length = receiver.read(&mut buffer).unwrap();
            assert!(length > 0, "{received} of {amount} bytes");
            received += u64::try_from(length).unwrap();
        }
    });
}

fn is_limited_for_tcp(direction: Direction) {
    let lab = &Lab::new();
    let pod = limited(lab, direction, RATE, BURST);
    let began = Instant::now();
    send_tcp(&pod, direction, AMOUNT);
    is_within_limit(AMOUNT, began, RATE, BURST);
}

/// What Kubernetes with containerd passes: a burst of 512 MiB.
#[test]
fn the_burst_of_a_runtime_is_capped() {
    for direction in [Direction::Ingress, Direction::Egress] {
        let lab = &Lab::new();
        let pod = container(lab);
        let of_runtime = json!({
            "ingressRate": RATE * 8, "ingressBurst": u32::MAX, "egressRate": RATE * 8, "egressBurst": u32::MAX,
        });
        let keys = json!({ "maxBurst": BURST * 8, "runtimeConfig": { "bandwidth": of_runtime } });
        pod.add(&config(keys.clone()));
        pod.check(&config(keys)).ok();
        let began = Instant::now();
        send_tcp(&pod, direction, AMOUNT);
        is_within_limit(AMOUNT, began, RATE, BURST);
    }
}

/// Floods with UDP until enough has arrived.
fn is_limited_for_udp(direction: Direction) {
    let lab = &Lab::new();
    let pod = limited(lab, direction, RATE, BURST);
    let (receiver, sender) = match direction {
        Direction::Ingress => {
            let receiver = inside(&pod, || UdpSocket::bind("10.9.0.2:5000").unwrap());
            let sender = UdpSocket::bind("10.9.0.1:0").unwrap();
            sender.connect("10.9.0.2:5000").unwrap();
            (receiver, sender)
        }
        Direction::Egress => {
            let receiver = UdpSocket::bind("10.9.0.1:5000").unwrap();
            let sender = inside(&pod, || UdpSocket::bind("10.9.0.2:0").unwrap());
            sender.connect("10.9.0.1:5000").unwrap();
            (receiver, sender)
        }
    };
    receiver.set_read_timeout(Some(timeout())).unwrap();
    let is_done = AtomicBool::new(false);
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                // A full queue is not an error of this test.
                let _ = sender.send(&[0; 1200]);
                thread::yield_now();
            }
        });
        let (mut received, mut buffer) = (0, [0; 2000]);
        while received < AMOUNT {
            received += u64::try_from(receiver.recv(&mut buffer).unwrap()).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
        is_within_limit(received, began, RATE, BURST);
    });
}

#[test]
fn what_a_container_receives_over_tcp_is_limited() {
    is_limited_for_tcp(Direction::Ingress);
}

#[test]
fn what_a_container_sends_over_tcp_is_limited() {
    is_limited_for_tcp(Direction::Egress);
}

#[test]
fn what_a_container_receives_over_udp_is_limited() {
    is_limited_for_udp(Direction::Ingress);
}

#[test]
fn what_a_container_sends_over_udp_is_limited() {
    is_limited_for_udp(Direction::Egress);
}

/// At 1000 bytes per second, the burst is what arrives within the timeout.
#[test]
fn a_burst_is_not_delayed() {
    for direction in [Direction::Ingress, Direction::Egress] {
        let lab = &Lab::new();
        let pod = limited(lab, direction, 1_000, 1_000_000);
        send_tcp(&pod, direction, 800_000);
    }
}

#[test]
fn the_other_direction_is_not_limited() {
    for (limit, other) in [(Direction::Ingress, Direction::Egress), (Direction::Egress, Direction::Ingress)] {
        let lab = &Lab::new();
        // Acknowledgements pass.
        let pod = limited(lab, limit, 50_000, 20_000_000);
        send_tcp(&pod, other, 20_000_000);
    }
}

#[test]
fn queues_are_divided_fairly() {
    let lab = &Lab::new();
    let pod = container(lab);
    pod.add(&both());
    let seen = lab.sh("tc qdisc show");
    let count = seen.lines().filter(|line| line.contains("fq_codel") && line.contains("parent 1:1")).count();
    if count == 0
        && lab
            .sh("tc qdisc add dev vethc1 clsact 2>/dev/null || tc qdisc add dev lo root fq_codel 2>&1 || true")
            .contains("unknown")
    {
        return skip("traffic::queues_are_divided_fairly", "this kernel has no fq_codel");
    }
    assert_eq!(count, 2, "{seen}");
    pod.check(&both()).ok();
    pod.add(&both());
    assert_eq!(lab.sh("tc qdisc show").matches("fq_codel").count(), 2);
}
