//! CHECK: compares the container with the configuration. Changes nothing.

use cni::{Attachment, Call, Code, Error, Namespaces, Result};
use interface::check::same;

use crate::add::find_vrf;
use crate::config::Config;
use crate::named;

/// Returns an error unless the interface is a member of the VRF, which is up.
pub(crate) fn run(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<()> {
    let namespaces = Namespaces::open(call, at)?;
    let links = namespaces.open_guest(at)?.netlink.links(None)?;
    let (ifname, name) = (at.ifname.as_str(), config.name.as_str());
    let vrf = find_vrf(&links, config)?;
    match (vrf, named(&links, ifname)) {
        (Some(vrf), Some(link)) if link.master == Some(vrf.index) => same(name, "up", true, vrf.up),
        _ => {
            // The text of the reference, by which users recognise the mistake.
            let what = format!("Failed to find {ifname} associated to vrf {name} in {:?}", at.sandbox());
            Err(Error::new(Code::INTERNAL, what).details("another program changed it; attach the container again"))
        }
    }
}
