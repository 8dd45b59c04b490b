"""The parts of a series manifest, each read from where it lies: a fork, a pull request, files, an archive."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from llamabuild.core.download import download
from llamabuild.core.errors import RecipeError, SourceError
from llamabuild.recipe.load import load_series
from llamabuild.recipe.series import ArchivePart, CommitPart, FilePart, PatchNote, PullPart, RangePart, SeriesPart
from llamabuild.source.archive import SUFFIXES, patch_files_in
from llamabuild.source.commits import ancestors, author_of, digest_of, text_of, tree_of
from llamabuild.source.gitremote import MissingError, UnreachableError, fetch_history, fetch_ref
from llamabuild.source.lock import LockedPatch
from llamabuild.source.mail import parse_patch
from llamabuild.source.patch import Patch, TextChange, TreeChange, UpstreamChange

if TYPE_CHECKING:
    from pathlib import Path

    import pygit2

    from llamabuild.core.context import Context
    from llamabuild.recipe.series import Part, Series
    from llamabuild.source.mail import Author
    from llamabuild.source.patches import Upstream


class PartLoader:
    """Reads a series; ``folder`` holds its patch files, ``repository`` gets the commits of forks."""

    def __init__(
        self,
        series: Series,
        folder: Path,
        repository: pygit2.Repository,
        context: Context,
        *,
        upstream: Upstream,
        within: frozenset[str] = frozenset(),
    ) -> None:
        """``within`` are the series that this one is a part of."""
        self._series = series
        self._folder = folder
        self._repository = repository
        self._context = context
        self._upstream = upstream
        self._patches: list[Patch] = []
        self._part = 0
        self._within = within | {folder.name}

    def load(self) -> tuple[Patch, ...]:
        """Every patch of the series, in order."""
        try:
            for number, part in enumerate(self._series.part):
                self._part = number
                self._load(part)
        except UnreachableError as exc:
            raise UnreachableError(f"Series {self._series.name}: {exc.message}", hint=exc.hint) from exc
        return tuple(self._patches)

    def _load(self, part: Part) -> None:
        if isinstance(part, FilePart):
            for name in part.files:
                self._file(part, name, (self._folder / name).read_bytes(), shown=str(self._folder / name))
        elif isinstance(part, ArchivePart):
            self._archive(part)
        elif isinstance(part, SeriesPart):
            self._included(part)
        elif isinstance(part, RangePart):
            self._range(part)
        elif self._upstream(part.upstream_since, part.feature):
            self._is_upstream(part)
        elif isinstance(part, CommitPart):
            self._commit(part)
        else:
            self._pull(part)

    def _file(self, part: FilePart | ArchivePart, name: str, data: bytes, *, shown: str) -> None:
        file = parse_patch(data, shown)
        locked = LockedPatch(
            id=name,
            series=self._series.name,
            group=part.group,
            subject=file.subject,
            switches=part.switches,
            digest=hashlib.sha256(data).hexdigest(),
        )
        self._add(locked, message=file.message, author=file.author, change=TextChange(file.files, data))

    def _archive(self, part: ArchivePart) -> None:
        target = self._context.home.downloads / "series" / f"{part.sha256[:16]}-{part.url.rsplit('/', 1)[-1]}"
        members = patch_files_in(download(part.url, target, self._context, sha256=part.sha256))
        missing = [name for name in part.files if name not in members]
        if missing:
            raise SourceError(f"{part.url} has no {missing[0]}.", hint="Check the names in the manifest.")
        for name in part.files or sorted(each for each in members if each.endswith(SUFFIXES)):
            self._file(part, name, members[name], shown=f"{part.url}:{name}")

    def _included(self, part: SeriesPart) -> None:
        # The other manifest is looked up beside this one.
        series, path = load_series(part.name, self._context, beside=self._folder)
        if path.stem in self._within:
            raise RecipeError(
                f"Series {self._series.name} takes in itself, by way of {path.stem}.", hint="Drop a part."
            )
        loader = PartLoader(
            series,
            path.with_suffix(""),
            self._repository,
            self._context,
            upstream=self._upstream,
            within=self._within,
        )
        for each in loader.load():
            locked = replace(each.locked, series=self._series.name, group=part.group)
            self._add(locked, message=each.message, author=each.author, change=each.change)

    def _range(self, part: RangePart) -> None:
        def whole(tip: str) -> bool:
            ids = {str(each.id) for each in ancestors(self._repository, tip)}
            return all(any(each.startswith(note.id) for each in ids) for note in part.commit) and any(
                each.startswith(part.base) for each in ids
            )

        tip = fetch_history(
            self._repository, part.repository, tip=part.tip, ref=part.ref, enough=whole, context=self._context
        )
        places = {str(each.id): place for place, each in enumerate(ancestors(self._repository, tip))}
        before = len(places)
        for note in part.commit:
            found = [each for each in places if each.startswith(note.id)]
            if len(found) != 1:
                raise SourceError(
                    f"Series {self._series.name}: commit {note.id} is ambiguous.", hint="Write more of it."
                )
            if places[found[0]] >= before:
                raise SourceError(
                    f"Series {self._series.name}: commit {note.id} ({note.subject}) is not where it is in the fork's "
                    "history.",
                    hint="List the commits in their order, oldest first.",
                )
            before = places[found[0]]
            self._add_commit(note, found[0])

    def _commit(self, part: CommitPart) -> None:
        full = fetch_history(
            self._repository,
            part.repository,
            tip=part.id,
            ref=part.ref,
            enough=self._has_parent,
            context=self._context,
        )
        self._add_commit(PatchNote(id=part.id, subject=part.subject, group=part.group, switches=part.switches), full)

    def _pull(self, part: PullPart) -> None:
        """A pull request is one patch: what its head has that the commit it left from has not."""
        ref = f"refs/pull/{part.pr}/head"
        try:
            head = fetch_history(
                self._repository,
                part.repository,
                tip=part.commit,
                ref=ref,
                enough=lambda tip: self._base_of(part, tip) is not None,
                context=self._context,
            )
        except UnreachableError:
            raise
        except MissingError as exc:
            present = fetch_ref(self._repository, part.repository, ref, depth=1, context=self._context)
            if present == part.commit:
                raise
            raise SourceError(
                f"Pull request {part.pr} of {part.repository} was force-pushed: pinned {part.commit}, present head "
                f"{present}.",
                hint=f"Look at what changed, then write the present head as commit in {self._folder}.toml, or let "
                "llamabuild resolve --update do it.",
            ) from exc
        base = self._base_of(part, head)
        if base is None:
            raise SourceError(f"Pull request {part.pr}: its base is not there.", hint="Give base in the manifest.")
        commit = self._repository[head]
        locked = self._locked(part, head, digest=digest_of(self._repository, base, head), base=base)
        change = TreeChange(tree_of(self._repository, base), tree_of(self._repository, head))
        message = f"{part.subject}\n\nPull request {part.pr} of {part.repository} at {head}\n"
        self._add(locked, message=message, author=author_of(commit), change=change)

    def _base_of(self, part: PullPart, head: str) -> str | None:
        """Where a pull request left its upstream: as the manifest says, else the merge base with the default branch."""
        ids = [str(each.id) for each in ancestors(self._repository, head)]
        if part.base is not None:
            return next((each for each in ids if each.startswith(part.base)), None)
        kept = f"refs/llamabuild/bases/{head}"
        if kept in self._repository.references:
            return str(self._repository.references[kept].target)
        main = fetch_ref(self._repository, part.repository, "HEAD", depth=max(64, len(ids)), context=self._context)
        found = self._repository.merge_base(head, main)
        if found is not None and str(found) == head:
            raise SourceError(
                f"Pull request {part.pr} of {part.repository} is merged, so where it began cannot be told.",
                hint="Give base in the manifest, or drop the part: upstream has it.",
            )
        if found is None:
            return None
        self._repository.references.create(kept, found)
        return str(found)

    def _is_upstream(self, part: CommitPart | PullPart) -> None:
        name = part.id if isinstance(part, CommitPart) else part.commit
        locked = self._locked(part, name, digest=hashlib.sha256(name.encode()).hexdigest())
        change = UpstreamChange(part.upstream_since, part.feature)
        self._add(locked, message=part.subject, author=None, change=change)

    def _locked(
        self, said: PatchNote | CommitPart | PullPart, commit: str, *, digest: str, base: str = ""
    ) -> LockedPatch:
        return LockedPatch(
            id=commit,
            series=self._series.name,
            group=said.group,
            subject=said.subject,
            switches=said.switches,
            digest=digest,
            base=base,
        )

    def _add_commit(self, note: PatchNote, full: str) -> None:
        commit = self._repository[full]
        if not self._has_parent(full):
            raise SourceError(
                f"Commit {full} has no parent here, so what it changes cannot be told.", hint="Run again."
            )
        if len(commit.parents) > 1:
            raise SourceError(
                f"Series {self._series.name}: commit {full} is a merge.", hint="Name the commits that it brings."
            )
        parent = str(commit.parent_ids[0])
        locked = self._locked(note, full, digest=digest_of(self._repository, parent, full), base=parent)
        subject = text_of(commit.raw_message).partition("\n")[0]
        if subject != note.subject:
            self._context.console.warn(f"commit {note.id} is {subject!r}, the manifest calls it {note.subject!r}")
        change = TreeChange(tree_of(self._repository, parent), tree_of(self._repository, full))
        self._add(locked, message=text_of(commit.raw_message), author=author_of(commit), change=change)

    def _has_parent(self, commit: str) -> bool:
        found = self._repository[commit]
        return bool(found.parent_ids) and found.parent_ids[0] in self._repository

    def _add(
        self,
        locked: LockedPatch,
        *,
        message: str,
        author: Author | None,
        change: TextChange | TreeChange | UpstreamChange,
    ) -> None:
        self._patches.append(
            Patch(
                locked=locked,
                number=len(self._patches) + 1,
                part=self._part,
                message=message,
                author=author,
                change=change,
            )
        )
