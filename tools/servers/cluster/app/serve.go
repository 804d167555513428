package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// reply is what the server answers.
type reply struct {
	Pod     string      `json:"pod"`
	Version string      `json:"version"`
	Path    string      `json:"path"`
	Host    string      `json:"host"`
	Count   int64       `json:"count"` // requests that this server has answered, health checks excepted
	Headers http.Header `json:"headers"`
}

// serve answers every request: /status/CODE with that code, /delay/DURATION after that time, /flaky/N fails N - 1 of N
// requests. After SIGTERM it serves on for a while, as a server behind an eventually consistent balancer must.
func serve(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	address := flags.String("address", ":8080", "address to listen on")
	linger := flags.Duration("linger", 3*time.Second, "how long to accept requests after SIGTERM")
	_ = flags.Parse(arguments)
	var count, flaky atomic.Int64
	handler := func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/healthz" {
			return
		}
		code := http.StatusOK
		kind, value, _ := strings.Cut(strings.TrimPrefix(q.URL.Path, "/"), "/")
		switch kind {
		case "status":
			code, _ = strconv.Atoi(value)
		case "delay":
			pause, _ := time.ParseDuration(value)
			time.Sleep(pause)
		case "flaky":
			of, _ := strconv.ParseInt(value, 10, 64)
			if flaky.Add(1)%max(of, 1) != 0 {
				code = http.StatusServiceUnavailable
			}
		case "count":
			w.Header().Set("content-type", "application/json")
			_ = json.NewEncoder(w).Encode(reply{Pod: os.Getenv("HOSTNAME"), Version: os.Getenv("VERSION"), Count: count.Load()})
			return
		}
		w.Header().Set("content-type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(reply{Pod: os.Getenv("HOSTNAME"), Version: os.Getenv("VERSION"), Path: q.URL.Path,
			Host: q.Host, Count: count.Add(1), Headers: q.Header})
	}
	server := &http.Server{Addr: *address, Handler: http.HandlerFunc(handler), ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() {
		time.Sleep(*linger)
		_ = server.Shutdown(context.Background())
	})
	log.Printf("serving on %s", *address)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
