"""One transfer in a process of its own: files as they are through obstore, or refs one after the other.

python -m benchmarks.remote_child upload|download URL FOLDER
python -m benchmarks.remote_child refs URL FOLDER COUNT
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
from obstore.store import LocalStore

from mvc import Repo
from mvc.remotes.root_store import RootStore
from mvc.storage.object_store import PART_BYTES
from mvc.storage.opening import open_store
from mvc.storage.urls import parse_store_url

_THREADS = 4


def _open(url: str) -> Any:
    """Return the client's own store, reached as mvc reaches it."""
    parsed = parse_store_url(url)
    if parsed.scheme == "file":
        return LocalStore(parsed.prefix, mkdir=True)
    return vars(open_store(parsed))["_store"]


def upload(url: str, folder: Path) -> None:
    """Put every file of a folder, four at once, in parts of the size that mvc uses."""
    store = _open(url)
    paths = [path for path in folder.iterdir() if path.is_file()]
    with ThreadPoolExecutor(_THREADS) as crew:
        list(
            crew.map(lambda path: obstore.put(store, path.name, path, chunk_size=PART_BYTES), paths)
        )


def download(url: str, folder: Path) -> None:
    """Get every object into a file, in ranges, four at once."""
    store = _open(url)
    for one in [one for part in obstore.list(store) for one in part]:
        path, size_bytes = folder / Path(one["path"]).name, one["size"]
        with path.open("wb") as file, ThreadPoolExecutor(_THREADS) as crew:

            def get(at: int, key: str = one["path"], end: int = size_bytes) -> tuple[int, Any]:
                return at, obstore.get_range(store, key, start=at, end=min(end, at + PART_BYTES))

            for at, data in crew.map(get, range(0, size_bytes, PART_BYTES)):
                file.seek(at)
                file.write(data)


def refs(url: str, folder: Path, count: int) -> None:
    """Print the seconds of conditional puts of as many bytes as the root has, and of ref updates."""
    repo = Repo.open(folder)
    commits = [repo.resolve("HEAD"), repo.resolve("HEAD~1")]
    repo.push(url, ["HEAD:refs/heads/moving"])
    storage = open_store(parse_store_url(url))
    roots = RootStore(storage)
    found = storage.read_tagged("root")
    assert found is not None
    storage.replace("bare", found.data, None)
    times: dict[str, list[float]] = {"put": [], "update": [], "push": []}
    for number in range(count):
        bare = storage.read_tagged("bare")
        assert bare is not None
        began = time.perf_counter()
        storage.replace("bare", b"%d " % number + found.data, bare.tag)
        times["put"].append(time.perf_counter() - began)
        began = time.perf_counter()
        roots.read()
        roots.update(lambda root: root, since_read=True)
        times["update"].append(time.perf_counter() - began)
        began = time.perf_counter()
        repo.push(url, [f"+{commits[number % 2]}:refs/heads/moving"])
        times["push"].append(time.perf_counter() - began)
    print(json.dumps(times))


if __name__ == "__main__":
    verb, where, place, *rest = sys.argv[1:]
    if verb == "refs":
        refs(where, Path(place), int(rest[0]))
    else:
        {"upload": upload, "download": download}[verb](where, Path(place))
