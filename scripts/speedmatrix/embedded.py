"""The default engine: llama.cpp's own server with a small Llama of random weights that it writes itself.

`python -m speedmatrix.embedded --port 8077` serves until SIGTERM. Speed does not depend on what weights say, so a
model of 14 MB shows the behaviour of a real server on any machine, without a download.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

LAYERS, WIDTH, FEED_FORWARD = 2, 256, 12288
HEADS, KV_HEADS, HEAD_SIZE = 1, 1, 32
TRAINED_CONTEXT = 131072
NAME = "tiny-llama"
SEED = 20261201
SPACE = "▁"
_CONSTANT = 16.0  # the residual dimension 0 holds it from embedding to output: through it the output has a bias
_KIND = gguf.GGMLQuantizationType.Q5_1
_LETTERS = dict(
    zip("etaoinshrdlucmwfgypbvk", (12, 9, 8, 8, 7, 7, 6, 6, 6, 4, 4, 3, 3, 2, 2, 2, 2, 2, 2, 1.5, 1, 1), strict=True)
)
_FREQUENCY = _LETTERS | {SPACE: 18, ",": 1, ".": 1, "\n": 0.3}
_UNPRINTABLE_BIAS = -40.0


def vocabulary() -> tuple[list[str], list[int]]:
    """Tokens and their types: unknown, begin, end, the 256 bytes, and the space mark of sentencepiece."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE]
    kinds = gguf.TokenType
    return tokens, [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256, kinds.NORMAL]


def output_bias() -> NDArray[np.float32]:
    """[vocabulary] bias of the logits: letters and spaces as often as in English, so that each token is visible."""
    bias = np.full(len(vocabulary()[0]), _UNPRINTABLE_BIAS, np.float32)
    for character, percent in _FREQUENCY.items():
        token = 259 if character == SPACE else 3 + ord(character)
        bias[token] = np.log(percent / 100) + 8
    return bias


def write_model(path: Path) -> None:
    """Write the model to `path` (GGUF, Q5_1): the same bytes every time."""
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer)
    rng = np.random.Generator(np.random.PCG64(SEED))
    tokens = len(vocabulary()[0])

    def matrix(name: str, rows: int, columns: int, kept: NDArray[np.float32] | None = None) -> None:
        weights = kept if kept is not None else _random(rng, rows, columns)
        writer.add_tensor(name, gguf.quants.quantize(weights, _KIND), raw_dtype=_KIND)

    embedding = _random(rng, tokens, WIDTH) * np.float32(WIDTH**0.5)
    embedding[:, 0] = _CONSTANT
    matrix("token_embd.weight", tokens, WIDTH, embedding)
    for layer in range(LAYERS):
        part = f"blk.{layer}."
        writer.add_tensor(part + "attn_norm.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(part + "ffn_norm.weight", np.ones(WIDTH, np.float32))
        matrix(part + "attn_q.weight", HEADS * HEAD_SIZE, WIDTH)
        matrix(part + "attn_k.weight", KV_HEADS * HEAD_SIZE, WIDTH)
        matrix(part + "attn_v.weight", KV_HEADS * HEAD_SIZE, WIDTH)
        matrix(part + "attn_output.weight", WIDTH, HEADS * HEAD_SIZE, _to_residual(rng, HEADS * HEAD_SIZE))
        matrix(part + "ffn_gate.weight", FEED_FORWARD, WIDTH)
        matrix(part + "ffn_up.weight", FEED_FORWARD, WIDTH)
        matrix(part + "ffn_down.weight", WIDTH, FEED_FORWARD, _to_residual(rng, FEED_FORWARD))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    writer.add_tensor("output.weight", _output(rng, tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    return rng.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5)


def _to_residual(rng: np.random.Generator, columns: int) -> NDArray[np.float32]:
    """A projection that adds to the residual, but nothing to its constant dimension."""
    weights = _random(rng, WIDTH, columns) * np.float32(0.3)
    weights[0] = 0
    return weights


def _output(rng: np.random.Generator, tokens: int) -> NDArray[np.float32]:
    """The output matrix in F32; its first column, times the constant dimension as the norm leaves it, is the bias."""
    weights = _random(rng, tokens, WIDTH) * np.float32(0.5)
    normed = _CONSTANT / np.sqrt((_CONSTANT**2 + 1.5 * (WIDTH - 1)) / WIDTH)
    weights[:, 0] = output_bias() / np.float32(normed)
    return weights


def _write_metadata(writer: gguf.GGUFWriter) -> None:
    tokens, kinds = vocabulary()
    writer.add_name(NAME)
    writer.add_context_length(TRAINED_CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q5_1)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def checksum(path: Path) -> str:
    """sha256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ensure_model(directory: Path) -> Path:
    """The model's file in `directory`; written where it is missing or differs from the checksum beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{NAME}-q5_1-{SEED}.gguf"
    recorded = path.with_name(path.name + ".sha256")
    if path.exists() and recorded.exists() and recorded.read_text().split()[:1] == [checksum(path)]:
        return path
    temporary = directory / f".{path.name}.{os.getpid()}"
    try:
        write_model(temporary)
        recorded.write_text(f"{checksum(temporary)}  {path.name}\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def default_directory() -> Path:
    """Where the model is kept: the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speed-matrix"


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m speedmatrix.embedded", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context", type=int, default=73728, help="tokens of KV cache over all slots")
    parser.add_argument("--slots", type=int, default=8, help="requests at once")
    parser.add_argument("--kv-unified", action="store_true", help="one KV pool for all slots instead of equal shares")
    parser.add_argument("--threads", type=int, default=max(1, min(4, (os.cpu_count() or 2) - 1)))
    parser.add_argument("--alias", default=NAME, help="the served name")
    parser.add_argument("--model-dir", type=Path, default=default_directory())
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    options = _arguments(arguments)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    model = ensure_model(options.model_dir)
    print(f"model {model.name}, sha256 {checksum(model)}", flush=True)
    server = _serve(model, options)
    print(f"serving at {server.listening_address}", flush=True)  # type: ignore[attr-defined]
    while not ended.wait(0.2):
        pass
    os._exit(0)  # the server's destructor waits for streams that nobody reads any more


def _serve(model: Path, options: argparse.Namespace) -> object:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {options.alias}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.context
    params.n_parallel = options.slots
    params.kv_unified = options.kv_unified
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.n_gpu_layers = 0
    params.cache_ram_mib = 64
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    return xllamacpp.Server(params)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
