package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// counts is printed as a line each second, and when the client ends.
type counts struct {
	Requests  int64            `json:"requests"`
	Failures  int64            `json:"failures"`
	GapMillis int64            `json:"gap_ms"` // longest time between two successes
	Latest    string           `json:"latest"` // the newest failure
	Codes     map[int]int64    `json:"codes"`  // by status, 0 where there was none
	Versions  map[string]int64 `json:"versions"`
	Pods      map[string]int64 `json:"pods"`
	SlowestMs int64            `json:"slowest_ms"`
	Served    int64            `json:"served"` // by the server that answered last
}

type headers []string

func (h *headers) String() string { return strings.Join(*h, ",") }
func (h *headers) Set(text string) error {
	*h = append(*h, text)
	return nil
}

// load sends requests at a steady rate. Requests that are late are sent nevertheless, so an outage is counted in full.
func load(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	urls := flags.String("url", "", "where to send requests; several, separated by commas, take turns")
	rate := flags.Int("rate", 50, "requests a second")
	fresh := flags.Bool("fresh", false, "a new connection for each request")
	limit := flags.Duration("timeout", 5*time.Second, "of one request")
	expect := flags.Int("expect", 200, "status of a success")
	total := flags.Int64("total", 0, "end after this many requests")
	var extra headers
	flags.Var(&extra, "header", "NAME: VALUE; may be repeated")
	_ = flags.Parse(arguments)
	client := &http.Client{Timeout: *limit, Transport: &http.Transport{DisableKeepAlives: *fresh, MaxIdleConnsPerHost: 64},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	all := counts{Codes: map[int]int64{}, Versions: map[string]int64{}, Pods: map[string]int64{}}
	var mutex sync.Mutex
	last := time.Now()
	targets := strings.Split(*urls, ",")
	send := func(url string) {
		began := time.Now()
		code, got, err := request(client, url, extra)
		mutex.Lock()
		defer mutex.Unlock()
		all.Codes[code]++
		all.SlowestMs = max(all.SlowestMs, time.Since(began).Milliseconds())
		if got.Version != "" {
			all.Versions[got.Version]++
			all.Pods[got.Pod]++
			all.Served = got.Count
		}
		if code != *expect {
			all.Failures++
			all.Latest = fmt.Sprintf("%s: %s after %d ms: status %d: %v", time.Now().UTC().Format(time.TimeOnly), url,
				time.Since(began).Milliseconds(), code, err)
			return
		}
		all.GapMillis = max(all.GapMillis, time.Since(last).Milliseconds())
		last = time.Now()
	}
	print := func() {
		mutex.Lock()
		defer mutex.Unlock()
		_ = json.NewEncoder(os.Stdout).Encode(all)
	}
	tick, show := time.NewTicker(time.Second/time.Duration(*rate)), time.NewTicker(time.Second)
	var sending sync.WaitGroup
	for ctx.Err() == nil && (*total == 0 || all.Requests < *total) {
		select {
		case <-tick.C:
			mutex.Lock()
			url := targets[all.Requests%int64(len(targets))]
			all.Requests++
			mutex.Unlock()
			sending.Add(1)
			go func() {
				defer sending.Done()
				send(url)
			}()
		case <-show.C:
			print()
		case <-ctx.Done():
		}
	}
	sending.Wait()
	print()
	return nil
}

func request(client *http.Client, url string, extra headers) (int, reply, error) {
	q, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, reply{}, err
	}
	for _, header := range extra {
		name, value, _ := strings.Cut(header, ":")
		value = strings.TrimSpace(value)
		if strings.EqualFold(name, "host") {
			q.Host = value
		} else {
			q.Header.Add(name, value)
		}
	}
	response, err := client.Do(q)
	if err != nil {
		return 0, reply{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	var got reply
	_ = json.Unmarshal(body, &got)
	if err == nil && got.Version == "" {
		err = fmt.Errorf("%.200s", body)
	}
	return response.StatusCode, got, err
}
