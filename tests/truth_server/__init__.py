"""A server whose speed is known: vLLM's interface over a programmed schedule, so that a measured figure has a truth.

All running sequences step together. A prompt is prefilled in chunks of 2,048 tokens, prompts one after another, and a
step during which one is being prefilled takes as long as its chunk. The schedule is absolute: a step that is sent late
does not delay the next, and GET /truth tells which were late since POST /truth. POST /faults programs what goes wrong
(faults.py).
"""
