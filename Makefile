# `make demo` and `make test` are all a newcomer needs; on a fresh Debian 12 or 13 both install what is
# missing from Debian's packages first. The rest are their parts.

# rustup's cargo, where there is one, and Debian's else.
export PATH := $(HOME)/.cargo/bin:$(PATH)
# Guest tests of all test programs queue up: emulated guests side by side would only slow each other down.
export NODEWISE_RIG_EXCLUSIVE := 1

.PHONY: demo test setup format lint licences tests

demo: setup
	cargo run --release --package nodewise-bench --bin demo

test: setup format lint licences tests

setup:
	@scripts/setup

format:
	cargo fmt --all --check

lint:
	cargo clippy --workspace --all-targets --locked -- -D warnings

licences:
	cargo xtask licences

tests:
	cargo test --workspace --locked

# Targets that take nightly toolchains or long (fuzzing, sanitizers) go here, and are not part of `test`.
.PHONY: asan

asan:
	@scripts/asan
