"""Random reads of clips, as fast as from a memory map.

Random reads do not go through Lance, which takes a call for each of them, but straight to where Lance has put the clips: in
a file of format 2.0 they lie one after the other as plain numbers. This is verified at the edges of every page when a store
is first read; where it does not hold, Lance reads.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from veil.features.store_table import StoreInfo, flat_vectors, integers


class ClipMap:
    """Where the clips of every row lie in the files."""

    def __init__(self, dataset: Any, folder: Path, info: StoreInfo) -> None:
        self._dataset, self._dim, self._dtype = dataset, info.dim, np.dtype(info.dtype)
        self._files = [memoryview(b"")]  # so that there is a file where none can be mapped
        counted = (integers(batch["count"]) for batch in dataset.to_batches(columns=["count"]))
        self.counts = np.concatenate([np.zeros(0, np.int64), *counted])
        most = int(self.counts.max(initial=0))
        self.same = (
            most if len(self.counts) and int(self.counts.min()) == most else None
        )  # clips of every video
        # In which file each row lies, and its bytes there; file -1: on two pages, or Lance reads it.
        self._file = np.full(len(self.counts), -1)
        self._begin, self._end = np.zeros((2, len(self.counts)), np.int64)
        self._split_rows: dict[int, list[memoryview]] = {}  # the rows that lie on two pages or more
        at, to_verify = 0, []
        for fragment in dataset.get_fragments():
            rows = slice(at, at + fragment.count_rows())
            to_verify += self._add(fragment, folder, rows)
            at = rows.stop
        self._verify(to_verify)

    def _add(self, fragment: Any, folder: Path, rows: slice) -> list[int]:
        """Locate the rows of a fragment; returns those by which that can be verified."""
        from lance.file import LanceFileReader

        files = fragment.data_files()
        if fragment.num_deletions or len(files) != 1:
            return []
        path = folder / "data" / files[0].path
        fields = self._dataset.lance_schema.fields()
        clips = next(field for field in fields if field.name() == "clips").children()[0].id()
        columns = dict(zip(files[0].fields, files[0].column_indices, strict=True))
        if clips not in columns:
            return []
        pages = LanceFileReader(str(path)).metadata().columns[columns[clips]].pages
        width = self._dim * self._dtype.itemsize
        buffers = [page.buffers[0] for page in pages if len(page.buffers) == 1]
        sizes = np.array([buffer.size for buffer in buffers], np.int64)
        spans = self.counts[rows] * width
        if len(buffers) != len(pages) or (sizes % width).any() or sizes.sum() != spans.sum():
            return []
        with path.open("rb") as opened:
            file = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        if any(buffer.position + buffer.size > len(file) for buffer in buffers):
            raise ValueError(f"{path.name} is cut off")
        places = np.array([buffer.position for buffer in buffers], np.int64)
        ends = np.cumsum(sizes)
        begins = np.cumsum(spans) - spans  # as if the pages followed each other
        first, last = (np.searchsorted(ends, at, side="right") for at in (begins, begins + spans - 1))
        self._begin[rows] = places[first] + begins - (ends - sizes)[first]
        self._end[rows] = self._begin[rows] + spans
        self._file[rows] = np.where(first == last, len(self._files), -1)
        self._files.append(file)
        crossing = np.flatnonzero(first != last).tolist()
        for row in crossing:
            pieces = []
            for page in range(first[row], last[row] + 1):
                start = int(ends[page] - sizes[page])
                begin = max(int(begins[row]) - start, 0)
                end = min(int(begins[row] + spans[row]) - start, int(sizes[page]))
                pieces.append(file[int(places[page]) + begin : int(places[page]) + end])
            self._split_rows[rows.start + row] = pieces
        edges = np.flatnonzero(np.diff(first, prepend=-1)).tolist()  # the first rows of pages
        return [
            rows.start + row
            for row in sorted({*edges, *(e - 1 for e in edges if e), *crossing, len(spans) - 1})
        ]

    def _verify(self, rows: list[int]) -> None:
        """Where the map differs from Lance at the edge of any page, Lance reads everything."""
        for at in range(0, len(rows), 512):
            some = np.array(rows[at : at + 512])
            if self.read(some).tobytes() != self._taken(some).tobytes():
                self._file[:] = -1
                self._split_rows.clear()
                return

    def read(self, rows: np.ndarray) -> np.ndarray:
        """The clips of rows one after the other, ``(clips, D)``."""
        files, which = self._files, self._file[rows]
        places = zip(which.tolist(), self._begin[rows].tolist(), self._end[rows].tolist(), strict=True)
        parts: list[memoryview | bytes] = [files[file][begin:end] for file, begin, end in places]
        if int(which.min(initial=0)) < 0:
            self._complete(parts, rows)
        # A join copies bytes and nothing else: it takes as long as numpy's own look-up in a memory map.
        return np.frombuffer(bytearray().join(parts), self._dtype).reshape(-1, self._dim)

    def _complete(self, parts: list[memoryview | bytes], rows: np.ndarray) -> None:
        """Put in the rows that do not lie in one piece."""
        rows = rows % len(self.counts)
        apart = [(place, int(rows[place])) for place in np.flatnonzero(self._file[rows] < 0).tolist()]
        stray = [(place, row) for place, row in apart if row not in self._split_rows]
        if stray:
            taken = self._taken(np.array([row for _, row in stray]))
            ends = np.cumsum([self.counts[row] for _, row in stray])
            for (place, _), vectors in zip(stray, np.split(taken, ends[:-1]), strict=True):
                parts[place] = vectors.tobytes()
        for place, row in apart:
            if row in self._split_rows:
                parts[place] = b"".join(self._split_rows[row])

    def _taken(self, rows: np.ndarray) -> np.ndarray:
        column = self._dataset.take(rows.tolist(), columns=["clips"])["clips"]
        return np.concatenate([flat_vectors(chunk, self._dim) for chunk in column.chunks])
