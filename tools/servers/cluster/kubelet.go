package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	remote "k8s.io/client-go/tools/remotecommand"
	"k8s.io/kubelet/pkg/cri/streaming/portforward"
	"k8s.io/kubelet/pkg/cri/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	kubeletPort = 10250
	idleTime    = time.Hour
	createTime  = 30 * time.Second
)

// serveKubelet answers what the API server asks of kubelets: commands in containers, forwarded ports, logs.
func serveKubelet(n *node) error {
	key, certificate, _, err := certify(&x509.Certificate{IPAddresses: []net.IP{net.IP(n.network.machine.AsSlice())}}, nil, nil)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("%s:%d", n.network.machine, kubeletPort))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", n.serveExec)
	mux.HandleFunc("/portForward/{namespace}/{pod}", n.servePortForward)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, q *http.Request) {
		http.ServeFile(w, q, n.logFile(q.PathValue("namespace"), q.PathValue("pod"), q.PathValue("container")))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, TLSConfig: serverTLS(certificate, key)}
	go func() { log.Print(server.ServeTLS(listener, "", "")) }()
	return nil
}

func serverTLS(certificate *x509.Certificate, key *ecdsa.PrivateKey) *tls.Config {
	pair := tls.Certificate{Certificate: [][]byte{certificate.Raw}, PrivateKey: key}
	return &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
}

func (n *node) serveExec(w http.ResponseWriter, q *http.Request) {
	options, err := remotecommand.NewOptions(q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := q.PathValue("namespace") + "/" + q.PathValue("pod")
	remotecommand.ServeExec(w, q, n, name, "", q.PathValue("container"), q.URL.Query()["command"], options, idleTime, createTime,
		[]string{"v4.channel.k8s.io"})
}

// ExecInContainer runs a command in a running container.
func (n *node) ExecInContainer(ctx context.Context, name string, _ types.UID, containerName string, command []string,
	in io.Reader, out, errors io.WriteCloser, _ bool, _ <-chan remote.TerminalSize, _ time.Duration,
) error {
	p := n.find(name)
	if p == nil {
		return fmt.Errorf("no pod %s runs", name)
	}
	c := p.find(containerName)
	if c == nil || !c.isRunning() {
		return fmt.Errorf("container %s of %s does not run", containerName, name)
	}
	p.mutex.Lock()
	entered := c.spec.enter(c.pid, command)
	p.mutex.Unlock()
	entered.Stdin, entered.Stdout, entered.Stderr = in, out, errors
	if err := entered.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = entered.Process.Kill() })
	defer stop()
	err := entered.Wait()
	if failed, ok := err.(*exec.ExitError); ok {
		return utilexec.CodeExitError{Err: err, Code: failed.ExitCode()}
	}
	return err
}

func (n *node) servePortForward(w http.ResponseWriter, q *http.Request) {
	options, err := portforward.NewV4Options(q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := q.PathValue("namespace") + "/" + q.PathValue("pod")
	portforward.ServePortForward(w, q, n, name, "", options, idleTime, createTime, portforward.SupportedProtocols)
}

// PortForward connects a stream with a port of a pod's loopback interface.
func (n *node) PortForward(_ context.Context, name string, _ types.UID, port int32, stream io.ReadWriteCloser) error {
	p := n.find(name)
	if p == nil {
		return fmt.Errorf("no pod %s runs", name)
	}
	connection, err := dialInside(p.network, fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer connection.Close()
	sent := make(chan struct{})
	go func() {
		_, _ = io.Copy(connection, stream)
		_ = connection.(*net.TCPConn).CloseWrite()
		close(sent)
	}()
	_, err = io.Copy(stream, connection)
	_ = stream.Close()
	<-sent
	return err
}

// dialInside connects from a pod's network: a socket belongs to the network of the thread that makes it.
func dialInside(network, address string) (net.Conn, error) {
	type result struct {
		connection net.Conn
		err        error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		file, err := unix.Open("/run/netns/"+network, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(file, unix.CLONE_NEWNET)
			_ = unix.Close(file)
		}
		if err != nil {
			done <- result{nil, err}
			return
		}
		connection, err := net.DialTimeout("tcp", address, createTime)
		done <- result{connection, err}
	}()
	r := <-done
	if r.err != nil {
		return nil, fmt.Errorf("nothing listens on %s in %s: %w", address, strings.TrimPrefix(network, "pod-"), r.err)
	}
	return r.connection, nil
}
