/*
 * What an ADD of macvlan with host-local asks of the kernel, each thing once and nothing else: no JSON, no checks, no
 * undo. The operations and their order are those of the plugin; a plugin's ADD is compared with this program's time.
 *
 *   macvlan_add add NETNS MASTER PASSING_NAME LEASE_DIR ADDRESS GATEWAY   address with prefix length 16
 *   macvlan_add del NETNS LEASE_DIR ADDRESS
 */
#include "kernel.h"

/* Born in the container, with a name that cannot be taken on the host. */
static void create_macvlan(int fd, const char *name, int master, int netns)
{
	struct request r;
	struct rtattr *info, *data;
	unsigned mode = MACVLAN_MODE_BRIDGE;
	begin(&r, RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, sizeof(struct ifinfomsg));
	put_name(&r, name);
	put(&r, IFLA_LINK, &master, sizeof master);
	put(&r, IFLA_NET_NS_FD, &netns, sizeof netns);
	info = put(&r, IFLA_LINKINFO, NULL, 0);
	put(&r, IFLA_INFO_KIND, "macvlan", 7);
	data = put(&r, IFLA_INFO_DATA, NULL, 0);
	put(&r, IFLA_MACVLAN_MODE, &mode, sizeof mode);
	end_nest(&r, data);
	end_nest(&r, info);
	must(fd, &r, "create the macvlan");
}

static void rename_link(int fd, int index, const char *name)
{
	struct request r;
	struct ifinfomsg *link = begin(&r, RTM_NEWLINK, NLM_F_ACK, sizeof *link);
	link->ifi_index = index;
	put_name(&r, name);
	must(fd, &r, "rename a link");
}

static void add(const char *netns_path, const char *master, const char *passing_name, const char *lease_dir,
		const char *address, const char *gateway)
{
	struct in_addr container_address, gateway_address;
	int netns = open_namespace(netns_path), home = open_namespace("/proc/thread-self/ns/net");
	int host = netlink(), container, link;
	inet_pton(AF_INET, address, &container_address);
	inet_pton(AF_INET, gateway, &gateway_address);

	create_macvlan(host, passing_name, find_link(host, master), netns);
	enter(netns);
	container = netlink();
	link = find_link(container, passing_name);
	rename_link(container, link, CONTAINER_LINK);
	lease(lease_dir, address);
	set_sysctl("ipv4", CONTAINER_LINK, "arp_notify", "1");
	set_sysctl("ipv6", CONTAINER_LINK, "ndisc_notify", "1");
	enter(home);
	add_address(container, link, container_address);
	set_up(container, link);
	add_default_route(container, link, gateway_address);
}

static void del(const char *netns_path, const char *lease_dir, const char *address)
{
	enter(open_namespace(netns_path));
	delete_link(netlink(), CONTAINER_LINK);
	release(lease_dir, address);
}

int main(int argc, char **argv)
{
	if (argc == 8 && !strcmp(argv[1], "add"))
		add(argv[2], argv[3], argv[4], argv[5], argv[6], argv[7]);
	else if (argc == 5 && !strcmp(argv[1], "del"))
		del(argv[2], argv[3], argv[4]);
	else
		return 2;
	return 0;
}
