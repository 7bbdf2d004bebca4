"""Reports a finished run of ci/bench: statistics, targets, tables and the chart. Reads the output of `--json`; needs no root."""

import collections
import math
import random
import statistics
import sys

OURS, THEIRS, FLOOR = "cni0", "reference", "floor"  # the contestants in targets
LIST = "podman's list"
PODMAN_5, NETAVARK = "podman 5", "netavark"  # a measure with its own contestant

Sample = collections.namedtuple("Sample", "wall cpu")  # in ms


class Results:
    """Samples and counts of a run, from memory or from a file."""

    def __init__(self, data):
        self.data = data
        self.names = data["contestants"]
        self.samples = {measure: {who: [Sample(*sample) for sample in samples] for who, samples in by.items()}
                        for measure, by in lists_first(data["samples"])}
        self.again = {}

    def values(self, measure, who, which="wall"):
        return [getattr(sample, which) for sample in self.samples.get(measure, {}).get(who, ())]

    def quantile(self, measure, who, share, which="wall"):
        values = sorted(self.values(measure, who, which))
        if not values:
            return None
        return statistics.median(values) if share == 0.5 else values[math.ceil(share * len(values)) - 1]

    def count(self, measure, who, what):
        return self.data["counts"].get(measure, {}).get(who, {}).get(what)

    def medians(self, measure, who, which):
        """Returns medians of resampled samples (the bootstrap), to estimate the confidence interval of the median."""
        key = measure, who, which
        if key not in self.again:
            chance = random.Random(repr(key))
            values = self.values(*key)
            self.again[key] = [statistics.median(chance.choices(values, k=len(values))) for _ in range(300)]
        return self.again[key]

    def ratio(self, measure, above, below, which="wall", other=None):
        """Returns the ratio of `above` to `below`: the median and its 95 % confidence interval. None if one was not measured.
        `other` is the measure of `below`, if it is a different one."""
        other = other or measure
        if not self.values(measure, above, which) or not self.quantile(other, below, 0.5, which):
            return None
        pairs = zip(self.medians(measure, above, which), self.medians(other, below, which))
        spread = sorted(a / b for a, b in pairs if b)
        middle = self.quantile(measure, above, 0.5, which) / self.quantile(other, below, 0.5, which)
        return middle, spread[int(len(spread) * 0.025)], spread[int(len(spread) * 0.975)]


def lists_first(measures):
    """Returns the items with those of whole lists first: that is what a runtime calls, and users wait for."""
    return sorted(measures.items(), key=lambda item: not item[0].startswith(LIST))


# Targets: description, ratio with its interval, comparison, limit. Omits what was not measured.

def targets(results):
    return [target for target in all_targets(results) if target[1] is not None]


def all_targets(results):
    ratio = results.ratio
    return [
        (f"{LIST} ADD, reference to ours", ratio(f"{LIST} ADD", THEIRS, OURS), ">=", 25),
        *((f"{PODMAN_5} {command}, netavark's driver to ours", ratio(f"{PODMAN_5} {command}", NETAVARK, OURS), ">=", 20)
          for command in ("ADD", "DEL")),
        *((f"{name} ADD, to the floor", ratio(f"{name} ADD", OURS, FLOOR), "<=", limit)
          for name, limit in (("bridge plain", 1.5), ("bridge masquerade nftables", 1.6), ("bridge dual stack", 1.6))),
        *((f"{name}, reference to ours", ratio(name, THEIRS, OURS), ">=", limit) for name, limit in (
            ("bridge plain ADD", 6), ("bridge masquerade ADD", 15), ("bridge dual stack ADD", 5), ("bridge VERSION", 7),
            ("bridge, 50 at once, all 100 ADD", 7), ("host-local, 10 leases ADD", 6), ("host-local, 10 leases DEL", 6),
            ("host-local, 10000 leases ADD", 100), ("host-local, 10000 leases DEL", 100), ("portmap, 1 port ADD", 25),
            ("firewall ADD", 15), ("tuning {} ADD", 10), ("tuning sysctl and MAC ADD", 6), ("bandwidth ADD", 5), ("sbr ADD", 6), ("flannel ADD", 6),
            ("macvlan ADD", 6), ("macvlan DEL", 8), ("macvlan with dhcp ADD", 3), ("ptp ADD", 6), ("ptp DEL", 8),
            ("ptp IPv6 ADD", 100), ("ptp masquerade ADD", 12), ("ptp masquerade DEL", 20))),
        ("bridge plain ADD, processor time, reference to ours", ratio("bridge plain ADD", THEIRS, OURS, "cpu"), ">=", 8),
        *((f"{above} to {below}", ratio(above, OURS, OURS, other=below), "<=", limit) for above, below, limit in (
            ("host-local flat, 60000 leases ADD", "host-local flat, 10 leases ADD", 1.3),
            ("portmap growth, 1000 ports ADD", "portmap growth, 100 ports ADD", 10),
            ("portmap growth, 1000 ports CHECK", "portmap growth, 100 ports CHECK", 10),
            ("portmap growth, 1000 ports DEL", "portmap growth, 100 ports DEL", 10),
            ("portmap first packet, 1000 ports", "portmap first packet, 1 port", 1.2),
            ("flannel ADD", "flannel, bridge alone ADD", 1.15))),
    ]


def is_met(value, comparison, limit):
    value = value[0] if isinstance(value, tuple) else value
    return value <= limit if comparison == "<=" else value >= limit


def missed(results):
    return [what for what, *rest in targets(results) if not is_met(*rest)] + results.data["broken"]


# Tables: (title, head, rows), as plain text and as Markdown

def figure(value):
    """Formats a value with three significant digits, or four for large values."""
    if value is None:
        return "-"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if 0 < abs(value) < 100 else f"{value:.{int(value < 1000 and value != int(value))}f}"


def times(found):
    return "-" if found is None else f"{figure(found[0])} ({figure(found[1])}-{figure(found[2])})"


def tables(results):
    ours, others = results.names[0], results.names[1:]
    pairs = [(ours, who) if who == FLOOR else (who, ours) for who in others]

    def row(measure, which):
        by = results.samples[measure]
        shares = (0.5, 0.9, 0.99) if which == "wall" else (0.5,)
        return [measure, str(max(map(len, by.values()))),
                *("/".join(figure(results.quantile(measure, who, share, which)) for share in shares) if who in by else "-"
                  for who in results.names),
                *(times(results.ratio(measure, above, below, which)) for above, below in pairs)]

    ratios = [f"{above} : {below}" for above, below in pairs]
    ordinary = [measure for measure in results.samples if not measure.startswith(PODMAN_5)]
    yield ("podman 5: setup and teardown of a container with a published port. Wall time in ms, p50, and the ratio",
           ["measure", "n", "our plugin of netavark", "netavark's driver bridge", f"{NETAVARK} : {ours}"],
           [[measure, str(len(by[OURS])), *(figure(results.quantile(measure, who, 0.5)) for who in (OURS, NETAVARK)),
             times(results.ratio(measure, NETAVARK, OURS))] for measure, by in results.samples.items() if measure not in ordinary])
    yield ("Wall time in ms, p50/p90/p99, and ratios of the medians (95 % confidence)",
           ["measure", "n", *results.names, *ratios], [row(measure, "wall") for measure in ordinary])
    yield ("Processor time in ms, of all processes of a call, p50",
           ["measure", "n", *results.names, *ratios],
           [row(measure, "cpu") for measure in ordinary])
    versions, sizes = results.data.get("versions", {}), results.data["sizes"]
    yield ("Counts of one call: system calls · netlink messages sent · processes · MiB of the largest process",
           ["call", *results.names],
           [[measure, *(" · ".join([*(str(by[who][what]) for what in ("syscalls", "sends", "processes")),
                                    figure(by[who]["memory"] / 1024)]) if who in by else "-" for who in results.names)]
            for measure, by in lists_first(results.data["counts"])])
    yield ("Contestants: versions and installed sizes in KiB", ["contestant", "version", "KiB"],
           [[who, versions.get(who, "-"), str(math.ceil(sizes[who] / 1024))] for who in results.names])
    yield ("Lists that failed, in all rounds", ["calls", *results.names],
           [[measure, *(str(by.get(who, "-")) for who in results.names)] for measure, by in results.data.get("failed", {}).items()])
    yield ("Targets", ["target", "value", "limit", ""],
           [[what, times(value), f"{comparison} {limit}",
             "met" if is_met(value, comparison, limit) else "MISSED"] for what, value, comparison, limit in targets(results)])


def plain(title, head, rows):
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    lines = ["  ".join(f"{cell:<{width}}" if n == 0 else f"{cell:>{width}}" for n, (cell, width) in enumerate(zip(row, widths)))
             for row in [head, *rows]]
    return "\n".join([title, *lines, ""])


def markdown(title, head, rows):
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join([f"**{title}**", "", *("| " + " | ".join(row) + " |" for row in lines), ""])


def show(results):
    for title, head, rows in tables(results):
        if rows:
            print(plain(title, head, rows))


BEGIN, END = "<!-- generated by ci/bench: begin -->", "<!-- generated by ci/bench: end -->"


def place(machine):
    return f"{machine['system']}, {machine['processors']} processors ({machine['model']})"


def write_markdown(path, results):
    write_tables(path, results, tables(results), BEGIN, END)


def write_tables(path, results, tables, begin, end):
    """Replaces what a file has between two lines with tables."""
    with open(path) as file:
        text = file.read()
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"{path} must contain the lines {begin} and {end}")
    machine = results.data["machine"]
    new = [f"Measured {machine['when']} on {place(machine)}, load {machine['load']} at the start"
           f"{', with --quick' if results.data['quick'] else ''}.", ""]
    new += [markdown(title, head, rows) for title, head, rows in tables if rows]
    before, after = text.split(begin)[0], text.split(end)[1]
    with open(path, "w") as file:
        file.write("\n".join([before + begin, *new, end + after]))


# The chart

# The rows: a measure, and its title.
ROWS = (
    (f"{LIST} ADD", "ADD of podman\u2019s network: 4 plugins, 1 published port"),
    (f"{LIST} DEL", "DEL of podman\u2019s network"),
    (f"{LIST}, 50 at once, all 100 ADD", "100 ADDs of podman\u2019s network, 50 at once"),
    ("bridge plain ADD", "ADD"),
    ("bridge masquerade ADD", "ADD with masquerade"),
    ("bridge plain DEL", "DEL"),
    ("bridge, 50 at once, all 100 ADD", "100 ADDs, 50 at once"),
    ("host-local, 10000 leases ADD", "host-local ADD, 10,000 leases"),
)
# The bars of a row, by contestant.
COLOURS = {"cni0": "#e4572e", "reference": "#4c86c6", "floor": "#8a8f98"}
FOOTNOTE = ("A DEL of cni0 returns when the link is gone, before the kernel\u2019s grace period; the kernel\u2019s minimum includes "
            "that period.")


def label(who, results):
    """Returns the name of a contestant in the chart."""
    names = {"floor": "kernel\u2019s minimum",
             "reference": f"reference {results.data.get('versions', {}).get('reference', '')}".strip()}
    return names.get(who, who)


def draw(path, results):
    """Draws the medians as bars, in colours that are visible on light and dark backgrounds. The scale is linear within a
    row. Beside each bar stand the milliseconds, and how many times as long as cni0 it takes."""
    rows = [(measure, title) for measure, title in ROWS if results.quantile(measure, OURS, 0.5)]
    if not rows:
        sys.exit("the run has none of the measures that the chart shows")
    left, width, thick, gap, y = 150, 470, 14, 16, 20
    out = []
    for measure, title in rows:
        medians = {who: results.quantile(measure, who, 0.5) for who in results.names}
        medians = {who: value for who, value in medians.items() if value}
        longest = max(medians.values())
        out.append(f'<text x="0" y="{y}" class="title">{title}</text>')
        y += 8
        for who, value in medians.items():
            length = max(width * value / longest, 1)
            ratio = value / medians[OURS]
            factor = "" if who == OURS else f" (\u00d7{ratio:.{0 if ratio >= 10 else 1}f})"
            out.append(f'<text x="{left - 8}" y="{y + thick - 4}" text-anchor="end">{label(who, results)}</text>')
            out.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{thick - 3}" fill="{COLOURS.get(who, "#2a9d8f")}"/>')
            out.append(f'<text x="{left + length + 5:.1f}" y="{y + thick - 4}">{figure(value)} ms{factor}</text>')
            y += thick
        y += gap + 8
    samples = {len(results.values(measure, OURS)) for measure, _ in rows}
    count = f"{min(samples)} to {max(samples)}" if len(samples) > 1 else f"{samples.pop()}"
    machine = results.data["machine"]
    about = f"Medians of n = {count} calls, {machine['when']}, {place(machine)}; shorter is better."
    for line in (about, FOOTNOTE):
        out.append(f'<text x="0" y="{y}" class="small">{line}</text>')
        y += 15
    with open(path, "w") as file:
        file.write("\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 130}" height="{y}" '
            f'viewBox="0 0 {left + width + 130} {y}" role="img">',
            "<title>cni0 and the reference: median time of a call in milliseconds</title>",
            "<style>text { font: 12px sans-serif; fill: #7d8590 } .title { font-weight: bold } .small { font-size: 10px }</style>",
            *out, "</svg>", ""]))
