"""Arrays in regions: plain numpy arrays, within the budget, for as long as anything uses them."""

import errno
import gc
import os
import socket
import threading
import weakref

import numpy as np
import pytest

import pagetide
from pagetide import errors

PAGE = 4096


def stats(array):
    return pagetide.region_of(array).stats()


def test_what_is_written_reads_back_and_the_budget_holds():
    table = pagetide.empty((4000, 1000), resident="1M")
    assert type(table) is np.ndarray and table.flags.writeable and table.flags.c_contiguous
    assert not table[::500].any(), "new memory is zeros"
    table[:] = np.arange(4000)[:, None] + np.random.default_rng(1).random(1000)
    copy = np.arange(4000)[:, None] + np.random.default_rng(1).random(1000)
    assert (table == copy).all()
    seen = stats(table)
    assert seen["resident_bytes_max"] <= 1 << 20
    assert seen["evictions"] > 7000 and seen["fetched_pages"] > 7000


def test_the_thread_that_touches_a_page_can_serve_itself(tmp_path):
    table = pagetide.empty((4000, 1000), resident="2M", delivery="signal")
    copy = np.random.default_rng(1).random((4000, 1000))
    table[:] = copy
    threads = [threading.Thread(target=table[part::4].sum) for part in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert (table == copy).all()
    region = pagetide.region_of(table)
    assert region.stats()["resident_bytes_max"] <= 2 << 20
    # The kernel does not wait for a page: a call that is given one that is missing fails.
    copy.tofile(tmp_path / "copy")
    region.evict()
    with open(tmp_path / "copy", "rb", 0) as file:
        with pytest.raises(OSError) as caught:
            file.readinto(table[:10])
        assert caught.value.errno == errno.EFAULT
        with region.pin(table[:10]):
            table[:10] = 0
            assert file.readinto(table[:10]) == table[:10].nbytes
    assert (table == copy).all()
    np.save(tmp_path / "a.npy", copy)
    loaded = pagetide.load(tmp_path / "a.npy", resident="2M", delivery="signal")
    assert (loaded == copy).all() and stats(loaded)["resident_bytes_max"] <= 2 << 20
    with pytest.raises(ValueError, match="'thread' or 'signal', not 'post'"):
        pagetide.empty(1, delivery="post")
    with pytest.raises(errors.StoreError, match="store=5: expected a URI"):
        pagetide.empty(1, store=5)


@pytest.mark.parametrize("dtype", ["f4", "c16", "?", "U7", "M8[ns]", [("a", "u1"), ("b", "f8", 3)]])
def test_any_plain_dtype_and_order(dtype):
    array = pagetide.zeros((3, 5), dtype, order="F")
    assert array.dtype == np.dtype(dtype) and array.flags.f_contiguous
    assert (array == np.zeros((3, 5), dtype)).all()


def test_full_empty_shapes_and_scalars():
    assert (pagetide.full((3, 4), 7.5) == np.full((3, 4), 7.5)).all()
    assert pagetide.full(3, 7).dtype == np.full(3, 7).dtype
    assert pagetide.full(3, 7, "u1").dtype == np.uint8
    assert pagetide.empty((0, 9)).shape == (0, 9)
    assert pagetide.empty(()).shape == ()
    assert pagetide.zeros(np.int64(5)).shape == (5,)


def test_sizes_are_numbers_or_text():
    for size in ["1M", "1MiB", "1mb", "1024K", 1 << 20, "1048576", np.int64(1 << 20), "1.0M"]:
        assert stats(pagetide.zeros(1 << 20, resident=size))["budget_bytes"] == 1 << 20
    for size in ["1X", "", "M", -1, 0, "0", 1.5, None.__class__, "nan", "1e400", "1.0e400", 1 << 80]:
        with pytest.raises(errors.SizeError):
            pagetide.zeros(10, resident=size)


def test_the_region_of_an_array_and_of_its_views():
    array = pagetide.zeros((100, 100))
    region = pagetide.region_of(array)
    assert pagetide.region_of(array[3:, ::-2].T) is region
    assert pagetide.region_of(memoryview(array)) is region
    assert pagetide.region_of(region) is region
    for other in [array.copy(), np.zeros(3), [1, 2], None, 7]:
        with pytest.raises(errors.NotARegionError):
            pagetide.region_of(other)


def test_budget_prefetch_evict_pin_and_discard():
    array = pagetide.zeros((256, 512), resident="1M")  # a page a row
    array[:] = 3
    region = pagetide.region_of(array)
    region.set_budget("256K")
    assert region.stats()["resident_bytes"] <= 256 << 10
    region.evict()
    assert region.stats()["resident_bytes"] == 0
    before = region.stats()["fetched_pages"]
    with region.pin(array[7:9]) as pin:
        assert not pin.released
        region.evict()
        assert region.stats()["resident_bytes"] == 2 * PAGE
    assert pin.released
    region.evict(slice(7 * PAGE, 9 * PAGE))
    assert region.stats()["resident_bytes"] == 0
    assert region.stats()["fetched_pages"] == before + 2
    region.discard(array[10:20])
    assert not array[10:20].any() and (array[:10] == 3).all() and (array[20:] == 3).all()
    region.prefetch((0, PAGE))


def test_a_pin_kept_after_the_end_keeps_the_memory_and_is_an_error_to_enter():
    array = pagetide.zeros(10_000, resident="1M")
    region = pagetide.region_of(array)
    pin = region.pin(array)
    gone = weakref.ref(region)
    with pytest.raises(errors.InUseError):
        region.close()
    del array, region
    gc.collect()
    assert gone() is None
    pin.release()
    pin.release()
    with pytest.raises(errors.PinError, match="released"):
        pin.__enter__()


def test_pins_that_do_not_fit_say_how_many_pages():
    array = pagetide.zeros((256, 512), resident="64K")
    with pytest.raises(errors.PinError) as caught:
        pagetide.region_of(array).pin()
    assert (caught.value.pages, caught.value.budget_pages) == (256, 16)
    with pagetide.region_of(array).pin(array[:16]):
        pass


def test_a_page_that_has_all_its_pins_takes_no_more():
    region = pagetide.region_of(pagetide.zeros((512, 512), resident="2M"))
    pins = [region.pin((0, 4096)) for _ in range(254)]
    with pytest.raises(errors.PinError, match="254 times already") as caught:
        region.pin((0, 4096))
    assert caught.value.pins == 254
    pins[0].release()
    with region.pin((0, 4096)):
        pass


def test_a_budget_that_pins_do_not_leave_is_an_error(python):
    done = python(
        """
        import pagetide
        array = pagetide.zeros((64, 512))
        array[:] = 1
        region = pagetide.region_of(array)
        with region.pin():
            try:
                region.set_budget("64K")
            except pagetide.errors.BudgetError as error:
                print(error.budget_bytes, error)
        """
    )
    assert done.stdout.startswith("65536 the budget of 65536 bytes"), done


def test_memory_lives_as_long_as_the_last_view_and_no_longer():
    array = pagetide.zeros((1000, 1000), resident="1M")
    array[:] = 5
    view = array[10:20].T
    region = weakref.ref(pagetide.region_of(array))
    address = region().address
    del array
    gc.collect()
    assert (view == 5).all()

    def mapped():
        with open("/proc/self/maps") as maps:
            spans = (line.split()[0].split("-") for line in maps)
            return any(int(start, 16) <= address < int(end, 16) for start, end in spans)

    assert region() is not None and mapped()
    del view
    gc.collect()
    assert region() is None and not mapped()


def test_a_region_is_not_closed_while_it_is_used():
    region = pagetide.Region("1M", "64K")
    view = memoryview(region)
    view[5] = 9
    with pytest.raises(errors.InUseError) as caught:
        region.close()
    assert caught.value.buffers == 1
    view.release()
    region.close()
    region.close()
    assert region.closed
    for use in [region.stats, region.evict, region.pin, lambda: region.set_budget(4096)]:
        with pytest.raises(errors.ClosedError):
            use()
    with pytest.raises(errors.ClosedError):
        memoryview(region)
    with pagetide.Region(4096) as other:
        assert len(other) == 4096
    assert other.closed


def test_bad_dtypes_and_shapes():
    for dtype in [object, "O", [("a", "O")], "S", "V", "no such"]:
        with pytest.raises(errors.DTypeError):
            pagetide.empty(3, dtype)
    with pytest.raises(errors.ShapeError) as caught:
        pagetide.empty((1 << 30, 1 << 30))
    assert caught.value.bytes == 8 << 60
    # What may be asked for, but is not there to be mapped.
    for shape in [-1, (2, -3), "ab", 1.5, (2, None), None, 1 << 60]:
        with pytest.raises(errors.ShapeError):
            pagetide.empty(shape)
    # There is address space for it, but not for what is known of its pages.
    with pytest.raises(errors.ShapeError):
        pagetide.empty(1 << 45, "u1", resident="1M", overcommit=True)
    with pytest.raises(ValueError):
        pagetide.empty(3, order="K")
    assert pagetide.zeros(3, ("f4", (2, 5))).shape == np.zeros(3, ("f4", (2, 5))).shape


def test_bad_stores_and_stores_with_too_little_room(tmp_path):
    for store in ["nonsense:", "ram:?max=x", "file:/no/such/directory/x", "", "ram:?odd=1"]:
        with pytest.raises((errors.StoreError, errors.SizeError)):
            pagetide.zeros(10, store=store)
    with pytest.raises(errors.StoreFullError) as caught:
        pagetide.zeros(1 << 20, resident="1M", store="ram:?max=2M")
    assert (caught.value.needed_bytes, caught.value.capacity_bytes) == (7 << 20, 2 << 20)
    array = pagetide.zeros(1 << 20, resident="1M", store="ram:?max=2M", overcommit=True)
    array[:] = 4  # compresses
    assert (array == 4).all()
    array = pagetide.zeros(1 << 18, resident="256K", store=f"file:{tmp_path}")
    array[:] = np.arange(1 << 18)
    assert (array == np.arange(1 << 18)).all()
    with pytest.raises(ValueError, match="fifo"):
        pagetide.zeros(10, policy="random")


def test_a_store_that_is_full_in_spite_of_all_ends_the_process_with_a_message(python):
    done = python(
        """
        import numpy as np, pagetide
        array = pagetide.zeros(1 << 20, resident="1M", store="ram:?max=2M", overcommit=True)
        array[:] = np.random.default_rng(1).random(1 << 20)
        """
    )
    assert done.returncode == -9
    assert "pagetide: the ram store has taken no page for 10 s" in done.stderr


def test_more_regions_than_descriptors_or_threads_are_an_error_and_no_more(python):
    done = python(
        """
        import resource
        import pagetide
        for limit, what in [(resource.RLIMIT_NOFILE, 120), (resource.RLIMIT_AS, None)]:
            before = resource.getrlimit(limit)
            if what is None:
                what = int(open("/proc/self/statm").read().split()[0]) * 4096 + (1 << 30)
            resource.setrlimit(limit, (what, before[1]))
            arrays = []
            try:
                for _ in range(200):
                    arrays.append(pagetide.full(1000, 3.0))
                print("no limit")
            except pagetide.PagetideError as error:
                print(type(error).__name__)
            assert all((array == 3).all() for array in arrays)
            del arrays
            resource.setrlimit(limit, before)
            assert pagetide.full(1000, 3.0).sum() == 3000
        """
    )
    names = done.stdout.split()
    assert done.returncode == 0 and names[0] == "StartError" and len(names) == 2, done


def test_parts_that_are_none():
    array = pagetide.zeros((10, 512))
    region = pagetide.region_of(array)
    wrong = [(-1, 5), (9, 3), (0.5, 1), slice("a", None), slice(0, 1 << 40), slice(0, 9, 2)]
    for part in [*wrong, np.zeros(3)]:
        with pytest.raises(errors.RangeError):
            region.evict(part)
    for part in [[1], (1,), (1, 2, 3), "all", 5]:
        with pytest.raises(errors.NotARegionError):
            region.evict(part)


def test_system_calls_read_into_it_and_write_from_it(tmp_path):
    data = np.random.default_rng(3).integers(0, 256, 3 << 20, dtype="u1")
    path = tmp_path / "data"
    data.tofile(path)
    array = pagetide.empty(3 << 20, "u1", resident="256K")
    with open(path, "rb", buffering=0) as file:
        filled = 0
        while filled < array.size:
            filled += file.readinto(array[filled:])
    assert (array == data).all()
    array.tofile(path)
    assert (np.fromfile(path, "u1") == data).all()
    ours, theirs = socket.socketpair()
    received = pagetide.empty(3 << 20, "u1", resident="256K")

    def receive():
        got = 0
        while got < received.size:
            got += theirs.recv_into(received[got:])

    thread = threading.Thread(target=receive)
    thread.start()
    ours.sendall(array)
    thread.join()
    assert (received == data).all()


def test_threads_share_an_array():
    array = pagetide.zeros((8, 1 << 16), resident="1M")

    def work(row):
        for turn in range(5):
            array[row] += row + turn

    threads = [threading.Thread(target=work, args=(row,)) for row in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert (array == (np.arange(8) * 5 + 10)[:, None]).all()


def test_a_forked_child_gets_an_error_and_ends_well():
    array = pagetide.zeros(1 << 18, resident="256K")
    array[:] = 2
    region = pagetide.region_of(array)
    pin = region.pin(array[:512])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            calls = [region.stats, region.evict, region.pin, region.close, pin.__enter__]
            for call in calls:
                try:
                    call()
                except errors.ForkError as error:
                    assert error.pid == os.getpid() and error.pid_made == os.getppid()
                else:
                    os._exit(2)
            # Dropping what is the parent's is no use of it; new memory works.
            del array, region, pin, calls, call
            gc.collect()
            mine = pagetide.zeros(1 << 18, resident="256K")
            mine[:] = 1
            code = 0 if (mine == 1).all() else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (array == 2).all()


def test_touching_it_in_a_forked_child_says_why_it_ends(python):
    done = python(
        """
        import os, pagetide
        array = pagetide.zeros(1 << 18)
        child = os.fork()
        if child == 0:
            array[5] = 1
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert done.stdout == "-11\n"
    assert "a forked child" in done.stderr and "spawn" in done.stderr


def test_other_libraries_take_them():
    array = pagetide.zeros((1000, 4), resident="16K")
    array[:] = np.arange(4000).reshape(1000, 4)
    assert (np.from_dlpack(array) == array).all()
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(array, columns=list("abcd"), copy=False)
    assert np.shares_memory(frame["a"].to_numpy(), array)
    assert frame["b"].sum() == array[:, 1].sum()


def test_pyarrow_takes_them():
    pyarrow = pytest.importorskip("pyarrow")
    array = pagetide.zeros(1 << 16, resident="64K")
    array[:] = np.arange(1 << 16)
    buffer = pyarrow.foreign_buffer(array.ctypes.data, array.nbytes, base=array)
    column = pyarrow.Array.from_buffers(pyarrow.float64(), array.size, [None, buffer])
    import pyarrow.compute

    assert pyarrow.compute.sum(column).as_py() == array.sum()


def test_long_calls_let_other_threads_run():
    """They would deadlock if a fault or a call held the interpreter: a thread waits in each."""
    array = pagetide.zeros((2048, 512), resident="256K")
    array[:] = 1
    region = pagetide.region_of(array)
    stop = threading.Event()
    turns = [0]

    def count():
        while not stop.is_set():
            turns[0] += 1
            stop.wait(0.0001)

    thread = threading.Thread(target=count)
    thread.start()
    for _ in range(20):
        region.evict()
        region.set_budget("128K")
        assert array.sum() == 2048 * 512
    stop.set()
    thread.join()
    assert turns[0] > 0


def test_stats_are_those_of_the_pager():
    seen = stats(pagetide.zeros(10))
    for name in ["resident_bytes", "faults", "store_bytes", "fault_latency_ns"]:
        assert name in seen
