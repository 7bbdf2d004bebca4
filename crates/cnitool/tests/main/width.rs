//! The width of tables.

use std::fs;

use testing::{Process, program_path};

use crate::node::{LONG_ID, host};
use crate::support::Host;

/// Creates so many leases of long ids.
fn leases(count: usize) {
    let path = std::path::Path::new("/var/lib/cni/networks/pods");
    fs::create_dir_all(path).unwrap();
    for number in 0..count {
        let file = path.join(format!("10.211.{}.{}", number / 250, number % 250 + 2));
        fs::write(file, format!("{LONG_ID}{number:03}\r\neth0")).unwrap();
    }
}

/// Runs a command on a terminal of this width.
fn on_terminal(host: &Host, columns: usize, words: &str) -> String {
    let call = format!("stty cols {columns}; exec {} {words}", program_path("cnitool").display());
    let script = Process::new("script").arg("-qefc").arg(call).arg("/dev/null").env("TERM", "dumb");
    let outcome = script.env("NETCONFPATH", host.conf_dir()).env("CNI_PATH", host.lab.bin()).run();
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    outcome.stdout.replace('\r', "")
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap()
}

#[test]
fn tables_use_the_width_of_the_terminal() {
    let host = host("10.211.0.0/16");
    leases(3);
    let id = format!("{LONG_ID}000");
    let wide = on_terminal(&host, 150, "leases");
    assert!(wide.contains(&id) && widest(&wide) > 80, "{wide}");
    let narrow = on_terminal(&host, 60, "leases");
    assert!(narrow.contains("..") && narrow.contains("eth0") && widest(&narrow) <= 60, "only ids are cut: {narrow}");
    for words in ["leases", "show", "networks", "prune --dry-run"] {
        // A terminal this narrow breaks lines, but nothing fails.
        assert!(!on_terminal(&host, 20, words).is_empty(), "{words}");
    }
}

#[test]
fn without_a_terminal_lines_have_80_columns_unless_columns_is_set() {
    let host = host("10.218.0.0/16");
    leases(300);
    let plain = host.run("leases").stdout;
    assert_eq!(widest(&plain), 80, "{plain}");
    assert_eq!(plain.matches("eth0").count(), 300);
    let columns = |value: &str| host.call("leases").env("COLUMNS", value).run().stdout;
    assert!(columns("200").contains(&format!("{LONG_ID}299")));
    assert!(widest(&columns("50")) <= 50);
    for invalid in ["0", "-3", "wide", ""] {
        assert_eq!(widest(&columns(invalid)), 80, "{invalid}");
    }
}
