//! Decides from evidence whether an attachment still exists. Pure logic without I/O.

/// The state of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Alive,
    /// Its namespace exists, but its interface does not.
    NoPort,
    Gone,
    /// The evidence is not sufficient.
    Unknown,
}

impl State {
    pub(crate) const ALL: [State; 4] = [State::Alive, State::NoPort, State::Gone, State::Unknown];

    /// Returns the key in JSON.
    pub(crate) fn json(self) -> &'static str {
        match self {
            State::NoPort => "noPort",
            other => other.text(),
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            State::Alive => "alive",
            State::NoPort => "no port",
            State::Gone => "gone",
            State::Unknown => "unknown",
        }
    }
}

/// What exists at the path of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A namespace that is not the host's.
    Exists,
    /// Nothing, or the host's own namespace, if the kernel has reused a process id.
    Absent,
    /// No permission to inspect it, or its parent directory does not exist.
    Hidden,
}

/// The evidence for and against an attachment. By default, there is none for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    /// A port has its alias.
    pub(super) port: bool,
    /// What exists at the path of its namespace in the cache.
    pub(super) place: Option<Place>,
    /// A live namespace has one of its addresses.
    pub(super) address: bool,
    /// All its leases are older than this boot.
    pub(super) before_boot: bool,
    /// If it were alive, its host veth would be a port of an inspected bridge.
    pub(super) on_bridge: bool,
    /// Each port of that bridge is known to belong to another attachment.
    pub(super) ports_known: bool,
}

impl Evidence {
    /// Returns the state that follows from the evidence, and the reason.
    pub(super) fn judge(self) -> (State, &'static str) {
        match self {
            Evidence { port: true, .. } => (State::Alive, "its port exists"),
            Evidence { address: true, .. } => (State::Alive, "its address is in use"),
            Evidence { place: Some(Place::Exists), on_bridge: true, ports_known: true, .. } => {
                (State::NoPort, "its namespace exists, but its interface does not")
            }
            Evidence { place: Some(Place::Exists), .. } => (State::Alive, "its namespace exists"),
            Evidence { before_boot: true, .. } => (State::Gone, "it is from before the last boot"),
            Evidence { place: Some(Place::Hidden), .. } => (State::Unknown, "its namespace cannot be inspected"),
            Evidence { ports_known: false, .. } => (State::Unknown, "the owner of some port is unknown"),
            Evidence { place: Some(Place::Absent), .. } => (State::Gone, "its namespace is gone"),
            Evidence { on_bridge: true, .. } => (State::Gone, "it has no port"),
            _ => (State::Unknown, "its namespace is unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: Evidence =
        Evidence { port: false, place: None, address: false, before_boot: false, on_bridge: true, ports_known: true };

    fn state(evidence: Evidence) -> State {
        evidence.judge().0
    }

    #[test]
    fn a_port_or_an_address_in_use_means_alive() {
        for place in [None, Some(Place::Absent), Some(Place::Exists), Some(Place::Hidden)] {
            assert_eq!(state(Evidence { port: true, place, before_boot: true, ..BRIDGE }), State::Alive);
            assert_eq!(state(Evidence { address: true, place, before_boot: true, ..BRIDGE }), State::Alive);
        }
    }

    #[test]
    fn an_attachment_is_gone_only_if_it_certainly_has_no_namespace() {
        assert_eq!(state(BRIDGE), State::Gone);
        assert_eq!(state(Evidence { place: Some(Place::Absent), ..BRIDGE }), State::Gone);
        assert_eq!(state(Evidence { place: Some(Place::Absent), on_bridge: false, ..BRIDGE }), State::Gone);
        assert_eq!(state(Evidence { before_boot: true, on_bridge: false, ports_known: false, ..BRIDGE }), State::Gone);
        for unsure in [
            Evidence { ports_known: false, ..BRIDGE },
            Evidence { on_bridge: false, ..BRIDGE },
            Evidence { place: Some(Place::Hidden), ..BRIDGE },
            Evidence { place: Some(Place::Absent), ports_known: false, ..BRIDGE },
        ] {
            assert_eq!(state(unsure), State::Unknown, "{unsure:?}");
        }
    }

    #[test]
    fn a_namespace_without_its_interface_is_neither_alive_nor_gone() {
        assert_eq!(state(Evidence { place: Some(Place::Exists), ..BRIDGE }), State::NoPort);
        assert_eq!(state(Evidence { place: Some(Place::Exists), on_bridge: false, ..BRIDGE }), State::Alive);
        assert_eq!(state(Evidence { place: Some(Place::Exists), ports_known: false, ..BRIDGE }), State::Alive);
    }
}
