"""Does a series still apply to another upstream? Tried on trees, without a build, and to the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from llamabuild.recipe.features import load_features
from llamabuild.recipe.load import list_recipes, load_series, read_recipe
from llamabuild.source.commits import tree_of
from llamabuild.source.features import shows
from llamabuild.source.fetch import bring_tree
from llamabuild.source.folder import tree_of_folder
from llamabuild.source.gitremote import WHOLE, UnreachableError, expand, fetch_commit, fetch_ref, known_ref
from llamabuild.source.history import upstream_of
from llamabuild.source.mirror import has_tree, mirror_of, normalized, writing
from llamabuild.source.patches import load_series_patches
from llamabuild.source.scratch import scratch_repository
from llamabuild.source.stack import Step, apply_stack
from llamabuild.source.worktree import write_folder

if TYPE_CHECKING:
    from pathlib import Path

    import pygit2

    from llamabuild.core.context import Context


@dataclass(frozen=True)
class Checked:
    """A series tried on a target."""

    series: str
    onto: str
    """The ref or folder, as it was asked for."""
    commit: str
    """The target's commit; nothing for a folder."""
    tree: str
    steps: tuple[Step, ...]

    @property
    def ok(self) -> bool:
        """Whether every patch fits or is there already."""
        return all(each.attempt.state != "conflict" for each in self.steps)

    def to_json(self) -> dict[str, Any]:
        """The document that ``series check --json`` prints."""
        return {
            "series": self.series,
            "onto": {"name": self.onto, "commit": self.commit or None, "tree": self.tree},
            "ok": self.ok,
            "patches": [_step(each) for each in self.steps],
        }


def check_series(
    name: str,
    context: Context,
    *,
    onto: str | None = None,
    folder: Path | None = None,
    repository: str | None = None,
    history: bool = False,
    keep_conflict: Path | None = None,
) -> Checked:
    """Try a series on a ref (a tag, a branch, ``pr/N``, a commit) of its upstream, or on a folder with a source tree.

    ``repository`` is another URL to look for ``onto``. ``history`` fetches the whole history of ``onto``, so that the
    upstream commits behind a conflict can be named. ``keep_conflict`` is a folder for the first conflict's tree.

    Raises RecipeError for the manifest, SourceError when the target or the patches cannot be had.
    """
    series, path = load_series(name, context)
    mirror = mirror_of(repository or series.upstream, context)
    features = load_features(context)
    with writing(mirror, context) as store:
        commit, tree = _target(store, mirror.url, onto, context, history=history) if onto is not None else ("", "")
        with scratch_repository(mirror.path, context) as scratch:
            tree = tree or tree_of_folder(scratch, context.cwd if folder is None else folder)

            def upstream(_: int | None, feature: str | None) -> bool:
                return feature is not None and shows(scratch, tree, features[feature])

            patches = load_series_patches(series, path, store, context=context, upstream=upstream)
            steps = apply_stack(scratch, tree, patches, features=features, stop=False)
            steps = tuple(_with_upstream(scratch, commit, each) for each in steps)
            _keep(scratch, steps, keep_conflict, context)
    return Checked(series.name, onto or str(folder), commit, tree, steps)


def _target(store: pygit2.Repository, url: str, onto: str, context: Context, *, history: bool) -> tuple[str, str]:
    """The commit and tree that ``onto`` names. A name is always asked for anew, because a branch moves."""
    try:
        commit = _commit(store, url, onto, context, history=history)
    except UnreachableError as exc:
        pinned = _pinned(store, url, onto, context)
        if pinned is None:
            raise
        context.console.note(exc.message)
        return pinned
    return commit, tree_of(store, commit)


def _commit(store: pygit2.Repository, url: str, onto: str, context: Context, *, history: bool) -> str:
    hexadecimal = set(onto) <= set("0123456789abcdef")
    full = expand(store, onto) if len(onto) >= 7 and hexadecimal else None
    if full is not None:
        return full
    if len(onto) == 40 and hexadecimal:
        fetch_commit(store, url, onto, ref="HEAD", context=context)
        return onto
    kind, _, number = onto.partition("/")
    ref = f"refs/pull/{number}/head" if kind == "pr" and number.isdecimal() else onto
    if context.offline:
        return known_ref(store, ref)
    return fetch_ref(store, url, ref, depth=WHOLE if history else 1, context=context)


def _pinned(store: pygit2.Repository, url: str, onto: str, context: Context) -> tuple[str, str] | None:
    """Commit and tree of a recipe that pins ``onto`` by its tree: its mirrors may bring what the server cannot."""
    for listed in list_recipes(context):
        if not listed.valid:
            continue
        source = read_recipe(listed.path, context).source
        same = normalized(source.repository) == normalized(url) and onto in {source.ref, source.commit}
        if same and source.tree is not None and source.commit is not None:
            context.console.note(f"{onto} is taken as recipe {listed.name} pins it")
            if not has_tree(store, source.tree):
                bring_tree(store, source.tree, source.mirror, context, name=onto)
            return source.commit, source.tree
    return None


def _with_upstream(scratch: pygit2.Repository, commit: str, step: Step) -> Step:
    """Name the upstream commits that touched the places of a conflict."""
    conflicts = tuple(
        replace(
            each,
            upstream=upstream_of(
                scratch,
                commit,
                each.file,
                lines=None if each.line is None else (each.line, each.line + max(len(each.ours) - 1, 0)),
                base=step.patch.locked.base,
            ),
        )
        for each in step.attempt.conflicts
    )
    return replace(step, attempt=replace(step.attempt, conflicts=conflicts))


def _keep(scratch: pygit2.Repository, steps: tuple[Step, ...], folder: Path | None, context: Context) -> None:
    failed = next((each for each in steps if each.attempt.state == "conflict"), None)
    if folder is not None and failed is not None:
        write_folder(scratch, failed.attempt.marked, folder, context)


def _step(step: Step) -> dict[str, Any]:
    locked = step.patch.locked
    return {
        "number": step.patch.number,
        "id": locked.id,
        "subject": locked.subject,
        "group": locked.group,
        "state": step.attempt.state,
        "note": step.attempt.note,
        "needs": [each.number for each in step.needs],
        "conflicts": [asdict(each) for each in step.attempt.conflicts],
    }
