//! A delegate that records its calls.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use testing::Lab;

/// The name of the delegate.
pub(crate) const NAME: &str = "recorder";

/// A script that stores the environment and the input of each call, and answers as the test wants.
pub(crate) struct Recorder {
    dir: PathBuf,
}

impl Recorder {
    pub(crate) fn install(lab: &Lab) -> Recorder {
        Recorder::install_as(lab, NAME)
    }

    /// Installs the script as the plugin `name`, over any other.
    pub(crate) fn install_as(lab: &Lab, name: &str) -> Recorder {
        let dir = lab.dir().join("recorded");
        fs::create_dir_all(&dir).unwrap();
        let body = format!(
            "cd {}
             echo \"$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME\" >>calls
             env >$CNI_COMMAND.env
             cat >$CNI_COMMAND.stdin
             echo 'for the log' >&2
             if [ -e $CNI_COMMAND.script ]; then . ./$CNI_COMMAND.script; fi
             if [ $CNI_COMMAND = ADD ]; then cat answer; fi",
            dir.display()
        );
        lab.script(name, &body);
        let recorder = Recorder { dir };
        recorder.answer(&json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.1.17.9/24" }] }));
        recorder
    }

    /// Sets the result of ADD.
    pub(crate) fn answer(&self, result: &Value) {
        fs::write(self.dir.join("answer"), result.to_string()).unwrap();
    }

    /// Makes `command` run a shell script from now on, after it was recorded.
    pub(crate) fn on(&self, command: &str, script: &str) {
        fs::write(self.dir.join(format!("{command}.script")), script).unwrap();
    }

    /// Makes `command` fail with an error object from now on.
    pub(crate) fn fail(&self, command: &str, error: &Value) {
        self.on(command, &format!("echo '{error}'; exit 1"));
    }

    /// Makes `command` succeed again.
    pub(crate) fn recover(&self, command: &str) {
        fs::remove_file(self.dir.join(format!("{command}.script"))).unwrap();
    }

    /// Returns the calls so far, such as `ADD c1 eth0`.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        calls.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Returns the input of the last call of `command`.
    #[track_caller]
    pub(crate) fn stdin(&self, command: &str) -> String {
        fs::read_to_string(self.dir.join(format!("{command}.stdin"))).unwrap()
    }

    /// Returns the input of the last call of `command` as JSON.
    #[track_caller]
    pub(crate) fn config(&self, command: &str) -> Value {
        serde_json::from_str(&self.stdin(command)).unwrap()
    }

    /// Returns the environment of the last call of `command`.
    #[track_caller]
    pub(crate) fn env(&self, command: &str) -> Vec<String> {
        let env = fs::read_to_string(self.dir.join(format!("{command}.env"))).unwrap();
        env.lines().map(str::to_owned).collect()
    }
}
