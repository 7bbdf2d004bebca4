//! Finds, reads and validates network configurations.
//!
//! Files are read in the order of the reference: all `.conflist` files by name, then `.conf` and `.json` files
//! together. Each of the latter has one plugin and becomes a list of one. The first file that defines a name wins.
//! Unlike upstream, a broken file does not affect other files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cni::json::{self, Raw};
use cni::{AddResult, Code, Context, Error, NetworkName, Result, Version};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::{file, hint, out};

/// The keys of a list. The runtime reads them, not the plugins.
pub(crate) const LIST_KEYS: [&str; 7] =
    ["cniVersion", "cniVersions", "name", "plugins", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"];
/// The keys of a plugin that only the runtime reads.
pub(crate) const PLUGIN_KEYS: [&str; 2] = ["type", "capabilities"];

/// The configuration of a network: its plugins in the order of ADD.
#[derive(Clone, Debug)]
pub(crate) struct NetworkList {
    pub(crate) name: NetworkName,
    /// The file or the cache entry that it was read from.
    pub(crate) path: PathBuf,
    /// The version for the calls of all its plugins.
    pub(crate) version: Version,
    pub(crate) plugins: Vec<Plugin>,
    /// Whether it was written as a list, not as a single plugin.
    pub(crate) is_list: bool,
    /// Whether it names a version.
    pub(crate) has_version: bool,
    pub(crate) disable_check: bool,
    pub(crate) disable_gc: bool,
    /// The list as the cache stores it: complete without other files.
    pub(crate) text: String,
}

/// A plugin in a list.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    /// Its `type`, which is the name of its program.
    pub(crate) kind: String,
    /// Its own object in the configuration.
    pub(crate) config: Map<String, Value>,
}

impl Plugin {
    /// Returns the names of the arguments that it wants from the runtime.
    fn capabilities(&self) -> impl Iterator<Item = &str> {
        let declared = self.config.get("capabilities").and_then(Value::as_object).into_iter().flatten();
        declared.filter(|(_, wanted)| **wanted == Value::Bool(true)).map(|(name, _)| name.as_str())
    }
}

/// A key that the runtime adds to a plugin's configuration.
pub(crate) type ExtraKey = (&'static str, Value);

impl NetworkList {
    /// Returns the configuration of a plugin without anything that a runtime adds for a call.
    pub(crate) fn config_of(&self, plugin: &Plugin) -> Map<String, Value> {
        let mut config = plugin.config.clone();
        config.insert("name".to_owned(), self.name.as_str().into());
        config.insert("cniVersion".to_owned(), self.version.as_str().into());
        config
    }

    /// Returns the configuration for a call of a plugin: its own object with the keys that the network and the runtime
    /// add. `arguments` are those for plugins that declare the capability.
    pub(crate) fn request(
        &self,
        plugin: &Plugin,
        arguments: &Map<String, Value>,
        extra: &[ExtraKey],
    ) -> Map<String, Value> {
        let mut config = self.config_of(plugin);
        config.extend(extra.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        // Unlike the reference, which passes `capabilities` to plugins although only the runtime needs it.
        config.remove("capabilities");
        let declared: Vec<&str> = plugin.capabilities().collect();
        let wanted = arguments.iter().filter(|(name, _)| declared.contains(&name.as_str()));
        let wanted: Map<_, _> = wanted.map(|(name, value)| (name.clone(), value.clone())).collect();
        if !wanted.is_empty() {
            config.insert("runtimeConfig".to_owned(), Value::Object(wanted));
        }
        config
    }

    /// Returns a warning for each of these arguments that no plugin of the network gets.
    pub(crate) fn unused(&self, arguments: &Map<String, Value>) -> Vec<Error> {
        let declared: Vec<&str> = self.plugins.iter().flat_map(Plugin::capabilities).collect();
        let unused = arguments.keys().filter(|name| !declared.contains(&name.as_str()));
        let warning = |name: &String| {
            let what = format!(
                "ignored: {name:?} in CAP_ARGS: no plugin of network {:?} has this capability",
                self.name.as_str()
            );
            hint::add(Error::new(Code::CONFIG, what), name, declared.iter().copied(), || match declared.as_slice() {
                [] => "the network has no capabilities".to_owned(),
                _ => format!("the capabilities are {}", declared.join(", ")),
            })
        };
        unused.map(warning).collect()
    }

    /// Converts a result of any version to `prevResult` in the network's version.
    pub(crate) fn prev_result(&self, result: &Value) -> Result<ExtraKey> {
        let result = AddResult::read_answer(&result.to_string(), self.version)?;
        Ok(("prevResult", self.print(&result)?))
    }

    /// Converts a result to the form for plugins and the cache.
    pub(crate) fn print(&self, result: &AddResult) -> Result<Value> {
        let text = result.print(self.version)?;
        serde_json::from_slice(&text).map_err(|error| Error::new(Code::INTERNAL, error.to_string()))
    }
}

/// A file that is not a valid network configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) path: PathBuf,
    /// Line and column, both from 1; `None` if the file could not be read at all.
    pub(crate) place: Option<(usize, usize)>,
    pub(crate) why: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if let Some((line, column)) = self.place {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.why)
    }
}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Error {
        Error::new(Code::CONFIG, broken.to_string())
    }
}

/// The configurations in a directory.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// In the order in which they are read. If two have the same name, only the first is used.
    pub(crate) lists: Vec<NetworkList>,
    pub(crate) broken: Vec<Broken>,
}

/// Reads all configurations in a directory. Returns none if the directory does not exist.
pub(crate) fn all(dir: &Path) -> Result<Found> {
    let mut found = Found::default();
    for path in files(dir)? {
        match read(&path) {
            Ok(list) => found.lists.push(list),
            Err(broken) => found.broken.push(broken),
        }
    }
    Ok(found)
}

/// Finds the network `name`. Also returns the broken files in the directory.
pub(crate) fn find(dir: &Path, name: &str) -> Result<(NetworkList, Vec<Broken>)> {
    let Found { lists, broken } = all(dir)?;
    let mut names: Vec<String> = lists.iter().map(|list| list.name.to_string()).collect();
    if let Some(list) = lists.into_iter().find(|list| list.name.as_str() == name) {
        return Ok((list, broken));
    }
    names.sort();
    names.dedup();
    let error = Error::new(Code::CONFIG, format!("there is no network {name:?} in {}", dir.display()));
    let error = hint::add(error, name, names.iter().map(String::as_str), || match names.is_empty() {
        true => why_empty(dir),
        false => format!("the networks are {}", names.join(", ")),
    });
    Err(broken.iter().fold(error, |error, broken| error.details(format!("broken: {broken}"))))
}

/// Warns of broken files, which are ignored otherwise.
pub(crate) fn warn_of_broken(broken: &[Broken]) {
    broken.iter().for_each(|broken| out::warn(&format!("ignored: {broken}")));
}

/// Lists the files with the extension of a configuration, in the order in which they are read.
pub(crate) fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut lists = with_extension(dir, &["conflist"])?;
    lists.extend(with_extension(dir, &["conf", "json"])?);
    Ok(lists)
}

fn with_extension(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let what = || format!("read the directory {}", dir.display());
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context(what),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.context(what)?.path();
        let fits = |wanted: &&str| path.extension() == Some(OsStr::new(wanted));
        if extensions.iter().any(fits) && !path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort_by(|a, b| a.as_os_str().cmp(b.as_os_str()));
    Ok(paths)
}

/// Explains why a directory has no configuration.
pub(crate) fn why_empty(dir: &Path) -> String {
    match with_extension(dir, &["yaml", "yml"]).unwrap_or_default().first() {
        Some(path) => format!("{} is ignored: write it as JSON, into a file that ends in .conflist", path.display()),
        None if !dir.exists() => "the directory does not exist: create it, or set NETCONFPATH".to_owned(),
        None => "configurations end in .conflist, .conf or .json".to_owned(),
    }
}

/// Reads one file.
fn read(path: &Path) -> Result<NetworkList, Broken> {
    let bytes = file::read(path).map_err(|error| unreadable(path, error))?;
    parse(path, &bytes)
}

/// Parses the content of a file. The extension of its name determines whether it is a list, or else its keys.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<NetworkList, Broken> {
    let text = Text::new(path, bytes)?;
    let extension = path.extension().and_then(OsStr::to_str);
    let is_list = match extension {
        Some("conflist") => true,
        Some("conf" | "json") => false,
        _ => text.whole()?.parse::<Members<'_>>().is_ok_and(|members| members.contains_key("plugins")),
    };
    if !is_list {
        return text.single();
    }
    let (mut list, inlined_only) = text.list()?;
    if !inlined_only && extension == Some("conflist") {
        add_folder(path, &mut list)?;
    }
    if list.plugins.is_empty() {
        return Err(
            text.fault(0, "the network has no \"plugins\"; a single plugin must be in a file that ends in .conf")
        );
    }
    Ok(list)
}

/// Parses the list in the cache entry at `path`. It includes the plugins that were in separate files.
pub(crate) fn from_cache(path: &Path, text: &[u8]) -> Result<NetworkList, Broken> {
    let text = Text::new(path, text)?;
    let (list, _) = text.list()?;
    if list.plugins.is_empty() { Err(text.fault(0, "the network has no plugin")) } else { Ok(list) }
}

#[expect(clippy::needless_pass_by_value, reason = "map_err passes it by value")]
fn unreadable(path: &Path, error: std::io::Error) -> Broken {
    Broken { path: path.to_owned(), place: None, why: format!("cannot be read: {error}") }
}

/// Adds the plugins that are in separate files, in a folder with the name of the network next to the list.
fn add_folder(path: &Path, list: &mut NetworkList) -> Result<(), Broken> {
    let folder = path.with_file_name(list.name.as_str());
    let files = with_extension(&folder, &["conf"]).map_err(|error| Broken {
        path: folder.clone(),
        place: None,
        why: error.to_string(),
    })?;
    if files.is_empty() {
        return Ok(());
    }
    for path in files {
        let bytes = file::read(&path).map_err(|error| unreadable(&path, error))?;
        let text = Text::new(&path, &bytes)?;
        let whole = text.whole()?;
        list.plugins.push(text.plugin(whole)?);
    }
    // The text for the cache must be complete without the folder.
    let mut whole: Map<String, Value> = serde_json::from_str(&list.text).unwrap_or_default();
    let plugins = list.plugins.iter().map(|plugin| Value::Object(plugin.config.clone())).collect();
    whole.insert("plugins".to_owned(), Value::Array(plugins));
    whole.insert("loadOnlyInlinedPlugins".to_owned(), Value::Bool(true));
    list.text = Value::Object(whole).to_string();
    Ok(())
}

/// The members of an object. Keys are case-sensitive here, as in the reference's library for runtimes.
type Members<'a> = BTreeMap<String, Raw<'a>>;

fn has_version(members: &Members<'_>) -> bool {
    ["cniVersion", "cniVersions"].iter().any(|key| members.contains_key(*key))
}

/// The text of a file, with methods that report the position of an invalid value.
struct Text<'a> {
    path: &'a Path,
    text: &'a str,
}

impl<'a> Text<'a> {
    /// Validates that the bytes are UTF-8 and JSON.
    fn new(path: &'a Path, bytes: &'a [u8]) -> Result<Text<'a>, Broken> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let start = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let place = Some(place(&String::from_utf8_lossy(start), error.valid_up_to()));
            Broken { path: path.to_owned(), place, why: "it is not UTF-8".to_owned() }
        })?;
        serde_json::from_str::<IgnoredAny>(text).map_err(|error| {
            let why = json::syntax_mistake(text, &error);
            // For an empty file, serde reports line 0.
            let place = Some((error.line().max(1), error.column().max(1)));
            Broken { path: path.to_owned(), place, why: format!("invalid JSON: {why}") }
        })?;
        Ok(Text { path, text })
    }

    /// Returns the error for an invalid value at `offset`.
    fn fault(&self, offset: usize, why: impl fmt::Display) -> Broken {
        Broken { path: self.path.to_owned(), place: Some(place(self.text, offset)), why: why.to_string() }
    }

    /// Returns the offset of a value in this text.
    fn offset(&self, value: Raw<'_>) -> usize {
        (value.text().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize).min(self.text.len())
    }

    /// Returns the whole document.
    fn whole(&self) -> Result<Raw<'a>, Broken> {
        json::parse(self.text).map_err(|fault| self.fault(0, fault))
    }

    /// Parses the value of `key` as a `T`.
    fn value<T: Deserialize<'a>>(&self, key: &str, value: Raw<'a>) -> Result<T, Broken> {
        value.parse::<T>().map_err(|fault| self.fault(self.offset(value), fault.under(key)))
    }

    fn optional<T: Deserialize<'a>>(&self, members: &Members<'a>, key: &str) -> Result<Option<T>, Broken> {
        members.get(key).map(|value| self.value(key, *value)).transpose()
    }

    /// Parses `true` or `false`, also as a string in upper or lower case. Returns false if the key is missing.
    fn flag(&self, members: &Members<'a>, key: &str) -> Result<bool, Broken> {
        let Some(value) = members.get(key) else { return Ok(false) };
        match value.text().trim_matches('"').to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => {
                Err(self
                    .fault(self.offset(*value), format!("key {key:?}: expected true or false, got {}", value.text())))
            }
        }
    }

    fn name(&self, whole: Raw<'a>, members: &Members<'a>) -> Result<NetworkName, Broken> {
        let name: String = self.optional(members, "name")?.unwrap_or_default();
        let offset = members.get("name").map_or_else(|| self.offset(whole), |value| self.offset(*value));
        NetworkName::parse(&name).map_err(|error| self.fault(offset, error))
    }

    /// Returns the newest supported version among `cniVersion` and `cniVersions`.
    fn version(&self, members: &Members<'a>) -> Result<Version, Broken> {
        let one: String = self.optional(members, "cniVersion")?.unwrap_or_default();
        let many: Vec<String> = self.optional(members, "cniVersions")?.unwrap_or_default();
        let offset = ["cniVersions", "cniVersion"].iter().find_map(|key| members.get(*key));
        let offset = offset.map_or(0, |value| self.offset(*value));
        let text = if many.is_empty() {
            Some(one.as_str())
        } else {
            let all = many.iter().map(String::as_str).chain((!one.is_empty()).then_some(one.as_str()));
            Version::newest_of(all).map_err(|error| self.fault(offset, error))?
        };
        Version::exact(text.unwrap_or(&one)).ok_or_else(|| {
            let all = Version::ALL.map(Version::as_str).join(", ");
            self.fault(offset, format!("cniVersion {:?} is not supported; use one of {all}", text.unwrap_or(&one)))
        })
    }

    fn plugin(&self, value: Raw<'a>) -> Result<Plugin, Broken> {
        let members: Members<'a> = value.parse().map_err(|fault| self.fault(self.offset(value), fault))?;
        let kind: String = self.optional(&members, "type")?.unwrap_or_default();
        if kind.is_empty() {
            let at = members.get("type").map_or_else(|| self.offset(value), |value| self.offset(*value));
            return Err(self.fault(at, "a plugin needs a \"type\": the name of its program"));
        }
        let config = serde_json::from_str(value.text()).map_err(|error| self.fault(self.offset(value), error))?;
        Ok(Plugin { kind, config })
    }

    /// Parses a list of plugins. Also returns whether it excludes plugins in separate files.
    fn list(&self) -> Result<(NetworkList, bool), Broken> {
        let whole = self.whole()?;
        let members: Members<'a> = whole.parse().map_err(|fault| self.fault(self.offset(whole), fault))?;
        let inlined_only = self.flag(&members, "loadOnlyInlinedPlugins")?;
        let plugins: Vec<Raw<'a>> = self.optional(&members, "plugins")?.unwrap_or_default();
        if plugins.is_empty() && (inlined_only || members.contains_key("plugins")) {
            let at = members.get("plugins").map_or_else(|| self.offset(whole), |value| self.offset(*value));
            return Err(self.fault(at, "\"plugins\" must be a list of at least one plugin"));
        }
        let list = NetworkList {
            name: self.name(whole, &members)?,
            path: self.path.to_owned(),
            version: self.version(&members)?,
            plugins: plugins.into_iter().map(|plugin| self.plugin(plugin)).collect::<Result<_, _>>()?,
            is_list: true,
            has_version: has_version(&members),
            disable_check: self.flag(&members, "disableCheck")?,
            disable_gc: self.flag(&members, "disableGC")?,
            text: self.text.to_owned(),
        };
        Ok((list, inlined_only))
    }

    /// Parses a network that consists of one plugin without a list.
    fn single(&self) -> Result<NetworkList, Broken> {
        let whole = self.whole()?;
        let members: Members<'a> = whole.parse().map_err(|fault| self.fault(self.offset(whole), fault))?;
        if let Some(plugins) = members.get("plugins") {
            return Err(self.fault(self.offset(*plugins), "a list of plugins must be in a file that ends in .conflist"));
        }
        let name = self.name(whole, &members)?;
        let version = self.version(&members)?;
        let plugin = self.plugin(whole)?;
        let text = json!({ "name": name.as_str(), "cniVersion": version.as_str(), "plugins": [plugin.config] });
        Ok(NetworkList {
            name,
            path: self.path.to_owned(),
            version,
            plugins: vec![plugin],
            is_list: false,
            has_version: has_version(&members),
            disable_check: false,
            disable_gc: false,
            text: text.to_string(),
        })
    }
}

/// Returns line and column of the character at `offset`, both counted from 1.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before: String = text.char_indices().take_while(|(at, _)| *at < offset).map(|(_, c)| c).collect();
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (before.matches('\n').count() + 1, column)
}
