//! Traffic control: queueing disciplines that limit what a link sends, and filters that redirect or drop what it
//! receives.
//!
//! The kernel can only limit what a link sends. To limit what it receives, a filter redirects the packets to an ifb
//! link, which sends them back to where they came from.

pub(super) mod loopback;
pub(super) mod redirect;

use std::fmt;
use std::time::Duration;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::Rtm;

use super::link::LinkIndex;
use super::wire::{self, Request};
use super::{Change, Netlink};
use crate::error::{Context, Result};

pub use loopback::LOOPBACK_REPLY;
pub use redirect::{Classifier, Redirect};

// linux/pkt_sched.h
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const FAIR_QUEUE_TARGET: u16 = 1;
const FAIR_QUEUE_INTERVAL: u16 = 3;
const FAIR_QUEUE_MEMORY: u16 = 9;
const LINK_LAYER_ETHERNET: u8 = 1;
const HANDLE_ROOT: u32 = 0xffff_ffff;
const HANDLE_INGRESS: u32 = 0xffff_fff1;
/// The handle of `ingress` and `clsact`.
const INGRESS_ITSELF: u32 = 0xffff_0000;
/// The handle `1:`.
const FIRST: u32 = 0x1_0000;

/// The handle of the only class of a token bucket filter, `1:1`.
const INNER: u32 = 0x1_0001;

/// The kernel's unit of time for a burst, in nanoseconds (PSCHED_SHIFT).
const TICK: u64 = 64;
/// Bursts that take at least this many microseconds are rounded to microseconds, which changes them by at most 1 %.
const ROUNDED: u64 = 100;

/// The kernel passes packets of this size, which it divides when hardware sends them.
const LARGEST_PACKET: u32 = 64 << 10;

/// struct tcmsg
const HEADER: usize = 20;
/// The place of the handle in it.
const HANDLE: usize = 8;
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

    /// Returns that time rounded to microseconds, as the reference does, which compares it exactly; `None` if it has
    /// more than 32 bits, or rounding would change it noticeably.
    fn rounded_ticks(&self) -> Option<u32> {
        let microseconds = (u64::from(self.burst) * 1_000_000).checked_div(self.rate)?;
        u32::try_from(microseconds * 1_000 / TICK).ok().filter(|_| microseconds >= ROUNDED)
    }
}

impl fmt::Display for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rate {} B/s, burst {} B, limit {} B", self.rate, self.burst, self.limit)
    }
}

/// The parameters of a fair queue.
#[derive(Debug, PartialEq, Eq)]
struct FairQueue {
    /// How long packets of a flow may wait in the long run, in microseconds.
    target: u32,
    /// In which time a sender must react before more packets are dropped, in microseconds.
    interval: u32,
    /// How many bytes all queues may occupy in memory.
    memory: u32,
}

impl FairQueue {
    /// Returns parameters for the queue of a token bucket filter.
    ///
    /// While the largest packet is sent, all others wait. With a shorter target, the kernel would drop packets of flows
    /// that have a single one: up to 42 % of the packets of a ping at 8 Mbit/s, where the default is 5 ms and a packet
    /// of 64 KiB takes 66 ms.
    fn below(bucket: TokenBucket) -> FairQueue {
        let largest = u64::from(bucket.burst.min(LARGEST_PACKET));
        let target = (2 * largest * 1_000_000).checked_div(bucket.rate).unwrap_or(u64::MAX);
        let target = u32::try_from(target).unwrap_or(u32::MAX).clamp(5_000, 10_000_000);
        // A packet occupies more memory than its length, and a small one many times of it.
        let memory = bucket.limit.saturating_mul(4).clamp(256 << 10, 32 << 20);
        FairQueue { target, interval: target.saturating_mul(10).max(100_000), memory }
    }
}

/// A queueing discipline, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// `tbf`, `clsact`, `noqueue`, …
    pub kind: String,
    /// Whether the kernel has chosen it, because no program has.
    pub is_default: bool,
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
    /// Returns rate, burst and limit of a token bucket filter; `None` if this is another kind.
    pub fn token_bucket(&self) -> Option<TokenBucket> {
        let ReportedBucket { rate, limit, burst_ticks } = *self.bucket.as_ref()?;
        let burst = u128::from(burst_ticks) * u128::from(TICK) * u128::from(rate) / 1_000_000_000;
        Some(TokenBucket { rate, burst: u32::try_from(burst).unwrap_or(u32::MAX), limit })
    }

    /// Returns whether this is a token bucket filter with the `wanted` parameters.
    pub fn is_token_bucket(&self, wanted: &TokenBucket) -> bool {
        self.bucket.as_ref().is_some_and(|bucket| {
            let ticks = wanted.burst_ticks();
            let difference = bucket.burst_ticks.wrapping_sub(u32::try_from(ticks & 0xffff_ffff).unwrap_or_default());
            // The kernel calculates with 31 significant bits, and the reference with microseconds.
            let microsecond = 1_000 / TICK;
            let is_rounded = u64::from(difference.min(difference.wrapping_neg())) <= 1 + microsecond + (ticks >> 30);
            bucket.rate == wanted.rate && bucket.limit == wanted.limit && is_rounded
        })
    }

    pub(super) fn read(payload: &[u8]) -> Result<Qdisc> {
        let (kind, options) = kind_and_options(payload)?;
        let bucket = if kind == "tbf" { ReportedBucket::read(options)? } else { None };
        Ok(Qdisc { kind, is_default: wire::number(payload, HANDLE)? == 0, bucket })
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
                let ticks = bucket.rounded_ticks().unwrap_or_else(|| saturated(bucket.burst_ticks()));
                for number in [bucket.limit, ticks, 0] {
                    parameters.raw(&number.to_ne_bytes());
                }
            });
            // In bytes only if the time is too long or too short: the kernel would report another time than the
            // reference expects.
            if bucket.rounded_ticks().is_none() {
                options.number(TBF_BURST, bucket.burst);
            }
            if bucket.rate > u32::MAX.into() {
                options.attr(TBF_RATE64, &bucket.rate.to_ne_bytes());
            }
        });
        Change::new(request, move || format!("limit link {link}: {bucket}"))
    }

    /// Divides the queue of a token bucket filter into a fair one for each flow (`fq_codel`). A kernel without it
    /// returns ENOENT.
    pub fn add_fair_queue(link: LinkIndex, bucket: TokenBucket) -> Self {
        let mut request = about(Rtm::Newqdisc, NlmF::CREATE | NlmF::REPLACE, link, 0, INNER, 0);
        request.text(libc::TCA_KIND, "fq_codel");
        let FairQueue { target, interval, memory } = FairQueue::below(bucket);
        request.nest(libc::TCA_OPTIONS, |options| {
            options.number(FAIR_QUEUE_INTERVAL, interval);
            options.number(FAIR_QUEUE_TARGET, target);
            options.number(FAIR_QUEUE_MEMORY, memory);
        });
        Change::new(request, move || format!("divide the queue of link {link} fairly"))
    }

    /// Prepares a link for filters of what it receives, with `ingress`. EINVAL if it has `clsact`, which serves as
    /// well.
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

    /// Deletes a queueing discipline and its filters. The kernel returns ENOENT if there is none, or only a default
    /// one.
    pub fn delete_qdisc(link: LinkIndex, place: QdiscPlace) -> Self {
        let request = about(Rtm::Delqdisc, NlmF::empty(), link, 0, place.number(), 0);
        Change::new(request, move || format!("delete the queueing discipline of link {link} at {place}"))
    }
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
}

pub(super) fn get_qdisc(link: LinkIndex, place: QdiscPlace) -> Vec<u8> {
    // Older kernels report it to listeners only, and to the sender of the request if it wants an echo.
    about(Rtm::Getqdisc, NlmF::ECHO, link, 0, place.number(), 0).finish()
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
            is_default: false,
            bucket: Some(ReportedBucket { rate, limit, burst_ticks }),
        };
        let wanted = TokenBucket { rate: 1_000_000, burst: 10_000, limit: 35_000 };
        for (qdisc, same) in [
            (reported(1_000_000, 35_000, 156_250), true),
            (reported(1_000_000, 35_000, 156_249), true),
            (reported(1_000_000, 35_000, 156_235), true),
            (reported(1_000_000, 35_000, 156_230), false),
            (reported(1_000_001, 35_000, 156_250), false),
            (reported(1_000_000, 35_001, 156_250), false),
            (Qdisc { kind: "noqueue".to_owned(), is_default: true, bucket: None }, false),
        ] {
            assert_eq!(qdisc.is_token_bucket(&wanted), same, "{qdisc:?}");
        }
        // 2147 seconds, which the kernel reports without the upper bits.
        let slow = TokenBucket { rate: 125_000, burst: 268_435_455, limit: u32::MAX };
        let ticks = u32::try_from(slow.burst_ticks() % (1 << 32)).unwrap();
        assert!(slow.burst_ticks() > u32::MAX.into() && reported(125_000, u32::MAX, ticks + 20).is_token_bucket(&slow));
        assert_eq!(reported(1_000_000, 35_000, 156_250).token_bucket(), Some(wanted));
        let none = TokenBucket { rate: 0, ..slow };
        assert!(!reported(1, u32::MAX, 0).is_token_bucket(&none));
    }

    #[test]
    fn a_fair_queue_waits_for_the_largest_packet() {
        let below = |rate, burst, limit| FairQueue::below(TokenBucket { rate, burst, limit });
        let expected = FairQueue { target: 20_000, interval: 200_000, memory: 256 << 10 };
        assert_eq!(below(1_000_000, 10_000, 35_000), expected);
        assert_eq!(below(1_000_000, 1_000_000, 1_025_000).target, 131_072);
        let fast = below(12_500_000_000, u32::MAX, u32::MAX);
        assert_eq!(fast, FairQueue { target: 5_000, interval: 100_000, memory: 32 << 20 });
        assert_eq!((below(1, 1_000_000, 1).target, below(0, 1, 1).interval), (10_000_000, 100_000_000));
    }

    #[test]
    fn a_burst_is_rounded_as_the_reference_does() {
        let rounded = |rate, burst| TokenBucket { rate, burst, limit: 0 }.rounded_ticks();
        assert_eq!(rounded(1_000_000, 10_000), Some(156_250));
        assert_eq!(rounded(3_700_000, 10_000), Some(42_218), "2702 of 2702.7 microseconds");
        assert_eq!(rounded(1_250_000_000, 100_000), None, "80 microseconds");
        assert_eq!(rounded(125_000, 268_435_455), None, "2147 seconds");
        assert_eq!(rounded(0, 1), None);
    }
}
