"""What pyproject.toml cannot say of the wheel: tools/packaging/wheel_build.py does it."""

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
