//! Many concurrent processes in one directory: no address is leased twice or lost, and the files match the results.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use testing::{Lab, reference};

use crate::support::{Net, addresses};

/// Runs `job` for each number below `count`, `width` at a time.
fn at_once(count: usize, width: usize, job: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                n if n < count => job(n),
                _ => return,
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..width {
            scope.spawn(work);
        }
    });
}

/// Asserts that the lease files match the results.
#[track_caller]
fn assert_equal(net: &Net<'_>, answers: &BTreeMap<IpAddr, String>) {
    let want: BTreeMap<IpAddr, String> = answers.iter().map(|(ip, id)| (*ip, format!("{id}\r\neth0"))).collect();
    assert_eq!(net.leases(), want);
    net.assert_tidy();
}

#[test]
fn three_hundred_at_once() {
    let lab = Lab::new();
    let net = Net::new(&lab, json!([[{"subnet": "10.1.0.0/22"}], [{"subnet": "fd00::/64"}]]));
    let answers = Mutex::new(BTreeMap::new());
    at_once(300, 300, |n| {
        let id = format!("c{n}");
        for ip in net.add(&id) {
            assert_eq!(answers.lock().unwrap().insert(ip, id.clone()), None, "{ip} was given twice");
        }
    });
    let mut answers = answers.into_inner().unwrap();
    assert_eq!(answers.len(), 600);
    assert_equal(&net, &answers);
    at_once(200, 200, |n| net.del(&format!("c{n}")));
    answers.retain(|_, id| id[1..].parse::<usize>().unwrap() >= 200);
    assert_equal(&net, &answers);
}

#[test]
fn a_range_that_is_just_large_enough_suffices() {
    let lab = Lab::new();
    let net = Net::of(&lab, "10.1.0.0/26");
    at_once(61, 61, |n| drop(net.add(&format!("c{n}"))));
    assert_eq!(net.leases().len(), 61);
    net.call("ADD", "more").error(100);
}

/// Calls ADD, DEL and GC concurrently, of one or of both programs. Half of the containers stay.
fn churn(net: &Net<'_>, reference: Option<&Path>) {
    let answers = Mutex::new(BTreeMap::new());
    let call = |n: usize, command: &str, id: &str| match reference.filter(|_| n % 2 == 1) {
        Some(path) => net.reference(path, command, id).run().ok(),
        None => net.call(command, id).ok(),
    };
    at_once(120, 12, |n| {
        let id = format!("c{n}");
        let got = addresses(&call(n, "ADD", &id));
        for ip in &got {
            assert_eq!(answers.lock().unwrap().insert(*ip, id.clone()), None, "{ip} was given twice");
        }
        if n % 4 < 2 {
            // This must precede the DEL, after which another container may get the address.
            answers.lock().unwrap().retain(|_, owner| *owner != id);
            // With both programs, one releases the leases of the other.
            call(n + 1, "DEL", &id);
        }
        if n % 30 == 0 {
            let all: Vec<String> = (0..120).map(|n| format!("c{n}")).collect();
            net.gc(&all.iter().map(String::as_str).collect::<Vec<_>>());
        }
    });
    assert_equal(net, &answers.into_inner().unwrap());
}

#[test]
fn concurrent_add_del_and_gc() {
    let lab = Lab::new();
    churn(&Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]])), None);
}

#[test]
fn concurrent_calls_of_both_implementations() {
    let test = "concurrency::concurrent_calls_of_both_implementations";
    let Some(reference) = reference("host-local", test) else { return };
    let lab = Lab::new();
    churn(&Net::new(&lab, json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]])), Some(&reference));
}
