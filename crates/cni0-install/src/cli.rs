//! The command line: its parser and its help.

use std::ffi::OsString;
use std::path::PathBuf;

/// The directory in which most runtimes look for plugins.
const PREFIX: &str = "/opt/cni/bin";
/// The directory of networks.
const NET_D: &str = "/etc/cni/net.d";

pub(crate) const HELP: &str = "\
usage: cni0-install install [--prefix DIR] [--from DIR] [--conf DIR]
       cni0-install uninstall [--prefix DIR]
       cni0-install rollback [--prefix DIR] [--allow-empty]
       cni0-install network --from FILE [--ranges DIR --node NAME] [--conf DIR]
       cni0-install remove-network [--conf DIR]
       cni0-install wait

commands:
  install    installs the plugins, cnitool and cni0-netavark. Files of the same
             names are kept in DIR/.cni0; all other files stay. Each program is
             tested before the first one is replaced, and each is replaced
             atomically. Installing again upgrades.
  uninstall  removes the installed files, and restores those that they replaced.
             A file that was modified since stays.
  rollback   as uninstall, for a node with running containers: also removes what
             the restored plugins do not know, such as published ports, when all
             running calls have ended. Containers that need these rules must be
             created again. Fails if the directory would have no plugins.
  network    writes FILE to 10-cni0.conflist, atomically, unless another network
             is configured. The text $RANGES in FILE stands for the ranges of
             the node: the file NAME of the directory of --ranges has them, with
             commas between. Writes nothing if the network is there already.
  remove-network
             removes what network has written, unless it was modified since
  wait       does nothing until SIGTERM: for the main container of a pod

options:
  --prefix DIR   the directory of the runtime's plugins (/opt/cni/bin)
  --from DIR     the directory of the programs to install (that of cni0-install)
  --conf DIR     install: also writes a first network, 10-cni0.conflist, to this
                 directory, unless a network is configured there
                 network: the directory of networks (/etc/cni/net.d)
  --allow-empty  rollback: also if no plugins are left
  --from FILE, --ranges DIR, --node NAME
                 network: see above
  -h, --help     prints this text
  -V, --version  prints the version

A process that was killed leaves no partial file. Run the command again, or
uninstall. A copy of this program is kept in DIR/.cni0 for that purpose.

exit codes:
  0  success
  1  failure: one line on stderr gives the reason
  2  invalid command line
";

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Version,
    Install(Options),
    Uninstall { prefix: PathBuf },
    Rollback { prefix: PathBuf, allow_empty: bool },
    Network { source: Source, conf: PathBuf },
    RemoveNetwork { conf: PathBuf },
    Wait,
}

/// Where the network of a cluster comes from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) file: PathBuf,
    /// The directory with a file for each node.
    pub(crate) ranges: Option<PathBuf>,
    pub(crate) node: Option<String>,
}

/// The options of `install`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) prefix: PathBuf,
    /// The directory of this program if none.
    pub(crate) from: Option<PathBuf>,
    /// The directory for the first network.
    pub(crate) conf: Option<PathBuf>,
}

/// Parses the command line. The error is one line for the user.
pub(crate) fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let mut command = None;
    let (mut prefix, mut from, mut conf, mut ranges, mut node) = (None, None, None, None, None);
    let mut allow_empty = false;
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(OsString::from(value))),
            _ => (&*text, None),
        };
        let option = match name {
            "-h" | "--help" => return Ok(Command::Help),
            "-V" | "--version" => return Ok(Command::Version),
            "--allow-empty" if value.is_none() => {
                allow_empty = true;
                continue;
            }
            "--prefix" => &mut prefix,
            "--from" => &mut from,
            "--conf" => &mut conf,
            "--ranges" => &mut ranges,
            "--node" => &mut node,
            _ if name.starts_with('-') => return Err(format!("unknown option {name} (see --help)")),
            _ => {
                if let Some(first) = command.replace(text.clone().into_owned()) {
                    return Err(format!("one command, not two: {first:?} and {text:?} (see --help)"));
                }
                continue;
            }
        };
        let value = value.or_else(|| args.next()).ok_or_else(|| format!("{name} needs a value"))?;
        let value = if name == "--node" { PathBuf::from(node_name(&value)?) } else { directory(name, value)? };
        if option.replace(value).is_some() {
            return Err(format!("{name} is given twice"));
        }
    }
    let command = command.ok_or("no command (see --help)")?;
    let refuse = |options: &[(&Option<PathBuf>, &str)]| match options.iter().find(|(value, _)| value.is_some()) {
        Some((_, name)) => Err(format!("{command} has no option {name} (see --help)")),
        None => Ok(()),
    };
    let (of_source, of_programs) = ([(&ranges, "--ranges"), (&node, "--node")], [(&prefix, "--prefix")]);
    if allow_empty && command != "rollback" {
        return Err(format!("{command} has no option --allow-empty (see --help)"));
    }
    let place = |value: Option<PathBuf>, default: &str| value.unwrap_or_else(|| default.into());
    match command.as_str() {
        "install" => {
            refuse(&of_source)?;
            Ok(Command::Install(Options { prefix: place(prefix, PREFIX), from, conf }))
        }
        "uninstall" => {
            refuse(&[[(&from, "--from"), (&conf, "--conf")], of_source].concat())?;
            Ok(Command::Uninstall { prefix: place(prefix, PREFIX) })
        }
        "rollback" => {
            refuse(&[[(&from, "--from"), (&conf, "--conf")], of_source].concat())?;
            Ok(Command::Rollback { prefix: place(prefix, PREFIX), allow_empty })
        }
        "network" => {
            refuse(&of_programs)?;
            let file = from.ok_or("network needs --from FILE (see --help)")?;
            let node = node.map(|node| node.to_string_lossy().into_owned());
            Ok(Command::Network { source: Source { file, ranges, node }, conf: place(conf, NET_D) })
        }
        "remove-network" => {
            refuse(&[&of_programs[..], &[(&from, "--from")], &of_source].concat())?;
            Ok(Command::RemoveNetwork { conf: place(conf, NET_D) })
        }
        "wait" => {
            refuse(&[&of_programs[..], &[(&from, "--from"), (&conf, "--conf")], &of_source].concat())?;
            Ok(Command::Wait)
        }
        other => Err(format!("unknown command {other:?} (see --help)")),
    }
}

/// Validates the name of a node, which is the name of a file.
fn node_name(value: &std::ffi::OsStr) -> Result<String, String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&c);
    match value.to_str() {
        Some(name) if !name.is_empty() && !name.starts_with('.') && name.chars().all(is_valid) => Ok(name.to_owned()),
        _ => Err(format!("--node {value:?}: it is not the name of a node")),
    }
}

/// Returns the absolute path of an option's value.
fn directory(option: &str, value: OsString) -> Result<PathBuf, String> {
    // The record has one path per line.
    match value.to_str() {
        Some("") => Err(format!("{option}: the directory is empty")),
        Some(text) if !text.contains(char::is_control) => {
            std::path::absolute(text).map_err(|error| format!("{option} {text:?}: {error}"))
        }
        _ => Err(format!("{option} {value:?}: the path has characters that are not printable")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options_are_read_in_any_order() {
        let options = |prefix: &str, from: Option<&str>| Options {
            prefix: prefix.into(),
            from: from.map(Into::into),
            conf: None,
        };
        assert_eq!(parsed("install"), Ok(Command::Install(options("/opt/cni/bin", None))));
        assert_eq!(parsed("--from=/f install --prefix /p"), Ok(Command::Install(options("/p", Some("/f")))));
        assert_eq!(parsed("uninstall --prefix=/p"), Ok(Command::Uninstall { prefix: "/p".into() }));
        assert_eq!(parsed("wait"), Ok(Command::Wait));
        assert_eq!(parsed("wait --help"), Ok(Command::Help));
    }

    #[test]
    fn a_mistake_is_named() {
        for (line, want) in [
            ("", "no command"),
            ("fly", "unknown command \"fly\""),
            ("install uninstall", "one command, not two"),
            ("install --fly", "unknown option --fly"),
            ("install --prefix", "--prefix needs a value"),
            ("install --prefix=", "--prefix: the directory is empty"),
            ("install --prefix /a --prefix /b", "--prefix is given twice"),
            ("uninstall --conf /x", "uninstall has no option --conf"),
            ("wait --prefix /x", "wait has no option --prefix"),
            ("uninstall --allow-empty", "uninstall has no option --allow-empty"),
            ("network", "network needs --from FILE"),
            ("network --from /f --prefix /x", "network has no option --prefix"),
            ("network --from /f --node ../x", "--node \"../x\": it is not the name of a node"),
            ("remove-network --from /f", "remove-network has no option --from"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.starts_with(want), "{line}: {error}");
        }
        let newline = ["install", "--conf", "/a\nb"].map(OsString::from);
        assert!(parse(newline.into_iter()).unwrap_err().contains("not printable"));
    }

    #[test]
    fn the_help_fits_a_terminal() {
        assert!(HELP.lines().all(|line| line.len() <= 80));
    }
}
