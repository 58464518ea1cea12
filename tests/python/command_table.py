# SPDX-License-Identifier: Apache-2.0
"""What is done with each command of the documents: run by test_docs_commands.py, run by another test, or not run.

A pattern is for whole commands. Each command has exactly one row, and each row at least one command.
"""

import enum
from dataclasses import dataclass

PTX_TEST = "tests/ptx/CMakeLists.txt"
GPU_TESTS = "tests/gpu/CMakeLists.txt"
STAGES = "tools/test_stages.py"
PACKAGE_TEST = "tests/package/check_package.cmake"


@dataclass(frozen=True)
class Here:
    """A command that test_docs_commands.py runs in a folder of its own, as `SUBSTITUTIONS` change it.

    Attributes
    ----------
    pattern
        Of the command as the document has it.
    status
        With what it has to end.
    says
        What it has to print, a pattern.
    in_tree
        Whether it has to run in the repository, and only reads.

    """

    pattern: str
    status: int = 0
    says: str = ""
    in_tree: bool = False


@dataclass(frozen=True)
class Elsewhere:
    """A command that another test runs, or a stage of `make test`.

    Attributes
    ----------
    pattern
        Of the command.
    by
        The files that run it. Together they have every script and every option of the command; of a command of make,
        every script of its recipe.
    has
        What they have instead, if they run it in other words.

    """

    pattern: str
    by: tuple[str, ...]
    has: tuple[str, ...] = ()


class Reason(enum.Enum):
    """Why a command is not run."""

    NEEDS_GPU = "needs a GPU, and files that only a machine with one has"
    CHANGES_MACHINE = "installs packages, or changes the checkout that it runs in"
    TOO_LONG = "takes longer than a test may: whole test suites, soaks, measurements, packages for three Pythons"


@dataclass(frozen=True)
class NotRun:
    """A command that nothing runs without being told to. Its words are checked as far as they can be."""

    pattern: str
    reason: Reason


HERE = (
    Here(r"kvferry top", says="loads/s"),
    Here(r"kvferry why.*", says=r"cmpl-7f3a-0: arrived [\d:.]+, finished [\d:.]+\n(?s:.*)load of \d+ tokens: loaded\n"),
    Here(r"kvferry dump --books|kvferry dump.* --perfetto .*", says=r"\{|\.json"),
    Here(r"kvferry dump", says=r"\.kvferry-recording"),
    Here(r"kvferry replay.*", says=r"\d+ calls, [\d,]+ events: the same"),
    Here(r"kvferry tier ls", says=r"(?s)kvferry-docs.*1 rank.*engine \d+: "),
    Here(r"kvferry tier inspect.*", says="readable"),
    Here(r"kvferry tier rm.*"),
    Here(r"kvferry tier resize.*", says=r"the tier has 48\.00 MiB"),
    Here(r"kvferry tier", says="resize"),
    Here(r"kvferry doctor", says="Host memory"),
    Here(r"kvferry doctor --config.*", says=r"\AOK "),
    Here(r"kvferry doctor --model.*", says=r"(?m)^OK what the KV cache costs"),
    Here(r"kvferry size.*", says=r"(?m)^tokens: [\d,]+ of prompts"),
    Here(r"kvferry vllm-config.*", says=r'"?kv_connector"?: "KvFerryConnector"'),
    Here(r"kvferry plot results\.json", says=r"results\.svg"),
    Here(r"kvferry --version", says=r"\A\d+\.\d+\.\d+"),
    Here(r"kvferry-bench expect .*"),
    Here(r"kvferry-bench copy --model list", says="llama-3.1-8b"),
    Here(r"kvferry-bench (?:link|copy|pipeline)(?! --model list).*", says="every byte was verified|every damaged byte"),
    Here(r"kvferry-lab .*"),
    Here(r"vllm serve MODEL .*"),
    Here(r"TIER='.*' examples/serve\.sh --port \d+"),
    Here(r"VLLM_NIXL_SIDE_CHANNEL_PORT=\d+ examples/prefill_decode/engine\.sh (?:prefill|decode) --port \d+"),
    Here(r"LOOKUP_PORT=\d examples/distributed_store/engine\.sh --port \d+"),
    Here(r"lmcache server .*"),
    Here(r"CAPACITY=256MiB (?:SHARED_PATH=\S+ )?examples/lmcache_server\.sh.*"),
    Here(r"curl http://localhost:8000/v1/completions .*"),
    Here(r"export .*"),
    Here(r"git ls-files '.*'", says=r"cpu_tier/slots/\S+", in_tree=True),
    Here(r"make help", says="make test "),
    Here(r"make clean", says="rm -rf build dist"),
    # It serves until it is stopped.
    Here(r"python3 -m http\.server --directory build/site", status=124),
    Here(r"python3 tests/model/protocol/check_models\.py --trail \S+", says=r"violated: \w+", in_tree=True),
    Here(r"spin -a .*", says="spin: trail ends after"),
    Here(r"\.venv/bin/python bench/lab/meta\.py --quick", says="ratio: stock / kvferry"),
    Here(r"ulimit -l", says=r"\d+|unlimited"),
)

ELSEWHERE = (
    Elsewhere(
        r'make test(?: STAGES=(?:"[\w -]+"|\w+))?', (".ci/run", "tools/run_tests.sh"), ("make test", "run_tests.py")
    ),
    Elsewhere(r"make (?:setup|build)", (STAGES, "tools/run_tests.sh")),
    Elsewhere(r"make (?:lint|docs)", (STAGES, "tools/run_tests.sh", "tools/setup_docs.sh", "tools/compiler_cache.sh")),
    Elsewhere(r"make stubs", ("tools/lint.py", STAGES, "tools/run_tests.sh"), ("stubs.compare()", "tools/lint.py")),
    Elsewhere(r"make keys", ("tests/python/test_keys.py", STAGES, "tools/run_tests.sh")),
    Elsewhere(
        r'(?:KVFERRY_PIP_ARGS=".*" )?make demo|(?:\.venv/bin/)?python examples/demo\.py(?: \[.*)?',
        ("tests/e2e/test_examples.py", STAGES, "tools/run_tests.sh"),
        ("examples/demo.py", "tests/e2e", "setup_venv.sh"),
    ),
    Elsewhere(
        r"(?:PYTHONPATH=\w+ |\.venv/bin/)?pytest tests/python(?: -k NAME)?|pytest --timeout=0",
        (STAGES,),
        ('VENV / "pytest"', '"tests/python"', "PYTHONPATH=site", '"-k"'),
    ),
    Elsewhere(r"mkdir out && python3 tests/gpu/engine/engines\.py --out out", ("tests/e2e/test_gpu_engines.py",)),
    Elsewhere(
        r"pip install \.",
        ("tools/build_wheel.sh", STAGES),
        ("-m pip", " wheel ", "build/linked-wheel .", "build_wheel.sh"),
    ),
    Elsewhere(
        r"pip install kvferry(?:-[\w.-]+\.whl)?",
        ("tests/package/try_wheel.sh", "tools/test_wheels.sh"),
        (" install --no-index", "try_wheel.sh"),
    ),
    Elsewhere(r"apt-get install (?!prometheus ).*", ("tools/setup_system.sh",)),
    Elsewhere(r"tools/setup_system\.sh (?:bench|test)", ("tools/run_tests.sh",)),
    Elsewhere(r"tools/setup_vllm_site\.sh 0\.30", (STAGES,), ("setup_vllm_site.sh", '"0.30"')),
    Elsewhere(
        r"tools/setup_fleet\.sh|pytest -s tests/dynamo/test_two_nodes\.py",
        ("Makefile",),
        ("tools/setup_fleet.sh", "pytest tests/dynamo"),
    ),
    Elsewhere(r"(?:DYN_SYSTEM_PORT=\d+ )?python -m dynamo\.(?:frontend|vllm) .*", ("tests/dynamo/cluster.py",)),
    Elsewhere(r"mooncake_master --rpc_port 50051", ("tests/fleet/nodes.py",)),
    Elsewhere(
        r"python examples/prefill_decode/proxy\.py .*",
        ("tests/fleet/pair.py",),
        ("prefill_decode/proxy.py", "prefill", 'f"--{role}"'),
    ),
    Elsewhere(r'redis-server --port 6379 --save ""', ("tests/fleet/lmcache_node.py",)),
    # `make test` and `make soak` build with the same presets; the tests install and build the example.
    Elsewhere(
        r"cmake --install build/host-release .*|cmake (?:-S examples/cpp|--build EXAMPLE) .*",
        (PACKAGE_TEST,),
        (
            "--install ${BUILD} --component development --prefix",
            "examples/cpp",
            "-DCMAKE_PREFIX_PATH=",
            "--build",
            "/offload",
        ),
    ),
    Elsewhere(
        r"cmake --(?:preset|build --preset) host-release.*",
        ("tools/soak.sh",),
        ("--preset host-release", "-DKVFERRY_BUILD_BENCH="),
    ),
    Elsewhere(
        r"cmake --preset host-debug && .*|ctest --preset host-debug -R SlotTable",
        (STAGES, "tests/unit/cpu_tier/slots/slot_table_test.cpp"),
        ('cpp("host-debug")', '"ctest", "--preset"', "SlotTable"),
    ),
    Elsewhere(
        r"cmake .* --preset host-debug --target ptx_test|(?:KVFERRY_SEED=17 )?build/host-debug/tests/ptx/ptx_test .*",
        (PTX_TEST, "tests/ptx/kernels_test.cpp", "tests/ptx/seeds.cpp"),
        ("kvferry_add_test(ptx_test", "Kernels", "KVFERRY_SEED"),
    ),
    Elsewhere(
        r"(?:KVFERRY_SEED=… )?build/host-debug/tests/model/engine_pair_test",
        ("tests/model/CMakeLists.txt", "tests/model/seeded_runs.cpp"),
        ("kvferry_add_test(engine_pair_test", "KVFERRY_SEED"),
    ),
    Elsewhere(
        r"KVFERRY_TEST_BACKEND=cuda (?:engine_pair|transfer)_test.*",
        ("tests/model/CMakeLists.txt", "tests/unit/transfer/CMakeLists.txt"),
        ("COMMAND engine_pair_test", "COMMAND transfer_test", "KVFERRY_TEST_BACKEND=${backend}"),
    ),
    Elsewhere(r"gpu_test --gtest_output=xml", ("tests/unit/gpu/CMakeLists.txt",), ("kvferry_add_test(gpu_test",)),
    Elsewhere(r"\S*/kvferry-integrity --backend cuda .*", (GPU_TESTS,)),
    Elsewhere(r"\S*/kvferry-gpu-smoke --backend cuda .*", (GPU_TESTS, "tests/gpu/smoke/check.cmake")),
    Elsewhere(r"tools/fuzz\.py .*", (STAGES, "tools/fuzz.py")),
    Elsewhere(
        r"build/host-asan/tests/fuzz/tier_fuzzer .*",
        ("tools/fuzz.py",),
        ("tests/fuzz/{name}_fuzzer", '"tier"', "replay it: "),
    ),
    Elsewhere(r"python3 tests/model/protocol/check_models\.py load .*", (STAGES,)),
    Elsewhere(
        r"python3 tools/gpu_check\.py --out \$OUT .*", ("tests/gpu/gpu_check_case.py", "tests/gpu/gpu_check_test.py")
    ),
)

NOT_RUN = (
    NotRun(r"make gpu-check.*|python3 tools/gpu_check\.py --carry .*", Reason.NEEDS_GPU),
    NotRun(
        r"python3 tests/gpu/engine/carry_vllm\.py build/carried-engine|\. tests/gpu/engine/prepare\.sh .*",
        Reason.NEEDS_GPU,
    ),
    NotRun(r"make format", Reason.CHANGES_MACHINE),
    NotRun(r"apt-get install prometheus chromium pngquant", Reason.CHANGES_MACHINE),
    NotRun(r"examples/grafana/render/render\.sh .*", Reason.TOO_LONG),
    NotRun(r"pip install '\.\[plot\]'|pip install pre-commit && pre-commit install", Reason.CHANGES_MACHINE),
    NotRun(r"make (?:check|soak|soak-shared|test-kvcached|test-dynamo|test-fleet)", Reason.TOO_LONG),
    NotRun(r"make bench(?:-\w+)?(?: BENCH_ARGS=.*)?|KVFERRY_BENCH_DEVICE=cuda .* make bench", Reason.TOO_LONG),
    NotRun(r'(?:KVFERRY_PYTHONS=".*" )?make wheels|make test-wheels', Reason.TOO_LONG),
    NotRun(r"\.venv/bin/python bench/lab/meta\.py --rounds .*|python bench/lab/object_tags\.py .*", Reason.TOO_LONG),
)
