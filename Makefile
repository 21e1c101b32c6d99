# The front door. Everything is built by meson; these targets only save typing it.

BUILD ?= build
MESON_FLAGS ?=

c_files = find include src bench tests -name '*.[ch]'

.PHONY: help deps build demo check check-root check-user check-asan check-tsan check-architecture \
	torture fuzz format format-check clean install

help:
	@echo 'make build          compile the library and the command into $(BUILD)/'
	@echo 'make demo           the reference workloads on the kernel and on hugepool, in under a minute'
	@echo 'make check          every test: as root, as an ordinary user, under the sanitizers; architecture'
	@echo 'make check-root     one part of it; also check-user, check-asan, check-tsan, check-architecture'
	@echo 'make torture        the locks under 500 deaths, and the files in every use at once: a minute each'
	@echo 'make fuzz           lists of calls against a model, FUZZ_SECONDS=60, by clang and its libFuzzer'
	@echo 'make format         clang-format over all C files; format-check only looks'
	@echo 'make install        install library, header and command (PREFIX at first configuration: MESON_FLAGS)'
	@echo 'make clean          remove every build directory'
	@echo
	@echo 'build, demo and check first install what Debian packages are missing, through sudo when not root.'

deps:
	@sh tools/install-deps.sh

$(BUILD)/build.ninja: | deps
	@echo 'Configuring $(BUILD)/'
	@meson setup $(BUILD) $(MESON_FLAGS)

build: deps $(BUILD)/build.ninja
	@echo 'Compiling in $(BUILD)/'
	@meson compile -C $(BUILD)

demo: build
	@echo 'Running the reference workloads, quick version'
	@$(BUILD)/src/cli/hugepool bench reference --quick

check: deps
	@sh tools/check.sh

check-root check-user check-asan check-tsan check-architecture: deps
	@sh tools/check.sh $(@:check-%=%)

torture: build
	@$(BUILD)/tests/sync_torture_locks 60 500
	@sh tests/with-hugepages.sh 64 -- $(BUILD)/tests/space_torture_files 60

fuzz:
	@sh tests/model/fuzz.sh $(BUILD)

format:
	@command -v clang-format >/dev/null || { echo 'clang-format is missing: apt install clang-format' >&2; exit 1; }
	@$(c_files) | xargs clang-format -i

format-check:
	@command -v clang-format >/dev/null || { echo 'clang-format is missing: apt install clang-format' >&2; exit 1; }
	@$(c_files) | xargs clang-format --dry-run -Werror

install: build
	@meson install -C $(BUILD) --no-rebuild
	@[ -n '$(DESTDIR)' ] || [ "$$(id -u)" -ne 0 ] || ldconfig

clean:
	@rm -rf $(BUILD) build-asan build-tsan
