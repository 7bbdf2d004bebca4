//! For tools: live attachments whose CHECK finds a difference, of plugins whose objects are in containers.

use cni::inspect::{Finding, Id, LiveAttachment, NetworkView, lacking};
use cni::{Attachment, Call, Error, Result};
use linux::log::debug;

/// What is compared in each container.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    /// The name of the check.
    pub check: &'static str,
    /// The identifiers of the findings that there is no difference, and that there is one.
    pub ids: [Id; 2],
    /// What is reported if there is no difference.
    pub ok: &'static str,
    /// What containers lack, as a noun in the plural.
    pub lacks: &'static str,
}

impl Compared {
    /// Compares the containers of a network. `difference` returns what CHECK finds; an error if it cannot compare.
    pub fn findings(
        self,
        network: &NetworkView<'_>,
        difference: impl Fn(&Call<'_>, &Attachment) -> Result<Option<Error>>,
    ) -> Vec<Finding> {
        let Compared { check, ids: [same, different], ok, lacks } = self;
        let mut first: Option<Error> = None;
        let (mut count, mut affected): (usize, Vec<&LiveAttachment>) = (0, Vec::new());
        for live in network.alive {
            let Some(added) = &live.added else { continue };
            count += 1;
            match added.with_call(&difference) {
                Ok(None) => {}
                Ok(Some(error)) => {
                    affected.push(live);
                    first.get_or_insert(error);
                }
                Err(error) => debug!("the {lacks} of {} are unknown: {error}", added.attachment.container),
            }
        }
        let Some(error) = first else {
            return (count > 0).then(|| Finding::ok(check, same, ok)).into_iter().collect();
        };
        lacking(&affected, "another program changed the containers; `cnitool repair` restores what is missing", |of| {
            Finding::warn(check, different, format!("{} of {count} live containers lack {lacks}: {error}", of.len()))
        })
    }
}
