"""Shared by ci/faults, ci/chaos and ci/load: private namespaces, calls of plugins, and snapshots of the host's state.

Everything runs in separate network, mount and process namespaces, with empty /run and /var/lib. Nothing of the machine is
changed, and the kernel cleans up, including processes that still run. ci/bench uses the functions to build and run programs
and the empty directories from here; it calls plugins in its own way, because it measures calls.
"""

import atexit
import collections
import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REFERENCE = "/usr/lib/cni"
NETWORKS = "/var/lib/cni/networks"
BIN = "/run/bin"
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
    """Returns the directory of our programs, shared and separate; builds them unless `directory` is given."""
    return build("--all") if directory is None else os.path.abspath(directory)


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
    """Must be called first inside the namespaces: creates empty directories, and copies our programs from `source`, in both layouts."""
    make_empty()
    os.makedirs(f"{BIN}/shared")
    os.makedirs(f"{BIN}/separate")
    for plugin in PLUGINS:
        shutil.copy(f"{source}/cni0", f"{BIN}/shared/{plugin}")
        shutil.copy(f"{source}/{plugin}", f"{BIN}/separate/{plugin}")
    run("ip", "link", "set", "lo", "up")


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


class Call:
    """A call of a plugin, as a runtime makes it."""

    def __init__(self, path, command, config, container, netns="", ifname="eth0", prefix=(), cni_path=None, env=None):
        environment = {
            "CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_NETNS": netns, "CNI_IFNAME": ifname,
            "CNI_PATH": cni_path or os.path.dirname(path), "PATH": os.environ["PATH"],
            "TMPDIR": "/run",  # the reference leaves files here when it is killed
            **(env or {}),
        }
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*prefix, path], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True)
        self.config = json.dumps(config).encode()

    def kill(self, number=signal.SIGKILL, children=True):
        """Sends a signal to the plugin and to the plugins that it executes."""
        try:
            (os.killpg if children else os.kill)(self.process.pid, number)
        except ProcessLookupError:
            pass

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
    return Call(*arguments, **options).wait(deadline)


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


def addresses(answer):
    """Returns the addresses in a result of ADD, without prefixes."""
    return [ip["address"].split("/")[0] for ip in answer.get("ips", [])]


# Snapshots. They consist of comparable values, without those that the kernel chooses or changes by itself.

def links(netns=None):
    """Returns the links of a namespace: for each name the kind, alias, bridge and addresses (except link-local ones)."""
    command = ["ip", *(["-n", netns] if netns else []), "-j", "-d", "address", "show"]
    while True:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if b"interrupted" not in done.stderr:  # the list changed while it was read
            break
    found = {}
    for link in filter(None, json.loads(done.stdout)):
        ips = sorted(f"{ip['local']}/{ip['prefixlen']}" for ip in link["addr_info"] if ip.get("scope") != "link")
        kind = link.get("linkinfo", {}).get("info_kind", "")
        found[link["ifname"]] = (kind, link.get("ifalias", ""), link.get("master", ""), tuple(ips))
    return found


def leases(directory=NETWORKS):
    """Returns every file below `directory` with its content, except locks and pointers."""
    found = {}
    for where, _, names in os.walk(directory):
        for name in names:
            if name != "lock" and not name.startswith("last_reserved_ip."):
                path = os.path.join(where, name)
                try:
                    with open(path, newline="", errors="replace") as file:
                        found[os.path.relpath(path, directory)] = file.read()
                except FileNotFoundError:
                    pass  # removed meanwhile
    return found


def rules():
    """Returns the rules, chains and elements of containers, without the rules and chains that all containers share."""
    found = []
    for item in json.loads(run("nft", "-j", "list", "ruleset", stderr=subprocess.DEVNULL))["nftables"]:
        [(kind, what)] = item.items()
        if kind in ("set", "map") and what["table"] == PORTS:
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
        return any(f'"target": "{other}' in expression for other in ("CNI-FORWARD", "CNI-ADMIN", "CNI-ISOLATION-"))
    return table == PORTS or expression is not None and '"CNI-HOSTPORT-' in expression and not chain.startswith("CNI-")


def clear(keep_netns=False):
    """Removes everything without using a plugin: namespaces, links, rules, leases."""
    if not keep_netns:
        for netns in os.listdir("/run/netns"):
            run("ip", "netns", "del", netns)
    to_delete = [name for name, (kind, *_) in links().items() if kind in ("bridge", "veth")]
    # Deleting one end of a veth pair deletes the other.
    subprocess.run(["ip", "-force", "-batch", "-"], input="".join(f"link del {name}\n" for name in to_delete).encode(),
                   stderr=subprocess.DEVNULL)
    run("nft", "flush", "ruleset")
    subprocess.run(["rm", "-rf", "/var/lib/cni", "/run/cni0"], check=True)


def is_ip(name):
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        return False
