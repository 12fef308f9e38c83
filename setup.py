"""The packages of a wheel; everything else about the project stands in setup.cfg."""

from setuptools import find_namespace_packages, setup

# configs/ stands at the top of the repository, and inside the package once installed.
_CONFIGS = [f"spanbert_tf.configs.{name}" for name in find_namespace_packages("configs")]

setup(
    packages=find_namespace_packages(include=["data_prep*", "spanbert_tf*"]) + _CONFIGS,
    package_dir={"spanbert_tf.configs": "configs"},
)
