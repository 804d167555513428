package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

// gatherTime is how long changes of Services are collected before rules are written.
const gatherTime = 20 * time.Millisecond

// services translates addresses of Services and load balancers to those of ready pods, with one table of rules that is
// replaced as a whole. It also gives Services of type LoadBalancer their address.
type services struct {
	node     *node
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	changed  chan struct{}
	address  map[types.UID]string
	written  string
}

func newServices(n *node, factory informers.SharedInformerFactory) *services {
	s := &services{
		node:     n,
		services: factory.Core().V1().Services().Lister(),
		slices:   factory.Discovery().V1().EndpointSlices().Lister(),
		changed:  make(chan struct{}, 1),
		address:  map[types.UID]string{},
	}
	notify := func(any) {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	onChange(factory.Core().V1().Services().Informer(), notify)
	onChange(factory.Discovery().V1().EndpointSlices().Informer(), notify)
	return s
}

func (s *services) run(ctx context.Context) {
	for {
		if err := s.write(ctx); err != nil {
			log.Printf("services: %v", err)
			time.Sleep(time.Second)
			continue
		}
		<-s.changed
		time.Sleep(gatherTime)
	}
}

func (s *services) write(ctx context.Context) error {
	all, err := s.services.List(labels.Everything())
	if err != nil {
		return err
	}
	sort.Slice(all, func(a, b int) bool { return string(all[a].UID) < string(all[b].UID) })
	rules := rules{network: s.node.network}
	var fresh []*corev1.Service
	for _, service := range all {
		addresses := service.Spec.ClusterIPs
		if service.Spec.Type == corev1.ServiceTypeLoadBalancer && service.DeletionTimestamp == nil {
			address, isNew := s.balance(service)
			addresses = append(append([]string{}, addresses...), address)
			if isNew {
				fresh = append(fresh, service)
			}
		}
		for _, port := range service.Spec.Ports {
			targets := s.targets(service, port)
			for _, address := range addresses {
				if net.ParseIP(address).To4() != nil {
					rules.add(address, port, targets)
				}
			}
		}
	}
	if text := rules.text(); text != s.written {
		if err := runWith(text, "nft", "-f", "-"); err != nil {
			return err
		}
		s.written = text
	}
	// An address is published when it works.
	for _, service := range fresh {
		s.publish(ctx, service)
	}
	return nil
}

// targets are the ready endpoints of a port; where none is ready, those that still serve while they end.
func (s *services) targets(service *corev1.Service, port corev1.ServicePort) []string {
	slices, err := s.slices.EndpointSlices(service.Namespace).List(
		labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
	if err != nil {
		return nil
	}
	var ready, ending []string
	for _, slice := range slices {
		for _, offered := range slice.Ports {
			if offered.Port == nil || offered.Name == nil || *offered.Name != port.Name || slice.AddressType != discoveryv1.AddressTypeIPv4 {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				target := fmt.Sprintf("%s . %d", endpoint.Addresses[0], *offered.Port)
				switch c := endpoint.Conditions; {
				case c.Ready == nil || *c.Ready:
					ready = append(ready, target)
				case c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating:
					ending = append(ending, target)
				}
			}
		}
	}
	if len(ready) == 0 {
		ready = ending
	}
	sort.Strings(ready)
	return ready
}

// balance returns the load balancer address of a Service, and whether its status has to be written.
func (s *services) balance(service *corev1.Service) (string, bool) {
	address, known := s.address[service.UID]
	if !known {
		address = s.node.network.balancerAddress().String()
		s.address[service.UID] = address
	}
	in := service.Status.LoadBalancer.Ingress
	return address, len(in) != 1 || in[0].IP != address
}

func (s *services) publish(ctx context.Context, service *corev1.Service) {
	fresh := service.DeepCopy()
	fresh.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: s.address[service.UID]}}
	_, err := s.node.client.CoreV1().Services(service.Namespace).UpdateStatus(ctx, fresh, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		log.Printf("service %s/%s: %v", service.Namespace, service.Name, err)
	}
}

// rules collects what an nft table needs.
type rules struct {
	network  *network
	chains   strings.Builder
	entries  []string
	hairpins map[string]bool
	count    int
}

func (r *rules) add(address string, port corev1.ServicePort, targets []string) {
	protocol := strings.ToLower(string(port.Protocol))
	key := fmt.Sprintf("%s . %s . %d", address, protocol, port.Port)
	if len(targets) == 0 {
		return
	}
	if r.hairpins == nil {
		r.hairpins = map[string]bool{}
	}
	var numbered []string
	for i, target := range targets {
		numbered = append(numbered, fmt.Sprintf("%d : %s", i, target))
		host, _, _ := strings.Cut(target, " . ")
		r.hairpins[host+" . "+host] = true
	}
	fmt.Fprintf(&r.chains, "  chain service-%d { meta l4proto %s dnat ip to numgen random mod %d map { %s }\n  }\n", r.count,
		protocol, len(targets), strings.Join(numbered, ", "))
	r.entries = append(r.entries, fmt.Sprintf("%s : goto service-%d", key, r.count))
	r.count++
}

// text is a transaction that replaces the table. A packet whose destination was not translated is refused at once: were it
// dropped, the connection would be tracked without translation and hang.
func (r *rules) text() string {
	var hairpins []string
	for pair := range r.hairpins {
		hairpins = append(hairpins, pair)
	}
	sort.Strings(hairpins)
	elements := func(all []string) string {
		if len(all) == 0 {
			return ""
		}
		return "elements = { " + strings.Join(all, ", ") + " }"
	}
	var text strings.Builder
	text.WriteString("add table ip cluster\ndelete table ip cluster\ntable ip cluster {\n")
	text.WriteString(r.chains.String())
	fmt.Fprintf(&text, `  map services { type ipv4_addr . inet_proto . inet_service : verdict; %s
  }
  set hairpins { type ipv4_addr . ipv4_addr; %s
  }
  chain prerouting { type nat hook prerouting priority -100; ip daddr . meta l4proto . th dport vmap @services; }
  chain output { type nat hook output priority -100; ip daddr . meta l4proto . th dport vmap @services; }
  chain postrouting { type nat hook postrouting priority 100; ip saddr . ip daddr @hairpins masquerade; }
  set untranslated { type ipv4_addr; flags interval; elements = { %s, %s }
  }
  chain refuse-forward { type filter hook forward priority 0; meta l4proto tcp ip daddr @untranslated reject with tcp reset; }
  chain refuse-output { type filter hook output priority 0; meta l4proto tcp ip daddr @untranslated reject with tcp reset; }
}
`, elements(r.entries), elements(hairpins), r.network.services, r.network.balanced)
	return text.String()
}
