// Command kubelet answers what an API server delegates to the kubelet of a node: port-forward, exec and logs. Its pods are
// processes on this machine: a file names the address of each port and the program of each command. Port-forward and exec
// are served by the code of the real kubelet.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	remote "k8s.io/client-go/tools/remotecommand"
	"k8s.io/kubelet/pkg/cri/streaming/portforward"
	"k8s.io/kubelet/pkg/cri/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	idle     = time.Minute
	creation = 10 * time.Second
)

// pod says where the ports and commands of a pod are on this machine.
type pod struct {
	Ports    map[string]string   `json:"ports"`
	Commands map[string][]string `json:"commands"`
}

// node is a file of pods by namespace/name, read for each request.
type node string

func (n node) find(name string) (pod, error) {
	pods := map[string]pod{}
	text, err := os.ReadFile(string(n))
	if err == nil {
		err = json.Unmarshal(text, &pods)
	}
	if err != nil {
		return pod{}, err
	}
	found, ok := pods[name]
	if !ok {
		return pod{}, fmt.Errorf("no pod %s", name)
	}
	return found, nil
}

// PortForward connects a stream with a port of a pod.
func (n node) PortForward(_ context.Context, name string, _ types.UID, port int32, stream io.ReadWriteCloser) error {
	found, err := n.find(name)
	if err != nil {
		return err
	}
	address, ok := found.Ports[strconv.Itoa(int(port))]
	if !ok {
		return fmt.Errorf("nothing listens on port %d of %s", port, name)
	}
	server, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer server.Close()
	sent := make(chan struct{})
	go func() {
		_, _ = io.Copy(server, stream)
		_ = server.(*net.TCPConn).CloseWrite()
		close(sent)
	}()
	_, err = io.Copy(stream, server)
	_ = stream.Close()
	<-sent
	return err
}

// ExecInContainer runs a command of a pod: its program and first arguments are those of the file.
func (n node) ExecInContainer(ctx context.Context, name string, _ types.UID, _ string, cmd []string, in io.Reader,
	out, errors io.WriteCloser, _ bool, _ <-chan remote.TerminalSize, _ time.Duration,
) error {
	found, err := n.find(name)
	if err != nil {
		return err
	}
	program := found.Commands[cmd[0]]
	if len(program) == 0 {
		return fmt.Errorf("no command %s in %s", cmd[0], name)
	}
	command := exec.CommandContext(ctx, program[0], append(append([]string{}, program[1:]...), cmd[1:]...)...)
	command.Stdin, command.Stdout, command.Stderr = in, out, errors
	err = command.Run()
	if failed, ok := err.(*exec.ExitError); ok {
		return &utilexec.ExitErrorWrapper{ExitError: failed}
	}
	return err
}

func (n node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// /portForward/NAMESPACE/POD, /exec/NAMESPACE/POD/CONTAINER, /containerLogs/NAMESPACE/POD/CONTAINER
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) < 3 {
		http.NotFound(w, r)
		return
	}
	name := parts[1] + "/" + parts[2]
	switch {
	case parts[0] == "portForward":
		options, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, n, name, "", options, idle, creation, portforward.SupportedProtocols)
	case parts[0] == "exec" && len(parts) == 4:
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, r, n, name, "", parts[3], r.URL.Query()["command"], options, idle, creation,
			[]string{"v4.channel.k8s.io"})
	case parts[0] == "containerLogs":
		_, _ = fmt.Fprintf(w, "log of %s\n", name)
	default:
		http.NotFound(w, r)
	}
}

func main() {
	address := flag.String("address", "127.0.0.1:0", "address to listen on")
	pods := flag.String("pods", "", "JSON file of pods")
	cert := flag.String("cert", "", "certificate")
	key := flag.String("key", "", "private key")
	flag.Parse()
	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	// Upgrades of connections need HTTP/1.1.
	listener, err := tls.Listen("tcp", *address, &tls.Config{
		Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on %s", listener.Addr())
	log.Fatal(http.Serve(listener, node(*pods)))
}
