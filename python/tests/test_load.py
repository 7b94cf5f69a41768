"""Arrays that lie in a file: read on demand, and never written."""

import os

import numpy as np
import pytest

import pagetide
from pagetide import errors


@pytest.fixture
def saved(tmp_path):
    array = np.random.default_rng(5).random((3000, 100))
    np.save(tmp_path / "a.npy", array)
    return tmp_path / "a.npy", array


def test_it_is_the_files_array_and_writing_it_leaves_the_file_alone(saved):
    path, expected = saved
    before = path.read_bytes()
    array = pagetide.load(path, resident="128K")
    region = pagetide.region_of(array)
    assert type(array) is np.ndarray and array.shape == (3000, 100)
    assert region.stats()["fetched_pages"] == 0
    assert array[1500, 7] == expected[1500, 7]
    assert region.stats()["fetched_pages"] < 100
    assert (array == expected).all() and (array == expected).all()
    assert region.stats()["writebacks"] == 0 and region.stats()["clean_drops"] > 1000
    array[10:1000] = 0
    array[:, 5] = 7
    expected = expected.copy()
    expected[10:1000] = 0
    expected[:, 5] = 7
    region.evict()
    assert (array == expected).all()
    assert region.stats()["resident_bytes_max"] <= 128 << 10
    assert path.read_bytes() == before


@pytest.mark.parametrize("order", "CF")
def test_fortran_order_versions_and_raw_data(tmp_path, order):
    expected = np.asarray(np.random.default_rng(6).random((70, 90)), order=order)
    for version in [(1, 0), (2, 0)]:
        with open(tmp_path / "b.npy", "wb") as file:
            np.lib.format.write_array(file, expected, version)
        array = pagetide.load(tmp_path / "b.npy")
        assert (array == expected).all() and array.flags.fnc == (order == "F")
    named = np.zeros((70, 90), [("größe", "f8"), ("名", "i4")], order)
    named["größe"] = expected
    with pytest.warns(UserWarning, match="format 3.0"):
        np.save(tmp_path / "n.npy", named)
    array = pagetide.load(os.fsencode(tmp_path / "n.npy"))
    assert (array["größe"] == expected).all() and array.flags.fnc == (order == "F")
    assert pagetide.region_of(array).stats()["managed_bytes"] >= named.nbytes
    for offset in [0, 3, 4096, 5000]:
        (tmp_path / "raw").write_bytes(b"x" * offset + expected.tobytes("A"))
        options = dict(dtype="f8", offset=offset, order=order)
        array = pagetide.load(tmp_path / "raw", shape=(70, 90), **options)
        assert (array == expected).all()
        array = pagetide.load(tmp_path / "raw", dtype="f8", offset=offset)
        assert (array == expected.ravel("K")).all()


def test_empty_arrays(tmp_path):
    np.save(tmp_path / "e.npy", np.zeros((0, 3)))
    assert pagetide.load(tmp_path / "e.npy").shape == (0, 3)


def test_what_is_no_array_is_an_error(tmp_path, saved):
    path, _ = saved
    with pytest.raises(errors.FileFormatError, match="offset=-1: expected a byte"):
        pagetide.load(path, dtype="u1", offset=-1)
    with pytest.raises(errors.FileFormatError, match="offset=8.*dtype is to be given"):
        pagetide.load(path, offset=8)
    os.mkfifo(tmp_path / "pipe")
    for other in [tmp_path / "pipe", tmp_path, "/dev/zero"]:
        with pytest.raises(errors.FileFormatError, match="no regular file"):
            pagetide.load(other)
    (tmp_path / "text").write_text("this is no array")
    with pytest.raises(errors.FileFormatError, match="dtype"):
        pagetide.load(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        pagetide.load(tmp_path / "none.npy")
    os.truncate(path, 100_000)
    with pytest.raises(errors.FileFormatError, match="100000 bytes"):
        pagetide.load(path)
    np.save(tmp_path / "o.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(errors.DTypeError):
        pagetide.load(tmp_path / "o.npy")
    with pytest.raises(errors.FileFormatError):
        pagetide.load(path, dtype="u1", shape=200_000)
    with pytest.raises(errors.FileFormatError):
        pagetide.load(path, dtype="u1", offset=-5, shape=3)
    with pytest.raises(TypeError):
        pagetide.load(path, dtype="u1", offset=1.5)
    with pytest.raises((IsADirectoryError, errors.StoreError, errors.FileFormatError)):
        pagetide.load(tmp_path, dtype="u1")


def test_a_file_made_shorter_is_a_lost_page_with_a_message(python, saved):
    path, _ = saved
    done = python(
        f"""
        import os, pagetide
        array = pagetide.load({str(path)!r}, resident="64K")
        os.truncate({str(path)!r}, 4096)
        print(array[2999, 99])
        """
    )
    assert done.returncode == -7 and done.stdout == ""
    assert "the source file ends at byte" in done.stderr


def test_a_large_file_costs_nothing_up_front(tmp_path):
    path = tmp_path / "large.npy"
    with open(path, "wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 30,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + (8 << 30))
    with open("/proc/self/status") as status:
        before = [line for line in status if line.startswith("VmRSS")][0]
    array = pagetide.load(path, resident="16M")
    assert array[0] == 0 and array[-1] == 0 and array.shape == (1 << 30,)
    assert pagetide.region_of(array).stats()["fetched_pages"] <= 4
    with open("/proc/self/status") as status:
        after = [line for line in status if line.startswith("VmRSS")][0]
    # Its page words alone would be 16 MiB.
    assert int(after.split()[1]) - int(before.split()[1]) < 8 << 10, (before, after)


def test_a_loaded_array_is_tracked_and_saved(saved, tmp_path):
    path, expected = saved
    array = pagetide.load(path, resident="128K")
    with pagetide.DirtyTracker(array) as tracker:
        assert (array[:50] == expected[:50]).all() and tracker.take() == []
        array[2000] = 1
        array[2001, :5] = array[0, :5]
        ((found),) = tracker.take()
        assert found.start <= 200_000 and found.stop >= 200_105
        assert found.stop - found.start <= 3 * 512
    pagetide.snapshot(tmp_path / "s", array=array)
    assert (pagetide.restore(tmp_path / "s")["array"] == array).all()
    expected = expected.copy()
    expected[2000] = 1
    expected[2001, :5] = expected[0, :5]
    assert (array == expected).all()
