//! The subnet file, in which flanneld writes the networks of the cluster, the subnet of this node, and the MTU.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use cni::{Code, Error, Result};
use linux::Deadline;
use linux::ip::Cidr;

/// How long an ADD waits for a missing file. flanneld writes it a moment after the directory has been created.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The number of bytes that are read of the file at most. flanneld writes about 150.
const LIMIT: u64 = 64 << 10;

/// The keys, in the order in which they are reported as missing.
const KEYS: [&str; 6] = [
    "FLANNEL_NETWORK",
    "FLANNEL_IPV6_NETWORK",
    "FLANNEL_SUBNET",
    "FLANNEL_IPV6_SUBNET",
    "FLANNEL_MTU",
    "FLANNEL_IPMASQ",
];

/// What to look at if the file is missing or incomplete.
const HINT: &str = "check the flannel pod log for this node: flanneld writes the file when it has a subnet; if flannel is no \
                    longer installed, remove its configuration from /etc/cni/net.d";

/// The content of the subnet file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubnetFile {
    /// The networks of the cluster, those of FLANNEL_NETWORK first.
    pub(crate) networks: Vec<Cidr>,
    /// The subnets of this node, at most one from each key.
    pub(crate) subnets: Vec<Cidr>,
    pub(crate) mtu: u32,
    /// Whether flanneld masquerades what leaves the cluster.
    pub(crate) ip_masq: bool,
}

impl SubnetFile {
    /// Reads the file. A missing or incomplete file is a transient failure.
    pub(crate) fn read(path: &Path) -> Result<SubnetFile> {
        let text = read_text(path).map_err(|error| cannot_open(path, &error))?;
        SubnetFile::parse(path, &text)
    }

    /// Reads the file. Waits a moment if it does not exist although its directory does: flanneld is about to write it.
    pub(crate) fn read_or_wait(path: &Path) -> Result<SubnetFile> {
        let exists = |text: io::Result<String>| match text {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            text => text.map(Some),
        };
        let text = match exists(read_text(path)) {
            Ok(None) => Deadline::after(TIMEOUT).retry_on_change_in(directory(path), || exists(read_text(path))),
            text => text,
        };
        match text {
            Ok(Some(text)) => SubnetFile::parse(path, &text),
            Ok(None) => Err(cannot_open(path, &io::Error::from(ErrorKind::NotFound))),
            Err(error) => Err(cannot_open(path, &error)),
        }
    }

    /// Parses the lines `KEY=VALUE`. Unlike the reference, accepts quotes, blanks and `export`, as a shell does.
    /// Unknown keys are ignored, and of duplicate keys the last one counts.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<SubnetFile> {
        let mut lines = [const { None }; KEYS.len()];
        for (number, line) in (1..).zip(text.lines()) {
            let (name, value) = split(line);
            let Some((slot, key)) = lines.iter_mut().zip(KEYS).find(|(_, key)| *key == name) else { continue };
            let line = Line { path, number, key, value: value.unwrap_or_default() };
            if value.is_none() {
                return Err(line.invalid("there is no \"=\""));
            }
            *slot = Some(line);
        }
        let [network, network6, subnet, subnet6, mtu, ip_masq] = &lines;
        let (Some(mtu), Some(ip_masq), Some(_), Some(_)) =
            (mtu, ip_masq, network.as_ref().or(network6.as_ref()), subnet.as_ref().or(subnet6.as_ref()))
        else {
            return Err(incomplete(path, &lines));
        };
        let mut networks: Vec<Cidr> = Vec::new();
        for line in [network, network6].into_iter().flatten() {
            for one in line.value.split(',') {
                let one = line.cidr(one.trim())?;
                if !networks.contains(&one) {
                    networks.push(one);
                }
            }
        }
        let subnets = [subnet, subnet6].into_iter().flatten().map(|line| line.cidr(line.value));
        Ok(SubnetFile { networks, subnets: subnets.collect::<Result<_>>()?, mtu: mtu.mtu()?, ip_masq: ip_masq.flag()? })
    }

    /// Returns what is probably a mistake, but works for some setups.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let is_covered = |subnet: &Cidr| {
            self.networks.iter().any(|network| network.prefix() <= subnet.prefix() && network.contains(subnet.ip()))
        };
        let outside = self.subnets.iter().filter(|subnet| !is_covered(subnet));
        let networks: Vec<_> = self.networks.iter().map(ToString::to_string).collect();
        outside.map(|subnet| format!("subnet {subnet} is not in the cluster network {}", networks.join(", "))).collect()
    }
}

/// Returns the directory of a file.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    // Opening a named pipe must not wait for a writer.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Splits a line into its key and its value; `None` if there is no `=`.
fn split(line: &str) -> (&str, Option<&str>) {
    let (key, value) = match line.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (line, None),
    };
    let key = key.trim();
    let key = key.strip_prefix("export").filter(|rest| rest.starts_with([' ', '\t'])).map_or(key, str::trim);
    (key, value.map(|value| unquote(value.trim())))
}

/// Removes a pair of quotes.
fn unquote(value: &str) -> &str {
    let inner = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\'')).map_or(value, str::trim)
}

/// A line with one of the [`KEYS`].
struct Line<'a> {
    path: &'a Path,
    number: usize,
    key: &'static str,
    value: &'a str,
}

impl Line<'_> {
    /// Parses a network, and clears its host bits: flanneld writes the address of the gateway.
    fn cidr(&self, text: &str) -> Result<Cidr> {
        let cidr: Cidr = text.parse().map_err(|why| self.invalid(why))?;
        Ok(cidr.canonical().network())
    }

    fn mtu(&self) -> Result<u32> {
        // The number parser also accepts a sign.
        let number = Some(self.value).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = number.and_then(|text| text.parse().ok());
        number.ok_or_else(|| self.invalid(format!("{:?} is not a number from 0 to {}", self.value, u32::MAX)))
    }

    /// Unlike the reference, which reads every word other than `true` as false, even `True`.
    fn flag(&self) -> Result<bool> {
        self.value.parse().map_err(|_| self.invalid(format!("{:?} is neither true nor false", self.value)))
    }

    fn invalid(&self, why: impl Display) -> Error {
        let Line { path, number, key, .. } = self;
        load(Code::CONFIG, format!("{}: line {number}: {key}: {why}", path.display()))
            .details("flanneld writes the file: correct its configuration, or remove the file and restart flanneld")
    }
}

/// Creates an error about the file. Users search for the text after the first colon.
fn load(code: Code, why: String) -> Error {
    Error::new(code, format!("load the subnet file of flannel: {why}"))
}

fn cannot_open(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        // In the words of the reference, without the number that std appends.
        ErrorKind::NotFound => {
            load(Code::TRY_LATER, format!("open {}: no such file or directory", path.display())).details(HINT)
        }
        _ => load(Code::IO, format!("open {}: {error}", path.display())).details(HINT),
    }
}

fn incomplete(path: &Path, lines: &[Option<Line<'_>>; KEYS.len()]) -> Error {
    let [network, network6, subnet, subnet6, mtu, ip_masq] = lines.each_ref().map(Option::is_some);
    let (network, subnet) = (network || network6, subnet || subnet6);
    let present = [network, network, subnet, subnet, mtu, ip_masq];
    let missing: Vec<_> = KEYS.into_iter().zip(present).filter(|(_, present)| !present).map(|(key, _)| key).collect();
    load(Code::TRY_LATER, format!("{} is missing {}", path.display(), missing.join(", "))).details(HINT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &str = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\n";
    const V6: &str = "FLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\n";
    const REST: &str = "FLANNEL_MTU=1472\nFLANNEL_IPMASQ=true\n";

    fn parse(text: &str) -> Result<SubnetFile> {
        SubnetFile::parse(Path::new("/run/flannel/subnet.env"), text)
    }

    fn cidrs(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn files_of_flanneld_are_read() {
        for (text, networks, subnets) in [
            (format!("{V4}{REST}"), vec!["10.1.0.0/16"], vec!["10.1.17.0/24"]),
            (format!("{V6}{REST}"), vec!["fc00::/48"], vec!["fc00::/64"]),
            (format!("{V4}{V6}{REST}"), vec!["10.1.0.0/16", "fc00::/48"], vec!["10.1.17.0/24", "fc00::/64"]),
            (format!("{V6}{V4}{REST}"), vec!["10.1.0.0/16", "fc00::/48"], vec!["10.1.17.0/24", "fc00::/64"]),
        ] {
            let (networks, subnets) = (cidrs(&networks), cidrs(&subnets));
            assert_eq!(parse(&text).unwrap(), SubnetFile { networks, subnets, mtu: 1472, ip_masq: true }, "{text}");
        }
    }

    #[test]
    fn a_list_of_networks_loses_duplicates() {
        let text =
            format!("FLANNEL_NETWORK=10.1.0.0/16, 192.168.0.0/16,10.1.2.3/16\nFLANNEL_SUBNET=10.1.17.1/24\n{REST}");
        assert_eq!(parse(&text).unwrap().networks, cidrs(&["10.1.0.0/16", "192.168.0.0/16"]));
    }

    #[test]
    fn quotes_blanks_export_and_comments_are_understood() {
        let plain = parse(&format!("{V4}{REST}")).unwrap();
        for text in [
            format!("{V4}{REST}").replace('\n', "\r\n"),
            format!("{V4}{REST}").trim_end().to_owned(),
            format!("# written by hand\n\nfoo=bar\nnonsense\n{V4}{REST}"),
            "export FLANNEL_NETWORK=\"10.1.0.0/16\"\n FLANNEL_SUBNET = '10.1.17.1/24' \nexport\tFLANNEL_MTU=\"1472\"\n\
             FLANNEL_IPMASQ=\"true\"\n"
                .to_owned(),
            format!("FLANNEL_MTU=9000\nFLANNEL_IPMASQ=false\n{V4}{REST}"),
        ] {
            assert_eq!(parse(&text).unwrap(), plain, "{text}");
        }
    }

    #[test]
    fn an_incomplete_file_is_a_transient_failure() {
        for (text, missing) in [
            (
                "foo=bar".to_owned(),
                "missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, \
                 FLANNEL_IPMASQ",
            ),
            (V4.to_owned(), "missing FLANNEL_MTU, FLANNEL_IPMASQ"),
            (REST.to_owned(), "missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET"),
            (format!("FLANNEL_IPV6_NETWORK=fc00::/48\n{REST}"), "missing FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET"),
        ] {
            let error = parse(&text).unwrap_err();
            assert_eq!(error.code(), Code::TRY_LATER, "{text}");
            assert!(error.to_string().ends_with(missing), "{error}");
        }
    }

    #[test]
    fn an_invalid_line_is_named() {
        for (line, why) in [
            ("FLANNEL_NETWORK=10.1.0.0/33", "invalid CIDR address: \"10.1.0.0/33\""),
            ("FLANNEL_NETWORK=10.1.0.0/16,", "invalid CIDR address: \"\""),
            ("FLANNEL_SUBNET=", "invalid CIDR address: \"\""),
            ("FLANNEL_SUBNET=10.1.0.0/16,10.2.0.0/16", "invalid CIDR address: \"10.1.0.0/16,10.2.0.0/16\""),
            ("FLANNEL_IPV6_SUBNET=fc00::", "invalid CIDR address: \"fc00::\""),
            ("FLANNEL_MTU=abc", "\"abc\" is not a number from 0 to 4294967295"),
            ("FLANNEL_MTU=+1500", "\"+1500\" is not a number"),
            ("FLANNEL_MTU=", "\"\" is not a number"),
            ("FLANNEL_MTU=4294967296", "\"4294967296\" is not a number"),
            ("FLANNEL_MTU", "there is no \"=\""),
            ("FLANNEL_IPMASQ=True", "\"True\" is neither true nor false"),
            ("FLANNEL_IPMASQ=\"1", "\"\\\"1\" is neither true nor false"),
        ] {
            let error = parse(&format!("{V4}{REST}{line}\n")).unwrap_err();
            let key = line.split('=').next().unwrap();
            let wanted = format!("/run/flannel/subnet.env: line 5: {key}: {why}");
            assert!(error.to_string().contains(&wanted), "{error}");
            assert_eq!(error.code(), Code::CONFIG, "{line}");
        }
    }

    #[test]
    fn a_subnet_outside_the_network_is_a_warning() {
        let file = parse(&format!("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=100.244.0.1/24\n{REST}")).unwrap();
        assert_eq!(file.warnings(), ["subnet 100.244.0.0/24 is not in the cluster network 10.244.0.0/16"]);
        let mixed = parse(&format!("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_IPV6_SUBNET=fc00::1/64\n{REST}")).unwrap();
        assert_eq!(mixed.warnings().len(), 1);
        assert!(parse(&format!("{V4}{V6}{REST}")).unwrap().warnings().is_empty());
    }
}
