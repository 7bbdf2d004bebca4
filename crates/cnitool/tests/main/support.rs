//! A host with cnitool, a directory of configurations, and a plugin that records its calls.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use testing::{Lab, Outcome, Process, REFERENCE, program_path};

/// All commands, in the order of the help.
pub(crate) const COMMANDS: [&str; 19] = [
    "add",
    "del",
    "check",
    "gc",
    "status",
    "init",
    "demo",
    "networks",
    "leases",
    "show",
    "prune",
    "repair",
    "doctor",
    "test",
    "metrics",
    "validate",
    "schema",
    "man",
    "completion",
];

/// Writes each call to `../log` and its configuration to `../NAME.COMMAND`. Prints its `prevResult`, or a result with
/// one address. Fails if the file `../fail.NAME.COMMAND` exists. Answers VERSION, and prints nothing without a command.
const RECORDER: &str = r#"case $CNI_COMMAND in
"") exit ;;
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]}'; exit ;;
esac
name=$(basename "$0") dir=$(dirname "$0")/..
cat >"$dir/$name.$CNI_COMMAND"
echo "$CNI_COMMAND $name $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS" >>"$dir/log"
if [ -e "$dir/fail.$name.$CNI_COMMAND" ]; then
    printf '{"code": 7, "msg": "asked\\nto fail", "details": "by a test"}'
    exit 1
fi
[ "$CNI_COMMAND" != ADD ] || jq '.prevResult // {cniVersion, ips: [{address: "10.9.0.2/24"}]}' "$dir/$name.ADD""#;

pub(crate) struct Host {
    pub(crate) lab: Lab,
}

impl Host {
    pub(crate) fn new() -> Host {
        let host = Host { lab: Lab::new() };
        fs::create_dir(host.conf_dir()).unwrap();
        host
    }

    pub(crate) fn conf_dir(&self) -> PathBuf {
        self.lab.dir().join("net.d")
    }

    /// Writes a file in the directory of configurations.
    pub(crate) fn configure(&self, name: &str, text: &str) {
        fs::write(self.conf_dir().join(name), text).unwrap();
    }

    /// Installs the recorder under this name.
    pub(crate) fn recorder(&self, name: &str) {
        self.lab.script(name, RECORDER);
    }

    /// Installs one of the reference's plugins, in place of ours if there is one.
    pub(crate) fn reference(&self, name: &str) {
        let path = self.lab.bin().join(name);
        if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        std::os::unix::fs::symlink(PathBuf::from(REFERENCE).join(name), path).unwrap();
    }

    /// Makes a recorder fail.
    pub(crate) fn fail(&self, name: &str, command: &str) {
        fs::write(self.lab.dir().join(format!("fail.{name}.{command}")), "").unwrap();
    }

    /// Returns the calls of all recorders: `COMMAND NAME CONTAINER NETNS INTERFACE ARGS`.
    pub(crate) fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.lab.dir().join("log")).unwrap_or_default();
        text.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Returns the first two words of each call.
    pub(crate) fn calls(&self) -> Vec<String> {
        let words = |line: &String| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        self.log().iter().map(words).collect()
    }

    /// Returns the configuration of a recorder's last call.
    pub(crate) fn seen(&self, name: &str, command: &str) -> Value {
        serde_json::from_slice(&fs::read(self.lab.dir().join(format!("{name}.{command}"))).unwrap()).unwrap()
    }

    /// Returns a call of cnitool with these words.
    pub(crate) fn call(&self, words: &str) -> Process {
        let calling = Process::new(program_path("cnitool")).env("NETCONFPATH", self.conf_dir());
        words.split(' ').fold(calling.env("CNI_PATH", self.lab.bin()), Process::arg)
    }

    pub(crate) fn run(&self, words: &str) -> Outcome {
        self.call(words).run()
    }

    /// Returns the names in the cache.
    pub(crate) fn cached(&self) -> Vec<String> {
        let Ok(dir) = fs::read_dir("/var/lib/cni/results") else { return Vec::new() };
        let mut names: Vec<String> = dir.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Returns what a call printed on stderr, without the lines which report that it is waiting, as on a busy machine.
pub(crate) fn messages(outcome: &Outcome) -> String {
    let lines = outcome.stderr.split_inclusive('\n');
    lines.filter(|line| !line.starts_with("cnitool: waiting for ")).collect()
}

/// Asserts that a call failed with one line, exit code 1 and nothing on stdout. Returns the line.
#[track_caller]
pub(crate) fn failure(outcome: &Outcome) -> String {
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    assert_eq!(outcome.stdout, "");
    let text = messages(outcome);
    let line = text.strip_suffix('\n').unwrap();
    assert!(!line.contains('\n'), "one line: {line}");
    line.strip_prefix("cnitool: ").unwrap().to_owned()
}
