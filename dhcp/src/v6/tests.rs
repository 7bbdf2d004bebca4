use std::time::Duration;

use linux::ip::MacAddr;

use super::message::{Leased, status};
use super::*;
use crate::client::{Action, Client, Grant, Moment, Timing};
use crate::exchange::{Incoming, Outgoing};
use crate::lease::Family;
use crate::settings::Settings;
use crate::terms::Times;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const SERVER: &[u8] = &[0, 3, 0, 1, 2, 0, 0, 0, 0, 1];
const OTHER: &[u8] = &[0, 3, 0, 1, 2, 0, 0, 0, 0, 2];
const FROM: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 0x60);
const TIMING: Timing = Timing { answer: seconds(10), pause: seconds(62), total: seconds(208) };

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn client() -> Client {
    let settings = Settings { client: Some(b"\0c1/lan/eth0".to_vec()), ..Settings::default() };
    Client::new(Family::V6, MAC, settings, false, TIMING, 7)
}

/// Returns the answer of a server to a message of the client, with an address for an hour.
fn answer(to: &Message, kind: Kind, server: &[u8], address: Ipv6Addr) -> Message {
    let leased = Leased { address, preferred: 3600, valid: 3600 };
    let number = association(to).number;
    let inner = Options(vec![(option::ADDRESS, leased.write())]);
    let given = Association { number, renew: 1800, rebind: 2880, options: inner };
    reply(to, kind, server, vec![(option::ASSOCIATION, given.write())])
}

fn reply(to: &Message, kind: Kind, server: &[u8], more: Vec<(u16, Vec<u8>)>) -> Message {
    let client = to.options.get(option::CLIENT).unwrap().to_vec();
    let known = vec![(option::CLIENT, client), (option::SERVER, server.to_vec())];
    Message { kind, xid: to.xid, options: Options(known.into_iter().chain(more).collect()) }
}

fn association(message: &Message) -> Association {
    Association::parse(message.options.get(option::ASSOCIATION).unwrap()).unwrap()
}

/// Returns the address in a message, which says nothing about its times.
fn asked(message: &Message) -> Option<Ipv6Addr> {
    let found: Vec<Leased> = association(message).addresses().collect();
    assert!(found.iter().all(|leased| (leased.preferred, leased.valid) == (0, 0)), "{found:?}");
    found.first().map(|leased| leased.address)
}

/// Returns the only message in a list of actions.
#[track_caller]
fn sent(actions: &[Action]) -> Message {
    match actions {
        [Action::Send(Outgoing::V6(message))] | [Action::Chosen, Action::Send(Outgoing::V6(message))] => {
            message.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn bound(actions: &[Action]) -> Grant {
    match actions {
        [Action::Bound(grant)] => grant.clone(),
        other => panic!("{other:?}"),
    }
}

fn hear(client: &mut Client, now: Moment, message: Message) -> Vec<Action> {
    client.on_message(now, &Incoming::V6(message, FROM))
}

/// Returns a client with a lease since 100 s.
fn bound_client() -> Client {
    let mut client = client();
    let now = seconds(100);
    let solicit = sent(&client.acquire(now));
    let request = sent(&hear(&mut client, now, answer(&solicit, Kind::Advertise, SERVER, ADDRESS)));
    bound(&hear(&mut client, now, answer(&request, Kind::Reply, SERVER, ADDRESS)));
    client
}

/// Calls the client at its times up to `until`. Returns what it does, with the time.
fn run(client: &mut Client, until: Moment) -> Vec<(Moment, Action)> {
    let mut done = Vec::new();
    while let Some(now) = client.timer().filter(|timer| *timer <= until) {
        done.extend(client.on_time(now).into_iter().map(|action| (now, action)));
    }
    done
}

#[test]
fn an_address_is_acquired_by_four_messages() {
    let mut client = client();
    let now = seconds(100);
    let solicit = sent(&client.acquire(now));
    assert_eq!((solicit.kind, asked(&solicit)), (Kind::Solicit, None));
    assert_eq!(solicit.options.get(option::CLIENT).unwrap(), [&[0, 3, 0, 1][..], &MAC.0].concat());
    assert_eq!(solicit.options.get(option::REQUESTS).unwrap(), [0, 23, 0, 24, 0, 82]);
    assert_eq!((solicit.options.get(option::ELAPSED), solicit.options.get(option::SERVER)), (Some(&[0, 0][..]), None));
    let request = sent(&hear(&mut client, now, answer(&solicit, Kind::Advertise, SERVER, ADDRESS)));
    assert_eq!((request.kind, request.xid, asked(&request)), (Kind::Request, solicit.xid, Some(ADDRESS)));
    assert_eq!(request.options.get(option::SERVER), Some(SERVER));
    assert_eq!(association(&request).number, association(&solicit).number);
    assert_eq!(hear(&mut client, now, answer(&request, Kind::Reply, OTHER, ADDRESS)), [], "another server");
    let grant = bound(&hear(&mut client, now, answer(&request, Kind::Reply, SERVER, ADDRESS)));
    assert_eq!(grant.terms.cidr().to_string(), "fd66::60/128");
    assert_eq!(grant.terms.times, Some(Times { renew: 1800, rebind: 2880, end: 3600 }));
    assert_eq!((client.timer(), client.listens_until()), (Some(seconds(1900)), None));
}

/// Interfaces that share a MAC address have the same identifier.
#[test]
fn interfaces_differ_in_their_number() {
    let number = |settings: Settings| {
        let mut client = Client::new(Family::V6, MAC, settings, false, TIMING, 7);
        association(&sent(&client.acquire(seconds(1)))).number
    };
    let named = |name: &[u8]| number(Settings { client: Some(name.to_vec()), ..Settings::default() });
    assert_ne!(named(b"\0c1/lan/eth0"), named(b"\0c2/lan/eth0"));
    assert_eq!(named(b"\0shop/web-0/lan/eth0"), named(b"\0shop/web-0/lan/eth0"));
    assert_eq!(number(Settings::default()), number(Settings::default()), "by the MAC address");
}

#[test]
fn messages_of_other_exchanges_are_ignored() {
    let mut client = client();
    let now = seconds(1);
    let solicit = sent(&client.acquire(now));
    let offer = answer(&solicit, Kind::Advertise, SERVER, ADDRESS);
    let without =
        |number: u16| Options(offer.options.0.iter().filter(|(other, _)| *other != number).cloned().collect());
    let mut of_other = without(option::CLIENT);
    of_other.0.push((option::CLIENT, OTHER.to_vec()));
    let mut of_other_interface = without(option::ASSOCIATION);
    let number = association(&solicit).number ^ 1;
    of_other_interface.0.push((option::ASSOCIATION, Association { number, ..association(&offer) }.write()));
    for other in [
        Message { xid: offer.xid ^ 1, ..offer.clone() },
        Message { kind: Kind::Reply, ..offer.clone() },
        Message { kind: Kind::Solicit, ..offer.clone() },
        Message { options: without(option::CLIENT), ..offer.clone() },
        Message { options: without(option::SERVER), ..offer.clone() },
        Message { options: of_other, ..offer.clone() },
        Message { options: of_other_interface, ..offer.clone() },
    ] {
        assert_eq!(hear(&mut client, now, other.clone()), [], "{other:?}");
    }
    assert_eq!(client.on_message(now, &Incoming::V4(ipv4(solicit.xid), MAC)), [], "the other family");
    sent(&hear(&mut client, now, offer));
}

fn ipv4(xid: u32) -> crate::v4::message::Message {
    let settings = Settings::default();
    let exchange = Exchange { xid, elapsed: Duration::ZERO, mac: MAC, settings: &settings };
    crate::v4::outgoing(Ask::Search(None), &exchange, false).unwrap().message
}

#[test]
fn a_server_without_addresses_is_named_in_the_error() {
    let mut client = client();
    let solicit = sent(&client.acquire(seconds(100)));
    let empty = vec![(option::STATUS, vec![0, 2, b'f', b'u', b'l', b'l'])];
    assert_eq!(hear(&mut client, seconds(100), reply(&solicit, Kind::Advertise, SERVER, empty)), []);
    let done = run(&mut client, seconds(10_000));
    let Some((at, Action::Failed(why))) = done.last() else { panic!("{done:?}") };
    assert_eq!(
        (*at, why.as_str()),
        (seconds(308), "the offer of server fe80::1 cannot be used: no address is left (full)")
    );
}

#[test]
fn a_lease_is_renewed_with_its_server_then_with_any_and_given_up_at_its_end() {
    let mut client = bound_client();
    let done = run(&mut client, seconds(3_699));
    assert!(done.len() > 4, "{done:?}");
    for (at, action) in &done {
        let message = sent(std::slice::from_ref(action));
        let (kind, server) = if *at < seconds(2980) { (Kind::Renew, Some(SERVER)) } else { (Kind::Rebind, None) };
        assert_eq!((message.kind, message.options.get(option::SERVER)), (kind, server), "{at:?}");
        assert_eq!(asked(&message), Some(ADDRESS));
    }
    let rebind = sent(&[done.last().unwrap().1.clone()]);
    let mut other = client.clone();
    let moved = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 0x61);
    let grant = bound(&hear(&mut other, seconds(3_650), answer(&rebind, Kind::Reply, OTHER, moved)));
    assert_eq!(grant.terms.address, IpAddr::from(moved), "any server may answer");
    let done = run(&mut client, seconds(3_700));
    let [(_, Action::Lost(why)), (_, Action::Send(Outgoing::V6(solicit)))] = done.as_slice() else {
        panic!("{done:?}")
    };
    assert!(why.contains("server fe80::1 has not renewed it"), "{why}");
    assert_eq!((solicit.kind, asked(solicit)), (Kind::Solicit, Some(ADDRESS)), "the former address, if it is free");
}

#[test]
fn an_answer_renews_the_lease_from_when_it_was_asked() {
    let mut client = bound_client();
    let renew = sent(&client.on_time(seconds(1900)));
    let full = vec![(option::STATUS, vec![0, 2])];
    assert_eq!(hear(&mut client, seconds(1901), reply(&renew, Kind::Reply, SERVER, full)), [], "the lease stays valid");
    assert_eq!(hear(&mut client, seconds(1902), answer(&renew, Kind::Reply, OTHER, ADDRESS)), []);
    let grant = bound(&hear(&mut client, seconds(1903), answer(&renew, Kind::Reply, SERVER, ADDRESS)));
    assert_eq!((grant.since, client.timer()), (1_900_000, Some(seconds(3700))));
}

#[test]
fn an_address_that_is_withdrawn_is_lost() {
    let withdrawn = |renew: &Message| {
        let leased = Leased { address: ADDRESS, preferred: 0, valid: 0 };
        let options = Options(vec![(option::ADDRESS, leased.write())]);
        let given = Association { options, ..Association::of(association(renew).number, None) };
        vec![(option::ASSOCIATION, given.write())]
    };
    for is_known in [true, false] {
        let mut client = bound_client();
        let renew = sent(&client.on_time(seconds(1900)));
        let more = match is_known {
            true => withdrawn(&renew),
            false => vec![(option::STATUS, status::NO_BINDING.to_be_bytes().to_vec())],
        };
        let actions = hear(&mut client, seconds(1901), reply(&renew, Kind::Reply, SERVER, more));
        let [Action::Lost(why), Action::Send(_)] = actions.as_slice() else { panic!("{actions:?}") };
        assert!(why.starts_with("server fe80::1 has refused the address: it "), "{why}");
    }
}

#[test]
fn a_recorded_lease_is_confirmed_or_kept_if_no_server_answers() {
    let recorded = bound_client().grant().unwrap().clone();
    let restarted = || {
        let mut client = client();
        client.resume(recorded.clone(), seconds(500));
        let confirm = sent(&client.reboot(seconds(500), ADDRESS.into()));
        assert_eq!((confirm.kind, asked(&confirm)), (Kind::Confirm, Some(ADDRESS)));
        assert_eq!((confirm.options.get(option::SERVER), confirm.options.get(option::REQUESTS)), (None, None));
        (client, confirm)
    };
    let code = |status: u16| vec![(option::STATUS, status.to_be_bytes().to_vec())];
    let (mut client, confirm) = restarted();
    assert_eq!(hear(&mut client, seconds(501), reply(&confirm, Kind::Reply, OTHER, code(status::SUCCESS))), []);
    // A confirmation gives no more time.
    assert_eq!((client.grant(), client.timer(), client.listens_until()), (Some(&recorded), Some(seconds(1900)), None));

    let (mut client, _) = restarted();
    assert_eq!(run(&mut client, seconds(1_899)).len(), 3);
    assert_eq!((client.grant(), client.timer()), (Some(&recorded), Some(seconds(1900))));

    let (mut client, confirm) = restarted();
    let actions = hear(&mut client, seconds(501), reply(&confirm, Kind::Reply, OTHER, code(status::NOT_ON_LINK)));
    assert!(matches!(actions.as_slice(), [Action::Lost(_), Action::Send(_)]), "{actions:?}");
}

#[test]
fn a_lease_is_given_back_to_its_server() {
    let mut client = bound_client();
    let Some(Outgoing::V6(release)) = client.release(seconds(200)) else { panic!("{client:?}") };
    assert_eq!((release.kind, asked(&release)), (Kind::Release, Some(ADDRESS)));
    assert_eq!((release.options.get(option::SERVER), release.options.get(option::REQUESTS)), (Some(SERVER), None));
    assert_eq!((client.release(seconds(200)), client.timer()), (None, None));
}
