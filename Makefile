# `make demo` and `make test` are all a newcomer needs; on a fresh Debian 12 or 13 both install what is
# missing from Debian's packages first. `make check` is for the time between two edits. The rest are parts.

# rustup's cargo, where there is one, and Debian's else.
export PATH := $(HOME)/.cargo/bin:$(PATH)
# Guest tests of all test programs queue up: emulated guests side by side would only slow each other down.
export NODEWISE_RIG_EXCLUSIVE := 1

.PHONY: demo test check setup format lint licences build tests doctests loom studies quick

# Leaves target/release/nodewise, to go on with.
demo: setup
	cargo build --release --locked --package nodewise
	cargo run --release --package nodewise-bench --bin demo

# Each step runs whatever came of those before it. Their times, and those of all test programs, are shown at
# the end, the longest first, and stay in target/times. So does what tests that failed have said, in
# target/failures.
test: setup
	@mkdir -p target && rm -f target/times target/failures
	@failed=; for step in format lint licences build tests doctests loom studies; do \
		scripts/timed $(MAKE) --no-print-directory $$step || failed="$$failed $$step"; \
	done; \
	sort --numeric-sort --reverse target/times; \
	if [ "$$failed" ]; then cat target/failures 2>/dev/null; echo "make test: failed:$$failed" >&2; exit 1; fi

# Format, lint, and every test that needs no guest.
check: format lint licences quick

setup:
	@scripts/setup

format:
	cargo fmt --all --check

# Older clippys complain of code that later ones know to be right: with them, warnings stay warnings.
lint:
	@if printf '%s\n' 'clippy 0.1.95' "$$(cargo clippy --version)" | sort --check=quiet --version-sort; then \
		strict='-- -D warnings'; fi; \
	set -x; cargo clippy --workspace --all-targets --locked $$strict
	cargo xtask prose
	cargo xtask results --check

licences:
	cargo xtask licences

build:
	cargo test --workspace --locked --no-run

tests:
	cargo --config 'target."cfg(unix)".runner = "scripts/timed"' test --workspace --locked --no-fail-fast --tests

doctests:
	cargo test --workspace --locked --no-fail-fast --doc

loom:
	cargo xtask loom

# By the optimised program that the guests run.
studies:
	cargo build --profile guest --locked --package nodewise --package nodewise-bench --bins
	cargo --config 'target."cfg(unix)".runner = ["env", "CARGO_BIN_EXE_nodewise=$(CURDIR)/target/guest/nodewise"]' \
		test --locked --package nodewise --test sim -- --ignored

# Packages whose integration tests boot guests, and other tests that do or that need what guests need.
guest_packages := nodewise-bench nodewise-rig
guest_tests := \
	a_guest_is_what_it_was_made_to_be \
	a_machine_with_one_node_is_told_so_kindly \
	a_model_that_does_not_fit_is_said_to \
	a_shell_in_the_guest_has_this_terminal \
	ctrl_c_and_sigterm_leave_no_process_and_no_file \
	in_a_guest_of_two_nodes_everything_but_a_pmu_works \
	kernels_of_the_setup_are_found_from_any_directory \
	not_even_kill_9_leaves_anything \
	placement::tests::a_program_finds_it_on_four_nodes_too \
	placement_is_as_under_numactl_in_a_guest \
	programs_that_cannot_run_have_the_shells_statuses \
	shape_copies_and_streams_reach_the_guest \
	the_guest_has_nodewise_and_the_order_of_outputs \
	the_time_limit_has_timeouts_status \
	what_is_missing_is_named_with_what_installs_it

# No guest finds this kernel: a test that boots one and is not left out above fails at once.
quick: export NODEWISE_KERNEL := /nonexistent/the-quick-tests-boot-no-guest
quick:
	cargo test --workspace --locked --no-fail-fast $(addprefix --exclude ,$(guest_packages)) \
		-- --exact $(addprefix --skip ,$(guest_tests))
	cargo test --locked --no-fail-fast $(addprefix --package ,$(guest_packages)) --lib --bins

# libnodewise for C and C++: make install PREFIX=/usr/local DESTDIR= (scripts/install has the rest)
.PHONY: install
export PREFIX LIBDIR INCLUDEDIR DESTDIR PROFILE STRIP

install:
	@scripts/install

# Debian packages of the tool, the library and its headers: make deb OUT=target/deb (scripts/deb has the rest)
.PHONY: deb
export OUT

deb:
	@scripts/deb

# Targets that take nightly toolchains or long (fuzzing, sanitizers) go here, and are not part of `test`.
.PHONY: asan

asan:
	@scripts/asan

.PHONY: tsan valgrind

tsan:
	@scripts/tsan

valgrind:
	@scripts/valgrind

# Hostile programs of all kinds under `attach` as root, in a guest, for SECONDS. `make test` does it for less.
.PHONY: soak
SECONDS ?= 3600

soak: export NODEWISE_HOSTILE_SECONDS := $(SECONDS)
soak:
	cargo test --locked --package nodewise-bench --test hostile a_hostile_mix -- --nocapture

# Guest tests that take too long for `make test`: other shapes and machines of what its own tests show.
.PHONY: slow

slow:
	cargo test --locked --no-fail-fast --package nodewise-bench --package nodewise-rig -- --ignored

# Programs of Debian's packages, those that are installed, in turn by the kernel alone and under Nodewise.
.PHONY: pairs

pairs:
	cargo run --locked --release --package nodewise-bench --bin pairs

# Asks the registry and builds each package anew; what can be told offline is in `test`.
.PHONY: publishable

publishable:
	cargo publish --dry-run --locked --workspace

.PHONY: fuzz

fuzz:
	@scripts/fuzz
