"""Capture a real server's answers as fixtures: `python -m tests.engines.capture vllm http://127.0.0.1:8400 tiny`.

Written to tests/engines/<engine>/: what adapters ask for, and streams as their bytes arrived. Nothing is edited but the
home directory's name.
"""

import json
import sys
from pathlib import Path

import requests

HERE = Path(__file__).parent
PATHS = {
    "vllm": ["/version", "/v1/models", "/metrics"],
    "llama.cpp": ["/props", "/v1/models", "/slots", "/metrics"],
    "sglang": ["/server_info", "/v1/models", "/v1/loads", "/metrics"],
}
STREAMS = {
    "completions": ("/v1/completions", {"prompt": "Once upon a time"}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell a story."}]}),
}
USAGE = {
    "running": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "timings_per_token": True},
    "final": {"stream_options": {"include_usage": True}},
    "none": {},
}


def main(engine: str, url: str, model: str) -> None:
    folder = HERE / engine.replace(".", "")
    folder.mkdir(exist_ok=True)
    for path in PATHS[engine]:
        text = requests.get(url + path, timeout=10).text.replace(str(Path.home()), "$HOME")
        (folder / (path.strip("/").replace("/", "_") + ".txt")).write_text(text)
    for kind, (path, asked) in STREAMS.items():
        for usage, fields in USAGE.items():
            known = {key: value for key, value in fields.items() if engine == "llama.cpp" or key != "timings_per_token"}
            body = {"model": model, "max_tokens": 12, "stream": True, "temperature": 0} | asked | known
            answer = requests.post(url + path, data=json.dumps(body), headers={"Content-Type": "application/json"})
            answer.raise_for_status()
            (folder / f"{kind}-{usage}.sse").write_bytes(answer.content)


if __name__ == "__main__":
    main(*sys.argv[1:4])
