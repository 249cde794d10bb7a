# The front door; CMake does the work (CMakePresets.json: release, debug, asan, tsan, clang, fuzz).
#
# make         build/release/deepinfer
# make demo    install what is needed, build, answer one question with the embedded model
# make check   install what is needed, build, run every test
# make bench   in half a minute: speed of the kernels and of the embedded model, as JSON lines and tables
# make bench-grammar CASES=folder: masks beside xgrammar and llguidance (docs/grammar.md); packages from PyPI
# make measure in twelve: all that docs/performance.md shows, as Markdown
# make matrix  TOKENS=1000000: the determinism matrix, long, on the test model and on the embedded model
# make fuzz    every fuzz target for FUZZ_SECONDS each (600)
# make format  clang-format over the sources
# make docs    docs/configuration.md and the lists of docs/api.md from their tables
# make install copy to PREFIX (/usr/local), honours DESTDIR
# make deb     Debian package in build/package
# make soak    HOURS=4: mixed load on the server, with clients that leave in the middle; memory, pools and sockets are watched
# make acceptance  the twelve acceptance tests of docs/testing.md alone, in their full sizes
# make clean   remove build/

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
FUZZ_SECONDS ?= 600
TOKENS ?= 1000000
PREFIX ?= /usr/local
HOURS ?= 4
RELEASE = build/release

.PHONY: all demo check bench bench-build bench-grammar measure matrix fuzz format docs install deb soak acceptance clean help
.DEFAULT_GOAL = all

all: $(RELEASE)/build.ninja
	@ninja -C $(RELEASE) -j $(JOBS) --quiet deepinfer libdeepinfer

$(RELEASE)/build.ninja:
	@command -v cmake >/dev/null && command -v ninja >/dev/null || \
	    { echo "make: cmake or ninja is missing; scripts/setup installs all that is needed" >&2; exit 1; }
	@cmake --preset release --log-level=WARNING >/dev/null

demo:
	@scripts/setup build
	@$(MAKE) --no-print-directory all
	@scripts/demo $(RELEASE)/deepinfer

check:
	@scripts/setup build
	@$(MAKE) --no-print-directory $(RELEASE)/build.ninja
	@ninja -C $(RELEASE) -j $(JOBS) --quiet
	@scripts/test $(RELEASE)

bench-build: $(RELEASE)/build.ninja
	@ninja -C $(RELEASE) -j $(JOBS) --quiet benches

bench: bench-build
	@$(RELEASE)/bench/bench_kernels --rounds 1 --time 30
	@$(RELEASE)/bench/bench_model --rounds 3
	@$(RELEASE)/bench/bench_engine --model tiny --rounds 1

bench-grammar: bench-build
	@python3 tests/tools/real_tokenizer.py build/real_tokenizer/tokenizer.json
	@python3 bench/compare_grammar.py build/real_tokenizer/tokenizer.json $(CASES)

measure:
	@scripts/measure

matrix: all
	@$(RELEASE)/deepinfer verify tests/data/nano --tokens $$(($(TOKENS) / 2))
	@$(RELEASE)/deepinfer verify models/tiny --tokens $$(($(TOKENS) / 2))

fuzz:
	@scripts/setup
	@scripts/fuzz $(FUZZ_SECONDS)

format:
	@scripts/format

docs: all
	@$(RELEASE)/deepinfer help configuration-markdown > docs/configuration.md
	@sed -i '/^## Routes$$/,$$d' docs/api.md && $(RELEASE)/deepinfer help api-markdown >> docs/api.md

install: $(RELEASE)/build.ninja
	@ninja -C $(RELEASE) -j $(JOBS) --quiet deepinfer libdeepinfer libdeepinfer_static describe
	@cmake --install $(RELEASE) --prefix $(PREFIX)

deb: $(RELEASE)/build.ninja
	@ninja -C $(RELEASE) -j $(JOBS) --quiet deepinfer libdeepinfer libdeepinfer_static describe
	@packaging/deb $(RELEASE) build/package

soak: $(RELEASE)/build.ninja
	@ninja -C $(RELEASE) -j $(JOBS) --quiet deepinfer
	@scripts/soak $(RELEASE) --hours $(HOURS)

acceptance: $(RELEASE)/build.ninja
	@ninja -C $(RELEASE) -j $(JOBS) --quiet
	@scripts/acceptance $(RELEASE)

clean:
	@rm -rf build

help:
	@sed -n 's/^# \(make\b.*\)/\1/p' Makefile
