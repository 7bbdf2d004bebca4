//! A scripted plugin that other plugins delegate to, such as an IPAM plugin: it records its calls, and answers as the
//! test wants.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Lab;
use crate::config::with;

/// A shell script that stores the environment and the input of each call.
#[derive(Debug)]
pub struct Scripted {
    dir: PathBuf,
}

impl Scripted {
    /// The name of the plugin.
    pub const NAME: &'static str = "scripted";
    /// The error code of [`Scripted::fail`].
    pub const CODE: u32 = 123;

    /// Returns the scripted plugin of this host, and installs it before the first use.
    pub fn of(lab: &Lab) -> Scripted {
        Scripted::install_as(lab, Scripted::NAME)
    }

    /// Installs the script as the plugin `name` too, over any other. It shares calls and answers with [`Scripted::of`].
    pub fn install_as(lab: &Lab, name: &str) -> Scripted {
        let dir = lab.dir().join("scripted");
        let installed = dir.join(format!("installed.{name}"));
        if !installed.exists() {
            fs::create_dir_all(&dir).unwrap();
            let body = format!(
                r#"cd {}
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" >>calls
env >$CNI_COMMAND.env
cat >$CNI_COMMAND.stdin
[ $CNI_COMMAND != DEL ] || nsenter --net="$CNI_NETNS" ip -o link >DEL.links 2>/dev/null || true
[ ! -e $CNI_COMMAND.script ] || . ./$CNI_COMMAND.script
[ $CNI_COMMAND != ADD ] || cat "answer.$CNI_CONTAINERID" 2>/dev/null || cat answer"#,
                dir.display()
            );
            lab.script(name, &body);
            fs::write(installed, "").unwrap();
        }
        Scripted { dir }
    }

    /// Sets the result of ADD for all containers without one of their own. Its version is 1.1.0 unless it has one.
    pub fn answer(&self, result: Value) {
        self.write("answer", result);
    }

    /// Sets the result of ADD for one container.
    pub fn answer_for(&self, id: &str, result: Value) {
        self.write(&format!("answer.{id}"), result);
    }

    fn write(&self, name: &str, result: Value) {
        fs::write(self.dir.join(name), with(json!({ "cniVersion": "1.1.0" }), result).to_string()).unwrap();
    }

    /// Makes `command` run a shell script from now on, after it was recorded.
    pub fn on(&self, command: &str, script: &str) {
        fs::write(self.script(command), script).unwrap();
    }

    /// Makes `command` fail from now on, with [`Scripted::CODE`] and the message `scripted failure`.
    pub fn fail(&self, command: &str) {
        self.fail_with(command, &json!({ "code": Scripted::CODE, "msg": "scripted failure" }));
    }

    /// Makes `command` fail with an error object from now on.
    pub fn fail_with(&self, command: &str, error: &Value) {
        self.on(command, &format!("echo '{error}'; exit 1"));
    }

    /// Makes `command` succeed again.
    pub fn recover(&self, command: &str) {
        fs::remove_file(self.script(command)).unwrap();
    }

    fn script(&self, command: &str) -> PathBuf {
        self.dir.join(format!("{command}.script"))
    }

    /// Returns the calls so far, such as `ADD c1 eth0`.
    pub fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        calls.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&self) {
        fs::remove_file(self.dir.join("calls")).unwrap();
    }

    /// Returns the calls for one container, without those for others.
    pub fn calls_for(&self, id: &str) -> Vec<String> {
        let middle = format!(" {id} ");
        self.calls().into_iter().filter(|call| call.contains(&middle)).collect()
    }

    /// Returns the input of the last call of `command`.
    #[track_caller]
    pub fn stdin(&self, command: &str) -> String {
        read(&self.dir.join(format!("{command}.stdin")))
    }

    /// Returns the input of the last call of `command` as JSON.
    #[track_caller]
    pub fn config(&self, command: &str) -> Value {
        serde_json::from_str(&self.stdin(command)).unwrap()
    }

    /// Returns the environment of the last call of `command`.
    #[track_caller]
    pub fn env(&self, command: &str) -> Vec<String> {
        read(&self.dir.join(format!("{command}.env"))).lines().map(str::to_owned).collect()
    }

    /// Returns the links of the container at the last DEL. An address must not be released while an interface has it.
    #[track_caller]
    pub fn links_at_release(&self) -> String {
        read(&self.dir.join("DEL.links"))
    }
}

#[track_caller]
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("read {path:?}: {error}"))
}
