//! ADD: moves the routes of the interface to tables of its addresses. If that fails, everything is as before.

use cni::{AddResult, Attachment, AttachmentKey, Call, Code, Context, Error, Guest, Namespaces, Result, Undo};
use interface::lock::lock_namespace;
use linux::netlink::Netlink;

use crate::config::Config;
use crate::owner::{self, RuleOwner};
use crate::plan::{Present, RoutingPlan};

/// What the kernel answers if an object that is deleted does not exist, or one that is restored exists already.
const DONE: [i32; 4] = [libc::ENOENT, libc::ESRCH, libc::ENODEV, libc::EEXIST];

/// An ADD that has succeeded.
#[derive(Debug)]
pub(crate) struct Done {
    namespaces: Namespaces,
    plan: RoutingPlan,
}

/// Changes the container. Repeated, it replaces what an earlier ADD left.
pub(crate) fn run(call: &Call<'_>, at: &Attachment, config: &Config, result: &AddResult) -> Result<Done> {
    let ips = owner::addresses(result, at.ifname.as_str());
    if ips.is_empty() {
        // The text of the reference, by which users recognise the mistake.
        let what = format!("No IP addresses supplied on interface: {}", at.ifname.as_str());
        let error = Error::new(Code::CONFIG, what);
        return Err(error.details("list sbr after a plugin with an IPAM plugin that gives the interface an address"));
    }
    let namespaces = Namespaces::open(call, at)?;
    lock_namespace(&namespaces.guest)?;
    let mut guest = namespaces.open_guest(at)?;
    let link = find_link(&mut guest)?;
    let Guest { mut netlink, .. } = guest;
    let present = Present { link, rules: netlink.rules()?, routes: netlink.listed_routes()? };
    let plan = RoutingPlan::new(present, RuleOwner::new(AttachmentKey::new(call, at)), config, &ips);
    apply(netlink, &plan).context(|| format!("route the packets of {:?} in {:?}", at.ifname.as_str(), at.sandbox()))?;
    Ok(Done { namespaces, plan })
}

/// Returns the interface, which must exist.
pub(crate) fn find_link(guest: &mut Guest<'_>) -> Result<linux::netlink::LinkIndex> {
    guest.find_interface_index()?.ok_or_else(|| {
        let (ifname, sandbox) = (guest.at.ifname.as_str(), guest.at.sandbox());
        // The text of the reference.
        let error = Error::new(Code::INTERNAL, format!("Cannot find network interface {ifname} in {sandbox:?}"));
        error.details("list sbr after the plugin that creates the interface")
    })
}

/// Applies the plan with two messages: nothing is removed before everything is there that replaces it.
fn apply(netlink: Netlink, plan: &RoutingPlan) -> Result<()> {
    let mut undo = Undo::new(netlink);
    undo.push("restore the routes and rules", |netlink: &mut Netlink| revert(netlink, plan));
    let netlink = undo.context();
    let outcome = netlink.apply(&plan.additions()).map_err(explain);
    match outcome.and_then(|()| Ok(netlink.apply_ignoring(&plan.removals(), &DONE)?)) {
        Ok(()) => {
            undo.commit();
            Ok(())
        }
        Err(error) => Err(undo.roll_back(error)),
    }
}

/// Adds the reason to the kernel's refusal to add a route or a rule.
fn explain(error: linux::Error) -> Error {
    let error = Error::from(error);
    match error.errno() {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL) => error.details(
            "Failed to add default route, or another one: its gateway must be in a network of the interface, and the \
             interface must be up",
        ),
        Some(libc::ENETDOWN) => error.details("the interface must be up"),
        Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT) => error.details("use a kernel with CONFIG_IP_MULTIPLE_TABLES"),
        _ => error,
    }
}

fn revert(netlink: &mut Netlink, plan: &RoutingPlan) -> Result<()> {
    Ok(netlink.apply_ignoring(&plan.reversal(), &DONE)?)
}

impl Done {
    /// Restores what was before the ADD.
    pub(crate) fn revert(self, at: &Attachment) -> Result<()> {
        revert(&mut self.namespaces.open_guest(at)?.netlink, &self.plan)
    }
}
