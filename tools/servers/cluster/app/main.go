// Command app is the application of end-to-end tests: a server that says who answered, a client that sends requests at a
// steady rate and counts every failure, and an issuer of tokens with its keys.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	commands := map[string]func(context.Context, []string) error{"serve": serve, "load": load, "issuer": issuer}
	err := fmt.Errorf("usage: app serve|load|issuer")
	if len(os.Args) > 1 && commands[os.Args[1]] != nil {
		err = commands[os.Args[1]](ctx, os.Args[2:])
	}
	if err != nil {
		log.Fatalf("error: %v", err)
	}
}
