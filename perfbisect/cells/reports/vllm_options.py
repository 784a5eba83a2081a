"""Options of vLLM's server and client, of all eras: which take a value, and which may be abbreviated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Arity = Literal["switch", "one", "several"]
"""How many values an option takes: none, one, or all words up to the next option."""

_SERVER_SWITCHES = """
aggregate-engine-logging allow-deprecated-quantization async-chunk async-scheduling calculate-kv-scales
cohere-is-reasoning-model cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb
data-parallel-multi-port-external-lb dcp-q-replicate disable-async-output-proc disable-cascade-attn
disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs disable-frontend-multiprocessing
disable-hybrid-kv-cache-manager disable-log-requests disable-log-stats disable-mm-preprocessor-cache
disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log
enable-auto-tool-choice enable-batch-sharded-sampling enable-chunked-prefill enable-cumem-allocator
enable-dbo enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-parallel
enable-fault-tolerance enable-flashinfer-autotune enable-force-include-usage enable-layerwise-nvtx-tracing
enable-log-deltas enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora
enable-lora-bias enable-mamba-cache-stochastic-rounding enable-mamba-fine-grained-prefix-cache
enable-metrics enable-mfu-metrics enable-microbatching enable-mixed-moe-lora-format enable-mm-embeds
enable-moe-shared-loras enable-multimodal-encoder-data-parallel enable-nccl-comm-suspend
enable-per-request-metrics enable-prefix-caching enable-prompt-adapter enable-prompt-embeds
enable-prompt-tokens-details enable-reasoning enable-request-id-headers enable-return-routed-experts
enable-scale-out enable-server-load-tracking enable-sleep-mode enable-ssl-refresh
enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay enforce-eager
exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras headless
interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill language-model-only
log-error-stack mm-device-do-normalize mm-encoder-only numa-bind omni ray-workers-use-nsight
return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl skip-mm-profiling
skip-tokenizer-init specialize-active-lora tokens-only trust-remote-code trust-request-chat-template
use-fp64-gumbel use-replayssm use-tqdm-on-load use-v2-block-manager worker-use-ray
"""
_SERVER_SEVERAL = """
allowed-media-domains api-key collect-detailed-traces cpu-offload-params cuda-graph-sizes
cudagraph-capture-sizes ignore-patterns kv-cache-dtype-skip-layers logits-processors lora-modules
lora-target-modules middleware numa-bind-cpus numa-bind-nodes offload-params prompt-adapters
served-model-name
"""
_SERVER_ONE = """
additional-config all2all-backend allowed-headers allowed-local-media-path allowed-methods allowed-origins
api-server-count attention-backend attention-config block-size chat-template chat-template-content-format
code-revision cohere-format compilation-config config config-format convert cp-kv-cache-interleave-size
cpu-distributed-timeout-seconds cpu-offload-gb data-parallel-address data-parallel-backend
data-parallel-rank data-parallel-rpc-port data-parallel-size data-parallel-size-local
data-parallel-start-rank dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
dcp-kv-cache-interleave-size decode-context-parallel-size default-chat-template-kwargs default-mm-loras
deploy-config device device-ids diffusion-config distributed-executor-backend distributed-timeout-seconds
download-dir dp-sync-interval dtype ec-manager-config ec-transfer-config elastic-ep-max-dp-size
engram-config eplb-config expert-placement-strategy fault-tolerance-config fingerprint-mode
fingerprint-value gdn-prefill-backend generation-config gpu-memory-utilization guided-decoding-backend
h11-max-header-count h11-max-incomplete-event-size hf-config-path hf-overrides hf-token host init-timeout
io-processor-plugin ir-op-priority jit-monitor-mode kda-decode-backend kda-prefill-backend kernel-config
kv-cache-dtype kv-cache-memory-bytes kv-cache-metrics-sample kv-events-config kv-offloading-backend
kv-offloading-size kv-transfer-config limit-mm-per-prompt linear-backend load-format log-config-file
logits-processor-pattern logprobs-mode long-lora-scaling-factors long-prefill-token-threshold lora-dtype
lora-extra-vocab-size mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode
mamba-cache-philox-rounds mamba-ssm-cache-dtype mamba-ssu-algorithm master-addr master-port max-cpu-loras
max-cudagraph-capture-size max-log-len max-logprobs max-lora-rank max-loras max-model-len
max-num-batched-tokens max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens max-num-seqs
max-parallel-loading-workers max-prompt-adapters max-seq-len-to-capture media-io-kwargs
mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb
mm-processor-cache-gb mm-processor-cache-type mm-processor-device mm-processor-kwargs
mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-class-overrides model-impl
model-loader-extra-config moe-backend multi-step-stream-outputs ngram-prompt-lookup-max
ngram-prompt-lookup-min nnodes node-rank num-gpu-blocks-override num-lookahead-slots num-scheduler-steps
num-speculative-tokens offload-backend offload-group-size offload-num-in-group offload-prefetch-step
optimization-level otlp-traces-endpoint override-generation-config override-neuron-config
override-pooler-config per-request-spec-decode-metrics performance-mode pipeline-parallel-size pooler-config
port preemption-mode prefill-context-parallel-size prefill-schedule-interval prefix-cache-retention-interval
prefix-caching-hash-algo prefix-match-unit profiler-config pt-load-map-location quantization
quantization-config quantization-param-path reasoning-config reasoning-parser reasoning-parser-plugin
renderer-num-workers replayssm-buffer-len response-role revision root-path rope-scaling rope-theta runner
safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-cls
scheduler-delay-factor scheduling-policy seed show-hidden-metrics-for-version shutdown-timeout
sparse-indexer-topk-backend spec-method spec-model spec-tokens speculative-config
speculative-disable-by-batch-size speculative-draft-tensor-parallel-size speculative-model
sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-keyfile stage-configs-path
stage-init-timeout stage-overrides stream-interval structured-outputs-config swap-space task
tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision tool-call-parser tool-parser-plugin
tool-server ubatch-size uds uvicorn-log-level video-pruning-method video-pruning-rate watermark
watermark-config weight-transfer-config worker-cls worker-extension-cls
"""
_CLIENT_SWITCHES = """
append-result custom-ensure-client-side-data disable-shuffle disable-tqdm enable-multimodal-chat ignore-eos
insecure no-oversample no-reranker no-stream omni plot-dataset-stats plot-timeline profile save-detailed
save-result self-timed skip-chat-template skip-tokenizer-init trust-remote-code use-beam-search
"""
_CLIENT_SEVERAL = """
goodput header lora-modules metadata metric-percentiles percentile-metrics
"""
_CLIENT_ONE = """
asr-max-audio-len-sec asr-min-audio-len-sec backend base-url best-of bfcl-categories blazedit-max-distance
blazedit-min-distance burstiness chat-template-kwargs custom-output-len dataset dataset-name dataset-path
endpoint extra-body frequency-penalty hf-name hf-output-len hf-split hf-subset host input-len label logprobs
lora-assignment max-concurrency min-p model num-prompts num-warmups output-len
percentile-metrics port prefix-repetition-num-prefixes prefix-repetition-output-len
prefix-repetition-prefix-len prefix-repetition-suffix-len presence-penalty probe-request-rate
ramp-up-end-rps ramp-up-start-rps ramp-up-strategy random-batch-size random-input-len
random-mm-base-items-per-request random-mm-bucket-config random-mm-limit-mm-per-prompt
random-mm-num-mm-items-range-ratio random-output-len random-prefix-len random-range-ratio
ready-check-timeout-sec repetition-penalty request-id-prefix request-rate result-dir result-filename seed
served-model-name sharegpt-output-len sonnet-input-len sonnet-output-len sonnet-prefix-len
spec-bench-category spec-bench-output-len speed-bench-category speed-bench-dataset-subset
speed-bench-output-len temperature timed-trace-chunk-hash-size timed-trace-label-hash-ids
timed-trace-label-input-length timed-trace-label-output-length timed-trace-label-timestamp
timed-trace-sec-multiplier timeline-itl-thresholds tokenizer tokenizer-mode top-k top-p uds
"""


def option_table(switches: str, several: str, one: str) -> Mapping[str, Arity]:
    """Options by the number of their values."""
    return {
        **dict.fromkeys(one.split(), "one"),
        **dict.fromkeys(several.split(), "several"),
        **dict.fromkeys(switches.split(), "switch"),
    }


SERVER_OPTIONS = option_table(_SERVER_SWITCHES, _SERVER_SEVERAL, _SERVER_ONE)
"""Of ``vllm serve`` and its offline benchmarks."""

CLIENT_OPTIONS = option_table(_CLIENT_SWITCHES, _CLIENT_SEVERAL, _CLIENT_ONE)
"""Of ``vllm bench serve`` and ``benchmark_serving.py``."""
