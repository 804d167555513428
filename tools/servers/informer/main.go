// Command informer follows objects of an API server with the informers of client-go, as controllers do, and prints what
// its handlers are called with. A line on standard input prints the content of the caches. With -measure it makes that
// many objects instead and prints how long requests take.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

var output sync.Mutex

func say(format string, values ...any) {
	output.Lock()
	defer output.Unlock()
	fmt.Printf(format+"\n", values...)
}

func name(object any) string {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	found, err := meta.Accessor(object)
	if err != nil {
		log.Fatalf("no metadata: %v", err)
	}
	return found.GetNamespace() + "/" + found.GetName() + " " + found.GetResourceVersion()
}

// follow prints the events of an informer.
func follow(resource string, informer cache.SharedIndexInformer) {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { say("ADDED %s %s", resource, name(object)) },
		UpdateFunc: func(_, object any) { say("UPDATED %s %s", resource, name(object)) },
		DeleteFunc: func(object any) { say("DELETED %s %s", resource, name(object)) },
	})
	if err != nil {
		log.Fatalf("could not follow %s: %v", resource, err)
	}
}

func main() {
	server := flag.String("server", "", "URL of the API server")
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig, instead of a URL")
	count := flag.Int("measure", 0, "number of objects to measure with")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags(*server, *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	config.QPS = -1
	if *count > 0 {
		measure(config, *count)
		return
	}
	context := context.Background()
	followed := map[string]cache.SharedIndexInformer{}

	client, err := dynamic.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	for _, resource := range flag.Args() {
		kind, group := schema.ParseResourceArg(resource)
		if kind == nil {
			log.Fatalf("expected RESOURCE.VERSION.GROUP instead of %s", group)
		}
		followed[kind.Resource] = factory.ForResource(*kind).Informer()
	}
	// Core kinds with types, in the encoding that istiod asks for.
	typed := rest.CopyConfig(config)
	typed.ContentType = "application/vnd.kubernetes.protobuf"
	typed.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	core, err := kubernetes.NewForConfig(typed)
	if err != nil {
		log.Fatal(err)
	}
	cores := informers.NewSharedInformerFactory(core, 0)
	followed["services"] = cores.Core().V1().Services().Informer()
	followed["configmaps"] = cores.Core().V1().ConfigMaps().Informer()
	for resource, informer := range followed {
		follow(resource, informer)
	}
	factory.Start(context.Done())
	cores.Start(context.Done())
	factory.WaitForCacheSync(context.Done())
	cores.WaitForCacheSync(context.Done())
	say("SYNCED")

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var all []string
		for resource, informer := range followed {
			for _, object := range informer.GetStore().List() {
				all = append(all, resource+" "+name(object))
			}
		}
		sort.Strings(all)
		say("STATE %s", strings.Join(all, ","))
	}
}

const (
	space   = "default"
	workers = 16
	lists   = 9
	updates = 300
)

// object is a ConfigMap of about a kilobyte.
func object(number int, text string) *corev1.ConfigMap {
	labels := map[string]string{"app": fmt.Sprintf("app-%d", number%100)}
	name := metav1.ObjectMeta{Name: fmt.Sprintf("measured-%d", number), Labels: labels}
	return &corev1.ConfigMap{ObjectMeta: name, Data: map[string]string{"text": text + strings.Repeat("x", 900)}}
}

// share prints the time below which this share of the samples is.
func share(samples []time.Duration, part float64) float64 {
	sort.Slice(samples, func(a, b int) bool { return samples[a] < samples[b] })
	return float64(samples[int(float64(len(samples)-1)*part)].Microseconds()) / 1000
}

// measure makes objects, lists them, and measures the time from a write to its event.
func measure(config *rest.Config, count int) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	context := context.Background()
	maps := client.CoreV1().ConfigMaps(space)
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}

	started := time.Now()
	numbers := make(chan int)
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for number := range numbers {
				_, err := maps.Create(context, object(number, ""), metav1.CreateOptions{})
				check(err)
			}
		})
	}
	for number := range count {
		numbers <- number
	}
	close(numbers)
	running.Wait()
	say("create_per_second %.0f", float64(count)/time.Since(started).Seconds())

	timed := func(options metav1.ListOptions) (sample time.Duration, version string, found int) {
		started := time.Now()
		for {
			page, err := maps.List(context, options)
			check(err)
			found += len(page.Items)
			version, options.Continue = page.ResourceVersion, page.Continue
			if options.Continue == "" {
				return time.Since(started), version, found
			}
		}
	}
	var version string
	for name, options := range map[string]metav1.ListOptions{
		"list_all_ms":      {},
		"list_cached_ms":   {ResourceVersion: "0"},
		"list_pages_ms":    {Limit: 500},
		"list_by_label_ms": {LabelSelector: "app=app-7"},
	} {
		var samples []time.Duration
		for range lists {
			sample, at, found := timed(options)
			if found < count/100 {
				log.Fatalf("%s found %d objects", name, found)
			}
			samples, version = append(samples, sample), at
		}
		say("%s %.1f", name, share(samples, 0.5))
	}

	watch, err := maps.Watch(context, metav1.ListOptions{ResourceVersion: version})
	check(err)
	var events, writes []time.Duration
	for number := range updates {
		started := time.Now()
		changed := object(number, fmt.Sprint("changed ", number))
		_, err := maps.Update(context, changed, metav1.UpdateOptions{})
		check(err)
		writes = append(writes, time.Since(started))
		for event := range watch.ResultChan() {
			if found, ok := event.Object.(*corev1.ConfigMap); ok && found.Name == changed.Name {
				break
			}
		}
		events = append(events, time.Since(started))
	}
	say("update_p50_ms %.2f", share(writes, 0.5))
	say("update_p99_ms %.2f", share(writes, 0.99))
	say("event_p50_ms %.2f", share(events, 0.5))
	say("event_p99_ms %.2f", share(events, 0.99))
}
