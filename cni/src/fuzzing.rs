//! Doors for the fuzzer: a stranger's bytes go in where strangers' bytes go in, and what must hold of them is asserted.
#![allow(clippy::panic, clippy::expect_used, reason = "a panic is how the fuzzer is told")]

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::PathBuf;

use crate::args::Args;
use crate::delegate;
use crate::ip::MacAddr;
use crate::json;
use crate::plugin::Call;
use crate::request::{Head, config_text};
use crate::result::AddResult;
use crate::version::Version;

pub use crate::netlink::fuzzing::{reply, rules};

/// `CNI_ARGS` and stdin out of one input: what comes before a NUL, if there is one, and what comes after it.
pub fn split(input: &[u8]) -> (Cow<'_, str>, &[u8]) {
    let at = input.iter().position(|byte| *byte == 0);
    let (args, stdin) = at.and_then(|at| input.split_at_checked(at)).unwrap_or((&[], input));
    (String::from_utf8_lossy(args), stdin.strip_prefix(&[0]).unwrap_or(stdin))
}

/// `CNI_ARGS`: what is understood means the same when it is written again.
pub fn args(text: &str) {
    let Ok(args) = Args::parse(text, ["IP", "MAC", "K8S_POD_NAME"]) else { return };
    let [ip, mac, pod] = args.values();
    let pairs = [("IP", ip), ("MAC", mac), ("K8S_POD_NAME", pod)];
    let again: Vec<_> = pairs.iter().filter_map(|(key, value)| Some(format!("{key}={}", (*value)?))).collect();
    let again = again.join(";");
    assert_eq!(Args::parse(&again, ["IP", "MAC", "K8S_POD_NAME"]).as_ref(), Ok(&args), "{again}");
    if let Some(Ok(mac)) = mac.map(str::parse::<MacAddr>) {
        assert_eq!(mac.to_string().parse(), Ok(mac));
    }
}

/// A call with this on stdin and in `CNI_ARGS`, if it gets as far as a plugin.
pub fn call(stdin: &[u8], args: &str, then: impl FnOnce(&Call<'_>)) {
    let config = config_text(stdin);
    let Ok(head) = Head::parse(&config) else { return };
    let (Ok(network), Ok(version)) = (head.network(), head.version("ADD", Version::V0_1_0)) else { return };
    let wish = head.log(None);
    assert!(!network.as_str().contains('/') && !matches!(network.as_str(), "." | ".."), "{network} leads elsewhere");
    let path: [PathBuf; 0] = [];
    let call =
        Call { network, version, args, path: &path, config: &config, stdin, builtin: &[], home: RefCell::default() };
    drop(format!("{wish:?}"));
    if let Ok(Some(previous)) = call.previous() {
        reprint(&previous);
    }
    let _ = call.valid_attachments();
    then(&call);
}

/// What another plugin printed: a result or an error, of any version.
pub fn answer(text: &str) {
    for asked in [Version::V0_1_0, Version::V0_4_0, Version::NEWEST] {
        if let Ok(result) = AddResult::read_answer(text, asked) {
            reprint(&result);
        }
    }
    if let Some(error) = delegate::read_error(text) {
        let printed = json::print(&error.answer()).expect("an error can be printed");
        let printed = String::from_utf8(printed).expect("JSON is UTF-8");
        assert_eq!(delegate::read_error(&printed).as_ref(), Some(&error), "{printed}");
    }
}

/// Whatever a version can say is read back as it was, and printed in the same way again.
fn reprint(result: &AddResult) {
    for version in Version::ALL {
        let Ok(seen) = result.as_seen_in(version) else { continue };
        let printed = result.print(version).expect("what can be seen can be printed");
        let printed = String::from_utf8(printed).expect("JSON is UTF-8");
        let read = AddResult::read_answer(&printed, version);
        assert_eq!(read.as_ref(), Ok(&seen), "{version}: {printed}");
        assert_eq!(seen.print(version).expect("again"), printed.as_bytes(), "{version}");
    }
}
