package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probeClient is the kubelet's: no connection is used twice, certificates are not checked.
var probeClient = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	},
}

// impatience is the period of startup probes and of readiness probes that fail: it keeps starts short.
const impatience = 200 * time.Millisecond

// awaitStart repeats a startup probe until it succeeds, or for as long as its threshold allows.
func (c *container) awaitStart(alive context.Context, probe *corev1.Probe) bool {
	deadline := time.Now().Add(time.Duration(max(probe.FailureThreshold, 1)) * period(probe))
	for time.Now().Before(deadline) && alive.Err() == nil {
		if c.check(alive, probe) == nil {
			return true
		}
		sleep(alive, impatience)
	}
	return false
}

// probe repeats a probe while the container lives and reports each result that the thresholds allow.
func (c *container) probe(alive context.Context, probe *corev1.Probe, fast bool, report func(bool)) {
	sleep(alive, time.Duration(probe.InitialDelaySeconds)*time.Second)
	failures, successes := int32(0), int32(0)
	for alive.Err() == nil {
		wait := period(probe)
		if err := c.check(alive, probe); err == nil {
			failures, successes = 0, successes+1
			if successes >= probe.SuccessThreshold {
				report(true)
			}
		} else {
			failures, successes = failures+1, 0
			if failures >= probe.FailureThreshold {
				report(false)
			}
			if fast && !c.isReadyNow() {
				wait = impatience
			}
		}
		sleep(alive, wait)
	}
}

func period(probe *corev1.Probe) time.Duration {
	return time.Duration(max(probe.PeriodSeconds, 1)) * time.Second
}

func (c *container) isReadyNow() bool {
	c.pod.mutex.Lock()
	defer c.pod.mutex.Unlock()
	return c.ready
}

func sleep(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

func (c *container) check(ctx context.Context, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(probe.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	switch {
	case probe.HTTPGet != nil:
		return c.get(ctx, probe.HTTPGet)
	case probe.TCPSocket != nil:
		var dialer net.Dialer
		connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(c.pod.address, c.port(probe.TCPSocket.Port)))
		if err == nil {
			connection.Close()
		}
		return err
	case probe.Exec != nil:
		return c.exec(ctx, probe.Exec.Command)
	case probe.GRPC != nil:
		var dialer net.Dialer
		connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(c.pod.address, fmt.Sprint(probe.GRPC.Port)))
		if err == nil {
			connection.Close()
		}
		return err
	}
	return nil
}

func (c *container) request(ctx context.Context, action *corev1.HTTPGetAction) (*http.Request, error) {
	host, scheme := action.Host, "http"
	if host == "" {
		host = c.pod.address
	}
	if action.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	url := scheme + "://" + net.JoinHostPort(host, c.port(action.Port)) + action.Path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "kube-probe/1.35")
	for _, header := range action.HTTPHeaders {
		request.Header.Add(header.Name, header.Value)
		if header.Name == "Host" {
			request.Host = header.Value
		}
	}
	return request, nil
}

// port is the number of a port that may be given by name.
func (c *container) port(port intstr.IntOrString) string {
	if port.Type == intstr.String {
		for _, named := range c.object.Ports {
			if named.Name == port.StrVal {
				return fmt.Sprint(named.ContainerPort)
			}
		}
	}
	return port.String()
}
