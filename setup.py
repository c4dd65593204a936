"""What pyproject.toml cannot say of the wheel: tools/wheel/wheel_build.py does it."""

from setuptools import setup
from wheel_build import COMMANDS, NativeDistribution

setup(cmdclass=COMMANDS, distclass=NativeDistribution)
