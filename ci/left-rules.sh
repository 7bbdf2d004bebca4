# shellcheck shell=sh
# Sourced by ci/uninstall, and part of the Debian package's prerm: for any POSIX shell.

# warn_of_left_rules BRIDGE: warns if attachments have nftables masquerade rules that BRIDGE, the plugin to be restored,
# cannot remove. The reference can since 1.6.0. Distributions build it without a version, so the check is whether the
# program contains the name of the table.
warn_of_left_rules() {
    if [ ! -f "$1" ] || grep -q cni_plugins_masquerade "$1" || ! command -v nft >/dev/null; then return 0; fi
    left=$({ nft list chain inet cni_plugins_masquerade masq_checks 2>/dev/null || :; } |
        sed -n 's/.*comment "\(.*\)".*/\1/p' | sort -u | wc -l)
    [ "$left" -gt 0 ] || return 0
    cat >&2 <<WARNING
warning: attachments masqueraded by nftables rules that the restored bridge plugin cannot remove: $left.
Its first DEL of each of them fails, the next one succeeds, and the rules stay. To avoid this, install cni0 again, detach
these containers, and then remove cni0. To delete the rules afterwards: "nft -a list chain inet cni_plugins_masquerade
masq_checks" shows them with their handles, "nft delete rule inet cni_plugins_masquerade masq_checks handle HANDLE" deletes one.
WARNING
}

# warn_of_left_ports: warns if attachments have published ports, which no other portmap plugin removes: the reference has
# tables of the same name, but of other families.
warn_of_left_ports() {
    command -v nft >/dev/null || return 0
    left=$(nft list set inet cni_hostport attachments 2>/dev/null | grep -o 'comment "[^"]*"' | sort -u | wc -l) || left=0
    [ "$left" -gt 0 ] || return 0
    cat >&2 <<WARNING
warning: attachments with published ports that no other portmap plugin removes: $left. The ports stay published after the
containers are gone. To avoid this, install cni0 again, detach these containers, and then remove cni0. To unpublish all
ports that cni0 has published, also those of running containers: "nft delete table inet cni_hostport".
WARNING
}

# warn_of_left_acceptance: warns if the traffic of containers is accepted by sets that no other firewall plugin knows.
warn_of_left_acceptance() {
    command -v nft >/dev/null || return 0
    left=$(nft list set inet cni_firewall attachments 2>/dev/null | grep -o 'comment "[^"]*"' | sort -u | wc -l) || left=0
    [ "$left" -gt 0 ] || return 0
    cat >&2 <<WARNING
warning: attachments whose traffic is accepted by sets that no other firewall plugin knows: $left. Their addresses stay accepted
after the containers are gone, also for the next container with the address. To avoid this, install cni0 again, detach these
containers, and then remove cni0. To delete all of them, which cuts off running containers where the chain FORWARD drops
packets: "nft delete table inet cni_firewall".
WARNING
}

# warn_of_left_isolation: warns if containers are isolated from each other within a bridge, which no other firewall plugin ends.
warn_of_left_isolation() {
    command -v nft >/dev/null || return 0
    left=$(nft list set bridge cni_isolation ports 2>/dev/null | grep -o 'comment "[^"]*"' | sort -u | wc -l) || left=0
    [ "$left" -gt 0 ] || return 0
    cat >&2 <<WARNING
warning: attachments isolated from others of their bridge, which no other firewall plugin ends: $left. Their entries stay after the
containers are gone, and isolate a later link of the same name. To avoid this, install cni0 again, detach these containers, and
then remove cni0. To end the isolation of all containers, also of running ones: "nft delete table bridge cni_isolation".
WARNING
}

# warn_of_left_checks: warns if attachments have a spoof check (macspoofchk), which no other bridge plugin removes.
warn_of_left_checks() {
    command -v nft >/dev/null || return 0
    left=$(nft list set bridge cni_spoofcheck ports 2>/dev/null | grep -o 'comment "[^"]*"' | sort -u | wc -l) || left=0
    [ "$left" -gt 0 ] || return 0
    cat >&2 <<WARNING
warning: attachments with a spoof check that no other bridge plugin removes: $left. Their entries stay after the containers are
gone, and drop the frames of a later link of the same name. To avoid this, install cni0 again, detach these containers, and then
remove cni0. To remove all spoof checks of cni0, also those of running containers: "nft delete table bridge cni_spoofcheck".
WARNING
}

# warn_of_left_guards: warns of links with the filter that protects services on 127.0.0.1. Without the rules of cni0, it also
# drops the replies to connections from loopback addresses if bridge-nf-call-iptables is 1.
warn_of_left_guards() {
    command -v tc >/dev/null || return 0
    left=$(ip -o link show | sed 's/^[0-9]*: \([^:@]*\)[:@].*/\1/' | while read -r name; do
        ! tc filter show dev "$name" ingress 2>/dev/null | grep -q ' handle 0x636e693[01] ' || printf ' %s' "$name"
    done)
    [ -n "$left" ] || return 0
    cat >&2 <<WARNING
warning: links with a filter that protects services on 127.0.0.1 from containers:$left. Ports that another portmap plugin
publishes may not be reachable from 127.0.0.1 through it. To delete it: "tc filter del dev LINK ingress pref 1". Containers
can then reach services that listen only on 127.0.0.1, unless net.ipv4.conf.LINK.route_localnet is 0.
WARNING
}
