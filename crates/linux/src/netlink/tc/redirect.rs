//! Filters that redirect what a link receives to an ifb link.

use neli::consts::nl::NlmF;
use neli::consts::rtnl::Rtm;

use super::{HANDLE, about, kind_and_options};
use crate::error::{Context, Result};
use crate::netlink::link::LinkIndex;
use crate::netlink::wire::{self, CREATE, NESTED, Request};
use crate::netlink::{Change, Netlink};

// linux/pkt_cls.h, linux/tc_act/tc_mirred.h
const MATCHALL_ACTIONS: u16 = 2;
const U32_SELECTOR: u16 = 5;
const U32_ACTIONS: u16 = 7;
const U32_TERMINAL: u8 = 1;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const MIRRED_PARAMETERS: u16 = 2;
const EGRESS_REDIRECT: u32 = 1;
const STOLEN: u32 = 4;
/// The filters of packets that a link receives, below `ingress` and `clsact` alike.
pub(super) const INGRESS_FILTERS: u32 = 0xffff_fff2;
/// The priority of our filters: the last one. A redirected packet passes no further filter, so those of other programs,
/// such as network policies, must come first. The kernel assigns priorities before it, too.
const PRIORITY: u32 = 0xffff << 16;
/// linux/if_ether.h: ETH_P_ALL in network byte order.
pub(super) const EVERY_PROTOCOL: u32 = u16::to_be(3) as u32;

/// The place of priority and protocol in struct tcmsg.
const INFORMATION: usize = 16;

/// A filter that redirects what a link receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The link that sends the packets; `None` if it is gone, so that the kernel drops them.
    pub to: Option<LinkIndex>,
    /// The handle of the filter.
    handle: u32,
    /// Its priority and protocol.
    information: u32,
}

/// The kind of filter that selects all packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classifier {
    /// `u32`, which the reference uses: every kernel on which that works has it. Others return ENOENT.
    U32,
    /// `matchall`, which needs Linux 4.8.
    Matchall,
}

impl Change<'_> {
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

    /// Deletes a filter that redirects what a link receives.
    pub fn delete_redirect(link: LinkIndex, redirect: &Redirect) -> Self {
        let Redirect { handle, information, .. } = *redirect;
        let request = about(Rtm::Deltfilter, NlmF::empty(), link, handle, INGRESS_FILTERS, information);
        Change::new(request, move || format!("delete a redirection of link {link}"))
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
    /// Returns the `matchall` and `u32` filters that redirect what a link receives.
    pub fn redirects(&mut self, link: LinkIndex) -> Result<Vec<Redirect>> {
        self.socket
            .list(&list_filters(link), libc::RTM_NEWTFILTER, read_redirect)
            .context(|| format!("list the filters of link {link}"))
    }
}

pub(in crate::netlink) fn list_filters(link: LinkIndex) -> Vec<u8> {
    about(Rtm::Gettfilter, NlmF::empty(), link, 0, INGRESS_FILTERS, 0).finish()
}

/// Returns a filter that redirects packets; `None` if it does something else.
pub(in crate::netlink) fn read_redirect(payload: &[u8]) -> Result<Option<Redirect>> {
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
                let (handle, information) = (wire::number(payload, HANDLE)?, wire::number(payload, INFORMATION)?);
                return Ok(Some(Redirect { to, handle, information }));
            }
        }
    }
    Ok(None)
}

/// Returns the link to which an action redirects packets, if it is such an action. The inner `None` is a link that is
/// gone.
fn redirect_target(action: &[u8]) -> Result<Option<Option<LinkIndex>>> {
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
            return Ok(Some(LinkIndex::optional(wire::number(mirred, 24)?)));
        }
    }
    Ok(None)
}
