"""A run on a real file system that is too small: a tmpfs of its own, which needs root."""

import subprocess
import sys

import pytest

from spanbert_tf.config import load_config

ON_A_DISK = 'mount -t tmpfs -o size=$1 tmpfs "$2" && echo mounted && shift 2 && "$@"'


@pytest.mark.slow
@pytest.mark.parametrize(("size", "goes_on"), [("5m", False), ("20m", True)])
def test_run_is_refused_before_its_first_step(
    size, goes_on, tiny_overrides, tiny_records, tmp_path
):
    disk, config = tmp_path / "disk", tmp_path / "config.yaml"
    disk.mkdir()
    config.write_text(load_config("spanbert_base", tiny_overrides).to_yaml())
    command = [sys.executable, "-m", "spanbert_tf.cli", "pretrain", "--config", str(config)]
    command += ["--data", tiny_records, "--output", str(disk / "run")]
    child = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ON_A_DISK, "sh", size, str(disk), *command],
        capture_output=True,
        text=True,
    )
    if not child.stdout.startswith("mounted"):
        pytest.skip("no file system can be mounted here: it needs root")
    assert (child.returncode == 0, "step 2 of 12" in child.stdout) == (goes_on, goes_on)
    if not goes_on:
        (line,) = child.stderr.splitlines()
        assert f"{disk}/run: the run takes up to" in line
        assert "are free; free some space, lower training.max_checkpoints" in line
