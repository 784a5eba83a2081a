"""What engines say of themselves, in the wordings of several versions; texts ours, forms theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.serving.log_facts import NOT_LOGGED, combine_launches, engine_facts, fact_differences, leaves

CONFIG = (
    "model='/m/tiny', speculative_config=None, tokenizer='/m/tiny', dtype=torch.bfloat16, max_seq_len=2048, "
    "download_dir=None, load_format=dummy, tensor_parallel_size=2, quantization=None, enforce_eager=False, "
    "kv_cache_dtype=auto, seed=0, served_model_name=pb-1, enable_prefix_caching=True, "
    "enable_chunked_prefill=True, compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, "
    "'debug_dump_path': '/tmp/x', 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, "
    "'cudagraph_capture_sizes': [1, 2, 4], 'pass_config': {'fuse_act_quant': True}}, "
    "parallel_config=ParallelConfig(data_parallel_rpc_port=20178), hf_token='sesame', "
    "kernel_config=KernelConfig(ir_op_priority=IrOpPriorityConfig(rms_norm=['native']), moe_backend='auto')"
)

V1 = f"""\
INFO 11-21 12:16:28 [__init__.py:53] Automatically detected platform cuda.
(APIServer pid=9) INFO 11-21 12:16:30 [api_utils.py:273] non-default args: {{'port': 20178, \
'model': '/m/tiny', 'max_model_len': 2048, 'api_key': 'sesame', 'served_model_name': ['pb-1']}}
(APIServer pid=9) INFO 11-21 12:16:37 [vllm.py:750] Asynchronous scheduling is enabled.
\x1b[1;36m(EngineCore pid=8)\x1b[0;0m INFO 11-21 12:16:42 [core.py:121] Initializing a V1 LLM engine \
(v0.27.0) with config: {CONFIG}
(Worker_TP0 pid=7) INFO 11-21 12:16:48 [cuda.py:482] Using FLASH_ATTN attention backend out of potential \
backends: ['FLASH_ATTN', 'TRITON_ATTN'].
(Worker_TP1 pid=6) INFO 11-21 12:16:48 [cuda.py:482] Using FLASH_ATTN attention backend out of potential \
backends: ['FLASH_ATTN', 'TRITON_ATTN'].
(Worker_TP0 pid=7) INFO 11-21 12:16:48 [flash_attn.py:788] Using FlashAttention version 3
(Worker_TP0 pid=7) INFO 11-21 12:16:48 [fp8.py:419] Using TRITON Fp8 MoE backend out of potential backends: \
['TRITON', 'MARLIN'].
(Worker_TP0 pid=7) INFO 11-21 12:16:51 [gpu_worker.py:508] Available KV cache memory: 37.99 GiB
(EngineCore pid=8) INFO 11-21 12:16:51 [kv_cache_utils.py:2235] GPU KV cache size: 1,823,372 tokens
(EngineCore pid=8) INFO 11-21 12:16:51 [kv_cache_utils.py:2236] Maximum concurrency for 2,048 tokens per \
request: 890.32x
(APIServer pid=9) INFO:     Application startup complete.
(APIServer pid=9) INFO 11-21 12:17:00 [cuda.py:482] Using HOSTILE attention backend
"""

V0 = """\
INFO 08-05 23:12:11 llm_engine.py:174] Initializing an LLM engine (v0.5.4) with config: model='/m/tiny', \
dtype=torch.float16, enforce_eager=True, kv_cache_dtype=auto,  device_config=cuda, \
chunked_prefill_enabled=False
INFO 08-05 23:12:13 selector.py:151] Cannot use FlashAttention-2 backend for Volta and Turing GPUs.
INFO 08-05 23:12:13 selector.py:54] Using XFormers backend.
INFO 08-05 23:12:19 gpu_executor.py:102] # GPU blocks: 12723, # CPU blocks: 4096
"""


def test_facts_of_a_current_engine() -> None:
    facts = engine_facts(V1)
    expected = {
        "async scheduling": "enabled",
        "version": "0.27.0",
        "dtype": "bfloat16",
        "graph mode": "FULL_AND_PIECEWISE",
        "config compilation_config.mode": "VLLM_COMPILE",
        "config compilation_config.cudagraph_capture_sizes": "[1, 2, 4]",
        "config compilation_config.pass_config.fuse_act_quant": "True",
        "config enable_prefix_caching": "True",
        "config kernel_config.ir_op_priority.rms_norm": "['native']",
        "config kernel_config.moe_backend": "auto",
        "attention": "FLASH_ATTN",
        "attention version": "3",
        "cache memory": "37.99 GiB",
        "cache": "1823372 tokens",
    }
    assert {name: facts.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("said", "fact", "value"),
    [
        (
            "[gpu_model_runner.py:5150] Model loading took 14.99 GiB memory and 2.345678 seconds",
            "model memory",
            "14.99 GiB",
        ),
        (
            "[gpu_model_runner.py:1400] Model loading took 0.2461 GiB and 0.5 seconds",
            "model memory",
            "0.2461 GiB",
        ),
        ("model_runner.py:700] Loading model weights took 14.9595 GB", "model memory", "14.9595 GiB"),
        ("[default_loader.py:502] Loading weights took 3.21 seconds", "weights time", "3.21 s"),
        (
            "[gpu_model_runner.py:6582] Graph capturing finished in 10 secs, took 0.52 GiB",
            "graph memory",
            "0.52 GiB",
        ),
        (
            "[gpu_model_runner.py:6582] Graph capturing finished in 10 secs, took 0.52 GiB",
            "graph time",
            "10 s",
        ),
        ("[monitor.py:81] torch.compile took 12.30 s in total", "compile time", "12.3 s"),
        ("[monitor.py:33] torch.compile takes 41.20 s in total", "compile time", "41.2 s"),
        (
            "[core.py:396] init engine (profile, create kv cache) took 60.10 s (compilation: 44.50 s)",
            "compile time",
            "44.5 s",
        ),
        (
            "[cpu_worker.py:260] Explicitly set (1.0/18.34) GiB for KV cache on node 0.",
            "cache memory",
            "1 GiB",
        ),
    ],
)
def test_sizes_and_times_in_the_wording_of_each_era(said: str, fact: str, value: str) -> None:
    line = f"(Worker pid=7) INFO 11-21 12:16:48 {said}\n"
    assert engine_facts(line) == {**engine_facts(line), fact: value}
    assert engine_facts("Application startup complete\n" + line) == {}


def test_times_do_not_tell_engines_apart() -> None:
    a, b = ({"compile time": f"{seconds} s", "model memory": "2 GiB"} for seconds in (10, 20))
    assert combine_launches([a, a]) == {"model memory": "2 GiB"}
    assert fact_differences(combine_launches([a]), combine_launches([b])) == ()


def test_facts_of_an_old_engine() -> None:
    facts = engine_facts(V0)
    assert facts["version"] == "0.5.4"
    assert facts["dtype"] == "float16"
    assert facts["config enforce_eager"] == "True"
    assert facts["attention"] == "XFormers"
    assert facts["cache blocks"] == "12723 blocks"


@pytest.mark.parametrize(
    ("message", "fact", "value"),
    [
        ("Using Flash Attention backend on V1 engine.", "attention", "Flash Attention"),
        ("Using Torch SDPA backend.", "attention", "Torch SDPA"),
        ("Using AttentionBackendEnum.TRITON_ATTN backend.", "attention", "TRITON_ATTN"),
        ("Using ROCM_ATTN backend out of potential backends: ['ROCM_ATTN'].", "attention", "ROCM_ATTN"),
        ("Using HND KV cache layout for CPU_ATTN backend.", "attention", "CPU_ATTN"),
        ("Using TRITON Fp8 MoE backend out of potential backends: [].", "attention", None),
        ("Using FLASH_ATTN MLA prefill backend.", "attention", None),
        ("Asynchronous scheduling is disabled.", "async scheduling", "disabled"),
        (
            "CPU KV cache size: 32,768 tokens, Maximum concurrency for 512 tokens per request: 64.00x",
            "cache",
            "32768 tokens",
        ),
        (
            "CUDAGraphMode.FULL is not supported; setting cudagraph_mode=PIECEWISE",
            "graph mode changed",
            "cudagraph_mode=PIECEWISE",
        ),
        ("vLLM is using nccl==2.28.9", "collectives", "nccl==2.28.9"),
    ],
)
def test_each_wording_has_its_fact(message: str, fact: str, value: str | None) -> None:
    facts = engine_facts(f"(EngineCore pid=12) WARNING 01-02 03:04:05 [a/b.py:1] {message}\n")
    assert facts == ({} if value is None else {fact: value})


@pytest.mark.parametrize("fact", ["attention", "cache"])
def test_only_whole_messages_of_the_start_count(fact: str) -> None:
    prompt = "Using EVIL attention backend, KV cache size: 1 tokens"
    quoted = f"INFO 01-02 03:04:05 [x.py:1] Received request: {prompt!r}"
    assert fact not in engine_facts(quoted)
    assert "HOSTILE" not in str(engine_facts(V1))


def test_secrets_names_ports_and_paths_are_no_facts() -> None:
    shown = str(engine_facts(V1))
    for word in ("sesame", "20178", "pb-1", "/tmp/x", "/m/tiny"):
        assert word not in shown


def test_a_difference_is_what_two_starts_do_not_have_by_chance() -> None:
    other = (
        V1.replace("FLASH_ATTN attention", "TRITON_ATTN attention")
        .replace("1,823,372 tokens", "1,823,372 tokens".replace("1,8", "1,9"))
        .replace("37.99 GiB", "38.00 GiB")
        .replace("'fuse_act_quant': True", "'fuse_act_quant': False")
        .replace("Asynchronous scheduling is enabled.", "A line that is no fact.")
        .replace("(v0.27.0)", "(v0.27.1.dev3+gabcdef)")
        .replace("'port': 20178", "'port': 20999")
        .replace("pid=7", "pid=77")
    )
    assert fact_differences(engine_facts(V1), engine_facts(other)) == (
        ("async scheduling", "enabled", NOT_LOGGED),
        ("attention", "FLASH_ATTN", "TRITON_ATTN"),
        ("cache", "1823372 tokens", "1923372 tokens"),
        ("config compilation_config.pass_config.fuse_act_quant", "True", "False"),
    )


def test_launches_of_one_change_are_told_together() -> None:
    one = {"attention": "A", "cache": "100 tokens"}
    two = {"attention": "B", "cache": "300 tokens"}
    three = {"attention": "B", "cache": "200 tokens"}
    assert combine_launches([one, two, three]) == {"attention": "A or B", "cache": "200 tokens"}
    assert combine_launches([one]) == one
    assert combine_launches([one, {}])["attention"] == f"A or {NOT_LOGGED}"
    assert combine_launches([]) == {}


TREE = "/home/a/cache/environments/{}/tree"
PASSING = {
    "a tree": f"<_io.TextIOWrapper name='{TREE}/vllm_omni/deploy/tts.yaml' mode='r'>",
    "two trees": f"PYTHONPATH={TREE}:{TREE}/more",
    "an attempt": "/home/a/state/jobs/20260102-030405-ab12/attempts/0{}/compile",
    "a port": "tcp://10.0.0.7:4{}",
    "an own port": "127.0.0.1:4{}",
    "a process": "worker of pid 4{}",
    "an address": "<object at 0x7f0000{}>",
    "a moment": "2026-01-02 03:04:{},123",
    "a temporary folder": "/tmp/tmpabc_d{}x/socket",
    "a model's name": "pb-0123456789{}",
}


@pytest.mark.parametrize("name", PASSING)
def test_what_is_of_one_environment_attempt_or_moment_is_no_difference(name: str) -> None:
    """Else every bisection would show where each commit's tree lies, and nothing that explains it."""
    digits = ("10203040", "20203041", "30203042") if "tree" in name else ("10", "20", "30")
    first, second, third = ({"config x": PASSING[name].replace("{}", part)} for part in digits)
    left, right = combine_launches([first, second]), combine_launches([third])
    assert fact_differences(left, right) == ()
    assert " or " not in left["config x"]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (f"'{TREE}/deploy/tts.yaml'", f"'{TREE}/deploy/tts_high_concurrency.yaml'"),
        ("/tmp/one.yaml", "/tmp/other.yaml"),
        ("2026-01-02", "2026-01-03"),
        ("10.0.0.7", "10.0.0.8"),
        ("[1, 2, 4]", "[1, 2, 8]"),
    ],
)
def test_what_remains_of_a_path_or_a_number_is_one(left: str, right: str) -> None:
    sides = [combine_launches([{"config x": side.replace("{}", "10203040")}]) for side in (left, right)]
    (found,) = fact_differences(*sides)
    assert found[0] == "config x"
    assert found[1] != found[2]


@given(st.text(st.characters(codec=None), max_size=300))
def test_any_text_is_read_without_harm(text: str) -> None:
    assert isinstance(engine_facts(text), dict)
    assert isinstance(engine_facts(f"Initializing a V1 LLM engine (v1) with config: {text}"), dict)
    assert all(isinstance(value, str) for _, value in leaves(text))


def test_commas_in_brackets_and_quotes_divide_nothing() -> None:
    text = "a=1, b='x, y', c=[1, 2], d=C(e={'f': <G.H: (2, 1)>}, g=None), h={}"
    assert list(leaves(text)) == [
        ("a", "1"),
        ("b", "x, y"),
        ("c", "[1, 2]"),
        ("d.e.f", "H"),
        ("d.g", "None"),
        ("h", "{}"),
    ]


def staged(talker: str, decoder: str, marks: tuple[str, str]) -> str:
    """The log of a server of two stages; ``marks``: what stands before the messages of each."""
    return "".join(
        f"{mark}INFO 11-21 12:16:42 [core.py:121] {message}\n"
        for mark, config in zip(marks, (talker, decoder), strict=True)
        for message in (
            f"Initializing a V1 LLM engine (v0.27.0) with config: {config}",
            "GPU KV cache size: 4,096 tokens" if config is talker else "GPU KV cache size: 65,536 tokens",
        )
    )


ERAS = {
    "named": (
        "\x1b[0;36m(StageEngineCoreProc_stage0_replica0 pid=11)\x1b[0;0m ",
        "(StageEngineCoreProc_stage1_replica0_DP0 pid=12) ",
    ),
    "marked": ("(EngineCore_DP0 pid=11) [Stage-0] ", "[Stage-1] "),
}


@pytest.mark.parametrize("era", ERAS)
def test_a_change_of_the_first_stage_is_seen_beside_the_last(era: str) -> None:
    talker = "max_seq_len=4096, dtype=bfloat16, async_scheduling=True"
    decoder = "max_seq_len=65536, dtype=float32, async_scheduling=False"
    facts = engine_facts(staged(talker, decoder, ERAS[era]))
    assert facts["version"] == "0.27.0"
    assert (facts["stage 0 dtype"], facts["stage 1 dtype"]) == ("bfloat16", "float32")
    assert (facts["stage 0 cache"], facts["stage 1 cache"]) == ("4096 tokens", "65536 tokens")
    assert not [name for name in facts if name != "version" and not name.startswith("stage ")]
    other = engine_facts(staged(talker.replace("True", "False"), decoder, ERAS[era]))
    assert fact_differences(facts, other) == (("stage 0 config async_scheduling", "True", "False"),)


TWO_STAGES = (Path(__file__).parent / "omni_two_stages.log").read_text()
"""Of vLLM-Omni 0.30.0 on a CPU, a Qwen3-TTS: the lines of its stages and workers while it started."""

PARENTS = {110: 100, 111: 110, 120: 100, 121: 120}
"""Process -> its parent: the API server, an engine core and a worker of each stage."""


def test_a_real_server_has_the_facts_of_each_stage() -> None:
    facts = engine_facts(TWO_STAGES, PARENTS)
    assert {name for name in facts if not name.startswith(("stage 0 ", "stage 1 "))} == {"version"}
    assert facts["version"] == "0.30.0"
    talker, decoder = (
        {name.removeprefix(stage): value for name, value in facts.items() if name.startswith(stage)}
        for stage in ("stage 0 ", "stage 1 ")
    )
    assert {
        name: (value, decoder.get(name)) for name, value in talker.items() if decoder.get(name) != value
    } == {
        "scheduler": ("OmniARScheduler", "OmniGenerationScheduler"),
        "cache": ("131072 tokens", None),
        "cache memory": ("0.25 GiB", None),
        "config max_seq_len": ("4096", "65536"),
        "config compilation_config.compile_ranges_endpoints": ("[512]", "[65536]"),
    }


def test_a_change_of_one_stage_is_told_as_that_stages() -> None:
    other = TWO_STAGES.replace("OmniARScheduler", "OmniARAsyncScheduler").replace("131,072", "65,536")
    assert fact_differences(engine_facts(TWO_STAGES, PARENTS), engine_facts(other, PARENTS)) == (
        ("stage 0 cache", "131072 tokens", "65536 tokens"),
        ("stage 0 scheduler", "OmniARScheduler", "OmniARAsyncScheduler"),
    )


def test_what_a_worker_says_is_of_the_stage_that_started_it() -> None:
    worker = "\x1b[0;36m(Worker pid={})\x1b[0;0m INFO 11-27 19:41:53 [cpu.py:1] Using {} backend.\n"
    started = TWO_STAGES.index("(APIServer pid=100)\x1b[0;0m INFO:     Application startup")
    said = worker.format(111, "CPU_ATTN") + worker.format(121, "TORCH_SDPA") + worker.format(7, "TRITON_ATTN")
    log = TWO_STAGES[:started] + said
    known = engine_facts(log, PARENTS)
    assert (known["stage 0 attention"], known["stage 1 attention"]) == ("CPU_ATTN", "TORCH_SDPA")
    assert known["attention"] == "TRITON_ATTN", "its parent is not known"
    assert engine_facts(log)["attention"] == "CPU_ATTN, TORCH_SDPA, TRITON_ATTN"


def test_what_a_worker_says_without_its_stage_is_the_servers() -> None:
    worker = "(Worker pid=8) INFO 11-21 12:16:48 [cuda.py:482] Using {} attention backend out of potential\n"
    facts = engine_facts(worker.format("FLASH_ATTN") + worker.format("TRITON_ATTN"))
    assert facts == {"attention": "FLASH_ATTN, TRITON_ATTN"}


def test_a_prompt_names_no_stage() -> None:
    quoted = "(StageEngineCoreProc_stage7_replica0) Using FLASH_ATTN attention backend"
    line = f"INFO 11-21 12:16:42 [x.py:1] {quoted}"
    assert engine_facts(line) == {}
