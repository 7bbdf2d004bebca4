//! The keys of the configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cni::inspect::Shape;
use cni::json::{Fault, Raw};
use cni::{Call, Error, Result, Route};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The defaults of `subnetFile` and `dataDir`.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";
pub(crate) const DATA_DIR: &str = "/var/lib/cni/flannel";

/// The delegate of a configuration that names none.
pub(crate) const BRIDGE: &str = "bridge";

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) subnet_file: PathBuf,
    /// The directory of the state files.
    pub(crate) data_dir: PathBuf,
    /// The keys for the delegate.
    pub(crate) delegate: Map<String, Value>,
    /// The keys for the delegate's IPAM plugin, without the routes.
    pub(crate) ipam: Map<String, Value>,
    /// The routes for the IPAM plugin, in addition to those to the cluster.
    pub(crate) routes: Vec<Route>,
    pub(crate) runtime_config: Option<Map<String, Value>>,
    /// Whether traffic to the cluster keeps its source address although the delegate masquerades.
    pub(crate) exclude_cluster: bool,
}

/// The keys of the configuration, read one by one.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys<'a> {
    #[serde(borrow)]
    subnet_file: Option<Raw<'a>>,
    #[serde(borrow)]
    data_dir: Option<Raw<'a>>,
    #[serde(borrow)]
    delegate: Option<Raw<'a>>,
    #[serde(borrow)]
    ipam: Option<Raw<'a>>,
    #[serde(borrow)]
    runtime_config: Option<Raw<'a>>,
    #[serde(borrow)]
    ip_masq_exclude_cluster: Option<Raw<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    routes: Vec<Route>,
}

/// Returns the keys that the plugin reads, for tools.
pub(crate) fn shape() -> Shape {
    Shape::of::<Keys<'_>>()
}

impl Config {
    /// Parses the configuration for ADD, CHECK and STATUS.
    pub(crate) fn parse(call: &Call<'_>) -> Result<Config> {
        let config = Config::read(call, &Err)?;
        config.validate_delegate()?;
        Ok(config)
    }

    /// Parses the configuration for DEL and GC. Mistakes are only reported, and the defaults apply instead: they matter
    /// to the next ADD, and must not prevent the removal.
    pub(crate) fn parse_to_clean_up(call: &Call<'_>) -> Result<Config> {
        Config::without_mistakes(call, &|mistake| cni::report(&mistake))
    }

    /// Parses the configuration, and passes each mistake to `report`.
    pub(crate) fn without_mistakes(call: &Call<'_>, report: &dyn Fn(Error)) -> Result<Config> {
        let mut config = Config::read(call, &|mistake| {
            report(mistake);
            Ok(())
        })?;
        if let Err(mistake) = config.validate_delegate() {
            report(mistake);
            config.delegate.retain(|key, value| key == "type" && value.as_str().is_some_and(is_delegate));
        }
        Ok(config)
    }

    /// Reads the keys one by one. `on_mistake` decides whether a mistake is an error; if not, the default applies.
    fn read(call: &Call<'_>, on_mistake: &dyn Fn(Error) -> Result<()>) -> Result<Config> {
        let keys: Keys<'_> = call.parse()?;
        let path = |key: &str, raw, default: &str| -> Result<PathBuf> {
            let text: Option<String> = value(key, raw, on_mistake)?;
            match text.unwrap_or_else(|| default.to_owned()) {
                text if !text.is_empty() && !text.contains('\0') => Ok(PathBuf::from(text)),
                text => {
                    let error = Error::from(Fault::value(format!("{text:?} is not a path")).under(key));
                    on_mistake(error.details(format!("the default is {default:?}")))?;
                    Ok(PathBuf::from(default))
                }
            }
        };
        let ipam: Option<Ipam> = value("ipam", keys.ipam, on_mistake)?;
        Ok(Config {
            subnet_file: path("subnetFile", keys.subnet_file, SUBNET_FILE)?,
            data_dir: path("dataDir", keys.data_dir, DATA_DIR)?,
            delegate: object("delegate", keys.delegate, on_mistake)?.unwrap_or_default(),
            ipam: object("ipam", keys.ipam, on_mistake)?.unwrap_or_default(),
            routes: ipam.unwrap_or_default().routes,
            runtime_config: object("runtimeConfig", keys.runtime_config, on_mistake)?,
            exclude_cluster: value("ipMasqExcludeCluster", keys.ip_masq_exclude_cluster, on_mistake)?.unwrap_or(false),
        })
    }

    fn validate_delegate(&self) -> Result<()> {
        // The texts of the reference, apart from the second.
        let error = match self.delegate.get("type").map(Value::as_str) {
            Some(None) => Fault::value("'delegate' dictionary, if present, must have (string) 'type' field"),
            Some(Some(name)) if !is_delegate(name) => {
                Fault::value(format!("{name:?} cannot be the delegate")).under("delegate.type")
            }
            _ if self.delegate.contains_key("name") => {
                Fault::value("'delegate' dictionary must not have 'name' field, it'll be set by flannel")
            }
            _ if self.delegate.contains_key("ipam") => {
                Fault::value("'delegate' dictionary must not have 'ipam' field, it'll be set by flannel")
            }
            _ => return Ok(()),
        };
        let hint = "\"name\" and \"ipam\" belong next to \"delegate\"; \"type\" is a plugin such as \"bridge\"";
        Err(Error::from(error).details(hint))
    }
}

/// Returns whether flannel can delegate to a plugin: its name is that of a file, and not `flannel`, which would never
/// end.
pub(crate) fn is_delegate(name: &str) -> bool {
    !matches!(name, "" | "." | ".." | "flannel") && !name.contains('/')
}

/// Parses the value of `key`; `None` if it is missing or a mistake that is not an error.
fn value<'a, T: Deserialize<'a>>(
    key: &str,
    raw: Option<Raw<'a>>,
    on_mistake: &dyn Fn(Error) -> Result<()>,
) -> Result<Option<T>> {
    let Some(raw) = raw else { return Ok(None) };
    match raw.parse() {
        Ok(value) => Ok(Some(value)),
        Err(fault) => on_mistake(fault.under(key).into()).map(|()| None),
    }
}

/// Parses the value of `key` as an object, to be passed on; `None` as for [`value`].
fn object(
    key: &str,
    raw: Option<Raw<'_>>,
    on_mistake: &dyn Fn(Error) -> Result<()>,
) -> Result<Option<Map<String, Value>>> {
    let members: Option<BTreeMap<String, Raw<'_>>> = value(key, raw, on_mistake)?;
    let Some(raw) = raw.filter(|_| members.is_some()) else { return Ok(None) };
    match serde_json::from_str(raw.text()) {
        Ok(members) => Ok(Some(members)),
        // It has more than 128 levels.
        Err(error) => on_mistake(Fault::value(error).under(key).into()).map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use testing::document;

    use super::*;

    #[test]
    fn the_keys_are_described() {
        document::describes("flannel", &shape().keys());
    }

    #[test]
    fn defaults_are_as_described() {
        let bare = serde_json::json!({"cniVersion": "1.1.0", "name": "pods"});
        document::defaults("flannel", &bare, |text| {
            Config::parse(&Call::for_config(text)?).map(|config| format!("{config:?}"))
        });
    }

    fn error(rest: &str) -> (u32, String) {
        let text = format!(r#"{{"cniVersion": "1.1.0", "name": "pods", {rest}}}"#);
        let call = Call::for_config(&text).unwrap();
        assert!(Config::parse_to_clean_up(&call).is_ok(), "{rest}");
        let error = Config::parse(&call).unwrap_err();
        (error.code().0, error.to_string())
    }

    #[test]
    fn mistakes_name_the_key() {
        for (rest, code, text) in [
            (r#""delegate": {"type": 5}"#, 7, "must have (string) 'type' field"),
            (r#""delegate": {"type": null}"#, 7, "must have (string) 'type' field"),
            (r#""delegate": {"name": null}"#, 7, "must not have 'name' field"),
            (r#""delegate": {"ipam": {}}"#, 7, "must not have 'ipam' field"),
            (r#""delegate": {"type": ""}"#, 7, "\"\" cannot be the delegate"),
            (r#""delegate": {"type": "flannel"}"#, 7, "\"flannel\" cannot be the delegate"),
            (r#""delegate": {"type": "../bridge"}"#, 7, "\"../bridge\" cannot be the delegate"),
            (r#""delegate": []"#, 6, "key \"delegate\": expected an object, got a list"),
            (r#""ipam": "host-local""#, 6, "key \"ipam\": expected an object, got \"host-local\""),
            (r#""ipam": {"routes": [{"dst": "x"}]}"#, 7, "key \"ipam.routes[0].dst\": invalid CIDR address: \"x\""),
            (r#""subnetFile": """#, 7, "key \"subnetFile\": \"\" is not a path"),
            (r#""dataDir": 5"#, 6, "key \"dataDir\": expected a string, got 5"),
            (r#""ipMasqExcludeCluster": "yes""#, 6, "key \"ipMasqExcludeCluster\": expected true or false"),
        ] {
            let (found, message) = error(rest);
            assert!(found == code && message.contains(text), "{rest}: {found} {message}");
        }
    }
}
