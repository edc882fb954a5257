"""Every word and figure of the page: what it is, its formula, its window, its unit."""

from __future__ import annotations

GLOSSARY = [
    (
        "Context",
        "tokens",
        "Prompt tokens of a request. 8K = 8 × 1,024. The table's prompt tokens are what the server's own usage"
        " counted; a"
        " context equal to the model's limit is sent one token shorter, since one must be generated.",
    ),
    (
        "Requests at once",
        "requests",
        "Requests kept busy side by side (concurrency). When one ends, the next starts in its place at once.",
    ),
    (
        "Prefill tok/s",
        "tokens per second",
        "Prompt tokens ÷ TTFT of one request alone on an otherwise idle server, one token asked for, a new prompt each"
        " time. The median of its repeats; one discarded request goes first.",
    ),
    (
        "Window",
        "seconds",
        "The fixed interval in which decode is measured. It opens after every request has had its first token and a"
        " settling time has passed, so that ramp-up never enters.",
    ),
    (
        "Total tok/s",
        "tokens per second",
        "Output tokens ÷ the window's seconds, over all requests.",
    ),
    (
        "Output tokens",
        "tokens",
        "Tokens generated inside the window. Those that arrive in one event are spread evenly over the time since the"
        " stream's event before; the part inside the window counts.",
    ),
    (
        "Per request tok/s",
        "tokens per second",
        "Median over requests of tokens in the window ÷ seconds spent decoding in it: waiting for a first token is"
        " not in it.",
    ),
    (
        "TTFT",
        "milliseconds",
        "Time to first token: from the moment the request starts to be written, on a connection that stands, to the"
        " first"
        " generated token. In the decode matrix the median over each lane's first request, all started at once.",
    ),
    (
        "TTFT kind",
        "",
        "Cold: at most 1 % of the prompts came from the server's prefix cache. Warm: at least 99 %. Mixed: between."
        " Unknown: the server does not tell.",
    ),
    (
        "Time between tokens",
        "milliseconds",
        "ITL: median over requests of seconds spent decoding in the window ÷ tokens. Its 99th percentile is of single"
        " gaps"
        " between events, unweighted: what a reader sees.",
    ),
    (
        "Average active requests",
        "requests",
        "Time average over the window of requests that were decoding.",
    ),
    (
        "Completed requests",
        "requests",
        "Streams that ended by length or stop inside the window. 0 is usual: requests are made to outlast it. Of"
        " prefill,"
        " its repeats.",
    ),
    (
        "Measured for",
        "seconds",
        "The window's length. Total tok/s × measured for = output tokens.",
    ),
    (
        "KV capacity",
        "tokens",
        "Tokens that the server's KV cache holds over all requests. A cell needs requests at once × (context + max"
        " output);"
        " one that needs more is not run: over capacity.",
    ),
    (
        "Tokens per joule",
        "tokens per joule",
        "Output tokens ÷ energy of all GPUs of the server (of the CPU packages where there are none) in the same"
        " window.",
    ),
    (
        "Price per million tokens",
        "the price's currency",
        "The config's price per hour ÷ output tokens in an hour at the cell's total tok/s, × 1,000,000.",
    ),
    (
        "Fingerprint",
        "",
        "12 digits of a hash of engine, version, commit, model, revision, quantisation, launch command, context limit,"
        " hardware, method, tool version and measuring host. Cells that differ in it measured different things.",
    ),
    (
        "Flagged",
        "",
        "Measured, but something about it must be known when it is read: the section Validity says what was seen.",
    ),
    ("—", "", "No such figure: not run, not defined for prefill, or not told by the server. It never stands for 0."),
]
