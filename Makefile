# Everything a person does with this project. `make` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

COMMANDS := $(notdir $(patsubst %/,%,$(dir $(wildcard cmd/*/main.go))))

##@ See it work

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## A cluster, the operator, PostgreSQL and a topology of four nodes; writes, a failover, a summary
	@hack/demo/run.sh

.PHONY: bench
bench: ## Measure a node against PostgreSQL itself; print it and write bench/latest.json
	@env=$$(hack/testdeps integration); eval "$$env"; go run ./hack/bench

BENCH_BASE ?= bench/reference.json
.PHONY: bench-compare
bench-compare: ## Compare bench/latest.json with an earlier run, BENCH_BASE; name what is 10 % worse
	@go run ./hack/bench -compare $(BENCH_BASE)

##@ Test

.PHONY: test
test: ## Everything: check, unit, integration, e2e; ends at the first that fails
	@hack/test check unit integration e2e

.PHONY: test-unit
test-unit: ## Tests that need nothing but Go
	@hack/test unit

.PHONY: test-integration
test-integration: ## All tests of the packages, with real PostgreSQL servers and a real API server
	@hack/test integration

.PHONY: test-e2e
test-e2e: ## The topology on a real cluster: E2E_KUBECONFIG's, kind's, or one made here
	@hack/test e2e

SIM ?= 10m
.PHONY: sim
sim: ## Simulated meshes and relay trees, thousands of seeds: SIM says for how long, SIM_FIRST from which seed on
	@go test ./test/sim -run 'TestSim$$|TestTree$$' -count=1 -v -timeout 0 -sim.seeds 1000000000 -sim.time $(SIM) -sim.first $(or $(SIM_FIRST),1)

SIM_LEAVES ?= 10000
SIM_BRANCHES ?= 100
SIM_MINUTES ?= 60
.PHONY: sim-large
sim-large: ## One large relay tree: SIM_LEAVES leaves under SIM_BRANCHES branches of two for SIM_MINUTES simulated minutes
	@GOGC=300 go test ./test/sim -run 'TestLarge$$' -count=1 -v -timeout 0 -sim.leaves $(SIM_LEAVES) -sim.branches $(SIM_BRANCHES) -sim.minutes $(SIM_MINUTES)

.PHONY: nightly
nightly: ## The long runs: ten minutes of random workload, the large relay tree, the PostgreSQL tests on every version, the benchmark
	@hack/test nightly

.PHONY: lint
lint: ## Linters: Go, shell, wire protocol, chart
	@hack/test lint

##@ Change it

.PHONY: fmt
fmt: ## Format the Go files
	@gofmt -w $$(git ls-files --cached --others --exclude-standard '*.go')

.PHONY: generate
generate: ## Make the generated files again: wire protocol, deepcopy, CRDs, RBAC
	@hack/generate.sh

.PHONY: check-generated
check-generated: ## Fail when a generated file is not what its source says
	@hack/generate.sh --check

##@ Build it

.PHONY: build
build: ## Static binaries of every command, in bin/
	@mkdir -p bin
	CGO_ENABLED=0 go build -ldflags '-s -w' -o bin/ $(COMMANDS:%=./cmd/%)

.PHONY: images
images: build ## OCI archives of manager and node, in dist/images/ (no Docker needed)
	@hack/images.sh

.PHONY: manifests
manifests: ## The operator as one file, dist/install.yaml
	@mkdir -p dist
	@hack/tool kustomize build config/default >dist/install.yaml
	@echo dist/install.yaml

.PHONY: clean
clean: ## Remove what was built here; what is cached outside stays
	@rm -rf bin dist bench/latest.json bench/*.pprof
