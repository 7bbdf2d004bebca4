//! Many calls at the same time.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use linux::Deadline;
use linux::child::run_to_end;
use nix::fcntl::OFlag;

use crate::{Lab, Outcome, PATH, Process, timeout};

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
    let go = lab.dir().join("go");
    fs::write(&go, "").unwrap();
    let script = format!("while [ -e {} ]; do {command}; done", go.display());
    let mut repeat = Command::new("sh");
    repeat.args(["-c", &script]).env_clear().env("PATH", PATH);
    let repeat = repeat.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    test();
    fs::remove_file(go).unwrap();
    // The loop ends before the lab's directory is removed.
    let (_, outcome) = run_to_end(repeat, b"", Deadline::after(timeout()));
    outcome.unwrap_or_else(|error| panic!("wait for the end of the other program: {error:?}"));
}

/// Runs a call that stops after its `n`th system call `name`, and continues when `meanwhile` has ended. Returns `None`
/// if the call makes fewer such system calls.
pub fn stopped_after(lab: &Lab, call: Process, name: &str, n: usize, meanwhile: impl FnOnce()) -> Option<Outcome> {
    let (traced, inject) = (format!("trace={name}"), format!("inject={name}:signal=STOP:when={n}"));
    let mut meanwhile = Some(meanwhile);
    // Child processes stop as well.
    let (outcome, _) = at_each_stop(lab, call, &["-e", &traced, "-e", &inject], |_| {
        if let Some(meanwhile) = meanwhile.take() {
            meanwhile();
        }
    });
    meanwhile.is_none().then_some(outcome)
}

/// Runs a call under `strace -f OPTIONS`, which stop its processes (`inject=…:signal=STOP`). At each stop, `at_stop`
/// gets the log so far; then the process continues. Returns the outcome and the whole log.
pub fn at_each_stop(lab: &Lab, call: Process, options: &[&str], mut at_stop: impl FnMut(&str)) -> (Outcome, String) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let path = lab.dir().join(format!("stops.{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    lab.sh(&format!("mkfifo {}", path.display()));
    // Otherwise, the call would wait for strace to open the pipe, even if strace cannot start.
    let mut pipe = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path).unwrap();
    let call = call.strace(&[&["-qq", "-f", "-o", path.to_str().unwrap()], options].concat());
    let (mut log, mut line_start) = (String::new(), 0);
    let outcome = thread::scope(|scope| {
        let call = scope.spawn(move || call.run());
        // The pipe ends with strace.
        while read_more(&mut pipe, &mut log) {
            while let Some(length) = log[line_start..].find('\n') {
                let line = &log[line_start..line_start + length];
                line_start += length + 1;
                if let Some((process, _)) =
                    line.split_once(' ').filter(|_| line.ends_with("--- stopped by SIGSTOP ---"))
                {
                    at_stop(&log[..line_start]);
                    lab.sh(&format!("kill -CONT {process}"));
                }
            }
        }
        call.join().unwrap()
    });
    fs::remove_file(path).unwrap();
    (outcome, log)
}

/// Waits for more of the log; `false` at its end.
fn read_more(pipe: &mut File, log: &mut String) -> bool {
    let deadline = Deadline::after(timeout());
    let is_readable = deadline.readable(pipe.as_fd()).unwrap();
    assert!(is_readable, "wait for the call to stop, or to end: not seen within {:?}", deadline.length());
    let mut buffer = [0; 4096];
    let read = pipe.read(&mut buffer).unwrap();
    log.push_str(&String::from_utf8_lossy(&buffer[..read]));
    read > 0
}
