//go:build tools

// Package tools names the programs of this module, so that go.mod pins what they need.
package tools

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
