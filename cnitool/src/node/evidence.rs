//! Is an attachment still there? What speaks for it and against it, and the verdict. No input, no output.

/// Is it still there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Alive,
    /// Its namespace is there, its interface is not.
    NoPort,
    Gone,
    /// It cannot be told.
    Unknown,
}

impl State {
    pub(crate) fn text(self) -> &'static str {
        match self {
            State::Alive => "alive",
            State::NoPort => "no port",
            State::Gone => "gone",
            State::Unknown => "unknown",
        }
    }
}

/// What is at the path of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A namespace that is not the host's.
    There,
    /// Nothing, or the host's own: the number of a process is used again.
    Empty,
    /// It may not be looked at, or the directory that it should be in is missing.
    Hidden,
}

/// What speaks for and against an attachment. Its default is what nothing speaks for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    /// There is a port with its alias.
    pub(super) port: bool,
    /// What is at the path that the cache knows.
    pub(super) place: Option<Place>,
    /// A live namespace has one of its addresses.
    pub(super) address: bool,
    /// All its leases are older than this boot.
    pub(super) before_boot: bool,
    /// Were it alive, its other end would be on a bridge that was looked at.
    pub(super) on_bridge: bool,
    /// All ports of that bridge are known to belong to others.
    pub(super) ports_known: bool,
}

impl Evidence {
    pub(super) fn judge(self) -> (State, &'static str) {
        match self {
            Evidence { port: true, .. } => (State::Alive, "its port is there"),
            Evidence { address: true, .. } => (State::Alive, "its address is in use"),
            Evidence { place: Some(Place::There), on_bridge: true, ports_known: true, .. } => {
                (State::NoPort, "its namespace is there, its interface is not")
            }
            Evidence { place: Some(Place::There), .. } => (State::Alive, "its namespace is there"),
            Evidence { before_boot: true, .. } => (State::Gone, "it is from before the last boot"),
            Evidence { place: Some(Place::Hidden), .. } => (State::Unknown, "its namespace cannot be looked at"),
            Evidence { ports_known: false, .. } => (State::Unknown, "not all ports and namespaces could be told apart"),
            Evidence { place: Some(Place::Empty), .. } => (State::Gone, "its namespace is gone"),
            Evidence { on_bridge: true, .. } => (State::Gone, "no port is its"),
            _ => (State::Unknown, "nothing tells its namespace"),
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
    fn a_port_or_an_address_in_use_outweighs_everything() {
        for place in [None, Some(Place::Empty), Some(Place::There), Some(Place::Hidden)] {
            assert_eq!(state(Evidence { port: true, place, before_boot: true, ..BRIDGE }), State::Alive);
            assert_eq!(state(Evidence { address: true, place, before_boot: true, ..BRIDGE }), State::Alive);
        }
    }

    #[test]
    fn only_what_surely_has_no_namespace_is_gone() {
        assert_eq!(state(BRIDGE), State::Gone);
        assert_eq!(state(Evidence { place: Some(Place::Empty), ..BRIDGE }), State::Gone);
        assert_eq!(state(Evidence { place: Some(Place::Empty), on_bridge: false, ..BRIDGE }), State::Gone);
        assert_eq!(state(Evidence { before_boot: true, on_bridge: false, ports_known: false, ..BRIDGE }), State::Gone);
        for unsure in [
            Evidence { ports_known: false, ..BRIDGE },
            Evidence { on_bridge: false, ..BRIDGE },
            Evidence { place: Some(Place::Hidden), ..BRIDGE },
            Evidence { place: Some(Place::Empty), ports_known: false, ..BRIDGE },
        ] {
            assert_eq!(state(unsure), State::Unknown, "{unsure:?}");
        }
    }

    #[test]
    fn a_namespace_without_its_interface_is_no_live_attachment_and_no_dead_one() {
        assert_eq!(state(Evidence { place: Some(Place::There), ..BRIDGE }), State::NoPort);
        assert_eq!(state(Evidence { place: Some(Place::There), on_bridge: false, ..BRIDGE }), State::Alive);
        assert_eq!(state(Evidence { place: Some(Place::There), ports_known: false, ..BRIDGE }), State::Alive);
    }
}
