//! The MAC address that a network or a runtime requests for a container.

use linux::ip::MacAddr;

use crate::error::{Code, Error, Result};

/// Returns the requested MAC address. Each source has a name, the code of an error, and a text, which may be empty.
/// Only the first source that has a text is validated and used.
pub fn requested_mac(sources: &[(&str, Code, &str)]) -> Result<Option<MacAddr>> {
    let Some((source, code, text)) = sources.iter().find(|(.., text)| !text.is_empty()) else {
        return Ok(None);
    };
    let refuse = |why: &str, remedy: &str| Err(Error::new(*code, format!("{source}: {why}")).details(remedy));
    match text.parse::<MacAddr>() {
        Err(why) => refuse(&why.to_string(), "write six bytes, such as 0a:58:0a:f4:00:02"),
        Ok(MacAddr::ZERO) => refuse(&format!("{text:?} is all zeros"), "use another address"),
        Ok(MacAddr([first, ..])) if first & 1 != 0 => {
            refuse(&format!("{text:?} is a multicast address"), "use an address whose first byte is even")
        }
        Ok(mac) => Ok(Some(mac)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_source_with_a_text_counts() {
        let mac =
            |first, second| requested_mac(&[("key \"mac\"", Code::CONFIG, first), ("MAC", Code::ENVIRONMENT, second)]);
        assert_eq!(mac("", "").unwrap(), None);
        assert_eq!(mac("", "0A:58:0a:f4:00:02").unwrap().unwrap().to_string(), "0a:58:0a:f4:00:02");
        assert_eq!(mac("02:00:00:00:00:01", "x").unwrap().unwrap().to_string(), "02:00:00:00:00:01", "not validated");
        for bad in ["x", "00:00:00:00:00:00", "01:00:5e:00:00:01", "02:00:00:00:00:00:00:01"] {
            let error = mac("", bad).unwrap_err();
            assert_eq!(error.code(), Code::ENVIRONMENT);
            assert!(error.to_string().starts_with("MAC: ") && error.to_string().contains(bad), "{error}");
        }
    }
}
