//! Bad input: one error that names the key, and no change.

use serde_json::{Value, json};
use testing::Lab;

use crate::pod::{both, config, container, ifbs, state, text, with};

#[test]
fn bad_rates_are_refused() {
    let lab = &Lab::new();
    let pod = container(lab);
    let before = state(lab);
    for direction in ["ingress", "egress"] {
        let (rate, burst) = (format!("{direction}Rate"), format!("{direction}Burst"));
        let raw = |value: &str| -> Value { serde_json::from_str(value).unwrap() };
        let mut cases: Vec<(Value, u32, &str)> = Vec::new();
        cases.push((json!({ &rate: -8, &burst: 8 }), 7, &rate));
        cases.push((json!({ &rate: 8, &burst: -8 }), 7, &burst));
        for value in ["\"8M\"", "1.5", "8e6", "true", "[]", "{}"] {
            cases.push((json!({ &rate: raw(value), &burst: 8 }), 6, &rate));
            cases.push((json!({ &rate: 8, &burst: raw(value) }), 6, &burst));
        }
        cases.push((json!({ &rate: 8 }), 7, "if rate is set, burst must also be set"));
        cases.push((json!({ &burst: 8 }), 7, "if burst is set, rate must also be set"));
        cases.push((json!({ &rate: 7, &burst: 8 }), 7, &rate));
        cases.push((json!({ &rate: 8, &burst: 7 }), 7, &burst));
        cases.push((json!({ &rate: 8, &burst: 34_359_738_360_u64 }), 7, "burst cannot be more than 4GB"));
        for (keys, code, wanted) in cases {
            for config in [config(keys.clone()), config(json!({ "runtimeConfig": { "bandwidth": keys } }))] {
                for command in ["ADD", "CHECK"] {
                    let error = pod.call(command, &config).run().error(code);
                    assert!(text(&error["msg"]).contains(wanted), "{config}: {error}");
                }
                // What was added with an earlier configuration must be removed.
                pod.add(&both());
                pod.del(&config);
                assert_eq!(ifbs(lab), [""; 0], "{config}");
                lab.sh("tc qdisc del dev vethc1 root; tc qdisc del dev vethc1 clsact");
            }
        }
        // 2^64 cannot be written with serde_json.
        let text = config(json!({ &rate: 8, &burst: 8 })).to_string().replace(":8", ":18446744073709551616");
        pod.call("ADD", &both()).stdin(text).run().error(7);
    }
    assert_eq!(state(lab), before);
}

#[test]
fn a_previous_result_is_required() {
    let lab = &Lab::new();
    let pod = container(lab);
    for config in [both(), config(json!({}))] {
        for command in ["ADD", "CHECK"] {
            let error = pod.call(command, &with(config.clone(), json!({ "prevResult": null }))).run().error(7);
            assert!(text(&error["msg"]).contains("must be called as chained plugin"), "{error}");
        }
    }
}

#[test]
fn keys_of_other_versions_are_ignored() {
    let lab = &Lab::new();
    let pod = container(lab);
    let config = with(both(), json!({ "shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": 5 }));
    pod.add(&config);
    pod.check(&config).ok();
}
