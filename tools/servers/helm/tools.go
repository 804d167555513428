//go:build tools

// Package tools names the programs of this module, so that go.mod pins what they need.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
