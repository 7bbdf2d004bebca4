//! Servers that send nonsense, or too much.

use std::net::UdpSocket;

use serde_json::{Value, json};
use testing::dhcp::{ACK, DISCOVER, OFFER, Reply, Wire, daemon};
use testing::packets::within;
use testing::{Lab, Pod};

use crate::support::{address, lan};

const HOUR: [u32; 3] = [1800, 3000, 3600];

#[test]
fn nonsense_before_the_right_answer_is_ignored() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let daemon = daemon(lab, &[]);
    let _server = wire.server(|request| {
        let right = Reply::grant(request, [10, 66, 0, 60], HOUR);
        let Some(good) = right.first().cloned() else { return right };
        let with = |number: u8, value: Vec<u8>| {
            let mut bad = good.clone();
            bad.options.retain(|(other, _)| *other != number);
            bad.options.push((number, value));
            bad
        };
        vec![
            Reply { kind: 99, ..good.clone() },
            Reply { address: [0, 0, 0, 0].into(), kind: OFFER, options: good.options.clone() },
            Reply { address: [255, 255, 255, 255].into(), kind: OFFER, options: good.options.clone() },
            Reply { kind: OFFER, ..with(1, vec![1, 2, 3, 4]) },
            Reply { kind: OFFER, ..with(54, vec![0; 4]) },
            Reply { kind: ACK, address: [10, 66, 0, 99].into(), options: vec![(54, vec![10, 66, 0, 9])] },
            Reply { options: Vec::new(), ..good.clone() },
            with(15, b"a\nnameserver 192.0.2.66".to_vec()),
        ]
    });
    let pod = Pod::new(lab, "c1");
    let result = pod.add(&lan(json!({})));
    assert_eq!((address(&result).as_str(), &result["dns"]), ("10.66.0.60", &Value::Null));
    assert!(daemon.end());
}

#[test]
fn the_error_says_why_an_offer_cannot_be_used() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let _daemon = daemon(lab, &["-resendtimeout", "500ms"]);
    let server = wire.server(|request| {
        let mut replies = Reply::grant(request, [10, 66, 0, 60], HOUR);
        replies.iter_mut().for_each(|reply| reply.options.retain(|(number, _)| *number != 1));
        replies
    });
    let pod = Pod::new(lab, "c1");
    let add = |ipam| pod.call("ADD", &lan(ipam)).run().error(11)["msg"].as_str().unwrap().to_owned();
    let text = add(json!({}));
    assert!(text.contains("the offer of server 10.66.0.1 cannot be used: DHCP option Subnet Mask not found"), "{text}");
    server.behave(|request| Reply::grant(request, [10, 66, 0, 60], HOUR));
    let text = add(json!({"request": [{"option": "42", "required": true}]}));
    assert!(text.contains("option 42 is missing, which the configuration requires"), "{text}");
    server.behave(|request| match request.kind {
        DISCOVER => Reply::grant(request, [10, 66, 0, 60], HOUR),
        _ => Reply::refusal(),
    });
    let text = add(json!({}));
    assert!(text.contains("server 10.66.0.1 has refused the address: not here"), "{text}");
}

/// The filter of the socket keeps other datagrams away, and those for the port are read without an allocation.
#[test]
fn a_flood_delays_nothing() {
    let lab = &Lab::new();
    let wire = Wire::new(lab);
    let _daemon = daemon(lab, &[]);
    let _server = wire.server(|request| Reply::grant(request, [10, 66, 0, 60], HOUR));
    let flood = within(Some(&wire.netns), || UdpSocket::bind("0.0.0.0:0")).unwrap();
    flood.set_broadcast(true).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for port in [68, 9] {
                    let _ = flood.send_to(&[7; 600], ("255.255.255.255", port));
                }
            }
        });
        let pod = Pod::new(lab, "c1");
        let result = pod.call("ADD", &lan(json!({}))).run();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(address(&result.ok()), "10.66.0.60");
    });
}
