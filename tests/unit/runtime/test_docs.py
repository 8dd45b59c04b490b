"""The page names every rule and every signature, as the code has them."""

from __future__ import annotations

from pathlib import Path

from llamabuild.runtime.serve_check import ALL_RULES
from llamabuild.runtime.signatures import SIGNATURES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "runtime.md"


def test_the_page_and_the_rules_agree() -> None:
    text = PAGE.read_text()
    for rule in ALL_RULES:
        assert f"| `{rule.name}` | {rule.severity} | {rule.source} | {rule.disproof} |" in text
    for signature in SIGNATURES:
        assert f"| `{signature.name}` | {signature.message} |" in text
