"""The three forms of a pin, in files made after the real ones' shape."""

from __future__ import annotations

import pytest

from perfbisect.changes.pins import Pins, ReplacedPackage, parse_pins

SHA = "2d5be1dd5ce2e44dfea53ea03ff61143da5137eb"

TAG = """
# vllm v0.21.0
ARG VLLM_BASE_IMAGE=vllm/vllm-openai
ARG VLLM_BASE_TAG=v0.22.0
FROM ${VLLM_BASE_IMAGE}:${VLLM_BASE_TAG}
COPY . .
RUN uv pip install --system --no-cache-dir ".[dev]"
"""

INDEX = f"""
ARG VLLM_BASE_IMAGE=vllm/vllm-openai
ARG VLLM_BASE_TAG=v0.15.0
FROM ${{VLLM_BASE_IMAGE}}:${{VLLM_BASE_TAG}}
# Current wheel: {"0" * 40}
# RUN uv pip install vllm --extra-index-url https://wheels.vllm.ai/{"1" * 40}
RUN uv pip install --system --upgrade --prerelease=allow \\
    # the wheel of one commit
    vllm --extra-index-url https://wheels.vllm.ai/{SHA}
RUN uv pip uninstall --system nvidia-cublas-cu12
RUN /bin/bash -c 'uv pip install "flashinfer-python==0.6.3" "flashinfer-cubin==0.6.3"'
RUN uv pip install --system "nvidia-cublas-cu12==12.9.1.4"
RUN pip install "numpy==2.2.6" && apt-get install -y ffmpeg
"""

PRECOMPILED = f"""
ARG VLLM_BASE_TAG=v0.17.0
FROM vllm/vllm-openai:$VLLM_BASE_TAG AS base
ENV VLLM_USE_PRECOMPILED=1 \\
    VLLM_PRECOMPILED_WHEEL_COMMIT={SHA}
RUN uv pip install git+https://github.com/vllm-project/vllm@main
"""


def test_the_tag_and_not_what_a_comment_says() -> None:
    assert parse_pins(TAG) == Pins("v0.22.0", "")
    assert parse_pins(TAG).kind == "release"
    assert parse_pins(TAG).text == "vLLM v0.22.0"


def test_a_wheel_wins_over_the_tag() -> None:
    found = parse_pins(INDEX)
    assert (found.tag, found.commit, found.kind) == ("v0.15.0", SHA, "commit")
    assert found.packages == (
        ReplacedPackage("nvidia-cublas-cu12", "12.9.1.4"),
        ReplacedPackage("flashinfer-python", "0.6.3"),
        ReplacedPackage("flashinfer-cubin", "0.6.3"),
        ReplacedPackage("numpy", "2.2.6"),
    )


def test_a_precompiled_wheel() -> None:
    assert parse_pins(PRECOMPILED) == Pins("v0.17.0", SHA)


@pytest.mark.parametrize(
    "line",
    [
        f"ARG COMMIT={SHA}\nRUN uv pip install vllm --extra-index-url https://wheels.vllm.ai/${{COMMIT}}",
        f"ENV COMMIT {SHA}\nRUN uv pip install vllm --extra-index-url https://wheels.vllm.ai/{SHA}/cu130",
        f"RUN VLLM_PRECOMPILED_WHEEL_COMMIT={SHA} uv pip install -e vllm",
    ],
)
def test_other_ways_to_write_it(line: str) -> None:
    assert parse_pins(f"FROM vllm/vllm-openai:v0.16.0\n{line}\n").commit == SHA


@pytest.mark.parametrize(
    ("tag", "release"),
    [("v0.20.0-cu130", "0.20.0"), ("v0.24.0", "0.24.0"), ("v0.21.0rc1", "0.21.0rc1"), ("0.9.0.1", "0.9.0.1")],
)
def test_the_release_of_a_tag(tag: str, release: str) -> None:
    assert parse_pins(f"FROM vllm/vllm-openai:{tag}\n").release == release


@pytest.mark.parametrize("text", ["", "FROM ubuntu:24.04\nRUN make\n", "FROM vllm/vllm-openai:latest\n"])
def test_no_pin(text: str) -> None:
    assert parse_pins(text).kind == "unknown"
    assert parse_pins(text).release == ""
