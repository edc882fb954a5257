"""What tokens cost where the config states a server's price per hour. Pure."""

from __future__ import annotations

from typing import Any

from speedmatrix.config import Config


def prices(config: Config) -> dict[str, float]:
    """Price per hour of each server for which one is stated. No cell's params hold it: it measures nothing anew."""
    return {name: server.price_per_hour for name, server in config.servers.items() if server.price_per_hour}


def price_per_mtok(price_per_hour: float | None, cell: dict[str, Any]) -> float | None:
    """Price of a million output tokens of a decode cell, in the currency of `price_per_hour`.

    price_per_hour / (total_tok_s × 3600) × 1e6. None without a price, without a figure, and for prefill, which
    generates nothing.
    """
    speed = (cell["figures"] or {}).get("total_tok_s") if cell["phase"] == "decode" else None
    return price_per_hour / (speed * 3600) * 1e6 if price_per_hour and speed else None


def cheapest(prices: dict[str, float], cells: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The cell whose output tokens cost least, by each server's price per hour; None where none has a price."""
    priced = [(price_per_mtok(prices.get(cell["server"]), cell), cell) for cell in cells]
    known = [(price, cell) for price, cell in priced if price is not None]
    return min(known, key=lambda pair: pair[0])[1] if known else None
