package main

import (
	"log"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

// outsideName is an annotation of a Service: a name outside the cluster that leads to its pods, for tests of egress.
const outsideName = "cluster/outside-name"

// names answers for Services of the cluster, and for no other name.
type names struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

func serveDNS(n *network, factory informers.SharedInformerFactory) error {
	all := names{factory.Core().V1().Services().Lister(), factory.Discovery().V1().EndpointSlices().Lister()}
	socket, err := net.ListenPacket("udp", n.machine.String()+":53")
	if err != nil {
		return err
	}
	go func() {
		buffer := make([]byte, 1500)
		for {
			length, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			reply, err := all.answer(buffer[:length])
			if err == nil {
				_, err = socket.WriteTo(reply, from)
			}
			if err != nil {
				log.Printf("DNS: %v", err)
			}
		}
	}()
	return nil
}

func (n names) answer(question []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(question)
	if err != nil {
		return nil, err
	}
	asked, err := parser.Question()
	if err != nil {
		return nil, err
	}
	addresses, known := n.resolve(strings.ToLower(asked.Name.String()))
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired,
			RecursionAvailable: true},
		Questions: []dnsmessage.Question{asked},
	}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	for _, address := range addresses {
		if asked.Type == dnsmessage.TypeA && address.Is4() {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET, TTL: 5},
				Body:   &dnsmessage.AResource{A: address.As4()},
			})
		}
	}
	return reply.Pack()
}

// resolve knows SERVICE.NAMESPACE.svc.cluster.local, names below a headless Service, and names outside.
func (n names) resolve(name string) ([]netip.Addr, bool) {
	short, inside := strings.CutSuffix(name, ".svc.cluster.local.")
	if !inside {
		return n.outside(strings.TrimSuffix(name, "."))
	}
	parts := strings.Split(short, ".")
	if len(parts) < 2 {
		return nil, false
	}
	service, err := n.services.Services(parts[len(parts)-1]).Get(parts[len(parts)-2])
	if err != nil {
		return nil, false
	}
	if service.Spec.ClusterIP != corev1.ClusterIPNone {
		return parse(service.Spec.ClusterIPs), true
	}
	return n.endpoints(service), true
}

func (n names) outside(name string) ([]netip.Addr, bool) {
	all, err := n.services.List(labels.Everything())
	if err != nil {
		return nil, false
	}
	for _, service := range all {
		if service.Annotations[outsideName] == name {
			return n.endpoints(service), true
		}
	}
	return nil, false
}

func (n names) endpoints(service *corev1.Service) []netip.Addr {
	slices, err := n.slices.EndpointSlices(service.Namespace).List(
		labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
	if err != nil {
		return nil
	}
	var all []netip.Addr
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				all = append(all, parse(endpoint.Addresses)...)
			}
		}
	}
	return all
}

func parse(addresses []string) []netip.Addr {
	var all []netip.Addr
	for _, text := range addresses {
		if address, err := netip.ParseAddr(text); err == nil {
			all = append(all, address)
		}
	}
	return all
}
