"""For ci/bench --path: what a packet costs, with other containers attached to the same bridge or with none.

For each configuration, contestant and number of other containers there is a host of its own: a network namespace, with an uplink to
another namespace, `outside`. The plugins attach the other containers first, then a neighbour, then the container whose packets are
measured, so that its rules are the last ones. The interfaces of the other containers are all in one namespace, because they
send nothing; each has its own container ID, port, addresses and rules. All hosts of a configuration exist at the same time, and
each measure visits them in turns, in random order. A ratio compares two hosts within a round; the median of all rounds counts.

The time is processor time, on which other work of the machine has little influence. All measures use one processor.
"""

import collections
import contextlib
import gzip
import ipaddress
import json
import os
import platform
import random
import resource
import socket
import statistics
import sys

import lab
from lab import enter, make_netns, run
from report import COLOURS, LIST, OURS, THEIRS, figure, is_met, place, plain, write_tables

SEGMENT, BURST = 536, 10  # bytes of a segment, and segments that are sent at a time
TIMEOUT = 60
PORT, PUBLISHED = 80, 9000
HOST = {4: "192.0.2.1", 6: "2001:db8::1"}
OUTSIDE = {4: "192.0.2.2", 6: "2001:db8::2"}
SUBNETS = {4: "10.30.0.0/16", 6: "fd00:30::/64"}
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
MAX_RATIO = 1.15  # of the cost with other containers to that with none, and of our cost to the reference's
MIN_GAIN, MANY = 3, 1000  # of a stream, the reference's cost to ours with that many other containers, if rules match each packet

NETAVARK = "netavark"  # the program: podman 5 calls it instead of plugins

# `bridge`: keys of bridge. `next`: the plugins that follow, with their keys. `each_packet`: whether rules of the reference match each
# packet of a container, and not only the first one of a connection. `ours_only`: whether the reference lacks the key.
Configuration = collections.namedtuple("Configuration", "name bridge next each_packet ours_only", defaults=((), False, False))
CONFIGURATIONS = (
    Configuration("bridge with masquerade", {"ipMasq": True}),
    Configuration("bridge with macspoofchk", {"macspoofchk": True}, (), True),
    Configuration("firewall", {}, [("firewall", {})], True),
    Configuration("firewall with same-bridge", {}, [("firewall", {"ingressPolicy": "same-bridge"})], True),
    Configuration("firewall with isolated", {}, [("firewall", {"ingressPolicy": "isolated"})], True, True),
    Configuration("portmap", {}, [("portmap", {})]),
    Configuration(LIST, {"ipMasq": True, "hairpinMode": True}, [("portmap", {}), ("firewall", {}), ("tuning", {})], True),
)
# What is measured: pings and streams per packet, connections each; from the container to the outside and to its neighbour, and
# from the outside to the published port.
Measure = collections.namedtuple("Measure", "kind path family")
AMOUNTS = {"ping": (10000, 3000), "stream": (10000, 3000), "connection": (500, 200)}  # per sample; with --quick


def measures(configuration):
    paths = ["to the outside"]
    if "portmap" in dict(configuration.next):
        paths.append("to a published port")
    if "isolated" not in configuration.name:
        paths.append("to a neighbour")
    return [Measure(kind, path, family) for kind in AMOUNTS for path in paths for family in FAMILIES
            if (kind, path) not in (("ping", "to a published port"), ("connection", "to a neighbour"))]


def has_configuration(contestant, configuration):
    """Returns whether the contestant can do what the configuration says. Netavark can only do all of podman's list."""
    if contestant.has(NETAVARK):
        return configuration.name == LIST
    return contestant.name != THEIRS or not configuration.ours_only


class Host:
    """A host with containers that the plugins of a contestant attached."""

    def __init__(self, contestant, configuration, count):
        self.contestant, self.configuration, self.count = contestant, configuration, count
        self.name = f"{contestant.name}-{count}"
        self.attached = 0
        make_netns([self.name, *(self.netns(which) for which in ("others", "neighbour", "container", "outside"))])
        for netns in (self.name, *(self.netns(which) for which in ("others", "neighbour", "container", "outside"))):
            enter(netns)
            run("ip", "link", "set", "lo", "up")
            for where in ("default", "all"):
                with open(f"/proc/sys/net/ipv6/conf/{where}/accept_dad", "w") as file:
                    file.write("0")  # the reference waits until the kernel has confirmed that addresses are unique
        enter(self.name)
        run("ip", "link", "add", "uplink", "up", "type", "veth", "peer", "name", "eth0", "netns", self.netns("outside"))
        for netns, link, addresses in ((self.name, "uplink", HOST), (self.netns("outside"), "eth0", OUTSIDE)):
            enter(netns)
            run("ip", "-batch", "-", input=f"link set {link} up\naddress add {addresses[4]}/24 dev {link}\n"
                f"address add {addresses[6]}/64 dev {link}\n".encode())
        # Replies to addresses that are not masqueraded.
        run("ip", "-batch", "-", input="".join(f"route add {SUBNETS[family]} via {HOST[family]}\n" for family in FAMILIES).encode())
        for number in range(count):
            self.attach(f"other{number}", "others", f"eth{number}", 10000 + number)
        # All namespaces share the kernel's limit of 1,024 neighbours, and an interface that is up has some for multicasts.
        enter(self.netns("others"))
        run("ip", "link", "set", "group", "default", "down")
        self.addresses = {"outside": OUTSIDE, "host": HOST}
        for which, port in (("neighbour", PUBLISHED - 1), ("container", PUBLISHED)):
            self.addresses[which] = self.attach(which, which, "eth0", port)
        for which in ("container", "neighbour", "outside"):
            enter(self.netns(which))
            run("ip", "link", "set", "eth0", "gso_max_segs", "1")  # otherwise, many segments are forwarded as one packet

    def netns(self, which):
        return f"{self.name}-{which}"

    def attach(self, container, which, ifname, port):
        """Attaches a container and returns its addresses."""
        enter(self.name)
        attach = self.call_netavark if self.contestant.has(NETAVARK) else self.call_plugins
        return attach(container, which, ifname, port)

    def call_netavark(self, container, which, ifname, port):
        """Calls netavark, as podman does."""
        self.attached += 1
        own = {family: str(ipaddress.ip_network(subnet)[self.attached + 1]) for family, subnet in SUBNETS.items()}
        subnets = [{"subnet": subnet, "gateway": str(ipaddress.ip_network(subnet)[1])} for subnet in SUBNETS.values()]
        options = {
            "container_id": container, "container_name": container,
            "port_mappings": [{"host_ip": "", "host_port": port, "container_port": PORT, "protocol": "tcp", "range": 1}],
            "networks": {"path": {"interface_name": ifname, "static_ips": list(own.values())}},
            "network_info": {"path": {
                "name": "path", "id": "1" * 64, "driver": "bridge", "network_interface": "cni0", "subnets": subnets,
                "ipv6_enabled": True, "internal": False, "dns_enabled": False, "ipam_options": {"driver": "host-local"}}},
        }
        netns = self.netns(which)
        run(self.contestant.path(NETAVARK), "--config", f"/run/{self.name}", "setup", f"/run/netns/{netns}",
            input=json.dumps(options).encode())
        if which == "others":  # the next one gets a default route, too
            run("ip", "-n", netns, "-4", "route", "del", "default")
            run("ip", "-n", netns, "-6", "route", "del", "default")
        return own

    def call_plugins(self, container, which, ifname, port):
        """Calls the plugins, as a runtime does."""
        ranges = [[{"subnet": subnet}] for subnet in SUBNETS.values()]
        # The other containers share a namespace, which can have only one default route.
        routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}] if which != "others" else []
        bridge = {"bridge": "cni0", "isGateway": True, "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
                  **self.configuration.bridge}
        result = None
        for plugin, keys in [("bridge", bridge), *self.configuration.next]:
            config = {"cniVersion": "0.4.0", "name": f"path-{self.name}", "type": plugin, **keys}
            if plugin == "portmap":
                config["runtimeConfig"] = {"portMappings": [{"hostPort": port, "containerPort": PORT, "protocol": "tcp"}]}
            if result:
                config["prevResult"] = result
            outcome = lab.call(self.contestant.path(plugin), "ADD", config, container, f"/run/netns/{self.netns(which)}", ifname)
            if outcome.status != 0:
                sys.exit(f"{self.name}: {plugin} ADD of {container} failed: {outcome}")
            result = json.loads(outcome.stdout)
        return {6 if ":" in ip else 4: ip for ip in lab.addresses(result)}

    def remove(self):
        for netns in (*(self.netns(which) for which in ("others", "neighbour", "container", "outside")), self.name):
            run("ip", "netns", "del", netns)
        lab.clear(keep_netns=True)

    def sample(self, measure, quick):
        """Returns the time of a packet, or of a connection, in microseconds."""
        source, target, place, port = {
            "to the outside": ("container", "outside", "outside", PORT),
            "to a neighbour": ("container", "neighbour", "neighbour", PORT),
            "to a published port": ("outside", "container", "host", PUBLISHED),
        }[measure.path]
        amount = AMOUNTS[measure.kind][quick]
        address = self.addresses[place][measure.family]
        if measure.kind == "ping":
            enter(self.netns(source))
            return ping(address, amount)
        enter(self.netns(target))
        with socket.create_server(("", PORT), family=FAMILIES[measure.family], backlog=amount) as server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
            enter(self.netns(source))
            send = stream if measure.kind == "stream" else connect
            return send(server, FAMILIES[measure.family], (address, port), amount)


def used():
    """Returns the processor time, in microseconds, of this process and of the children that have ended.

    A packet to another namespace is forwarded and received while its sender is still in the system call, and so at its expense.
    """
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1e6


def ping(address, amount):
    began = used()
    report = run("ping", "-f", "-q", "-n", "-w", "60", "-c", str(amount), address, text=True)
    if f" {amount} received" not in report:
        sys.exit(f"pings to {address} were lost: {report}")
    return (used() - began) / amount


def stream(server, family, address, amount):
    """Sends segments from one end of a connection to the other, some at a time."""
    burst, buffer = bytes(BURST * SEGMENT), bytearray(BURST * SEGMENT)
    with socket.socket(family) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.settimeout(TIMEOUT)
        client.connect(address)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(TIMEOUT)
            began = used()
            for _ in range(amount // BURST):
                client.sendall(burst)
                left = len(buffer)
                while left > 0:
                    left -= connection.recv_into(buffer, left)
            return (used() - began) / amount


def connect(server, family, address, amount):
    """Opens connections, one after the other."""
    clients = []
    began = used()
    for _ in range(amount):
        clients.append(socket.create_connection(address, TIMEOUT))
    took = used() - began
    for client in clients:
        connection, _ = server.accept()
        for end in (client, connection):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, so that nothing of it remains
            end.close()
    return took / amount


def is_accounted():
    """Returns whether the kernel counts interrupts as time of the process that it interrupts, as far as its configuration is known."""
    for path, opener in (("/proc/config.gz", gzip.open), (f"/boot/config-{platform.release()}", open)):
        with contextlib.suppress(OSError), opener(path, "rt") as file:
            return "CONFIG_IRQ_TIME_ACCOUNTING=y" not in file.read()
    return True


def perform(contestants, counts, only, quick, machine, progress):
    """Runs all measures and returns the data that --json writes."""
    if not is_accounted():
        sys.exit("this kernel (CONFIG_IRQ_TIME_ACCOUNTING) does not count the work for a packet as time of its sender")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rounds = 3 if quick else 9
    data = {"machine": machine, "quick": quick, "contestants": [contestant.name for contestant in contestants], "counts": counts,
            "samples": []}
    for configuration in CONFIGURATIONS:
        if only not in configuration.name:
            continue
        hosts = []
        for contestant in contestants:
            if has_configuration(contestant, configuration):
                for count in counts:
                    progress(f"{configuration.name}: {contestant.name} attaches {count} containers")
                    hosts.append(Host(contestant, configuration, count))
        samples = collections.defaultdict(list)
        for turn in range(-1, rounds):  # the first round is not measured
            progress(f"{configuration.name}: {turn + 1} of {rounds}")
            for measure in measures(configuration):
                for host in random.sample(hosts, len(hosts)):
                    value = host.sample(measure, quick)
                    if turn >= 0:
                        samples[measure, host.contestant.name, host.count].append(value)
        data["samples"] += [[configuration.name, *measure, who, count, values] for (measure, who, count), values in samples.items()]
        enter(hosts[0].name)
        for host in hosts:
            host.remove()
    return data


class Results:
    def __init__(self, data):
        self.data, self.names, self.counts = data, data["contestants"], data["counts"]
        self.samples = {(name, Measure(*measure), who, count): values
                        for name, *measure, who, count, values in data["samples"]}
        self.rows = list(dict.fromkeys((name, measure) for name, measure, *_ in self.samples))

    def median(self, row, who, count):
        values = self.samples.get((*row, who, count))
        return statistics.median(values) if values else None

    def ratio(self, row, this, that):
        """Returns the median ratio of the samples of (contestant, count) and another one; None if one was not measured."""
        these, those = self.samples.get((*row, *this)), self.samples.get((*row, *that))
        return statistics.median(a / b for a, b in zip(these, those)) if these and those else None

    def targets(self):
        """Returns the targets: description, ratio, comparison, limit."""
        found, least = [], min(self.counts)
        each_packet = {configuration.name for configuration in CONFIGURATIONS if configuration.each_packet}
        for row in self.rows:
            name, measure = row
            for count in self.counts:
                growth = self.ratio(row, (OURS, count), (OURS, least)) if count > least else None
                found.append((f"{title(row)}, {count} others to {least or 'none'}", growth, "<=", MAX_RATIO))
                versus = self.ratio(row, (OURS, count), (THEIRS, count))
                found.append((f"{title(row)}, {count} others, ours to the reference's", versus, "<=", MAX_RATIO))
                if count >= MANY and name in each_packet and measure.kind == "stream" and measure.path == "to the outside":
                    gain = self.ratio(row, (THEIRS, count), (OURS, count))
                    found.append((f"{title(row)}, {count} others, the reference's to ours", gain, ">=", MIN_GAIN))
        return [target for target in found if target[1] is not None]

    def tables(self):
        """Returns the tables: (title, head, rows)."""
        least, more = min(self.counts), [count for count in self.counts if count > min(self.counts)]
        head = ["configuration, packets"]
        for who in self.names:
            head += [f"{who}, µs", *(f"×, {count} others" for count in more)]
        compared = [(who, count) for who in self.names if who != OURS for count in (least, max(self.counts))]
        head += [f"{who} to {OURS}, {count} others" for who, count in compared]
        rows = []
        for row in self.rows:
            cells = [title(row)]
            for who in self.names:
                cells += [figure(self.median(row, who, least)),
                          *(figure(self.ratio(row, (who, count), (who, least))) for count in more)]
            rows.append(cells + [figure(self.ratio(row, (who, count), (OURS, count))) for who, count in compared])
        yield "Time of a packet, or of a connection", head, rows
        yield ("Targets that are missed", ["target", "value", "limit"],
               [[what, figure(value), f"{comparison} {limit}"] for what, value, comparison, limit in self.targets()
                if not is_met(value, comparison, limit)])


def missed(results):
    return [what for what, *rest in results.targets() if not is_met(*rest)]


def title(row):
    name, measure = row
    return f"{name}: {measure.kind} {measure.path}, IPv{measure.family}"


def show(results):
    for name, head, rows in results.tables():
        if rows:
            print(plain(name, head, rows))
    targets = len(results.targets())
    print(f"{targets - len(missed(results))} of {targets} targets met")


BEGIN, END = "<!-- generated by ci/bench --path: begin -->", "<!-- generated by ci/bench --path: end -->"


def write_markdown(path, results):
    write_tables(path, results, results.tables(), BEGIN, END)


def draw(path, results):
    """Draws how much more a packet of a stream to the outside costs with the most containers than with none."""
    least, most = min(results.counts), max(results.counts)
    left, width, thick, y, out = 190, 380, 14, 20, []
    rows = [row for row in results.rows if row[1] == Measure("stream", "to the outside", 4)]
    ratios = {(row, who): results.ratio(row, (who, most), (who, least)) for row in rows for who in results.names}
    longest = max(ratio for ratio in ratios.values() if ratio)
    for row in rows:
        for who in results.names:
            ratio = ratios[row, who]
            name = f"{row[0]} " if who == results.names[0] else ""
            out.append(f'<text x="{left - 8}" y="{y}" text-anchor="end">{name}</text>')
            if ratio:
                length = width * ratio / longest
                out.append(f'<rect x="{left}" y="{y - 10}" width="{length:.1f}" height="{thick - 3}" fill="{COLOURS.get(who, "#2a9d8f")}"/>')
                out.append(f'<text x="{left + length + 5:.1f}" y="{y}">×{figure(ratio)} {"cni0" if who == OURS else who}</text>')
                y += thick
        y += 10
    machine = results.data["machine"]
    for line in (f"Time of a TCP segment of {SEGMENT} bytes to the outside, IPv4: with {most} other containers, to that with none.",
                 f"Medians, {machine['when']}, {place(machine)}; shorter is better."):
        out.append(f'<text x="0" y="{y}" class="small">{line}</text>')
        y += 15
    with open(path, "w") as file:
        file.write("\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 150}" height="{y}" '
            f'viewBox="0 0 {left + width + 150} {y}" role="img">',
            "<title>How much more a packet costs with many other containers</title>",
            "<style>text { font: 12px sans-serif; fill: #7d8590 } .small { font-size: 10px }</style>",
            *out, "</svg>", ""]))
