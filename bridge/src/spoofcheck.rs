//! Spoof check: of what comes in by a port, only frames with the container's hardware address pass.
//!
//! Names and comments are those of the reference, so that each implementation removes what the other made.

use std::collections::{BTreeMap, BTreeSet};

use cni::ip::MacAddr;
use cni::key::AliasOwner;
use cni::netlink::nft::{Chain, Edit, Family, Hook, Nftables, Part, Rule, Table};
use cni::netlink::{Link, Netlink};
use cni::{AttachmentKey, Code, Context, Error, Failures, Result};

const TABLE: Table<'_> = Table { family: Family::Bridge, name: "nat" };
const PREROUTING: Chain<'_> = TABLE.chain("PREROUTING");
/// What all comments begin with; a container's id, a hyphen and an interface's name follow.
const COMMENT: &str = "macspoofchk-";
/// The longest reference that fits into the longest name of a chain; a comment has more room.
const REFERENCE: usize = 255 - "cni-br-iface-".len() - "-mac".len();
/// How often rules are looked for again because somebody deleted one meanwhile.
const ATTEMPTS: u32 = 10;

/// The names for one container's interface.
#[derive(Debug)]
struct Names {
    port: String,
    mac: String,
    comment: String,
}

impl Names {
    fn new(reference: &str) -> Names {
        Names {
            port: format!("cni-br-iface-{reference}"),
            mac: format!("cni-br-iface-{reference}-mac"),
            comment: format!("{COMMENT}{reference}"),
        }
    }
}

/// A check of source addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoofCheck {
    /// The port whose frames are checked.
    pub port: String,
    /// Container and interface, with a hyphen between them.
    pub reference: String,
}

/// Refuses an id for which the names would be too long.
pub(crate) fn validate(owner: AttachmentKey<'_>) -> Result<()> {
    let len = owner.reference().len();
    if len <= REFERENCE {
        return Ok(());
    }
    let what = format!("container id {:?} is too long for key \"macspoofchk\"", owner.container);
    Err(Error::new(Code::CONFIG, what).details(format!(
        "id and interface together have {len} characters, at most {REFERENCE} fit into the name of a chain"
    )))
}

/// Lets only frames from `mac` pass the port called `link`. Replaces whatever is there for the same interface.
///
/// Most often nothing is, and the table is: then it is enough to add. To make the base chain again, or to look for what
/// is to be replaced, costs the kernel ten times as much.
pub(crate) fn add(owner: AttachmentKey<'_>, link: &str, mac: MacAddr) -> Result<()> {
    let names = Names::new(&owner.reference());
    let (port, check) = (TABLE.chain(&names.port), TABLE.chain(&names.mac));
    let rules = || {
        let rule = |chain, parts: &[Part<'_>]| Edit::add_rule(chain, parts, &names.comment);
        [
            rule(PREROUTING, &[Part::InputLink(link), Part::Jump(port.name)]),
            rule(port, &[Part::Jump(check.name)]),
            rule(check, &[Part::SourceMac(mac), Part::Return]),
            rule(check, &[Part::Drop]),
        ]
    };
    let mut nft = Nftables::open()?;
    let add = |nft: &mut Nftables| {
        let mut edits = vec![Edit::new_chain(port), Edit::new_chain(check)];
        edits.extend(rules());
        nft.apply(&edits)
    };
    let replace = |nft: &mut Nftables| {
        let mut edits = vec![
            Edit::add_table(TABLE),
            Edit::add_base_chain(PREROUTING, Hook::BRIDGE_INPUT),
            Edit::add_chain(port),
            Edit::add_chain(check),
            Edit::flush(port),
            Edit::flush(check),
        ];
        let old = nft.rules_about(PREROUTING, &|comment| comment == names.comment)?;
        for rule in &old {
            refuse_live(&link_of(rule).unwrap_or_default(), link, owner)?;
            edits.push(Edit::delete_rule(PREROUTING, rule));
        }
        edits.extend(rules());
        nft.apply(&edits)
    };
    let mut set_up = || {
        if nft.has_base_chain(PREROUTING, Hook::BRIDGE_INPUT)? {
            match add(&mut nft) {
                Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::EEXIST)) => {}
                outcome => return outcome,
            }
        }
        // Of a chain that has the name and is another the kernel says what is wrong with it.
        retry(|| replace(&mut nft))
    };
    set_up()
        .map_err(|error| error.details("key \"macspoofchk\" needs nf_tables for bridges in the kernel"))
        .trying(|| "set up the spoof check")
}

/// Refuses to replace the check of `port`, if that is the port of a container that is still attached.
fn refuse_live(port: &str, new: &str, owner: AttachmentKey<'_>) -> Result<()> {
    let link = if port == new { None } else { Netlink::open()?.link(port)? };
    match link.and_then(|link| AliasOwner::parse(&link.alias)) {
        None => Ok(()),
        Some(attached) => {
            let what = format!(
                "container {:?} has a spoof check for interface {:?} already, on port {port:?} of network {:?}",
                owner.container, owner.ifname, attached.network
            );
            Err(Error::new(Code::INTERNAL, what).details("detach the container from that network first"))
        }
    }
}

/// Removes the check of an attachment that is detached, if there is one. The names of a check do not include the network:
/// a check whose port belongs to another attachment stays.
pub(crate) fn remove(nft: &mut Nftables, host: &mut Netlink, owner: AttachmentKey<'_>) -> Result<()> {
    remove_named(nft, owner, |port| Ok(!belongs_to_another(host, port, owner)?))
}

/// Removes the check of a port that a failed ADD created. The same attachment may have an older port, whose check stays.
pub(crate) fn roll_back(nft: &mut Nftables, owner: AttachmentKey<'_>, port: &str) -> Result<()> {
    remove_named(nft, owner, |checked| Ok(checked == port))
}

/// Returns whether a port exists and has the alias of another attachment.
fn belongs_to_another(host: &mut Netlink, port: &str, owner: AttachmentKey<'_>) -> Result<bool> {
    // A port that is gone, as after most DELs, takes no message.
    if host.link_index(port)?.is_none() {
        return Ok(false);
    }
    let alias = host.link(port)?.map(|link| link.alias).unwrap_or_default();
    Ok(alias != owner.alias() && AliasOwner::parse(&alias).is_some())
}

fn remove_named(
    nft: &mut Nftables,
    owner: AttachmentKey<'_>,
    mut is_ours: impl FnMut(&str) -> Result<bool>,
) -> Result<()> {
    let names = Names::new(&owner.reference());
    let chains = [TABLE.chain(&names.port), TABLE.chain(&names.mac)];
    retry(|| {
        // The rule in PREROUTING leads to the first chain, so without chains there is none.
        let mut edits = Vec::new();
        for chain in chains {
            if nft.has_chain(chain)? {
                edits.push(Edit::delete_chain(chain));
            }
        }
        if edits.is_empty() {
            return Ok(());
        }
        let mut ours = Vec::new();
        for rule in nft.rules_about(PREROUTING, &|comment| comment == names.comment)? {
            if is_ours(&link_of(&rule).unwrap_or_default())? {
                ours.push(rule);
            } else {
                // Its chains are needed.
                edits.clear();
            }
        }
        edits.splice(0..0, ours.iter().map(|rule| Edit::delete_rule(PREROUTING, rule)));
        nft.apply(&edits)
    })
    .trying(|| "remove the spoof check")
}

/// GC: removes the checks of ports that are gone or `stale`. Their names do not include the network, the ports do.
///
/// ADD creates a port before its rule. So a port that is missing from a list of links that was read after the rules is
/// gone, although other networks attach and detach containers meanwhile.
pub(crate) fn collect(nft: &mut Nftables, host: &mut Netlink, stale: impl Fn(&Link) -> bool) -> Result<()> {
    let rules = nft.rules(PREROUTING)?;
    let links = host.links(None)?;
    let kept: BTreeSet<&str> = links.iter().filter(|link| !stale(link)).map(|link| link.name.as_str()).collect();
    // How many rules lead to each chain.
    let mut users: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for rule in &rules {
        *users.entry(rule.target.as_deref()).or_default() += 1;
    }
    let is_gone = |rule: &&Rule| link_of(rule).is_some_and(|link| !kept.contains(link.as_str()));
    let mut failures = Failures::default();
    for rule in rules.iter().filter(|rule| rule.comment.starts_with(COMMENT)).filter(is_gone) {
        let others = users.entry(rule.target.as_deref()).and_modify(|users| *users -= 1).or_default();
        failures.note(remove_stale(nft, rule, *others > 0));
    }
    failures.into_result()
}

/// Removes one rule and, unless other rules share them, its chains, in one transaction. If the rule is gone, another
/// command has removed or replaced it: the chains may be those of a new attachment with the same names, and stay.
fn remove_stale(nft: &mut Nftables, rule: &Rule, shared: bool) -> Result<()> {
    let names = Names::new(rule.comment.strip_prefix(COMMENT).unwrap_or_default());
    let mut edits = vec![Edit::delete_rule(PREROUTING, rule)];
    for chain in [TABLE.chain(&names.port), TABLE.chain(&names.mac)] {
        if !shared && nft.has_chain(chain)? {
            edits.push(Edit::delete_chain(chain));
        }
    }
    match nft.apply(&edits) {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
        outcome => outcome.trying(|| "remove the spoof check"),
    }
}

/// All checks of all networks.
pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<SpoofCheck>> {
    let check = |rule: &Rule| {
        Some(SpoofCheck { port: link_of(rule)?, reference: rule.comment.strip_prefix(COMMENT)?.to_owned() })
    };
    Ok(nft.rules(PREROUTING)?.iter().filter_map(check).collect())
}

/// The link whose frames a rule looks at.
fn link_of(rule: &Rule) -> Option<String> {
    let padded = String::from_utf8(rule.values.first()?.clone()).ok()?;
    Some(padded.trim_end_matches('\0').to_owned())
}

/// CHECK: are the rules there, for this port and this address?
pub(crate) fn check(owner: AttachmentKey<'_>, link: &str, mac: MacAddr) -> Result<()> {
    let names = Names::new(&owner.reference());
    let mut nft = Nftables::open()?;
    let absent = |what: String| {
        Err(Error::new(Code::INTERNAL, what)
            .details("somebody flushed the host's rules; attaching the container again restores them"))
    };
    if !nft.has_base_chain(PREROUTING, Hook::BRIDGE_INPUT)? {
        return absent(format!("no frames come into chain {PREROUTING}"));
    }
    let rules = nft.rules(PREROUTING)?;
    let leads = |rule: &&Rule| rule.target.as_deref() == Some(&names.port);
    match rules.iter().find(leads).map(link_of) {
        Some(Some(found)) if found == link => {}
        Some(found) => {
            let found = found.unwrap_or_default();
            return absent(format!("the spoof check should be for port {link:?}, and is for {found:?}"));
        }
        None => return absent(format!("no rule in chain {PREROUTING} leads to {}", names.port)),
    }
    let rules = nft.rules(TABLE.chain(&names.mac))?;
    if rules.iter().any(|rule| rule.values.iter().any(|value| value.as_slice() == mac.0)) {
        return Ok(());
    }
    absent(format!("no rule in chain {} lets {mac} pass", TABLE.chain(&names.mac)))
}

/// Runs `work` again as long as somebody else deletes what it has just listed.
fn retry(mut work: impl FnMut() -> Result<()>) -> Result<()> {
    let mut outcome = work();
    for _ in 1..ATTEMPTS {
        match &outcome {
            Err(error) if error.errno() == Some(libc::ENOENT) => outcome = work(),
            _ => break,
        }
    }
    outcome
}
