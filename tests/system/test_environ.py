"""What servers and clients get of the user's shell."""

from __future__ import annotations

from pathlib import Path

from perfbisect.system import environ

SHELL = {
    "PATH": "/usr/bin",
    "HOME": "/home/u",
    "LC_ALL": "C",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "HF_HOME": "/hub",
    "VLLM_USE_V1": "0",
    "VLLM_ATTENTION_BACKEND": "X",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": "/evil",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LD_PRELOAD": "/lib/x.so",
    "HTTP_PROXY": "http://proxy:1",
    "https_proxy": "http://user:pass@proxy:1",
    "AWS_SECRET_ACCESS_KEY": "s",
    "NO_PROXY": "example.com",
}


def test_what_would_change_the_workload_does_not_pass() -> None:
    assert environ.allowed(SHELL) == {
        "PATH": "/usr/bin",
        "HOME": "/home/u",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_TOKEN": "hf_abcdefghijklmnop",
        "HF_HOME": "/hub",
        "NO_PROXY": "127.0.0.1,localhost,::1",
        "no_proxy": "127.0.0.1,localhost,::1",
    }


def test_layers_win_in_order_and_the_interpreters_tools_come_first() -> None:
    made = environ.for_interpreter(
        SHELL,
        Path("/env/bin/python"),
        {"A": "1", "PYTHONPATH": "/tree"},
        {"A": "2", "CUDA_VISIBLE_DEVICES": "1"},
    )
    assert made["PATH"] == "/env/bin:/usr/bin"
    assert (made["A"], made["PYTHONPATH"], made["CUDA_VISIBLE_DEVICES"]) == ("2", "/tree", "1")


def test_proxies_only_where_asked_for() -> None:
    made = environ.with_proxies(environ.allowed(SHELL), SHELL)
    assert made["HTTP_PROXY"] == "http://proxy:1"
    assert made["NO_PROXY"] == "example.com"
