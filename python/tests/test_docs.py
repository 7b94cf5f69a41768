"""The examples of docs/python.md and of the package do what they say."""

import doctest
import pathlib

import pytest

import pagetide
import pagetide._numpy

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"


def run(name, examples, globs):
    test = doctest.DocTestParser().get_doctest(examples, globs, name, name, 0)
    assert test.examples, name
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=said.append)
    if "LockError" in "".join(said):
        pytest.skip("memory cannot be locked here")
    assert not said, "".join(said)


def test_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The blocks alone: a fence would be taken for output.
    parts = PAGE.read_text().split("```python\n")[1:]
    run("python.md", "\n".join(part.split("```")[0] for part in parts), {})


@pytest.mark.parametrize("thing", [pagetide, pagetide._numpy.numpy])
def test_docstrings(thing):
    run(str(thing), thing.__doc__, {})
