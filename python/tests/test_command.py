"""The command that the wheel brings along, and what the package itself promises."""

import os
import subprocess
import sys
import sysconfig

import pytest

import pagetide

pytestmark = pytest.mark.anywhere


def beside_python(name):
    return os.path.join(os.path.dirname(sys.executable), name)


def test_the_command_works_from_the_environment_alone():
    for command in [[beside_python("pagetide")], [sys.executable, "-m", "pagetide"]]:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.startswith("pagetide "), done
        done = subprocess.run([*command, "run", "--nonsense"], capture_output=True, text=True)
        assert done.returncode != 0 and "--nonsense" in done.stderr


def test_a_program_runs_under_it():
    try:
        pagetide.zeros(1)
    except pagetide.errors.StartError as error:
        pytest.skip(f"no region can be made here: {error}")
    program = "import array; a = array.array('d', range(3_000_000)); print(sum(a))"
    run = [beside_python("pagetide"), "run", "--resident", "16M", "--", sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "4499998500000.0\n", done


def test_numpy_is_not_imported_before_it_is_needed(python):
    done = python("import sys, pagetide; print('numpy' in sys.modules, 'json' in sys.modules)")
    assert done.stdout == "False False\n", done


def test_a_free_threaded_interpreter_stays_one(python):
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this interpreter has a GIL")
    done = python("import sys, pagetide._pagetide; print(sys._is_gil_enabled())")
    assert done.stdout == "False\n", done


def test_every_public_name_says_what_it_is():
    for name in pagetide.__all__:
        assert getattr(pagetide, name).__doc__, name


PROGRAM = """
import numpy as np
import pagetide
from pagetide import errors

table: np.ndarray = pagetide.zeros((10, 10), "f4", resident="1M", store="ram:")
region = pagetide.region_of(table)
with region.pin(table[3:]) as pin:
    released: bool = pin.released
region.set_budget(1 << 20)
try:
    pagetide.load("x.npy")
except errors.ShapeError as error:
    number: int = error.bytes
"""


def test_the_package_itself_is_typed():
    if not os.path.exists(beside_python("mypy")):
        pytest.skip("mypy is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "-p", "pagetide"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("checker", ["mypy --strict", "pyright"])
def test_type_checkers_accept_it(checker, tmp_path):
    name, *options = checker.split()
    if not os.path.exists(beside_python(name)):
        pytest.skip(f"{name} is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}
    command = [beside_python(name), *options, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    if "nodeenv" in done.stderr or "npm" in done.stderr:
        pytest.skip("pyright cannot get node")
    assert done.returncode == 0, done.stdout + done.stderr
