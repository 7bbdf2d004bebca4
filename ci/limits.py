"""Limits for the exactly countable costs of calls: ci/limits.json. `ci/bench --check` compares our programs with them."""

import json
import os
import platform
import re

from lab import ROOT

LIMITS = f"{ROOT}/ci/limits.json"


def check(contestants, costs, update, only):
    """Compares the costs of our programs with ci/limits.json, or writes them. Returns how many calls exceed their limits.

    `costs` counts the costs of a contestant's calls, given its limits. Only calls whose name contains `only` are compared or
    written.
    """
    machine = platform.machine()
    with open(LIMITS) as file:
        limits = json.load(file)
    if machine not in limits and not update:
        why = f"ci/limits.json has no limits for {machine}"
        print(f"{why}: skipped")
        with open(os.environ.get("CNI0_TEST_SKIPS", os.devnull), "a") as file:
            file.write(f"ci/bench --check: {why}\n")
        return 0
    old = limits.get(machine, {})
    found = {contestant.name: costs(contestant, {} if update else old.get(contestant.name, {})) for contestant in contestants}
    if update:
        limits[machine] = {name: {call: now if only in call else old.get(name, {}).get(call, now) for call, now in calls.items()}
                           for name, calls in found.items()}
        text = json.dumps(limits, indent=1)
        with open(LIMITS, "w") as file:  # one line per call
            file.write(re.sub(r"\{\s+([^{}]*?)\s+\}", lambda inner: "{" + re.sub(r"\s+", " ", inner[1]) + "}", text) + "\n")
        return 0
    found, old = ({name: {call: cost for call, cost in calls.items() if only in call} for name, calls in by.items()}
                  for by in (found, old))
    bad = []
    for name in sorted(old.keys() | found.keys()):
        then, now = old.get(name, {}), found.get(name, {})
        bad += [f"{name}: {call} is {'not measured' if call in then else 'without a limit'}" for call in then.keys() ^ now.keys()]
        bad += [f"{name}: {call} needs {now[call][what]} {what}, limit {limit}"
                for call in sorted(then.keys() & now.keys()) for what, limit in over(call, now[call], then[call])]
        for call in sorted(then.keys() & now.keys()):
            for what, limit in then[call].items():
                if now[call][what] < limit - slack(call, what, then[call]):
                    print(f"{name}: {call} needs {now[call][what]} {what}, limit {limit}: --check --update lowers it")
    print("\n".join([*bad, f"{sum(map(len, found.values()))} calls counted, {len(bad)} over their limits"]))
    return len(bad)


def slack(call, what, limits):
    """Returns by how much a call may differ from its limit."""
    if what in ("instructions", "bytes"):  # compilers differ
        return limits[what] // (50 if what == "instructions" else 25)
    # Processes and threads that wait for each other need one or two system calls for it.
    more = {"system calls": 3} if limits["processes"] > 1 or call.endswith("DEL") else {}
    # Kernels before 6.2 do not return the objects that they created, so they are queried: a message and its answer.
    version = [int(part) for part in re.findall(r"\d+", platform.release())[:2]]
    if version < [6, 2] and call.startswith(("bandwidth", "bridge", "flannel")) and call.endswith("ADD"):
        more = {"system calls": 4, "messages": 1}
    return more.get(what, 0)


def over(call, now, limits):
    """Returns the costs of a call that exceed their limits: (what, limit)."""
    return [(what, limit) for what, limit in limits.items() if now.get(what, 0) > limit + slack(call, what, limits)]
