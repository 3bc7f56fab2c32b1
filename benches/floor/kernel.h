/*
 * What the programs beside this file ask of the kernel: each thing once and nothing else, no JSON, no checks, no undo.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const char CONTAINER_LINK[] = "eth0";

struct request {
	struct nlmsghdr header;
	char rest[1024];
};

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static inline int netlink(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (fd < 0)
		die("open a netlink socket");
	return fd;
}

/* Starts a message and returns its fixed part. */
static inline void *begin(struct request *r, int type, int flags, size_t fixed)
{
	memset(r, 0, sizeof *r);
	r->header.nlmsg_len = NLMSG_LENGTH(fixed);
	r->header.nlmsg_type = type;
	r->header.nlmsg_flags = NLM_F_REQUEST | flags;
	return NLMSG_DATA(&r->header);
}

static inline struct rtattr *put(struct request *r, int type, const void *data, size_t size)
{
	struct rtattr *a = (struct rtattr *)((char *)r + NLMSG_ALIGN(r->header.nlmsg_len));
	a->rta_type = type;
	a->rta_len = RTA_LENGTH(size);
	if (size)
		memcpy(RTA_DATA(a), data, size);
	r->header.nlmsg_len = NLMSG_ALIGN(r->header.nlmsg_len) + RTA_ALIGN(a->rta_len);
	return a;
}

static inline void put_name(struct request *r, const char *name) { put(r, IFLA_IFNAME, name, strlen(name) + 1); }

/* Closes a nest that `put` with no data has opened. */
static inline void end_nest(struct request *r, struct rtattr *nest)
{
	nest->rta_len = (char *)r + NLMSG_ALIGN(r->header.nlmsg_len) - (char *)nest;
}

/* Sends, and reads the answer into `reply`; returns the kernel's error number, 0 for an answer or a plain ack. */
static inline int talk(int fd, struct request *r, char *reply, size_t size)
{
	struct nlmsghdr *answer = (struct nlmsghdr *)reply;
	if (send(fd, r, r->header.nlmsg_len, 0) < 0 || recv(fd, reply, size, 0) < 0)
		die("talk to the kernel");
	return answer->nlmsg_type == NLMSG_ERROR ? -((struct nlmsgerr *)NLMSG_DATA(answer))->error : 0;
}

static inline void must(int fd, struct request *r, const char *what)
{
	char reply[4096];
	errno = talk(fd, r, reply, sizeof reply);
	if (errno && errno != EEXIST)
		die(what);
}

/* The index of a link, 0 when there is none. The kernel sends name, MAC and state along, as a plugin needs them. */
static inline int find_link(int fd, const char *name)
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

static inline void set_up(int fd, int index)
{
	struct request r;
	struct ifinfomsg *link = begin(&r, RTM_NEWLINK, NLM_F_ACK, sizeof *link);
	link->ifi_index = index;
	link->ifi_flags = link->ifi_change = IFF_UP;
	must(fd, &r, "set a link up");
}

static inline void add_address(int fd, int index, struct in_addr address)
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

static inline void add_default_route(int fd, int index, struct in_addr gateway)
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

static inline void write_file(const char *path, int flags, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0600);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die(path);
	close(fd);
}

static inline void set_sysctl(const char *family, const char *link, const char *name, const char *value)
{
	char path[128];
	snprintf(path, sizeof path, "/proc/sys/net/%s/conf/%s/%s", family, link, name);
	write_file(path, 0, value);
}

static inline void lease(const char *dir, const char *address)
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

static inline int open_namespace(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die(path);
	return fd;
}

static inline void enter(int netns)
{
	if (setns(netns, CLONE_NEWNET) < 0)
		die("enter a namespace");
}

static inline void delete_link(int fd, const char *name)
{
	struct request r;
	begin(&r, RTM_DELLINK, NLM_F_ACK, sizeof(struct ifinfomsg));
	put_name(&r, name);
	must(fd, &r, "delete a link");
}

static inline void release(const char *dir, const char *address)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", dir, address);
	unlink(path);
}
