//! The constants and beginnings of nf_tables messages.

use neli::consts::nl::NlmF;

use crate::netlink::wire::Request;

// linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
pub(super) const SUBSYSTEM: u16 = 10;
pub(super) const BATCH_BEGIN: u16 = 16;
pub(super) const BATCH_END: u16 = 17;
pub(super) const NEWTABLE: u16 = 0;
pub(super) const DELTABLE: u16 = 2;
pub(super) const GETTABLE: u16 = 1;
pub(super) const NEWCHAIN: u16 = 3;
pub(super) const GETCHAIN: u16 = 4;
pub(super) const DELCHAIN: u16 = 5;
pub(super) const NEWRULE: u16 = 6;
pub(super) const GETRULE: u16 = 7;
pub(super) const DELRULE: u16 = 8;
pub(super) const NEWGEN: u16 = 15;
pub(super) const GETGEN: u16 = 16;
pub(super) const TRACE: u16 = 17;
/// The attribute with the table name, in messages about tables, chains and rules.
pub(super) const TABLE: u16 = 1;
pub(super) const TABLE_FLAGS: u16 = 2;
pub(super) const CHAIN_NAME: u16 = 3;
pub(super) const CHAIN_HOOK: u16 = 4;
pub(super) const CHAIN_POLICY: u16 = 5;
pub(super) const CHAIN_USES: u16 = 6;
pub(super) const CHAIN_TYPE: u16 = 7;
pub(super) const HOOK_PLACE: u16 = 1;
pub(super) const HOOK_PRIORITY: u16 = 2;
pub(super) const RULE_CHAIN: u16 = 2;
pub(super) const RULE_HANDLE: u16 = 3;
pub(super) const RULE_EXPRESSIONS: u16 = 4;
pub(super) const RULE_POSITION: u16 = 6;
pub(super) const RULE_USERDATA: u16 = 7;
/// The attribute with the generation, in messages about it and in the message that begins a transaction.
pub(super) const GENERATION: u16 = 1;

/// struct nfgenmsg
pub(super) const HEADER: usize = 4;

/// The family number that stands for all families.
pub(super) const ALL: u8 = 0;

/// Starts an nf_tables message.
pub(super) fn begin(kind: u16, flags: NlmF, family: u8) -> Request {
    let mut request = Request::new(SUBSYSTEM << 8 | kind, flags);
    request.raw(&head(family, 0));
    request
}

/// Starts the message that begins or ends a transaction.
pub(super) fn bound(kind: u16) -> Request {
    let mut request = Request::new(kind, NlmF::empty());
    request.raw(&head(0, SUBSYSTEM));
    request
}

/// Encodes the message that begins a transaction. With a generation, the kernel rejects the transaction with ERESTART
/// if the rulesets have another one.
pub(super) fn begin_batch(generation: Option<u32>) -> Vec<u8> {
    let mut request = bound(BATCH_BEGIN);
    if let Some(generation) = generation {
        request.attr(GENERATION, &generation.to_be_bytes());
    }
    request.finish()
}

pub(super) fn get_generation() -> Vec<u8> {
    begin(GETGEN, NlmF::empty(), ALL).finish()
}

/// struct nfgenmsg: family, version, resource
fn head(family: u8, resource: u16) -> [u8; HEADER] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}
