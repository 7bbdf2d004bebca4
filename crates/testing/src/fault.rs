//! Faults: a system call of a plugin fails, or the plugin is killed there.

use serde_json::Value;

use crate::{Lab, Outcome, Process};

/// The effect of a fault on the call of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call failed with exactly one error, or was killed.
    Failed,
    /// The call succeeded: the system call is not essential.
    Tolerated,
    /// The call succeeded without a fault: it makes fewer such system calls.
    NotReached,
}

/// Makes the `n`th system call `name` of a call fail, or kills the plugin there. `how` is in the words of strace, such
/// as `error=EIO` or `signal=KILL`.
#[track_caller]
pub fn inject(lab: &Lab, call: Process, name: &str, n: usize, how: &str) -> Effect {
    let (traced, inject) = (format!("trace={name}"), format!("inject={name}:{how}:when={n}"));
    let (outcome, log) = call.trace(lab, &["-s0", "-e", &traced, "-e", &inject]);
    if !log.contains("INJECTED") && outcome.status.is_some() {
        outcome.ok();
        return Effect::NotReached;
    }
    match outcome.status {
        Some(0) => Effect::Tolerated,
        Some(1) => {
            // Stdout contains one error and nothing else.
            let error: Value =
                serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{name} {n}: {}", outcome.stdout));
            // Netavark's plugins have another name for it.
            let message = error["msg"].as_str().or_else(|| error["error"].as_str());
            assert!(message.is_some_and(|message| !message.is_empty()), "{name} {n}: {error}");
            Effect::Failed
        }
        status => {
            assert_eq!(status, None, "{name} {n}: {outcome:?}");
            Effect::Failed
        }
    }
}

/// Makes system calls `name` fail as `how` says, also those of child processes: `error=EIO` for all of them, or
/// `error=EIO:when=2`. At least one must fail.
#[track_caller]
pub fn inject_all(lab: &Lab, call: Process, name: &str, how: &str) -> Outcome {
    inject_with(lab, call, &["-f", "-e", &format!("trace={name}"), "-e", &format!("inject={name}:{how}")])
}

/// Makes system calls `name` fail as `how` says if they access `path`. At least one must fail.
#[track_caller]
pub fn inject_at(lab: &Lab, call: Process, path: &str, name: &str, how: &str) -> Outcome {
    inject_with(lab, call, &["-f", "-P", path, "-e", &format!("trace={name}"), "-e", &format!("inject={name}:{how}")])
}

/// Runs a call under `strace OPTIONS`. Without a fault, a test would prove nothing.
#[track_caller]
fn inject_with(lab: &Lab, call: Process, options: &[&str]) -> Outcome {
    let (outcome, log) = call.trace(lab, options);
    assert!(log.contains("INJECTED") || log.contains("killed by SIG"), "no fault was injected: {options:?} {log}");
    outcome
}

/// Makes each system call of `faults`, which are pairs of a name and an errno, fail in turn: one fault for each call
/// that `prepare` returns. Then `verify` gets the effect and the place of the fault, such as `sendto 3`. Returns how
/// many calls failed.
#[track_caller]
pub fn inject_everywhere(
    lab: &Lab,
    faults: &[(&str, &str)],
    mut prepare: impl FnMut() -> Process,
    mut verify: impl FnMut(Effect, &str),
) -> usize {
    let mut failures = 0;
    for (name, errno) in faults {
        for n in 1.. {
            let effect = inject(lab, prepare(), name, n, &format!("error={errno}"));
            eprintln!("{name} {n}: {effect:?}");
            verify(effect, &format!("{name} {n}"));
            failures += usize::from(effect == Effect::Failed);
            if effect == Effect::NotReached {
                break;
            }
            assert!(n < 200, "{name} is called without end");
        }
    }
    failures
}

/// Kills each call that `prepare` returns at one of the system calls `names` in turn. Then `verify` gets the place,
/// such as `sendto 3`; after the last one of a name, the call has succeeded. Returns how many calls were killed.
#[track_caller]
pub fn kill_everywhere(
    lab: &Lab,
    names: &[&str],
    mut prepare: impl FnMut() -> Process,
    mut verify: impl FnMut(&str),
) -> usize {
    let mut killed = 0;
    for name in names {
        for n in 1.. {
            let effect = inject(lab, prepare(), name, n, "signal=KILL");
            eprintln!("{name} {n}: {effect:?}");
            verify(&format!("{name} {n}"));
            if effect == Effect::NotReached {
                break;
            }
            killed += 1;
            assert!(n < 200, "{name} is called without end");
        }
    }
    killed
}
