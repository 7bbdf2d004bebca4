/* The floor: the least that a program and the kernel can do for the end state of `bridge` with `host-local`. ci/bench compiles it
 * (no C library; system calls and netlink messages are coded by hand) and measures how far the plugins are from it. It is a
 * yardstick, not a plugin. Under both names it supports ADD, DEL and VERSION.
 *
 * Like the plugins, it reads its configuration, takes the next free address under the lock of the lease directory and
 * writes the lease and the pointer; creates the veth pair in its final place in one message, with one queue of each kind,
 * as a port of the bridge; sets it up, with addresses and default routes, and with the settings of the reference
 * (accept_dad, arp_notify; keep_addr_on_down and ndisc_notify with IPv6); makes sure that the gateway addresses exist;
 * adds the masquerade rule; prints the result. An error of the kernel ends it with status 1.
 *
 * It omits:
 * - JSON and validation of the input: its parameters are at the beginning of the configuration, as
 *   {"floor": "NETWORK BRIDGE N FLAGS", and the subnets are 10.N.0.0/16 and fd00:N::/64 (N in decimal, and for IPv6 the
 *   same digits read as hexadecimal). FLAGS: 3 layer 3, d dual stack, h hairpin, m masquerade with nftables, - none
 * - rollback, timeouts and useful errors
 * - waiting until the port forwards and the addresses are reachable
 * - earlier leases of the same container, atomic creation of leases, the index: it tries one address after the other.
 *   DEL takes the addresses from the previous result, and does not read the files that it removes
 * - the alias of the host veth, by which bridge finds it, and the hash at the beginning of rule comments
 * - reading back the objects that the kernel created: the link, its state, the bridge's addresses
 * - nftables table and chains, which ci/bench creates, and the lease directory; the search for rules of other
 *   implementations
 * - enabling IP forwarding, unless it creates the bridge; disable_ipv6
 * - VLANs, macspoofchk, iptables, CHECK, STATUS and GC
 */
#include <asm/unistd.h>
#include <linux/fcntl.h>
#include <linux/if_addr.h>
#include <linux/if_bridge.h>
#include <linux/if_link.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <linux/veth.h>

/* Constants that only the C library's headers define. */
enum { STDIN, STDOUT, RAW = 3, INET = 2, INET6 = 10, NETLINK = 16, NEWNET = 0x40000000, EXISTS = -17 };
typedef unsigned char byte;

/* Machine-specific code: program start and system calls. */

#if defined __x86_64__
__asm__(".globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall begin");
static long ask(long n, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return n;
}
#elif defined __aarch64__
__asm__(".globl _start\n_start: mov x0, sp\nbl begin");
static long ask(long n, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#else
#error "only x86_64 and aarch64"
#endif

static _Noreturn void end(int status)
{
    for (;;)
        ask(__NR_exit_group, status, 0, 0, 0, 0, 0);
}

static long must(long answer)
{
    if (answer < 0)
        end(1);
    return answer;
}

static long file(long dir, const char *path, long flags)
{
    return ask(__NR_openat, dir, (long)path, flags | O_CLOEXEC, 0644, 0, 0);
}

static long get(long fd, void *to, long size) { return ask(__NR_read, fd, (long)to, size, 0, 0, 0); }
static void put(long fd, const void *what, long size) { must(ask(__NR_write, fd, (long)what, size, 0, 0, 0)); }
static void shut(long fd) { ask(__NR_close, fd, 0, 0, 0, 0, 0); }

/* Text */

void *memcpy(void *to, const void *from, __kernel_size_t size)
{
    for (__kernel_size_t i = 0; i < size; i++)
        ((byte *)to)[i] = ((const byte *)from)[i];
    return to;
}

void *memset(void *to, int value, __kernel_size_t size)
{
    for (__kernel_size_t i = 0; i < size; i++)
        ((byte *)to)[i] = (byte)value;
    return to;
}

static int length(const char *text)
{
    int n = 0;
    while (text[n])
        n++;
    return n;
}

static int starts(const char *text, const char *with)
{
    while (*with)
        if (*text++ != *with++)
            return 0;
    return 1;
}

static char *append(char *to, const char *text)
{
    while (*text)
        *to++ = *text++;
    *to = 0;
    return to;
}

static char *number(char *to, unsigned value, unsigned base)
{
    if (value >= base)
        to = number(to, value / base, base);
    *to++ = "0123456789abcdef"[value % base];
    *to = 0;
    return to;
}

static unsigned parse(const char **text, unsigned base)
{
    unsigned value = 0;
    for (;; ++*text) {
        unsigned c = (byte)**text, digit = c - '0' < 10 ? c - '0' : c - 'a' < 6 ? c - 'a' + 10 : 99;
        if (digit >= base)
            return value;
        value = value * base + digit;
    }
}

/* The call */

static char input[16384];
static const char *network, *bridge, *ranges, *rest, *container, *ifname = "eth0", *netns;
static unsigned subnet, subnet6;
static int layer3, dual, hairpin, masquerade;

static void parameters(void)
{
    long size = 0, more;
    while ((more = must(get(STDIN, input + size, (long)sizeof input - 1 - size))) > 0)
        size += more;
    if (!starts(input, "{\"floor\": \""))
        end(1);
    char *at = input + length("{\"floor\": \"");
    const char **words[] = {&network, &bridge, &ranges};
    for (int i = 0; i < 3; i++) {
        *words[i] = at;
        while (*at != ' ')
            at++;
        *at++ = 0;
    }
    const char *digits = ranges;
    subnet = parse(&digits, 10);
    digits = ranges;
    subnet6 = parse(&digits, 16);
    for (; *at != '"'; at++) {
        layer3 |= *at == '3';
        dual |= *at == 'd';
        hairpin |= *at == 'h';
        masquerade |= *at == 'm';
    }
    rest = at + 1;
}

/* Leases. An address is represented by its last 16 bits; the subnet is fixed. */

static char *ipv4(char *to, unsigned host)
{
    to = number(append(number(append(to, "10."), subnet, 10), "."), host >> 8, 10);
    return number(append(to, "."), host & 255, 10);
}

static char *ipv6(char *to, unsigned host)
{
    return number(append(append(append(to, "fd00:"), ranges), "::"), host, 16);
}

static long lock;

static long directory(void)
{
    char path[256];
    append(append(path, "/var/lib/cni/networks/"), network);
    long dir = must(file(AT_FDCWD, path, O_DIRECTORY | O_PATH));
    lock = must(file(dir, "lock", O_RDONLY));
    must(ask(__NR_flock, lock, LOCK_EX, 0, 0, 0, 0));
    return dir;
}

static unsigned reserve(long dir, const char *pointer, char *(*format)(char *, unsigned))
{
    char text[64];
    unsigned host = 1;
    long last = must(file(dir, pointer, O_RDWR | O_CREAT)), size = must(get(last, text, sizeof text - 1));
    text[size] = 0;
    const char *at = text;
    if (size > 0 && format == ipv4) {
        parse(&at, 10), at++, parse(&at, 10), at++;
        host = parse(&at, 10) << 8, at++;
        host |= parse(&at, 10);
    } else if (size > 0) {
        at = text + size;
        while (at[-1] != ':')
            at--;
        host = parse(&at, 16);
    }
    long lease;
    do {
        host = host >= 65534 ? 2 : host + 1;
        format(text, host);
        lease = file(dir, text, O_WRONLY | O_CREAT | O_EXCL);
    } while (lease == EXISTS);
    char owner[256];
    put(must(lease), owner, append(append(append(owner, container), "\r\n"), ifname) - owner);
    shut(lease);
    must(ask(__NR_pwrite64, last, (long)text, length(text), 0, 0, 0));
    if (length(text) < size)
        must(ask(__NR_ftruncate, last, length(text), 0, 0, 0, 0));
    shut(last);
    return host;
}

/* Removes the lease of each address in the previous result. */
static void release(long dir)
{
    for (const char *at = rest; *at; at++) {
        if (*at != '"' || !starts(at, "\"address\": \""))
            continue;
        char text[64], *to = text;
        for (at += length("\"address\": \""); *at != '/' && to < text + sizeof text - 1; at++)
            *to++ = *at;
        *to = 0;
        ask(__NR_unlinkat, dir, (long)text, 0, 0, 0, 0);
    }
}

/* Netlink */

static byte batch[16384] __attribute__((aligned(8))), reply[8192] __attribute__((aligned(8)));
static byte *tail = batch;
static unsigned sequence;

static void *extend(const void *what, int size)
{
    byte *place = tail;
    memcpy(place, what, (unsigned)size);
    tail += (size + 3) & ~3;
    return place;
}

static struct nlmsghdr *message(int type, int flags, const void *head, int size)
{
    struct nlmsghdr header = {0, (unsigned short)type, (unsigned short)(NLM_F_REQUEST | flags), ++sequence, 0};
    struct nlmsghdr *place = extend(&header, sizeof header);
    extend(head, size);
    return place;
}

static void done(struct nlmsghdr *of) { of->nlmsg_len = (unsigned)(tail - (byte *)of); }

static struct nlattr *attribute(int type, const void *value, int size)
{
    struct nlattr head = {(unsigned short)(sizeof head + (unsigned)size), (unsigned short)type};
    struct nlattr *place = extend(&head, sizeof head);
    extend(value, size);
    return place;
}

static void string(int type, const char *value) { attribute(type, value, length(value) + 1); }
static void word(int type, unsigned value) { attribute(type, &value, sizeof value); }
static void big(int type, unsigned value) { word(type, __builtin_bswap32(value)); }
static struct nlattr *nest(int type) { return attribute(type | NLA_F_NESTED, 0, 0); }
static void closed(struct nlattr *of) { of->nla_len = (unsigned short)(tail - (byte *)of); }

static long netlink(int protocol) { return must(ask(__NR_socket, NETLINK, RAW | O_CLOEXEC, protocol, 0, 0, 0)); }

static void transmit(long fd)
{
    must(ask(__NR_sendto, fd, (long)batch, tail - batch, 0, 0, 0));
    tail = batch;
}

static struct nlmsghdr *next(struct nlmsghdr *at) { return (void *)((byte *)at + NLMSG_ALIGN(at->nlmsg_len)); }

/* Only the last message of a batch requests an answer; for the others, the kernel reports only errors. */
static void answered(long fd, unsigned last)
{
    for (;;) {
        long size = must(ask(__NR_recvfrom, fd, (long)reply, sizeof reply, 0, 0, 0));
        for (struct nlmsghdr *at = (void *)reply; size >= (long)sizeof *at; at = next(at)) {
            struct nlmsgerr *reply = NLMSG_DATA(at);
            if (at->nlmsg_type == NLMSG_ERROR) {
                if (reply->error && !(reply->error == EXISTS && reply->msg.nlmsg_type == RTM_NEWADDR))
                    end(1);
                if (at->nlmsg_seq == last)
                    return;
            }
            size -= NLMSG_ALIGN(at->nlmsg_len);
        }
    }
}

static int query(long fd, long what, const char *name, void *value, int size)
{
    struct { char name[16]; byte value[24]; } request = {{0}, {0}};
    append(request.name, name);
    long answer = ask(__NR_ioctl, fd, what, (long)&request, 0, 0, 0);
    if (answer == 0)
        memcpy(value, request.value + (what == SIOCGIFHWADDR ? 2 : 0), (unsigned)size);
    return (int)answer;
}

static void link(int flags, int index, int state)
{
    struct ifinfomsg head = {0, 0, 0, index, (unsigned)state, (unsigned)state};
    message(RTM_NEWLINK, flags, &head, sizeof head);
}

static void address(int flags, int index, const byte ip[16], int family)
{
    int size = family == INET ? 4 : 16;
    struct ifaddrmsg head = {(byte)family, size == 4 ? 16 : 64, size == 4 ? 0 : IFA_F_NODAD, 0, (unsigned)index};
    struct nlmsghdr *new = message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL | flags, &head, sizeof head);
    attribute(IFA_LOCAL, ip, size);
    if (size == 4) {
        const byte broadcast[] = {ip[0], ip[1], 255, 255};
        attribute(IFA_ADDRESS, ip, size);
        attribute(IFA_BROADCAST, broadcast, size);
    }
    done(new);
}

/* Adds a default route. */
static void route(int flags, int index, const byte gateway[16], int family)
{
    struct rtmsg head = {(byte)family, 0, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, RT_SCOPE_UNIVERSE, RTN_UNICAST, 0};
    struct nlmsghdr *new = message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL | flags, &head, sizeof head);
    attribute(RTA_GATEWAY, gateway, family == INET ? 4 : 16);
    word(RTA_OIF, (unsigned)index);
    done(new);
}

static void set(const char *before, const char *name, const char *after, const char *value)
{
    char path[128];
    append(append(append(append(path, "/proc/sys/net/"), before), name), after);
    long fd = must(file(AT_FDCWD, path, O_WRONLY));
    put(fd, value, length(value));
    shut(fd);
}

/* Masquerade: "source address, and destination not in the subnet: masquerade", like the reference's rule. */

static char *comment(char *to)
{
    to = append(append(append(append(to, "net: "), network), ", if: "), ifname);
    return append(append(to, ", id: "), container);
}

static void frontier(int type)
{
    struct nfgenmsg head = {0, NFNETLINK_V0, __builtin_bswap16(NFNL_SUBSYS_NFTABLES)};
    done(message(type, 0, &head, sizeof head));
}

static struct nlmsghdr *rule(int type, int flags)
{
    struct nfgenmsg head = {NFPROTO_INET, NFNETLINK_V0, 0};
    struct nlmsghdr *new = message(NFNL_SUBSYS_NFTABLES << 8 | type, flags, &head, sizeof head);
    string(NFTA_RULE_TABLE, "cni_plugins_masquerade");
    string(NFTA_RULE_CHAIN, "masq_checks");
    return new;
}

static struct nlattr *expression(const char *name, struct nlattr **data)
{
    struct nlattr *element = nest(NFTA_LIST_ELEM);
    string(NFTA_EXPR_NAME, name);
    *data = nest(NFTA_EXPR_DATA);
    return element;
}

static void value(int type, const void *bytes, int size)
{
    struct nlattr *data = nest(type);
    attribute(NFTA_DATA_VALUE, bytes, size);
    closed(data);
}

static void compare(int operator, const void *bytes, int size)
{
    struct nlattr *data, *element = expression("cmp", &data);
    big(NFTA_CMP_SREG, NFT_REG_1);
    big(NFTA_CMP_OP, (unsigned)operator);
    value(NFTA_CMP_DATA, bytes, size);
    closed(data), closed(element);
}

static void load(int offset, int size)
{
    struct nlattr *data, *element = expression("payload", &data);
    big(NFTA_PAYLOAD_DREG, NFT_REG_1);
    big(NFTA_PAYLOAD_BASE, NFT_PAYLOAD_NETWORK_HEADER);
    big(NFTA_PAYLOAD_OFFSET, (unsigned)offset);
    big(NFTA_PAYLOAD_LEN, (unsigned)size);
    closed(data), closed(element);
}

static void hide(const byte ip[16], int family, int flags)
{
    int size = family == INET ? 4 : 16, source = family == INET ? 12 : 8;
    byte protocol = (byte)family, mask[16] = {255, 255, 0}, net[16] = {0}, zero[16] = {0}, note[300];
    for (int i = 0; i < size / 2; i++)
        mask[i] = 255, net[i] = ip[i];
    struct nlmsghdr *new = rule(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND | flags);
    struct nlattr *all = nest(NFTA_RULE_EXPRESSIONS), *data, *element = expression("meta", &data);
    big(NFTA_META_KEY, NFT_META_NFPROTO);
    big(NFTA_META_DREG, NFT_REG_1);
    closed(data), closed(element);
    compare(NFT_CMP_EQ, &protocol, 1);
    load(source, size);
    compare(NFT_CMP_EQ, ip, size);
    load(source + size, size);
    element = expression("bitwise", &data);
    big(NFTA_BITWISE_SREG, NFT_REG_1);
    big(NFTA_BITWISE_DREG, NFT_REG_1);
    big(NFTA_BITWISE_LEN, (unsigned)size);
    value(NFTA_BITWISE_MASK, mask, size);
    value(NFTA_BITWISE_XOR, zero, size);
    closed(data), closed(element);
    compare(NFT_CMP_NEQ, net, size);
    element = expression("masq", &data);
    closed(data), closed(element);
    closed(all);
    int text = (int)(comment((char *)note + 2) - (char *)note) - 2 + 1;
    note[0] = 0; /* a comment */
    note[1] = (byte)text;
    attribute(NFTA_RULE_USERDATA, note, text + 2);
    done(new);
}

/* Removes the rules with our comment. The socket stays open: the kernel destroys rules later, and closing the socket
 * would wait for that; meanwhile the program waits for the link. */
static void reveal(void)
{
    static byte rules[65536] __attribute__((aligned(8)));
    char mine[300];
    int size = (int)(comment(mine) - mine) + 1;
    long fd = netlink(NETLINK_NETFILTER), more;
    done(rule(NFT_MSG_GETRULE, NLM_F_DUMP));
    transmit(fd);
    frontier(NFNL_MSG_BATCH_BEGIN);
    struct nlmsghdr *last = 0;
    for (int finished = 0; !finished;) {
        more = must(ask(__NR_recvfrom, fd, (long)rules, sizeof rules, 0, 0, 0));
        for (struct nlmsghdr *at = (void *)rules; more >= (long)sizeof *at; at = next(at)) {
            more -= NLMSG_ALIGN(at->nlmsg_len);
            finished |= at->nlmsg_type == NLMSG_DONE || at->nlmsg_type == NLMSG_ERROR;
            byte *from = (byte *)NLMSG_DATA(at) + sizeof(struct nfgenmsg), *handle = 0;
            int found = 0;
            while (!finished && from < (byte *)at + at->nlmsg_len) {
                struct nlattr *part = (void *)from;
                if (part->nla_type == NFTA_RULE_HANDLE)
                    handle = from + 4;
                if (part->nla_type == NFTA_RULE_USERDATA && part->nla_len == size + 6)
                    found = starts((char *)from + 6, mine);
                from += (part->nla_len + 3) & ~3;
            }
            if (found && handle) {
                last = rule(NFT_MSG_DELRULE, 0);
                attribute(NFTA_RULE_HANDLE, handle, 8);
                done(last);
            }
        }
    }
    unsigned answer = sequence;
    if (last)
        last->nlmsg_flags |= NLM_F_ACK;
    frontier(NFNL_MSG_BATCH_END);
    if (last) {
        transmit(fd);
        answered(fd, answer);
    }
    tail = batch;
}

/* The commands */

static char output[2048];

static _Noreturn void print(char *to)
{
    put(STDOUT, output, to - output);
    end(0);
}

static char *mac(char *to, const byte address[6])
{
    for (int i = 0; i < 6; i++) {
        to = number(number(append(to, i ? ":" : ""), address[i] >> 4, 16), address[i] & 15, 16);
    }
    return to;
}

static char *interface(char *to, const char *name, const byte address[6])
{
    return append(mac(append(append(append(to, "{\"name\": \""), name), "\", \"mac\": \""), address), "\"");
}

static char *ips(char *to, unsigned host, unsigned host6)
{
    to = append(ipv4(append(to, "\"ips\": [{\"address\": \""), host), "/16\", \"gateway\": \"");
    to = append(ipv4(to, 1), "\"");
    if (dual) {
        to = append(ipv6(append(to, "}, {\"address\": \""), host6), "/64\", \"gateway\": \"");
        to = append(ipv6(to, 1), "\"");
    }
    return append(to, "}]}");
}

static void lease(unsigned *host, unsigned *host6)
{
    long dir = directory();
    *host = reserve(dir, "last_reserved_ip.0", ipv4);
    if (dual)
        *host6 = reserve(dir, "last_reserved_ip.1", ipv6);
    shut(lock); /* other calls may be waiting */
}

static void enter(void) { must(ask(__NR_setns, must(file(AT_FDCWD, netns, O_RDONLY)), NEWNET, 0, 0, 0, 0)); }

static int made_bridge(long fd)
{
    link(NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, 0, 1);
    struct nlmsghdr *new = (void *)batch;
    string(IFLA_IFNAME, bridge);
    struct nlattr *info = nest(IFLA_LINKINFO);
    string(IFLA_INFO_KIND, "bridge");
    closed(info);
    done(new);
    unsigned last = sequence;
    transmit(fd);
    answered(fd, last);
    int index = 0;
    must(query(fd, SIOCGIFINDEX, bridge, &index, sizeof index));
    if (layer3)
        set("ipv4/ip_forward", "", "", "1");
    if (dual)
        set("ipv6/conf/all/forwarding", "", "", "1");
    return index;
}

static _Noreturn void add(void)
{
    unsigned host = 0, host6 = 0, last;
    byte random[16], there[6], bridge_mac[6];
    int index = 0, inside = 0;
    if (layer3)
        lease(&host, &host6);
    byte ip[16] = {10, (byte)subnet, (byte)(host >> 8), (byte)host}, gateway[16] = {10, (byte)subnet, 0, 1};
    byte ip6[16] = {0xfd, 0, (byte)(subnet6 >> 8), (byte)subnet6, [14] = (byte)(host6 >> 8), (byte)host6};
    byte gateway6[16] = {0xfd, 0, (byte)(subnet6 >> 8), (byte)subnet6, [15] = 1};

    must(ask(__NR_getrandom, (long)random, sizeof random, 0, 0, 0, 0));
    random[0] = (random[0] & 0xfe) | 2, random[6] = (random[6] & 0xfe) | 2;
    memcpy(there, random + 6, 6);
    char name[16], *end_of_name = append(name, "veth");
    for (int i = 12; i < 16; i++)
        end_of_name = number(number(end_of_name, random[i] >> 4, 16), random[i] & 15, 16);

    long fd = netlink(NETLINK_ROUTE), ns = must(file(AT_FDCWD, netns, O_RDONLY));
    if (query(fd, SIOCGIFINDEX, bridge, &index, sizeof index))
        index = made_bridge(fd);
    link(NLM_F_CREATE | NLM_F_EXCL | (layer3 || hairpin ? 0 : NLM_F_ACK), 0, 1);
    struct nlmsghdr *new = (void *)batch;
    string(IFLA_IFNAME, name);
    attribute(IFLA_ADDRESS, random, 6);
    word(IFLA_MASTER, (unsigned)index);
    word(IFLA_NUM_TX_QUEUES, 1);
    word(IFLA_NUM_RX_QUEUES, 1);
    struct nlattr *info = nest(IFLA_LINKINFO);
    string(IFLA_INFO_KIND, "veth");
    struct nlattr *data = nest(IFLA_INFO_DATA), *peer = nest(VETH_INFO_PEER);
    struct ifinfomsg head = {0, 0, 0, 0, 0, 0};
    extend(&head, sizeof head);
    string(IFLA_IFNAME, ifname);
    attribute(IFLA_ADDRESS, there, 6);
    word(IFLA_NUM_TX_QUEUES, 1);
    word(IFLA_NUM_RX_QUEUES, 1);
    word(IFLA_NET_NS_FD, (unsigned)ns);
    closed(peer), closed(data), closed(info);
    done(new);
    if (hairpin) {
        byte on = 1;
        new = (void *)tail;
        link(layer3 ? 0 : NLM_F_ACK, 0, 0);
        string(IFLA_IFNAME, name);
        info = nest(IFLA_LINKINFO);
        string(IFLA_INFO_SLAVE_KIND, "bridge");
        data = nest(IFLA_INFO_SLAVE_DATA);
        attribute(IFLA_BRPORT_MODE, &on, 1);
        closed(data), closed(info);
        done(new);
    }
    if (dual)
        address(0, index, gateway6, INET6);
    if (layer3)
        address(NLM_F_ACK, index, gateway, INET);
    last = sequence;
    transmit(fd);
    answered(fd, last);
    must(query(fd, SIOCGIFHWADDR, bridge, bridge_mac, 6));

    if (masquerade) {
        long nft = netlink(NETLINK_NETFILTER);
        frontier(NFNL_MSG_BATCH_BEGIN);
        if (dual)
            hide(ip6, INET6, 0);
        hide(ip, INET, NLM_F_ACK);
        last = sequence;
        frontier(NFNL_MSG_BATCH_END);
        transmit(nft);
        answered(nft, last);
    }

    must(ask(__NR_setns, ns, NEWNET, 0, 0, 0, 0));
    fd = netlink(NETLINK_ROUTE);
    must(query(fd, SIOCGIFINDEX, ifname, &inside, sizeof inside));
    set("ipv6/conf/", ifname, "/accept_dad", "0");
    if (dual) {
        set("ipv6/conf/", ifname, "/keep_addr_on_down", "1");
        set("ipv6/conf/", ifname, "/ndisc_notify", "1");
    }
    new = (void *)tail;
    link(layer3 ? 0 : NLM_F_ACK, inside, 1);
    struct nlattr *spec = nest(IFLA_AF_SPEC), *inet = nest(INET), *conf = nest(1 /* IFLA_INET_CONF */);
    word(22 /* IPV4_DEVCONF_ARP_NOTIFY */, 1);
    closed(conf), closed(inet), closed(spec);
    done(new);
    if (dual) {
        address(0, inside, ip6, INET6);
        route(0, inside, gateway6, INET6);
    }
    if (layer3) {
        address(0, inside, ip, INET);
        route(NLM_F_ACK, inside, gateway, INET);
    }
    last = sequence;
    transmit(fd);
    answered(fd, last);

    char *to = append(output, "{\"cniVersion\": \"1.0.0\", \"interfaces\": [");
    to = append(interface(to, bridge, bridge_mac), "}, ");
    to = append(interface(to, name, random), "}, ");
    to = append(append(append(interface(to, ifname, there), ", \"sandbox\": \""), netns), "\"}]");
    print(layer3 ? ips(append(to, ", "), host, host6) : append(to, "}"));
}

static _Noreturn void delete(void)
{
    if (masquerade)
        reveal();
    enter();
    long fd = netlink(NETLINK_ROUTE);
    struct ifinfomsg head = {0, 0, 0, 0, 0, 0};
    struct nlmsghdr *old = message(RTM_DELLINK, NLM_F_ACK, &head, sizeof head);
    string(IFLA_IFNAME, ifname);
    done(old);
    unsigned last = sequence;
    transmit(fd);
    answered(fd, last);
    if (layer3)
        release(directory());
    end(0);
}

_Noreturn void begin(char **stack)
{
    int count = (int)*(long *)stack;
    const char *program = stack[1], *command = "";
    for (const char *at = program; *at; at++)
        if (*at == '/')
            program = at + 1;
    for (char **env = stack + count + 2; *env; env++) {
        const struct { const char *name, **value; } known[] = {
            {"CNI_COMMAND=", &command}, {"CNI_CONTAINERID=", &container},
            {"CNI_IFNAME=", &ifname}, {"CNI_NETNS=", &netns},
        };
        for (int i = 0; i < 4; i++)
            if (starts(*env, known[i].name))
                *known[i].value = *env + length(known[i].name);
    }
    if (starts(command, "VERSION")) {
        get(STDIN, input, sizeof input);
        print(append(output, "{\"cniVersion\": \"1.1.0\", \"supportedVersions\": [\"1.0.0\"]}"));
    }
    parameters();
    int adds = starts(command, "ADD");
    if (!adds && !starts(command, "DEL"))
        end(1);
    if (starts(program, "bridge")) {
        if (adds)
            add();
        delete();
    }
    if (!adds) {
        release(directory());
        end(0);
    }
    unsigned host = 0, host6 = 0;
    lease(&host, &host6);
    print(ips(append(output, "{\"cniVersion\": \"1.0.0\", "), host, host6));
}
