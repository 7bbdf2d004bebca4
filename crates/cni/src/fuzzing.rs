//! Entry points for the fuzzer: functions that take untrusted bytes and assert the properties that must hold.
#![allow(clippy::panic, clippy::expect_used, reason = "the fuzzer detects failures by panics")]

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::PathBuf;

use linux::ip::MacAddr;

use crate::args::Args;
use crate::config::{self, Head};
use crate::delegate;
use crate::json;
use crate::misspelt::ReadKeys;
use crate::plugin::Call;
use crate::result::AddResult;
use crate::version::Version;

/// Splits an input into `CNI_ARGS` and stdin: the bytes before the first NUL, if there is one, and the bytes after it.
pub fn split(input: &[u8]) -> (Cow<'_, str>, &[u8]) {
    let at = input.iter().position(|byte| *byte == 0);
    let (args, stdin) = at.and_then(|at| input.split_at_checked(at)).unwrap_or((&[], input));
    (String::from_utf8_lossy(args), stdin.strip_prefix(&[0]).unwrap_or(stdin))
}

/// `CNI_ARGS`: arguments that were parsed have the same meaning when they are printed and parsed again.
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

/// Runs `run` with a call that has this stdin and `CNI_ARGS`, if they pass validation.
pub fn call(stdin: &[u8], args: &str, run: impl FnOnce(&Call<'_>)) {
    let config = config::text(stdin);
    let Ok(head) = Head::parse(&config) else { return };
    let (Ok(network), Ok(version)) = (head.network(), head.version("ADD")) else { return };
    let log_settings = head.log(None);
    assert!(!network.as_str().contains('/') && !matches!(network.as_str(), "." | ".."), "{network} leads elsewhere");
    let path: [PathBuf; 0] = [];
    let call = Call {
        network,
        version,
        args,
        path: &path,
        config: &config,
        stdin,
        any_netns: false,
        builtin: &[],
        is_embedded: false,
        keys: ReadKeys::default(),
        home: RefCell::default(),
    };
    drop(format!("{log_settings:?}"));
    if let Ok(Some(previous)) = call.prev_result() {
        reprint(&previous);
    }
    let _ = call.valid_attachments();
    run(&call);
}

/// Reads the output of another plugin, a result or an error, in any version.
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

/// Asserts that a result survives printing and reading in each version that can express it, and is printed identically.
fn reprint(result: &AddResult) {
    for version in Version::ALL {
        let Ok(seen) = result.to_version(version) else { continue };
        let printed = result.print(version).expect("what can be seen can be printed");
        let printed = String::from_utf8(printed).expect("JSON is UTF-8");
        let read = AddResult::read_answer(&printed, version);
        assert_eq!(read.as_ref(), Ok(&seen), "{version}: {printed}");
        assert_eq!(seen.print(version).expect("again"), printed.as_bytes(), "{version}");
    }
}
