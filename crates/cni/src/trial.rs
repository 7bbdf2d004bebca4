//! STATUS: whether the kernel accepts rules.
//!
//! Only a transaction that is not committed shows that, and the kernel then waits until no processor uses the old
//! rules, for about 10 ms. A runtime may call STATUS every few seconds. So what the kernel has accepted is recorded
//! until the next boot: it does not lose features.

use std::io;
use std::path::Path;

use linux::dir::Dir;
use linux::log::debug;
use linux::netlink::nft::{Edit, Nftables, digest};

use crate::error::Result;

/// The directory with an empty file for each list of edits that the kernel has accepted. `/run` is empty after a boot.
const ACCEPTED: &str = "/run/cni0/accepted";

/// Returns an error if the kernel would not accept `edits`. Changes no rules. The edits must not depend on handles,
/// which change all the time.
pub fn try_edits(nft: &mut Nftables, edits: &[Edit]) -> Result<()> {
    let name = digest(edits);
    // Without a socket there is no nf_tables, whatever is recorded.
    if edits.is_empty() || (nft.fd().is_some() && is_accepted(&name).unwrap_or(false)) {
        return Ok(());
    }
    nft.dry_run(edits)?;
    if let Err(error) = Dir::create_private(Path::new(ACCEPTED)).and_then(|dir| dir.write(&name, &[])) {
        debug!("record in {ACCEPTED} that the kernel accepts the rules: {error}");
    }
    Ok(())
}

/// Returns whether the kernel has accepted edits with this digest. Trusts only a directory that no other user can
/// change.
fn is_accepted(name: &str) -> io::Result<bool> {
    match Dir::open_private(Path::new(ACCEPTED))? {
        Some((dir, _)) => dir.exists(name),
        None => Ok(false),
    }
}
