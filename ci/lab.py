"""Shared by ci/faults, ci/chaos and ci/load: private namespaces, calls of plugins, and snapshots of the host's state.

Everything runs in separate network, mount and process namespaces, with empty /run and /var/lib. Nothing of the machine is
changed, and the kernel cleans up, including processes that still run. ci/bench uses the functions to build and run programs
and the empty directories from here; it calls plugins in its own way, because it measures calls.
"""

import atexit
import collections
import ctypes
import ipaddress
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REFERENCE = "/usr/lib/cni"
NETWORKS = "/var/lib/cni/networks"
BACKUPS = "/run/cni/tuning"  # of tuning
STATES = "/var/lib/cni/flannel"  # of flannel
SUBNET_FILE = "/run/flannel/subnet.env"  # for flannel
DHCP_LEASES = "/run/cni0/dhcp"  # of our DHCP daemon
DAEMON_LOG = "/run/dhcp-daemon.log"
LAN, SERVER = "lan", "server"  # the link of the host to the DHCP server, and the server's namespace
SERVER_LEASES, SERVER_LOG = "/run/dnsmasq.leases", "/run/dnsmasq.log"
BIN = "/run/bin"
WAYS = ("in-process", "executed")  # in which plugins run their delegates: directories in BIN
INSIDE = "CNI0_LAB_INSIDE"


def lib(script, *arguments, **options):
    """Runs a line of shell that uses ci/lib.sh."""
    done = subprocess.run(["bash", "-c", f'. "$1/ci/lib.sh"; shift; {script}', sys.argv[0], ROOT, *arguments], text=True, **options)
    if done.returncode != 0:
        sys.exit(1)
    return done.stdout


PLUGINS = tuple(lib('printf "%s\\n" "${plugins[@]}"', stdout=subprocess.PIPE).split())


def need(*pairs):
    """Installs the Debian packages whose command is missing: PACKAGE=COMMAND, like `need` of ci/lib.sh."""
    lib('need "$@"', *pairs)


def build(*arguments):
    """Builds our programs with ci/build and returns the directory."""
    done = subprocess.run([f"{ROOT}/ci/build", *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(1)
    return done.stdout.split("\n")[-2]


def programs(directory):
    """Returns the directory of our programs; builds them unless `directory` is given."""
    return build("--tool") if directory is None else os.path.abspath(directory)


def start(arguments, stdout=subprocess.PIPE):
    """Starts this program again, with `arguments`, in new namespaces, which end with this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    # The init process of the namespace reaps orphans, as on every machine, and has the name of an init that does.
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place)
    os.symlink(shutil.which("sh"), f"{place}/init")
    command = [*unshare, "--", f"{place}/init", "-c", '"$@"; exit $?', "init", sys.executable, os.path.abspath(sys.argv[0]), *arguments]
    process = subprocess.Popen(command, env={**os.environ, INSIDE: "1"}, stdout=stdout)
    atexit.register(process.kill)
    return process


def is_inside():
    return INSIDE in os.environ


def make_empty():
    """Mounts empty directories over /run and /var/lib, in this mount namespace."""
    for empty in ("/run", "/var/lib"):
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", empty)
    os.makedirs("/run/lock")  # for the lock of iptables
    os.makedirs("/run/netns")


def set_up(source):
    """Must be called first inside the namespaces: creates empty directories, and copies our programs from `source`: as they are,
    so that they run their delegates in process, and without the ID of their set, so that they execute them."""
    make_empty()
    for way in WAYS:
        os.makedirs(f"{BIN}/{way}")
    note = struct.pack("=III", 5, 32, 1) + b"cni0\0\0\0\0"  # its header and name; the ID follows
    for plugin in PLUGINS:
        shutil.copy(f"{source}/{plugin}", f"{BIN}/in-process/{plugin}")
        shutil.copy(f"{source}/{plugin}", f"{BIN}/executed/{plugin}")
        with open(f"{BIN}/executed/{plugin}", "r+b") as file:
            file.seek(file.read(4096).index(note) + len(note))
            file.write(bytes(32))
    shutil.copy(f"{source}/cnitool", f"{BIN}/cnitool")
    run("ip", "link", "set", "lo", "up")


libc = ctypes.CDLL(None, use_errno=True)


def enter(netns):
    """Moves this thread, and all processes that it starts from now on, to the network namespace."""
    with open(f"/run/netns/{netns}") as file:
        if libc.setns(file.fileno(), 0x40000000) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {netns}")


def make_netns(names):
    run("ip", "-batch", "-", input="".join(f"netns add {name}\n" for name in names).encode())


def run(*command, **options):
    """Runs a program of the host, which must succeed, and returns its output."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout


class Outcome(collections.namedtuple("Outcome", "status stdout stderr seconds")):
    """The outcome of a call. `status` is negative after a signal, and None after a timeout."""

    def error(self):
        """Returns the CNI error that the call printed, or None."""
        try:
            error = json.loads(self.stdout)
        except ValueError:
            return None
        valid = isinstance(error, dict) and isinstance(error.get("code"), int) and error.get("msg")
        return error if self.status == 1 and valid else None

    def __str__(self):
        return f"status {self.status}, stdout {self.stdout.decode(errors='replace')!r}"


def fields_of(entry):
    """Returns state, parent and process group of a process; None if the entry is not a process, or is a zombie."""
    try:
        with open(f"/proc/{int(entry)}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
            return fields if fields[0] != "Z" else None
    except (ValueError, OSError):
        return None


class Call:
    """A call of a plugin, as a runtime makes it."""

    def __init__(self, path, command, config, container, netns="", ifname="eth0", prefix=(), cni_path=None, env=None):
        environment = {
            "CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_NETNS": netns, "CNI_IFNAME": ifname,
            "CNI_PATH": cni_path or os.path.dirname(path), "PATH": os.environ["PATH"],
            "TMPDIR": "/run",  # the reference leaves files here when it is killed
            **(env or {}),
        }
        self.config = json.dumps(config).encode()
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*prefix, path], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True)

    def kill(self, number=signal.SIGKILL, children=True):
        """Sends a signal to the plugin and to the plugins that it executes."""
        try:
            (os.killpg if children else os.kill)(self.process.pid, number)
        except ProcessLookupError:
            pass

    def await_children(self):
        """Waits for processes that a killed plugin has left running: the next call of a runtime comes later, too. Returns whether
        they have ended."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if not any(fields and fields[2] == str(self.process.pid) for fields in map(fields_of, os.listdir("/proc"))):
                return True
            time.sleep(0.005)
        return False

    def wait(self, deadline=60):
        try:
            stdout, stderr = self.process.communicate(self.config, deadline)
            status = self.process.returncode
        except subprocess.TimeoutExpired:
            self.kill()
            stdout, stderr = self.process.communicate()
            status = None
        return Outcome(status, stdout, stderr, time.monotonic() - self.began)


def call(*arguments, deadline=60, **options):
    """Calls a plugin. If it is killed, waits for the plugins that it executes."""
    process = Call(*arguments, **options)
    outcome = process.wait(deadline)
    if outcome.status is None or outcome.status < 0:
        process.await_children()
    return outcome


def peak_memory(path, config, container, netns):
    """Returns the peak resident memory of an ADD in KiB, of the plugin's own process. The container stays attached.

    strace delays the exit of the process, because the peak that the kernel reports afterwards includes the parent's.
    """
    hold = ["strace", "-f", "-b", "execve", "-qq", "-o", "/dev/null", "-e", "trace=exit_group",
            "-e", "inject=exit_group:delay_enter=500000"]
    held = Call(path, "ADD", config, container, netns, prefix=hold)
    held.process.stdin.write(held.config)
    held.process.stdin.close()
    held.process.stdout.read(1)  # printing the answer is its last action
    time.sleep(0.1)
    with open(f"/proc/{held.process.pid}/task/{held.process.pid}/children") as file:
        plugin = file.read().split()[0]
    with open(f"/proc/{plugin}/status") as file:
        status = file.read()
    if held.process.wait() != 0:
        raise RuntimeError("the measured ADD failed")
    return int(status.split("VmHWM:")[1].split()[0])


# DHCP. The processes end with the namespaces in which everything runs.

def start_dhcp_server(*options):
    """Starts dnsmasq in a namespace of its own, which the link LAN of the host leads to. Returns the process."""
    make_netns([SERVER])
    inside = ["ip", "-n", SERVER]
    run("ip", "link", "add", LAN, "up", "type", "veth", "peer", "name", LAN, "netns", SERVER)
    run(*inside, "address", "add", "10.21.0.1/24", "dev", LAN)
    run(*inside, "link", "set", LAN, "up")
    command = ["nsenter", f"--net=/run/netns/{SERVER}", "dnsmasq", "--no-daemon", "--no-ping", "--port=0", f"--interface={LAN}",
               "--bind-dynamic", "--conf-file=/dev/null", "--no-resolv", "--user=root", "--dhcp-authoritative",
               f"--dhcp-leasefile={SERVER_LEASES}", *options]
    return start_service(command, SERVER_LOG, "sockets bound exclusively")


def start_dhcp_daemon(*prefix):
    """Starts our DHCP daemon, after the words `prefix` of a command. Returns the process.

    It wants answers by broadcast: others need an entry in the server's table of neighbours, which the kernel limits for all
    namespaces together, so that other work on the machine can fill it.
    """
    return start_service([*prefix, f"{BIN}/in-process/dhcp", "daemon", "-broadcast", "-resendtimeout", "20s"], DAEMON_LOG, "serving")


def start_service(command, log, started):
    """Starts a process that appends to a log, and waits until it logs the text `started`."""
    with open(log, "a") as file:
        before = file.tell()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    deadline = time.monotonic() + 30
    while started not in tail(log, before):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{command} does not start: {tail(log, before)}")
        time.sleep(0.002)
    return process


def tail(path, start):
    """Returns what a text file contains from the byte `start` on."""
    with open(path, errors="replace") as file:
        file.seek(start)
        return file.read()


def daemon_leases():
    """Yields the leases of our DHCP daemon: network, container, and address, which is None if there is none so far."""
    for path, content in files(DHCP_LEASES).items():
        if path.endswith(".json"):
            record = json.loads(content)
            address = record["grant"]["terms"]["address"] if record["grant"] else None
            yield record["key"]["network"], record["key"]["container"], address


def server_leases():
    """Returns the leases of the DHCP server: for each address the container, which the client identifier begins with."""
    found = {}
    with open(SERVER_LEASES) as file:
        for line in file:
            fields = line.split()
            if len(fields) == 5:
                found[fields[2]] = bytes.fromhex(fields[4].replace(":", "")).strip(b"\0").decode().split("/")[0]
    return found


def addresses(answer):
    """Returns the addresses in a result of ADD, without prefixes."""
    return [ip["address"].split("/")[0] for ip in answer.get("ips", [])]


# Snapshots. They consist of comparable values, without those that the kernel chooses or changes by itself.

def list_links(netns=None):
    """Returns the links of a namespace with their addresses, as `ip` prints them."""
    command = ["ip", *(["-n", netns] if netns else []), "-j", "-d", "address", "show"]
    while True:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if b"interrupted" not in done.stderr:  # the list changed while it was read
            return list(filter(None, json.loads(done.stdout)))


def links(netns=None):
    """Returns the links of a namespace: for each name the kind, alias, bridge and addresses (except link-local ones)."""
    found = {}
    for link in list_links(netns):
        ips = sorted(f"{ip['local']}/{ip['prefixlen']}" for ip in link["addr_info"] if ip.get("scope") != "link")
        kind = link.get("linkinfo", {}).get("info_kind", "")
        found[link["ifname"]] = (kind, link.get("ifalias", ""), link.get("master", ""), tuple(ips))
    return found


def attributes(netns=None):
    """Returns what tuning can change of the links of a namespace: for each name the MAC address, the MTU and further ones."""
    return {link["ifname"]: (link["address"], link["mtu"], link.get("txqlen", 0), link["promiscuity"], link["allmulti"])
            for link in list_links(netns) if link["link_type"] == "ether"}


def sysctls(netns, *names):
    """Returns the values of sysctls in a namespace, by their names, which are paths below /proc/sys/net."""
    values = run("nsenter", f"--net=/run/netns/{netns}", "cat", *(f"/proc/sys/net/{name}" for name in names), text=True)
    return dict(zip(names, values.splitlines()))


def limits():
    """Returns the limited links: for each name the rate at which it sends, and the links to which it redirects what it receives.

    Either is None if the link has no queueing discipline for it. Without the part that divides a queue.
    """
    qdiscs = json.loads(run("tc", "-j", "qdisc", "show"))
    rates = {qdisc["dev"]: qdisc["options"]["rate"] for qdisc in qdiscs if qdisc["kind"] == "tbf"}
    targets = {qdisc["dev"]: redirects(qdisc["dev"]) for qdisc in qdiscs if qdisc["kind"] in ("clsact", "ingress")}
    return {name: (rates.get(name), targets.get(name)) for name in {*rates, *targets}}


def redirects(link):
    """Returns the links to which a link redirects what it receives."""
    done = subprocess.run(["tc", "-j", "filter", "show", "dev", link, "ingress"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # the link may be gone meanwhile
    # The reference redirects with more than one filter.
    return tuple(sorted(set(re.findall(r'"to_dev":"([^"]*)"', done.stdout))))


def files(directory):
    """Returns every file below `directory` with its content."""
    found = {}
    for where, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(where, name)
            try:
                with open(path, newline="", errors="replace") as file:
                    found[os.path.relpath(path, directory)] = file.read()
            except FileNotFoundError:
                pass  # removed meanwhile
    return found


def leases(directory=NETWORKS):
    """Returns every file below `directory` with its content, except locks and pointers."""
    is_lease = lambda name: name != "lock" and not name.startswith("last_reserved_ip.")  # noqa: E731
    return {path: content for path, content in files(directory).items() if is_lease(os.path.basename(path))}


def rules():
    """Returns the rules, chains and elements of containers, without the rules and chains that all containers share."""
    found = []
    for item in json.loads(run("nft", "-j", "list", "ruleset", stderr=subprocess.DEVNULL))["nftables"]:
        [(kind, what)] = item.items()
        if kind in ("set", "map") and what["table"] in OWN and what["name"] != "versions":
            found += [f"element {what['table']} {what['name']} {json.dumps(element)}" for element in what.get("elem", ())]
        if kind == "chain" and "hook" not in what and not is_common(what["table"], what["name"]):
            found.append(f"chain {what['family']} {what['table']} {what['name']}")
        if kind == "rule":
            expression = re.sub(r'"(packets|bytes)": \d+', "", json.dumps(what["expr"]))
            if not is_common(what["table"], what["chain"], expression):
                where = f"{what['family']} {what['table']} {what['chain']}"
                found.append(f"rule {where} {expression} {what.get('comment', '')}")
    return tuple(sorted(found))


PORTS = "cni_hostport"  # the table in which portmap publishes ports
ISOLATION = "cni_isolation"  # the table in which firewall isolates containers
SPOOFCHECK = "cni_spoofcheck"  # the table in which bridge checks MAC addresses
FIREWALL = "cni_firewall"  # the table in which firewall accepts addresses
OWN = (PORTS, ISOLATION, SPOOFCHECK, FIREWALL)  # what belongs to a container in them is an element


def is_common(table, chain, expression=None):
    """Returns whether all containers share a chain, or a rule in it."""
    if table == "cni_plugins_masquerade":
        return chain == ("masq_checks" if expression is None else "postrouting")
    # The chains of the reference, the rules in them, and the jumps to them. A rule in CNI-HOSTPORT-DNAT is of a container.
    if chain.startswith("CNI-HOSTPORT-"):
        return expression is None or chain != "CNI-HOSTPORT-DNAT"
    # Those of firewall, in the form of the reference. Ingress policies belong to bridges.
    if chain.startswith("CNI-ISOLATION-") or chain in ("CNI-FORWARD", "CNI-ADMIN") and expression is None:
        return True
    if expression is not None and chain in ("FORWARD", "CNI-FORWARD"):
        is_jump = any(f'"target": "{other}' in expression for other in ("CNI-FORWARD", "CNI-ADMIN", "CNI-ISOLATION-"))
        return is_jump or '"key": "mark"' in expression
    return table in OWN or expression is not None and '"CNI-HOSTPORT-' in expression and not chain.startswith("CNI-")


def clear(keep_netns=False):
    """Removes everything without using a plugin: namespaces, links, rules, leases and other files."""
    if not keep_netns:
        for netns in os.listdir("/run/netns"):
            run("ip", "netns", "del", netns)
    to_delete = [name for name, (kind, *_) in links().items() if kind in ("bridge", "veth", "ifb")]
    # Deleting one end of a veth pair deletes the other.
    subprocess.run(["ip", "-force", "-batch", "-"], input="".join(f"link del {name}\n" for name in to_delete).encode(),
                   stderr=subprocess.DEVNULL)
    run("nft", "flush", "ruleset")
    subprocess.run(["rm", "-rf", "/var/lib/cni", "/run/cni0", "/run/cni"], check=True)


def write_subnet_file(subnets):
    """Replaces the file from which flannel takes the subnets of the node by renaming another one, as flanneld does."""
    keys = {"FLANNEL_NETWORK": "10.244.0.0/16", "FLANNEL_IPV6_NETWORK": "fd44::/48", "FLANNEL_MTU": "1450",
            "FLANNEL_IPMASQ": "false"}
    for subnet in subnets:
        keys["FLANNEL_IPV6_SUBNET" if ":" in subnet else "FLANNEL_SUBNET"] = subnet
    os.makedirs(os.path.dirname(SUBNET_FILE), exist_ok=True)
    with open(SUBNET_FILE + ".new", "w") as file:
        file.writelines(f"{key}={value}\n" for key, value in keys.items())
    os.rename(SUBNET_FILE + ".new", SUBNET_FILE)


def is_ip(name):
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        return False
