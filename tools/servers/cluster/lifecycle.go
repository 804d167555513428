package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	firstRestart = 500 * time.Millisecond
	lastRestart  = 10 * time.Second
)

type containerKind int

const (
	initContainer containerKind = iota
	sidecarContainer
	mainContainer
)

// container is one container of a pod through all its restarts. The pod's mutex guards what changes.
type container struct {
	name   string
	kind   containerKind
	pod    *pod
	object corev1.Container
	spec   spec

	pid      int
	running  bool
	since    metav1.Time
	started  bool // its startup probe has succeeded; an init container has completed
	hooked   bool // its postStart hook has returned
	ready    bool // its readiness probe succeeds
	restarts int32
	exitCode int
	waiting  string // why it does not run
	last     *corev1.ContainerStateTerminated
	ended    chan struct{} // closed when the running process has ended
}

func newContainer(p *pod, object corev1.Container, kind containerKind) *container {
	return &container{name: object.Name, kind: kind, pod: p, object: object, waiting: "PodInitializing"}
}

// complete runs an init container until it succeeds.
func (c *container) complete(ctx context.Context) bool {
	for pause := firstRestart; ctx.Err() == nil; pause = min(2*pause, lastRestart) {
		if c.runOnce(ctx) == 0 && ctx.Err() == nil {
			c.change(func() { c.started, c.ready = true, true })
			return true
		}
		c.pause(ctx, pause)
	}
	return false
}

// keep runs a container again and again, as the pod's restart policy says, until the pod ends.
func (c *container) keep(ctx context.Context) {
	policy := c.pod.object.Spec.RestartPolicy
	for pause := firstRestart; ctx.Err() == nil; pause = min(2*pause, lastRestart) {
		began := time.Now()
		code := c.runOnce(ctx)
		if c.kind == mainContainer && (policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && code == 0) {
			return
		}
		if time.Since(began) > 10*lastRestart {
			pause = firstRestart
		}
		c.pause(ctx, pause)
	}
}

func (c *container) pause(ctx context.Context, pause time.Duration) {
	c.change(func() { c.waiting = "CrashLoopBackOff" })
	select {
	case <-time.After(pause):
		if ctx.Err() == nil {
			c.change(func() { c.restarts++ })
		}
	case <-ctx.Done():
	}
}

// runOnce starts the process and returns its exit code.
func (c *container) runOnce(ctx context.Context) int {
	out, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		log.Print(err)
		return -1
	}
	defer out.Close()
	_ = out.Chmod(0o666) // proxies open /dev/stdout again, and are not root
	command, err := c.spec.command(filepath.Join(c.pod.folder, c.name+".json"))
	if err == nil {
		command.Stdout, command.Stderr = out, out
		err = command.Start()
	}
	if err != nil {
		log.Printf("could not start container %s of %s/%s: %v", c.name, c.pod.object.Namespace, c.pod.object.Name, err)
		return -1
	}
	ended := make(chan struct{})
	c.change(func() {
		c.pid, c.running, c.since, c.ended, c.waiting = command.Process.Pid, true, metav1.Now(), ended, ""
		c.started, c.ready, c.hooked = false, false, false
	})
	alive, over := context.WithCancel(context.Background())
	if c.kind != initContainer {
		go c.watch(alive)
	}
	_ = command.Wait()
	over()
	code := command.ProcessState.ExitCode()
	began := c.since
	c.change(func() {
		c.running, c.ready, c.exitCode, c.pid = false, false, code, 0
		c.last = &corev1.ContainerStateTerminated{ExitCode: int32(code), StartedAt: began, FinishedAt: metav1.Now(),
			Reason: map[bool]string{true: "Completed", false: "Error"}[code == 0]}
	})
	close(ended)
	if ctx.Err() == nil && (code != 0 || c.kind != initContainer) {
		log.Printf("container %s of %s/%s ended with %d", c.name, c.pod.object.Namespace, c.pod.object.Name, code)
	}
	return code
}

// watch runs hooks and probes while the process lives.
func (c *container) watch(alive context.Context) {
	if life := c.object.Lifecycle; life != nil && life.PostStart != nil {
		if err := c.hook(alive, life.PostStart); err != nil && alive.Err() == nil {
			log.Printf("postStart of %s of %s/%s: %v", c.name, c.pod.object.Namespace, c.pod.object.Name, err)
			c.signal(syscall.SIGKILL)
			return
		}
	}
	c.change(func() { c.hooked = true })
	if probe := c.object.StartupProbe; probe != nil {
		if !c.awaitStart(alive, probe) {
			if alive.Err() == nil {
				log.Printf("startup probe of %s of %s/%s failed", c.name, c.pod.object.Namespace, c.pod.object.Name)
				c.signal(syscall.SIGKILL)
			}
			return
		}
	}
	c.change(func() { c.started, c.ready = true, c.object.ReadinessProbe == nil })
	if probe := c.object.ReadinessProbe; probe != nil {
		go c.probe(alive, probe, true, func(success bool) {
			if c.isReadyNow() != success {
				c.change(func() { c.ready = success })
			}
		})
	}
	if probe := c.object.LivenessProbe; probe != nil {
		go c.probe(alive, probe, false, func(success bool) {
			if !success {
				log.Printf("liveness probe of %s of %s/%s failed", c.name, c.pod.object.Namespace, c.pod.object.Name)
				c.signal(syscall.SIGTERM)
			}
		})
	}
}

func (c *container) hook(ctx context.Context, hook *corev1.LifecycleHandler) error {
	switch {
	case hook.Exec != nil:
		return c.exec(ctx, hook.Exec.Command)
	case hook.Sleep != nil:
		select {
		case <-time.After(time.Duration(hook.Sleep.Seconds) * time.Second):
		case <-ctx.Done():
		}
	case hook.HTTPGet != nil:
		return c.get(ctx, hook.HTTPGet)
	}
	return nil
}

// exec runs a command in the container.
func (c *container) exec(ctx context.Context, command []string) error {
	c.pod.mutex.Lock()
	pid := c.pid
	c.pod.mutex.Unlock()
	if pid == 0 {
		return fmt.Errorf("the container does not run")
	}
	entered := c.spec.enter(pid, command)
	done := make(chan error, 1)
	var out []byte
	go func() {
		var err error
		out, err = entered.CombinedOutput()
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%q: %w: %s", command, err, out)
		}
		return nil
	case <-ctx.Done():
		if entered.Process != nil {
			_ = entered.Process.Kill()
		}
		return ctx.Err()
	}
}

func (c *container) get(ctx context.Context, action *corev1.HTTPGetAction) error {
	request, err := c.request(ctx, action)
	if err != nil {
		return err
	}
	response, err := probeClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s", response.Status)
	}
	return nil
}

func (c *container) preStop(deadline time.Time) {
	life := c.object.Lifecycle
	if life == nil || life.PreStop == nil || !c.isRunning() {
		return
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if err := c.hook(ctx, life.PreStop); err != nil {
		log.Printf("preStop of %s of %s/%s: %v", c.name, c.pod.object.Namespace, c.pod.object.Name, err)
	}
}

// terminate ends the process: politely until the deadline.
func (c *container) terminate(deadline time.Time) {
	c.pod.mutex.Lock()
	ended := c.ended
	c.pod.mutex.Unlock()
	if ended == nil {
		return
	}
	c.signal(syscall.SIGTERM)
	select {
	case <-ended:
		return
	case <-time.After(time.Until(deadline)):
	}
	c.signal(syscall.SIGKILL)
	<-ended
}

func (c *container) signal(signal syscall.Signal) {
	c.pod.mutex.Lock()
	defer c.pod.mutex.Unlock()
	if c.pid != 0 {
		_ = syscall.Kill(c.pid, signal)
	}
}

func (c *container) change(edit func()) {
	c.pod.mutex.Lock()
	edit()
	c.pod.mutex.Unlock()
	c.pod.notify()
}

func (c *container) isRunning() bool {
	c.pod.mutex.Lock()
	defer c.pod.mutex.Unlock()
	return c.running
}

// isReady is called with the pod's mutex.
func (c *container) isReady() bool { return c.running && c.started && c.ready }

func (c *container) waitStarted(ctx context.Context) bool {
	return c.wait(ctx, func() bool { return c.started })
}

func (c *container) waitHooked(ctx context.Context) {
	c.wait(ctx, func() bool { return c.hooked || c.exitCode != 0 || c.last != nil })
}

func (c *container) wait(ctx context.Context, is func() bool) bool {
	for {
		c.pod.mutex.Lock()
		done := is()
		c.pod.mutex.Unlock()
		if done {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// status is called with the pod's mutex.
func (c *container) status() corev1.ContainerStatus {
	started := c.started
	status := corev1.ContainerStatus{Name: c.name, Image: c.object.Image, ImageID: c.object.Image, RestartCount: c.restarts,
		Ready: c.isReady() || c.kind == initContainer && c.started, Started: &started}
	switch {
	case c.running:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: c.since}
	case c.last != nil && (c.waiting == "" || c.pod.ctx.Err() != nil):
		status.State.Terminated = c.last
	default:
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.waiting}
		if c.last != nil {
			status.LastTerminationState.Terminated = c.last
		}
	}
	return status
}

func (c *container) logFile() string {
	return c.pod.node.logFile(c.pod.object.Namespace, c.pod.object.Name, c.name)
}
