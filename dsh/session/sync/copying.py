"""From one place to another: what is missing there, parents first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsh.core.errors import DshError, StoreError
from dsh.session.sync.model import Broken, Offer, Outcome, Place, key_of


class Counts(NamedTuple):
    """`offered` logs, of which `known` were there already."""

    offered: int
    known: int


class Copy:
    """The copying of what one place has and another has not. Iterating does it, an outcome a log; a log that cannot be
    taken is told and passed over; trouble with a database or a connection ends it."""

    def __init__(self, source: Place, target: Place, *, dry_run: bool = False) -> None:
        self._source = source
        self._target = target
        self._dry_run = dry_run
        offers = list(source.offers())
        self._wanted = target.wanted(offers)
        self.counts = Counts(len(offers), len(offers) - len(self._wanted))

    def __len__(self) -> int:
        return len(self._wanted)

    def __iter__(self) -> Iterator[Outcome]:
        described: list[Offer] = []
        for offer in self._wanted:
            try:
                described.append(offer if offer.id is not None else self._source.described(offer))
            except (StoreError, Broken):
                raise
            except (DshError, OSError) as error:
                yield _failed(offer, error)
        for offer in _parents_first(described):
            try:
                yield self._target.put(offer, lambda: self._source.fetch(offer), dry_run=self._dry_run)  # noqa: B023
            except (StoreError, Broken):
                raise
            except (DshError, OSError) as error:
                yield _failed(offer, error)


def _failed(offer: Offer, error: DshError | OSError) -> Outcome:
    """The log that could not be taken, by its id, or where that is not known by its file."""
    reason = error.message if isinstance(error, DshError) else (error.strerror or str(error))
    if isinstance(error, OSError) and error.filename is not None:
        reason = f"{error.filename}: {reason}"
    name = offer.id if offer.id is not None else f"{offer.key}/{offer.length}-{offer.digest}"
    return Outcome("failed", name, reason=reason)


def _parents_first(offers: Iterable[Offer]) -> list[Offer]:
    """Families after those that they were forked from; in a family the longest first, but forks inside it last."""
    families: dict[str, list[Offer]] = {}
    for offer in offers:
        families.setdefault(offer.key, []).append(offer)
    above = {
        key: {key_of(each.parent) for each in family if each.parent is not None} & set(families) - {key}
        for key, family in families.items()
    }
    ordered: dict[str, None] = {}
    for start in families:
        chain = [start]  # a stack, not calls: a chain of forks may be long
        entered: set[str] = set()
        while chain:
            key = chain[-1]
            waiting = [each for each in sorted(above[key]) if each not in ordered and each not in entered]
            entered.add(key)
            if waiting:
                chain.append(waiting[0])
            else:
                ordered[chain.pop()] = None
    return [
        offer
        for key in ordered
        for offer in sorted(
            families[key], key=lambda each: (each.parent is not None and key_of(each.parent) == each.key, -each.length)
        )
    ]
