"""A small server that misbehaves on request: what the supervisor has to cope with."""

import argparse
import http.server
import os
import signal
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("--exit", type=int, help="end at once with this code")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--never-ready", action="store_true")
parser.add_argument("--workers", action="store_true", help="fork workers into sessions of their own")
parser.add_argument("--print-env", help="print this variable")
options = parser.parse_args()

if options.print_env:
    print(f"the key is {os.environ[options.print_env]}", flush=True)
if options.exit is not None:
    print("cannot load the model", flush=True)
    sys.exit(options.exit)
if options.ignore_term:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if options.workers:
    for _ in range(2):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
if options.never_ready:
    time.sleep(1000)
http.server.ThreadingHTTPServer(("127.0.0.1", options.port), http.server.BaseHTTPRequestHandler).serve_forever()
