# Thin: each target installs what it needs (scripts/setup) and calls a script or ninja. `make help` lists them.
FUZZ_SECONDS ?= 120

.PHONY: build demo test test-full bench fuzz tidy install clean help setup setup-tests setup-full
# Two targets at once would both install.
.NOTPARALLEL:

build: setup ## build/isochron
	@scripts/build release

demo: build ## compile the demo model, show the memory account, answer PROMPT="..."; MODEL=file.gguf uses another
	@scripts/demo

test: setup-tests ## all tests but the long ones
	@scripts/run-tests

test-full: setup-full ## all tests, also on an emulated 64-bit ARM and under ThreadSanitizer
	@scripts/run-tests --full

bench: build ## speed, latency percentiles and the host's noise floor; MODEL=file.gguf uses another model
	@set -e; model="$${MODEL:-$$(scripts/fetch-model)}"; build/isochron bench "$$model"

fuzz: setup-tests ## every fuzz target for FUZZ_SECONDS (120) seconds
	@scripts/fuzz --seconds $(FUZZ_SECONDS)

tidy: setup-tests ## the house rules: dependencies, sizes, banned calls and flags, format
	@scripts/build release
	@scripts/tidy

install: build ## into /usr/local; DESTDIR=... is honoured
	@meson install -C build --no-rebuild

clean: ## remove the build folders, the tests' Python environment too
	rm -rf build build-asan build-clang build-fuzz build-aarch64 build-tsan

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

setup:
	@scripts/setup

setup-tests:
	@scripts/setup --tests

setup-full:
	@scripts/setup --full
