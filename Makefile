.PHONY: test setup tidy

test: ## everything that CI checks
	cargo xtask test

setup: ## obtain the real servers that tests run against
	cargo xtask setup

tidy: ## check the project's invariants
	cargo xtask tidy
