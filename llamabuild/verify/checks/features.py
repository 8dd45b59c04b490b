"""Features: what the recipe promises shows in the binaries, as exported symbols and in the programs' help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamabuild.verify.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llamabuild.recipe.features import Feature
    from llamabuild.verify.findings import Finding
    from llamabuild.verify.relocate import Started
    from llamabuild.verify.subject import Subject

MISSING = Kind(
    "feature.missing",
    "error",
    "A feature that the recipe promises does not show in the binaries: they were built from a tree without it, or a "
    "library of another build is in the bundle.",
    "Check that the pinned commit and the series have it, and build again.",
)
UNKNOWN = Kind(
    "feature.unknown",
    "error",
    "A feature is promised that the table of features does not know, so nobody can tell whether it is there.",
    "Add it to recipes/features.toml with the symbol or the help text that shows it.",
)
NOT_CHECKED = Kind(
    "feature.not-checked",
    "warning",
    "How a feature shows could not be looked at: the program that would name it in its help did not run or is not "
    "here.",
    "Verify where the programs can be started.",
)

_SERVER = "llama-server"

KINDS = (MISSING, UNKNOWN, NOT_CHECKED)


def check(subject: Subject, *, table: Mapping[str, Feature], runs: Sequence[Started]) -> Iterator[Finding]:
    """Look for every probe of every promised feature."""
    helps = {run.program.rpartition("/")[2]: run.output for run in runs if run.ok and run.arguments == ("--help",)}
    yield from _flags(subject, helps)
    for name in dict.fromkeys((*subject.expected.features, *subject.expected.more_features)):
        feature = table.get(name)
        if feature is None:
            yield UNKNOWN.at("", f"The feature {name} is in no table of features.", evidence=subject.expected.source)
            continue
        yield from _symbols(subject, name, feature)
        for probe in feature.help:
            if probe.program not in helps:
                yield NOT_CHECKED.at(
                    f"bin/{probe.program}",
                    f"The feature {name} was not looked for: {probe.program} --help did not run.",
                )
            elif probe.text not in helps[probe.program]:
                yield MISSING.at(
                    f"bin/{probe.program}",
                    f"The feature {name} does not show: {probe.program} --help does not say {probe.text}.",
                )
        number = subject.expected.build_number
        if feature.build_number is not None and number is not None and number < feature.build_number:
            yield MISSING.at(
                "", f"The feature {name} came with build {feature.build_number}, and this is build {number}."
            )


def _flags(subject: Subject, helps: Mapping[str, str]) -> Iterator[Finding]:
    place = f"bin/{_SERVER}"
    for flag in subject.expected.flags:
        if _SERVER not in helps:
            yield NOT_CHECKED.at(
                place, f"The flag {flag} of a series was not looked for: {_SERVER} --help did not run."
            )
        elif flag not in helps[_SERVER]:
            yield MISSING.at(place, f"A patch series does not show: {_SERVER} --help does not say {flag}.")


def _symbols(subject: Subject, name: str, feature: Feature) -> Iterator[Finding]:
    for probe in feature.symbol:
        libraries = [file for file in subject.elves if file.name.partition(".")[0] == probe.library]
        if not libraries:
            yield MISSING.at("", f"The feature {name} does not show: there is no {probe.library}.so.")
        for file in libraries:
            if not any(_names(symbol, probe.symbol) for symbol in subject.symbols(file).exported):
                yield MISSING.at(
                    file.path, f"The feature {name} does not show: {file.path} does not export {probe.symbol}."
                )


def _names(symbol: str, name: str) -> bool:
    """Whether a symbol is this C name, or a C++ one of this name (the Itanium ABI writes the length before it)."""
    return symbol == name or f"{len(name)}{name}" in symbol
