//! Spoof check: drops frames from a port whose source MAC address is not the container's.
//!
//! Names and comments are the reference's, so that each implementation can remove the rules of the other.

use std::collections::BTreeMap;

use cni::key::AliasOwner;
use cni::{AttachmentKey, Code, Context, Error, ErrorCollector, Result, SortedSet};
use linux::ip::MacAddr;
use linux::netlink::nft::{self, Chain, Edit, Family, Hook, Nftables, Rule, RuleSpec, Table, Verdict};
use linux::netlink::{Link, Netlink};

const TABLE: Table<'_> = Table { family: Family::Bridge, name: "nat" };
const PREROUTING: Chain<'_> = TABLE.chain("PREROUTING");
/// The prefix of all comments; the container ID, a hyphen and the interface name follow.
const COMMENT_PREFIX: &str = "macspoofchk-";
/// The longest reference (container ID, hyphen, interface name) for which the chain names fit. Comments may be longer.
const MAX_REFERENCE: usize = 255 - "cni-br-iface-".len() - "-mac".len();

/// The remedy for a container whose MAC address changes after ADD.
const MAC_HINT: &str = "if \"tuning\" sets the address, set it for \"bridge\" instead, by \"args.cni.mac\" or the capability \"mac\", \
                        or remove \"macspoofchk\"; then attach the container again";

/// The names of chains and the comment of one attachment.
#[derive(Debug)]
struct Names {
    /// The chain for frames from the port.
    port: String,
    /// The chain that compares the MAC address.
    mac: String,
    comment: String,
}

impl Names {
    fn new(reference: &str) -> Names {
        Names {
            port: format!("cni-br-iface-{reference}"),
            mac: format!("cni-br-iface-{reference}-mac"),
            comment: format!("{COMMENT_PREFIX}{reference}"),
        }
    }
}

/// A spoof check that is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpoofCheck {
    /// The port whose frames are checked.
    pub(crate) port: String,
    /// Container ID, hyphen, interface name.
    pub(crate) reference: String,
}

/// Returns an error if the chain names would be too long.
pub(crate) fn validate(owner: AttachmentKey<'_>) -> Result<()> {
    let len = owner.chain_suffix().len();
    if len <= MAX_REFERENCE {
        return Ok(());
    }
    let what = format!("container id {:?} is too long for key \"macspoofchk\"", owner.container);
    Err(Error::new(Code::CONFIG, what).details(format!(
        "container ID and interface name have {len} characters; at most {MAX_REFERENCE} fit into the name of a chain"
    )))
}

/// Adds the rules that let only frames from `mac` pass the port `link`. Replaces existing rules of the attachment.
///
/// Usually the table exists and the attachment has no rules. Then adding them is enough: recreating the base chain, or
/// searching for rules to replace, costs the kernel ten times as much.
pub(crate) fn add(owner: AttachmentKey<'_>, link: &str, mac: MacAddr) -> Result<()> {
    let names = Names::new(&owner.chain_suffix());
    let (port, check) = (TABLE.chain(&names.port), TABLE.chain(&names.mac));
    let rules = || {
        [
            RuleSpec::new(PREROUTING).input_link(link).jump(port.name),
            RuleSpec::new(port).jump(check.name),
            RuleSpec::new(check).source_mac(mac).verdict(Verdict::Return),
            RuleSpec::new(check).verdict(Verdict::Drop),
        ]
        .map(|rule| Edit::add_rule(&rule.comment(&names.comment)))
    };
    let mut nft = Nftables::open()?;
    let add = |nft: &mut Nftables| {
        let mut edits = vec![Edit::create_chain(port), Edit::create_chain(check)];
        edits.extend(rules());
        nft.apply(&edits)
    };
    let replace = |nft: &mut Nftables| -> Result<()> {
        let mut edits = vec![
            Edit::add_table(TABLE),
            Edit::add_base_chain(PREROUTING, Hook::BRIDGE_INPUT),
            Edit::add_chain(port),
            Edit::add_chain(check),
            Edit::flush(port),
            Edit::flush(check),
        ];
        let old = nft.rules_with_comment(PREROUTING, &|comment| comment == names.comment)?;
        for rule in &old {
            refuse_live(&link_of(rule).unwrap_or_default(), link, owner)?;
            edits.push(Edit::delete_rule(PREROUTING, rule));
        }
        edits.extend(rules());
        Ok(nft.apply(&edits)?)
    };
    let mut add_or_replace = || {
        if nft.has_base_chain(PREROUTING, Hook::BRIDGE_INPUT)? {
            match add(&mut nft) {
                Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::EEXIST)) => {}
                outcome => return Ok(outcome?),
            }
        }
        // If an existing chain is not the expected base chain, the kernel returns an error that says so.
        nft::retry(|| replace(&mut nft))
    };
    add_or_replace()
        .map_err(|error| error.details("key \"macspoofchk\" needs a kernel with nf_tables for bridges"))
        .context(|| "set up the spoof check")
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
    Ok(!owner.aliases().contains(&alias) && AliasOwner::parse(&alias).is_some())
}

/// Removes the spoof check whose chains are named after `owner`, if `is_ours` returns `true` for its port. The names do not
/// contain the network, so they can be those of another attachment.
fn remove_named(
    nft: &mut Nftables,
    owner: AttachmentKey<'_>,
    mut is_ours: impl FnMut(&str) -> Result<bool>,
) -> Result<()> {
    let names = Names::new(&owner.chain_suffix());
    let chains = [TABLE.chain(&names.port), TABLE.chain(&names.mac)];
    nft::retry(|| -> Result<()> {
        // The rule in PREROUTING jumps to the first chain, so without chains there is no rule.
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
        for rule in nft.rules_with_comment(PREROUTING, &|comment| comment == names.comment)? {
            if is_ours(&link_of(&rule).unwrap_or_default())? {
                ours.push(rule);
            } else {
                // Its chains are needed.
                edits.clear();
            }
        }
        edits.splice(0..0, ours.iter().map(|rule| Edit::delete_rule(PREROUTING, rule)));
        Ok(nft.apply(&edits)?)
    })
    .context(|| "remove the spoof check")
}

/// GC: removes the spoof checks of ports that are gone or `stale`. The names of the chains do not contain the network,
/// but the aliases of the ports do.
///
/// The rules are listed before the links. ADD creates a port before its rule, so a port that is missing from the list
/// of links is gone, even if other networks attach and detach containers meanwhile.
pub(crate) fn collect(nft: &mut Nftables, host: &mut Netlink, stale: impl Fn(&Link) -> bool) -> Result<()> {
    let rules = nft.rules(PREROUTING)?;
    let links = host.links(None)?;
    let kept: SortedSet<&str> = links.iter().filter(|link| !stale(link)).map(|link| link.name.as_str()).collect();
    // The number of rules that jump to each chain.
    let mut users: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for rule in &rules {
        *users.entry(rule.target()).or_default() += 1;
    }
    let is_gone = |rule: &&Rule| link_of(rule).is_some_and(|link| !kept.contains(link.as_str()));
    let mut failures = ErrorCollector::default();
    for rule in rules.iter().filter(|rule| rule.comment.starts_with(COMMENT_PREFIX)).filter(is_gone) {
        let others = users.entry(rule.target()).and_modify(|users| *users -= 1).or_default();
        failures.record(remove_stale(nft, rule, *others > 0));
    }
    failures.into_result()
}

/// Removes one rule and, unless other rules share them, its chains, in one transaction. If the rule is gone, another
/// command has removed or replaced it. Then the chains stay: they may belong to a new attachment with the same names.
fn remove_stale(nft: &mut Nftables, rule: &Rule, shared: bool) -> Result<()> {
    let names = Names::new(rule.comment.strip_prefix(COMMENT_PREFIX).unwrap_or_default());
    let mut edits = vec![Edit::delete_rule(PREROUTING, rule)];
    for chain in [TABLE.chain(&names.port), TABLE.chain(&names.mac)] {
        if !shared && nft.has_chain(chain)? {
            edits.push(Edit::delete_chain(chain));
        }
    }
    match nft.apply(&edits) {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
        outcome => outcome.context(|| "remove the spoof check"),
    }
}

/// Lists the spoof checks of all networks.
pub(crate) fn list(nft: &mut Nftables) -> Result<Vec<SpoofCheck>> {
    let check = |rule: &Rule| {
        Some(SpoofCheck { port: link_of(rule)?, reference: rule.comment.strip_prefix(COMMENT_PREFIX)?.to_owned() })
    };
    Ok(nft.rules(PREROUTING)?.iter().filter_map(check).collect())
}

/// Returns the name of the link whose frames a rule matches.
fn link_of(rule: &Rule) -> Option<String> {
    let padded = String::from_utf8(rule.values.first()?.clone()).ok()?;
    Some(padded.trim_end_matches('\0').to_owned())
}

/// CHECK: returns an error if a rule for this port and this MAC address is missing.
pub(crate) fn check(owner: AttachmentKey<'_>, link: &str, mac: MacAddr) -> Result<()> {
    let names = Names::new(&owner.chain_suffix());
    let mut nft = Nftables::open()?;
    let absent = |what: String| {
        Err(Error::new(Code::INTERNAL, what)
            .details("another program flushed the host's rules; attach the container again to restore them"))
    };
    if !nft.has_base_chain(PREROUTING, Hook::BRIDGE_INPUT)? {
        return absent(format!("chain {PREROUTING} receives no frames"));
    }
    let rules = nft.rules(PREROUTING)?;
    let leads = |rule: &&Rule| rule.target() == Some(&names.port);
    match rules.iter().find(leads).map(link_of) {
        Some(Some(found)) if found == link => {}
        Some(found) => {
            let found = found.unwrap_or_default();
            return absent(format!("the spoof check should be for port {link:?}, but is for {found:?}"));
        }
        None => return absent(format!("no rule in chain {PREROUTING} leads to {}", names.port)),
    }
    let rules = nft.rules(TABLE.chain(&names.mac))?;
    let allowed = || rules.iter().flat_map(|rule| &rule.values).filter_map(|value| value.as_slice().try_into().ok());
    if allowed().any(|allowed| MacAddr(allowed) == mac) {
        return Ok(());
    }
    // `tuning` has changed the address after this plugin. Frames with it are what the check is for.
    if let Some(allowed) = allowed().next().map(MacAddr) {
        let what = format!(
            "the spoof check drops all frames of the container: its MAC address is {mac}, but only {allowed} may pass"
        );
        return Err(Error::new(Code::INTERNAL, what).details(MAC_HINT));
    }
    absent(format!("no rule in chain {} lets {mac} pass", TABLE.chain(&names.mac)))
}
