.PHONY: run test setup tidy

run: ## a small shop on this machine, behind real Envoys
	cargo xtask setup envoy
	cargo build -p discovery -p agent -p pilotctl
	target/debug/pilotctl demo

test: ## everything that CI checks
	cargo xtask test

setup: ## obtain the real servers that tests run against
	cargo xtask setup

tidy: ## check the project's invariants
	cargo xtask tidy
