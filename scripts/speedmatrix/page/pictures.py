"""A chart's SVG made fit to stand on a page among others."""

from __future__ import annotations

import re

import markupsafe


def own_ids(svg: str, name: str) -> markupsafe.Markup:
    """The SVG with its ids made its own, so that several fit on one page, and scaling with the page."""
    picture = svg[svg.index("<svg") :]
    ids = set(re.findall(r'\bid="([^"]+)"', picture))
    for identifier in sorted(ids, key=len, reverse=True):
        picture = re.sub(
            rf'(\bid="|url\(#|href="#){re.escape(identifier)}(?=["\)])', rf"\g<1>{name}-{identifier}", picture
        )
    return markupsafe.Markup(re.sub(r'<svg ([^>]*?)\bwidth="[\d.]+" height="[\d.]+"', r"<svg \1", picture, count=1))
