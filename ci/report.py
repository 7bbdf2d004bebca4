"""Reports a finished run of ci/bench: statistics, targets, tables and the chart. Reads the output of `--json`; needs no root."""

import collections
import math
import random
import statistics
import sys

OURS, THEIRS, FLOOR = "shared", "reference", "floor"  # the contestants in targets
LIST = "podman's list"
SIZE = int(1.25 * (1 << 20))  # limit in bytes for the program, of which each plugin is a copy

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


# Targets: description, value (a number, or a ratio with its interval), comparison, limit. Omits what was not measured.

def targets(results):
    return [target for target in all_targets(results) if target[1] is not None]


def all_targets(results):
    ratio = results.ratio

    def tail(measure, above, below):
        values = [results.quantile(measure, who, 0.99) for who in (above, below)]
        return None if None in values else values[0] / values[1]

    def median(measure):
        return results.quantile(measure, OURS, 0.5)

    def counted(measure, what, scale=1):
        value = results.count(measure, OURS, what)
        return value and value / scale

    def processes(measure):
        value = counted(measure, "processes")
        return value and value - 1

    masquerade, portmap, firewall = "bridge masquerade ADD", "portmap, 1 port ADD", "firewall ADD"
    size = results.data["sizes"].get(OURS)
    size = size and size / results.data.get("plugins", 3)
    return [
        *((f"{LIST} {command}, reference to ours", ratio(f"{LIST} {command}", THEIRS, OURS), ">=", 25) for command in ("ADD", "DEL")),
        *((f"{LIST} {command}, to the sum of the floors", ratio(f"{LIST} {command}", OURS, FLOOR), "<=", 1.6)
          for command in ("ADD", "DEL")),
        *((f"{LIST}, 100 containers, 50 at once, {command}, reference to ours",
           ratio(f"{LIST}, 50 at once, all 100 {command}", THEIRS, OURS), ">=", 15) for command in ("ADD", "DEL")),
        ("bridge ADD, to the floor", ratio("bridge plain ADD", OURS, FLOOR), "<=", 1.5),
        ("bridge ADD, reference to ours", ratio("bridge plain ADD", THEIRS, OURS), ">=", 6),
        ("bridge ADD, processor time, reference to ours", ratio("bridge plain ADD", THEIRS, OURS, "cpu"), ">=", 8),
        ("bridge ADD with nftables masquerade, to the floor", ratio("bridge masquerade nftables ADD", OURS, FLOOR), "<=", 1.6),
        ("bridge ADD with masquerade, reference to ours", ratio(masquerade, THEIRS, OURS), ">=", 15),
        ("bridge ADD, dual stack, to the floor", ratio("bridge dual stack ADD", OURS, FLOOR), "<=", 1.6),
        ("bridge ADD, dual stack, reference to ours", ratio("bridge dual stack ADD", THEIRS, OURS), ">=", 5),
        ("bridge ADD, dual stack, 99th percentile, ours to reference", tail("bridge dual stack ADD", OURS, THEIRS), "<=", 0.2),
        ("bridge DEL, to the floor", ratio("bridge plain DEL", OURS, FLOOR), "<=", 1.1),
        ("bridge DEL, reference to ours", ratio("bridge plain DEL", THEIRS, OURS), ">=", 1),
        ("bridge DEL, dual stack, reference to ours", ratio("bridge dual stack DEL", THEIRS, OURS), ">=", 1),
        ("bridge DEL with masquerade, reference to ours", ratio("bridge masquerade DEL", THEIRS, OURS), ">=", 4),
        ("100 ADDs, 50 at once, reference to ours", ratio("bridge, 50 at once, all 100 ADD", THEIRS, OURS), ">=", 7),
        ("bridge ADD with masquerade, MiB of memory", counted(masquerade, "memory", 1024), "<=", 4),
        ("bridge ADD with masquerade, system calls", counted(masquerade, "syscalls"), "<=", 110),
        ("bridge ADD with masquerade, netlink messages sent", counted(masquerade, "sends"), "<=", 5),
        ("bridge ADD with masquerade, processes started", processes(masquerade), "<=", 0),
        ("start-up (bridge VERSION), reference to ours", ratio("bridge VERSION", THEIRS, OURS), ">=", 7),
        *((f"host-local {command}, {leases} leases, reference to ours",
           ratio(f"host-local, {leases} leases {command}", THEIRS, OURS), ">=", wanted)
          for leases, wanted in ((10, 6), (10_000, 100)) for command in ("ADD", "DEL")),
        ("host-local ADD at 60000 leases to ADD at 10",
         ratio("host-local flat, 60000 leases ADD", OURS, OURS, other="host-local flat, 10 leases ADD"), "<=", 1.3),
        ("host-local ADD, one free address in a /16, reference to ours",
         ratio("host-local, one free address in a /16 ADD", THEIRS, OURS), ">=", 30),
        ("host-local STATUS, one free address in a /16, ms", median("host-local, one free address in a /16 STATUS"), "<", 1),
        ("host-local STATUS, 60000 leases, ms", median("host-local, 60000 leases STATUS"), "<", 1),
        ("host-local CHECK, 60000 leases, ms", median("host-local, 60000 leases CHECK"), "<", 1),
        ("host-local ADD, 60000 leases, MiB of memory", counted("host-local, 60000 leases ADD", "memory", 1024), "<=", 8),
        ("host-local ADD, 60000 leases without an index, MiB of memory", counted("host-local, 60000 leases, no index ADD", "memory", 1024), "<=", 8),
        *((f"portmap {command}, {ports}, reference to ours", ratio(f"portmap, {ports} {command}", THEIRS, OURS), ">=", wanted)
          for command, ports, wanted in (("ADD", "1 port", 25), ("ADD", "20 ports", 100), ("ADD", "500 ports", 500),
                                         ("CHECK", "500 ports", 500), ("DEL", "1 port", 20))),
        ("portmap ADD, 1 port, to the floor", ratio(portmap, OURS, FLOOR), "<=", 1.5),
        ("portmap ADD, 1 port, processes started", processes(portmap), "<=", 0),
        *((f"portmap {command}, 1000 ports to 100 ports",
           ratio(f"portmap growth, 1000 ports {command}", OURS, OURS, other=f"portmap growth, 100 ports {command}"), "<=", 10)
          for command in ("ADD", "CHECK", "DEL")),
        ("portmap, first packet, 1000 published ports to 1",
         ratio("portmap first packet, 1000 ports", OURS, OURS, other="portmap first packet, 1 port"), "<=", 1.2),
        *((f"firewall {command}, reference to ours", ratio(f"firewall {command}", THEIRS, OURS), ">=", 15)
          for command in ("ADD", "DEL")),
        ("firewall ADD, to the floor", ratio(firewall, OURS, FLOOR), "<=", 1.5),
        ("firewall ADD, processes started", processes(firewall), "<=", 0),
        *((f"{name} ADD, reference to ours", ratio(f"{name} ADD", THEIRS, OURS), ">=", wanted)
          for name, wanted in (("tuning {}", 10), ("tuning sysctl and MAC", 6), ("bandwidth", 5), ("flannel", 6))),
        *((f"{name} ADD, processes started", processes(f"{name} ADD"), "<=", 0)
          for name in ("tuning {}", "tuning sysctl and MAC", "bandwidth", "flannel")),
        ("flannel ADD, to bridge ADD with the same configuration",
         ratio("flannel ADD", OURS, OURS, other="flannel, bridge alone ADD"), "<=", 1.15),
        ("size of each installed plugin, KiB", size and size / 1024, "<", round(SIZE / 1024, 1)),
    ]


def is_met(value, comparison, limit):
    value = value[0] if isinstance(value, tuple) else value
    return {"<=": value <= limit, ">=": value >= limit, "<": value < limit}[comparison]


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
    yield ("Wall time in ms, p50/p90/p99, and ratios of the medians (95 % confidence)",
           ["measure", "n", *results.names, *ratios], [row(measure, "wall") for measure in results.samples])
    yield ("Processor time in ms, of all processes of a call, p50",
           ["measure", "n", *results.names, *ratios],
           [row(measure, "cpu") for measure in results.samples])
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
           [[what, times(value) if isinstance(value, tuple) else figure(value), f"{comparison} {limit}",
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
COLOURS = {"shared": "#e4572e", "separate": "#f0a202", "reference": "#4c86c6", "floor": "#8a8f98"}
FOOTNOTE = ("A DEL of cni0 returns when the link is gone, before the kernel\u2019s grace period; the kernel\u2019s minimum includes "
            "that period.")


def label(who, results):
    """Returns the name of a contestant in the chart."""
    names = {"shared": "cni0", "separate": "cni0, separate files", "floor": "kernel\u2019s minimum",
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
