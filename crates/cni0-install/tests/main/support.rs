//! A host with a directory of plugins, and a directory of programs to install.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use testing::{Lab, Outcome, Process, program_path, write_script};

/// Answers VERSION, as every plugin does.
const ANSWER: &str = r#"echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}'"#;

/// The programs that are installed.
pub(crate) const NAMES: [&str; 3] = ["bridge", "cnitool", "loopback"];

pub(crate) struct Host {
    pub(crate) lab: Lab,
}

impl Host {
    /// Creates a host with the plugins `bridge` and `vlan` of another implementation.
    pub(crate) fn new() -> Host {
        let host = Host { lab: Lab::without_plugins() };
        fs::create_dir(host.payload()).unwrap();
        host.build("1");
        host.reset();
        host
    }

    /// Writes the programs of a version.
    pub(crate) fn build(&self, version: &str) {
        for name in NAMES {
            write_script(&self.payload().join(name), &program(name, version));
        }
    }

    /// Gives the directory its first content.
    pub(crate) fn reset(&self) {
        let _ = fs::remove_dir_all(self.dir());
        fs::create_dir_all(self.dir()).unwrap();
        for name in ["bridge", "sbr"] {
            write_script(&self.dir().join(name), &program(name, "other"));
        }
    }

    pub(crate) fn payload(&self) -> PathBuf {
        self.lab.dir().join("payload")
    }

    /// The directory of plugins, in memory: hundreds of installations are tested, and each is written to disk.
    pub(crate) fn dir(&self) -> PathBuf {
        Path::new("/run/opt/cni/bin").to_owned()
    }

    /// The directory of networks.
    pub(crate) fn net_d(&self) -> PathBuf {
        self.lab.dir().join("etc/cni/net.d")
    }

    pub(crate) fn installing(&self) -> Process {
        command("install", &self.dir()).arg("--from").arg(self.payload())
    }

    pub(crate) fn uninstalling(&self) -> Process {
        command("uninstall", &self.dir())
    }

    #[track_caller]
    pub(crate) fn install(&self) -> String {
        success(&self.installing().run())
    }

    #[track_caller]
    pub(crate) fn uninstall(&self) -> String {
        success(&self.uninstalling().run())
    }

    /// Returns every file of the directory with its inode, and its length or target.
    pub(crate) fn state(&self) -> Vec<(PathBuf, u64, String)> {
        let mut found = Vec::new();
        collect(&self.dir(), &mut found);
        found.sort();
        found
    }

    /// Asserts that this version is installed beside the other plugin.
    #[track_caller]
    pub(crate) fn has_version(&self, version: &str) {
        for name in NAMES {
            self.is_version(name, version);
        }
        self.is_version("sbr", "other");
    }

    #[track_caller]
    pub(crate) fn is_version(&self, name: &str, version: &str) {
        let content = fs::read_to_string(self.dir().join(name)).unwrap();
        assert_eq!(content, format!("#!/bin/sh\n{}\n", program(name, version)), "{name}");
    }
}

/// Returns the text of a program.
pub(crate) fn program(name: &str, version: &str) -> String {
    format!("{ANSWER} # {name} {version}")
}

pub(crate) fn command(command: &str, prefix: &Path) -> Process {
    Process::new(program_path("cni0-install")).arg(command).arg("--prefix").arg(prefix)
}

#[track_caller]
pub(crate) fn success(outcome: &Outcome) -> String {
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(0), ""), "{}", outcome.stderr);
    outcome.stderr.clone()
}

/// Asserts that a command failed with one line, and returns it.
#[track_caller]
pub(crate) fn failure(outcome: &Outcome) -> String {
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(1), ""), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    outcome.stderr.strip_prefix("cni0-install: ").unwrap().to_owned()
}

fn collect(dir: &Path, found: &mut Vec<(PathBuf, u64, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let inode = fs::symlink_metadata(&path).unwrap();
        if inode.is_dir() {
            collect(&path, found);
            found.push((path, 0, String::new()));
        } else if inode.is_symlink() {
            let target = fs::read_link(&path).unwrap().display().to_string();
            found.push((path, inode.ino(), target));
        } else {
            found.push((path, inode.ino(), inode.len().to_string()));
        }
    }
}
