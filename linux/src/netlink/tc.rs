//! Traffic control: queueing disciplines that limit what a link sends, and the redirection of what it receives.
//!
//! The kernel can only limit what a link sends. To limit what it receives, a filter redirects the packets to an ifb link,
//! which sends them back to where they came from.

use std::fmt;
use std::time::Duration;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::Rtm;

use super::link::LinkIndex;
use super::wire::{self, CREATE, NESTED, Request};
use super::{Change, Netlink};
use crate::error::{Context, Result};

// linux/pkt_sched.h, linux/pkt_cls.h, linux/tc_act/tc_mirred.h
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const LINK_LAYER_ETHERNET: u8 = 1;
const MATCHALL_ACTIONS: u16 = 2;
const U32_SELECTOR: u16 = 5;
const U32_ACTIONS: u16 = 7;
const U32_TERMINAL: u8 = 1;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const MIRRED_PARAMETERS: u16 = 2;
const EGRESS_REDIRECT: u32 = 1;
const STOLEN: u32 = 4;
const HANDLE_ROOT: u32 = 0xffff_ffff;
const HANDLE_INGRESS: u32 = 0xffff_fff1;
/// The filters of packets that a link receives, below `ingress` and `clsact` alike.
const INGRESS_FILTERS: u32 = 0xffff_fff2;
/// The handle of `ingress` and `clsact`.
const INGRESS_ITSELF: u32 = 0xffff_0000;
/// The handle `1:`.
const FIRST: u32 = 0x1_0000;

/// The priority of our filters; the reference uses it too.
const PRIORITY: u32 = 1 << 16;
/// linux/if_ether.h: ETH_P_ALL in network byte order.
const EVERY_PROTOCOL: u32 = u16::to_be(3) as u32;

/// The kernel's unit of time for a burst, in nanoseconds (PSCHED_SHIFT).
const TICK: u64 = 64;

/// struct tcmsg
const HEADER: usize = 20;

/// Where a queueing discipline is attached to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QdiscPlace {
    /// It queues what the link sends.
    Root,
    /// It has the filters of what the link receives.
    Ingress,
}

impl QdiscPlace {
    fn number(self) -> u32 {
        match self {
            QdiscPlace::Root => HANDLE_ROOT,
            QdiscPlace::Ingress => HANDLE_INGRESS,
        }
    }
}

impl fmt::Display for QdiscPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QdiscPlace::Root => "root",
            QdiscPlace::Ingress => "ingress",
        })
    }
}

/// The parameters of a token bucket filter (`tbf`), which limits the rate of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes per second.
    pub rate: u64,
    /// How many bytes may be sent at once after a pause.
    pub burst: u32,
    /// How many bytes may wait; the kernel drops further packets.
    pub limit: u32,
}

impl TokenBucket {
    /// Returns parameters with which a packet waits at most `latency`.
    pub fn with_latency(rate: u64, burst: u32, latency: Duration) -> TokenBucket {
        let waiting = u128::from(rate).saturating_mul(latency.as_nanos()) / 1_000_000_000;
        let limit = u32::try_from(waiting.saturating_add(burst.into())).unwrap_or(u32::MAX);
        TokenBucket { rate, burst, limit }
    }

    /// Returns the time in which a burst is sent at the given rate, in the kernel's unit.
    fn burst_ticks(&self) -> u64 {
        (u64::from(self.burst) * 1_000_000_000 / TICK).checked_div(self.rate).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rate {} B/s, burst {} B, limit {} B", self.rate, self.burst, self.limit)
    }
}

/// A queueing discipline, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// `tbf`, `clsact`, `noqueue`, …
    pub kind: String,
    bucket: Option<ReportedBucket>,
}

/// A token bucket filter, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReportedBucket {
    rate: u64,
    limit: u32,
    /// The time in which a burst is sent, in the kernel's unit, and without its upper bits.
    burst_ticks: u32,
}

impl Qdisc {
    /// Returns whether this is a token bucket filter with the `wanted` parameters.
    pub fn is_token_bucket(&self, wanted: &TokenBucket) -> bool {
        self.bucket.as_ref().is_some_and(|bucket| {
            let ticks = wanted.burst_ticks();
            let difference = bucket.burst_ticks.wrapping_sub(u32::try_from(ticks & 0xffff_ffff).unwrap_or_default());
            // The kernel calculates with 31 significant bits.
            let is_rounded = u64::from(difference.min(difference.wrapping_neg())) <= 1 + (ticks >> 30);
            bucket.rate == wanted.rate && bucket.limit == wanted.limit && is_rounded
        })
    }

    pub(super) fn read(payload: &[u8]) -> Result<Qdisc> {
        let (kind, options) = kind_and_options(payload)?;
        let bucket = if kind == "tbf" { ReportedBucket::read(options)? } else { None };
        Ok(Qdisc { kind, bucket })
    }
}

impl ReportedBucket {
    fn read(options: &[u8]) -> Result<Option<ReportedBucket>> {
        let (mut bucket, mut rate64) = (None, None);
        for attribute in wire::attributes(options, 0) {
            match attribute? {
                // struct tc_tbf_qopt, which starts with two struct tc_ratespec
                (TBF_PARAMETERS, value) => {
                    bucket = Some(ReportedBucket {
                        rate: wire::number(value, 8)?.into(),
                        limit: wire::number(value, 24)?,
                        burst_ticks: wire::number(value, 28)?,
                    });
                }
                (TBF_RATE64, value) => rate64 = Some(wire::number64(value, 0)?),
                _ => {}
            }
        }
        Ok(bucket.map(|bucket| ReportedBucket { rate: rate64.unwrap_or(bucket.rate), ..bucket }))
    }
}

/// The kind of filter that selects all packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classifier {
    /// `matchall`, which costs less for each packet. A kernel without it returns ENOENT.
    Matchall,
    /// `u32`, which the reference uses.
    U32,
}

impl Change<'_> {
    /// Limits what a link sends. Replaces the parameters, or another queueing discipline.
    pub fn set_token_bucket(link: LinkIndex, bucket: TokenBucket) -> Self {
        let mut request = about(Rtm::Newqdisc, NlmF::CREATE | NlmF::REPLACE, link, FIRST, HANDLE_ROOT, 0);
        request.text(libc::TCA_KIND, "tbf");
        request.nest(libc::TCA_OPTIONS, |options| {
            let saturated = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            options.nest(TBF_PARAMETERS, |parameters| {
                // struct tc_ratespec: cell, link layer, overhead, alignment, smallest packet; rate
                parameters.raw(&[0, LINK_LAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
                parameters.raw(&saturated(bucket.rate).to_ne_bytes());
                parameters.raw(&[0; 12]); // no peak rate
                // limit, burst, and the burst at the peak rate
                for number in [bucket.limit, saturated(bucket.burst_ticks()), 0] {
                    parameters.raw(&number.to_ne_bytes());
                }
            });
            // In bytes, because the time has 32 bits only.
            options.number(TBF_BURST, bucket.burst);
            if bucket.rate > u32::MAX.into() {
                options.attr(TBF_RATE64, &bucket.rate.to_ne_bytes());
            }
        });
        Change::new(request, move || format!("limit link {link}: {bucket}"))
    }

    /// Prepares a link for filters of what it receives, with `ingress`. EINVAL if it has `clsact`, which serves as well.
    pub fn add_ingress(link: LinkIndex) -> Self {
        Change::add_ingress_kind(link, "ingress")
    }

    /// Prepares a link for filters of what it receives and sends, with `clsact`. EINVAL if it has `ingress`.
    pub fn add_clsact(link: LinkIndex) -> Self {
        Change::add_ingress_kind(link, "clsact")
    }

    fn add_ingress_kind(link: LinkIndex, kind: &'static str) -> Self {
        let flags = NlmF::CREATE | NlmF::REPLACE;
        let mut request = about(Rtm::Newqdisc, flags, link, INGRESS_ITSELF, HANDLE_INGRESS, 0);
        request.text(libc::TCA_KIND, kind);
        Change::new(request, move || format!("add {kind} to link {link}"))
    }

    /// Deletes a queueing discipline and its filters. The kernel returns ENOENT if there is none, or only a default one.
    pub fn delete_qdisc(link: LinkIndex, place: QdiscPlace) -> Self {
        let request = about(Rtm::Delqdisc, NlmF::empty(), link, 0, place.number(), 0);
        Change::new(request, move || format!("delete the queueing discipline of link {link} at {place}"))
    }

    /// Redirects everything that a link receives: the link `to` sends it. Needs `ingress` or `clsact`.
    pub fn redirect(link: LinkIndex, to: LinkIndex, classifier: Classifier) -> Self {
        let mut request = about(Rtm::Newtfilter, CREATE, link, 0, INGRESS_FILTERS, PRIORITY | EVERY_PROTOCOL);
        match classifier {
            Classifier::Matchall => {
                request.text(libc::TCA_KIND, "matchall");
                request.nest(libc::TCA_OPTIONS, |options| redirect_action(options, MATCHALL_ACTIONS, to));
            }
            Classifier::U32 => {
                request.text(libc::TCA_KIND, "u32");
                request.nest(libc::TCA_OPTIONS, |options| {
                    redirect_action(options, U32_ACTIONS, to);
                    options.nest(U32_SELECTOR, |selector| {
                        // struct tc_u32_sel: flags, shift, number of keys; then a key that compares nothing
                        selector.raw(&[U32_TERMINAL, 0, 1, 0]);
                        selector.raw(&[0; 12 + 16]);
                    });
                });
            }
        }
        Change::new(request, move || format!("redirect what link {link} receives to link {to}"))
    }

    /// Deletes the filters of [`Change::redirect`]. The kernel returns ENOENT if there are none.
    pub fn delete_redirect(link: LinkIndex) -> Self {
        let request = about(Rtm::Deltfilter, NlmF::empty(), link, 0, INGRESS_FILTERS, PRIORITY);
        Change::new(request, move || format!("delete the redirection of link {link}"))
    }
}

/// Adds a list of actions with one action.
fn redirect_action(options: &mut Request, kind: u16, to: LinkIndex) {
    options.nest(kind, |actions| {
        actions.nest(1_u16, |action| {
            action.text(ACTION_KIND, "mirred");
            action.nest(NESTED | ACTION_OPTIONS, |options| {
                options.nest(MIRRED_PARAMETERS, |mirred| {
                    // struct tc_mirred: index, capabilities, verdict, two counters, action, link
                    for number in [0, 0, STOLEN, 0, 0, EGRESS_REDIRECT, to.number()] {
                        mirred.raw(&number.to_ne_bytes());
                    }
                });
            });
        });
    });
}

impl Netlink {
    /// Returns a queueing discipline of a link; `None` if there is none at this place.
    pub fn qdisc(&mut self, link: LinkIndex, place: QdiscPlace) -> Result<Option<Qdisc>> {
        let mut found = None;
        // A link that is down has a discipline that the kernel does not report: only the acknowledgement comes then.
        let refusal = self.socket.change(&[&get_qdisc(link, place)], |message| {
            if message.kind == libc::RTM_NEWQDISC {
                found = Some(Qdisc::read(message.payload)?);
            }
            Ok(())
        })?;
        match refusal {
            Some((_, error)) if error.errno() != Some(libc::ENOENT) => {
                Err(error).context(|| format!("query the queueing discipline of link {link} at {place}"))
            }
            _ => Ok(found),
        }
    }

    /// Returns the links to which `matchall` and `u32` filters redirect what a link receives.
    pub fn redirects(&mut self, link: LinkIndex) -> Result<Vec<LinkIndex>> {
        self.socket
            .list(&list_filters(link), libc::RTM_NEWTFILTER, read_redirect)
            .context(|| format!("list the filters of link {link}"))
    }
}

pub(super) fn get_qdisc(link: LinkIndex, place: QdiscPlace) -> Vec<u8> {
    // Older kernels report it to listeners only, and to the sender of the request if it wants an echo.
    about(Rtm::Getqdisc, NlmF::ECHO, link, 0, place.number(), 0).finish()
}

pub(super) fn list_filters(link: LinkIndex) -> Vec<u8> {
    about(Rtm::Gettfilter, NlmF::empty(), link, 0, INGRESS_FILTERS, 0).finish()
}

/// Returns the link to which a filter redirects packets; `None` if it does something else.
pub(super) fn read_redirect(payload: &[u8]) -> Result<Option<LinkIndex>> {
    let (kind, options) = kind_and_options(payload)?;
    let actions = match kind.as_str() {
        "matchall" => MATCHALL_ACTIONS,
        "u32" => U32_ACTIONS,
        _ => return Ok(None),
    };
    for attribute in wire::attributes(options, 0) {
        let (kind, value) = attribute?;
        if kind != actions {
            continue;
        }
        for action in wire::attributes(value, 0) {
            if let Some(to) = redirect_target(action?.1)? {
                return Ok(Some(to));
            }
        }
    }
    Ok(None)
}

/// Returns the link to which an action redirects packets.
fn redirect_target(action: &[u8]) -> Result<Option<LinkIndex>> {
    let (mut kind, mut target) = (String::new(), None);
    for attribute in wire::attributes(action, 0) {
        match attribute? {
            (ACTION_KIND, value) => kind = wire::text(value),
            (ACTION_OPTIONS, options) => target = Some(options),
            _ => {}
        }
    }
    for attribute in wire::attributes(target.filter(|_| kind == "mirred").unwrap_or_default(), 0) {
        let (MIRRED_PARAMETERS, mirred) = attribute? else { continue };
        if wire::number(mirred, 20)? == EGRESS_REDIRECT {
            return Ok(LinkIndex::optional(wire::number(mirred, 24)?));
        }
    }
    Ok(None)
}

/// Returns the kind and the options of a queueing discipline or a filter.
fn kind_and_options(payload: &[u8]) -> Result<(String, &[u8])> {
    let (mut kind, mut options) = (String::new(), &[][..]);
    for attribute in wire::attributes(payload, HEADER) {
        match attribute? {
            (libc::TCA_KIND, value) => kind = wire::text(value),
            (libc::TCA_OPTIONS, value) => options = value,
            _ => {}
        }
    }
    Ok((kind, options))
}

/// Starts a message about a queueing discipline or a filter.
fn about(kind: Rtm, flags: NlmF, link: LinkIndex, handle: u32, parent: u32, info: u32) -> Request {
    let mut request = Request::new(kind, flags);
    // struct tcmsg: family, padding, link, handle, parent, information
    for number in [0, link.number(), handle, parent, info] {
        request.raw(&number.to_ne_bytes());
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_from_the_latency() {
        let limit = |rate, burst, latency| TokenBucket::with_latency(rate, burst, latency).limit;
        assert_eq!(limit(1_000_000, 10_000, Duration::from_millis(25)), 35_000);
        assert_eq!(limit(1, 1, Duration::ZERO), 1);
        assert_eq!(
            limit(12_500_000_000, u32::MAX, Duration::from_millis(25)),
            u32::MAX,
            "larger than the kernel's limit"
        );
        assert_eq!(limit(u64::MAX, u32::MAX, Duration::MAX), u32::MAX);
    }

    #[test]
    fn a_burst_is_compared_by_its_time() {
        let reported = |rate, limit, burst_ticks| Qdisc {
            kind: "tbf".to_owned(),
            bucket: Some(ReportedBucket { rate, limit, burst_ticks }),
        };
        let wanted = TokenBucket { rate: 1_000_000, burst: 10_000, limit: 35_000 };
        for (qdisc, same) in [
            (reported(1_000_000, 35_000, 156_250), true),
            (reported(1_000_000, 35_000, 156_249), true),
            (reported(1_000_000, 35_000, 156_200), false),
            (reported(1_000_001, 35_000, 156_250), false),
            (reported(1_000_000, 35_001, 156_250), false),
            (Qdisc { kind: "noqueue".to_owned(), bucket: None }, false),
        ] {
            assert_eq!(qdisc.is_token_bucket(&wanted), same, "{qdisc:?}");
        }
        // 2147 seconds, which the kernel reports without the upper bits.
        let slow = TokenBucket { rate: 125_000, burst: 268_435_455, limit: u32::MAX };
        let ticks = u32::try_from(slow.burst_ticks() % (1 << 32)).unwrap();
        assert!(slow.burst_ticks() > u32::MAX.into() && reported(125_000, u32::MAX, ticks + 20).is_token_bucket(&slow));
        let none = TokenBucket { rate: 0, ..slow };
        assert!(!reported(1, u32::MAX, 0).is_token_bucket(&none));
    }
}
