//! STATUS: returns an error if an ADD would fail now.

use cni::{AttachmentKey, Call, Code, Error, Result};
use linux::Netns;
use linux::netlink::{Netlink, TokenBucket};

use crate::add::Limits;
use crate::config::{Config, LATENCY};

/// The MTU of an imaginary veth.
const MTU: u32 = 1500;

/// Limits a link in a new network namespace, so that nothing on the host changes. Only an attempt shows what the kernel can:
/// modules are loaded on demand, as in ADD.
pub(crate) fn run(call: &Call<'_>) -> Result<()> {
    let home = call.home()?;
    Netns::run_in_new(&home.netns, try_limits).map_err(|error| error.with_code(Code::NOT_AVAILABLE))
}

fn try_limits() -> Result<()> {
    let mut host = Netlink::open()?;
    let mut link = host.link("lo")?.ok_or_else(|| Error::bug("a network namespace without lo"))?;
    link.mtu = MTU;
    let limit = TokenBucket::with_latency(1_000_000, 10_000, LATENCY);
    let config = Config { ingress: Some(limit), egress: Some(limit) };
    let owner = AttachmentKey { network: "", container: "", ifname: "" };
    Limits { owner, config: &config, veth: link }.set(host).map(drop)
}
