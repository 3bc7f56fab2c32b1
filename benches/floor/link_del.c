/*
 * Deletes a link by its name, with one request.
 *
 *   link_del NAME
 */
#include "kernel.h"

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	delete_link(netlink(), argv[1]);
	return 0;
}
