//! The network configuration, parsed and validated into [`Config`], so that later code validates nothing.

use std::fmt;
use std::path::{Path, PathBuf};

use cni::inspect::Shape;
use cni::json::{Fault, Raw, invalid};
use cni::{Args, Attachment, Call, Code, Error, Result, requested_mac};
use linux::ip::MacAddr;
use linux::log::debug;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::attributes::Attributes;
use crate::sysctl::Sysctl;

/// Where backup files are, unless the configuration names another directory.
pub(crate) const DATA_DIR: &str = "/run/cni/tuning";

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// The sysctls in the order of the configuration. No two are the same.
    pub(crate) sysctls: Vec<Sysctl>,
    /// The attributes of the interface.
    pub(crate) attributes: Attributes,
    /// The directory of backup files.
    pub(crate) data_dir: PathBuf,
}

/// The keys of the configuration, not validated.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys<'a> {
    #[serde(borrow)]
    sysctl: Members<'a>,
    mac: String,
    promisc: bool,
    mtu: i64,
    #[serde(rename = "txQLen")]
    tx_queue: Option<i64>,
    allmulti: Option<bool>,
    data_dir: String,
    #[serde(borrow)]
    args: ConfigArgs<'a>,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfigArgs<'a> {
    #[serde(borrow)]
    cni: Overrides<'a>,
}

/// Keys that override those of the network, also with a value that means "unchanged".
#[derive(Default, Deserialize)]
#[serde(default)]
struct Overrides<'a> {
    #[serde(borrow)]
    sysctl: Members<'a>,
    mac: Option<String>,
    promisc: Option<bool>,
    mtu: Option<i64>,
    #[serde(rename = "txQLen")]
    tx_queue: Option<i64>,
    allmulti: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    mac: String,
}

/// The members of an object in their order, with duplicates.
#[derive(Default)]
struct Members<'a>(Vec<(String, Raw<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members<'a>, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Vec<(String, Raw<'de>)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(All).map(Members)
    }
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Keys<'_>>()
}

impl Config {
    /// Parses and validates the configuration and `CNI_ARGS`. `at` is `None` if the call is about no attachment.
    pub(crate) fn parse(call: &Call<'_>, at: Option<&Attachment>) -> Result<Config> {
        let keys: Keys<'_> = call.parse()?;
        let attributes = Attributes {
            mac: keys.requested_mac(call.args)?,
            promiscuous: keys.args.cni.promisc.unwrap_or(keys.promisc).then_some(true),
            mtu: keys.mtu()?,
            all_multicast: keys.args.cni.allmulti.or(keys.allmulti),
            tx_queue: keys.tx_queue()?,
        };
        let sysctls = keys.sysctls(at.map(|at| at.ifname.as_str()))?;
        Ok(Config { sysctls, attributes, data_dir: path(&keys.data_dir)? })
    }

    /// Returns whether the configuration changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.sysctls.is_empty() && self.attributes.is_empty()
    }
}

/// Returns the directory of backup files for DEL and GC, which read no other key; the default if the key is invalid.
pub(crate) fn data_dir(call: &Call<'_>) -> PathBuf {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Only {
        data_dir: String,
    }
    let parsed = call.parse().and_then(|only: Only| path(&only.data_dir));
    parsed.unwrap_or_else(|mistake| {
        debug!("use {DATA_DIR}: {mistake:?}");
        PathBuf::from(DATA_DIR)
    })
}

/// Validates `dataDir`.
fn path(text: &str) -> Result<PathBuf> {
    match text {
        "" => Ok(PathBuf::from(DATA_DIR)),
        text if text.contains('\0') => {
            let what = format_args!("{text:?} is not a valid path");
            Err(invalid("dataDir", what, "remove the NUL character"))
        }
        // A runtime may start plugins in any directory.
        text if !Path::new(text).is_absolute() => {
            let what = format_args!("{text:?} is not an absolute path");
            Err(invalid("dataDir", what, "write it with a slash at the beginning, such as /run/cni/tuning"))
        }
        text => Ok(PathBuf::from(text)),
    }
}

impl Keys<'_> {
    /// Returns the requested MAC address, in the precedence of the reference.
    fn requested_mac(&self, args: &str) -> Result<Option<MacAddr>> {
        let [from_args] = Args::parse(args, ["MAC"])?.values();
        if let Some(mac) = &self.args.cni.mac {
            return requested_mac(&[("key \"args.cni.mac\"", Code::CONFIG, mac)]);
        }
        requested_mac(&[
            ("key \"runtimeConfig.mac\"", Code::CONFIG, self.runtime_config.mac.as_str()),
            ("MAC in CNI_ARGS", Code::ENVIRONMENT, from_args.unwrap_or_default()),
            ("key \"mac\"", Code::CONFIG, self.mac.as_str()),
        ])
    }

    /// Validates `mtu`. What the link accepts, only the kernel knows.
    fn mtu(&self) -> Result<Option<u32>> {
        let (key, mtu) = match self.args.cni.mtu {
            None => ("mtu", self.mtu),
            Some(mtu) => ("args.cni.mtu", mtu),
        };
        match u32::try_from(mtu) {
            Ok(0) => Ok(None),
            Ok(mtu) if mtu <= i32::MAX.cast_unsigned() => Ok(Some(mtu)),
            _ => {
                let what = format_args!("{mtu} is out of range");
                Err(invalid(key, what, "use a number such as 1400, or 0 to keep the MTU"))
            }
        }
    }

    /// Validates `txQLen`.
    fn tx_queue(&self) -> Result<Option<u32>> {
        let (key, length) = match self.args.cni.tx_queue {
            None => ("txQLen", self.tx_queue),
            length => ("args.cni.txQLen", length),
        };
        let Some(length) = length else { return Ok(None) };
        match u32::try_from(length) {
            Ok(length) => Ok(Some(length)),
            // Unlike the reference, which takes the lower 32 bits.
            Err(_) => {
                let what = format_args!("{length} is out of range");
                Err(invalid(key, what, "use a number from 0 to 4294967295"))
            }
        }
    }

    /// Validates `sysctl` and `args.cni.sysctl`, which replaces values and adds keys.
    fn sysctls(&self, ifname: Option<&str>) -> Result<Vec<Sysctl>> {
        let mut sysctls = self.sysctl.validated("sysctl", ifname)?;
        for sysctl in self.args.cni.sysctl.validated("args.cni.sysctl", ifname)? {
            match sysctls.iter_mut().find(|earlier| earlier.path == sysctl.path) {
                Some(earlier) => earlier.value = sysctl.value,
                None => sysctls.push(sysctl),
            }
        }
        Ok(sysctls)
    }
}

impl Members<'_> {
    fn validated(&self, under: &str, ifname: Option<&str>) -> Result<Vec<Sysctl>> {
        let mut sysctls: Vec<Sysctl> = Vec::with_capacity(self.0.len());
        for (key, raw) in &self.0 {
            let value = raw.parse::<String>().map_err(|fault| {
                let remedy = format!("write the value as text: {:?}", raw.text());
                Error::from(fault.under(format_args!("{under}.{key}"))).details(remedy)
            })?;
            let sysctl = Sysctl::parse(key, value, ifname).map_err(|(why, remedy)| {
                Error::from(Fault::value(format_args!("{key:?} {why}")).under(under)).details(remedy)
            })?;
            if let Some(earlier) = sysctls.iter().find(|earlier| earlier.path == sysctl.path) {
                // The words of the reference, which users may search for.
                let what =
                    format_args!("duplicated sysctl keys are not allowed: {:?} and {key:?}", earlier.key.to_string());
                return Err(invalid(under, what, "remove one of them"));
            }
            sysctls.push(sysctl);
        }
        Ok(sysctls)
    }
}

#[cfg(test)]
mod tests;
