//! For tools: lists the backup files of tuned interfaces, and reports what differs from the configuration.

use std::path::Path;

use cni::inspect::{
    Command, CommandLine, Finding, Id, Inspect, LiveAttachment, NetworkView, Object, ObjectKind, Owner, Property,
    Settings, Shape,
};
use cni::{Attachment, Call, Error, Guest, Keep, Namespaces, Result};
use linux::log::debug;

use crate::backup::Backup;
use crate::config::{self, Config, DATA_DIR};
use crate::sysctl::{Sysctl, same_value};
use crate::{Tuning, check, removal, status};

/// The kind of objects that the plugin creates.
static KINDS: [ObjectKind; 1] =
    [ObjectKind { name: "tuning", noun: "tuning backup", flag: "tuned", json: "tunedAttributes", is_listed: true }];

impl Inspect for Tuning {
    fn shape(&self) -> Shape {
        config::shape()
    }

    fn is_chained(&self) -> bool {
        true
    }

    fn settings(&self, call: &Call<'_>) -> Result<Settings> {
        Config::parse(call, None).map(|_| Settings::default())
    }

    fn kinds(&self) -> &'static [ObjectKind] {
        &KINDS
    }

    /// Lists the backup files in the default directory. Files of the reference have no known owner.
    fn objects(&self) -> Result<Vec<Object>> {
        let mut objects = Vec::new();
        removal::for_each_backup(Path::new(DATA_DIR), |_, name, backup| {
            objects.extend(backup.and_then(|backup| object(name, &backup)));
        })?;
        Ok(objects)
    }

    fn collect(&self, call: &Call<'_>, keep: &Keep<'_>) -> Result<()> {
        removal::collect(&config::data_dir(call), keep)
    }

    fn findings(&self, network: &NetworkView<'_>) -> Result<Vec<Finding>> {
        let config = Config::parse(network.call, None)?;
        if let Err(error) = status::run(&config) {
            return Ok(vec![Finding::error(KINDS[0].name, Id("tuning-sysctl-invalid"), &error)]);
        }
        let (mut count, mut different) = (0, Vec::new());
        for live in network.alive {
            let Some(added) = &live.added else { continue };
            let compared = added.with_call(|call, at| {
                let config = Config::parse(call, Some(at))?;
                count += usize::from(!config.is_empty());
                let outcome = check::run(call, at, &config);
                Ok(outcome.err().map(|error| (error, repair_commands(call, at, &config).unwrap_or_default())))
            });
            match compared {
                Ok(difference) => different.extend(difference.map(|(error, commands)| (live, error, commands))),
                Err(error) => debug!("the tuning of {} is unknown: {error}", added.attachment.container),
            }
        }
        debug!("{count} tuned containers");
        if different.is_empty() && count > 0 {
            return Ok(vec![Finding::ok(
                KINDS[0].name,
                Id("tuning-complete"),
                "live containers are tuned as configured",
            )]);
        }
        let (restored, others): (Vec<_>, Vec<_>) =
            different.into_iter().partition(|(_, _, commands)| !commands.is_empty());
        let finding = |different: Vec<(&LiveAttachment, Error, Vec<CommandLine>)>| {
            let (live, error, _) = different.first()?;
            let number = different.len();
            let text = format!(
                "{number} of {count} containers differ from the configuration, such as {}: {error}",
                live.subject.name
            );
            let finding = Finding::warn(KINDS[0].name, Id("tuning-different"), text)
                .about(different.iter().map(|(live, ..)| live.subject.clone()));
            let finding = finding.remedy("another program changed it; set it again, or attach the container again");
            Some(finding.run(different.into_iter().flat_map(|(_, _, commands)| commands)))
        };
        Ok([finding(restored), finding(others)].into_iter().flatten().collect())
    }
}

/// Returns the commands that set again what differs.
fn repair_commands(call: &Call<'_>, at: &Attachment, config: &Config) -> Result<Vec<CommandLine>> {
    let namespaces = Namespaces::open(call, at)?;
    let netns = at.sandbox();
    namespaces.in_guest(|| {
        let link = Guest::open_here(at)?.interface()?;
        let differs =
            |sysctl: &&Sysctl| matches!(check::read(sysctl), Ok(Some(now)) if !same_value(&now, &sysctl.value));
        // After a slash, dots are part of a name.
        let setting = |sysctl: &Sysctl| format!("{}={}", sysctl.path.join("/"), sysctl.value);
        let sysctls = config.sysctls.iter().filter(differs);
        let mut commands: Vec<CommandLine> =
            sysctls.map(|sysctl| Command::SetGuestSysctl.line(&[&netns, &setting(sysctl)])).collect();
        let now: Vec<_> = config.attributes.of(&link).values().collect();
        for (key, value) in config.attributes.values().filter(|wanted| !now.contains(wanted)) {
            let option = match key {
                "mac" => "address",
                "allmulti" => "allmulticast",
                "txQLen" => "txqueuelen",
                same => same,
            };
            let value = match value.as_str() {
                "true" => "on",
                "false" => "off",
                value => value,
            };
            commands.push(Command::SetGuestAttribute.line(&[&netns, at.ifname.as_str(), option, value]));
        }
        Ok(commands)
    })
}

/// Returns the value of an attribute as JSON has it.
fn property(value: &str) -> Property {
    match (value.parse(), value.parse()) {
        (Ok(number), _) => Property::Number(number),
        (_, Ok(flag)) => Property::Boolean(flag),
        _ => Property::Text(value.to_owned()),
    }
}

/// Returns what a tool shows of a backup file; `None` if its owner is not known.
fn object(name: &str, backup: &Backup) -> Option<Object> {
    let owner = backup.owner.as_ref()?;
    let comment = owner.key().comment();
    let tuned = owner.tuned.of_keys(backup.before);
    let change = |((key, before), (_, after)): ((&'static str, String), (&'static str, String))| {
        format!("{key} {before} -> {after}")
    };
    let changes: Vec<String> = backup.before.values().zip(tuned.values()).map(change).collect();
    let properties =
        backup.before.values().zip(tuned.values()).map(|((key, before), (_, after))| {
            (key, Property::Change(Box::new([property(&before), property(&after)])))
        });
    Some(Object {
        kind: &KINDS[0],
        owner: Owner::Marked(owner.key().mark()),
        backend: "file",
        address: None,
        name: name.to_owned(),
        detail: changes.join(", "),
        properties: properties.collect(),
        about: comment.split_once(", net: ").map_or(comment.as_str(), |(_, about)| about).to_owned(),
        comment,
    })
}
