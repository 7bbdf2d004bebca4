//! Many calls at the same time.

use std::fs;
use std::sync::Barrier;
use std::thread;

use crate::{Lab, Outcome, Process, wait_until};

/// Starts all calls at the same time, and returns their outcomes in that order.
pub fn run(calls: Vec<Process>) -> Vec<Outcome> {
    let barrier = &Barrier::new(calls.len());
    thread::scope(|scope| {
        let start = |call: Process| {
            scope.spawn(move || {
                barrier.wait();
                call.run()
            })
        };
        let running: Vec<_> = calls.into_iter().map(start).collect();
        running.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

/// Asserts that all calls succeeded with a result.
#[track_caller]
pub fn assert_added(outcomes: &[Outcome]) {
    for outcome in outcomes {
        assert!(outcome.ok()["ips"].is_array(), "{}", outcome.stdout);
    }
}

/// Asserts that all calls succeeded and printed nothing.
#[track_caller]
pub fn assert_silent(outcomes: &[Outcome]) {
    outcomes.iter().for_each(Outcome::silent);
}

/// Repeats a shell command in the background while `test` runs, as another program on the same host does.
pub fn beside(lab: &Lab, command: &str, test: impl FnOnce()) {
    let dir = lab.dir().display();
    fs::write(lab.dir().join("go"), "").unwrap();
    lab.sh(&format!(
        "(while [ -e {dir}/go ]; do {command}; done) >/dev/null 2>&1 &
         echo $! >{dir}/pid"
    ));
    test();
    fs::remove_file(lab.dir().join("go")).unwrap();
    // The loop ends before the lab's directory is removed.
    wait_until("the end of the other program", || {
        lab.sh(&format!("kill -0 $(cat {dir}/pid) 2>/dev/null && echo yes || true")).is_empty()
    });
}

/// Runs a call that stops after its `n`th system call `name`, and continues when `meanwhile` has ended. Returns `None` if the
/// call makes fewer such system calls.
pub fn stopped_after(lab: &Lab, call: Process, name: &str, n: usize, meanwhile: impl FnOnce()) -> Option<Outcome> {
    let log = lab.dir().join(format!("stop.{name}.{n}"));
    let (traced, inject) = (format!("trace={name}"), format!("inject={name}:signal=STOP:when={n}"));
    let options = ["-qq", "-f", "-o", log.to_str().unwrap(), "-e", &traced, "-e", &inject];
    let call = call.strace(&options);
    // Child processes stop as well.
    let stopped = |n: usize| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        let line = log.lines().filter(|line| line.ends_with("--- stopped by SIGSTOP ---")).nth(n)?;
        Some(line.split(' ').next().unwrap().to_owned())
    };
    let outcome = thread::scope(|scope| {
        let call = scope.spawn(move || call.run());
        let mut meanwhile = Some(meanwhile);
        for n in 0.. {
            wait_until("the call to stop, or to end", || stopped(n).is_some() || call.is_finished());
            let Some(process) = stopped(n) else { break };
            if let Some(meanwhile) = meanwhile.take() {
                meanwhile();
            }
            lab.sh(&format!("kill -CONT {process}"));
        }
        let outcome = call.join().unwrap();
        meanwhile.is_none().then_some(outcome)
    });
    fs::remove_file(log).unwrap();
    outcome
}
