package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	adminToken = "admin-of-the-cluster"
	startLimit = 3 * time.Minute
)

// controllers of kube-controller-manager that run.
var controllers = []string{
	"deployment-controller", "replicaset-controller", "statefulset-controller", "daemonset-controller", "job-controller",
	"cronjob-controller", "endpointslice-controller", "endpoints-controller", "namespace-controller", "serviceaccount-controller",
	"garbage-collector-controller", "root-ca-certificate-publisher-controller", "disruption-controller",
	"horizontal-pod-autoscaler-controller", "resourcequota-controller", "serviceaccount-token-controller",
}

// apiServer is how to reach the API server.
type apiServer struct {
	kubeconfig string
	config     *rest.Config
	client     kubernetes.Interface
}

// startServers starts etcd, the API server and the controllers, and waits until the API server is ready.
func startServers(s settings, n *network) (*apiServer, error) {
	at := func(name string) string { return filepath.Join(s.folder, name) }
	serviceAddress := n.services.Addr().Next()
	root, err := writeKeys(s.folder, []netip.Addr{netip.MustParseAddr("127.0.0.1"), n.machine, serviceAddress})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(at("tokens"), []byte(adminToken+",admin,1,\"system:masters\"\n"), 0o600); err != nil {
		return nil, err
	}
	kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: cluster
clusters: [{name: cluster, cluster: {server: "https://127.0.0.1:%d", certificate-authority-data: %s}}]
users: [{name: admin, user: {token: %s}}]
contexts: [{name: cluster, context: {cluster: cluster, user: admin}}]
`, s.port, base64.StdEncoding.EncodeToString(root), adminToken)
	if err := os.WriteFile(at("kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
		return nil, err
	}
	const store = "http://127.0.0.1:2379"
	s.start("etcd", "--data-dir="+at("etcd"), "--listen-client-urls="+store, "--advertise-client-urls="+store,
		"--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level=error")
	s.start("kube-apiserver", "--etcd-servers="+store, fmt.Sprintf("--secure-port=%d", s.port), "--bind-address=0.0.0.0",
		"--advertise-address="+n.machine.String(), "--service-cluster-ip-range="+n.services.String(),
		"--authorization-mode=RBAC", "--token-auth-file="+at("tokens"), "--cert-dir="+at("certificates"),
		"--tls-cert-file="+at("server.crt"), "--tls-private-key-file="+at("server.key"), "--client-ca-file="+at("root.crt"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+at("server.crt"),
		"--service-account-signing-key-file="+at("server.key"), "--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged=true", "--profiling=false", "--max-requests-inflight=1000",
		"--max-mutating-requests-inflight=500")
	config, err := clientcmd.BuildConfigFromFlags("", at("kubeconfig"))
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 400, 800
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if err := waitReady(client); err != nil {
		return nil, err
	}
	s.start("kube-controller-manager", "--kubeconfig="+at("kubeconfig"), "--leader-elect=false", "--secure-port=0",
		"--controllers="+strings.Join(controllers, ","), "--root-ca-file="+at("root.crt"),
		"--service-account-private-key-file="+at("server.key"), "--use-service-account-credentials=false",
		"--kube-api-qps=400", "--kube-api-burst=800", "--concurrent-deployment-syncs=10", "--concurrent-gc-syncs=10",
		"--horizontal-pod-autoscaler-sync-period=5s", "--profiling=false")
	return &apiServer{kubeconfig: at("kubeconfig"), config: config, client: client}, nil
}

// start runs a server until we end; one that ends before us ends the cluster.
func (s settings) start(name string, arguments ...string) {
	file, err := os.Create(filepath.Join(s.folder, "logs", name+".log"))
	if err != nil {
		log.Fatal(err)
	}
	c := exec.Command(filepath.Join(s.bin, name), arguments...)
	c.Stdout, c.Stderr = file, file
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		log.Fatalf("error: could not start %s: %v", name, err)
	}
	go func() {
		err := c.Wait()
		log.Fatalf("error: %s ended: %v; its log is %s", name, err, file.Name())
	}()
}

func waitReady(client kubernetes.Interface) error {
	deadline := time.Now().Add(startLimit)
	for {
		var code int
		result := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(context.Background()).StatusCode(&code)
		if code == http.StatusOK {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the API server is not ready after %v: %w", startLimit, result.Error())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// writeKeys makes a root and a certificate of the API server, and returns the root in PEM.
func writeKeys(folder string, addresses []netip.Addr) ([]byte, error) {
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local"}
	rootKey, root, rootText, err := certify(&x509.Certificate{Subject: pkix.Name{CommonName: "cluster root"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	if err != nil {
		return nil, err
	}
	server := &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: names,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, address := range addresses {
		server.IPAddresses = append(server.IPAddresses, net.IP(address.AsSlice()))
	}
	key, _, text, err := certify(server, root, rootKey)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	keyText := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
	for name, content := range map[string][]byte{"root.crt": rootText, "server.crt": text, "server.key": keyText} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	return rootText, nil
}

// certify makes a key and a certificate; without a parent it is signed by itself.
func certify(template, parent *x509.Certificate, parentKey crypto.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(30*24*time.Hour)
	if parent == nil {
		parent, parentKey = template, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, nil, nil, err
	}
	certificate, err := x509.ParseCertificate(raw)
	return key, certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), err
}
