//! What a log is about.

use std::fmt;

use super::Trace;

/// The call that a log describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedCall {
    pub(crate) plugin: &'static str,
    pub(crate) command: String,
    pub(crate) network: String,
    /// The container and its interface; `None` for a command for the whole network.
    pub(crate) attachment: Option<(String, String)>,
    /// The trace that the runtime passes on.
    pub(crate) trace: Option<Trace>,
}

/// Everything except the plugin, which log daemons print themselves.
impl fmt::Display for LoggedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} net={}", self.command, self.network)?;
        if let Some((container, ifname)) = &self.attachment {
            write!(f, " container={container} if={ifname}")?;
        }
        self.trace.as_ref().map_or(Ok(()), |trace| write!(f, " {trace}"))
    }
}
