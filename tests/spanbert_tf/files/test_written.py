import os

import pytest

from spanbert_tf.files.written import describe_size, print_written


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0.0 kB"), (1_234, "1.2 kB"), (99_999, "100.0 kB"), (100_000, "0.1 MB"),
     (437_951_328, "438.0 MB"), (1_340_000_000, "1,340.0 MB")],
)  # fmt: skip
def test_sizes_are_read_in_megabytes(num_bytes, text):
    assert describe_size(num_bytes) == text


def test_what_was_written_is_followed_by_commands_to_copy(tmp_path, capsys):
    output = tmp_path / "my records"
    (output / "inner").mkdir(parents=True)
    (output / "a").write_bytes(bytes(1_000_000))
    (output / "inner" / "b").write_bytes(bytes(500_000))
    os.symlink(output / "a", output / "link")  # is counted where it leads
    print_written(str(output), ["spanbert-tf", "inspect", str(output)], ["x", "PRESET"])
    print_written(str(output / "a"))
    print_written(str(output), contents="preset/, logs/")
    assert capsys.readouterr().out.splitlines() == [
        f"{output}: 2 files, 1.5 MB",
        "Next:",
        f"  spanbert-tf inspect '{output}'",
        "  x PRESET",
        f"{output / 'a'}: 1.0 MB",
        f"{output}: preset/, logs/, 1.5 MB",
    ]
