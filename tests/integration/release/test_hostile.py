"""Documents that somebody bent at random: findings or one sentence, never a traceback."""

import contextlib
import json
import random

import pytest

from llamabuild.core.errors import LlamabuildError
from llamabuild.release.crosscheck import verify_provenance

from .test_release import _restate

ODD = (None, 0, -1, True, "", "x", "../x", [], {}, [7], {"a": 1}, [[]], "0" * 64, 1e300, "\x00")


def _places(value, place=()):
    yield place
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _places(each, (*place, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _places(each, (*place, index))


def _bend(document, choice):
    *way, last = choice.choice([place for place in _places(document) if place])
    for step in way:
        document = document[step]
    if choice.random() < 0.3:
        del document[last]
    else:
        document[last] = choice.choice(ODD)


@pytest.mark.parametrize("name", ["provenance-cpu.intoto.json", "BUILD_INFO-cpu.json", "sbom-cpu.cdx.json"])
def test_bent_documents(release, name):
    path = release / name
    statement = release / "provenance-cpu.intoto.json"
    good = {each: (release / each).read_bytes() for each in (name, statement.name, "SHA256SUMS")}
    for seed in range(60):
        choice = random.Random(seed)
        document = json.loads(good[name])
        for _ in range(choice.randint(1, 3)):
            _bend(document, choice)
        path.write_text(json.dumps(document))
        if path != statement:
            _restate(release, name)
        with contextlib.suppress(LlamabuildError):
            verify_provenance(statement, release)
        for each, data in good.items():
            (release / each).write_bytes(data)
