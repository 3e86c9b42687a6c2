# `make demo` and `make test` are all a newcomer needs; on a fresh Debian 12 or 13 both install what is
# missing from Debian's packages first. The rest are their parts.

# rustup's cargo, where there is one, and Debian's else.
export PATH := $(HOME)/.cargo/bin:$(PATH)
# Guest tests of all test programs queue up: emulated guests side by side would only slow each other down.
export NODEWISE_RIG_EXCLUSIVE := 1

.PHONY: demo test setup format lint licences tests

# Leaves target/release/nodewise, to go on with.
demo: setup
	cargo build --release --locked --package nodewise
	cargo run --release --package nodewise-bench --bin demo

test: setup format lint licences tests

setup:
	@scripts/setup

format:
	cargo fmt --all --check

# Older clippys complain of code that later ones know to be right: with them, warnings stay warnings.
lint:
	@if printf '%s\n' 'clippy 0.1.95' "$$(cargo clippy --version)" | sort --check=quiet --version-sort; then \
		strict='-- -D warnings'; fi; \
	set -x; cargo clippy --workspace --all-targets --locked $$strict

licences:
	cargo xtask licences

tests:
	cargo test --workspace --locked --no-fail-fast
	cargo xtask loom
	cargo test --profile guest --locked --package nodewise --test sim all_rows -- --ignored

# libnodewise for C and C++: make install PREFIX=/usr/local DESTDIR= (scripts/install has the rest)
.PHONY: install
export PREFIX LIBDIR INCLUDEDIR DESTDIR PROFILE STRIP

install:
	@scripts/install

# Targets that take nightly toolchains or long (fuzzing, sanitizers) go here, and are not part of `test`.
.PHONY: asan

asan:
	@scripts/asan

.PHONY: tsan valgrind

tsan:
	@scripts/tsan

valgrind:
	@scripts/valgrind

# Asks the registry and builds each package anew; what can be told offline is in `test`.
.PHONY: publishable

publishable:
	cargo publish --dry-run --locked --workspace

.PHONY: fuzz

fuzz:
	@scripts/fuzz
