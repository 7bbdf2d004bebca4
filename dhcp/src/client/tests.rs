use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::*;
use crate::terms::Times;
use crate::v4::Outgoing;
use crate::v4::message::{Kind, Message, option};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 119);
const TIMING: Timing = Timing { answer: seconds(10), pause: seconds(62), total: seconds(208) };

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn client() -> Client {
    let settings = Settings { client: Some(b"\0c1/lan/eth0".to_vec()), requests: vec![1, 3], ..Settings::default() };
    Client::new(Family::V4, MAC, settings, true, TIMING, 7)
}

/// Returns the answer of a server to a message of the client, which grants an address for an hour.
fn answer(to: &Outgoing, kind: Kind, server: Ipv4Addr, address: Ipv4Addr) -> Message {
    let options = BTreeMap::from([
        (option::SUBNET_MASK, vec![255, 255, 255, 0]),
        (option::SERVER, server.octets().to_vec()),
        (option::LEASE_TIME, 3600_u32.to_be_bytes().to_vec()),
    ]);
    Message { is_reply: true, kind, yours: address, options, ..to.message.clone() }
}

fn ipv4(outgoing: &crate::exchange::Outgoing) -> Outgoing {
    match outgoing {
        crate::exchange::Outgoing::V4(outgoing) => outgoing.clone(),
        other => panic!("{other:?}"),
    }
}

impl Client {
    /// Handles a message that came from a MAC address.
    fn hear(&mut self, now: Moment, message: &Message, from: MacAddr) -> Vec<Action> {
        self.on_message(now, &Incoming::V4(message.clone(), from))
    }
}

/// Returns the only message in a list of actions. An offer is recorded before it is asked for.
#[track_caller]
fn sent(actions: &[Action]) -> Outgoing {
    match actions {
        [Action::Send(outgoing)] | [Action::Chosen, Action::Send(outgoing)] => ipv4(outgoing),
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

/// Returns a client with a lease since 100 s.
fn bound_client() -> Client {
    let mut client = client();
    let now = seconds(100);
    let discover = sent(&client.acquire(now));
    let request = sent(&client.hear(now, &answer(&discover, Kind::Offer, SERVER, ADDRESS), SERVER_MAC));
    bound(&client.hear(now, &answer(&request, Kind::Ack, SERVER, ADDRESS), SERVER_MAC));
    client
}

/// Calls the client at its times up to `until`. Returns what it does, with the time.
fn run(client: &mut Client, until: Moment) -> Vec<(Moment, Action)> {
    let mut done = Vec::new();
    while let Some(now) = client.timer().filter(|timer| *timer <= until) {
        done.extend(client.on_time(now).into_iter().map(|action| (now, action)));
        assert!(client.timer().is_none_or(|timer| timer > now), "a timer that would never pass");
    }
    done
}

#[test]
fn an_address_is_acquired_by_four_messages() {
    let mut client = client();
    let now = seconds(100);
    let discover = sent(&client.acquire(now));
    assert_eq!(
        (discover.from, discover.to, discover.mac),
        (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, MacAddr([255; 6]))
    );
    assert_eq!((discover.message.kind, discover.message.broadcast), (Kind::Discover, true));
    assert_eq!(discover.message.options[&option::CLIENT], b"\0c1/lan/eth0");
    assert_eq!(discover.message.options[&option::REQUESTS], [1, 3]);
    let offer = answer(&discover, Kind::Offer, SERVER, ADDRESS);
    let request = sent(&client.hear(now, &offer, SERVER_MAC));
    assert_eq!((request.message.kind, request.message.xid), (Kind::Request, discover.message.xid));
    assert_eq!(request.message.address(option::REQUESTED_ADDRESS), Some(ADDRESS));
    assert_eq!(request.message.address(option::SERVER), Some(SERVER));
    assert_eq!(client.hear(now, &answer(&discover, Kind::Offer, OTHER, ADDRESS), SERVER_MAC), [], "another offer");
    assert_eq!(client.hear(now, &answer(&request, Kind::Ack, OTHER, ADDRESS), SERVER_MAC), [], "another server");
    let grant = bound(&client.hear(now, &answer(&request, Kind::Ack, SERVER, ADDRESS), SERVER_MAC));
    let server = Server { address: SERVER.into(), id: SERVER_MAC.0.to_vec() };
    assert_eq!((grant.terms.address, grant.terms.prefix, grant.terms.server), (ADDRESS.into(), 24, server));
    assert_eq!(grant.terms.times, Some(Times { renew: 1800, rebind: 3150, end: 3600 }));
    assert_eq!((client.timer(), client.listens_until()), (Some(seconds(1900)), None));
}

#[test]
fn messages_are_repeated_after_growing_pauses_until_the_add_fails() {
    let mut client = client();
    client.acquire(seconds(100));
    let done = run(&mut client, seconds(10_000));
    let times: Vec<u64> = done.iter().map(|(at, _)| at.as_secs() - 100).collect();
    let pauses = [1, 2, 4, 8, 16, 32, 62, 62];
    let mut expected = 0;
    for (place, pause) in pauses.into_iter().enumerate() {
        expected += pause;
        let about = expected - expected / 8 - 1..=expected + expected / 8;
        assert!(about.contains(&times[place]), "{place}: {times:?}");
    }
    let Some((at, Action::Failed(why))) = done.last() else { panic!("{done:?}") };
    assert_eq!((*at, why.as_str()), (seconds(308), "no server has answered"));
    assert!(client.sent_text().contains("asked 9 times"), "{}", client.sent_text());
    assert_eq!(client.timer(), None);
}

#[test]
fn clients_do_not_repeat_their_messages_at_the_same_time() {
    let timers = (1..50).map(|random| {
        let mut client = Client::new(Family::V4, MAC, Settings::default(), false, TIMING, random << 20);
        client.acquire(seconds(100));
        client.timer().unwrap()
    });
    let mut timers: Vec<Moment> = timers.collect();
    timers.sort();
    timers.dedup();
    assert!(timers.len() > 20, "{timers:?}");
}

#[test]
fn an_offer_that_is_not_confirmed_is_forgotten_and_the_reason_is_reported() {
    let mut client = client();
    let now = seconds(100);
    let discover = sent(&client.acquire(now));
    client.hear(now, &answer(&discover, Kind::Offer, SERVER, ADDRESS), SERVER_MAC);
    let done = run(&mut client, seconds(115));
    let kinds: Vec<Kind> = done.iter().map(|(_, action)| sent(std::slice::from_ref(action)).message.kind).collect();
    assert_eq!(kinds[..4], [Kind::Request, Kind::Request, Kind::Request, Kind::Discover], "{done:?}");
    let done = run(&mut client, seconds(10_000));
    let Some((at, Action::Failed(why))) = done.last() else { panic!("{done:?}") };
    assert_eq!((at, why.as_str()), (&seconds(308), "server 10.66.0.1 has offered 10.66.0.119, but did not confirm it"));
}

#[test]
fn an_offer_that_cannot_be_used_is_not_taken() {
    let mut client = client();
    let discover = sent(&client.acquire(seconds(100)));
    let offer = Message { yours: Ipv4Addr::UNSPECIFIED, ..answer(&discover, Kind::Offer, SERVER, ADDRESS) };
    assert_eq!(client.hear(seconds(100), &offer, SERVER_MAC), []);
    let done = run(&mut client, seconds(10_000));
    let Some((_, Action::Failed(why))) = done.last() else { panic!("{done:?}") };
    assert_eq!(why, "the offer of server 10.66.0.1 cannot be used: an interface cannot have the address 0.0.0.0/24");
}

#[test]
fn a_refused_request_begins_again_after_a_pause() {
    let mut client = client();
    let now = seconds(100);
    let discover = sent(&client.acquire(now));
    let request = sent(&client.hear(now, &answer(&discover, Kind::Offer, SERVER, ADDRESS), SERVER_MAC));
    let nak = answer(&request, Kind::Nak, SERVER, Ipv4Addr::UNSPECIFIED);
    assert_eq!(client.hear(now, &nak, SERVER_MAC), [], "a server that always refuses does not make the client loop");
    let done = run(&mut client, seconds(102));
    assert_eq!(sent(&[done[0].1.clone()]).message.kind, Kind::Discover);
    assert_ne!(sent(&[done[0].1.clone()]).message.xid, discover.message.xid);
}

#[test]
fn a_lease_is_renewed_with_its_server_then_with_any_and_given_up_at_its_end() {
    let mut client = bound_client();
    let done = run(&mut client, seconds(3_699));
    let renewals: Vec<(u64, Outgoing)> =
        done.iter().map(|(at, action)| (at.as_secs() - 100, sent(std::slice::from_ref(action)))).collect();
    let times: Vec<u64> = renewals.iter().map(|(at, _)| *at).collect();
    assert_eq!(
        times,
        [1800, 2475, 2812, 2981, 3065, 3125, 3150, 3375, 3487, 3547],
        "half of what is left, but a minute"
    );
    for (at, outgoing) in &renewals {
        assert_eq!((outgoing.message.client, outgoing.from, outgoing.message.broadcast), (ADDRESS, ADDRESS, false));
        assert!(!outgoing.message.options.contains_key(&option::SERVER));
        assert!(!outgoing.message.options.contains_key(&option::REQUESTED_ADDRESS));
        let to = if *at < 3150 { (SERVER, SERVER_MAC) } else { (Ipv4Addr::BROADCAST, MacAddr([255; 6])) };
        assert_eq!((outgoing.to, outgoing.mac), to, "at {at}");
    }
    let done = run(&mut client, seconds(3_700));
    let [(_, Action::Lost(why)), (_, Action::Send(discover))] = done.as_slice() else { panic!("{done:?}") };
    assert!(why.contains("10.66.0.1 has not renewed it"), "{why}");
    assert_eq!(
        ipv4(discover).message.address(option::REQUESTED_ADDRESS),
        Some(ADDRESS),
        "the former address, if it is free"
    );
    let later = run(&mut client, seconds(100_000));
    assert!(later.len() > 1000, "the client never gives up: {}", later.len());
    assert!(later.iter().all(|(_, action)| matches!(action, Action::Send(_))));
}

#[test]
fn an_answer_renews_the_lease_from_when_it_was_asked() {
    let mut client = bound_client();
    let done = run(&mut client, seconds(1900));
    let request = sent(&[done[0].1.clone()]);
    let ack = answer(&request, Kind::Ack, SERVER, ADDRESS);
    assert_eq!(client.hear(seconds(1903), &answer(&request, Kind::Ack, OTHER, ADDRESS), SERVER_MAC), []);
    assert_eq!(client.hear(seconds(1903), &answer(&request, Kind::Nak, OTHER, ADDRESS), SERVER_MAC), []);
    let grant = bound(&client.hear(seconds(1903), &ack, SERVER_MAC));
    assert_eq!((grant.since, client.timer()), (1_900_000, Some(seconds(3700))));
    assert_eq!(client.hear(seconds(1904), &ack, SERVER_MAC), [], "the same answer again");
}

#[test]
fn any_server_may_renew_after_t2() {
    let mut client = bound_client();
    let done = run(&mut client, seconds(3250));
    let request = sent(&[done.last().unwrap().1.clone()]);
    let moved = Ipv4Addr::new(10, 66, 0, 7);
    let grant = bound(&client.hear(seconds(3251), &answer(&request, Kind::Ack, OTHER, moved), MAC));
    let server = Server { address: OTHER.into(), id: MAC.0.to_vec() };
    assert_eq!((grant.terms.server, grant.terms.address), (server, moved.into()));
}

#[test]
fn a_refused_renewal_loses_the_address() {
    let mut client = bound_client();
    let done = run(&mut client, seconds(1900));
    let request = sent(&[done[0].1.clone()]);
    let mut nak = answer(&request, Kind::Nak, SERVER, Ipv4Addr::UNSPECIFIED);
    nak.options.insert(option::TEXT, b"wrong network".to_vec());
    let actions = client.hear(seconds(1901), &nak, SERVER_MAC);
    let [Action::Lost(why), Action::Send(discover)] = actions.as_slice() else { panic!("{actions:?}") };
    let discover = ipv4(discover);
    assert_eq!(why, "server 10.66.0.1 has refused the address: wrong network");
    assert_eq!(discover.message.kind, Kind::Discover);
    assert_eq!(client.terms(), None);
    let request = sent(&client.hear(seconds(1902), &answer(&discover, Kind::Offer, OTHER, ADDRESS), MAC));
    bound(&client.hear(seconds(1902), &answer(&request, Kind::Ack, OTHER, ADDRESS), MAC));
}

#[test]
fn a_recorded_lease_is_confirmed_or_kept_if_no_server_answers() {
    let recorded = bound_client().grant().unwrap().clone();
    let restarted = || {
        let mut client = client();
        client.resume(recorded.clone(), seconds(500));
        let request = sent(&client.reboot(seconds(500), ADDRESS.into()));
        assert_eq!(request.message.address(option::REQUESTED_ADDRESS), Some(ADDRESS));
        assert_eq!((request.message.client, request.to), (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST));
        assert!(!request.message.options.contains_key(&option::SERVER));
        (client, request)
    };
    let (mut client, request) = restarted();
    let grant = bound(&client.hear(seconds(501), &answer(&request, Kind::Ack, SERVER, ADDRESS), SERVER_MAC));
    assert_eq!(grant.since, 500_000);

    let (mut client, _) = restarted();
    let done = run(&mut client, seconds(1_899));
    assert_eq!(done.len(), 3, "{done:?}");
    assert_eq!((client.grant(), client.timer(), client.listens_until()), (Some(&recorded), Some(seconds(1900)), None));

    let (mut client, request) = restarted();
    let nak = answer(&request, Kind::Nak, OTHER, Ipv4Addr::UNSPECIFIED);
    let actions = client.hear(seconds(501), &nak, SERVER_MAC);
    assert!(matches!(actions.as_slice(), [Action::Lost(_), Action::Send(_)]), "{actions:?}");
}

#[test]
fn a_lease_that_ended_while_nothing_followed_it_is_lost_at_once() {
    let mut client = client();
    client.resume(bound_client().grant().unwrap().clone(), seconds(9_000));
    let done = run(&mut client, seconds(9_000));
    assert!(matches!(done.as_slice(), [(_, Action::Lost(_)), (_, Action::Send(_))]), "{done:?}");
}

#[test]
fn an_address_without_a_lease_is_taken_over_or_not() {
    let mut adopter = client();
    let request = sent(&adopter.reboot(seconds(500), ADDRESS.into()));
    bound(&adopter.hear(seconds(500), &answer(&request, Kind::Ack, SERVER, ADDRESS), SERVER_MAC));
    let mut adopter = client();
    let request = sent(&adopter.reboot(seconds(500), ADDRESS.into()));
    let nak = answer(&request, Kind::Nak, SERVER, Ipv4Addr::UNSPECIFIED);
    let actions = adopter.hear(seconds(500), &nak, SERVER_MAC);
    assert!(matches!(actions.as_slice(), [Action::Failed(_)]), "{actions:?}");
    let mut adopter = client();
    adopter.reboot(seconds(500), ADDRESS.into());
    let done = run(&mut adopter, seconds(600));
    assert!(matches!(done.last(), Some((_, Action::Failed(_)))), "{done:?}");
}

#[test]
fn a_lease_without_an_end_needs_nothing() {
    let mut client = client();
    let discover = sent(&client.acquire(seconds(1)));
    let endless = |to: &Outgoing, kind| {
        let mut message = answer(to, kind, SERVER, ADDRESS);
        message.options.insert(option::LEASE_TIME, vec![255; 4]);
        message
    };
    let request = sent(&client.hear(seconds(1), &endless(&discover, Kind::Offer), SERVER_MAC));
    bound(&client.hear(seconds(1), &endless(&request, Kind::Ack), SERVER_MAC));
    assert_eq!((client.timer(), client.listens_until()), (None, None));
}

#[test]
fn a_lease_is_given_back_from_its_address() {
    let mut client = bound_client();
    let release = ipv4(&client.release(seconds(200)).unwrap());
    assert_eq!((release.from, release.to, release.mac), (ADDRESS, SERVER, SERVER_MAC));
    assert_eq!((release.message.kind, release.message.client), (Kind::Release, ADDRESS));
    let numbers: Vec<u8> = release.message.options.keys().copied().collect();
    assert_eq!(numbers, [option::SERVER, option::CLIENT]);
    assert_eq!((client.release(seconds(200)), client.timer()), (None, None));
}

#[test]
fn an_offer_that_the_client_has_asked_for_is_given_back_unless_it_was_refused() {
    for (kind, is_given_back) in [(Kind::Offer, true), (Kind::Nak, false)] {
        let mut client = client();
        let now = seconds(100);
        assert_eq!(client.release(now), None);
        let discover = sent(&client.acquire(now));
        let actions = client.hear(now, &answer(&discover, Kind::Offer, SERVER, ADDRESS), SERVER_MAC);
        assert_eq!(actions[0], Action::Chosen, "recorded before it is asked for");
        client.hear(now, &answer(&sent(&actions), kind, SERVER, ADDRESS), SERVER_MAC);
        let mut next = Client::new(Family::V4, MAC, Settings::default(), false, TIMING, 8);
        if let Some(offer) = client.offer() {
            next.resume_asked(offer.clone());
        }
        for mut client in [client, next] {
            let release = client.release(now).map(|release| ipv4(&release));
            let release = release.map(|release| (release.from, release.to, release.mac));
            assert_eq!(release, is_given_back.then_some((ADDRESS, SERVER, SERVER_MAC)));
        }
    }
}

#[test]
fn messages_of_other_exchanges_are_ignored() {
    let mut client = client();
    let discover = sent(&client.acquire(seconds(1)));
    let offer = answer(&discover, Kind::Offer, SERVER, ADDRESS);
    let others = [
        Message { xid: offer.xid ^ 1, ..offer.clone() },
        Message { mac: SERVER_MAC, ..offer.clone() },
        Message { is_reply: false, ..offer.clone() },
        Message { kind: Kind::Ack, ..offer.clone() },
        Message { kind: Kind::Nak, ..offer.clone() },
        Message { kind: Kind::Discover, ..offer.clone() },
    ];
    for other in others {
        assert_eq!(client.hear(seconds(1), &other, SERVER_MAC), [], "{other:?}");
    }
    sent(&client.hear(seconds(1), &offer, SERVER_MAC));
}

/// A client identifier of the configuration precedes the one of the attachment, as in the reference.
#[test]
fn options_of_the_configuration_are_sent() {
    let options = vec![(option::HOST_NAME, b"web".to_vec()), (option::CLIENT, b"\x01x".to_vec())];
    let settings = Settings { client: Some(b"\0c1".to_vec()), options, ..Settings::default() };
    let mut client = Client::new(Family::V4, MAC, settings, false, TIMING, 7);
    let discover = sent(&client.acquire(seconds(1)));
    assert_eq!(discover.message.options[&option::HOST_NAME], b"web");
    assert_eq!(discover.message.options[&option::CLIENT], b"\x01x");
    assert!(!discover.message.options.contains_key(&option::REQUESTS));
}

#[test]
fn ten_thousand_renewals_keep_the_lease() {
    let mut client = bound_client();
    for _ in 0..10_000 {
        let at = client.timer().unwrap();
        let request = sent(&client.on_time(at));
        let grant = bound(&client.hear(at, &answer(&request, Kind::Ack, SERVER, ADDRESS), SERVER_MAC));
        assert_eq!(client.timer(), Some(at + seconds(1800)));
        assert_eq!(grant.terms.address, IpAddr::from(ADDRESS));
    }
}
