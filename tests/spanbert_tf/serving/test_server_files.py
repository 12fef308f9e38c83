"""The files beside an export can be used whatever its directory is called."""

import re
import shlex

import pytest
from tiny_models import tiny_model

from spanbert_tf.serving.server_files import write_readme, write_server_files
from spanbert_tf.tasks.text_embedding import TextEmbedding


@pytest.mark.parametrize("name", ["served", "my model's", 'a "b" $HOME', "modèle"])
def test_any_name_is_quoted(name, tmp_path):
    write_server_files(str(tmp_path), name)
    served = TextEmbedding().served(tiny_model("text_embedding"), 1)
    write_readme(str(tmp_path), served.readme(name))
    config = (tmp_path / "models.config").read_text(encoding="utf-8")
    # As Python reads them, which agrees with protocol buffers' text.
    assert [eval(text) for text in re.findall(r'(?:name|base_path): (".*")', config)] == [
        name,
        f"/models/{name}",
    ]
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    readme = readme.replace("\\\n", "")  # shlex does not join lines
    docker, rest = (shlex.split(part) for part in re.findall(r"```bash\n(.*?)```", readme, re.S))
    assert f"$PWD:/models/{name}" in docker
    assert f"--model_config_file=/models/{name}/models.config" in docker
    assert f"--batching_parameters_file=/models/{name}/batching_parameters.txt" in docker
    assert len(docker) == 13
    assert rest[:2] == ["curl", "-d"] and len(rest) == 4
    assert re.fullmatch(r"http://localhost:8501/v1/models/[\w%]+:predict", rest[3])
    for program in re.findall(r"```python\n(.*?)```", readme, re.S):
        compile(program, "README.md", "exec")
