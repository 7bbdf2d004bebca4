//! The subnet file: missing, late, in other layouts, and broken.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testing::{Lab, Pod, Scripted, parallel};

use crate::node::{REST, SUBNET_FILE, V4, V6, assert_clean, config, join_cluster, recorder, write_subnet_file};

fn recorded() -> Value {
    config(json!({ "delegate": { "type": Scripted::NAME } }))
}

#[test]
fn a_missing_file_is_a_transient_failure() {
    Lab::for_each_way_to_delegate(|lab| {
        let (pod, config) = (Pod::new(lab, "c1"), config(json!({})));
        for has_directory in [false, true] {
            if has_directory {
                fs::create_dir(Path::new(SUBNET_FILE).parent().unwrap()).unwrap();
            }
            let error = pod.call("ADD", &config).run().error(11);
            let wanted = "open /run/flannel/subnet.env: no such file or directory";
            assert!(error["msg"].as_str().unwrap().contains(wanted), "{error}");
            assert!(error["details"].as_str().unwrap().contains("check the flannel pod log"), "{error}");
            assert_clean(lab);
        }
    });
}

/// flanneld renames the file into place while the plugin waits for it. strace stops the plugin at each of these system
/// calls.
#[test]
fn a_file_that_appears_meanwhile_is_read() {
    let lab = &Lab::new();
    recorder(lab);
    fs::create_dir(Path::new(SUBNET_FILE).parent().unwrap()).unwrap();
    let pod = &Pod::new(lab, "c1");
    // Before the second attempt to read the file, and while the plugin waits for a notification.
    for call in ["inotify_add_watch", "poll"] {
        let options = ["-e", "trace=inotify_add_watch,poll", "-e", &format!("inject={call}:signal=STOP")];
        let (outcome, log) = parallel::at_each_stop(lab, pod.call("ADD", &recorded()), &options, |log| {
            if log.contains("inotify_add_watch") {
                join_cluster();
            }
        });
        outcome.ok();
        assert!(log.contains("inotify_add_watch"), "{log}");
        pod.del(&recorded());
        fs::remove_file(SUBNET_FILE).unwrap();
    }
}

#[test]
fn other_layouts_are_understood() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    let pod = Pod::new(lab, "c1");
    join_cluster();
    pod.add(&recorded());
    let wanted = recorder.stdin("ADD");
    for text in [
        format!("{V4}{REST}").replace('\n', "\r\n"),
        format!("# by hand\n\nexport FLANNEL_NETWORK=\"10.1.0.0/16\"\n FLANNEL_SUBNET = '10.1.17.1/24' \n{REST}"),
        format!("FLANNEL_MTU=9000\n{V4}{}", REST.trim_end()),
        format!("{REST}OTHER\n{V4}"),
    ] {
        write_subnet_file(&text);
        pod.add(&recorded());
        assert_eq!(recorder.stdin("ADD"), wanted, "{text}");
    }
}

#[test]
fn a_broken_line_is_named() {
    let lab = &Lab::new();
    let recorder = recorder(lab);
    let pod = Pod::new(lab, "c1");
    for (text, code, wanted) in [
        (format!("{V4}FLANNEL_MTU=abc\nFLANNEL_IPMASQ=true\n"), 7, "line 3: FLANNEL_MTU: \"abc\" is not a number"),
        (format!("{V4}FLANNEL_MTU\nFLANNEL_IPMASQ=true\n"), 7, "line 3: FLANNEL_MTU: there is no \"=\""),
        (
            format!("{V4}FLANNEL_MTU=1472\nFLANNEL_IPMASQ=1\n"),
            7,
            "line 4: FLANNEL_IPMASQ: \"1\" is neither true nor false",
        ),
        (format!("{V4}FLANNEL_SUBNET=10.1.0.0/33\n{REST}"), 7, "line 3: FLANNEL_SUBNET: invalid CIDR address"),
        (String::new(), 11, "is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET"),
        (V4.to_owned(), 11, "is missing FLANNEL_MTU, FLANNEL_IPMASQ"),
    ] {
        write_subnet_file(&text);
        let error = pod.call("ADD", &recorded()).run().error(code);
        let wanted = format!("{SUBNET_FILE}{}{wanted}", if code == 7 { ": " } else { " " });
        assert!(error["msg"].as_str().unwrap().contains(&wanted), "{error}");
        assert_clean(lab);
    }
    assert_eq!(recorder.calls(), [] as [&str; 0]);
}

#[test]
fn a_subnet_outside_the_network_is_logged() {
    let lab = &Lab::new();
    recorder(lab);
    write_subnet_file(&format!("{}{REST}", V4.replace("10.1.0.0", "10.244.0.0")));
    let pod = Pod::new(lab, "c1");
    let outcome = pod.call("ADD", &recorded()).env("CNI_LOG", "warn").run();
    outcome.ok();
    let wanted = "subnet 10.1.17.0/24 is not in the cluster network 10.244.0.0/16";
    assert!(outcome.stderr.contains(wanted), "{}", outcome.stderr);
    write_subnet_file(&format!("{V4}{V6}{REST}"));
    let outcome = pod.call("ADD", &recorded()).env("CNI_LOG", "warn").run();
    outcome.ok();
    assert_eq!(outcome.stderr, "");
}

/// None of these can make a call wait for ever.
#[test]
fn a_subnet_file_that_is_not_a_file_is_an_error() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "c1");
    fs::create_dir(Path::new(SUBNET_FILE).parent().unwrap()).unwrap();
    lab.sh(&format!("mkfifo {SUBNET_FILE}"));
    pod.call("ADD", &config(json!({}))).run().error(11);
    pod.del(&config(json!({})));
    for (file, code) in [("/run", 5), ("/dev/zero", 11), ("/dev/null", 11)] {
        let config = config(json!({ "subnetFile": file }));
        let error = pod.call("ADD", &config).run().error(code);
        assert!(error["msg"].as_str().unwrap().contains(file), "{error}");
        pod.del(&config);
    }
    assert_clean(lab);
}

/// The configuration of the network has no such key.
#[test]
fn an_error_about_a_generated_key_names_the_subnet_file() {
    let lab = &Lab::new();
    let pod = Pod::new(lab, "c1");
    for (lines, key) in [
        (format!("{V4}{REST}FLANNEL_MTU=67\n"), "mtu"),
        (format!("{V4}{REST}FLANNEL_SUBNET=10.1.17.1/32\n"), "ipam.ranges[0][0]"),
    ] {
        write_subnet_file(&lines);
        let error = pod.call("ADD", &config(json!({}))).run().error(7);
        assert!(error["msg"].as_str().unwrap().contains(&format!("key \"{key}\"")), "{error}");
        assert!(error["details"].as_str().unwrap().contains(SUBNET_FILE), "{error}");
    }
}
