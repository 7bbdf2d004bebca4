//! Entry points for the fuzzer: they read arbitrary configurations, packets and files, and assert the properties that
//! must hold.
#![allow(clippy::panic, clippy::expect_used, reason = "the fuzzer detects a failure by a panic")]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use cni::Call;
use linux::ip::MacAddr;

use crate::config::Config;
use crate::exchange::{Content, Exchange, Received};
use crate::lease;
use crate::settings::Settings;
use crate::terms::{Server, Terms};
use crate::v4::message::{Message, unwrap, wrap_reply};
use crate::{v4, v6};

/// Reads a configuration of this plugin.
pub fn config(call: &Call<'_>) {
    let Ok(config) = Config::read(call, None) else { return };
    assert!(config.settings.options.iter().all(|(_, value)| value.len() <= 255));
}

/// Reads a packet of a server, and a lease file.
pub fn packet(bytes: &[u8]) {
    let _ = lease::parse::<lease::Record>(bytes);
    let (from, to) = (Ipv4Addr::new(10, 66, 0, 1), Ipv4Addr::BROADCAST);
    let wrapped = wrap_reply(bytes, from, to);
    if bytes.len() < 65_000 {
        assert_eq!(unwrap(&wrapped), Some(bytes), "a packet that is written is read");
    }
    for message in [Some(bytes), unwrap(bytes)].into_iter().flatten().filter_map(Message::parse) {
        assert_eq!(Message::parse(&message.write()), Some(message.clone()), "a message that is written is read");
        let server = Server { address: from.into(), id: vec![2; 6] };
        if let Ok(terms) = v4::terms::read(&message, Some(server), &Settings { set_mtu: true, ..Settings::default() }) {
            verify(&terms);
        }
    }
    let message = v6::message::Message::parse(bytes);
    if let Some(message) = message {
        assert_eq!(v6::message::Message::parse(&message.write()), Some(message.clone()), "what is written is read");
        let settings = Settings::default();
        let (mac, elapsed) = (MacAddr([2; 6]), Duration::ZERO);
        let exchange = Exchange { xid: message.xid, elapsed, mac, settings: &settings };
        let answer = v6::read(&message, Ipv6Addr::LOCALHOST, None, &exchange);
        if let Some(Received { content: Content::Offer(Ok(terms)) | Content::Grant(Ok(terms)), .. }) = answer {
            verify(&terms);
        }
    }
}

/// Asserts what must hold for whatever a server grants.
fn verify(terms: &Terms) {
    assert!(terms.cidr().not_of_an_interface().is_none(), "{terms:?}");
    assert!(terms.times.is_none_or(|times| 0 < times.renew && times.renew < times.rebind && times.rebind < times.end));
    let names = terms.dns.search.iter().chain(&terms.dns.nameservers);
    assert!(names.chain([&terms.dns.domain]).all(|name| !name.contains(char::is_whitespace)), "{:?}", terms.dns);
}
