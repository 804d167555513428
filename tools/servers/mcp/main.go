// Command mcp-client asks a control plane for configuration objects over xDS and writes every answer as a line of JSON.
// The protocol is that of Envoy's own Go client and stubs, and the objects are read with Istio's own types: nothing of
// Pilotage is in it, so that what Pilotage serves is read by a stranger.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	sotw "github.com/envoyproxy/go-control-plane/pkg/client/sotw/v3"
	status "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	mcp "istio.io/api/mcp/v1alpha1"
	_ "istio.io/api/networking/v1alpha3"
	_ "istio.io/api/security/v1beta1"
)

type object struct {
	Name    string          `json:"name"`
	Version string          `json:"version"`
	Type    string          `json:"type"`
	Spec    json.RawMessage `json:"spec"`
}

type answer struct {
	Kind    string   `json:"kind"`
	Objects []object `json:"objects"`
	Removed []string `json:"removed"`
	Refused bool     `json:"refused"`
}

// follower asks for one kind and judges its answers.
type follower struct {
	kind   string
	refuse int
	count  int
}

var output sync.Mutex

func main() {
	address := flag.String("address", "", "where the control plane listens")
	kinds := flag.String("kinds", "", "kinds to ask for, as group/version/Kind, separated by commas")
	delta := flag.Bool("delta", false, "ask for changes instead of everything")
	refuse := flag.Int("refuse", 0, "which answer of each kind to refuse, counted from 1")
	flag.Parse()

	connection, err := grpc.NewClient(*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	generator, err := structpb.NewStruct(map[string]any{"GENERATOR": "api"})
	check(err)
	node := &core.Node{Id: "sidecar~127.0.0.1~stranger.elsewhere~elsewhere.svc.cluster.local", Metadata: generator}
	var running sync.WaitGroup
	for _, kind := range strings.Split(*kinds, ",") {
		f := &follower{kind: kind, refuse: *refuse}
		running.Go(func() {
			if *delta {
				check(f.followChanges(connection, node))
			} else {
				check(f.followAll(connection, node))
			}
		})
	}
	running.Wait()
}

// followAll leaves the protocol to Envoy's client.
func (f *follower) followAll(connection *grpc.ClientConn, node *core.Node) error {
	client := sotw.NewADSClient(context.Background(), node, f.kind)
	if err := client.InitConnect(connection); err != nil {
		return err
	}
	for {
		response, err := client.Fetch()
		if err != nil {
			return err
		}
		if f.take(response.Resources, nil) {
			err = client.Ack()
		} else {
			err = client.Nack("refused by the caller")
		}
		if err != nil {
			return err
		}
	}
}

// followChanges speaks the variant that Envoy's client does not know, over Envoy's stubs.
func (f *follower) followChanges(connection *grpc.ClientConn, node *core.Node) error {
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(context.Background())
	if err != nil {
		return err
	}
	if err := stream.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: f.kind}); err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		var bodies []*anypb.Any
		for _, resource := range response.Resources {
			bodies = append(bodies, resource.Resource)
		}
		verdict := &discovery.DeltaDiscoveryRequest{TypeUrl: f.kind, ResponseNonce: response.Nonce}
		if !f.take(bodies, response.RemovedResources) {
			verdict.ErrorDetail = &status.Status{Code: int32(codes.InvalidArgument), Message: "refused by the caller"}
		}
		if err := stream.Send(verdict); err != nil {
			return err
		}
	}
}

// take prints a response as one line of JSON and reports whether to accept it.
func (f *follower) take(resources []*anypb.Any, removed []string) bool {
	f.count++
	response := answer{Kind: f.kind, Objects: []object{}, Removed: append([]string{}, removed...), Refused: f.count == f.refuse}
	for _, resource := range resources {
		envelope := &mcp.Resource{}
		check(resource.UnmarshalTo(envelope))
		body, err := envelope.Body.UnmarshalNew()
		check(err)
		spec, err := protojson.Marshal(body)
		check(err)
		name, version := envelope.Metadata.GetName(), envelope.Metadata.GetVersion()
		response.Objects = append(response.Objects, object{Name: name, Version: version, Type: envelope.Body.TypeUrl, Spec: spec})
	}
	line, err := json.Marshal(response)
	check(err)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
	return !response.Refused
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "mcp-client:", err)
		os.Exit(1)
	}
}
