//! Runs a list of plugins in one process, as a runtime runs it with a process for each: for a program that speaks
//! another protocol than CNI.

use std::time::Instant;

use linux::process::env;
use serde_json::{Map, Value};

use crate::calls;
use crate::collector::ErrorCollector;
use crate::error::{Error, Result};
use crate::json;
use crate::logging::{LogSettings, LoggedCall, Trace};
use crate::plugin::{Attachment, Call, Home, Plugin};
use crate::request::{Verb, exclude_own_netns};
use crate::result::AddResult;
use crate::version::Version;

/// A plugin with its configuration, which has the keys of CNI, too.
pub type Configured<'a> = (&'a dyn Plugin, Map<String, Value>);

/// A list of plugins in this process, the first of which creates the interface.
#[derive(Debug)]
pub struct EmbeddedList<'a> {
    /// What the log calls this program.
    pub program: &'static str,
    /// The name of the network.
    pub network: &'a str,
    /// The plugins.
    pub plugins: Vec<Configured<'a>>,
    /// All plugins that they delegate to.
    pub delegates: &'a [&'a dyn Plugin],
}

impl EmbeddedList<'_> {
    /// Attaches a container, and passes the result to `deliver`. If that fails, or any plugin, nothing is left.
    pub fn add(&self, mut at: Attachment, deliver: &dyn Fn(&AddResult) -> Result<()>) -> Result<()> {
        self.logged(&at.clone(), "ADD", || {
            let home = exclude_own_netns(Verb::Add, &mut at)?;
            self.add_from(&self.plugins, home, None, &at, deliver)
        })
    }

    fn add_from(
        &self,
        plugins: &[Configured<'_>],
        home: Option<Home>,
        previous: Option<&AddResult>,
        at: &Attachment,
        deliver: &dyn Fn(&AddResult) -> Result<()>,
    ) -> Result<()> {
        let Some(((plugin, config), rest)) = plugins.split_first() else {
            return deliver(previous.ok_or_else(|| Error::bug("a list without plugins"))?);
        };
        let config = text(config, previous)?;
        let call = Call::embedded(&config, self.delegates, home)?;
        let (result, roll_back) = counted(*plugin, "ADD", || plugin.add_with_rollback(&call, at))?;
        self.add_from(rest, None, Some(&result), at, deliver).map_err(|error| match roll_back() {
            Ok(()) => error,
            Err(left) => error.details(format!("not undone: {left}")),
        })
    }

    /// Detaches a container. A plugin that fails does not prevent those before it from running. `known` is what the
    /// caller still knows of the result.
    pub fn del(&self, mut at: Attachment, known: &AddResult) -> Result<()> {
        self.logged(&at.clone(), "DEL", || {
            let mut home = exclude_own_netns(Verb::Del, &mut at)?;
            let mut failures = ErrorCollector::default();
            for (plugin, config) in self.plugins.iter().rev() {
                let config = text(config, Some(known))?;
                let call = Call::embedded(&config, self.delegates, home.take())?;
                failures.record(counted(*plugin, "DEL", || plugin.del(&call, &at)));
                home = call.home.take();
            }
            failures.into_result()
        })
    }

    fn logged(&self, at: &Attachment, command: &str, call: impl FnOnce() -> Result<()>) -> Result<()> {
        let subject = || LoggedCall {
            plugin: self.program,
            command: command.to_owned(),
            network: self.network.to_owned(),
            attachment: Some((at.container.to_string(), at.ifname.to_string())),
            trace: Trace::of_caller(&env),
        };
        let summary = LogSettings::new(None, None, env("CNI_LOG")).start(subject);
        let outcome = call();
        summary.log(&outcome);
        outcome
    }
}

/// Counts a call, as the plugin's own program does.
fn counted<T>(plugin: &dyn Plugin, command: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    let outcome = call();
    calls::count(plugin.name(), command, began.elapsed(), outcome.as_ref().err().map(Error::code));
    outcome
}

/// Returns the configuration with the previous result.
fn text(config: &Map<String, Value>, previous: Option<&AddResult>) -> Result<String> {
    let mut config = config.clone();
    if let Some(previous) = previous {
        let printed = previous.print(Version::NEWEST)?;
        config.insert("prevResult".into(), json::parse(&String::from_utf8_lossy(&printed))?);
    }
    Ok(Value::Object(config).to_string())
}
