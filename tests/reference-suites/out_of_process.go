// Added to the package of a plugin of the reference: its commands as calls of the program under test. PLUGIN is replaced by
// the plugin's name.

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
)

// The laboratory has the plugins under test here.
const farm = "/run/cni-plugins"

// Calls the plugin as a runtime does. The calling thread may be locked to a network namespace: the child is born in it.
func outOfProcess(command string, args *skel.CmdArgs) error {
	path := args.Path
	if path == "" {
		path = farm
	}
	call := exec.Command(farm + "/PLUGIN")
	call.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+args.ContainerID,
		"CNI_NETNS="+args.Netns, "CNI_IFNAME="+args.IfName, "CNI_ARGS="+args.Args, "CNI_PATH="+path)
	if args.NetnsOverride != "" { // else it is what the suite has set
		call.Env = append(call.Env, "CNI_NETNS_OVERRIDE="+args.NetnsOverride)
	}
	call.Stdin, call.Stderr = bytes.NewReader(args.StdinData), os.Stderr
	stdout, failure := call.Output()
	if failure == nil {
		_, failure = os.Stdout.Write(stdout)
		return failure
	}
	// The suites know the reference's sentences, which are `msg`.
	var said struct{ Msg string }
	if json.Unmarshal(stdout, &said) == nil && said.Msg != "" {
		return errors.New(said.Msg)
	}
	return failure
}

func cmdAdd(args *skel.CmdArgs) error    { return outOfProcess("ADD", args) }
func cmdCheck(args *skel.CmdArgs) error  { return outOfProcess("CHECK", args) }
func cmdDel(args *skel.CmdArgs) error    { return outOfProcess("DEL", args) }
func cmdStatus(args *skel.CmdArgs) error { return outOfProcess("STATUS", args) }

// What a suite gives to the package in its own process, the program under test has from outside.

// The bus of a suite is the program's system bus.
func useBus(address string) { os.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address) }

// The devices of a suite are those of the laboratory, until the returned function.
func useDevices(root string) func() {
	const bus = "/sys/bus"
	if err := syscall.Mount(filepath.Join(root, bus), bus, "", syscall.MS_BIND, ""); err != nil {
		panic(err)
	}
	return func() {
		if err := syscall.Unmount(bus, 0); err != nil {
			panic(err)
		}
	}
}
