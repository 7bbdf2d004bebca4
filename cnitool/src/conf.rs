//! Network configurations: found in a directory, read, and told apart from what is broken.
//!
//! Files are looked at as the reference does it: all `.conflist` in the order of their names, then `.conf` and `.json`
//! together, each of which holds one plugin and becomes a list of one. The first that has a name wins. Unlike upstream,
//! a broken file keeps no other from working.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cni::json::{self, Raw};
use cni::{Code, Context, Error, NetworkName, Result, Version};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::{file, out};

/// A network: the plugins that are called for it, in order.
#[derive(Clone, Debug)]
pub(crate) struct NetworkList {
    pub(crate) name: NetworkName,
    /// The file that it stands in, or the entry of the cache that it was taken from.
    pub(crate) path: PathBuf,
    /// The version in which all its plugins are spoken to.
    pub(crate) version: Version,
    pub(crate) plugins: Vec<Plugin>,
    pub(crate) disable_check: bool,
    pub(crate) disable_gc: bool,
    /// The list as it is kept in the cache: enough to do without the files.
    pub(crate) text: String,
}

/// A plugin of a list.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    /// Its `type`: the name of its program.
    pub(crate) kind: String,
    /// Its own object in the configuration.
    pub(crate) config: Map<String, Value>,
}

/// A file that is no network configuration.
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

/// What a directory of configurations holds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// In the order in which they are looked at. Of two with the same name only the first is ever used.
    pub(crate) lists: Vec<NetworkList>,
    pub(crate) broken: Vec<Broken>,
}

/// Reads all configurations of a directory. One that does not exist is empty.
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

/// The network called `name`, and the broken files that stand beside it.
pub(crate) fn find(dir: &Path, name: &str) -> Result<(NetworkList, Vec<Broken>)> {
    let Found { lists, broken } = all(dir)?;
    let mut names: Vec<String> = lists.iter().map(|list| list.name.to_string()).collect();
    if let Some(list) = lists.into_iter().find(|list| list.name.as_str() == name) {
        return Ok((list, broken));
    }
    names.sort();
    names.dedup();
    let mut error = Error::new(Code::CONFIG, format!("there is no network {name:?} in {}", dir.display()));
    error = match names.is_empty() {
        true => error.details("there is none at all"),
        false => error.details(format!("there is {}", names.join(", "))),
    };
    Err(broken.iter().fold(error, |error, broken| error.details(format!("broken: {broken}"))))
}

/// Tells of broken files, which do not matter otherwise.
pub(crate) fn ignore(broken: &[Broken]) {
    broken.iter().for_each(|broken| out::warn(&format!("ignored: {broken}")));
}

/// The files of a directory that are configurations by their name, in the order in which they are looked at.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut lists = with_extension(dir, &["conflist"])?;
    lists.extend(with_extension(dir, &["conf", "json"])?);
    Ok(lists)
}

fn with_extension(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let what = || format!("read the directory {}", dir.display());
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).trying(what),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.trying(what)?.path();
        let fits = |wanted: &&str| path.extension() == Some(OsStr::new(wanted));
        if extensions.iter().any(fits) && !path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort_by(|a, b| a.as_os_str().cmp(b.as_os_str()));
    Ok(paths)
}

/// Reads one file; its extension says whether it is a list.
fn read(path: &Path) -> Result<NetworkList, Broken> {
    let bytes = file::read(path).map_err(|error| unreadable(path, error))?;
    let is_list = path.extension() == Some(OsStr::new("conflist"));
    let text = Text::new(path, &bytes)?;
    if !is_list {
        return text.single();
    }
    let (mut list, inlined_only) = text.list()?;
    if !inlined_only {
        add_folder(path, &mut list)?;
    }
    if list.plugins.is_empty() {
        return Err(text.fault(0, "the network has no plugin"));
    }
    Ok(list)
}

/// The list that an entry of the cache at `path` holds. What stands in folders beside a file has been put into it.
pub(crate) fn from_cache(path: &Path, text: &[u8]) -> Result<NetworkList, Broken> {
    let text = Text::new(path, text)?;
    let (list, _) = text.list()?;
    if list.plugins.is_empty() { Err(text.fault(0, "the network has no plugin")) } else { Ok(list) }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
fn unreadable(path: &Path, error: std::io::Error) -> Broken {
    Broken { path: path.to_owned(), place: None, why: format!("cannot be read: {error}") }
}

/// Plugins of a list may stand in files of their own, in a folder of the network's name beside the list.
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
    // The cache must do without the folder.
    let mut whole: Map<String, Value> = serde_json::from_str(&list.text).unwrap_or_default();
    let plugins = list.plugins.iter().map(|plugin| Value::Object(plugin.config.clone())).collect();
    whole.insert("plugins".to_owned(), Value::Array(plugins));
    whole.insert("loadOnlyInlinedPlugins".to_owned(), Value::Bool(true));
    list.text = Value::Object(whole).to_string();
    Ok(())
}

/// The members of an object. Keys are told apart by case here, as the reference does on this side.
type Members<'a> = BTreeMap<String, Raw<'a>>;

/// A file's text, which knows where in it a value stands.
struct Text<'a> {
    path: &'a Path,
    text: &'a str,
}

impl<'a> Text<'a> {
    /// Text that is JSON as a whole.
    fn new(path: &'a Path, bytes: &'a [u8]) -> Result<Text<'a>, Broken> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let start = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let place = Some(place(&String::from_utf8_lossy(start), error.valid_up_to()));
            Broken { path: path.to_owned(), place, why: "it is not UTF-8".to_owned() }
        })?;
        serde_json::from_str::<IgnoredAny>(text).map_err(|error| {
            let why = error.to_string();
            let why = why.split(" at line ").next().unwrap_or_default();
            // An empty file ends before its first line.
            let place = Some((error.line().max(1), error.column().max(1)));
            Broken { path: path.to_owned(), place, why: format!("invalid JSON: {why}") }
        })?;
        Ok(Text { path, text })
    }

    /// That what stands at `offset` is wrong.
    fn fault(&self, offset: usize, why: impl fmt::Display) -> Broken {
        Broken { path: self.path.to_owned(), place: Some(place(self.text, offset)), why: why.to_string() }
    }

    /// Where a value of this text stands.
    fn offset(&self, value: Raw<'_>) -> usize {
        (value.text().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize).min(self.text.len())
    }

    /// The document itself.
    fn whole(&self) -> Result<Raw<'a>, Broken> {
        json::parse(self.text).map_err(|fault| self.fault(0, fault))
    }

    /// The value of `key` as a `T`.
    fn value<T: Deserialize<'a>>(&self, key: &str, value: Raw<'a>) -> Result<T, Broken> {
        value.parse::<T>().map_err(|fault| self.fault(self.offset(value), fault.under(key)))
    }

    fn optional<T: Deserialize<'a>>(&self, members: &Members<'a>, key: &str) -> Result<Option<T>, Broken> {
        members.get(key).map(|value| self.value(key, *value)).transpose()
    }

    /// `true` or `false`, also as a string in any case.
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
            self.fault(offset, format!("cniVersion {:?} is not known; known are {all}", text.unwrap_or(&one)))
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

    /// A list of plugins, and whether it wants no others.
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
            disable_check: self.flag(&members, "disableCheck")?,
            disable_gc: self.flag(&members, "disableGC")?,
            text: self.text.to_owned(),
        };
        Ok((list, inlined_only))
    }

    /// One plugin that is a network by itself.
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
            disable_check: false,
            disable_gc: false,
            text: text.to_string(),
        })
    }
}

/// Line and column, both from 1, of the character at `offset`.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before: String = text.char_indices().take_while(|(at, _)| *at < offset).map(|(_, c)| c).collect();
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (before.matches('\n').count() + 1, column)
}
