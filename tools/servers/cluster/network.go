package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	peerLink = "peer"
	// gateway is the next hop of every pod, at the nodes' end of its link.
	gateway = "169.254.1.1"
)

// network gives pods their namespaces and addresses. Every pod has its own routed link, so that all packets between
// pods pass the address translation of Services in both directions.
type network struct {
	pods     netip.Prefix
	balanced netip.Prefix
	services netip.Prefix
	machine  netip.Addr // of the nodes: API server, kubelets, DNS

	mutex    sync.Mutex
	nextPod  netip.Addr
	nextFree netip.Addr
}

// ranges are the address ranges of a block: pods, load balancers, Services.
func ranges(block int) (pods, balanced, services netip.Prefix) {
	of := func(offset int) netip.Prefix {
		return netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 160+4*block+offset))
	}
	return of(0), of(1), of(2)
}

// privateMounts hides mounts from the machine and shows the own processes and networks.
func privateMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		return err
	}
	return unix.Mount("tmpfs", "/run/netns", "tmpfs", 0, "mode=0755")
}

func newNetwork(s settings) (*network, error) {
	n := &network{}
	n.pods, n.balanced, n.services = ranges(s.block)
	n.machine = n.pods.Addr().Next()
	n.nextPod = netip.AddrFrom4([4]byte{10, n.pods.Addr().As4()[1], 1, 1})
	n.nextFree = n.balanced.Addr().Next()
	err := ip("link set lo up", fmt.Sprintf("addr add %s/32 dev lo", n.machine),
		fmt.Sprintf("addr add %s/32 dev lo scope link", gateway),
		// Addresses of Services and load balancers are translated before they are routed, but must have a route.
		fmt.Sprintf("route add %s dev lo src %s", n.services, n.machine),
		fmt.Sprintf("route add %s dev lo src %s", n.balanced, n.machine))
	for _, name := range []string{"ipv4/ip_forward", "ipv4/conf/all/proxy_arp"} {
		if err == nil {
			err = os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0o644)
		}
	}
	if err == nil && s.peer != "" {
		err = n.joinPeer(s)
	}
	return n, err
}

// joinPeer configures our end of the link to another cluster.
func (n *network) joinPeer(s settings) error {
	block, err := peerBlock(s)
	if err != nil {
		return err
	}
	return ip(peerRoutes(peerLink, block, s.block)...)
}

func peerBlock(s settings) (int, error) {
	text, err := os.ReadFile(filepath.Join(s.peer, "block"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// peerRoutes make a link lead to pods and load balancers of another cluster; the ends answer for all addresses.
func peerRoutes(link string, other, own int) []string {
	pods, balanced, _ := ranges(other)
	machine, _, _ := ranges(own)
	return []string{
		"link set " + link + " up",
		fmt.Sprintf("route add %s dev %s src %s", pods, link, machine.Addr().Next()),
		fmt.Sprintf("route add %s dev %s src %s", balanced, link, machine.Addr().Next()),
	}
}

// add makes a namespace with one interface and returns its name and address.
func (n *network) add(id string) (string, netip.Addr, error) {
	n.mutex.Lock()
	address := n.nextPod
	n.nextPod = n.nextPod.Next()
	n.mutex.Unlock()
	name := "pod-" + id
	link := "p" + id
	err := ip("netns add "+name, "link add "+link+" type veth peer name eth0 netns "+name, "link set "+link+" up",
		fmt.Sprintf("route add %s/32 dev %s src %s", address, link, n.machine))
	if err == nil {
		err = os.WriteFile("/proc/sys/net/ipv4/neigh/"+link+"/proxy_delay", []byte("0"), 0o644)
	}
	if err == nil {
		err = ip("-n "+name, "link set lo up", "link set eth0 up", fmt.Sprintf("addr add %s/32 dev eth0", address),
			"route add "+gateway+" dev eth0 scope link", "route add default via "+gateway)
	}
	if err != nil {
		_ = ip("netns del " + name)
	}
	return name, address, err
}

func (n *network) remove(name string) {
	_ = ip("netns del " + name)
}

// balancerAddress is one that was never used before.
func (n *network) balancerAddress() netip.Addr {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	address := n.nextFree
	n.nextFree = n.nextFree.Next()
	return address
}

// ip runs commands of iproute2; a first one that begins with -n chooses the namespace.
func ip(commands ...string) error {
	var arguments []string
	if strings.HasPrefix(commands[0], "-n ") {
		arguments, commands = strings.Fields(commands[0]), commands[1:]
	}
	return runWith(strings.Join(commands, "\n")+"\n", "ip", append(arguments, "-batch", "-")...)
}

// runWith runs a program with this input; its output is the error.
func runWith(input, program string, arguments ...string) error {
	c := exec.Command(program, arguments...)
	c.Stdin = strings.NewReader(input)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %q: %w: %s", program, arguments, err, strings.TrimSpace(string(out)))
	}
	return nil
}
