"""Parts of the wheel that pyproject.toml cannot state: tools/packaging/wheel_build.py has them."""

import sys

from setuptools import setup
from wheel_build import COMMANDS, NativeDistribution, dependencies, version

sources = "sdist" in sys.argv
setup(
    version=version(sources),
    install_requires=dependencies(sources),
    cmdclass=COMMANDS,
    distclass=NativeDistribution,
)
