//! The output of `cnitool prune`: text as it happens, or JSON at the end.

use cni::{Error, Result};
use serde_json::{Map, Value, json};

use super::{PrunePlan, PrunedItem};
use crate::node::Node;
use crate::out;
use crate::table::{self, Paint, Table, Tone};

/// The output for a reader, or for a program.
pub(super) enum Report {
    Text(Paint),
    /// One object for each network.
    Json(Vec<Value>),
}

impl Report {
    /// Begins the part of a network.
    pub(super) fn begin(&mut self, network: &str, is_first: bool) -> Result<()> {
        match self {
            Report::Text(paint) => {
                let gap = if is_first { "" } else { "\n" };
                let title = table::shorten(&format!("network {network}"), table::width());
                out::print(format!("{gap}{}\n", paint.paint(Tone::Bold, &title)))
            }
            Report::Json(networks) => {
                networks.push(json!({ "name": network, "remove": [], "keep": {}, "skipped": null, "error": null }));
                Ok(())
            }
        }
    }

    /// Adds what is about to be removed.
    pub(super) fn plan(&mut self, plan: &PrunePlan, dry_run: bool) -> Result<()> {
        if let Report::Text(paint) = self {
            return out::print(page(plan, dry_run, *paint));
        }
        self.describe(plan);
        Ok(())
    }

    /// Adds that so many containers are kept after all.
    pub(super) fn spared(&mut self, plan: &PrunePlan, count: usize) -> Result<()> {
        if let Report::Text(_) = self {
            let what = format!("kept after all: {}, alive or removed by now", table::count(count, "container"));
            return out::print(table::wrap(&what, 2));
        }
        self.describe(plan);
        Ok(())
    }

    /// Adds why nothing was done.
    pub(super) fn skipped(&mut self, why: &Error) -> Result<()> {
        if let Report::Text(_) = self {
            return out::print(table::wrap(&format!("skipped: {}", out::one_line(why)), 2));
        }
        self.set("skipped", out::one_line(why).into());
        Ok(())
    }

    /// Adds an error, which stderr has as well.
    pub(super) fn failed(&mut self, error: &Error) {
        self.set("error", out::one_line(error).into());
    }

    /// Prints the rest. `refusal` is why prune would not run without `--dry-run`.
    pub(super) fn end(self, node: &Node, dry_run: bool, refusal: Option<&Error>) -> Result<()> {
        let networks = match self {
            Report::Json(networks) => networks,
            Report::Text(_) => {
                if node.networks.is_empty() {
                    out::print("no network found\n")?;
                }
                out::print(node.not_seen())?;
                let Some(error) = refusal else { return Ok(()) };
                return out::print(format!(
                    "\n{}",
                    table::wrap(&format!("prune would refuse: {}", out::one_line(error)), 0)
                ));
            }
        };
        out::print_versioned(json!({
            "dryRun": dry_run, "networks": networks, "wouldRefuse": refusal.map(out::one_line), "notSeen": node.unseen,
        }))
    }

    fn describe(&mut self, plan: &PrunePlan) {
        self.set("remove", plan.removals().iter().map(describe).collect());
        let kept: Map<String, Value> =
            plan.kept().into_iter().map(|(state, count)| (state.json().to_owned(), count.into())).collect();
        self.set("keep", Value::Object(kept));
    }

    /// Sets a member of the current network.
    fn set(&mut self, key: &str, value: Value) {
        if let Report::Json(networks) = self
            && let Some(Value::Object(network)) = networks.last_mut()
        {
            network.insert(key.to_owned(), value);
        }
    }
}

fn describe(removal: &PrunedItem<'_>) -> Value {
    json!({
        "kind": removal.kind, "what": removal.what, "container": removal.container(),
        "interface": removal.ifname(), "why": removal.why,
    })
}

fn page(plan: &PrunePlan, dry_run: bool, paint: Paint) -> String {
    let mut rows = Table::new(&["REMOVE", "WHAT*", "CONTAINER**", "INTERFACE*", "WHY*"]);
    for removal in plan.removals() {
        let container = removal.container().unwrap_or("-").to_owned();
        let ifname = removal.ifname().unwrap_or("-").to_owned();
        let cells = [removal.kind.to_owned(), removal.what.clone(), container, ifname, removal.why.to_owned()];
        rows.row(cells.into_iter().map(|cell| (Tone::Plain, cell)).collect());
    }
    let mut text = match rows.is_empty() {
        true => "  nothing to remove\n".to_owned(),
        false => rows.render(paint, 2),
    };
    let kept = plan.kept().into_iter().filter(|(_, count)| *count > 0);
    let kept: Vec<String> = kept.map(|(state, count)| format!("{count} {}", state.text())).collect();
    if !kept.is_empty() {
        text += &table::wrap(&format!("kept: {}", kept.join(", ")), 2);
    }
    if dry_run && !rows.is_empty() {
        text += "  nothing was changed\n";
    }
    text
}
