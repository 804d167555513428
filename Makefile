.PHONY: help run test setup tidy reference

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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
