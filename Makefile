.PHONY: help run test setup tidy reference images bench bench-quick fuzz

HUB ?= pilotage
TAG ?= latest
BUILDER ?= docker
SECONDS ?= 60

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## run a demo mesh on this machine: four services behind real Envoys
	cargo xtask setup envoy
	cargo build -p discovery -p agent -p pilotctl
	target/debug/pilotctl demo

test: ## run everything that CI checks
	cargo xtask test

setup: ## obtain the real servers that tests run against
	cargo xtask setup

tidy: ## check the project's invariants
	cargo xtask tidy

reference: ## regenerate docs/reference from the code
	cargo xtask reference

images: ## build the images pilot, proxyv2 and proxy_init with HUB, TAG and BUILDER (docker or podman)
	for image in pilot proxyv2 proxy_init; do \
		$(BUILDER) build -f deploy/Containerfile --target $$image -t $(HUB)/$$image:$(TAG) . || exit 1; done

PARTS ?= comparison,fleets,slow,held,churn,services,sidecars,sources

bench: ## measure fleets of proxies on a real API server, and write tables and plots into the docs (an hour; PARTS for some)
	cargo xtask setup etcd kube-apiserver consul
	ulimit -n $$(ulimit -Hn) && cargo bench -p discovery --bench fleet -- --part $(PARTS)

bench-quick: ## measure a small fleet from files (a minute after the build)
	cargo bench -p discovery --bench fleet -- --quick

fuzz: ## search for inputs that do harm, SECONDS for each fuzz target
	cargo xtask fuzz --seconds $(SECONDS)
