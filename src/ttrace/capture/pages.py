"""Pages: what waits for the end of a step is written then, all of its bytes at once.

Enters: the items of an outbox whose bytes come late, in the order of the calls. Leaves: bytes in
the trace, in one piece; every item has its record then, or its error. It must not know devices, nor
who keeps the order of the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xxhash

from ttrace.capture.items import Item, Sent, SheetItem
from ttrace.core.record import Location, Record
from ttrace.trace.payload import Later
from ttrace.trace.writer import PagePart, TraceWriter


def write_page(late: Sequence[Item], writer: TraceWriter, pause: Callable[[], None]) -> None:
    """Bytes that were met before, and are still the same, are not written again.

    `pause` is called after each little piece of work.
    """
    page = _Page(pause)
    for item in late:
        try:
            page.take(item)
        except Exception as error:  # noqa: BLE001  (told with the record, when it is its turn)
            item.error = error
    try:
        locations = writer.append_all(page.parts)
    except Exception as error:  # noqa: BLE001  (the same)
        for item in late:
            item.error = item.error or error
        return
    for item in late:
        pause()
        if item.error is not None:
            continue
        if isinstance(item, SheetItem):
            item.put_at([locations[place] for place in page.sheets[item]])
        else:
            place = page.places[item.sent]
            item.sent.record = _placed(item, locations[place] if isinstance(place, int) else place)


class _Page:
    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause
        self.parts: list[PagePart] = []
        self.places: dict[Sent, int | Location] = {}  # in `parts`, or where it was before
        self.sheets: dict[SheetItem, list[int]] = {}  # places of each of their records
        self._given: dict[Later, int | Location] = {}
        self._equal: dict[str, int] = {}  # places of what sheets have, by checksum

    def take(self, item: Item) -> None:
        assert item.later is not None
        self._pause()
        if isinstance(item, SheetItem):
            parts = item.sheet.parts(item.later())
            self.sheets[item] = [self._place_of_equal(part) for part in parts]
            return
        place = self._given.get(item.later)
        if place is None:
            data = item.later()
            part = PagePart(data, xxhash.xxh3_64_hexdigest(data))
            place = self._place_before(item, part)
            if place is None:
                place = len(self.parts)
                self.parts.append(part)
            self._given[item.later] = place
        self.places[item.sent] = place

    def _place_of_equal(self, data: memoryview) -> int:
        """Of these bytes, or of equal ones that another kind of the same parameter has."""
        self._pause()
        xxh3 = xxhash.xxh3_64_hexdigest(data)
        place = self._equal.get(xxh3)
        if place is None or self.parts[place].data.nbytes != data.nbytes:
            place = self._equal[xxh3] = len(self.parts)
            self.parts.append(PagePart(data, xxh3))
        return place

    def _place_before(self, item: Item, part: PagePart) -> int | Location | None:
        """Where the tensor of this item was put when it was met before, if it is unchanged."""
        if item.repeat is None:
            return None
        before = item.repeat.of
        place = self.places.get(before)
        if isinstance(place, int):
            return place if self.parts[place].xxh3 == part.xxh3 else None
        if place is None:
            place = None if before.record is None else before.record.location
        is_same = place is not None and (place.size_bytes, place.xxh3) == (
            part.data.nbytes,
            part.xxh3,
        )
        return place if is_same else None


def _placed(item: Item, location: Location) -> Record:
    """The record of an item, which another may have been before it with the same bytes."""
    before = None if item.repeat is None else item.repeat.of.record
    if item.repeat is not None and before is not None and before.location == location:
        again = item.repeat.record(before)
        if again is not None:
            return again
    return item.record.at(location)
