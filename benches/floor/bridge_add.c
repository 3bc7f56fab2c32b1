/*
 * What an ADD of bridge with host-local asks of the kernel, each thing once and nothing else: no JSON, no checks, no
 * undo. The operations and their order are those of the plugin; a plugin's ADD is compared with this program's time.
 *
 *   bridge_add add NETNS VETH LEASE_DIR ADDRESS GATEWAY   address with prefix length 16
 *   bridge_add del VETH LEASE_DIR ADDRESS
 */
#include "kernel.h"
#include <linux/if_bridge.h>
#include <linux/veth.h>

static const char BRIDGE[] = "bench0";

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

static void add(const char *netns_path, const char *veth, const char *lease_dir, const char *address, const char *gateway)
{
	struct in_addr container_address, gateway_address;
	int host = netlink(), container, bridge, port, link;
	int netns = open_namespace(netns_path), home = open_namespace("/proc/thread-self/ns/net");
	inet_pton(AF_INET, address, &container_address);
	inet_pton(AF_INET, gateway, &gateway_address);

	bridge = ensure_bridge(host);
	create_veth(host, veth, bridge, netns);
	port = find_link(host, veth);
	set_port_flags(host, port);
	set_sysctl("ipv6", veth, "accept_ra", "0");
	lease(lease_dir, address);

	enter(netns);
	container = netlink();
	set_sysctl("ipv6", CONTAINER_LINK, "accept_dad", "0");
	set_sysctl("ipv4", CONTAINER_LINK, "arp_notify", "1");
	enter(home);
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
	delete_link(netlink(), veth);
	release(lease_dir, address);
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
