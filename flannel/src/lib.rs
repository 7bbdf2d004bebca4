//! The `flannel` plugin: generates the configuration of a delegate, usually `bridge`, from the subnet of this node,
//! which flanneld writes to a file.
//!
//! `config` reads the keys, `subnet` the subnet file, and `delegate` generates the configuration. `state` keeps it in a
//! file for DEL and CHECK, because the subnet or the configuration may change while the container runs. `inspect` is
//! for `cnitool`.

mod config;
mod delegate;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
mod state;
mod subnet;

use cni::{AddResult, Attachment, Call, Code, Delegate, Error, Keep, Namespaces, Plugin, Result, Undo};
use linux::log::{debug, warn};

use config::Config;
use delegate::DelegateConfig;
use state::State;
use subnet::SubnetFile;

/// The `flannel` plugin.
#[derive(Debug)]
pub struct Flannel;

impl Plugin for Flannel {
    fn name(&self) -> &'static str {
        "flannel"
    }

    fn add(&self, call: &Call<'_>, at: &Attachment) -> Result<AddResult> {
        let config = Config::parse(call)?;
        let file = SubnetFile::read_or_wait(&config.subnet_file)?;
        for warning in file.warnings() {
            warn!("{}: {warning}", config.subnet_file.display());
        }
        let generated = DelegateConfig::generate(call, &config, &file)?;
        let (kind, text) = (generated.kind().unwrap_or_default().to_owned(), generated.to_text()?);
        let inner = call.with_config(&text)?;
        let mut delegate = Delegate::find(&inner, &kind)?;
        // The user looks in vain for a key that flannel generated.
        let explain = |error: Error| match error.code() {
            Code::CONFIG => error.details(format!(
                "flannel generated the configuration of {kind:?} from \"delegate\", \"ipam\" and {:?}",
                config.subnet_file
            )),
            _ => error,
        };
        delegate.prepare(at).map_err(explain)?;
        // DEL follows each failure of an executed delegate, and would remove the existing attachment.
        if delegate.is_executed()
            && let Some(namespaces) = Namespaces::open_if_exists(&inner, at)?
        {
            namespaces.refuse_existing_interface(at)?;
        }
        let mut undo = Undo::new(());
        undo.push(format!("delete the attachment with {kind:?}"), |()| delegate.del(at));
        let result = delegate.add(at).map_err(|failure| explain(failure.without_del(&mut undo)));
        // Unlike the reference, which writes the file before the ADD of the delegate, and leaves it if that fails.
        let write =
            || state::write(&config.data_dir, call.network.as_str(), at, &generated.to_state(at.ifname.as_str())?);
        match result.and_then(|result| write().map(|()| result)) {
            Ok(result) => {
                undo.commit();
                Ok(result)
            }
            Err(error) => Err(undo.roll_back(error)),
        }
    }

    /// Calls the delegate with the configuration of ADD, or with a generated one if the state file is missing or
    /// invalid. Unlike the reference, keeps the state file until that succeeds.
    fn del(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse_to_clean_up(call)?;
        let state = State::find(&config.data_dir, call.network.as_str(), at)?;
        let file = read_if_exists(&config);
        let (kind, text) = match &state.config {
            Some((earlier, text)) => {
                let mut delegate = earlier.clone();
                if let Some(file) = &file {
                    delegate.replace_subnets(&file.subnets);
                }
                delegate.add_call_keys(call)?;
                // As far as nothing changed, the delegate gets exactly what it got at ADD.
                let text = if delegate == *earlier { text.clone() } else { delegate.to_text()? };
                (delegate.kind().unwrap_or_default().to_owned(), text)
            }
            None => generate_to_clean_up(call, &config, file.as_ref())?,
        };
        let inner = call.with_config(&text)?;
        match Delegate::find(&inner, &kind) {
            // Nothing shows that an ADD ever succeeded, and without the delegate none can have.
            Err(error) if !state.exists() => {
                cni::report(&error);
                Ok(())
            }
            delegate => {
                delegate?.del(at)?;
                state.remove()
            }
        }
    }

    /// Calls the delegate with the configuration of ADD.
    fn check(&self, call: &Call<'_>, at: &Attachment) -> Result<()> {
        let config = Config::parse(call)?;
        let state = State::find(&config.data_dir, call.network.as_str(), at)?;
        let mut delegate = match state.config {
            Some((earlier, _)) => earlier,
            None => DelegateConfig::generate(call, &config, &SubnetFile::read(&config.subnet_file)?)?,
        };
        delegate.set_version(call)?;
        delegate.add_call_keys(call)?;
        let text = delegate.to_text()?;
        Delegate::find(&call.with_config(&text)?, delegate.kind().unwrap_or_default())?.check(at)
    }

    fn gc(&self, call: &Call<'_>) -> Result<()> {
        let valid = call.valid_attachments()?;
        let config = Config::parse_to_clean_up(call)?;
        let (kind, text) = generate_to_clean_up(call, &config, read_if_exists(&config).as_ref())?;
        Delegate::find(&call.with_config(&text)?, &kind)?.gc()?;
        state::collect(&config.data_dir, &Keep::new(call.network.as_str(), &valid))
    }

    fn status(&self, call: &Call<'_>) -> Result<()> {
        let not_available = |error: Error| error.with_code(Code::NOT_AVAILABLE);
        let config = Config::parse(call)?;
        let file = SubnetFile::read(&config.subnet_file).map_err(not_available)?;
        let delegate = DelegateConfig::generate(call, &config, &file)?;
        let text = delegate.to_text()?;
        let inner = call.with_config(&text)?;
        Delegate::find(&inner, delegate.kind().unwrap_or_default()).map_err(not_available)?.status()
    }
}

/// Returns the content of the subnet file for DEL and GC, which do not depend on it.
fn read_if_exists(config: &Config) -> Option<SubnetFile> {
    SubnetFile::read(&config.subnet_file).map_err(|error| debug!("ignore the subnet file: {error:?}")).ok()
}

/// Returns the name and a generated configuration of the delegate for DEL and GC.
fn generate_to_clean_up(call: &Call<'_>, config: &Config, file: Option<&SubnetFile>) -> Result<(String, String)> {
    let mut delegate = match file {
        Some(file) => DelegateConfig::generate(call, config, file)?,
        None => DelegateConfig::generate_to_clean_up(call, config)?,
    };
    delegate.add_call_keys(call)?;
    Ok((delegate.kind().unwrap_or_default().to_owned(), delegate.to_text()?))
}
