//! STATUS: returns an error if an ADD would fail now, as far as that is known without a container.

use cni::{Code, Error, Result};
use linux::sysctl;

use crate::config::Config;
use crate::{add, allowlist};

pub(crate) fn run(config: &Config) -> Result<()> {
    let unavailable = |error: Error| error.with_code(Code::NOT_AVAILABLE);
    allowlist::require(&config.sysctls, None).map_err(unavailable)?;
    for sysctl in &config.sysctls {
        let Some(path) = sysctl.key.common_path() else { continue };
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        // One that can only be written exists.
        if matches!(sysctl::read(&parts), Ok(None)) {
            let what = format!("key \"sysctl\": this kernel has no sysctl {:?}", sysctl.key.to_string());
            let error = Error::new(Code::NOT_AVAILABLE, what);
            return Err(error.details("check the name, and whether the kernel has the feature"));
        }
        // Other obstacles may differ in the namespace of a container.
        if let Err(error) = sysctl::check_writable(&parts)
            && error.raw_os_error() == Some(libc::EROFS)
        {
            return Err(unavailable(add::explain(sysctl, error)));
        }
    }
    Ok(())
}
