// Command cluster runs a Kubernetes cluster on one Linux machine without containers: real etcd, kube-apiserver and
// kube-controller-manager, and nodes whose pods are network namespaces and whose containers are processes. A table says
// which program an image is. Everything is in its own network, process and mount namespace, so the kernel removes all
// of it with this process; only the folder stays. The API server is also reachable on a loopback port of the machine.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// settings are what the command line says.
type settings struct {
	folder string // kubeconfig, logs, state
	bin    string // folder of etcd, kube-apiserver, kube-controller-manager
	images map[string]image
	block  int // which address ranges
	nodes  int
	peer   string // folder of a cluster to connect to
	port   int    // of the API server on the machine's loopback interface
	inside bool
}

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	if len(os.Args) > 2 && os.Args[1] == becomeCommand {
		log.Fatal(becomeContainer(os.Args[2]))
	}
	var s settings
	var table string
	flag.StringVar(&s.folder, "folder", "", "folder for kubeconfig, logs and state; made, and never removed")
	flag.StringVar(&s.bin, "bin", "", "folder with etcd, kube-apiserver and kube-controller-manager")
	flag.StringVar(&table, "images", "", "JSON file of images: name to program")
	flag.IntVar(&s.block, "block", 0, "0 to 15: which address ranges to use; clusters that are connected need different ones")
	flag.IntVar(&s.nodes, "nodes", 2, "number of nodes")
	flag.StringVar(&s.peer, "peer", "", "folder of a running cluster whose pods and load balancers shall be reachable")
	flag.BoolVar(&s.inside, "inside", false, "used by the program itself")
	flag.IntVar(&s.port, "port", 0, "used by the program itself")
	flag.Parse()
	err := check(&s, table)
	if err == nil {
		if s.inside {
			err = serve(s)
		} else {
			err = enclose(s)
		}
	}
	if err != nil {
		log.Fatalf("error: %v", err)
	}
}

func check(s *settings, table string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("a cluster needs root: it makes network namespaces")
	}
	if s.folder == "" || s.bin == "" || table == "" {
		return fmt.Errorf("--folder, --bin and --images are needed")
	}
	if s.block < 0 || s.block > 15 || s.nodes < 1 {
		return fmt.Errorf("--block is 0 to 15, --nodes at least 1")
	}
	folder, err := filepath.Abs(s.folder)
	if err != nil {
		return err
	}
	s.folder = folder
	text, err := os.ReadFile(table)
	if err == nil {
		err = json.Unmarshal(text, &s.images)
	}
	if err != nil {
		return fmt.Errorf("could not read the images: %w", err)
	}
	return os.MkdirAll(filepath.Join(s.folder, "logs"), 0o755)
}

// enclose starts this program again in its own namespaces and passes it a socket of the machine's loopback interface.
func enclose(s settings) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	child := exec.Command("/proc/self/exe", append([]string{"--inside", fmt.Sprintf("--port=%d", port)}, os.Args[1:]...)...)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.ExtraFiles = []*os.File{socket}
	// The child waits for the end of its input before it starts anything.
	gate, err := child.StdinPipe()
	if err != nil {
		return err
	}
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := child.Start(); err != nil {
		return err
	}
	pid := child.Process.Pid
	if s.peer != "" {
		if err := connect(s, pid); err != nil {
			_ = child.Process.Kill()
			return fmt.Errorf("could not connect the clusters: %w", err)
		}
	}
	// Commands enter the cluster's network with nsenter and this process id.
	for name, number := range map[string]int{"pid": os.Getpid(), "inside": pid, "block": s.block} {
		if err := os.WriteFile(filepath.Join(s.folder, name), fmt.Append(nil, number), 0o644); err != nil {
			return err
		}
	}
	gate.Close()
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-ended:
		return fmt.Errorf("the cluster ended: %v", err)
	case <-signals:
		_ = child.Process.Kill() // the kernel ends everything in its process namespace
		<-ended
		return nil
	}
}

// connect adds a link between the networks of two clusters and routes the other cluster's side of it.
func connect(s settings, pid int) error {
	other, err := os.ReadFile(filepath.Join(s.peer, "inside"))
	if err != nil {
		return err
	}
	block, err := peerBlock(s)
	if err != nil {
		return err
	}
	if block == s.block {
		return fmt.Errorf("both use block %d", block)
	}
	link := fmt.Sprintf("peer%d", s.block)
	if err := ip(fmt.Sprintf("link add %s netns %s type veth peer name %s netns %d", link, other, peerLink, pid)); err != nil {
		return err
	}
	commands := strings.Join(peerRoutes(link, s.block, block), "\n") + "\n"
	return runWith(commands, "nsenter", "--target", string(other), "--net", "ip", "-batch", "-")
}

// serve runs inside the namespaces.
func serve(s settings) error {
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	started := time.Now()
	if err := privateMounts(); err != nil {
		return fmt.Errorf("could not mount: %w", err)
	}
	n, err := newNetwork(s)
	if err != nil {
		return err
	}
	if err := forward(s, os.NewFile(3, "loopback")); err != nil {
		return err
	}
	api, err := startServers(s, n)
	if err != nil {
		return err
	}
	if err := runNode(s, n, api); err != nil {
		return err
	}
	log.Printf("ready after %.1f s: %s", time.Since(started).Seconds(), api.kubeconfig)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
	return nil
}

// forward passes connections of the machine's loopback interface to the API server.
func forward(s settings, socket *os.File) error {
	listener, err := net.FileListener(socket)
	if err != nil {
		return err
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				server, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
				if err != nil {
					return
				}
				defer server.Close()
				join(client, server)
			}()
		}
	}()
	return nil
}

// join copies both directions until both have ended.
func join(a, b net.Conn) {
	done := make(chan struct{})
	copyHalf := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if half, ok := to.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
		done <- struct{}{}
	}
	go copyHalf(a, b)
	go copyHalf(b, a)
	<-done
	<-done
}
