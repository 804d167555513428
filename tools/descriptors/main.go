// Command descriptors writes the descriptor sets that crates/api is built from:
// envoy.binpb (Envoy's v3 API, contrib, xds and udpa) and istio.binpb (Istio's API).
// Options are dropped, all but those that change how a message is encoded.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: descriptors OUTPUT_FOLDER")
		os.Exit(2)
	}
	sets := map[string]func(path, pkg string) bool{
		"envoy.binpb": func(path, pkg string) bool {
			return strings.HasPrefix(path, "envoy/") || strings.HasPrefix(path, "contrib/envoy/") || isXds(pkg)
		},
		"istio.binpb": func(path, pkg string) bool {
			return strings.HasPrefix(pkg, "istio.") && !strings.HasPrefix(path, "contrib/")
		},
	}
	for name, wanted := range sets {
		if err := write(filepath.Join(os.Args[1], name), wanted); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func isXds(pkg string) bool {
	return strings.HasPrefix(pkg, "xds.") || strings.HasPrefix(pkg, "udpa.type")
}

// write stores the wanted files, and the files they need, dependencies first.
func write(path string, wanted func(path, pkg string) bool) error {
	var roots []protoreflect.FileDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if wanted(f.Path(), string(f.Package())) {
			roots = append(roots, f)
		}
		return true
	})
	sort.Slice(roots, func(i, j int) bool { return roots[i].Path() < roots[j].Path() })
	set := &descriptorpb.FileDescriptorSet{}
	seen := map[string]bool{}
	var visit func(f protoreflect.FileDescriptor)
	visit = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] || onlyOptions(f.Path()) {
			return
		}
		seen[f.Path()] = true
		imports := f.Imports()
		for i := 0; i < imports.Len(); i++ {
			visit(imports.Get(i).FileDescriptor)
		}
		set.File = append(set.File, bare(protodesc.ToFileDescriptorProto(f)))
	}
	for _, f := range roots {
		visit(f)
	}
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err != nil {
		return err
	}
	return os.WriteFile(path, bytes, 0o644)
}

// onlyOptions reports whether a file defines nothing but annotations.
func onlyOptions(path string) bool {
	for _, prefix := range []string{"validate/", "udpa/annotations/", "xds/annotations/", "envoy/annotations/", "google/api/field_behavior", "google/protobuf/descriptor", "gogoproto/"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

func bare(f *descriptorpb.FileDescriptorProto) *descriptorpb.FileDescriptorProto {
	f.Options, f.SourceCodeInfo, f.Extension = nil, nil, nil
	kept := f.Dependency[:0]
	for _, d := range f.Dependency {
		if !onlyOptions(d) {
			kept = append(kept, d)
		}
	}
	f.Dependency, f.PublicDependency, f.WeakDependency = kept, nil, nil
	for _, m := range f.MessageType {
		bareMessage(m)
	}
	for _, e := range f.EnumType {
		bareEnum(e)
	}
	for _, s := range f.Service {
		s.Options = nil
		for _, m := range s.Method {
			m.Options = nil
		}
	}
	return f
}

func bareMessage(m *descriptorpb.DescriptorProto) {
	if m.Options != nil {
		m.Options = &descriptorpb.MessageOptions{MapEntry: m.Options.MapEntry}
	}
	for _, f := range m.Field {
		if f.Options != nil {
			f.Options = &descriptorpb.FieldOptions{Packed: f.Options.Packed}
		}
	}
	for _, o := range m.OneofDecl {
		o.Options = nil
	}
	for _, e := range m.EnumType {
		bareEnum(e)
	}
	for _, n := range m.NestedType {
		bareMessage(n)
	}
}

func bareEnum(e *descriptorpb.EnumDescriptorProto) {
	if e.Options != nil {
		e.Options = &descriptorpb.EnumOptions{AllowAlias: e.Options.AllowAlias}
	}
	for _, v := range e.Value {
		v.Options = nil
	}
}
