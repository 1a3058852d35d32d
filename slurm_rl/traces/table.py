"""Parses delimited text into columns at C speed, and finds every bad row with its line when something is wrong."""

from __future__ import annotations

import csv
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from slurm_rl.traces.files import Source
from slurm_rl.traces.trace import Floats, Ints, Labels, Note

if TYPE_CHECKING:
    import pandas as pd  # slow to import; not needed when the cache answers

KEPT_LINES = 5  # line numbers named per kind of problem
LARGEST = 1e15  # beyond this no time, size or count is meant seriously
_BLOCK = 1 << 20
_NO_TIME = ("", "Unknown", "None", "none", "N/A", "null", "NULL", "nan", "-1")
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The columns of a text table, in file order, and what is wanted of them; the rest is skipped."""

    names: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    wholes: tuple[str, ...] = ()  # numbers that are mostly whole; parsed faster, rounded where they are not
    labels: tuple[str, ...] = ()
    times: tuple[str, ...] = ()  # dates (read as UTC where no zone is given) or Unix seconds
    ids: tuple[str, ...] = ()  # whole numbers where all of them are, else strings
    separator: str = ","  # " " is any white space
    comment: str = ""
    header: bool = True


class Screen:
    """Which rows are kept, and for each kind of bad row how many there are and on which lines."""

    def __init__(self, source: Source, count: int, line_of: Callable[[Ints], list[int]]) -> None:
        self.source, self.keep, self._line_of = source, np.ones(count, dtype=bool), line_of
        self.notes: list[Note] = []
        self.lost = 0  # rows that never became table rows
        self.skipped = 0

    def lose(self, what: str, lines: list[int]) -> None:
        """Counts lines that could not be split into fields and numbers."""
        self.lost += len(lines)
        self.notes.append(Note(what, len(lines), tuple(lines[:KEPT_LINES]), dropped=True))

    def skip(self, rows: Mask, what: str) -> None:
        """Leaves out rows that are no jobs, or no jobs that ran; they are not bad."""
        rows = rows & self.keep
        if rows.any():
            self.note(rows, what, dropped=True)
            self.keep &= ~rows
            self.skipped += int(rows.sum())

    def drop(self, bad: Mask, what: str) -> None:
        """Drops rows, unless another reason dropped them before."""
        bad = bad & self.keep
        if bad.any():
            self.note(bad, what, dropped=True)
            self.keep &= ~bad

    def note(self, rows: Mask, what: str, *, dropped: bool = False) -> None:
        """Says something about kept rows."""
        rows = rows & self.keep
        count = int(rows.sum())
        if count:
            first = np.flatnonzero(rows)[:KEPT_LINES].astype(np.int64)
            self.notes.append(Note(what, count, tuple(self._line_of(first)), dropped))

    def finish(self) -> tuple[Note, ...]:
        """The notes; an error when nothing is left, or more rows are bad than good."""
        total = len(self.keep) + self.lost
        dropped = [n for n in self.notes if n.dropped]
        bad = self.lost + len(self.keep) - int(self.keep.sum()) - self.skipped
        if total == 0:
            raise self.source.error("no jobs in the file", remedy="is this the right file?")
        if bad * 2 > total or (not self.keep.any() and dropped):
            worst = max(dropped, key=lambda n: n.rows)
            bad = max(bad, worst.rows)
            raise self.source.error(
                f"{bad} of {total} rows cannot be used, most of them: {worst.what}",
                line=worst.lines[0] if worst.lines else None,
                remedy="give the right --format or mend the file",
            )
        return tuple(self.notes)


@dataclass(slots=True)
class TraceTable:
    """The wanted columns of a text table, row by row as in the file."""

    count: int
    numbers: dict[str, Floats]
    labels: dict[str, Labels]
    ids: dict[str, npt.NDArray[np.int64] | npt.NDArray[np.object_]]
    screen: Screen
    wholes: dict[str, Ints] = field(default_factory=dict)  # a blank here is not allowed

    def has(self, name: str) -> bool:
        return name in self.numbers or name in self.labels or name in self.ids

    def number(self, name: str) -> Floats:
        """A column of numbers, NaN where blank or where the file has no such column."""
        return self.numbers[name] if name in self.numbers else np.full(self.count, np.nan)

    def label(self, name: str) -> Labels:
        return self.labels.get(name) or Labels.blank(self.count)

    def checked(self, name: str, *, low: float = 0.0) -> Floats:
        """A column of numbers whose rows are dropped where it is not finite, too large or below `low`."""
        values = self.number(name)
        with np.errstate(invalid="ignore"):
            self.screen.drop(values < low, f"{name} is {'negative' if low == 0 else f'below {low:g}'}")
            beyond = np.abs(values) > LARGEST
            self.screen.drop(beyond, f"{name} is out of range")
        return np.where(beyond, np.nan, values) if beyond.any() else values

    def time(self, name: str) -> Floats:
        """A column of times in Unix seconds, NaN where blank; rows with an unreadable one are dropped."""
        if name not in self.numbers:
            return np.full(self.count, np.nan)
        values = self.numbers[name]
        self.screen.drop(np.isinf(values), f"{name} is not a time")
        return np.where(np.isinf(values), np.nan, values)

    def seconds(self, name: str) -> Ints:
        """A column of times, rounded half up to whole seconds, -1 where blank."""
        return whole(self.checked(name), blank=-1)


def whole(values: Floats, *, blank: int) -> Ints:
    """Rounds half up; NaN and what no whole number can hold become `blank`."""
    known = np.abs(values) <= LARGEST
    return np.where(known, np.floor(np.where(known, values, 0.0) + 0.5), blank).astype(np.int64)


def parse(source: Source, raw: bytes, layout: ColumnLayout) -> TraceTable:
    """Parses a whole file; rows that do not split or hold no numbers are dropped and noted."""
    scan: _Scan | None = None
    lines: Ints | None = None

    def line_of(rows: Ints) -> list[int]:
        nonlocal lines
        lines = _data_lines(raw, layout) if lines is None else lines
        numbers: list[int] = lines[rows].tolist()
        return numbers

    try:
        if not _even(raw, layout):
            raise ValueError
        columns = _columns(raw, layout, _whole_ids(raw, layout), np.int64)
    except (ValueError, OverflowError, Warning):  # pandas' ParserError is a ValueError
        scan = _Scan(raw, layout)
        lines = scan.lines
        columns = _columns(scan.clean, layout, scan.whole_ids, np.float64)
    first = next(iter(columns.values()))
    count = len(first.codes if isinstance(first, Labels) else first)
    screen = Screen(source, count, line_of)
    if scan:
        for what, where in scan.bad.items():
            screen.lose(what, where)
    return TraceTable(
        count,
        numbers={n: columns[n] for n in (*layout.numbers, *layout.times)},
        labels={n: columns[n] for n in layout.labels},
        ids={n: columns[n] for n in layout.ids},
        screen=screen,
        wholes={n: v if (v := columns[n]).dtype == np.int64 else whole(v, blank=-1) for n in layout.wholes},
    )


def _even(raw: bytes, layout: ColumnLayout) -> bool:
    """False where a row has too many or too few fields, or where quotes keep us from knowing it."""
    if layout.separator == " ":
        return True  # every column is wanted as a number there, and a missing one is no number
    rows = raw.count(b"\n") + (not raw.endswith(b"\n"))
    return raw.count(layout.separator.encode()) == rows * (len(layout.names) - 1) and b'"' not in raw


def _whole_ids(raw: bytes, layout: ColumnLayout) -> dict[str, bool]:
    """Whether id columns look like whole numbers in the first row; leading zeros would be lost as numbers."""
    result = {}
    for _, fields in _split(raw[: 1 << 16], layout):
        for name in layout.ids:
            at = layout.names.index(name)
            result[name] = at < len(fields) and _is_whole(fields[at])
            if at == 0 and b"\n0" in raw and re.search(rb"\n0\d", raw):
                result[name] = False
        break
    return dict.fromkeys(layout.ids, False) | result


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 18 and (text == "0" or text[0] != "0")


def _columns(raw: bytes, layout: ColumnLayout, whole_ids: Mapping[str, bool], wholes: type) -> dict[str, Any]:
    import pandas as pd

    dtypes: dict[str, Any] = dict.fromkeys(layout.names, np.float32) if layout.separator == " " else {}
    dtypes |= dict.fromkeys(layout.numbers, np.float64) | dict.fromkeys(layout.labels, object)
    dtypes |= dict.fromkeys(layout.wholes, wholes)
    dtypes |= dict.fromkeys(layout.times, object)
    dtypes |= {name: np.int64 if whole_ids[name] else object for name in layout.ids}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = pd.read_csv(
            io.BytesIO(raw),
            sep=_separator(raw, layout),
            header=None,
            names=list(layout.names),
            skiprows=1 if layout.header else 0,
            index_col=False,
            usecols=list(dtypes),
            dtype=dtypes,
            comment=layout.comment or None,
            keep_default_na=False,
            na_values=[""],
            encoding_errors="replace",
            engine="c",
            low_memory=True,
        )
    columns: dict[str, Any] = {}
    for name in list(dtypes):
        series = frame.pop(name)
        if name in layout.labels:
            # Not dtype "category": pandas would take the name 007 for the number 7.
            codes, uniques = pd.factorize(series)
            columns[name] = Labels(codes.astype(np.int32), tuple(map(str, uniques)))
        elif name in layout.ids:
            values = series.to_numpy()
            if values.dtype == object:
                values = np.array([v if isinstance(v, str) else "" for v in values.tolist()], dtype=object)
            columns[name] = values
        elif name in layout.times:
            columns[name] = unix_seconds(series)
        elif name in layout.numbers or name in layout.wholes:
            columns[name] = series.to_numpy(copy=True)
    return columns


def unix_seconds(texts: pd.Series[Any]) -> Floats:
    """Dates or Unix seconds as numbers; NaN for a word that means none, infinity for what cannot be read."""
    import pandas as pd

    blank = texts.isna() | texts.isin(_NO_TIME)
    some = texts[~blank].head(1).to_list()
    if not some or some[0].isdigit():
        numbers = pd.to_numeric(texts.where(~blank), errors="coerce").to_numpy(dtype=np.float64)
        return np.where(blank.to_numpy() | ~np.isnan(numbers), numbers, np.inf)
    dates = pd.to_datetime(texts.where(~blank), errors="coerce", utc=True, format="ISO8601").dt.tz_localize(None)
    milliseconds = dates.to_numpy().astype("datetime64[ms]").astype(np.int64)
    unread = dates.isna().to_numpy()
    return np.where(blank.to_numpy(), np.nan, np.where(unread, np.inf, milliseconds / 1000.0))


def _separator(raw: bytes, layout: ColumnLayout) -> str:
    """White space of any length is slow to split at; single blanks are the common case and quick."""
    if layout.separator != " ":
        return layout.separator
    first = next((line for line in raw[: 1 << 16].split(b"\n") if line[:1].isdigit()), b"  ")
    uneven = b"  " in first or b"\t" in raw or b"\n " in raw or b" \n" in raw or b" \r" in raw
    return r"\s+" if uneven else " "


def _split(raw: bytes, layout: ColumnLayout) -> Iterator[tuple[int, list[str]]]:
    """Line numbers (from 1) and fields of the data rows."""
    lines = io.StringIO(raw.decode("utf-8", errors="replace"), newline=None)
    if layout.separator == " ":
        for number, line in enumerate(lines, 1):
            fields = line.split(layout.comment, 1)[0].split() if layout.comment else line.split()
            if fields:
                yield number, fields
        return
    reader = csv.reader(lines, delimiter=layout.separator)
    if layout.header:
        next(reader, None)
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error:  # a quote without end, or a field of megabytes
            fields = ["unreadable"]
        if fields and fields != [""]:
            yield reader.line_num, fields


class _Scan:
    """A second walk over a file with something wrong in it: the good rows as clean text, and where the bad ones are.

    Only blocks that do not parse as they are get looked at line by line, so one bad row in a million costs little.
    """

    def __init__(self, raw: bytes, layout: ColumnLayout) -> None:
        csv.field_size_limit(1 << 24)
        self.bad: dict[str, list[int]] = {}
        self.whole_ids = dict.fromkeys(layout.ids, True)
        clean, lines, first = [], [], 0
        for block in [raw] if b'"' in raw else _blocks(raw):
            # A header stands in the first block only; the clean text keeps it, so that all blocks parse alike.
            part = layout if not first else replace(layout, header=False)
            good, numbers = self._plain(block, part) or self._line_by_line(block, part, first)
            clean.append(good)
            lines.append(numbers + first)
            first += block.count(b"\n")
        self.clean, self.lines = b"".join(clean), np.concatenate(lines)

    def _plain(self, block: bytes, layout: ColumnLayout) -> tuple[bytes, Ints] | None:
        """The block as it is, if nothing in it is bad."""
        if b'"' in block or not _even(block, layout):
            return None
        try:
            columns = _columns(block, layout, dict.fromkeys(layout.ids, False), np.float64)
        except (ValueError, OverflowError, Warning):
            return None
        if any(np.isnan(columns[name]).any() for name in layout.wholes):
            return None
        for name in layout.ids:
            self.whole_ids[name] = self.whole_ids[name] and all(map(_is_whole, columns[name].tolist()))
        return block if block.endswith(b"\n") else block + b"\n", _data_lines(block, layout)

    def _line_by_line(self, block: bytes, layout: ColumnLayout, first: int) -> tuple[bytes, Ints]:
        out, lines = io.StringIO(), []
        writer = csv.writer(out, delimiter=layout.separator, lineterminator="\n")
        if layout.header:
            writer.writerow(layout.names)
        wanted = (*layout.numbers, *layout.wholes)
        if layout.separator == " ":  # nothing but numbers there, wanted or not
            wanted = tuple(n for n in layout.names if n not in layout.ids)
        number_at = [(layout.names.index(n), n) for n in wanted]
        id_at = [(layout.names.index(n), n) for n in layout.ids]
        for line, fields in _split(block, layout):
            problem = _problem(fields, layout, number_at)
            if problem:
                self.bad.setdefault(problem, []).append(line + first)
                continue
            for at, name in id_at:
                self.whole_ids[name] &= _is_whole(fields[at])
            lines.append(line)
            writer.writerow(fields)
        return out.getvalue().encode(), np.array(lines, dtype=np.int64)


def _problem(fields: list[str], layout: ColumnLayout, number_at: list[tuple[int, str]]) -> str:
    if len(fields) != len(layout.names):
        return f"{len(fields)} fields, expected {len(layout.names)}"
    for at, name in number_at:
        text = fields[at] = fields[at].strip()
        if text:
            try:
                value = float(text)
            except ValueError:
                return f"{name} is not a number"
            if math.isnan(value) or "_" in text:
                return f"{name} is not a number"
        elif name in layout.wholes:
            return f"{name} is blank"
    return ""


def _blocks(raw: bytes) -> Iterator[bytes]:
    """The text in pieces of about a megabyte that end with a line."""
    start = 0
    while start < len(raw):
        end = raw.find(b"\n", start + _BLOCK)
        end = len(raw) if end < 0 else end + 1
        yield raw[start:end]
        start = end


def _data_lines(raw: bytes, layout: ColumnLayout) -> Ints:
    """Line numbers (from 1) of the rows of a text."""
    if b'"' in raw or not raw or raw.count(b"\r") != raw.count(b"\r\n"):
        return np.array([line for line, _ in _split(raw, layout)], dtype=np.int64)
    bytes_ = np.frombuffer(raw, dtype=np.uint8)
    steps = range(0, len(raw), 1 << 24)  # in steps, since a comparison takes as much memory as what it compares
    ends = np.concatenate([np.flatnonzero(bytes_[at : at + (1 << 24)] == ord("\n")) + at for at in steps])
    starts = np.concatenate(([0], ends + 1))
    starts = starts[starts < len(raw)]
    head = bytes_[starts]
    blank = (head == ord("\n")) | (head == ord("\r"))
    if layout.comment:
        blank |= head == ord(layout.comment)
    if layout.separator == " ":
        for at in np.flatnonzero((head == ord(" ")) | (head == ord("\t"))).tolist():
            text = raw[starts[at] : ends[at] if at < len(ends) else len(raw)].strip()
            blank[at] = not text or text.startswith(layout.comment.encode() or b"\n")
    lines = np.flatnonzero(~blank) + 1
    return lines[1:] if layout.header else lines
