# Pagetide: build, install, test and see it work. `make` alone builds.
CARGO ?= cargo
CC ?= cc
PREFIX ?= /usr/local
DESTDIR ?=
# How long `make soak` runs, and each target of `make fuzz`; the random seed of the one, and which targets of the other (all).
SECONDS ?= 60
SEED ?= 1
FUZZ ?=
# Times `make bench-first` and `make bench-programs` run each system.
RUNS ?= 5
# What `make test-kernels` runs on, and options of tests/kernels/run.py for it.
KERNELS ?= 5.10 6.1 6.12 6.18 7.3
KERNELS_OPTIONS ?=
# Which Python `make python` and `make test-python` use (from 3.11 on), and how Rust builds for it: release or dev.
PYTHON ?= python3
PYTHON_PROFILE ?= release

# Where shells look for completions, and udev for rules. Not every udev reads those of /usr/local.
BASH_COMPLETION = $(PREFIX)/share/bash-completion/completions/pagetide
ZSH_COMPLETION = $(PREFIX)/share/zsh/site-functions/_pagetide
FISH_COMPLETION = $(PREFIX)/share/fish/vendor_completions.d/pagetide.fish
UDEV_RULE = $(if $(filter /usr,$(PREFIX)),/usr/lib,$(if $(filter /usr/local,$(PREFIX)),/etc))
UDEV_RULE := $(if $(UDEV_RULE),$(UDEV_RULE)/udev/rules.d/60-pagetide.rules)

TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
TESTS := crates/cli/tests

.PHONY: build install uninstall capi install-capi test test-full test-programs test-kernels test-kernels-quick test-serve demo soak bench-first bench-programs python test-python test-python-free-threaded lint-python deb test-deb dist fmt lint shape msrv deny miri fuzz clean toolchain

build: toolchain
	$(CARGO) build --release --workspace

# Says what is missing and installs it where that can be done.
toolchain:
	@CARGO="$(CARGO)" ./examples/toolchain.sh

install:
	@test -x $(RELEASE)/pagetide || { echo "there is nothing to install in $(RELEASE) yet: run \`make\` first" >&2; exit 1; }
	install -D -m 755 $(RELEASE)/pagetide $(DESTDIR)$(PREFIX)/bin/pagetide
	install -D -m 755 $(RELEASE)/pagetide-bench $(DESTDIR)$(PREFIX)/bin/pagetide-bench
	install -D -m 755 $(RELEASE)/libpagetide_preload.so $(DESTDIR)$(PREFIX)/lib/pagetide/libpagetide_preload.so
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	$(RELEASE)/pagetide man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(dir $(BASH_COMPLETION)) $(DESTDIR)$(dir $(ZSH_COMPLETION)) $(DESTDIR)$(dir $(FISH_COMPLETION))
	$(RELEASE)/pagetide completions bash >$(DESTDIR)$(BASH_COMPLETION)
	$(RELEASE)/pagetide completions zsh >$(DESTDIR)$(ZSH_COMPLETION)
	$(RELEASE)/pagetide completions fish >$(DESTDIR)$(FISH_COMPLETION)
	$(if $(UDEV_RULE),install -D -m 644 packaging/60-pagetide.rules $(DESTDIR)$(UDEV_RULE),@echo "not installed, as $(PREFIX) is not the system's: packaging/60-pagetide.rules, for /etc/udev/rules.d")
	@test -n "$(DESTDIR)" || getent group pagetide >/dev/null || echo "for users other than root: groupadd --system pagetide, usermod -aG pagetide USER, and udevadm trigger --name-match=userfaultfd"

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/pagetide $(DESTDIR)$(PREFIX)/bin/pagetide-bench $(DESTDIR)$(PREFIX)/share/man/man1/pagetide.1 $(DESTDIR)$(PREFIX)/share/man/man1/pagetide-*.1
	rm -rf $(DESTDIR)$(PREFIX)/lib/pagetide
	rm -f $(DESTDIR)$(BASH_COMPLETION) $(DESTDIR)$(ZSH_COMPLETION) $(DESTDIR)$(FISH_COMPLETION) $(addprefix $(DESTDIR),$(UDEV_RULE))
	rm -f $(DESTDIR)$(PREFIX)/lib/libpagetide.* $(DESTDIR)$(PREFIX)/lib/pkgconfig/pagetide.pc $(DESTDIR)$(PREFIX)/include/pagetide.h

# The C libraries, in target/capi.
capi: toolchain
	@CARGO="$(CARGO)" CC="$(CC)" crates/capi/link.sh capi "$(abspath $(TARGET))" "$(abspath $(TARGET))/capi"

install-capi:
	@test -e $(TARGET)/capi/lib/libpagetide.so || { echo "there is nothing to install in $(TARGET)/capi yet: run \`make capi\` first" >&2; exit 1; }
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	cp -P $(TARGET)/capi/lib/libpagetide.* $(DESTDIR)$(PREFIX)/lib/
	install -m 644 $(TARGET)/capi/lib/pkgconfig/pagetide.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/pagetide.pc
	install -m 644 $(TARGET)/capi/include/pagetide.h $(DESTDIR)$(PREFIX)/include/pagetide.h
	@test -n "$(DESTDIR)" || ldconfig 2>/dev/null || true

# Programs that tests run under Pagetide. Those that stay missing are skipped, loudly.
test-programs: toolchain
	-@./examples/install-for-tests.sh redis-server=redis-server memcached=memcached openssl=openssl sqlite3=sqlite3 python3=python3 g++=g++ perl=perl systemd-analyze=systemd clang=clang /usr/include/lua5.4/lua.h=liblua5.4-dev /usr/include/sqlite3.h=libsqlite3-dev
	-@./examples/container-profiles.sh "$(TARGET)/container-profiles"

test: test-programs
	@./examples/run-tests.sh "$(CARGO)" "$(TARGET)"

# The same with real programs at their full sizes. Takes long.
test-full: test-programs
	-@./examples/install-for-tests.sh qemu-system-x86_64=qemu-system-x86 busybox=busybox-static
	@PAGETIDE_TESTS_FULL=1 PAGETIDE_TESTS_SECONDS=21600 ./examples/run-tests.sh "$(CARGO)" "$(TARGET)"

# The tests on other kernels, in QEMU. What cannot be had is skipped, loudly. See docs/kernels.md.
test-kernels: test-programs
	-@./examples/install-for-tests.sh qemu-system-x86_64=qemu-system-x86 busybox=busybox-static mke2fs=e2fsprogs redis-cli=redis-tools
	@CARGO="$(CARGO)" CARGO_TARGET_DIR="$(TARGET)" python3 tests/kernels/run.py $(KERNELS_OPTIONS) $(KERNELS)

# Hazards and programs that fork, on an old kernel and the newest.
test-kernels-quick:
	@$(MAKE) test-kernels KERNELS="6.1 7.3" KERNELS_OPTIONS="--suite quick $(KERNELS_OPTIONS)"

# `serve firecracker` with Firecracker's own crates, and with Firecracker where PAGETIDE_FIRECRACKER names it; `serve criu` with CRIU itself,
# in two versions: real programs, and CRIU's own tests. Needs root. Exit code 77 of a script: it cannot be done here.
SERVE_OPTIONS ?=
test-serve: build
	-@./examples/install-for-tests.sh redis-server=redis-server make=make gcc=gcc clang=clang
	@CARGO="$(CARGO)" python3 tests/firecracker/run.py --pagetide "$(RELEASE)/pagetide" --work "$(TARGET)/firecracker" || test $$? = 77
	@python3 tests/criu/run.py --pagetide "$(RELEASE)/pagetide" --work "$(TARGET)/criu" $(SERVE_OPTIONS) || test $$? = 77

demo: toolchain
	@./examples/install-for-tests.sh python3=python3 sqlite3=sqlite3
	$(CARGO) build --release --workspace
	@python3 examples/demo.py --pagetide $(RELEASE)/pagetide --out $(TARGET)/demo

# Threads, forks and mappings under a budget that changes at random, every word verified.
soak: build
	$(CC) -O2 -g -pthread -Wall -I$(TESTS)/hazards '-DHAZARD="soak"' -o $(RELEASE)/soak-program $(TESTS)/programs/soak.c
	$(RELEASE)/pagetide-bench soak --seconds $(SECONDS) --seed $(SEED) --program $(RELEASE)/soak-program

# Beside kernel swap on zram. Needs root; what it changes on the machine it puts back.
bench-first: build
	$(RELEASE)/pagetide-bench first-numbers --runs $(RUNS) --json $(RELEASE)/first-numbers.json

# Real programs beside kernel swap on zram, and where they fit. Needs root, and hours; installs what is missing, and says so.
bench-programs: build
	$(RELEASE)/pagetide-bench programs --share 60%,40%,fits --runs $(RUNS) --json $(RELEASE)/programs.json --plot $(RELEASE)/programs.svg

# The Python wheel, with the command and the agent inside, in $(TARGET)/wheels. Exit code 77 of the script: it cannot be built here.
python:
	@CARGO="$(CARGO)" ./python/build.sh "$(abspath $(TARGET))" $(PYTHON_PROFILE) "$(PYTHON)" || test $$? = 77

# The same, installed into a clean environment and tested there.
test-python:
	@{ CARGO="$(CARGO)" ./python/build.sh "$(abspath $(TARGET))" $(PYTHON_PROFILE) "$(PYTHON)" && \
	    ./python/test.sh "$(abspath $(TARGET))" "$(PYTHON)" $(PYTEST_OPTIONS); } || test $$? = 77

# The same with a free-threaded interpreter, which is built first where there is none.
test-python-free-threaded:
	@python=$$(./python/free-threaded.sh "$(abspath $(TARGET))") && $(MAKE) test-python PYTHON="$$python" || test $$? = 77

# A Debian package in $(TARGET)/packages, of what is built in BUILD. Exit code 77 of the scripts: it cannot be done here.
BUILD ?= $(RELEASE)
deb: $(if $(filter $(RELEASE),$(BUILD)),build)
	@./packaging/deb.sh "$(BUILD)" "$(TARGET)/packages" || test $$? = 77

# The same, installed in a clean Debian root, used there by root, members of the group and others, and removed.
test-deb: $(if $(filter $(RELEASE),$(BUILD)),build)
	-@./examples/install-for-tests.sh mmdebstrap=mmdebstrap dpkg-shlibdeps=dpkg-dev
	@{ package=$$(./packaging/deb.sh "$(BUILD)" "$(TARGET)/packages") && ./packaging/test-deb.sh "$$package"; } || test $$? = 77

# An archive for other systems, to be unpacked under any prefix.
dist: $(if $(filter $(RELEASE),$(BUILD)),build)
	@./packaging/dist.sh "$(BUILD)" "$(TARGET)/packages"

# The crate is no member of the workspace: see docs/decisions/0071-python.md.
lint-python:
	$(CARGO) fmt --manifest-path python/Cargo.toml --check
	CARGO_TARGET_DIR=$(TARGET)/python $(CARGO) clippy --manifest-path python/Cargo.toml -- -D warnings

fmt:
	$(CARGO) fmt --all

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# Long lines, long functions, circles of files; the oldest Rust promised; dependencies; the pure parts under Miri.
# What a check needs and this machine has not is SKIPPED, loudly.
shape msrv deny miri:
	@./tests/shape/check.sh $@ "$(abspath $(TARGET))"

# All that reads bytes from outside, given any bytes: minutes, and no part of `make test`.
fuzz:
	@./tests/shape/check.sh $@ "$(abspath $(TARGET))" $(SECONDS) $(FUZZ)

clean:
	$(CARGO) clean
