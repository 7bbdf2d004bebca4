//! Guarded changes, dry runs and the order of rules.

use std::net::{TcpListener, TcpStream};

use linux::netlink::nft::{Edit, Element, Family, Field, Hook, Nftables, Position, RuleSpec, Table, Value, Verdict};
use linux::{Error, Kind, Result};
use testing::{Lab, wait_until};

use super::{CHAIN, PORTS, TABLE, comments, ip, key, port, prepared, rule};

#[test]
fn late_translations_leave_connections_to_others() {
    let lab = Lab::without_plugins();
    lab.sh("ip link set lo up");
    let table = Table { family: Family::Inet, name: "late" };
    let [arriving, output, raw] = ["arriving", "output", "raw"].map(|name| table.chain(name));
    let [ours, theirs] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let translation = RuleSpec::new(output).destination_port(Field::TCP, 8080);
    let mut nft = Nftables::open().unwrap();
    nft.apply(&[
        Edit::add_table(table),
        Edit::add_base_chain(arriving, Hook::LATE_DESTINATION_NAT),
        Edit::add_base_chain(output, Hook::LATE_LOCAL_DESTINATION_NAT),
        Edit::add_base_chain(raw, Hook::RAW_INPUT),
        Edit::add_rule(&translation.translate_destination(ours.local_addr().unwrap())),
    ])
    .unwrap();
    let shown = lab.sh("nft -y list table inet late");
    for line in [
        "type nat hook prerouting priority -99; policy accept;",
        "type nat hook output priority -99; policy accept;",
        "type filter hook prerouting priority -300; policy accept;",
    ] {
        assert!(shown.lines().any(|shown| shown.trim() == line), "{line} is not in\n{shown}");
    }
    let connect_to = |name, listener: &TcpListener| {
        listener.set_nonblocking(true).unwrap();
        let client = TcpStream::connect("127.0.0.1:8080").unwrap();
        wait_until(&format!("a connection to {name}"), || listener.accept().is_ok());
        drop(client);
    };
    connect_to("ours", &ours);
    let to = theirs.local_addr().unwrap();
    lab.sh(&format!("iptables-nft -t nat -A OUTPUT -p tcp --dport 8080 -j DNAT --to-destination {to}"));
    connect_to("theirs", &theirs);
}

#[test]
fn a_guarded_change_is_planned_again_if_the_ruleset_has_changed() {
    let (lab, mut nft) = prepared();
    nft.apply(&Edit::create_elements(PORTS.set, &[port(80).mark("old"), port(81).mark("other")])).unwrap();
    let mut plans = 0;
    nft.apply_guarded(|nft| -> Result<_> {
        plans += 1;
        let mut old = nft.elements(PORTS.set)?;
        old.retain(|element| element.userdata.mark == "old");
        if plans == 1 {
            // Between the listing and the deletion, another program takes over the key.
            assert_eq!(old.len(), 1);
            lab.sh("nft 'delete element ip t ports { tcp . 80 }; add element ip t ports { tcp . 80 : 10.0.0.9 . 80 }'");
        }
        Ok(Edit::delete_elements(PORTS.set, &old))
    })
    .unwrap();
    assert_eq!(plans, 2);
    let new = nft.element(PORTS.set, &key(80)).unwrap().unwrap();
    assert_eq!(new, Element::new(&key(80)).to(&[ip("10.0.0.9"), Value::Port(80)]));

    plans = 0;
    nft.apply_guarded(|_| -> Result<_> {
        plans += 1;
        Ok(Edit::delete_elements(PORTS.set, &[port(81)]))
    })
    .unwrap();
    assert_eq!(plans, 1, "nothing else has changed");
    assert_eq!(nft.element(PORTS.set, &key(81)).unwrap(), None);
}

#[test]
fn a_guarded_change_ends_with_the_error_of_its_plan_or_of_the_kernel() {
    let (_lab, mut nft) = prepared();
    let failed = nft.apply_guarded(|_| Err(Error::new(Kind::Other, "no plan"))).unwrap_err();
    assert_eq!(failed.to_string(), "no plan");
    let failed = nft.apply_guarded(|_| -> Result<_> { Ok(vec![Edit::flush(TABLE.chain("none"))]) }).unwrap_err();
    assert_eq!(failed.errno(), Some(libc::ENOENT));
}

#[test]
fn a_dry_run_changes_nothing_and_finds_mistakes() {
    let (lab, mut nft) = prepared();
    let before = lab.sh("nft list ruleset");
    let mut edits = vec![Edit::add_rule(&rule().verdict(Verdict::Accept)), Edit::create_chain(TABLE.chain("new"))];
    edits.extend(Edit::create_elements(PORTS.set, &[port(80)]));
    nft.dry_run(&edits).unwrap();
    assert_eq!(lab.sh("nft list ruleset"), before);
    edits.push(Edit::create_chain(CHAIN));
    assert_eq!(nft.dry_run(&edits).unwrap_err().errno(), Some(libc::EEXIST));
    assert_eq!(lab.sh("nft list ruleset"), before);
}

#[test]
fn rules_are_inserted_and_replaced_at_their_positions() {
    let (_lab, mut nft) = prepared();
    let named = |name: &str| rule().verdict(Verdict::Accept).comment(name);
    nft.apply(&[Edit::add_rule(&named("a")), Edit::add_rule(&named("b")), Edit::add_rule(&named("c"))]).unwrap();
    let handle = nft.rules(CHAIN).unwrap()[1].handle;
    nft.apply(&[
        Edit::insert_rule(&named("first"), Position::First),
        Edit::insert_rule(&named("before b"), Position::Before(handle)),
        Edit::insert_rule(&named("after b"), Position::After(handle)),
    ])
    .unwrap();
    assert_eq!(comments(&mut nft), ["first", "a", "before b", "b", "after b", "c"]);
    nft.apply(&[Edit::replace_rule(handle, &named("new b"))]).unwrap();
    assert_eq!(comments(&mut nft), ["first", "a", "before b", "new b", "after b", "c"]);
    let gone = nft.apply(&[Edit::insert_rule(&named("x"), Position::Before(9999))]).unwrap_err();
    assert_eq!(gone.errno(), Some(libc::ENOENT));
}

#[test]
fn a_comment_that_is_too_long_is_refused() {
    let (_lab, mut nft) = prepared();
    nft.apply(&[Edit::add_rule(&rule().comment("c".repeat(253)))]).unwrap();
    assert_eq!(comments(&mut nft), ["c".repeat(253)]);
    assert!(nft.apply(&[Edit::add_rule(&rule().comment("c".repeat(254)))]).is_err());
    assert!(nft.apply(&[Edit::add_rule(&rule().comment("c".repeat(200)).mark("m".repeat(60)))]).is_err());
    assert_eq!(comments(&mut nft).len(), 1);
}

#[test]
fn a_listed_rule_is_looked_up_by_its_handle() {
    let (lab, mut nft) = prepared();
    nft.apply(&[Edit::add_rule(&rule().verdict(Verdict::Accept)), Edit::add_rule(&rule().verdict(Verdict::Drop))])
        .unwrap();
    let rules = nft.rules(CHAIN).unwrap();
    assert!(rules.iter().all(|rule| nft.has_rule(CHAIN, rule).unwrap()));
    nft.apply(&[Edit::delete_rule(CHAIN, &rules[0])]).unwrap();
    assert_eq!([0, 1].map(|n: usize| nft.has_rule(CHAIN, &rules[n]).unwrap()), [false, true]);
    assert!(!nft.has_rule(TABLE.chain("other"), &rules[1]).unwrap());
    lab.sh("nft flush ruleset");
    assert!(!nft.has_rule(CHAIN, &rules[1]).unwrap());
}
