"""`python -m tests.truth_server --port N --table CSV`: serve a published table's speeds."""

import argparse
import asyncio
from pathlib import Path

from tests.truth_server.schedule import Options
from tests.truth_server.server import Server, serve
from tests.truth_server.speeds import from_table

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--table", type=Path, required=True)
parser.add_argument("--speedup", type=float, default=1.0)
parser.add_argument("--kv-capacity", type=int, default=Options.kv_capacity)
parser.add_argument("--max-context", type=int, default=Options.max_context)
parser.add_argument("--max-running", type=int, default=Options.max_running)
parser.add_argument("--tokens-per-event", type=int, default=Options.tokens_per_event)
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--tls", type=Path, help="a file with certificate and key: https")
parser.add_argument("--ranks", type=int, default=Options.ranks)
parser.add_argument("--random-tokens", action="store_true")
parser.add_argument("--shuffle", action="store_true")
parser.add_argument("--prefix-cache", action="store_true")
given = vars(parser.parse_args())
port, speeds = given.pop("port"), from_table(given.pop("table"), given.pop("speedup"))
host, tls = given.pop("host"), given.pop("tls")
asyncio.run(serve(host, port, Server(speeds, Options(**given)), tls))
