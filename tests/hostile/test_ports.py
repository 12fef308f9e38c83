"""Processes of a command are joined by pipes: nothing on the network can reach them."""

import contextlib
import pathlib
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.slow  # several processes

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def start(tmp_path):
    """Starts `prepare pretraining` with two processes on text that keeps them busy."""
    vocabulary = tmp_path / "vocab.txt"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS.upper(), *LETTERS]
    vocabulary.write_text("\n".join([*pieces, *(f"##{letter}" for letter in LETTERS), "."]))
    (tmp_path / "text").mkdir()
    for name in ("one", "two"):
        (tmp_path / "text" / name).write_text("Some words, again and again. " * 1_000_000)
    processes = []

    def start_prepare(**options):
        arguments = ["--input", str(tmp_path / "text" / "*"), "--vocabulary", str(vocabulary)]
        arguments += ["--output", str(tmp_path / "records"), "--num-processes", "2"]
        command = [sys.executable, "-m", "spanbert_tf.cli", "prepare", "pretraining", *arguments]
        process = psutil.Popen(command, stderr=subprocess.PIPE, text=True, **options)
        processes.append(process)
        return process

    yield start_prepare
    for process in processes:
        if process.is_running():
            process.kill()
        process.wait()


def wait_for_both(tmp_path, process):
    """Until both workers write their records."""
    spill = tmp_path / "records.incomplete" / "spill"
    while len(list(spill.glob("*"))) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
        yield


def listening_addresses(process):
    for member in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in member.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    yield connection.laddr


def workers_of(process):
    return [
        child for child in process.children(recursive=True) if "LokyProcess" in str(child.cmdline())
    ]


def test_no_process_listens_on_the_network(start, tmp_path):
    process = start()
    addresses, workers = set(), set()
    for _ in wait_for_both(tmp_path, process):
        addresses |= set(listening_addresses(process))
    workers = workers_of(process)
    addresses |= set(listening_addresses(process))
    assert len(workers) == 2
    assert not addresses


def test_a_killed_process_ends_the_command_in_a_line(start, tmp_path):
    process = start()
    for _ in wait_for_both(tmp_path, process):
        pass
    victim, other = workers_of(process)
    victim.kill()
    _, errors = process.communicate(timeout=120)
    lines = [line for line in errors.splitlines() if not line.startswith("preparing: ")]
    assert process.returncode == 2
    assert lines == [
        "spanbert-tf: --num-processes 2: a process was killed, perhaps for want of memory; take "
        "fewer processes, or more --num-shards"
    ]
    assert not other.is_running()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text", "vocab.txt"]


def test_no_process_outlives_a_killed_command(start, tmp_path):
    process = start()
    for _ in wait_for_both(tmp_path, process):
        pass
    workers = workers_of(process)
    process.kill()
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert (len(gone), alive) == (2, [])


def test_a_script_without_a_guard_can_take_processes(tmp_path):
    """Python's own pools would run the script again in each process."""
    (tmp_path / "vocabulary").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nA\na\nb")
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text("a b a b " * 40)
    script = tmp_path / "script.py"
    script.write_text(
        "from data_prep.beam.writing import write_pretraining_records\n"
        f"folder = {str(tmp_path)!r}\n"
        "print('begins')\n"
        "write_pretraining_records(f'{folder}/*.txt', vocabulary=f'{folder}/vocabulary',\n"
        "    output=f'{folder}/records', num_processes=2)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PYTHONPATH": str(pathlib.Path(__file__).parents[2]), "PATH": ""},
    )  # fmt: skip
    assert done.stdout.splitlines()[0] == "begins"
    assert done.stdout.count("begins") == 1
    assert (tmp_path / "records" / "dataset_info.json").exists()
