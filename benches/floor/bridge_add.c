/*
 * What an ADD of bridge with host-local asks of the kernel, each thing once and nothing else: no JSON, no checks, no
 * undo. The operations and their order are those of the plugin; a plugin's ADD is compared with this program's time.
 *
 *   bridge_add add NETNS VETH LEASE_DIR ADDRESS GATEWAY   address with prefix length 16
 *   bridge_add del VETH LEASE_DIR ADDRESS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_bridge.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const char BRIDGE[] = "bench0";
static const char CONTAINER_LINK[] = "eth0";

struct request {
	struct nlmsghdr header;
	char rest[1024];
};

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static int netlink(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (fd < 0)
		die("open a netlink socket");
	return fd;
}

/* Starts a message and returns its fixed part. */
static void *begin(struct request *r, int type, int flags, size_t fixed)
{
	memset(r, 0, sizeof *r);
	r->header.nlmsg_len = NLMSG_LENGTH(fixed);
	r->header.nlmsg_type = type;
	r->header.nlmsg_flags = NLM_F_REQUEST | flags;
	return NLMSG_DATA(&r->header);
}

static struct rtattr *put(struct request *r, int type, const void *data, size_t size)
{
	struct rtattr *a = (struct rtattr *)((char *)r + NLMSG_ALIGN(r->header.nlmsg_len));
	a->rta_type = type;
	a->rta_len = RTA_LENGTH(size);
	if (size)
		memcpy(RTA_DATA(a), data, size);
	r->header.nlmsg_len = NLMSG_ALIGN(r->header.nlmsg_len) + RTA_ALIGN(a->rta_len);
	return a;
}

static void put_name(struct request *r, const char *name) { put(r, IFLA_IFNAME, name, strlen(name) + 1); }

/* Closes a nest that `put` with no data has opened. */
static void end_nest(struct request *r, struct rtattr *nest)
{
	nest->rta_len = (char *)r + NLMSG_ALIGN(r->header.nlmsg_len) - (char *)nest;
}

/* Sends, and reads the answer into `reply`; returns the kernel's error number, 0 for an answer or a plain ack. */
static int talk(int fd, struct request *r, char *reply, size_t size)
{
	struct nlmsghdr *answer = (struct nlmsghdr *)reply;
	if (send(fd, r, r->header.nlmsg_len, 0) < 0 || recv(fd, reply, size, 0) < 0)
		die("talk to the kernel");
	return answer->nlmsg_type == NLMSG_ERROR ? -((struct nlmsgerr *)NLMSG_DATA(answer))->error : 0;
}

static void must(int fd, struct request *r, const char *what)
{
	char reply[4096];
	errno = talk(fd, r, reply, sizeof reply);
	if (errno && errno != EEXIST)
		die(what);
}

/* The index of a link, 0 when there is none. The kernel sends name, MAC and state along, as a plugin needs them. */
static int find_link(int fd, const char *name)
{
	struct request r;
	char reply[8192];
	begin(&r, RTM_GETLINK, 0, sizeof(struct ifinfomsg));
	put_name(&r, name);
	errno = talk(fd, &r, reply, sizeof reply);
	if (errno == ENODEV)
		return 0;
	if (errno)
		die("get a link");
	return ((struct ifinfomsg *)NLMSG_DATA((struct nlmsghdr *)reply))->ifi_index;
}

static void set_up(int fd, int index)
{
	struct request r;
	struct ifinfomsg *link = begin(&r, RTM_NEWLINK, NLM_F_ACK, sizeof *link);
	link->ifi_index = index;
	link->ifi_flags = link->ifi_change = IFF_UP;
	must(fd, &r, "set a link up");
}

static int ensure_bridge(int fd)
{
	struct request r;
	struct rtattr *info;
	int index = find_link(fd, BRIDGE);
	if (index)
		return index;
	begin(&r, RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, sizeof(struct ifinfomsg));
	put_name(&r, BRIDGE);
	info = put(&r, IFLA_LINKINFO, NULL, 0);
	put(&r, IFLA_INFO_KIND, "bridge", 6);
	end_nest(&r, info);
	must(fd, &r, "create the bridge");
	index = find_link(fd, BRIDGE);
	set_up(fd, index);
	return index;
}

/* Both ends in place: the peer is born in the container, this end is a port of the bridge and up. */
static void create_veth(int fd, const char *name, int bridge, int netns)
{
	struct request r;
	struct rtattr *info, *data, *peer;
	struct ifinfomsg *link = begin(&r, RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, sizeof *link);
	struct ifinfomsg unset = { 0 };
	link->ifi_flags = link->ifi_change = IFF_UP;
	put_name(&r, name);
	put(&r, IFLA_MASTER, &bridge, sizeof bridge);
	info = put(&r, IFLA_LINKINFO, NULL, 0);
	put(&r, IFLA_INFO_KIND, "veth", 4);
	data = put(&r, IFLA_INFO_DATA, NULL, 0);
	peer = put(&r, VETH_INFO_PEER, &unset, sizeof unset);
	put_name(&r, CONTAINER_LINK);
	put(&r, IFLA_NET_NS_FD, &netns, sizeof netns);
	end_nest(&r, peer);
	end_nest(&r, data);
	end_nest(&r, info);
	must(fd, &r, "create the veth pair");
}

static void set_port_flags(int fd, int index)
{
	struct request r;
	struct rtattr *port;
	char off = 0;
	struct ifinfomsg *link = begin(&r, RTM_SETLINK, NLM_F_ACK, sizeof *link);
	link->ifi_family = AF_BRIDGE;
	link->ifi_index = index;
	port = put(&r, IFLA_PROTINFO | NLA_F_NESTED, NULL, 0);
	put(&r, IFLA_BRPORT_MODE, &off, 1);
	put(&r, IFLA_BRPORT_ISOLATED, &off, 1);
	end_nest(&r, port);
	must(fd, &r, "set the port's flags");
}

static void add_address(int fd, int index, struct in_addr address)
{
	struct request r;
	struct in_addr broadcast = { address.s_addr | htonl(0xffff) };
	struct ifaddrmsg *m = begin(&r, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, sizeof *m);
	m->ifa_family = AF_INET;
	m->ifa_prefixlen = 16;
	m->ifa_index = index;
	put(&r, IFA_LOCAL, &address, sizeof address);
	put(&r, IFA_ADDRESS, &address, sizeof address);
	put(&r, IFA_BROADCAST, &broadcast, sizeof broadcast);
	must(fd, &r, "add an address");
}

static void add_default_route(int fd, int index, struct in_addr gateway)
{
	struct request r;
	struct rtmsg *m = begin(&r, RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE, sizeof *m);
	m->rtm_family = AF_INET;
	m->rtm_table = RT_TABLE_MAIN;
	m->rtm_protocol = RTPROT_BOOT;
	m->rtm_type = RTN_UNICAST;
	put(&r, RTA_GATEWAY, &gateway, sizeof gateway);
	put(&r, RTA_OIF, &index, sizeof index);
	must(fd, &r, "add the default route");
}

static void write_file(const char *path, int flags, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0600);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die(path);
	close(fd);
}

static void set_sysctl(const char *family, const char *link, const char *name, const char *value)
{
	char path[128];
	snprintf(path, sizeof path, "/proc/sys/net/%s/conf/%s/%s", family, link, name);
	write_file(path, 0, value);
}

static void ensure_forwarding(void)
{
	static const char path[] = "/proc/sys/net/ipv4/ip_forward";
	char now = '0';
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, &now, 1) < 0)
		die(path);
	close(fd);
	if (now != '1')
		write_file(path, 0, "1");
}

static void lease(const char *dir, const char *address)
{
	char path[256];
	int lock;
	mkdir(dir, 0755);
	snprintf(path, sizeof path, "%s/lock", dir);
	lock = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0750);
	if (lock < 0 || flock(lock, LOCK_EX) < 0)
		die(path);
	snprintf(path, sizeof path, "%s/%s", dir, address);
	write_file(path, O_CREAT | O_EXCL, "container\r\neth0");
	snprintf(path, sizeof path, "%s/last_reserved_ip.0", dir);
	write_file(path, O_CREAT | O_TRUNC, address);
	close(lock);
}

static void add(const char *netns_path, const char *veth, const char *lease_dir, const char *address, const char *gateway)
{
	struct in_addr container_address, gateway_address;
	int host = netlink(), container, bridge, port, link;
	int netns = open(netns_path, O_RDONLY | O_CLOEXEC);
	int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (netns < 0 || home < 0)
		die(netns_path);
	inet_pton(AF_INET, address, &container_address);
	inet_pton(AF_INET, gateway, &gateway_address);

	bridge = ensure_bridge(host);
	create_veth(host, veth, bridge, netns);
	port = find_link(host, veth);
	set_port_flags(host, port);
	set_sysctl("ipv6", veth, "accept_ra", "0");
	lease(lease_dir, address);

	if (setns(netns, CLONE_NEWNET) < 0)
		die("enter the container");
	container = netlink();
	set_sysctl("ipv6", CONTAINER_LINK, "accept_dad", "0");
	set_sysctl("ipv4", CONTAINER_LINK, "arp_notify", "1");
	if (setns(home, CLONE_NEWNET) < 0)
		die("leave the container");
	link = find_link(container, CONTAINER_LINK);
	add_address(container, link, container_address);
	set_up(container, link);
	add_default_route(container, link, gateway_address);

	add_address(host, bridge, gateway_address);
	ensure_forwarding();
	find_link(host, veth);   /* the port's state and MAC */
	find_link(host, BRIDGE); /* its MAC as it is now */
}

static void del(const char *veth, const char *lease_dir, const char *address)
{
	struct request r;
	char path[256];
	begin(&r, RTM_DELLINK, NLM_F_ACK, sizeof(struct ifinfomsg));
	put_name(&r, veth);
	must(netlink(), &r, "delete the veth pair");
	snprintf(path, sizeof path, "%s/%s", lease_dir, address);
	unlink(path);
}

int main(int argc, char **argv)
{
	if (argc == 7 && !strcmp(argv[1], "add"))
		add(argv[2], argv[3], argv[4], argv[5], argv[6]);
	else if (argc == 5 && !strcmp(argv[1], "del"))
		del(argv[2], argv[3], argv[4]);
	else
		return 2;
	return 0;
}
