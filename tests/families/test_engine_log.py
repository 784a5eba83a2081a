"""What engines say of themselves, in the wordings of several versions; texts ours, forms theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.families.engine_log import NOT_SAID, agreed, differences, engine_facts
from perfbisect.families.printed import leaves

CONFIG = (
    "model='/m/tiny', speculative_config=None, tokenizer='/m/tiny', dtype=torch.bfloat16, max_seq_len=2048, "
    "download_dir=None, load_format=dummy, tensor_parallel_size=2, quantization=None, enforce_eager=False, "
    "kv_cache_dtype=auto, seed=0, served_model_name=pb-1, enable_prefix_caching=True, "
    "enable_chunked_prefill=True, compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, "
    "'debug_dump_path': '/tmp/x', 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, "
    "'cudagraph_capture_sizes': [1, 2, 4], 'pass_config': {'fuse_act_quant': True}}, "
    "kernel_config=KernelConfig(ir_op_priority=IrOpPriorityConfig(rms_norm=['native']), moe_backend='auto')"
)

V1 = f"""\
INFO 11-21 12:16:28 [__init__.py:53] Automatically detected platform cuda.
(APIServer pid=9) INFO 11-21 12:16:30 [api_utils.py:273] non-default args: {{'port': 20178, \
'model': '/m/tiny', 'max_model_len': 2048, 'api_key': 'sesame', 'served_model_name': ['pb-1']}}
(APIServer pid=9) INFO 11-21 12:16:37 [model.py:645] Resolved architecture: LlamaForCausalLM
(APIServer pid=9) INFO 11-21 12:16:37 [scheduler.py:231] Chunked prefill is enabled with \
max_num_batched_tokens=8192.
(APIServer pid=9) INFO 11-21 12:16:37 [vllm.py:750] Asynchronous scheduling is enabled.
\x1b[1;36m(EngineCore pid=8)\x1b[0;0m INFO 11-21 12:16:42 [core.py:121] Initializing a V1 LLM engine \
(v0.27.0) with config: {CONFIG}
(Worker_TP0 pid=7) INFO 11-21 12:16:48 [topk_topp_sampler.py:55] Using FlashInfer for top-p & top-k sampling.
(Worker_TP0 pid=7) INFO 11-21 12:16:48 [cuda.py:482] Using FLASH_ATTN attention backend out of potential \
backends: ['FLASH_ATTN', 'TRITON_ATTN'].
(Worker_TP1 pid=6) INFO 11-21 12:16:48 [cuda.py:482] Using FLASH_ATTN attention backend out of potential \
backends: ['FLASH_ATTN', 'TRITON_ATTN'].
(Worker_TP0 pid=7) INFO 11-21 12:16:48 [flash_attn.py:788] Using FlashAttention version 3
(Worker_TP0 pid=7) INFO 11-21 12:16:48 [__init__.py:847] Selected CutlassFP8ScaledMMLinearKernel for Fp8Linear
(Worker_TP0 pid=7) INFO 11-21 12:16:48 [fp8.py:419] Using TRITON Fp8 MoE backend out of potential backends: \
['TRITON', 'MARLIN'].
(Worker_TP0 pid=7) INFO 11-21 12:16:50 [default_loader.py:384] Loading weights took 3.25 seconds
(Worker_TP1 pid=6) INFO 11-21 12:16:50 [default_loader.py:384] Loading weights took 4.50 seconds
(Worker_TP0 pid=7) INFO 11-21 12:16:50 [gpu_model_runner.py:5150] Model loading took 15.27 GiB memory and \
5.125 seconds
(Worker_TP0 pid=7) INFO 11-21 12:16:50 [backends.py:927] Dynamo bytecode transform time: 7.50 s
(Worker_TP0 pid=7) INFO 11-21 12:16:51 [monitor.py:62] torch.compile took 21.75 s in total
(Worker_TP0 pid=7) INFO 11-21 12:16:51 [gpu_worker.py:508] Available KV cache memory: 37.99 GiB
(EngineCore pid=8) INFO 11-21 12:16:51 [kv_cache_utils.py:2235] GPU KV cache size: 1,823,372 tokens
(EngineCore pid=8) INFO 11-21 12:16:51 [kv_cache_utils.py:2236] Maximum concurrency for 2,048 tokens per \
request: 890.32x
(Worker_TP0 pid=7) INFO 11-21 12:16:52 [gpu_model_runner.py:6914] Graph capturing finished in 18 secs, took \
0.96 GiB
(EngineCore pid=8) INFO 11-21 12:16:53 [core.py:355] init engine (profile, create kv cache, warmup model) \
took 70.62 s (compilation: 42.18 s)
(APIServer pid=9) INFO:     Application startup complete.
(APIServer pid=9) INFO 11-21 12:17:00 [cuda.py:482] Using HOSTILE attention backend
"""

V0 = """\
INFO 08-05 23:12:11 llm_engine.py:174] Initializing an LLM engine (v0.5.4) with config: model='/m/tiny', \
dtype=torch.float16, enforce_eager=True, kv_cache_dtype=auto,  device_config=cuda, \
chunked_prefill_enabled=False
INFO 08-05 23:12:13 selector.py:151] Cannot use FlashAttention-2 backend for Volta and Turing GPUs.
INFO 08-05 23:12:13 selector.py:54] Using XFormers backend.
INFO 08-05 23:12:18 model_runner.py:732] Loading model weights took 14.9888 GB
INFO 08-05 23:12:19 gpu_executor.py:102] # GPU blocks: 12723, # CPU blocks: 4096
INFO 08-05 23:12:30 model_runner.py:1225] Graph capturing finished in 8 secs.
"""


def test_an_engine_of_today_tells_its_choices_sizes_and_times() -> None:
    facts = engine_facts(V1)
    told = {
        "platform": "cuda",
        "architecture": "LlamaForCausalLM",
        "async scheduling": "on",
        "engine": "V1",
        "version": "0.27.0",
        "dtype": "bfloat16",
        "eager": "off",
        "prefix caching": "on",
        "chunked prefill": "on",
        "tensor parallel": "2",
        "compile mode": "VLLM_COMPILE",
        "graph mode": "FULL_AND_PIECEWISE",
        "graph sizes": "[1, 2, 4]",
        "config compilation_config.pass_config.fuse_act_quant": "True",
        "config kernel_config.ir_op_priority.rms_norm": "['native']",
        "config kernel_config.moe_backend": "auto",
        "argument max_model_len": "2048",
        "sampler": "FlashInfer",
        "attention": "FLASH_ATTN",
        "attention version": "3",
        "kernel": "CutlassFP8ScaledMMLinearKernel for Fp8Linear",
        "experts": "TRITON Fp8",
        "batched tokens": "8192 tokens",
        "cache memory": "37.99 GiB",
        "requests at once": "890.32 x",
        "model memory": "15.27 GiB",
        "graph memory": "0.96 GiB",
        "loading weights": "4.5 s",
        "loading the model": "5.125 s",
        "bytecode transform": "7.5 s",
        "compiling": "21.75 s",
        "capturing graphs": "18 s",
        "starting the engine": "70.62 s",
        "cache": "1823372 tokens",
    }
    assert {name: facts.get(name) for name in told} == told


def test_an_engine_of_old_is_understood_too() -> None:
    facts = engine_facts(V0)
    assert facts["engine"] == "V0"
    assert facts["version"] == "0.5.4"
    assert facts["dtype"] == "float16"
    assert facts["eager"] == "on"
    assert facts["chunked prefill"] == "off"
    assert facts["attention"] == "XFormers"
    assert facts["attention refused"] == "FlashAttention-2"
    assert facts["model memory"] == "14.9888 GiB"
    assert facts["cache blocks"] == "12723 blocks"
    assert facts["capturing graphs"] == "8 s"


@pytest.mark.parametrize(
    ("message", "fact", "value"),
    [
        ("Using Flash Attention backend on V1 engine.", "attention", "Flash Attention"),
        ("Using AttentionBackendEnum.TRITON_ATTN backend.", "attention", "TRITON_ATTN"),
        ("Using ROCM_ATTN backend out of potential backends: ['ROCM_ATTN'].", "attention", "ROCM_ATTN"),
        ("Using HND KV cache layout for CPU_ATTN backend.", "attention", "CPU_ATTN"),
        ("Using LBHNC KV cache layout.", "cache layout", "LBHNC"),
        ("Using FLASH_ATTN MLA prefill backend.", "attention of prefill", "FLASH_ATTN"),
        ("Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: [].", "experts", None),
        ("Using TritonExperts MoE backend", "experts", "TritonExperts"),
        ("Using MacheteLinearKernel for CompressedTensorsWNA16", "kernel", None),
        ("Using MarlinLinearKernel for NVFP4 GEMM", "kernel", "MarlinLinearKernel for NVFP4 GEMM"),
        ("FlashInfer is not available. Falling back to the PyTorch-native x", "sampler", "PyTorch-native"),
        ("Model Runner V2 requires Triton; using the V1 model runner instead.", "model runner", "V1"),
        ("Using V2 Model Runner", "model runner", "V2"),
        ("Async scheduling is not compatible with x", "async scheduling", "off"),
        ("Asynchronous scheduling is disabled.", "async scheduling", "off"),
        ("[encoder] torch.compile takes 2.5 s in total", "compiling", "2.5 s"),
        (
            "CPU KV cache size: 32,768 tokens, Maximum concurrency for 512 tokens per request: 64.00x",
            "requests at once",
            "64 x",
        ),
        ("CUDAGraphMode.FULL is not supported; setting cudagraph_mode=PIECEWISE", "graph mode changed", None),
    ],
)
def test_each_wording_tells_its_fact(message: str, fact: str, value: str | None) -> None:
    facts = engine_facts(f"(EngineCore pid=12) WARNING 01-02 03:04:05 [a/b.py:1] {message}\n")
    assert fact in facts
    assert value is None or facts[fact] == value


@pytest.mark.parametrize("fact", ["attention", "cache", "experts"])
def test_only_whole_messages_of_the_start_count(fact: str) -> None:
    prompt = "Using EVIL attention backend, KV cache size: 1 tokens, Using EVIL MoE backend"
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
        .replace("took 21.75 s", "took 22.50 s")
        .replace("took 70.62 s", "took 140.00 s")
        .replace("37.99 GiB", "38.00 GiB")
        .replace("'fuse_act_quant': True", "'fuse_act_quant': False")
        .replace("Asynchronous scheduling is enabled.", "A line that is no fact.")
        .replace("(v0.27.0)", "(v0.27.1.dev3+gabcdef)")
        .replace("'port': 20178", "'port': 20999")
        .replace("pid=7", "pid=77")
    )
    assert differences(engine_facts(V1), engine_facts(other)) == (
        ("async scheduling", "on", NOT_SAID),
        ("attention", "FLASH_ATTN", "TRITON_ATTN"),
        ("cache", "1823372 tokens", "1923372 tokens"),
        ("starting the engine", "70.62 s", "140 s"),
        ("config compilation_config.pass_config.fuse_act_quant", "True", "False"),
    )


def test_nothing_differs_from_itself() -> None:
    assert differences(engine_facts(V1), engine_facts(V1)) == ()


def test_launches_of_one_change_are_told_together() -> None:
    one = {"attention": "A", "compiling": "10 s", "cache": "100 tokens"}
    two = {"attention": "B", "compiling": "30 s", "cache": "100 tokens"}
    three = {"attention": "B", "compiling": "20 s", "cache": "100 tokens"}
    assert agreed([one, two, three]) == {"attention": "A or B", "compiling": "20 s", "cache": "100 tokens"}
    assert agreed([one]) == one
    assert agreed([one, {}])["attention"] == f"A or {NOT_SAID}"
    assert agreed([]) == {}


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
    first, second, third = ({"argument x": PASSING[name].replace("{}", part)} for part in digits)
    left, right = agreed([first, second]), agreed([third])
    assert differences(left, right) == ()
    assert " or " not in left["argument x"]


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
    sides = [agreed([{"argument x": side.replace("{}", "10203040")}]) for side in (left, right)]
    (found,) = differences(*sides)
    assert found[0] == "argument x"
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
