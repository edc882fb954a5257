"""What can go wrong with the truth server, each on request: POST /faults with these names; those left out are off."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Faults:
    """Everything off is a server as vLLM is."""

    # What it takes
    refuses: list[str] = field(default_factory=list)  # body fields (also inside stream_options) answered with 400
    mute: bool = False  # says "bad request" and not which field
    chat_only: bool = False
    text_only: bool = False
    wants_max_completion_tokens: bool = False
    no_tokenize: bool = False
    ignores_ignore_eos: int = 0  # streams stop after so many tokens
    models: list[str] = field(default_factory=lambda: ["truth"])
    version: str = "0.32.0+g0123456789"
    # Answers that are late, refused or cut
    busy_first: int = 0  # completions answered with 429 before the first is taken
    busy_after: int = -1  # completions taken before all others are answered with 503
    stall_after: int = -1  # tokens of each stream after which it says nothing more
    cut_after: int = -1  # … after which its connection ends
    error_after: int = -1  # … after which an error object comes inside the stream
    echoes: bool = False  # refuses completions, and repeats the client's key in its refusal, in several forms
    crash_at: int = -1  # running requests at which the process ends
    lingers: bool = False  # goes on generating after the client hung up
    drops_idle: bool = False  # closes a kept connection after each answer, without saying so
    # Streams
    usage: str = "each"  # each, final, none, null, zeros
    null_details: bool = False  # prompt_tokens_details: null, as vLLM has it by default
    lumps: int = 1  # events that a proxy holds back and sends in one piece; 0: all of an answer
    no_text: bool = False  # every other token decodes to nothing yet
    same_text: bool = False  # the same words again and again
    reasoning: bool = False  # chat: reasoning first, then content
    # Metrics
    metrics: str = "vllm"  # vllm, missing, 502, html
    stale_gauges: bool = False  # gauges move only with a step
    preempting: bool = False  # the preemption counter rises with every step
