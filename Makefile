# A thin front to CMake.  On a fresh Debian or Ubuntu machine two commands do everything: make demo, make test.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)

.PHONY: all cuda setup setup-check demo test test-asan test-mpi-asan test-tsan test-cuda test-cuda-memory check-cuda test-browser test-page-speed test-api test-api-asan test-clients test-streams test-soak test-soak-asan test-soak-tsan test-crash test-faults test-ranks fuzz fuzz-images fuzz-images-asan fuzz-sounds-asan check tidy format install clean

all: build/build.ninja
	@cmake --build build -j $(JOBS) --target fovea_program

# The same with the backend for NVIDIA GPUs, where nvcc is found: minutes.
cuda: build/build.ninja
	@cmake --build build -j $(JOBS) --target fovea_program cuda

setup:
	@tools/setup.sh build

setup-check:
	@tools/setup.sh build check

demo: setup all
	@build/fovea demo

# One test more at a time than there are cores: many wait for a disk or for each other's ranks.
test: setup build/build.ninja
	@cmake --build build -j $(JOBS)
	@ctest --preset release -j $$(($(JOBS) + 1))

# The unit tests again under the address and undefined-behaviour sanitizers, and the threaded ones under the thread sanitizer.
test-asan test-tsan: setup
test-asan: build-dev/build.ninja
	@cmake --build build-dev -j $(JOBS)
	@ctest --preset dev -j $(JOBS)

# Ranks that are processes, by mpirun, under the address sanitizer; what MPI's own libraries leave behind does not count.
test-mpi-asan: build-dev/build.ninja
	@cmake --build build-dev -j $(JOBS) --target fovea_program test_mpi_ranks test_cli_ranks test_tensor_parallel test_tensor_training test_stages test_serve_ranks
	@LSAN_OPTIONS=suppressions=$(CURDIR)/tests/faults/mpi_leaks.txt:print_suppressions=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_WAIT_POLICY=passive \
	  ctest --test-dir build-dev -R "^test_(mpi_ranks|cli_ranks|tensor_parallel|tensor_training|stages|serve_ranks)$$" --output-on-failure

test-tsan: build-tsan/build.ninja
	@cmake --build build-tsan -j $(JOBS) --target thread_tests
	@ctest --preset tsan -j $(JOBS)

# The tests that also run on a device, on a GPU; without one each of them is reported as skipped.
test-cuda: build/build.ninja
	@cmake --build build -j $(JOBS) --target all cuda
	@ctest --test-dir build -L cuda --output-on-failure

# The same under compute-sanitizer, which finds bad accesses and races: minutes.
test-cuda-memory: build/build.ninja
	@cmake --build build -j $(JOBS) --target all cuda
	@tools/check_cuda_memory.sh -b build

# The page of `fovea see` in headless Chromium: what a user does there, and how long a click and a move of the pointer take
# at 512 tokens and 144 heads.
test-browser: build/build.ninja
	@cmake --build build -j $(JOBS) --target browser_page
	@build/tests/browser_page build/page-60.html 60 12 12 causal
	@python3 tests/browser/check.py build/page-60.html
	@build/tests/browser_page build/page-512.html 512 12 12
	@python3 tests/browser/measure.py build/page-512.html
	@cmake --build build -j $(JOBS) --target fovea_program && python3 tests/browser/serve.py build/fovea
	@python3 tests/browser/views.py build/fovea
	@rm -f build/page-60.html build/page-512.html

# The first paint of a page of 512 tokens and 144 heads, and frames a second of one of 2,000 tokens, by Chromium's trace.
PAGE_ROUNDS ?= 3
test-page-speed: build/build.ninja
	@cmake --build build -j $(JOBS) --target browser_page fovea_program
	@build/tests/browser_page build/page-512.html 512 12 12
	@build/tests/browser_page build/page-2000.html 2000 4 4 causal
	@python3 tests/browser/trace.py build/fovea $(PAGE_ROUNDS) build/page-512.html build/page-2000.html; code=$$?; rm -f build/page-512.html build/page-2000.html; exit $$code

# schemathesis (PyPI; or SCHEMATHESIS=PATH) against /openapi.json of a server with a model for every kind of request: minutes.
API_CASES ?= 10000
test-api: build/build.ninja
	@cmake --build build -j $(JOBS) --target fovea_program
	@python3 tests/server/api.py build/fovea $(API_CASES)

# OpenAI's Python package and Prometheus' parser (PyPI: openai, prometheus_client; PYTHON=PATH) against the server: seconds.
PYTHON ?= python3
test-clients: build/build.ninja
	@cmake --build build -j $(JOBS) --target fovea_program
	@$(PYTHON) tools/check_openai.py build/fovea
	@$(PYTHON) tests/server/metrics.py build/fovea

# Streams that wait beside clients and the memory of each, rows of clients that are killed, SIGTERM under load: a minute.
test-streams: build/build.ninja
	@cmake --build build -j $(JOBS) --target fovea_program
	@python3 tests/server/streams.py --fovea build/fovea

# A server under load for MINUTES: hostile requests, clients that go, models read again every minute.  Answers are compared
# with those of an idle server, and its memory is watched.
MINUTES ?= 60
test-soak: build/build.ninja
	@cmake --build build -j $(JOBS) --target fovea_program
	@python3 tests/server/soak.py build/fovea $(MINUTES)

# The same with the server under the address and undefined-behaviour sanitizers, or the thread sanitizer; and schemathesis.
test-soak-asan: build-dev/build.ninja
	@cmake --build build-dev -j $(JOBS) --target fovea_program
	@SANITIZED=1 python3 tests/server/soak.py build-dev/fovea $(MINUTES)
test-soak-tsan: build-tsan/build.ninja
	@cmake --build build-tsan -j $(JOBS) --target fovea_program
	@SANITIZED=1 python3 tests/server/soak.py build-tsan/fovea $(MINUTES)
test-api-asan: build-dev/build.ninja
	@cmake --build build-dev -j $(JOBS) --target fovea_program
	@python3 tests/server/api.py build-dev/fovea $(API_CASES)

# The backend for one architecture, to see that it compiles and links: no GPU is needed, and without nvcc nothing is done.
# With little optimisation, as the Hopper kernels alone would take minutes each: by -Ofc (fast compile) where nvcc has it, which takes
# two thirds of the time of -O1.
quick_cuda_flags = $(if $(shell nvcc --help 2> /dev/null | grep -e '(-Ofc)'),-Ofc max,-Xcicc -O1 -Xptxas -O1)
check-cuda: setup-check
	@cmake -S . -B build-cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES=90-real \
		-DCMAKE_CUDA_FLAGS_RELEASE="$(quick_cuda_flags)" > /dev/null
	@cmake --build build-cuda -j $(JOBS) --target cuda

# Spoiled files, each opened as a command would: a sentence, or it works; see tests/fuzz/files.c.
CASES ?= 100000
fuzz: build/build.ninja
	@cmake --build build -j $(JOBS) --target fuzz_files
	@build/tests/fuzz_files $(CASES)
fuzz-images: build/build.ninja
	@cmake --build build -j $(JOBS) --target fuzz_files
	@build/tests/fuzz_files --images $(CASES)
fuzz-images-asan: build/build.ninja
	@cmake --build build -j $(JOBS) --target fuzz_files_asan
	@ASAN_OPTIONS=detect_leaks=1 build/tests/fuzz_files_asan --images $(CASES)
fuzz-sounds-asan: build/build.ninja
	@cmake --build build -j $(JOBS) --target fuzz_sounds_asan
	@ASAN_OPTIONS=detect_leaks=0 build/tests/fuzz_sounds_asan $(CASES) 2>build/fuzz-sounds.err || { tail -40 build/fuzz-sounds.err; false; }

# Kills at random system calls of four trainings, each resumed to the same bits; and every allocation and system call of
# each command failing in turn (STRIDE=1: every one, which takes an hour).  See tests/faults/campaign.py.
KILLS ?= 1000
STRIDE ?= 1
test-crash test-faults: build/build.ninja
	@cmake --build build -j $(JOBS) --target fovea_program fault_calls
	@python3 tests/faults/campaign.py build $(if $(filter test-crash,$@),crash $(KILLS),faults $(STRIDE))

# Ranks that are killed or stopped at random times of a training by mpirun: all end, name the rank, and go on to the same bits.
FAULTS ?= 200
test-ranks: build/build.ninja
	@cmake --build build -j $(JOBS) --target fovea_program
	@python3 tests/faults/ranks.py build $(FAULTS)

# Coverage-guided fuzzing with libFuzzer of one parser: make fuzz-json RUNS=10000000; also array, audio, config, image,
# multipart, recipe, regex, safetensors, template, tok.  What was found new stays in build-fuzz/corpus.
RUNS ?= 1000000
seeds_image = tests/fuzz/corpus/image tests/golden/images
seeds_audio = tests/fuzz/corpus/audio tests/golden/audio
# libsndfile leaks where Ogg headers are broken; our own memory is counted by the target
flags_audio = -detect_leaks=0
fuzz-%: build-fuzz/build.ninja
	@cmake --build build-fuzz -j $(JOBS) --target fuzz_$*
	@mkdir -p build-fuzz/corpus/$*
	@build-fuzz/tests/fuzz_$* -runs=$(RUNS) -max_len=4096 -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
	  $(if $(wildcard tests/fuzz/$*.dict),-dict=tests/fuzz/$*.dict) $(flags_$*) -artifact_prefix=build-fuzz/ build-fuzz/corpus/$* $(or $(seeds_$*),tests/fuzz/corpus/$*)

check: setup-check
	@tools/check.sh

# clang-tidy over every source file: minutes.
tidy: setup-check all
	@tools/check_tidy.sh

format:
	@tools/check_format.sh --fix

# Program, libraries, headers, manual pages; the CUDA backend too, if `make cuda` has built it.
install: build/build.ninja
	@cmake --build build -j $(JOBS) --target fovea_program fovea_shared fovea_static fovea_share
	@cmake --install build --prefix "$(PREFIX)"

clean:
	rm -rf fovea-demo build-fuzz build build-dev build-tsan build-cuda

# A build directory that was copied or moved along with its tree would compile the sources of the old one: it is made anew.
here := $(CURDIR)
stale = grep -qs '^CMAKE_HOME_DIRECTORY' $(1)/CMakeCache.txt && ! grep -qsxF 'CMAKE_HOME_DIRECTORY:INTERNAL=$(here)' $(1)/CMakeCache.txt
ifneq (,$(shell for d in build build-dev build-tsan; do { $(call stale,$$d); } && rm -rf $$d && echo $$d; done))
$(info build directories of another tree were removed)
endif
build/build.ninja:
	@cmake --preset release
build-dev/build.ninja:
	@cmake --preset dev
build-tsan/build.ninja:
	@cmake --preset tsan
build-fuzz/build.ninja:
	@CC=clang cmake -S . -B build-fuzz -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -g" -DFOVEA_CUDA=OFF -DFOVEA_FUZZERS=ON
