//! Patterns in the list of allowed sysctls of `tuning`, and names to match, compared with Go: `ci/fuzz` builds
//! `regexp.go`.
#![no_main]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;

static GO: LazyLock<Mutex<Child>> = LazyLock::new(|| {
    let program = std::env::var("GO_REGEXP").expect("GO_REGEXP is the path of the program built from regexp.go");
    Mutex::new(Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
});

fuzz_target!(|input: &str| {
    let (pattern, text) = input.split_once('\n').unwrap_or((input, "net.ipv4.conf.IFNAME.rp_filter"));
    // The name of a sysctl. Only other texts can have characters about which the engines disagree.
    let text: String = text.chars().filter(char::is_ascii_graphic).take(1000).collect();
    let Some(matches) = tuning::fuzzing::pattern(pattern, &text) else { return };
    let mut go = GO.lock().unwrap();
    go.stdin.as_mut().unwrap().write_all(format!("{pattern}\n{text}\n").as_bytes()).unwrap();
    let mut answer = [0];
    go.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, if matches { b"+" } else { b"-" }, "{pattern:?} {text:?}");
});
