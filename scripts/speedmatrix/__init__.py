"""speed-matrix: how fast an inference server is, at every context length and concurrency."""

VERSION = "0.1.0"
METHOD = 2  # raise it when a figure's definition or the prompts change; CHANGELOG.md says what each number means
