"""Where two recordings of `recorded_outputs` differ, and by how much."""

import dataclasses
import itertools
import json
import pathlib
import re
import zipfile
from collections.abc import Callable, Iterator

import numpy as np

# What two recordings of one tree differ in: clocks, processes, places.
_NOISE = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?( UTC|Z|\+00:00)?"), "<date>"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "<date>"),
    (re.compile(r"\b\d+:\d\d:\d\d\b"), "<time>"),
    (re.compile(r"\b\d[\d,.]* ?(s|ms|h|min|seconds?|minutes?|hours?)\b(?! of)"), "<time>"),
    (
        re.compile(r"\b\d[\d,.]* (tokens|rows|records|examples|steps|MB)(/s| (a|per) second)"),
        "<rate>",
    ),
    (re.compile(r"process \d+"), "process <number>"),
    (re.compile(r"/[\w./+-]*/(work|tmp|wt)/[\w.-]*"), "<path>"),
    (re.compile(r"/tmp/\w+"), "<path>"),
)
# Lines of progress come by the clock.
_PROGRESS = re.compile(r"^[\w /.-]+: (starting|\d[\d,]* of \d[\d,]* )")
_CLOCKS = re.compile(r"second|input_wait|limit_share|time|date|created|per_s\b|rate_of_steps|^wall")
# Files whose bytes hold names of graphs, clocks or a format of their own: that they are there is
# compared, and what they hold by other items (arrays, outputs, tables).
_NAMES_ALONE = re.compile(
    r"(saved_model\.pb|fingerprint\.pb|variables\.(index|data-.*)|events\.out\.tfevents.*|\.png)$"
)
_IGNORED = re.compile(r"(^|/)(checkpoints|\.[^/]*lock)(/|$)")
_ARRAYS = (".npz", ".npy", ".h5", ".safetensors")


@dataclasses.dataclass(frozen=True)
class Difference:
    """One difference of two items.

    Attributes:
        text: where and what.
        size: the largest difference, of numbers; `None` where something else differs.
    """

    text: str
    size: float | None = None


def compare_recordings(
    first: pathlib.Path, second: pathlib.Path
) -> Iterator[tuple[str, list[Difference]]]:
    """Each item of either folder with its differences: what was printed, and its files.

    Args:
        first: what `record` wrote.
        second: another one.
    """
    names = {path.name for folder in (first, second) for path in (folder / "out").glob("*.json")}
    for name in sorted(names):
        item = name.removesuffix(".json")
        found = _of_files(first / "out" / name, second / "out" / name, "printed")
        place = item.replace("glue_runs_", "glue_runs/", 1)
        if not place.endswith("+"):
            found += list(_of_places(first / "work", second / "work", place))
        yield item, found


def _of_places(first: pathlib.Path, second: pathlib.Path, place: str) -> Iterator[Difference]:
    if (first / place).is_file() and (second / place).is_file():
        yield from _of_files(first / place, second / place, place)
        return
    files = [_files(folder / place) for folder in (first, second)]
    for name in sorted(files[0].keys() | files[1].keys()):
        if name not in files[0] or name not in files[1]:
            yield Difference(f"{name}: only in the {'second' if name in files[1] else 'first'}")
        else:
            yield from _of_files(files[0][name], files[1][name], name)


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Files by their names, those of clocks and processes without these."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not _IGNORED.search(name):
            found[re.sub(r"(events\.out\.tfevents)\..*(\.v2)$", r"\1\2", name)] = path
    return found


def _of_files(first: pathlib.Path, second: pathlib.Path, name: str) -> list[Difference]:
    for path, other in ((first, "second"), (second, "first")):
        if not path.exists():
            return [Difference(f"{name}: only in the {other}")]
    if first.read_bytes() == second.read_bytes() or _NAMES_ALONE.search(name):
        return []
    if first.suffix in _ARRAYS:
        return _of_arrays(_arrays(first), _arrays(second), name)
    if zipfile.is_zipfile(first) and zipfile.is_zipfile(second):
        return _of_archives(first, second, name)
    try:
        texts = [path.read_text(encoding="utf-8") for path in (first, second)]
    except UnicodeDecodeError:
        places = itertools.zip_longest(first.read_bytes(), second.read_bytes())
        place = next(place for place, (one, other) in enumerate(places) if one != other)
        sizes = [path.stat().st_size for path in (first, second)]
        return [
            Difference(f"{name}: bytes differ from {place} on, {sizes[0]} and {sizes[1]} bytes")
        ]
    return _of_texts(*texts, name)


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path) as file:
            return dict(file)
    if path.suffix == ".npy":
        return {"": np.load(path)}
    if path.suffix == ".safetensors":
        import safetensors.numpy

        return safetensors.numpy.load_file(path)
    import h5py

    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, value: found.update({name: value[()]} if hasattr(value, "shape") else {})
        )
    return found


def _of_arrays(first: dict, second: dict, name: str) -> list[Difference]:
    found = []
    for key in sorted(first.keys() | second.keys()):
        if key not in first or key not in second:
            which = "second" if key in second else "first"
            found.append(Difference(f"{name}: {key}: only in the {which}"))
            continue
        one, other = np.asarray(first[key]), np.asarray(second[key])
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            kinds = [f"{each.dtype}{list(each.shape)}" for each in (one, other)]
            found.append(Difference(f"{name}: {key}: {kinds[0]} and {kinds[1]}"))
        elif one.tobytes() != other.tobytes():
            found.append(_of_values(one, other, f"{name}: {key}"))
    return found


def _of_values(one: np.ndarray, other: np.ndarray, place: str) -> Difference:
    differing = one != other
    if one.dtype.kind not in "fiub":
        return Difference(f"{place}: {int(differing.sum())} of {one.size} values differ")
    sizes = np.abs(one.astype(np.float64) - other.astype(np.float64))
    largest = float(np.nanmax(sizes)) if sizes.size else 0.0
    count = int(differing.sum())
    text = f"{place}: {count} of {one.size} values differ, by up to {largest:.3g}"
    return Difference(text, largest if one.dtype.kind == "f" else None)


def _of_archives(first: pathlib.Path, second: pathlib.Path, name: str) -> list[Difference]:
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        contents = [{each: file.read(each) for each in file.namelist()} for file in (one, other)]
    keys = sorted(contents[0].keys() | contents[1].keys())
    return [
        Difference(f"{name}: {key}: differs")
        for key in keys
        if contents[0].get(key) != contents[1].get(key)
    ]


def _of_texts(first: str, second: str, name: str) -> list[Difference]:
    read: Callable | None = None
    if name.endswith(".jsonl"):
        read = _json_lines
    elif name.endswith(".json") or name == "printed":
        read = json.loads
    if read is not None:
        try:
            return list(_of_json(read(first), read(second), name))
        except json.JSONDecodeError:
            pass
    lines = [_without_noise(text.split("\n")) for text in (first, second)]
    return list(_of_json(*lines, name))


def _json_lines(text: str) -> list:
    return [json.loads(line) for line in text.splitlines()]


def _without_noise(lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        if _PROGRESS.match(line):
            continue
        for pattern, text in _NOISE:
            line = pattern.sub(text, line)
        found.append(re.sub(r" {2,}", "  ", line))
    return found


def _of_json(first: object, second: object, place: str) -> Iterator[Difference]:
    """Of two JSON values; strings and lists of them without what clocks say."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(key for key in second if key not in first)]:
            if _CLOCKS.search(str(key)):
                continue
            if key not in first or key not in second:
                which = "second" if key in second else "first"
                yield Difference(f"{place}: {key}: only in the {which}")
            else:
                yield from _of_json(first[key], second[key], f"{place}: {key}")
    elif isinstance(first, list) and isinstance(second, list):
        if all(isinstance(each, str) for each in (*first, *second)):
            first, second = _without_noise(first), _without_noise(second)
        if len(first) != len(second):
            yield Difference(f"{place}: {len(first)} and {len(second)} entries or lines")
        for number, (one, other) in enumerate(zip(first, second, strict=False)):
            yield from _of_json(one, other, f"{place} {number + 1}")
    elif isinstance(first, str) and isinstance(second, str):
        if _without_noise([first]) != _without_noise([second]):
            yield from _of_lines(first, second, place)
    elif repr(first) != repr(second):
        numbers = [isinstance(each, int | float) for each in (first, second)]
        size = abs(first - second) if all(numbers) else None
        told = f", by {size:.3g}" if size is not None else ""
        yield Difference(f"{place}: {first!r} and {second!r}{told}", size)


def _of_lines(first: str, second: str, place: str) -> Iterator[Difference]:
    """Of two lines: where they are the same but for decimal numbers, how far these are apart."""
    pattern = re.compile(r"-?\d+\.\d+(?:e[+-]\d+)?")
    told = f"{place}:\n      {first[:300]}\n      {second[:300]}"
    size = None
    if pattern.sub("#", first) == pattern.sub("#", second):
        pairs = zip(pattern.findall(first), pattern.findall(second), strict=True)
        size = max(abs(float(one) - float(other)) for one, other in pairs)
    yield Difference(told, size)
