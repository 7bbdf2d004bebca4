"""What ci/faults, ci/chaos and ci/load share: private namespaces, calling a plugin, and seeing what is there.

Everything happens in network, mount and process namespaces of its own, with empty /run and /var/lib: it touches nothing
of the machine, and the kernel clears it away, with all that still runs in it. ci/bench takes from here how programs are
built and run and the empty directories; it calls plugins in its own way, because it measures calls.
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
PLUGINS = ("bridge", "host-local", "loopback")
REFERENCE = "/usr/lib/cni"
NETWORKS = "/var/lib/cni/networks"
BIN = "/run/bin"
INSIDE = "CNI0_LAB_INSIDE"


def need(*pairs):
    """Installs the Debian packages whose command is missing: PACKAGE=COMMAND, as `need` of ci/lib.sh."""
    script = '. "$1/ci/lib.sh"; shift; need "$@"'
    if subprocess.run(["bash", "-c", script, sys.argv[0], ROOT, *pairs]).returncode != 0:
        sys.exit(1)


def build(*arguments):
    """Builds our programs with ci/build: the directory."""
    done = subprocess.run([f"{ROOT}/ci/build", *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(1)
    return done.stdout.split("\n")[-2]


def programs(directory):
    """Where our programs are, the shared one and the separate ones; they are built unless `directory` is given."""
    return build("--all") if directory is None else os.path.abspath(directory)


def start(arguments, stdout=subprocess.PIPE):
    """Starts this very program, with `arguments`, in namespaces of its own, which end with this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    # The first process of the namespace buries what others leave, as on every machine, and has the name of one that does.
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
    """Covers /run and /var/lib, for this mount namespace, with empty directories."""
    for empty in ("/run", "/var/lib"):
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", empty)
    os.makedirs("/run/lock")  # of iptables
    os.makedirs("/run/netns")


def settle_in(source):
    """To be called first inside: empty directories, and our programs out of `source`, in both ways to install them."""
    make_empty()
    os.makedirs(f"{BIN}/shared")
    os.makedirs(f"{BIN}/separate")
    for plugin in PLUGINS:
        shutil.copy(f"{source}/cni0", f"{BIN}/shared/{plugin}")
        shutil.copy(f"{source}/{plugin}", f"{BIN}/separate/{plugin}")
    run("ip", "link", "set", "lo", "up")


def run(*command, **options):
    """Runs a program of the host, which must succeed, and gives what it prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout


class Outcome(collections.namedtuple("Outcome", "status stdout stderr seconds")):
    """How a call ended. `status` is negative after a signal, and None if it had to be ended."""

    def error(self):
        """The one CNI error that it answered, or None."""
        try:
            error = json.loads(self.stdout)
        except ValueError:
            return None
        sound = isinstance(error, dict) and isinstance(error.get("code"), int) and error.get("msg")
        return error if self.status == 1 and sound else None

    def __str__(self):
        return f"status {self.status}, stdout {self.stdout.decode(errors='replace')!r}"


class Call:
    """A call of a plugin, as a runtime makes it."""

    def __init__(self, path, command, config, container, netns="", ifname="eth0", prefix=(), cni_path=None, env=None):
        environment = {
            "CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_NETNS": netns, "CNI_IFNAME": ifname,
            "CNI_PATH": cni_path or os.path.dirname(path), "PATH": os.environ["PATH"],
            "TMPDIR": "/run",  # where the reference leaves files when it is killed
            **(env or {}),
        }
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*prefix, path], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True)
        self.config = json.dumps(config).encode()

    def kill(self, number=signal.SIGKILL, children=True):
        """Sends a signal to the plugin, and to the plugins that it runs."""
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
    """KiB that an ADD has resident at most, of the plugin's own process, which stays attached.

    strace holds the process at its end, because what the kernel tells afterwards includes its parent's.
    """
    hold = ["strace", "-f", "-b", "execve", "-qq", "-o", "/dev/null", "-e", "trace=exit_group",
            "-e", "inject=exit_group:delay_enter=500000"]
    held = Call(path, "ADD", config, container, netns, prefix=hold)
    held.process.stdin.write(held.config)
    held.process.stdin.close()
    held.process.stdout.read(1)  # the answer is the last that it does
    time.sleep(0.1)
    with open(f"/proc/{held.process.pid}/task/{held.process.pid}/children") as file:
        plugin = file.read().split()[0]
    with open(f"/proc/{plugin}/status") as file:
        status = file.read()
    if held.process.wait() != 0:
        raise RuntimeError("the ADD that was measured failed")
    return int(status.split("VmHWM:")[1].split()[0])


def addresses(answer):
    """The addresses in an answer to ADD, without prefixes."""
    return [ip["address"].split("/")[0] for ip in answer.get("ips", [])]


# What is there. All of it is made of values that can be compared; what the kernel chooses or changes by itself is left out.

def links(netns=None):
    """The links of a namespace: by name what kind they are, their alias, bridge and addresses (but for link-local ones)."""
    command = ["ip", *(["-n", netns] if netns else []), "-j", "-d", "address", "show"]
    while True:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if b"interrupted" not in done.stderr:  # something changed while it was listed
            break
    found = {}
    for link in filter(None, json.loads(done.stdout)):
        ips = sorted(f"{ip['local']}/{ip['prefixlen']}" for ip in link["addr_info"] if ip.get("scope") != "link")
        kind = link.get("linkinfo", {}).get("info_kind", "")
        found[link["ifname"]] = (kind, link.get("ifalias", ""), link.get("master", ""), tuple(ips))
    return found


def leases(directory=NETWORKS):
    """Every file below `directory` but for locks and pointers, with its content."""
    found = {}
    for where, _, names in os.walk(directory):
        for name in names:
            if name != "lock" and not name.startswith("last_reserved_ip."):
                path = os.path.join(where, name)
                try:
                    with open(path, newline="", errors="replace") as file:
                        found[os.path.relpath(path, directory)] = file.read()
                except FileNotFoundError:
                    pass  # removed by somebody just now
    return found


def rules():
    """The rules and chains that belong to containers, without the frame that the first of them makes and all share."""
    found = []
    for item in json.loads(run("nft", "-j", "list", "ruleset", stderr=subprocess.DEVNULL))["nftables"]:
        if "chain" in item and "hook" not in item["chain"] and item["chain"]["name"] != "masq_checks":
            chain = item["chain"]
            found.append(f"chain {chain['family']} {chain['table']} {chain['name']}")
        if "rule" in item:
            rule = item["rule"]
            if (rule["table"], rule["chain"]) != ("cni_plugins_masquerade", "postrouting"):
                expression = re.sub(r'"(packets|bytes)": \d+', "", json.dumps(rule["expr"]))
                where = f"{rule['family']} {rule['table']} {rule['chain']}"
                found.append(f"rule {where} {expression} {rule.get('comment', '')}")
    return tuple(sorted(found))


def clear(keep_netns=False):
    """Takes everything away, without any plugin's help: namespaces, links, rules, leases."""
    if not keep_netns:
        for netns in os.listdir("/run/netns"):
            run("ip", "netns", "del", netns)
    doomed = [name for name, (kind, *_) in links().items() if kind in ("bridge", "veth")]
    # One end of a pair takes the other with it.
    subprocess.run(["ip", "-force", "-batch", "-"], input="".join(f"link del {name}\n" for name in doomed).encode(),
                   stderr=subprocess.DEVNULL)
    run("nft", "flush", "ruleset")
    subprocess.run(["rm", "-rf", "/var/lib/cni", "/run/cni0"], check=True)


def is_ip(name):
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        return False
