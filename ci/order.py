"""The order of functions in our programs: ci/order.ld. `ci/bench --order` writes it, and ci/build passes it to the linker."""

import collections
import re
import subprocess

from lab import ROOT

ORDER = f"{ROOT}/ci/order.ld"
BEGIN = """/* Written by ci/bench --order. Places the functions that calls execute next to each other, first those of every call: the
   kernel maps a program in pieces of 64 KiB when it first touches them. A name that does not exist any more has no effect.
   The first lines are the start and the end of a program, and functions of the C library whose sections have no names. */
SECTIONS {
    .text : {
        *rcrt1.o(.text .text.*)
        *(.init)
        *(.fini)
        *(.text._Exit)
        *memcpy.lo(.text)
        *memset.lo(.text)
        *memmove.lo(.text)
        *__set_thread_area.lo(.text)
"""
END = """    }
}
INSERT AFTER .rodata;
"""


def names_of(program):
    """Returns all names of each function, by each of its names. Functions with the same code have the same address."""
    listed = subprocess.run(["nm", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    at, names = collections.defaultdict(list), collections.defaultdict(list)
    for address, name in re.findall(r"^(\w+) [tTwW] (.*)$", listed, re.MULTILINE):
        at[address].append(name)
    for same in at.values():
        for name in same:
            names[name] += same
    return names


def executed(profile):
    """Returns the names of the functions in the output of callgrind, without the suffix that numbers recursive calls."""
    with open(profile) as file:
        return {re.sub(r"'\d+$", "", name) for name in re.findall(r"^c?fn=\(\d+\) (\S+)$", file.read(), re.MULTILINE)}


def section(function):
    """Returns the pattern of a function's section, without hashes, which depend on the version of the compiler."""
    if not function.startswith("_R"):  # C
        return f".text.{function}"
    name = re.sub(r"Cs[0-9A-Za-z]+_", "Cs*_", function)  # a hash precedes the name of each crate
    return ".text.*" + re.sub(r"\.\d+$", ".*", name)  # functions that the compiler expects to run rarely have a prefix


def write_order(program, calls):
    """Writes ci/order.ld, given the plugin and the command of each call and the names of the functions of `program` that it
    executes. Those of one plugin only follow those of several plugins, and of each plugin, ADD and DEL come first."""
    names = names_of(program)
    plugins, commands = collections.defaultdict(set), collections.defaultdict(set)
    for plugin, command, functions in calls:
        for function in functions & names.keys():
            plugins[function].add(plugin)
            commands[function].add(command)
    order = sorted(plugins, key=lambda function: (
        "VERSION" not in commands[function], -len(plugins[function]), sorted(plugins[function]),
        not commands[function] & {"ADD", "DEL"}, function))
    sections = dict.fromkeys(section(name) for function in order for name in names[function])
    with open(ORDER, "w") as file:
        file.write(BEGIN + "".join(f"        *({name})\n" for name in sections) + END)
