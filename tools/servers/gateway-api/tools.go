//go:build tools

// Package suite names the programs of this module, so that go.mod pins what they need.
package suite

import (
	_ "sigs.k8s.io/gateway-api/conformance/echo-basic"
)
