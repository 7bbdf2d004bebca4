//! Devices that are described by their hardware, with a file system in place of sysfs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;
use testing::{Lab, Pod, Scripted};

use crate::{assert_given_back, config, lab};

const PCI: &str = "/sys/bus/pci/devices/0000:3d:00.1";
const AUXILIARY: &str = "/sys/bus/auxiliary/devices/mlx5_core.sf.4";

/// Returns the host with an empty sysfs.
fn without_hardware() -> Lab {
    let lab = lab();
    lab.sh("mount -t tmpfs sysfs /sys");
    lab
}

/// Makes `link` a link of the hardware in `dir`.
fn add_link(dir: &str, link: &str) {
    fs::create_dir_all(Path::new(dir).join("net").join(link)).unwrap();
}

fn set_driver(name: &str) {
    let driver = Path::new(PCI).join("driver");
    let _ = fs::remove_file(&driver);
    fs::create_dir_all(PCI).unwrap();
    symlink(format!("../../../bus/pci/drivers/{name}"), driver).unwrap();
}

#[test]
fn each_description_finds_the_device() {
    let lab = &without_hardware();
    let pod = Pod::new(lab, "a");
    let path = "/sys/devices/pci0000:00/0000:00:03.0";
    add_link(PCI, "nic");
    add_link(AUXILIARY, "nic");
    add_link(path, "nic");
    for keys in [
        json!({ "hwaddr": "02:00:00:00:00:01" }),
        json!({ "kernelpath": path }),
        json!({ "pciBusID": "0000:3d:00.1" }),
        json!({ "pciBusID": "0000:ff:00.0", "runtimeConfig": { "deviceID": "0000:3d:00.1" } }),
        json!({ "runtimeConfig": { "deviceID": "mlx5_core.sf.4" } }),
        // The first of them counts.
        json!({ "device": "nic", "runtimeConfig": { "deviceID": "0000:ff:00.0" } }),
    ] {
        let mut config = config(keys.clone());
        if keys.get("device").is_none() {
            config["device"] = json!("");
        }
        let result = pod.add(&config);
        let is_pci = ["0000:3d:00.1"].iter().any(|id| keys.to_string().contains(id));
        assert_eq!(
            result["interfaces"][0]["pciID"],
            if is_pci { json!("0000:3d:00.1") } else { json!(null) },
            "{keys}"
        );
        pod.check_result(&config, &result).ok();
        // The hardware is in the container.
        pod.del(&config);
        assert_given_back(lab, &keys.to_string());
    }
}

/// A virtio card has its links one level deeper.
#[test]
fn links_of_a_virtio_card_are_found() {
    let lab = &without_hardware();
    add_link(&format!("{PCI}/virtio3"), "nic");
    let pod = Pod::new(lab, "a");
    let config = config(json!({ "device": "", "pciBusID": "0000:3D:00.1" }));
    pod.add(&config);
    pod.del(&config);
    assert_given_back(lab, "DEL");
}

/// Neither guesses which of several links is meant.
#[test]
fn hardware_with_several_links_is_ambiguous() {
    let lab = &without_hardware();
    let pod = Pod::new(lab, "a");
    let config = config(json!({ "device": "", "pciBusID": "0000:3d:00.1" }));
    add_link(PCI, "nic");
    add_link(PCI, "far");
    let error = pod.call("ADD", &config).run().error(999);
    assert!(error["msg"].as_str().unwrap().ends_with("has several links: \"far\", \"nic\""), "{error}");
    // Links that represent functions of the card are not the card.
    fs::write(format!("{PCI}/net/far/phys_port_name"), "pf0vf1\n").unwrap();
    fs::write(format!("{PCI}/net/nic/phys_port_name"), "p0\n").unwrap();
    pod.add(&config);
    pod.del(&config);
    assert_given_back(lab, "DEL");
}

#[test]
fn hardware_without_a_link_is_not_found() {
    let lab = &without_hardware();
    let pod = Pod::new(lab, "a");
    fs::create_dir_all(PCI).unwrap();
    let config = config(json!({ "device": "", "pciBusID": "0000:3d:00.1" }));
    let error = pod.call("ADD", &config).run().error(999);
    let want = format!("failed to find host device: Link not found: \"pciBusID\" {PCI:?}");
    assert_eq!(error["msg"], want.as_str());
    pod.del(&config);
}

/// A program uses the device without the kernel: it stays where it is, and IPAM's addresses are only reported.
#[test]
fn a_dpdk_device_stays() {
    let lab = &without_hardware();
    let pod = Pod::new(lab, "a");
    pod.answer(json!({ "ips": [{ "address": "10.1.0.5/24" }], "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }] }));
    let ipam = json!({ "ipam": { "type": Scripted::NAME } });
    for driver in ["vfio-pci", "uio_pci_generic", "igb_uio"] {
        set_driver(driver);
        for keys in [json!({ "pciBusID": "0000:3d:00.1" }), json!({ "runtimeConfig": { "deviceID": "0000:3d:00.1" } })]
        {
            let mut config = testing::config::with(config(keys), ipam.clone());
            config["device"] = json!("");
            let result = pod.add(&config);
            let listed = json!([{ "name": "eth0", "sandbox": pod.netns, "pciID": "0000:3d:00.1" }]);
            assert_eq!(result["interfaces"], listed);
            assert_eq!(result["ips"], json!([{ "address": "10.1.0.5/24", "interface": 0 }]));
            assert_eq!(pod.sh("ip -o link | grep -v LOOPBACK || true"), "");
            pod.check_result(&config, &result).ok();
            pod.del(&testing::config::with(config, json!({ "prevResult": result })));
            assert_eq!(Scripted::of(lab).calls_for("a").last().unwrap(), "DEL a eth0");
        }
    }
    // Also by a key, for any device.
    pod.add(&config(json!({ "DPDKMode": true })));
    assert_given_back(lab, "ADD in DPDK mode");
    pod.del(&config(json!({ "DPDKMode": true })));
    // The driver has no links, but is not for such programs.
    set_driver("e1000");
    pod.call("ADD", &config(json!({ "device": "", "pciBusID": "0000:3d:00.1" }))).run().error(999);
}
