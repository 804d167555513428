// Command grpc-app is a gRPC application without a proxy, with gRPC's own xDS: a server, or a client that calls a target a
// number of times and prints which servers answered. gRPC reads the control plane from $GRPC_XDS_BOOTSTRAP.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"
)

// backend is the header with the server's name.
const backend = "backend"

func main() {
	listen := flag.String("listen", "", "address of a server")
	name := flag.String("name", "", "name that a server answers with")
	byXds := flag.Bool("xds", false, "configure the server by xDS")
	target := flag.String("target", "", "target of a client")
	count := flag.Int("count", 100, "calls of a client")
	flag.Parse()
	if *listen != "" {
		log.Fatal(serve(*listen, *name, *byXds))
	}
	if err := call(*target, *count); err != nil {
		log.Fatal(err)
	}
}

type registrar interface {
	grpc.ServiceRegistrar
	Serve(net.Listener) error
}

func serve(address, name string, byXds bool) error {
	named := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		_ = grpc.SetHeader(ctx, metadata.Pairs(backend, name))
		return next(ctx, req)
	}
	var server registrar = grpc.NewServer(grpc.UnaryInterceptor(named))
	if byXds {
		creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
		if err != nil {
			return err
		}
		server, err = xds.NewGRPCServer(grpc.Creds(creds), grpc.UnaryInterceptor(named))
		if err != nil {
			return err
		}
	}
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	log.Printf("listening on %s", listener.Addr())
	return server.Serve(listener)
}

// answers is the number of calls that each server answered, and the number and last text of errors.
type answers struct {
	Backends map[string]int `json:"backends"`
	Errors   int            `json:"errors"`
	Last     string         `json:"last"`
}

func call(target string, count int) error {
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer connection.Close()
	client := healthpb.NewHealthClient(connection)
	found := answers{Backends: map[string]int{}}
	for range count {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		var header metadata.MD
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header), grpc.WaitForReady(found.Errors == 0))
		cancel()
		if names := header.Get(backend); err == nil && len(names) == 1 {
			found.Backends[names[0]]++
			continue
		}
		found.Errors++
		if err != nil {
			found.Last = err.Error()
		}
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}
