//! Tests that a program works on this machine, before it replaces another one.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use linux::{Context, Deadline, Error, Kind, Result, child};
use serde_json::Value;

/// How long a program may take, on a machine that reads it from a slow disk.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The programs that are not plugins of CNI.
const TOOLS: [&str; 2] = ["cnitool", "cni0-netavark"];

/// Fails unless a plugin answers VERSION, and each of the tools prints its version.
pub(crate) fn answers(name: &str, path: &Path) -> Result<()> {
    let what = || format!("run {path:?}");
    let mut command = Command::new(path);
    command.env_clear();
    let is_tool = TOOLS.contains(&name);
    if is_tool {
        command.arg("--version")
    } else {
        command.env("CNI_COMMAND", "VERSION")
    };
    let child = child::start(&mut command, path).context(what).map_err(|error| error.details(FOREIGN_HINT))?;
    let (stderr, outcome) = child::run_to_end(child, &[], Deadline::after(TIMEOUT));
    let (status, stdout) = outcome.context(what)?;
    if !status.success() {
        let stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
        return Err(Error::new(Kind::Program, format!("it failed: {status}")).context(what()).details(stderr));
    }
    if !is_tool && !lists_versions(&stdout) {
        let error = Error::new(Kind::Program, "it does not answer VERSION as a CNI plugin does").context(what());
        return Err(error.details("remove the file from the directory of --from"));
    }
    Ok(())
}

/// The remedy for a program that the kernel cannot execute.
const FOREIGN_HINT: &str = "install the programs for this architecture, on a file system that is not mounted noexec";

fn lists_versions(answer: &[u8]) -> bool {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    answer.get("supportedVersions").and_then(Value::as_array).is_some_and(|versions| !versions.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_list_of_versions_is_an_answer() {
        assert!(lists_versions(br#"{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}"#));
        for answer in ["", "{}", "[]", r#"{"supportedVersions": []}"#, r#"{"supportedVersions": "1.0.0"}"#] {
            assert!(!lists_versions(answer.as_bytes()), "{answer}");
        }
    }
}
