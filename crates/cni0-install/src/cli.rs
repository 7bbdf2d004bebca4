//! The command line: its parser and its help.

use std::ffi::OsString;
use std::path::PathBuf;

/// The directory in which most runtimes look for plugins.
const PREFIX: &str = "/opt/cni/bin";

pub(crate) const HELP: &str = "\
usage: cni0-install install [--prefix DIR] [--from DIR] [--conf DIR]
       cni0-install uninstall [--prefix DIR]
       cni0-install wait

commands:
  install    installs the plugins and cnitool. Files of the same names are kept
             in DIR/.cni0; all other files stay. Each program is tested before
             the first one is replaced, and each is replaced atomically.
             Installing again upgrades.
  uninstall  removes the installed files, and restores those that they replaced.
             A file that was modified since stays.
  wait       does nothing until SIGTERM: for the main container of a pod

options:
  --prefix DIR   the directory of the runtime's plugins (/opt/cni/bin)
  --from DIR     the directory of the programs to install (that of cni0-install)
  --conf DIR     also writes a first network, 10-cni0.conflist, to this
                 directory, unless a network is configured there
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
    Wait,
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
    let (mut prefix, mut from, mut conf) = (None, None, None);
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(OsString::from(value))),
            _ => (&*text, None),
        };
        let option = match name {
            "-h" | "--help" => return Ok(Command::Help),
            "-V" | "--version" => return Ok(Command::Version),
            "--prefix" => &mut prefix,
            "--from" => &mut from,
            "--conf" => &mut conf,
            _ if name.starts_with('-') => return Err(format!("unknown option {name} (see --help)")),
            _ => {
                if let Some(first) = command.replace(text.clone().into_owned()) {
                    return Err(format!("one command, not two: {first:?} and {text:?} (see --help)"));
                }
                continue;
            }
        };
        let value = value.or_else(|| args.next()).ok_or_else(|| format!("{name} needs a directory"))?;
        if option.replace(directory(name, value)?).is_some() {
            return Err(format!("{name} is given twice"));
        }
    }
    let command = command.ok_or("no command: write install, uninstall or wait (see --help)")?;
    let refuse = |options: &[(&Option<PathBuf>, &str)]| match options.iter().find(|(value, _)| value.is_some()) {
        Some((_, name)) => Err(format!("{command} has no option {name} (see --help)")),
        None => Ok(()),
    };
    match command.as_str() {
        "install" => Ok(Command::Install(Options { prefix: prefix.unwrap_or_else(|| PREFIX.into()), from, conf })),
        "uninstall" => {
            refuse(&[(&from, "--from"), (&conf, "--conf")])?;
            Ok(Command::Uninstall { prefix: prefix.unwrap_or_else(|| PREFIX.into()) })
        }
        "wait" => {
            refuse(&[(&prefix, "--prefix"), (&from, "--from"), (&conf, "--conf")])?;
            Ok(Command::Wait)
        }
        other => Err(format!("unknown command {other:?}; the commands are install, uninstall and wait (see --help)")),
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
            ("install --prefix", "--prefix needs a directory"),
            ("install --prefix=", "--prefix: the directory is empty"),
            ("install --prefix /a --prefix /b", "--prefix is given twice"),
            ("uninstall --conf /x", "uninstall has no option --conf"),
            ("wait --prefix /x", "wait has no option --prefix"),
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
