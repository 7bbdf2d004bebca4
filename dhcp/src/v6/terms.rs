//! What a DHCPv6 server grants: the content of an ADVERTISE or a REPLY, validated. Pure functions.

use std::net::Ipv6Addr;

use cni::Dns;
use linux::ip::Cidr;

use super::message::{Association, Leased, Options, option, status};
use crate::settings::Settings;
use crate::terms::{Server, Terms, Times, domains};

/// Why a server grants nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It cannot give an address now, or its message cannot be used. An address that the client has stays valid.
    Nothing(String),
    /// The client must not use the address that it has.
    Withdrawn(String),
}

/// Reads what a server grants to the association with this number; `former` is the address that the client has.
pub(super) fn read(
    options: &Options,
    number: u32,
    server: Server,
    former: Option<Ipv6Addr>,
    settings: &Settings,
) -> Result<Terms, Refusal> {
    refuse(options)?;
    let mut associations = options.all(option::ASSOCIATION).filter_map(Association::parse);
    let found = associations.find(|association| association.number == number);
    let found = found.ok_or_else(|| Refusal::Nothing("it has no address".to_owned()))?;
    refuse(&found.options)?;
    let Some(leased) = found.addresses().find(is_usable) else {
        let is_withdrawn = found.addresses().any(|leased| leased.valid == 0 && Some(leased.address) == former);
        return Err(match is_withdrawn {
            true => Refusal::Withdrawn("it is no longer valid".to_owned()),
            false => Refusal::Nothing("it has no address that an interface can have".to_owned()),
        });
    };
    Ok(Terms {
        address: leased.address.into(),
        // Which other addresses are on the link, routers say.
        prefix: 128,
        server,
        gateway: None,
        routes: Vec::new(),
        dns: if settings.ignore_dns { Dns::default() } else { dns(options) },
        mtu: None,
        times: times(&found, leased),
    })
}

/// Returns an error unless the state is success.
fn refuse(options: &Options) -> Result<(), Refusal> {
    let (code, text) = options.status();
    let name = match code {
        status::SUCCESS => return Ok(()),
        status::NO_ADDRESS => "no address is left".to_owned(),
        status::NO_BINDING => "it does not know the lease".to_owned(),
        status::NOT_ON_LINK => "the address is not of this network".to_owned(),
        code => format!("state {code}"),
    };
    let why = if text.is_empty() { name } else { format!("{name} ({text})") };
    Err(match code {
        status::NO_BINDING | status::NOT_ON_LINK => Refusal::Withdrawn(why),
        _ => Refusal::Nothing(why),
    })
}

fn is_usable(leased: &Leased) -> bool {
    leased.valid > 0 && leased.preferred <= leased.valid && is_host(leased.address)
}

/// Returns whether a host can have the address beyond its link.
fn is_host(ip: Ipv6Addr) -> bool {
    let has_flaw = Cidr::host(ip.into()).not_of_an_interface().is_some();
    !(has_flaw || ip.is_loopback() || ip.is_unicast_link_local())
}

/// Returns the times of a lease. A server that says none of its own leaves them to the client.
fn times(association: &Association, leased: Leased) -> Option<Times> {
    // Before the address is no longer preferred.
    let shortest = leased.preferred.max(1).min(leased.valid);
    let given = |time, default| if time == 0 { default } else { time };
    let renew = given(association.renew, shortest / 2);
    let rebind = given(association.rebind, shortest / 5 * 4);
    Times::new(leased.valid, renew, rebind)
}

fn dns(options: &Options) -> Dns {
    // A link-local address needs the name of an interface, which a file for a resolver cannot have for each container.
    let servers = options.addresses(option::NAME_SERVERS).filter(|server| is_host(*server));
    Dns {
        nameservers: servers.map(|server| server.to_string()).collect(),
        search: options.get(option::SEARCH).map(domains).unwrap_or_default(),
        ..Dns::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 9);

    fn server() -> Server {
        Server { address: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(), id: vec![0, 3, 0, 1] }
    }

    fn association(leased: &[Leased]) -> Association {
        let addresses = leased.iter().map(|leased| (option::ADDRESS, leased.write())).collect();
        Association { number: 7, renew: 0, rebind: 0, options: Options(addresses) }
    }

    fn leased(address: Ipv6Addr, preferred: u32, valid: u32) -> Leased {
        Leased { address, preferred, valid }
    }

    fn read_one(association: &Association, more: &[(u16, &[u8])]) -> Result<Terms, Refusal> {
        let more = more.iter().map(|(number, value)| (*number, value.to_vec()));
        let options = Options([(option::ASSOCIATION, association.write())].into_iter().chain(more).collect());
        read(&options, 7, server(), Some(ADDRESS), &Settings::default())
    }

    #[test]
    fn the_first_usable_address_is_taken() {
        let other = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 8);
        let bad = ["::", "::1", "ff02::1", "fe80::1", "::ffff:10.0.0.1"].map(|text| text.parse().unwrap());
        let mut all: Vec<Leased> = bad.into_iter().map(|address| leased(address, 60, 60)).collect();
        all.extend([leased(other, 61, 60), leased(other, 0, 0)]);
        assert_eq!(
            read_one(&association(&all), &[]),
            Err(Refusal::Nothing("it has no address that an interface can have".to_owned()))
        );
        all.push(leased(ADDRESS, 60, 120));
        let terms = read_one(&association(&all), &[]).unwrap();
        assert_eq!((terms.cidr().to_string().as_str(), terms.routes.len()), ("fd66::9/128", 0));
        let others = Association { number: 8, ..association(&all) };
        assert_eq!(read_one(&others, &[]), Err(Refusal::Nothing("it has no address".to_owned())));
    }

    #[test]
    fn times_are_in_their_order() {
        let times = |renew, rebind, preferred, valid| {
            let with = Association { renew, rebind, ..association(&[leased(ADDRESS, preferred, valid)]) };
            read_one(&with, &[]).unwrap().times.map(|times| [times.renew, times.rebind, times.end])
        };
        assert_eq!(times(10, 20, 30, 40), Some([10, 20, 40]));
        assert_eq!(times(0, 0, 1000, 2000), Some([500, 800, 2000]));
        assert_eq!(times(0, 0, 0, 2000), Some([1000, 1750, 2000]), "no preferred time");
        assert_eq!(times(30, 20, 100, 100), Some([19, 20, 100]));
        assert_eq!(times(u32::MAX, u32::MAX, 100, 100), Some([50, 88, 100]));
        assert_eq!(times(0, 0, 1, 1), Some([4, 7, 8]), "as with IPv4, no lease is shorter");
        assert_eq!(times(5, 6, u32::MAX, u32::MAX), None);
    }

    #[test]
    fn the_state_says_what_becomes_of_the_address() {
        let good = association(&[leased(ADDRESS, 60, 60)]);
        for (value, wanted) in [
            (&b"\0\x02"[..], Refusal::Nothing("no address is left".to_owned())),
            (b"\0\x01busy", Refusal::Nothing("state 1 (busy)".to_owned())),
            (b"\0\x03", Refusal::Withdrawn("it does not know the lease".to_owned())),
            (b"\0\x04moved", Refusal::Withdrawn("the address is not of this network (moved)".to_owned())),
        ] {
            assert_eq!(read_one(&good, &[(option::STATUS, value)]).unwrap_err(), wanted);
            let mut inside = good.clone();
            inside.options.0.push((option::STATUS, value.to_vec()));
            assert_eq!(read_one(&inside, &[]).unwrap_err(), wanted);
        }
        let gone = association(&[leased(ADDRESS, 0, 0)]);
        assert_eq!(read_one(&gone, &[]), Err(Refusal::Withdrawn("it is no longer valid".to_owned())));
    }

    #[test]
    fn names_and_servers_that_cannot_be_used_are_left_out() {
        let servers: Vec<u8> =
            ["fd66::53", "fe80::53", "::"].iter().flat_map(|ip| ip.parse::<Ipv6Addr>().unwrap().octets()).collect();
        let more: [(u16, &[u8]); 2] =
            [(option::NAME_SERVERS, &servers), (option::SEARCH, b"\x03eng\x03org\0\x03a b\0")];
        let good = association(&[leased(ADDRESS, 60, 60)]);
        let dns = read_one(&good, &more).unwrap().dns;
        assert_eq!((dns.nameservers, dns.search), (vec!["fd66::53".to_owned()], vec!["eng.org".to_owned()]));
        let options = Options(vec![(option::ASSOCIATION, good.write()), (option::NAME_SERVERS, servers)]);
        let settings = Settings { ignore_dns: true, ..Settings::default() };
        assert!(read(&options, 7, server(), None, &settings).unwrap().dns.is_empty());
    }
}
