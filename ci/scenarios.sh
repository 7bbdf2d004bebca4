# shellcheck shell=bash
# The scenarios of ci/runtimes, which run inside its namespaces. Sourced, not run. A scenario fails if one of its commands
# fails (set -e), and leaves nothing behind.

# shellcheck disable=SC2154  # ci/lib.sh sets plugins

image=localhost/busybox:latest
cni0_image=localhost/cni0:0

# ---- helpers of the scenarios ----------------------------------------------------------------------------------

fail() { echo "$*"; exit 1; }
same() { [ "$1" = "$2" ] || fail "$3: '$1', expected '$2'"; } # same GOT EXPECTED WHAT

nothing_left() {
    local child
    # A DEL leaves the last wait for the kernel to a detached child, which the init process must reap.
    for child in $(pgrep -x "$(IFS='|' && echo "${plugins[*]}")"); do
        timeout 60 tail -s 0.02 --pid "$child" -f /dev/null || fail "$(ps -o pid,ppid,stat,comm "$child") is left"
    done
    same "$(ip -o link show type veth | grep -v ' out0@' || true)" '' "pairs are left"
    same "$(ip -o link show type ifb; tc qdisc show | grep -w tbf || true)" '' "limits are left"
    # Leases, cached results, and files of flannel and tuning. /run/cni is also a directory of leases.
    same "$(find /var/lib/cni /run/cni -type f ! -name lock ! -name 'last_reserved_ip*' 2>/dev/null)" '' "files are left"
    same "$(ls /run/netns)" outside "namespaces are left"
    # Chains shared by all containers stay; rules with an address or for one container must not.
    same "$(nft list ruleset | grep -E '[^0-9](10|172)\.[0-9]+\.|fd00:|CNI-(DN|SN)-[0-9a-f]' || true)" '' "rules are left"
}

run() { podman run -d --cap-add net_raw --name "$@" "$image" sleep 600 >/dev/null; } # run NAME OPTION...
address() { podman inspect "$1" | jq -r ".[0].NetworkSettings.Networks.$2.${3:-IPAddress}"; } # address NAME NETWORK [KEY]
ping_from() { podman exec "$1" ping -c 1 -W 2 "$2"; } # ping_from NAME ADDRESS
serve() { podman exec "$1" httpd -p 80 -h /www; } # serve NAME: returns when the server listens
fetch() { ip netns exec outside curl -sS -m 5 "http://$1/"; }
network() { podman network create "$@" >/dev/null; }
# gone NETWORK NAME...: removes containers and network; nothing may be left, not even the bridge
gone() {
    local bridge
    bridge=$(jq -r '.plugins[0].bridge' "/etc/cni/net.d/$1.conflist")
    [ $# = 1 ] || podman rm -f -t 0 "${@:2}" >/dev/null
    nothing_left
    podman network rm "$1" >/dev/null
    ! ip link show "$bridge" 2>/dev/null || fail "the bridge is left"
}

# list NAME [VERSION]: prints a list of ci/lists.json, with another version of CNI if it is given
list() { jq --arg name "$1" --arg version "${2:-}" '(.pods + .second)[$name] | if $version != "" then .cniVersion = $version else . end' ci/lists.json; }
# carries_traffic LIST NETNS: checks the traffic of a container whose port 80 is published as 8080, and its limits
carries_traffic() {
    local limits=0 target=192.0.2.1
    ! list "$1" | jq -e 'any(.plugins[]; .type == "bandwidth")' || limits=2 # one for each direction
    ! list "$1" | jq -e 'any(.plugins[]; .ipMasq)' || target=192.0.2.2 # which has no route back
    ip netns exec "$2" busybox httpd -p 80 -h /mnt/image/www # returns when it listens
    ip netns exec "$2" busybox ping -c 1 -W 2 $target
    same "$(fetch 192.0.2.1:8080)" hello "the published port"
    same "$(tc qdisc show | grep -cw tbf || true)" $limits "limits"
    pkill -x busybox
}
delete_bridges() { # the lists use the same bridge in different ways
    local bridge
    for bridge in $(ip -j link show type bridge | jq -r '.[].ifname // empty'); do ip link del "$bridge"; done
}
# check_and_detach LIST: calls CHECK, and DEL twice, for the namespace pod
check_and_detach() {
    local network
    network=$(list "$1" | jq -r .name)
    if [ "$(describe)" = cni0 ]; then # a CHECK of the reference 1.1.1 fails without IPv6: "could not check ipv6 dnat"
        # libcni makes no CHECK for versions before 0.4.0.
        [ "$(list "$1" | jq -r .cniVersion)" != 0.3.1 ] || list "$1" 0.4.0 >/mnt/net.d/list.conflist
        /mnt/runtime check "$network" /run/netns/pod
        list "$1" >/mnt/net.d/list.conflist
    fi
    /mnt/runtime del "$network" /run/netns/pod
    /mnt/runtime del "$network" /run/netns/pod # runtimes repeat it
}
through_libcni() { # through_libcni LIST: attaches a namespace and detaches it
    local network
    network=$(list "$1" | jq -r .name)
    delete_bridges
    ip netns add pod
    export NETCONFPATH=/mnt/net.d CNI_PATH=/opt/cni/bin CAP_ARGS='{"portMappings": [{"hostPort": 8080, "containerPort": 80,
        "protocol": "tcp"}], "bandwidth": {"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000}}'
    list "$1" >/mnt/net.d/list.conflist
    /mnt/runtime add "$network" /run/netns/pod
    carries_traffic "$1" pod
    check_and_detach "$1"
    same "$(ip -n pod -o link show | grep -v ' lo:' || true)" '' "interfaces are left"
    ip netns del pod
    ! fetch 192.0.2.1:8080 || fail "the port is open still"
    # Also with temporary containers, between which cnitool sends packets.
    if [ -x /opt/cni/bin/cnitool ]; then
        /opt/cni/bin/cnitool test "$network" || fail "cnitool test failed"
    fi
    nothing_left
}
state_of_links() { # the links, IPv4 addresses, routes and rules of the host and of the namespace pod
    # The kernel adds the rule l3mdev-table itself, for the first VRF of a namespace, and keeps it.
    local netns carrier='s/ (UP|DOWN|UNKNOWN) / /; s/NO-CARRIER,//; s/,LOWER_UP//; s/ linkdown//' # reported later
    for netns in /proc/self/ns/net /run/netns/pod; do
        nsenter --net=$netns sh -ec 'ip -br link; ip -br -4 address; ip route; ip rule' | sed -E "/l3mdev-table/d; s/@[^ ]*//; $carrier"
    done
}
# as_second LIST: attaches net1 to a namespace as Multus does, and detaches it. The links eth0 and eth1 of the host and net0
# of the namespace lead to the outside host.
as_second() {
    local link before address lan=lan
    ip netns add pod
    ip -n outside link add lan up type bridge
    for link in eth0 eth1 net0; do
        ip link add $link type veth peer name to-$link netns outside
        ip -n outside link set to-$link master lan up
    done
    ip link set net0 netns pod
    ip link set eth0 up
    ip -n pod link set net0 up
    before=$(state_of_links)
    export NETCONFPATH=/mnt/net.d CNI_PATH=/opt/cni/bin CNI_IFNAME=net1
    export CNI_ARGS='IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_INFRA_CONTAINER_ID=0123;K8S_POD_UID=4567'
    export CAP_ARGS='{"ips": ["10.1.1.7/24"], "mac": "02:00:00:00:01:07",
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}'
    list "$1" >/mnt/net.d/list.conflist
    address=$(/mnt/runtime add "$(list "$1" | jq -r .name)" /run/netns/pod | jq -r '.ips[0].address // empty')
    ip -n pod link show net1
    if [ -n "$address" ]; then # tap has no address
        if [ "$1" = vlan ]; then
            lan=lan.100
            ip -n outside link add link lan name $lan up type vlan id 100
        fi
        ip -n outside address add "${address%.*}.1/24" dev $lan
        ip netns exec pod busybox ping -c 1 -W 2 -I net1 "${address%.*}.1"
    fi
    check_and_detach "$1"
    same "$(state_of_links)" "$before" "links, addresses, routes and rules"
    ip link del eth0
    ip link del eth1
    ip -n pod link del net0
    ip -n outside link del lan
    ip netns del pod
    nothing_left
}
through_cri() { # through_cri LIST: runs a pod with a host port and annotations for its limits
    local pod
    delete_bridges
    list "$1" >/etc/cni/net.d/00-list.conflist
    pod=$(run_pod limited "port_mappings { container_port: 80 host_port: 8080 }
        annotations { key: 'kubernetes.io/ingress-bandwidth' value: '8M' }
        annotations { key: 'kubernetes.io/egress-bandwidth' value: '8M' }")
    carries_traffic "$1" "$(basename /run/netns/cni-*)"
    stop_pod "$pod"
    remove_pod "$pod"
    rm /etc/cni/net.d/00-list.conflist
    nothing_left
}

ctr_run() { ctr run --rm --cni --snapshotter native --cpu-shares 0 "$image" "$@"; } # ctr_run NAME COMMAND...

# cri METHOD <REQUEST: makes one call of containerd's CRI, with request and response in protobuf's text format. gRPC is
# HTTP/2 with a byte and a length before each message, which curl can send.
cri() {
    local dir size
    dir=$(mktemp -d)
    protoc --encode="runtime.v1.$1Request" ci/cri.proto >"$dir/message"
    size=$(printf %08x "$(stat -c %s "$dir/message")")
    { printf %b "\0\x${size:0:2}\x${size:2:2}\x${size:4:2}\x${size:6:2}"; cat "$dir/message"; } >"$dir/request"
    curl -sS -m 30 --http2-prior-knowledge --unix-socket /run/containerd/containerd.sock -D "$dir/head" -o "$dir/response" \
        -H 'content-type: application/grpc' -H 'te: trailers' --data-binary "@$dir/request" \
        "http://localhost/runtime.v1.RuntimeService/$1"
    grep -qi '^grpc-status: 0' "$dir/head" || { grep -i '^grpc-message' "$dir/head" >&2; fail "CRI: $1 failed" >&2; }
    tail -c +6 "$dir/response" | protoc --decode="runtime.v1.$1Response" ci/cri.proto
    rm -rf "$dir"
}
id_in() { sed -n 's/^[a-z_]*_id: "\(.*\)"/\1/p'; }
pod_config() { # pod_config NAME [EXTRA]
    echo "metadata { name: '$1' uid: 'uid-$1' namespace: 'default' } hostname: '$1' log_directory: '/var/log' ${2:-}"
}
run_pod() { echo "config { $(pod_config "$@") }" | cri RunPodSandbox | id_in; } # run_pod NAME [EXTRA]
pod_ips() { echo "pod_sandbox_id: '$1'" | cri PodSandboxStatus | sed -n 's/^ *ip: "\(.*\)"/\1/p'; }
stop_pod() { echo "pod_sandbox_id: '$1'" | cri StopPodSandbox; }
remove_pod() { echo "pod_sandbox_id: '$1'" | cri RemovePodSandbox; }
run_in_pod() { # run_in_pod POD NAME: starts a container in the pod
    local id
    id=$(echo "pod_sandbox_id: '$1' sandbox_config { $(pod_config "$2") }
               config { metadata { name: 'main' } image { image: '$image' } command: 'sleep' command: '600' }" |
        cri CreateContainer | id_in)
    echo "container_id: '$id'" | cri StartContainer
    echo "$id"
}
exec_in() { # exec_in CONTAINER COMMAND...
    local out
    out=$({ echo "container_id: '$1' timeout: 10"; printf "cmd: '%s' " "${@:2}"; } | cri ExecSync)
    echo "$out"
    ! grep -q '^exit_code' <<<"$out" || fail "in the container: ${*:2}: failed" # 0 is not printed
}
# ---- the scenarios ----------------------------------------------------------------------------------------------

scenario_podman_two_containers_ping_each_other() {
    network --subnet 10.9.0.0/24 pods
    run a --network pods
    run b --network pods
    ping_from a "$(address b pods)"
    ping_from b "$(address a pods)"
    ping_from a 10.9.0.1
    ping_from a 192.0.2.2 # needs masquerade: there is no route back to 10.9.0.0
    gone pods a b
}

scenario_podman_published_port() {
    network --subnet 10.9.0.0/24 pods
    run web --network pods -p 8080:80
    serve web
    same "$(fetch 192.0.2.1:8080)" hello "from outside"
    same "$(podman run --rm --network pods "$image" wget -qO - http://192.0.2.1:8080/)" hello "from a container"
    same "$(curl -sS -m 5 http://192.0.2.1:8080/)" hello "from the host"
    same "$(curl -sS -m 5 http://127.0.0.1:8080/)" hello "from the host's loopback address"
    [ "$(describe)" != cni0 ] || nft list map inet cni_hostport ipv4_ports | grep -F "tcp . 8080 comment"
    nft flush ruleset # as an administrator or another firewall may do
    podman network reload web
    same "$(fetch 192.0.2.1:8080)" hello "after a reload"
    gone pods web
    ! fetch 192.0.2.1:8080 || fail "the port is open still"
}

scenario_podman_default_network() {
    run web -p 8080:80
    serve web
    ping_from web 192.0.2.2
    same "$(fetch 192.0.2.1:8080)" hello "from outside"
    podman rm -f -t 0 web
    nothing_left
}

# The network of "cnitool init" and "ci/install --conf". This libcni does not know the key cniVersions.
scenario_podman_first_network() {
    cp docs/example.conflist /etc/cni/net.d/10-cni0.conflist
    run web --network pods -p 8080:80
    serve web
    same "$(fetch 192.0.2.1:8080)" hello "from outside"
    podman rm -f -t 0 web
    rm /etc/cni/net.d/10-cni0.conflist
    ip link del cni0
    nothing_left
}

scenario_podman_static_address() {
    network --subnet 10.9.0.0/24 pods
    run a --network pods --ip 10.9.0.77 --mac-address 02:00:00:00:00:77
    same "$(address a pods)" 10.9.0.77 "the address"
    podman exec a ip -o link show eth0 | grep -q 02:00:00:00:00:77
    ! run b --network pods --ip 10.9.0.77 || fail "an address was given twice"
    podman rm -f b
    same "$(ip -o link show type veth | grep -vc ' out0@')" 1 "pairs after a refusal"
    podman rm -f -t 0 a
    run b --network pods --ip 10.9.0.77
    gone pods b
}

scenario_podman_dual_stack_network() {
    network --ipv6 --subnet 10.10.0.0/24 --subnet fd00:10::/64 dual
    run a --network dual
    run b --network dual -p 8080:80
    ping_from a "$(address b dual)"
    ping_from a "$(address b dual GlobalIPv6Address)"
    ping_from a 2001:db8::2
    serve b
    same "$(fetch '[2001:db8::1]:8080')" hello "by IPv6"
    gone dual a b
}

scenario_podman_second_network_comes_and_goes() {
    network --subnet 10.9.0.0/24 pods
    network --subnet 10.10.0.0/24 more
    run a --network pods
    run b --network more
    podman network connect more a
    ping_from a "$(address b more)"
    podman network disconnect more a
    ! podman exec a ip link show eth1 || fail "eth1 is left"
    ping_from a 10.9.0.1
    podman rm -f -t 0 b
    podman network rm more
    gone pods a
}

# podman passes the ports of a container to all its networks.
scenario_podman_published_port_on_two_networks() {
    network --subnet 10.9.0.0/24 pods
    network --subnet 10.10.0.0/24 more
    run web --network pods,more -p 8080:80
    serve web
    same "$(fetch 192.0.2.1:8080)" hello "from outside"
    ! run other --network pods -p 8080:80 || fail "a port was given to two containers"
    podman rm -f -t 0 other
    podman network disconnect more web
    podman network reload web
    same "$(fetch 192.0.2.1:8080)" hello "after a disconnect and a reload"
    podman rm -f -t 0 web
    podman network rm more
    gone pods
}

scenario_podman_restart_and_network_reload() {
    network --subnet 10.9.0.0/24 pods
    run a --network pods
    run b --network pods
    podman restart -t 0 a
    ping_from b "$(address a pods)"
    podman network reload a
    ping_from b "$(address a pods)"
    gone pods a b
}

scenario_podman_twenty_at_once() {
    local i jobs=() addresses
    network --subnet 10.9.0.0/24 pods
    for i in {1..20}; do run "c$i" --network pods & jobs+=($!); done
    for i in "${jobs[@]}"; do wait "$i"; done
    addresses=$(podman inspect c{1..20} | jq -r '.[].NetworkSettings.Networks.pods.IPAddress')
    same "$(sort -u <<<"$addresses" | wc -l)" 20 "different addresses"
    # shellcheck disable=SC2016,SC2086  # expanded by the inner shell; one word each
    podman exec c1 sh -ec 'for i; do ping -c 1 -W 2 $i; done' - $addresses
    jobs=()
    for i in {1..20}; do podman rm -f -t 0 "c$i" & jobs+=($!); done
    for i in "${jobs[@]}"; do wait "$i"; done
    gone pods
}

scenario_rootless_podman() {
    local ip user=61000 home=/mnt/home run=/run/user/61000
    echo "rootless:x:$user:$user::$home:/bin/sh" >>/etc/passwd
    echo 'rootless:100000:65536' | tee /etc/subuid >/etc/subgid
    install -d -o $user -g $user $home $run
    mknod -m 666 /mnt/tun c 10 200 # for slirp4netns
    mount --bind /mnt/tun /dev/net/tun
    podman() { # as that user
        (cd $home && setpriv --reuid $user --regid $user --clear-groups \
            env -i PATH="$PATH" HOME=$home XDG_RUNTIME_DIR=$run STORAGE_DRIVER=vfs podman "$@")
    }
    traces() { podman unshare --rootless-netns sh -ec 'nft list ruleset; find /var/lib/cni' | grep -F "$1"; }
    podman load -q -i /mnt/image.tar
    network --subnet 10.9.0.0/24 pods
    run a --network pods
    run web --network pods -p 8080:80
    ip=$(address web pods)
    serve web
    same "$(fetch 192.0.2.1:8080)" hello "from outside"
    same "$(podman exec a wget -qO - "http://$ip/")" hello "from a container"
    same "$(podman exec a wget -qO - http://192.0.2.1:8080/)" hello "from a container, through the outside" # masqueraded
    traces "$ip"
    podman rm -f -t 0 web
    ! traces "$ip" || fail "rules or leases are left"
    same "$(podman unshare --rootless-netns ip -o link show type veth | wc -l)" 1 "pairs of the other container"
    podman rm -f -t 0 a # deletes the namespace of all containers
    podman network rm pods
    kill "$(<$run/libpod/tmp/pause.pid)" # keeps the user namespace
    nothing_left
}

scenario_ip_netns_by_hand() {
    local answer
    ip netns add demo
    export CNI_CONTAINERID=demo CNI_NETNS=/run/netns/demo CNI_PATH=/opt/cni/bin
    jq '.plugins[0] + {name, cniVersion}' docs/example.conflist >/mnt/demo.conf
    echo '{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}' >/mnt/lo.conf
    CNI_COMMAND=ADD CNI_IFNAME=lo /opt/cni/bin/loopback </mnt/lo.conf
    answer=$(CNI_COMMAND=ADD CNI_IFNAME=eth0 /opt/cni/bin/bridge </mnt/demo.conf)
    ip netns exec demo ping -c 1 -W 2 127.0.0.1
    ip netns exec demo ping -c 1 -W 2 "$(jq -r '.ips[0].gateway' <<<"$answer")"
    ip netns exec demo ping -c 1 -W 2 192.0.2.2
    CNI_COMMAND=DEL CNI_IFNAME=eth0 /opt/cni/bin/bridge </mnt/demo.conf
    CNI_COMMAND=DEL CNI_IFNAME=lo /opt/cni/bin/loopback </mnt/lo.conf
    ip netns del demo
    ip link del cni0
    nothing_left
}

scenario_ctr_run_with_cni() {
    local first
    as_documented /etc/cni/net.d/10-pods.conflist
    mkfifo /mnt/up
    ctr_run first sh -c 'ip -o -4 address show dev eth0; exec sleep 600' >/mnt/up &
    read -r -t 20 _ _ _ first _ </mnt/up
    ctr_run second ping -c 1 -W 2 "${first%/*}"
    ctr_run third ping -c 1 -W 2 192.0.2.2
    ctr task kill -s KILL first
    wait $! || true # its status is that of the killed container
    nothing_left
}

scenario_ctr_on_the_network_that_nerdctl_writes() {
    # nerdctl reads the version from this line, to know whether firewall has the features of 1.7.1.
    local version
    version=$(/opt/cni/bin/firewall 2>&1 </dev/null | sed -n 's/^CNI firewall plugin v\([0-9.]*\).*/\1/p')
    [ "$(describe)" != cni0 ] || not_newer 1.7.1 "$version" || fail "the version of firewall is '$version'"
    list nerdctl >/etc/cni/net.d/05-nerdctl.conflist
    ctr_run nerd sh -ec 'ping -c 1 -W 2 10.4.0.1; ping -c 1 -W 2 192.0.2.2'
    rm /etc/cni/net.d/05-nerdctl.conflist
    nothing_left
}

scenario_cri_pods() {
    local a b ca cb ip
    as_documented /etc/cni/net.d/10-pods.conflist
    cri Status </dev/null | grep -q 'NetworkReady'
    a=$(run_pod a)
    b=$(run_pod b "port_mappings { container_port: 80 host_port: 8081 }")
    same "$(pod_ips "$a" | wc -l)" 2 "addresses of a pod"
    ca=$(run_in_pod "$a" a)
    cb=$(run_in_pod "$b" b)
    exec_in "$ca" ping -c 1 -W 2 127.0.0.1 # loopback is up
    for ip in $(pod_ips "$b"); do exec_in "$ca" ping -c 1 -W 2 "$ip"; done
    exec_in "$cb" ping -c 1 -W 2 192.0.2.2
    exec_in "$cb" httpd -p 80 -h /www
    same "$(fetch 192.0.2.1:8081)" hello "the host port"
    stop_pod "$a"
    stop_pod "$a" # kubelet repeats it
    stop_pod "$b"
    remove_pod "$a"
    remove_pod "$b"
    nothing_left
}

scenario_cri_pod_whose_namespace_is_gone() {
    local a path
    as_documented /etc/cni/net.d/10-pods.conflist
    a=$(run_pod lost)
    path=$(find /run/netns -name 'cni-*')
    umount "$path"
    rm "$path"
    stop_pod "$a"
    remove_pod "$a"
    nothing_left
}

scenario_cri_ten_pods_at_once() {
    local i pods job jobs=()
    as_documented /etc/cni/net.d/10-pods.conflist
    for i in {0..9}; do run_pod "p$i" >"/mnt/pod.$i" & jobs+=($!); done
    for job in "${jobs[@]}"; do wait "$job"; done
    pods=$(cat /mnt/pod.*)
    same "$(for i in $pods; do pod_ips "$i"; done | sort -u | wc -l)" 20 "different addresses"
    jobs=()
    for i in $pods; do { stop_pod "$i" && remove_pod "$i"; } & jobs+=($!); done
    for job in "${jobs[@]}"; do wait "$job"; done
    nothing_left
}

# The image of ci/release, on a node with plugins of another implementation.
node_of_the_image() {
    rm -rf /mnt/node && mkdir /mnt/node
    cp -a before/. /mnt/node
    (cd /mnt/node && sha256sum ./*) >/mnt/node.before
}
node_is_installed() {
    local plugin
    for plugin in "${plugins[@]}"; do
        "/mnt/node/$plugin" 2>&1 </dev/null | grep -qF +cni0 || fail "$plugin is not installed"
    done
    cmp /mnt/node/calico before/calico
}
node_is_as_before() { (cd /mnt/node && find . -type f -print0 | sort -z | xargs -0 sha256sum) | diff /mnt/node.before -; }

scenario_image_installs_with_podman() {
    local options=(--network none --read-only --cap-drop all --security-opt no-new-privileges)
    local node=(--cap-add dac_override -v /mnt/node:/opt/cni/bin)
    node_of_the_image
    podman load -qi cni0.tar
    podman run --rm "${options[@]}" "${node[@]}" "$cni0_image"
    node_is_installed
    podman run --rm "${options[@]}" "${node[@]}" "$cni0_image" uninstall
    node_is_as_before
    # The main container of the pod needs no user and no file, and stops at once.
    podman run -d --name waiting "${options[@]}" --user 65534 "$cni0_image" wait
    # Before that, the kernel drops the signal: this is process 1.
    grep -qm 1 'waiting for SIGTERM' <(podman logs -f waiting 2>&1)
    podman stop -t 30 waiting
    same "$(podman inspect waiting | jq '.[0].State.ExitCode')" 0 "the exit code of wait"
    podman rm waiting
}

scenario_image_installs_with_containerd() {
    local mount=(--mount "type=bind,src=/mnt/node,dst=/opt/cni/bin,options=rbind:rw")
    node_of_the_image
    ctr images import --snapshotter native cni0.tar
    ctr run --rm --snapshotter native --cpu-shares 0 "${mount[@]}" "$cni0_image" install
    node_is_installed
    ctr run --rm --snapshotter native --cpu-shares 0 "${mount[@]}" "$cni0_image" uninstall /cni0/cni0-install uninstall
    node_is_as_before
    ctr images rm "$cni0_image"
}
