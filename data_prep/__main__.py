"""`python -m data_prep X`, the same as `spanbert-tf prepare X`."""

import sys

from data_prep.cli import prepare
from spanbert_tf.command_line import quiet_libraries, run_command

if __name__ == "__main__":  # child processes import this module too
    quiet_libraries()
    run_command(prepare, "spanbert-tf prepare", sys.argv[1:])
