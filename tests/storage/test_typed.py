"""Records that many threads read for the first time at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ofms

SOURCES = Path(ofms.__file__).parent

# A process of its own: without the lock, it ends with a segmentation fault.
PROGRAM = """
import sys, threading
import msgspec
from ofms.storage.typed import from_json, from_msgpack, from_values

ROUNDS, THREADS = 60, 5
sys.setswitchinterval(1e-6)
values = {"first": {"sizes": [{"a": 1}]}, "last": {"sizes": [{"b": None}]}}
READ = {
    "json": lambda kind: from_json(msgspec.json.encode(values), kind),
    "msgpack": lambda kind: from_msgpack(msgspec.msgpack.encode(values), kind),
    "values": lambda kind: from_values(values, kind),
}[sys.argv[1]]

def make(number):
    # Annotations are text, as in modules with `from __future__ import annotations`.
    inner = "list[dict[str, int | None]] | None"
    globals()[f"Part{number}"] = type(msgspec.Struct)(f"Part{number}", (msgspec.Struct,), {
        "__module__": __name__, "__annotations__": {"sizes": inner, "more": inner}, "more": None})
    return type(msgspec.Struct)(f"Whole{number}", (msgspec.Struct,), {
        "__module__": __name__, "__annotations__": {"first": f"Part{number}", "last": f"Part{number}"}})

kinds, start = [make(number) for number in range(ROUNDS)], threading.Barrier(THREADS)

def read():
    for kind in kinds:
        start.wait()
        found = READ(kind)
        assert found.first.sizes == [{"a": 1}] and found.last.sizes == [{"b": None}], found

threads = [threading.Thread(target=read) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


@pytest.mark.parametrize("source", ["json", "msgpack", "values"])
def test_threads_may_use_a_record_for_the_first_time_at_once(source: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, source], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_records_are_decoded_in_one_place() -> None:
    """All but suites that users run: they decode in one thread."""
    decoding = re.compile(r"msgspec\.(convert\(|(json|msgpack)\.(decode\(.*type=|Decoder))")
    found = {
        str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if decoding.search(path.read_text("utf-8"))
    }
    assert found == {"storage/typed.py", "testing/checks.py"}
