//! The frame of an ADD: each rollback step is registered before the step that it reverts, and all of them run if one
//! fails.

use cni::{AddResult, Attachment, AttachmentKey, Call, Delegate, Error, Namespaces, Result, Undo};

use crate::ipam::works_over_interface;

/// An ADD in progress.
#[derive(Debug)]
pub struct Add<'a> {
    /// The call.
    pub call: &'a Call<'a>,
    /// The attachment.
    pub at: &'a Attachment,
    /// The attachment, as marks name it.
    pub key: AttachmentKey<'a>,
    /// The namespaces on both sides, with the rollback steps.
    pub undo: Undo<'a, Namespaces>,
}

impl<'a> Add<'a> {
    /// Runs an ADD. If `attach` fails, or returns a result that the version of the configuration cannot express,
    /// reverts its steps.
    pub fn run(
        call: &'a Call<'a>,
        at: &'a Attachment,
        attach: impl FnOnce(&mut Add<'a>) -> Result<AddResult>,
    ) -> Result<AddResult> {
        let undo = Undo::new(Namespaces::open(call, at)?);
        let mut add = Add { call, at, key: AttachmentKey::new(call, at), undo };
        match attach(&mut add).and_then(|result| result.to_version(call.version).map(|_| result)) {
            Ok(result) => {
                add.undo.commit();
                Ok(result)
            }
            Err(error) => Err(add.roll_back(error)),
        }
    }

    /// Calls ADD of the IPAM plugin, and returns its result. For a rollback, `delete` must delete the interface: an
    /// address that is still in use must not be leased to another container. As for DEL, `dhcp` gives it back before.
    pub fn lease_addresses(
        &mut self,
        ipam: &'a Delegate<'a>,
        delete: impl FnOnce(&mut Namespaces) -> Result<()> + 'a,
    ) -> Result<AddResult> {
        let at = self.at;
        self.undo.push("release the addresses", move |namespaces| {
            if works_over_interface(ipam) {
                let released = ipam.del(at);
                return delete(namespaces).and(released);
            }
            delete(namespaces)?;
            ipam.del(at)
        });
        ipam.add(at).map_err(|failure| failure.without_del(&mut self.undo))
    }

    /// Reverts all steps because of `error`, and returns the error to report.
    fn roll_back(mut self, error: Error) -> Error {
        let error = explain_forbidden(error);
        // Rollback steps run on the host, but the failure may have left this thread in the container namespace.
        let error = match self.undo.context().return_to_host() {
            Ok(()) => error,
            Err(stuck) => error.details(stuck.to_string()),
        };
        self.undo.roll_back(error)
    }
}

/// Validates the ADD of the IPAM plugin. Without one, returns an error if the version of the configuration cannot
/// express a container without addresses.
pub fn prepare_ipam(call: &Call<'_>, at: &Attachment, ipam: Option<&mut Delegate<'_>>) -> Result<()> {
    match ipam {
        Some(ipam) => ipam.prepare(at),
        None => AddResult::default().to_version(call.version).map(drop),
    }
}

/// Returns whether the kernel answered that this process lacks permission.
pub fn is_forbidden(error: &Error) -> bool {
    error.as_ref().is_refusal() && error.errno() == Some(libc::EPERM)
}

/// Adds the permissions that the plugin needs to the kernel's answer that it lacks them.
pub fn explain_forbidden(error: Error) -> Error {
    match is_forbidden(&error) {
        true => error.details("needs CAP_NET_ADMIN and CAP_SYS_ADMIN: run the plugin as root"),
        false => error,
    }
}
