"""Which host and port a server's address means."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

import psutil


def port_of(url: str) -> int:
    """The port of an address, its scheme's own where it names none."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def server_key(url: str) -> str:
    """`host:port/path` that all spellings of a server's address share; every name of this host is `localhost`."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", port_of(url)
    path = re.sub(r"(/v1)?/*$", "", parts.path)
    return f"{'localhost' if is_this_host(host) else host.rstrip('.')}:{port}{path}"


def is_this_host(host: str) -> bool:
    """Whether this name or address is one of the machine that this process runs on."""
    if host in ("localhost", socket.gethostname().lower()):
        return True
    try:
        found = {str(address[4][0]) for address in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    own = {address.address.partition("%")[0] for card in psutil.net_if_addrs().values() for address in card}
    loopback = any(ip.is_loopback or ip.is_unspecified for ip in map(ipaddress.ip_address, found))
    return loopback or not own.isdisjoint(found)
