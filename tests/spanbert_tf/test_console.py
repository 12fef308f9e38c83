"""What is printed to a reader that ends before."""

import os
import subprocess
import sys

PROGRAM = """
import sys
from spanbert_tf.console import table_console
from spanbert_tf.terminal import print_line

print_line("first")
sys.stdin.readline()  # until the reader has ended
print("stays in the buffer")
for _ in range(3):
    print_line("for nobody")
table_console().print("a table")
print("done", file=sys.stderr)
"""


def test_a_process_outlives_its_reader():
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    assert process.stdout.readline() == "first\n"
    process.stdout.close()
    process.stdin.write("go on\n")
    process.stdin.close()
    errors = process.stderr.read()
    assert (process.wait(timeout=60), errors) == (0, "done\n")


def test_a_table_whose_reader_has_ended_ends_nothing():
    program = (
        "import sys\nfrom spanbert_tf.console import table_console\nsys.stdin.read()\n"
        "for _ in range(2):\n    table_console().print('a table')\nsys.exit(7)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", program], **pipes)
    child.stdout.close()
    child.stdin.close()
    assert (child.wait(), child.stderr.read()) == (7, b"")
