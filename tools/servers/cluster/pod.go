package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const retryAfter = 300 * time.Millisecond

// flappingAnnotation makes a running pod unready and ready again, in turns of this duration, whatever its probes say.
const flappingAnnotation = "cluster/flapping"

// pod is one pod from its binding to its end, run as a kubelet does: volumes, network, init containers in order, sidecars
// before the application, and the other way round at the end.
type pod struct {
	node    *node
	object  *corev1.Pod
	folder  string
	network string
	address string

	ctx      context.Context // until its end is requested
	end      context.CancelFunc
	patience time.Duration // for its end

	mutex      sync.Mutex
	containers []*container // init containers first
	phase      corev1.PodPhase
	startTime  metav1.Time
	unready    bool // for the moment, because it flaps
	changed    chan struct{}
	tokens     map[string]issued // used by one goroutine at a time
}

func newPod(n *node, object *corev1.Pod) *pod {
	ctx, end := context.WithCancel(context.Background())
	p := &pod{node: n, object: object, folder: filepath.Join(n.folder, "pods", string(object.UID)), ctx: ctx, end: end,
		phase: corev1.PodPending, startTime: metav1.Now(), changed: make(chan struct{}, 1),
		tokens: map[string]issued{}}
	for _, c := range object.Spec.InitContainers {
		kind := initContainer
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			kind = sidecarContainer
		}
		p.containers = append(p.containers, newContainer(p, c, kind))
	}
	for _, c := range object.Spec.Containers {
		p.containers = append(p.containers, newContainer(p, c, mainContainer))
	}
	return p
}

// terminate requests the end of the pod within this time.
func (p *pod) terminate(patience time.Duration) {
	p.mutex.Lock()
	p.patience = patience
	p.mutex.Unlock()
	p.end()
}

// run is the pod's life; it returns when nothing of it is left.
func (p *pod) run() {
	reported := make(chan struct{})
	over := make(chan struct{})
	go func() {
		p.report(over)
		close(reported)
	}()
	for _, c := range p.containers {
		_ = os.Remove(c.logFile()) // of an earlier pod with this name
	}
	err := p.set()
	for err != nil && p.ctx.Err() == nil {
		p.say(err)
		select {
		case <-time.After(retryAfter):
		case <-p.ctx.Done():
		}
		err = p.set()
	}
	if err == nil && p.ctx.Err() == nil {
		p.live()
	}
	p.stop()
	if p.network != "" {
		p.node.network.remove(p.network)
	}
	close(over)
	<-reported
	if err := os.RemoveAll(p.folder); err != nil {
		log.Printf("pod %s/%s: %v", p.object.Namespace, p.object.Name, err)
	}
}

// set makes network and volumes.
func (p *pod) set() error {
	if err := os.MkdirAll(p.folder, 0o755); err != nil {
		return err
	}
	if p.network == "" {
		name, address, err := p.node.network.add(string(p.object.UID)[:8])
		if err != nil {
			return err
		}
		p.mutex.Lock()
		p.network, p.address = name, address.String()
		p.mutex.Unlock()
		for _, sysctl := range sysctls(p.object) {
			if err := runWith("", "ip", "netns", "exec", name, "sysctl", "-qw", sysctl); err != nil {
				return err
			}
		}
	}
	if err := p.writeVolumes(p.ctx); err != nil {
		return err
	}
	for _, c := range p.containers {
		if err := c.prepare(); err != nil {
			return err
		}
	}
	return nil
}

func sysctls(object *corev1.Pod) []string {
	var all []string
	if security := object.Spec.SecurityContext; security != nil {
		for _, sysctl := range security.Sysctls {
			all = append(all, sysctl.Name+"="+sysctl.Value)
		}
	}
	return all
}

// say shows why the pod does not start.
func (p *pod) say(err error) {
	p.mutex.Lock()
	for _, c := range p.containers {
		c.waiting = err.Error()
	}
	p.mutex.Unlock()
	p.notify()
}

// live runs the containers until its end is requested or they have all completed.
func (p *pod) live() {
	go p.refreshVolumes()
	for _, c := range p.containers {
		switch c.kind {
		case initContainer:
			if !c.complete(p.ctx) {
				return
			}
		case sidecarContainer:
			go c.keep(p.ctx)
			if !c.waitStarted(p.ctx) {
				return
			}
		}
	}
	p.mutex.Lock()
	p.phase = corev1.PodRunning
	p.mutex.Unlock()
	if turn, err := time.ParseDuration(p.object.Annotations[flappingAnnotation]); err == nil && turn > 0 {
		go p.flap(turn)
	}
	var mains sync.WaitGroup
	for _, c := range p.containers {
		if c.kind != mainContainer {
			continue
		}
		mains.Add(1)
		go func() {
			defer mains.Done()
			c.keep(p.ctx)
		}()
		// The next one starts when this one runs and its hook has returned.
		c.waitHooked(p.ctx)
	}
	completed := make(chan struct{})
	go func() {
		mains.Wait()
		close(completed)
	}()
	select {
	case <-p.ctx.Done():
	case <-completed:
		if p.ctx.Err() == nil {
			p.finish()
		}
	}
}

// flap changes the readiness of the pod until its end.
func (p *pod) flap(turn time.Duration) {
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.mutex.Lock()
			p.unready = !p.unready
			p.mutex.Unlock()
			p.notify()
		case <-p.ctx.Done():
			return
		}
	}
}

// finish is the end of a pod whose containers have all completed.
func (p *pod) finish() {
	p.mutex.Lock()
	p.phase = corev1.PodSucceeded
	for _, c := range p.containers {
		if c.kind == mainContainer && c.exitCode != 0 {
			p.phase = corev1.PodFailed
		}
	}
	p.patience = 30 * time.Second
	p.mutex.Unlock()
	p.end()
}

// stop ends the containers: all hooks at once, then the application, then sidecars in reverse order.
func (p *pod) stop() {
	p.end()
	p.mutex.Lock()
	deadline := time.Now().Add(p.patience)
	p.mutex.Unlock()
	p.notify()
	var hooks, mains sync.WaitGroup
	for _, c := range p.containers {
		hooks.Add(1)
		go func() {
			defer hooks.Done()
			c.preStop(deadline)
		}()
	}
	if p.patience > 0 {
		hooks.Wait()
	}
	for _, c := range p.containers {
		if c.kind != sidecarContainer {
			mains.Add(1)
			go func() {
				defer mains.Done()
				c.terminate(deadline)
			}()
		}
	}
	mains.Wait()
	for i := len(p.containers) - 1; i >= 0; i-- {
		if p.containers[i].kind == sidecarContainer {
			p.containers[i].terminate(deadline)
		}
	}
}

func (p *pod) notify() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// report writes the status after each change.
func (p *pod) report(over <-chan struct{}) {
	for {
		select {
		case <-p.changed:
			p.writeStatus()
		case <-over:
			p.writeStatus()
			return
		}
	}
}

func (p *pod) writeStatus() {
	status := p.status()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.object.UID}, "status": status})
	if err == nil {
		_, err = p.node.client.CoreV1().Pods(p.object.Namespace).Patch(context.Background(), p.object.Name,
			types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		log.Printf("status of pod %s/%s: %v", p.object.Namespace, p.object.Name, err)
		time.AfterFunc(retryAfter, p.notify)
	}
}

func (p *pod) status() corev1.PodStatus {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	status := corev1.PodStatus{Phase: p.phase, HostIP: p.node.network.machine.String(), StartTime: &p.startTime,
		HostIPs: []corev1.HostIP{{IP: p.node.network.machine.String()}}}
	if p.address != "" {
		status.PodIP, status.PodIPs = p.address, []corev1.PodIP{{IP: p.address}}
	}
	initialized, ready := true, p.phase == corev1.PodRunning
	for _, c := range p.containers {
		if c.kind == mainContainer {
			status.ContainerStatuses = append(status.ContainerStatuses, c.status())
		} else {
			status.InitContainerStatuses = append(status.InitContainerStatuses, c.status())
			initialized = initialized && c.started
		}
		ready = ready && (c.kind == initContainer || c.isReady())
	}
	ready = ready && p.ctx.Err() == nil && !p.unready
	truth := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}
	for kind, value := range map[corev1.PodConditionType]bool{corev1.PodScheduled: true, corev1.PodInitialized: initialized,
		corev1.ContainersReady: ready, corev1.PodReady: ready} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: truth[value],
			ObservedGeneration: p.object.Generation, LastTransitionTime: metav1.Now()})
	}
	return status
}

func (p *pod) find(container string) *container {
	for _, c := range p.containers {
		if c.name == container || container == "" && c.kind == mainContainer {
			return c
		}
	}
	return nil
}

func (n *node) logFile(namespace, pod, container string) string {
	return filepath.Join(n.folder, "logs", fmt.Sprintf("%s_%s_%s.log", namespace, pod, container))
}
