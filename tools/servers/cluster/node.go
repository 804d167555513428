package main

import (
	"context"
	"fmt"
	"log"
	"sort"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

const resyncPeriod = 10 * time.Second

// node is scheduler, kubelet, service proxy, load balancer and DNS of all nodes.
type node struct {
	settings
	network *network
	client  kubernetes.Interface
	pods    corelisters.PodLister
	nodes   corelisters.NodeLister

	mutex   sync.Mutex
	running map[string]*pod // by namespace/name
	work    chan string
}

func runNode(s settings, n *network, api *apiServer) error {
	ctx := context.Background()
	factory := informers.NewSharedInformerFactory(api.client, 0)
	self := &node{
		settings: s,
		network:  n,
		client:   api.client,
		pods:     factory.Core().V1().Pods().Lister(),
		nodes:    factory.Core().V1().Nodes().Lister(),
		running:  map[string]*pod{},
		work:     make(chan string, 100_000),
	}
	onChange(factory.Core().V1().Pods().Informer(), func(object any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
			self.work <- key
		}
	})
	services := newServices(self, factory)
	if err := serveKubelet(self); err != nil {
		return err
	}
	if err := serveDNS(n, factory); err != nil {
		return err
	}
	for index := range s.nodes {
		if err := self.register(ctx, index); err != nil {
			return fmt.Errorf("could not register a node: %w", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	go services.run(ctx)
	go self.run(ctx)
	return nil
}

// onChange calls back for every object that comes, changes or goes.
func onChange(informer cache.SharedInformer, call func(any)) {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    call,
		UpdateFunc: func(_, object any) { call(object) },
		DeleteFunc: call,
	})
	if err != nil {
		log.Fatal(err)
	}
}

// run decides about one pod after the other; what takes time is done by the pod's own goroutine.
func (n *node) run(ctx context.Context) {
	resync := time.NewTicker(resyncPeriod)
	for {
		select {
		case key := <-n.work:
			n.decide(ctx, key)
		case <-resync.C: // what failed before
			all, _ := n.pods.List(labels.Everything())
			for _, p := range all {
				n.decide(ctx, p.Namespace+"/"+p.Name)
			}
		}
	}
}

func (n *node) decide(ctx context.Context, key string) {
	namespace, name, _ := cache.SplitMetaNamespaceKey(key)
	object, err := n.pods.Pods(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		log.Printf("pod %s: %v", key, err)
		return
	}
	current := n.find(key)
	switch {
	case current != nil && (err != nil || object.UID != current.object.UID):
		current.terminate(0) // its end leads here again
	case err != nil:
	case object.DeletionTimestamp != nil && current != nil:
		current.terminate(grace(object))
	case object.DeletionTimestamp != nil:
		n.remove(ctx, object)
	case object.Status.Phase == corev1.PodSucceeded || object.Status.Phase == corev1.PodFailed:
	case object.Spec.NodeName == "":
		n.schedule(ctx, object)
	case current == nil:
		n.start(key, object)
	}
}

func grace(object *corev1.Pod) time.Duration {
	if seconds := object.DeletionGracePeriodSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return 30 * time.Second
}

func (n *node) find(key string) *pod {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.running[key]
}

func (n *node) start(key string, object *corev1.Pod) {
	p := newPod(n, object)
	n.mutex.Lock()
	n.running[key] = p
	n.mutex.Unlock()
	go func() {
		p.run()
		n.mutex.Lock()
		delete(n.running, key)
		n.mutex.Unlock()
		n.work <- key
	}()
}

// remove deletes a pod whose containers have ended.
func (n *node) remove(ctx context.Context, object *corev1.Pod) {
	now := int64(0)
	err := n.client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &object.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		log.Printf("could not delete pod %s/%s: %v", object.Namespace, object.Name, err)
	}
}

// schedule binds a pod to the schedulable node that has the fewest.
func (n *node) schedule(ctx context.Context, object *corev1.Pod) {
	nodes, err := n.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	counts := map[string]int{}
	all, _ := n.pods.List(labels.Everything())
	for _, p := range all {
		counts[p.Spec.NodeName]++
	}
	var fit []string
	for _, candidate := range nodes {
		if !candidate.Spec.Unschedulable && labels.SelectorFromSet(object.Spec.NodeSelector).Matches(labels.Set(candidate.Labels)) {
			fit = append(fit, candidate.Name)
		}
	}
	if len(fit) == 0 {
		return
	}
	sort.Slice(fit, func(a, b int) bool {
		return counts[fit[a]] < counts[fit[b]] || counts[fit[a]] == counts[fit[b]] && fit[a] < fit[b]
	})
	err = n.client.CoreV1().Pods(object.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: object.Name, Namespace: object.Namespace, UID: object.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: fit[0]},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		log.Printf("could not bind pod %s/%s: %v", object.Namespace, object.Name, err)
	}
}

// register creates a Node. Each is its own zone.
func (n *node) register(ctx context.Context, index int) error {
	name := fmt.Sprintf("node-%d", index)
	much := corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"),
		"pods": resource.MustParse("10000")}
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname:       name,
			corev1.LabelTopologyRegion: fmt.Sprintf("region-%d", n.block),
			corev1.LabelTopologyZone:   fmt.Sprintf("zone-%d", index),
		}},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.network.machine.String()}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: kubeletPort}},
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Capacity:        much, Allocatable: much,
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.35.0", OperatingSystem: "linux", Architecture: "amd64"},
		},
	}
	made, err := n.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status = object.Status
	_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}
