// A runtime based on the reference's library, which creates the cache entries in this directory: peer add|check|del
// NETWORK NETNS
package main

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(command, network, netns string) error {
	list, err := libcni.LoadConfList(os.Getenv("NETCONFPATH"), network)
	if err != nil {
		return err
	}
	id := sha512.Sum512([]byte(netns))
	at := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("cnitool-%x", id[:10]), NetNS: netns, IfName: "eth0"}
	if name := os.Getenv("CNI_IFNAME"); name != "" {
		at.IfName = name
	}
	if given := os.Getenv("CAP_ARGS"); given != "" {
		if err := json.Unmarshal([]byte(given), &at.CapabilityArgs); err != nil {
			return err
		}
	}
	for _, pair := range strings.FieldsFunc(os.Getenv("CNI_ARGS"), func(c rune) bool { return c == ';' }) {
		key, value, _ := strings.Cut(pair, "=")
		at.Args = append(at.Args, [2]string{key, value})
	}
	plugins := libcni.NewCNIConfig(filepath.SplitList(os.Getenv("CNI_PATH")), nil)
	switch command {
	case "add":
		result, err := plugins.AddNetworkList(context.Background(), list, at)
		if err != nil {
			return err
		}
		return result.Print()
	case "check":
		return plugins.CheckNetworkList(context.Background(), list, at)
	default:
		return plugins.DelNetworkList(context.Background(), list, at)
	}
}
