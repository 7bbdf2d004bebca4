//! The outcomes of probes, and their output as text or JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::cause::Cause;
use crate::table::{self, Paint, Tone};

/// The stable identifiers of all probes, each with what it proves. docs/cnitool.md lists them.
pub(super) const PROBES: [(&str, &str); 22] = [
    ("add", "ADD of each container succeeds"),
    ("address", "the container has the addresses of the result, and answers itself"),
    ("first-packet", "the first packet after ADD arrives"),
    ("gateway", "the gateway answers"),
    ("neighbour-icmp", "another container of the network answers an echo"),
    ("neighbour-tcp", "a connection of TCP to it carries data"),
    ("neighbour-udp", "a datagram of UDP to it is answered"),
    ("neighbour-mtu", "the largest packet arrives without fragments"),
    ("host", "the host reaches the container, and gets answers"),
    ("outside", "an address outside of this host answers"),
    ("masquerade", "there, packets have the address of this host, unless \"ipMasqExclude\" has the destination"),
    ("port-host", "a published port is reachable at an address of this host"),
    ("port-udp", "a published port of UDP is, too"),
    ("port-loopback", "a published port is reachable at 127.0.0.1"),
    ("port-neighbour", "another container reaches a published port"),
    ("port-itself", "the container reaches its own published port"),
    ("rate-ingress", "what the container receives is limited"),
    ("rate-egress", "what the container sends is limited"),
    ("isolation", "what the network forbids does not arrive"),
    ("dns", "the DNS servers of the result answer"),
    ("check", "CHECK succeeds"),
    ("del", "DEL succeeds twice, and nothing is left"),
];

/// How a probe ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// With what was seen.
    Passed(String),
    /// With what was seen, and why, as far as it was found.
    Failed(String, Vec<Cause>),
    /// With the reason why it does not apply.
    Skipped(String),
}

/// A probe that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) id: &'static str,
    pub(super) family: Option<&'static str>,
    pub(super) outcome: Outcome,
    pub(super) time: Option<Duration>,
}

/// The probes of a network so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) ended: Vec<Ended>,
}

impl Report {
    pub(super) fn push(
        &mut self,
        id: &'static str,
        family: Option<&'static str>,
        outcome: Outcome,
        time: Option<Duration>,
    ) {
        self.ended.push(Ended { id, family, outcome, time });
    }

    pub(super) fn failures(&self) -> usize {
        self.ended.iter().filter(|ended| matches!(ended.outcome, Outcome::Failed(..))).count()
    }

    /// Formats the probes for a reader. Those that do not apply are only listed by their names.
    pub(super) fn text(&self, paint: Paint) -> String {
        let mut lines = String::new();
        for ended in &self.ended {
            let (tone, level, seen) = match &ended.outcome {
                Outcome::Passed(seen) => (Tone::Good, "ok  ", seen),
                Outcome::Failed(seen, _) => (Tone::Bad, "fail", seen),
                Outcome::Skipped(_) => continue,
            };
            let name = format!("{:<14} {:<4}", ended.id, ended.family.unwrap_or_default());
            let time = ended.time.map_or_else(|| " ".repeat(10), |time| format!("{:>10}", table::duration(time)));
            lines += &format!("  {} {name} {time}  {}\n", paint.paint(tone, level), table::sanitize(seen));
            if let Outcome::Failed(_, causes) = &ended.outcome {
                for cause in causes {
                    lines += &table::wrap(&cause.to_string(), 9);
                }
            }
        }
        let skipped = self.ended.iter().filter_map(|ended| match &ended.outcome {
            Outcome::Skipped(why) => Some(format!("{}: {why}", ended.id)),
            _ => None,
        });
        let mut skipped: Vec<String> = skipped.collect();
        skipped.dedup();
        for line in &skipped {
            lines += &format!("  {} {}\n", paint.paint(Tone::Plain, "-   "), table::sanitize(line));
        }
        lines
    }

    /// Formats the counts.
    pub(super) fn summary(&self, time: Duration) -> String {
        let count = |wanted: fn(&Outcome) -> bool| self.ended.iter().filter(|ended| wanted(&ended.outcome)).count();
        format!(
            "{} ok, {} failed, {} not applicable, in {}\n",
            count(|outcome| matches!(outcome, Outcome::Passed(_))),
            self.failures(),
            count(|outcome| matches!(outcome, Outcome::Skipped(_))),
            table::duration(time)
        )
    }

    pub(super) fn json(&self) -> Value {
        let probes = self.ended.iter().map(|ended| {
            let (outcome, seen, causes) = match &ended.outcome {
                Outcome::Passed(seen) => ("ok", seen, None),
                Outcome::Failed(seen, causes) => ("fail", seen, Some(causes)),
                Outcome::Skipped(why) => ("not-applicable", why, None),
            };
            let causes: Vec<Value> = causes.into_iter().flatten().map(Cause::json).collect();
            json!({
                "id": ended.id,
                "proves": PROBES.iter().find(|(id, _)| *id == ended.id).map(|(_, meaning)| *meaning),
                "family": ended.family,
                "outcome": outcome,
                "seen": seen,
                "milliseconds": ended.time.map(|time| (time.as_secs_f64() * 1e6).round() / 1e3),
                "causes": causes,
            })
        });
        probes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_list_all_probes() {
        let page = include_str!("../../../../docs/cnitool.md");
        let (_, table) = page.split_once("| probe | what it proves |").unwrap();
        let (table, _) = table.split_once("\n\n").unwrap();
        let cells = table.lines().filter_map(|line| line.split('|').nth(1));
        let documented: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        assert_eq!(documented, PROBES.map(|(id, _)| id));
    }

    #[test]
    fn a_report_counts_and_explains() {
        let mut report = Report::default();
        report.push("gateway", Some("ipv4"), Outcome::Passed("10.1.0.1".to_owned()), Some(Duration::from_micros(90)));
        let cause = Cause { kind: "rule", place: "this host".to_owned(), text: "drop".to_owned(), owner: Some("ufw") };
        report.push("outside", Some("ipv4"), Outcome::Failed("no answer".to_owned(), vec![cause]), None);
        report.push("dns", None, Outcome::Skipped("no server".to_owned()), None);
        let text = report.text(Paint::of_stdout());
        assert!(text.contains("fail outside        ipv4             no answer\n"), "{text}");
        assert!(text.contains("this host: drop (usually of ufw)"), "{text}");
        assert!(text.contains("-    dns: no server"), "{text}");
        let summary = report.summary(Duration::from_millis(1500));
        assert_eq!(summary, "1 ok, 1 failed, 1 not applicable, in 1.50 s\n");
        assert_eq!(report.json()[1]["causes"][0]["owner"], "ufw");
    }
}
