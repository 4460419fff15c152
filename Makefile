# What can be made here: "make help". Needed: Go, git and make; the lab is run as root.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
PROGRAM := github.com/nth-project/nth/cmd/internal/cli
LDFLAGS := -s -w -X $(PROGRAM).version=$(VERSION) -X $(PROGRAM).commit=$(COMMIT)
PROGRAMS := nth nth-queue nth-imds

# Tests wait about as much as they work, so more packages are tested at once than there are processors. Go begins with those that are
# named first: the ones that take longest, which else would run alone at the end. The suites that boot machines come one after another:
# a machine takes up to 14 of the 128 inotify instances that Linux gives root (fs.inotify.max_user_instances).
LONG_UNITS := $(addprefix ./pkg/,imds fleet drain identity)
LONG_LABS  := $(addprefix ./,e2e queue metrics)
ROOTLESS   := ./aws ./internal/trace ./tools/...
SLOW       := $(addprefix ./,power release)
MACHINES   := $(addprefix ./,node packages shutdown bottlerocket)

# The linter is kept under a name that changes with what it is built from.
LINT_MODULE := test/tools/lint
LINT_KEY    := $(shell { cat $(LINT_MODULE)/go.mod $(LINT_MODULE)/go.sum; go env GOVERSION; } | sha256sum | cut -c1-12)
LINT        := $(CURDIR)/.cache/bin/lint-$(LINT_KEY)/golangci-lint

# What the tests of the lab, the linter and the programs are compiled from is compiled once, with the programs' own flags.
lint test lab e2e fuzz: export CGO_ENABLED := 0
lint test lab e2e fuzz: export GOFLAGS := -trimpath

# Tests are run by gotestsum, which keeps what each took. "slowest" has the shell print, at its end, the ten that took longest: after a
# failure, too, whose status stays the shell's.
GOTESTSUM := $(CURDIR)/.cache/bin/gotestsum
SUM       := $(GOTESTSUM) --format standard-quiet --hide-summary skipped
TIMES     := $(CURDIR)/.cache/times
slowest = trap 'printf "\n== the slowest tests\n"; cat $(TIMES)/$(1)*.json | $(GOTESTSUM) tool slowest --num 10' EXIT

say = @printf '\n== %s\n' '$(1)'

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/nth, bin/nth-queue and bin/nth-imds, static and stripped
	@mkdir -p bin
	@for program in $(PROGRAMS); do \
		CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o "bin/$$program" "./cmd/$$program"; \
		printf '%s\t%s bytes\n' "bin/$$program" "$$(stat -c %s "bin/$$program")"; \
	done

.PHONY: test
test: $(GOTESTSUM) ## run the tests that need no root and no C compiler
	$(call say,tests)
	@mkdir -p $(TIMES)
	@$(call slowest,test); $(SUM) --jsonfile $(TIMES)/test.json -- -p $$(($$(nproc) + 1)) $(LONG_UNITS) ./...
	@cd test && go test $(ROOTLESS)
	@for tool in image chart release; do (cd test/tools/$$tool && go test ./...); done

.PHONY: race
race: $(GOTESTSUM) ## run the packages' tests with the race detector, which needs a C compiler
	$(call say,tests with the race detector)
	@$(SUM) -- -race -p $$(($$(nproc) + 1)) $(LONG_UNITS) ./...

$(GOTESTSUM): test/tools/gotestsum/go.mod test/tools/gotestsum/go.sum
	@mkdir -p $(@D)
	@cd test/tools/gotestsum && CGO_ENABLED=0 go build -trimpath -o $@ gotest.tools/gotestsum

.PHONY: e2e
e2e: lab $(GOTESTSUM) ## run the tests of the lab, as root: a real control plane, booted machines, installed packages
	@cd test && go run ./cmd/labtools kubelet containerd packer packer-amazon fauxqs aemm actionlint markdownlint
	$(call say,tests on a real control plane)
	@rm -rf $(TIMES)/e2e* && mkdir -p $(TIMES)
	@$(call slowest,e2e); cd test && { echo $(TIMES)/e2e-machines.json -- -timeout 30m -p 1 $(MACHINES); \
		echo $(TIMES)/e2e-others.json -- -timeout 30m -p 2 $(LONG_LABS) $$(go list ./... | grep -vxFf <(go list $(MACHINES) $(ROOTLESS) $(SLOW))); } | \
		xargs -P 2 -I {} bash -c '$(SUM) --jsonfile {}'

# For how long each part of it lasts that has no end of its own.
NIGHTLY ?= 10m

.PHONY: nightly
nightly: lab ## run what is too slow for each change: all of the slow variants, and random ones for NIGHTLY=10m each
	$(call say,slow variants of the lab)
	@cd test && go run ./cmd/labtools kubelet containerd
	@cd test && NTH_NIGHTLY=1 CGO_ENABLED=0 GOFLAGS=-trimpath go test -p 1 -timeout 90m $(SLOW) ./crash ./node ./packages ./shutdown
	@$(MAKE) --no-print-directory e2e NTH_KUBERNETES=1.34
	@$(MAKE) --no-print-directory strangers
	@$(MAKE) --no-print-directory soak NTH_SOAK='$(NIGHTLY)'
	@$(MAKE) --no-print-directory simulate SIMULATE='$(NIGHTLY)'
	@$(MAKE) --no-print-directory fuzz FUZZ='$(NIGHTLY)'
	@$(MAKE) --no-print-directory mutate

.PHONY: strangers
strangers: lab ## run tests that others wrote, unedited, and print what each suite comes to
	@cd test && go run ./cmd/labtools aemm fauxqs actionlint markdownlint
	@cd test/strangers && NTH_NIGHTLY=1 CGO_ENABLED=0 GOFLAGS=-trimpath go test -count=1 -timeout 60m

# Whatever begins with Fuzz in a test file is a target: two at a time, each with a processor of its own.
.PHONY: fuzz
fuzz: ## give every fuzz target made-up input for 20 s, or for as long as FUZZ says, and print how many it was given
	$(call say,fuzz targets)
	@grep -rHo '^func Fuzz\w*' --include='*_test.go' cmd pkg | sed -E 's|/[^/]*:func | |' | xargs -P 2 -L 1 test/fuzz '$(or $(FUZZ),20s)'

.PHONY: lab
lab: ## build what the lab runs: etcd, Kubernetes, kwok (about 5 minutes when new)
	$(call say,lab)
	@cd test && go run ./cmd/labtools

.PHONY: lint
lint: $(LINT) ## judge the source: golangci-lint, with the rules of .golangci.yml
	$(call say,lint)
	@$(LINT) run ./... 2>&1 | tee .cache/lint.log
	@! grep 'Skipped 0 issues' .cache/lint.log # by an exclusion that nothing needs any more
	@cd test && $(LINT) run --config ../.golangci.yml ./...
	@for module in tools/image tools/chart tools/release strangers/kubectl; do (cd test/$$module && $(LINT) run --config ../../../.golangci.yml ./...); done

$(LINT):
	$(call say,building golangci-lint into .cache (a few minutes when new))
	@rm -rf .cache/bin/lint-* && mkdir -p $(@D)
	@cd $(LINT_MODULE) && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $@.new github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@mv $@.new $@

MEASURE := go test ./internal/bench -v -count=1 -timeout 0

# The build of nth that it is compared with is kept under the name of its commit.
BASED := $(if $(BASE),$(CURDIR)/.cache/bin/nth-$(shell git rev-parse --verify --short=12 '$(BASE)^{commit}'))

.PHONY: bench
bench: lab ## measure nth, and print it with the targets (ONLY=polling measures that; BASE=v1.2.3 compares it with that revision)
	@[ -z "$(BASED)" ] || [ -x "$(BASED)" ] || { source=$$(mktemp -d) && trap 'rm -rf "$$source"' EXIT && \
		git archive '$(BASE)' | tar -x -C "$$source" && mkdir -p .cache/bin && cd "$$source" && \
		CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o '$(BASED)' ./cmd/nth; }
	@cd test && NTH_BENCH=nth ONLY='$(ONLY)' BASE='$(BASED)' $(MEASURE)

.PHONY: compare
compare: lab ## measure nth and aws-node-termination-handler, in turns, and print the table of README.md
	@cd test && go run ./cmd/labtools handler
	@cd test && NTH_BENCH=compare $(MEASURE)

.PHONY: bench-queue
bench-queue: lab ## measure nth-queue in storms on 30, 100 and 1,000 nodes (NODES=5000: 1,000 of so many)
	@cd test && NTH_BENCH=queue NODES='$(NODES)' $(MEASURE)

.PHONY: replay
replay: lab ## replay the busiest day of recorded spot preemptions, in the format of NSDI'24: TRACES=dir
	@: "$${TRACES:?say where they are, as in TRACES=test/internal/trace/testdata/small}"
	@histories=$$(mktemp -d) && trap 'rm -rf "$$histories"' EXIT && \
		(cd test && NTH_BENCH=replay TRACES='$(abspath $(TRACES))' HISTORIES="$$histories" $(MEASURE)) && \
		HISTORIES="$$histories" go test ./pkg/internal/simulation -run Kept -count=1 -timeout 0 -v

.PHONY: demo
demo: lab ## watch nth drain a node that EC2 takes back, on a real control plane
	@cd test && go test ./demo -v -count=1

.PHONY: node
node: lab ## count the requests lost with nodes that have real containers, in about a quarter of an hour
	@cd test && go run ./cmd/labtools kubelet containerd
	@cd test && NTH_NIGHTLY=1 go test ./node -run Requests -v -count=1 -timeout 60m

.PHONY: recording
recording: ## type "nth rehearse", and draw the picture in README.md
	@cd test && NTH_RECORDING=1 go test ./docs -run Picture -count=1

.PHONY: crash
crash: lab ## kill nth in a hundred drains at random moments, and break what it depends on (about five minutes)
	@cd test && NTH_NIGHTLY=1 go test ./crash -run Kill -v -count=1 -timeout 30m

.PHONY: soak
soak: lab ## kill nth, reboot its machine and break what it depends on for half an hour, or for as long as NTH_SOAK says ("2h")
	@cd test && NTH_SOAK="$${NTH_SOAK:-30m}" go test ./crash -run Kill -v -count=1 -timeout 0

.PHONY: power-button
power-button: lab ## press the power button of a machine with a kernel of its own (about two minutes)
	@cd test && NTH_NIGHTLY=1 go test ./power -v -count=1 -timeout 30m

.PHONY: mutate
mutate: ## change the core one piece at a time, list what no test notices, and print the share that is noticed (PACKAGES="pkg/policy")
	@cd test/tools/gremlins && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/.cache/bin/gremlins github.com/go-gremlins/gremlins/cmd/gremlins
	@copy=$$(mktemp -d) && trap 'rm -rf "$$copy"' EXIT && git ls-files -z | xargs -0 cp --parents -t "$$copy" && cd "$$copy" && \
		for package in $(or $(PACKAGES),pkg/policy pkg/drain pkg/evict pkg/wait pkg/agent); do \
			CGO_ENABLED=0 $(CURDIR)/.cache/bin/gremlins unleash --output-statuses lt --timeout-coefficient 20 --threshold-efficacy 85 ./$$package; done

.PHONY: simulate
simulate: ## let random histories happen to the daemon's core, for SIMULATE=10m or as long as that says, on all cores
	@SIMULATE="$${SIMULATE:-10m}" go test ./pkg/internal/simulation -run Simulate -count=1 -timeout 0 -v

.PHONY: reproduce
reproduce: ## live through one of them with its story, and find the shortest that fails in the same way: SEED=42, or a file
	@: "$${SEED:?say which, as in SEED=42 or SEED=testdata/some.txt}"
	@go test ./pkg/internal/simulation -run Reproduce -count=1 -timeout 0 -v

.PHONY: fmt
fmt: ## format the source
	@gofmt -s -w cmd docs pkg test

.PHONY: tidy
tidy: ## bring go.mod and go.sum up to date, here and in the lab
	@go mod tidy
	@cd test && go mod tidy
	@cd test/strangers/kubectl && go mod tidy

.PHONY: clean
clean: ## remove what was built (what took minutes stays in .cache)
	@rm -rf bin dist

.PHONY: package
package: ## make the packages, a .deb and an .rpm for each architecture, in dist/
	@packaging/build dist

.PHONY: manifest
manifest: ## make packaging/kubernetes/nth-queue.yaml of the Helm chart in packaging/helm
	@cd test/tools/chart && CGO_ENABLED=0 go run . $(CURDIR)/packaging/kubernetes/nth-queue.yaml

.PHONY: image
image: ## make the image of a Bottlerocket host container, for each architecture, in dist/image
	@bottlerocket/build dist/image

.PHONY: image-push
image-push: ## make it and push it: make image-push IMAGE=registry.example/nth:v1
	@: "$${IMAGE:?say where to, as in IMAGE=registry.example/nth:v1}"
	@bottlerocket/build dist/image
	@cd test/tools/image && CGO_ENABLED=0 go run . push $(CURDIR)/dist/image "$$IMAGE"

.PHONY: queue-image
queue-image: ## make the image of nth-queue for a pod, for each architecture, in dist/queue-image
	@packaging/queue/image dist/queue-image

.PHONY: queue-image-push
queue-image-push: ## make it and push it: make queue-image-push IMAGE=registry.example/nth-queue:v1
	@: "$${IMAGE:?say where to, as in IMAGE=registry.example/nth-queue:v1}"
	@packaging/queue/image dist/queue-image
	@cd test/tools/image && CGO_ENABLED=0 go run . push $(CURDIR)/dist/queue-image "$$IMAGE"

.PHONY: release
release: ## make all files of a release in dist/release: packages, programs, images, bills of materials, checksums (SIGN='gpg --armor --detach-sign' signs)
	@rm -rf dist/release
	@SIGN='$(SIGN)' packaging/release dist/release

.PHONY: release-check
release-check: ## make a release twice, in two folders and from nothing, and compare the bytes (some minutes)
	@cd test && NTH_NIGHTLY=1 go test ./release -v -count=1 -timeout 60m

.PHONY: fips
fips: ## build bin/fips/nth and bin/fips/nth-queue with the Go cryptographic module that is validated for FIPS 140-3, which is on from the start
	@mkdir -p bin/fips
	@for program in nth nth-queue; do \
		CGO_ENABLED=0 GOFIPS140=v1.0.0 go build -trimpath -ldflags '$(LDFLAGS)' -o "bin/fips/$$program" "./cmd/$$program"; \
		printf '%s\t%s\n' "bin/fips/$$program" "$$(go version -m "bin/fips/$$program" | grep -o 'GOFIPS140=.*')"; \
	done

.PHONY: adopt
adopt: ## make this tree another owner's: MODULE=github.com/you/nth MAINTAINER='You <you@example.com>'
	@packaging/adopt '$(MODULE)' '$(MAINTAINER)'

.PHONY: vulncheck
vulncheck: ## ask Go's database for known faults in what is linked (needs vuln.go.dev)
	@cd test/tools/vulncheck && go build -o $(CURDIR)/.cache/bin/govulncheck golang.org/x/vuln/cmd/govulncheck
	@.cache/bin/govulncheck ./...
