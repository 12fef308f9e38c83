"""A wheel has every file of the packages, and the entry points."""

import configparser
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("spanbert_tf", "data_prep", "configs")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
ENTRY_POINTS = "spanbert_tf-{}.dist-info/entry_points.txt"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what a wheel is made of; a build writes folders beside it."""
    copy = tmp_path_factory.mktemp("wheel") / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def test_a_wheel_has_every_file_and_the_entry_points(source, tmp_path):
    files = {
        path.relative_to(source).as_posix()
        for folder in FOLDERS
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    expected = {f"spanbert_tf/{file}" if file.startswith("configs/") else file for file in files}
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    stated = configparser.ConfigParser()
    stated.read(source / "setup.cfg")
    built = configparser.ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        assert expected <= set(archive.namelist())
        version = stated["metadata"]["version"]
        built.read_string(archive.read(ENTRY_POINTS.format(version)).decode())
    for group, lines in stated["options.entry_points"].items():
        wanted = dict(line.split(" = ") for line in lines.strip().splitlines())
        assert dict(built[group]) == wanted
