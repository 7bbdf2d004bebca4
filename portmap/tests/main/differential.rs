//! The iptables form beside that of the reference: the same rules, byte for byte.

use linux::netlink::nft::{Family, Nftables, Rule, Table};
use serde_json::{Value, json};
use testing::config::with;
use testing::{Lab, Outcome, Pod, reference};

use crate::support::config;

/// A configuration, and the addresses of the container.
pub(crate) struct Case {
    pub(crate) config: Value,
    pub(crate) ips: &'static [&'static str],
}

const DUAL: &[&str] = &["10.9.0.2/24", "fd00::2/64"];

/// Returns configurations that both implementations support, and for which they add the same rules.
pub(crate) fn cases() -> Vec<Case> {
    let case = |ports: &[&str], ips, more: Value| Case {
        config: with(with(config(ports), json!({ "cniVersion": "1.0.0", "backend": "iptables" })), more),
        ips,
    };
    let many: Vec<String> = (0..34).map(|n| format!("{}:{}/tcp", 8000 + n, 80 + n)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    vec![
        case(&["8080:80/tcp"], &["10.9.0.2/24"], json!({})),
        case(&["8080:80/tcp", "53:53/udp", "9001:90/tcp", "54:53/udp"], DUAL, json!({})),
        case(&["8080:80/tcp"], &["fd00::2/61"], json!({})),
        case(&["99:53/sctp", "98:53/dccp", "97:53/tcp"], DUAL, json!({})),
        case(
            &["10.9.0.1 8080:80/tcp", "10.9.0.9 8080:81/tcp", "0.0.0.0 53:53/udp", "10.9.0.1 99:53/sctp"],
            &["10.9.7.2/20"],
            json!({}),
        ),
        case(&["fd00::1 8080:80/tcp", ":: 53:53/udp", "fd00::1 98:9/dccp"], &["fd00::2/128"], json!({})),
        case(&["8080:80/tcp"], DUAL, json!({ "snat": false })),
        case(
            &["8080:80/tcp", "53:53/udp"],
            DUAL,
            json!({ "conditionsV4": ["!", "-d", "192.0.2.0/24", "-i", "eth0"], "conditionsV6": ["-s", "2001:db8::/33", "!", "-i", "veth+"] }),
        ),
        case(&["8080:80/tcp"], DUAL, json!({ "markMasqBit": 31 })),
        case(&["8080:80/tcp"], DUAL, json!({ "externalSetMarkChain": "KUBE-MARK-MASQ" })),
        case(&many, DUAL, json!({})),
        // Ports of the other family.
        case(&["8080:80/tcp", "2001:db8::1 8081:81/tcp", ":: 8082:82/tcp"], &["10.9.0.2/24"], json!({})),
        case(&["10.9.0.1 8080:80/tcp", "0.0.0.0 53:53/udp"], DUAL, json!({})),
        case(&["10.9.0.1 8080:80/tcp", "fd00::1 8081:80/tcp", "fd00::1 8082:80/udp"], DUAL, json!({})),
    ]
}

/// Calls the reference's plugin.
pub(crate) fn theirs(pod: &Pod<'_>, command: &str, config: &Value) -> Outcome {
    pod.call_reference(command, config).run()
}

/// Calls the reference's CHECK for each address of a pod. Version 1.1.1 looks for all rules in both families, unless
/// the tools of one do not work.
#[track_caller]
pub(crate) fn check_theirs(pod: &Pod<'_>, config: &Value) {
    for ip in &pod.ips {
        let broken = if ip.contains(':') { "iptables" } else { "ip6tables" };
        let tools = pod.lab.dir().join(format!("no-{broken}"));
        if !tools.exists() {
            std::fs::create_dir(&tools).unwrap();
            testing::write_script(&tools.join(broken), "exit 1");
        }
        let path = format!("{}:{}", tools.display(), testing::PATH);
        let pod = Pod { ips: vec![ip.clone()], ..pod.clone() };
        pod.call_reference("CHECK", config).env("PATH", path).run().ok();
    }
}

/// Returns the nat tables as the tools print them, without counters and dates.
pub(crate) fn nat(lab: &Lab) -> String {
    without_counters(&lab.sh("iptables-save -t nat; echo; ip6tables-save -t nat"))
}

/// Removes the counters of chains and the dates from the output of a save tool.
pub(crate) fn without_counters(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(" [0:0]").next().unwrap().to_owned() + "\n").collect()
}

/// Creates the chain of another program that one of the configurations needs.
pub(crate) fn create_external_chain(lab: &Lab) {
    lab.sh("for tool in iptables ip6tables; do $tool -t nat -N KUBE-MARK-MASQ; done");
}

/// Returns the rules of both nat tables without what identifies a single rule.
fn rules() -> Vec<Rule> {
    let mut nft = Nftables::open().unwrap();
    let mut found = Vec::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        for mut rule in nft.table_rules(Table { family, name: "nat" }).unwrap() {
            (rule.handle, rule.mark) = (0, String::new());
            found.push(rule);
        }
    }
    found.sort_by(|a, b| a.chain.cmp(&b.chain));
    found
}

#[test]
fn both_add_the_same_rules() {
    if reference("portmap", "both_add_the_same_rules").is_none() {
        return;
    }
    let lab = &Lab::new();
    for Case { config, ips } in cases() {
        let pod = Pod::absent(lab, "id1", ips);
        create_external_chain(lab);
        theirs(&pod, "ADD", &config).ok();
        let (text, listed) = (nat(lab), rules());
        assert!(text.contains("CNI-DN-a19237f207ed3fa9670f3"), "{text}");
        lab.sh("nft flush ruleset");

        create_external_chain(lab);
        pod.add(&config);
        assert_eq!(nat(lab), text, "{config}");
        // The tools print conditions in an order of their own.
        if config.get("conditionsV4").is_none() {
            assert_eq!(rules(), listed, "{config}");
        }
        // A second ADD replaces the rules.
        pod.add(&config);
        assert_eq!(nat(lab), text, "{config}");
        lab.sh("nft flush ruleset");
    }
}

#[test]
fn both_add_to_existing_rules() {
    if reference("portmap", "both_add_to_existing_rules").is_none() {
        return;
    }
    let lab = &Lab::new();
    let config = &cases()[1].config;
    let pods = |lab| {
        let pod = |(n, id)| Pod::absent(lab, id, [&["10.9.0.2/24"][..], &["10.9.0.3/24"], &["10.9.0.4/24"]][n]);
        ["a", "b", "c"].into_iter().enumerate().map(pod).collect::<Vec<_>>()
    };
    // Each has other ports.
    let config_of = |n: i64| {
        let mut config = config.clone();
        for mapping in config["runtimeConfig"]["portMappings"].as_array_mut().unwrap() {
            mapping["hostPort"] = json!(mapping["hostPort"].as_i64().unwrap() + 100 * n);
        }
        config
    };
    // The administrator's rules stay before or after ours, where the reference leaves them.
    let prepare = "iptables -t nat -A PREROUTING -p tcp --dport 1 -j RETURN
                   iptables -t nat -A POSTROUTING -s 10.9.0.0/24 -j MASQUERADE";
    lab.sh(prepare);
    for (n, pod) in (0..).zip(pods(lab)) {
        theirs(&pod, "ADD", &config_of(n)).ok();
    }
    let text = nat(lab);
    lab.sh("nft flush ruleset");
    lab.sh(prepare);
    for (n, pod) in (0..).zip(pods(lab)) {
        if n == 1 {
            theirs(&pod, "ADD", &config_of(n)).ok();
        } else {
            pod.add(&config_of(n));
        }
    }
    assert_eq!(nat(lab), text);
}

/// The reference of this version lacks the key.
#[test]
fn everything_is_masqueraded_on_request() {
    let lab = &Lab::new();
    let config = with(config(&["10.9.0.1 8080:80/tcp"]), json!({ "backend": "iptables", "masqAll": true }));
    let pod = Pod::absent(lab, "id1", &["10.9.0.2/24"]);
    pod.add(&config);
    let chain = "CNI-DN-a19237f207ed3fa9670f3";
    assert_eq!(
        lab.sh(&format!("iptables -t nat -S {chain}")),
        format!(
            "-N {chain}\n\
             -A {chain} -d 10.9.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK\n\
             -A {chain} -d 10.9.0.1/32 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.9.0.2:80\n"
        )
    );
    // As newer versions of the reference check it.
    lab.sh(&format!("iptables -t nat -C {chain} -p tcp --dport 8080 -d 10.9.0.1 -s 0.0.0.0/0 -j CNI-HOSTPORT-SETMARK"));
    pod.check(&config).ok();
    pod.del(&config);
    assert!(!nat(lab).contains("CNI-DN"), "{}", nat(lab));
}
