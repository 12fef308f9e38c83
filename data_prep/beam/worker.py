"""A worker process of Beam's local runner that logs errors only: `python -m data_prep.beam.worker`.

Beam's own entry point logs each step of its start.
"""

import logging
import sys

logging.disable(logging.WARNING)

from apache_beam.runners.worker import sdk_worker_main  # noqa: E402

if __name__ == "__main__":
    sdk_worker_main.main(sys.argv)
