package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// refreshPeriod is how soon changed Secrets and ConfigMaps are seen in volumes.
	refreshPeriod = 5 * time.Second
	tokenLifetime = int64(3600)
)

// writeVolumes writes the content of all volumes. A missing object is an error, and the pod is tried again.
func (p *pod) writeVolumes(ctx context.Context) error {
	for _, volume := range p.object.Spec.Volumes {
		files, err := p.content(ctx, volume)
		if err != nil {
			return fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		folder := filepath.Join(p.folder, "volumes", volume.Name)
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return err
		}
		if volume.EmptyDir != nil {
			if err := os.Chmod(folder, 0o777); err != nil {
				return err
			}
		}
		for name, content := range files {
			if err := replace(filepath.Join(folder, name), content); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace writes a file at once, unless it has this content.
func replace(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	fresh := path + ".new"
	if err := os.WriteFile(fresh, content, 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// refreshVolumes keeps volumes up to date until the pod ends.
func (p *pod) refreshVolumes() {
	refresh := time.NewTicker(refreshPeriod)
	defer refresh.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-refresh.C:
			if err := p.writeVolumes(p.ctx); err != nil && p.ctx.Err() == nil {
				log.Printf("pod %s/%s: %v", p.object.Namespace, p.object.Name, err)
			}
		}
	}
}

// content is the files of a volume.
func (p *pod) content(ctx context.Context, volume corev1.Volume) (map[string][]byte, error) {
	switch {
	case volume.Secret != nil:
		data, err := p.secret(ctx, volume.Secret.SecretName, volume.Secret.Optional)
		return chosen(data, volume.Secret.Items), err
	case volume.ConfigMap != nil:
		data, err := p.configMap(ctx, volume.ConfigMap.Name, volume.ConfigMap.Optional)
		return chosen(data, volume.ConfigMap.Items), err
	case volume.DownwardAPI != nil:
		return p.downward(volume.DownwardAPI.Items), nil
	case volume.Projected != nil:
		all := map[string][]byte{}
		for _, source := range volume.Projected.Sources {
			files, err := p.projected(ctx, source)
			if err != nil {
				return nil, err
			}
			for name, content := range files {
				all[name] = content
			}
		}
		return all, nil
	}
	return nil, nil
}

func (p *pod) projected(ctx context.Context, source corev1.VolumeProjection) (map[string][]byte, error) {
	switch {
	case source.ServiceAccountToken != nil:
		token, err := p.token(ctx, source.ServiceAccountToken)
		return map[string][]byte{source.ServiceAccountToken.Path: token}, err
	case source.ConfigMap != nil:
		data, err := p.configMap(ctx, source.ConfigMap.Name, source.ConfigMap.Optional)
		return chosen(data, source.ConfigMap.Items), err
	case source.Secret != nil:
		data, err := p.secret(ctx, source.Secret.Name, source.Secret.Optional)
		return chosen(data, source.Secret.Items), err
	case source.DownwardAPI != nil:
		return p.downward(source.DownwardAPI.Items), nil
	}
	return nil, nil
}

// issued is a token with the time at which it is replaced.
type issued struct {
	token []byte
	until time.Time
}

// token is one of the pod's ServiceAccount, bound to the pod.
func (p *pod) token(ctx context.Context, source *corev1.ServiceAccountTokenProjection) ([]byte, error) {
	key := source.Audience + " " + source.Path
	if known, ok := p.tokens[key]; ok && time.Now().Before(known.until) {
		return known.token, nil
	}
	lifetime := tokenLifetime
	if source.ExpirationSeconds != nil {
		lifetime = *source.ExpirationSeconds
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &lifetime,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.object.Name, UID: types.UID(p.object.UID)},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	made, err := p.node.client.CoreV1().ServiceAccounts(p.object.Namespace).CreateToken(ctx, p.object.Spec.ServiceAccountName,
		request, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	rest := time.Until(made.Status.ExpirationTimestamp.Time)
	p.tokens[key] = issued{[]byte(made.Status.Token), time.Now().Add(rest * 4 / 5)}
	return p.tokens[key].token, nil
}

func (p *pod) downward(items []corev1.DownwardAPIVolumeFile) map[string][]byte {
	files := map[string][]byte{}
	for _, item := range items {
		switch {
		case item.FieldRef != nil:
			files[item.Path] = []byte(p.field(item.FieldRef.FieldPath))
		case item.ResourceFieldRef != nil:
			if c := p.find(item.ResourceFieldRef.ContainerName); c != nil {
				files[item.Path] = []byte(c.resource(item.ResourceFieldRef))
			}
		}
	}
	return files
}

func chosen(data map[string][]byte, items []corev1.KeyToPath) map[string][]byte {
	if len(items) == 0 {
		return data
	}
	files := map[string][]byte{}
	for _, item := range items {
		if content, ok := data[item.Key]; ok {
			files[item.Path] = content
		}
	}
	return files
}
