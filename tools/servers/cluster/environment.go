package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const containerPath = "/app:/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin"

// prepare computes the container's process: program, environment, mounts, user.
func (c *container) prepare() error {
	p := c.pod
	i, known := p.node.images[imageName(c.object.Image)]
	if !known {
		return fmt.Errorf("ErrImagePull: image %s is not in the table", c.object.Image)
	}
	env, err := c.environment()
	if err != nil {
		return err
	}
	command := i.Command
	if len(c.object.Command) > 0 {
		command = expandAll(c.object.Command, env)
	}
	c.spec = spec{
		Root: filepath.Join(p.folder, "root-"+c.name), Network: p.network, Hostname: p.object.Name, System: i.System,
		Command: append(append([]string{}, command...), expandAll(c.object.Args, env)...), Files: p.files(), Folder: "/",
	}
	if len(c.spec.Command) == 0 {
		return fmt.Errorf("image %s has no command", c.object.Image)
	}
	if c.object.WorkingDir != "" {
		c.spec.Folder = c.object.WorkingDir
	}
	for name, value := range env.values {
		c.spec.Env = append(c.spec.Env, name+"="+value)
	}
	for to, from := range i.Files {
		if !filepath.IsAbs(from) {
			from = filepath.Join(p.node.folder, from)
		}
		c.spec.Binds = append(c.spec.Binds, mount{From: from, To: to, ReadOnly: true})
	}
	for _, m := range c.object.VolumeMounts {
		from := filepath.Join(p.folder, "volumes", m.Name, m.SubPath)
		c.spec.Binds = append(c.spec.Binds, mount{From: from, To: m.MountPath, ReadOnly: m.ReadOnly})
	}
	c.rights()
	return os.MkdirAll(c.spec.Root, 0o755)
}

// rights takes users from the security contexts.
func (c *container) rights() {
	if pod := c.pod.object.Spec.SecurityContext; pod != nil {
		c.spec.User, c.spec.Group = number(pod.RunAsUser, 0), number(pod.RunAsGroup, 0)
	}
	if own := c.object.SecurityContext; own != nil {
		c.spec.User, c.spec.Group = number(own.RunAsUser, c.spec.User), number(own.RunAsGroup, c.spec.Group)
		c.spec.ReadOnly = own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem
	}
}

func number(value *int64, otherwise int) int {
	if value == nil {
		return otherwise
	}
	return int(*value)
}

// files are in every container.
func (p *pod) files() map[string]string {
	return map[string]string{
		"/etc/resolv.conf": fmt.Sprintf("nameserver %s\nsearch %s.svc.cluster.local svc.cluster.local cluster.local\n"+
			"options ndots:5\n", p.node.network.machine, p.object.Namespace),
		"/etc/hosts":         "127.0.0.1 localhost\n" + p.address + " " + p.object.Name + "\n",
		"/etc/passwd":        "root:x:0:0::/:/bin/sh\nistio-proxy:x:1337:1337::/:/bin/sh\n",
		"/etc/group":         "root:x:0:\nistio-proxy:x:1337:\n",
		"/etc/nsswitch.conf": "hosts: files dns\n",
	}
}

// variables are an environment; later ones may refer to earlier ones.
type variables struct {
	values map[string]string
}

func (c *container) environment() (variables, error) {
	p := c.pod
	v := variables{map[string]string{
		"PATH": containerPath, "HOSTNAME": p.object.Name, "HOME": "/",
		"KUBERNETES_SERVICE_HOST": p.node.network.services.Addr().Next().String(), "KUBERNETES_SERVICE_PORT": "443",
	}}
	for _, from := range c.object.EnvFrom {
		var data map[string][]byte
		var err error
		switch {
		case from.ConfigMapRef != nil:
			data, err = p.configMap(p.ctx, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		case from.SecretRef != nil:
			data, err = p.secret(p.ctx, from.SecretRef.Name, from.SecretRef.Optional)
		}
		if err != nil {
			return v, err
		}
		for name, value := range data {
			v.values[from.Prefix+name] = string(value)
		}
	}
	for _, e := range c.object.Env {
		value, present, err := c.value(e, v)
		if err != nil {
			return v, fmt.Errorf("%s: %w", e.Name, err)
		}
		if present {
			v.values[e.Name] = value
		}
	}
	return v, nil
}

func (c *container) value(e corev1.EnvVar, v variables) (string, bool, error) {
	p, from := c.pod, e.ValueFrom
	if from == nil {
		return v.expand(e.Value), true, nil
	}
	switch {
	case from.FieldRef != nil:
		return p.field(from.FieldRef.FieldPath), true, nil
	case from.ResourceFieldRef != nil:
		return c.resource(from.ResourceFieldRef), true, nil
	case from.ConfigMapKeyRef != nil:
		data, err := p.configMap(p.ctx, from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Optional)
		value, present := data[from.ConfigMapKeyRef.Key]
		return string(value), present, err
	case from.SecretKeyRef != nil:
		data, err := p.secret(p.ctx, from.SecretKeyRef.Name, from.SecretKeyRef.Optional)
		value, present := data[from.SecretKeyRef.Key]
		return string(value), present, err
	}
	return "", false, nil
}

// expand replaces $(NAME) by variables that are known; $$ is a dollar.
func (v variables) expand(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		switch end := strings.IndexByte(text[i:], ')'); {
		case text[i+1] == '$':
			out.WriteByte('$')
			i++
		case text[i+1] == '(' && end > 0:
			name := text[i+2 : i+end]
			if value, known := v.values[name]; known {
				out.WriteString(value)
			} else {
				out.WriteString(text[i : i+end+1])
			}
			i += end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}

func expandAll(texts []string, v variables) []string {
	var all []string
	for _, text := range texts {
		all = append(all, v.expand(text))
	}
	return all
}

// field is a field of the pod, as downward API volumes and environment variables name it.
func (p *pod) field(path string) string {
	key := func(prefix string) (string, bool) {
		rest, ok := strings.CutPrefix(path, prefix+"['")
		return strings.TrimSuffix(rest, "']"), ok
	}
	if name, ok := key("metadata.labels"); ok {
		return p.object.Labels[name]
	}
	if name, ok := key("metadata.annotations"); ok {
		return p.object.Annotations[name]
	}
	switch path {
	case "metadata.name":
		return p.object.Name
	case "metadata.namespace":
		return p.object.Namespace
	case "metadata.uid":
		return string(p.object.UID)
	case "metadata.labels":
		return pairs(p.object.Labels)
	case "metadata.annotations":
		return pairs(p.object.Annotations)
	case "spec.nodeName":
		return p.object.Spec.NodeName
	case "spec.serviceAccountName":
		return p.object.Spec.ServiceAccountName
	case "status.podIP", "status.podIPs":
		return p.address
	case "status.hostIP", "status.hostIPs":
		return p.node.network.machine.String()
	}
	return ""
}

func pairs(all map[string]string) string {
	var lines []string
	for name, value := range all {
		lines = append(lines, fmt.Sprintf("%s=%s", name, strconv.Quote(value)))
	}
	return strings.Join(lines, "\n")
}

// resource is a limit or request of the container; the node's capacity where there is none.
func (c *container) resource(ref *corev1.ResourceFieldSelector) string {
	kind, name, _ := strings.Cut(ref.Resource, ".")
	list := c.object.Resources.Limits
	if kind == "requests" {
		list = c.object.Resources.Requests
	}
	quantity, given := list[corev1.ResourceName(name)]
	if !given {
		quantity = map[string]resource.Quantity{"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi")}[name]
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == "cpu" {
		return strconv.FormatInt((quantity.MilliValue()+divisor.MilliValue()-1)/divisor.MilliValue(), 10)
	}
	return strconv.FormatInt((quantity.Value()+divisor.Value()-1)/divisor.Value(), 10)
}

func (p *pod) configMap(ctx context.Context, name string, optional *bool) (map[string][]byte, error) {
	object, err := p.node.client.CoreV1().ConfigMaps(p.object.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unlessOptional(err, optional)
	}
	data := object.BinaryData
	if data == nil {
		data = map[string][]byte{}
	}
	for key, value := range object.Data {
		data[key] = []byte(value)
	}
	return data, nil
}

func (p *pod) secret(ctx context.Context, name string, optional *bool) (map[string][]byte, error) {
	object, err := p.node.client.CoreV1().Secrets(p.object.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unlessOptional(err, optional)
	}
	return object.Data, nil
}

func unlessOptional(err error, optional *bool) error {
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil
	}
	return err
}
