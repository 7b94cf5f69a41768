"""Unchanged numpy code in an arena."""

import asyncio
import gc
import os
import threading
import weakref

import numpy as np
import pytest

import pagetide
from pagetide import errors


def handler(array):
    try:
        from numpy._core.multiarray import get_handler_name
    except ImportError:
        from numpy.core.multiarray import get_handler_name
    return get_handler_name(array)


def test_unchanged_code_gives_the_same_within_the_budget():
    def work():
        a = np.arange(1 << 20, dtype="f8").reshape(1024, 1024)
        b = np.sin(a) @ a.T[:, :7]
        c = np.concatenate([a, a * 2], axis=1)
        c.sort(axis=1)
        return b, c[:, ::100].copy(), np.unique(c.astype("i4") % 1000)

    expected = work()
    with pagetide.numpy(resident="4M") as arena:
        found = work()
        seen = arena.stats()
    for a, b in zip(expected, found):
        assert np.allclose(a, b)
    assert seen["resident_bytes_max"] <= 4 << 20
    assert seen["used_bytes_max"] > 16 << 20 and seen["evictions"] > 4000
    assert handler(np.ones(1 << 20)) == "default_allocator"


def test_small_arrays_stay_with_malloc():
    with pagetide.numpy(resident="1M") as arena:
        small = [np.ones(1000) for _ in range(100)]
        assert arena.stats()["arrays"] == 0 and arena.stats()["faults"] == 0
        large = np.ones(8192)
        assert arena.stats()["arrays"] == 1 and arena.stats()["used_bytes"] == 65536
        assert pagetide.region_of(large[5:]) is arena.region
        with pytest.raises(errors.NotARegionError):
            pagetide.region_of(small[0])


def test_what_escapes_lives_on_and_the_arena_ends_with_it():
    with pagetide.numpy(resident="1M") as arena:
        kept = np.arange(1 << 18)
        small = np.arange(10)
    region = weakref.ref(arena.region)
    address = arena.region.address
    del arena
    gc.collect()
    assert (kept == np.arange(1 << 18)).all()
    kept += 1
    other = kept * 2  # is numpy's again
    assert handler(other) == "default_allocator" and kept[5] == 6
    del kept
    gc.collect()
    assert mapped(address), "a small array keeps it too"
    assert (small == np.arange(10)).all()
    del small
    gc.collect()
    assert region() is None and not mapped(address)


def mapped(address):
    with open("/proc/self/maps") as maps:
        spans = (line.split()[0].split("-") for line in maps)
        return any(int(start, 16) <= address < int(end, 16) for start, end in spans)


def test_what_is_freed_is_given_back():
    with pagetide.numpy(resident="4M") as arena:
        for _ in range(30):
            array = np.random.default_rng(1).random(1 << 20)
            assert arena.stats()["used_bytes"] == 8 << 20
            del array
            assert arena.stats()["retained_bytes"] <= 1 << 20
        seen = arena.stats()
        # Only what is still written back may be in the store.
        assert seen["store_pages"] < 600 and seen["used_bytes"] == 0
        kept = np.ones(1 << 14)
        temporary = np.ones(1 << 14)
        del temporary
        arena.purge()
        arena.region.evict()
        assert arena.stats()["retained_bytes"] == 0
        assert arena.stats()["store_pages"] == 32
        assert (kept == 1).all()


def test_zeros_are_zeros_wherever_they_lie():
    with pagetide.numpy(resident="1M") as arena:
        for size in [1 << 14, 1 << 16, 1 << 18]:
            for _ in range(10):
                dirt = np.full(size, 7.0)
                del dirt
                assert not np.zeros(size).any()
                assert not np.zeros(size // 2).any()


def test_arrays_that_grow_and_shrink_in_place():
    with pagetide.numpy(resident="1M"):
        array = np.arange(100)
        for size in [10_000, 100_000, 99_000, 60_000, 9_000, 5, 200_000]:
            before = array.copy()
            array.resize(size, refcheck=False)
            common = min(size, before.size)
            assert (array[:common] == before[:common]).all() and not array[common:].any()
        text = np.fromstring("1 " * 200_000, sep=" ")  # grows by realloc
        assert (text == 1).all() and text.size == 200_000


def test_more_than_the_size_is_a_memory_error_and_nothing_is_lost():
    with pagetide.numpy(resident="1M", size="8M") as arena:
        first = np.arange(1 << 19)
        with pytest.raises(MemoryError):
            np.ones(1 << 20)
        with pytest.raises(MemoryError):
            np.empty(1 << 50)
        with pytest.raises(MemoryError):
            first.resize(1 << 21, refcheck=False)
        assert first.sum() == (1 << 18) * ((1 << 19) - 1)
        del first
        assert np.ones(1 << 19).sum() == 1 << 19
        assert arena.stats()["used_bytes"] == 0


def test_the_store_bounds_the_size():
    with pagetide.numpy(resident="1M", store="ram:?max=7M") as arena:
        assert len(arena.region) == 8 << 20
    with pytest.raises(errors.StoreFullError):
        pagetide.numpy(resident="1M", store="ram:?max=7M", size="9M")
    with pagetide.numpy(resident="1M", store="ram:?max=7M", size="9M", overcommit=True):
        pass


def test_it_ends_with_the_block_and_nests():
    outer = pagetide.numpy(resident="1M")
    inner = pagetide.numpy(resident="1M")
    with pytest.raises(errors.ArenaError, match="not entered"):
        outer.__exit__()
    with pytest.raises(ZeroDivisionError):
        with outer:
            with inner, outer:
                array = np.ones(1 << 16)
            assert inner.stats()["arrays"] == 0 and outer.stats()["arrays"] == 1
            1 / 0
    assert handler(np.ones(1 << 16)) == "default_allocator"
    assert array.sum() == 1 << 16


def test_a_thread_enters_by_itself():
    seen = {}

    def work():
        seen["without"] = handler(np.ones(1 << 16))
        with arena:
            seen["within"] = handler(np.ones(1 << 16))

    with pagetide.numpy(resident="1M") as arena:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == {"without": "default_allocator", "within": "pagetide"}


def test_threads_allocate_and_free_at_random():
    arena = pagetide.numpy(resident="2M", size="256M", small="4K")
    wrong = []

    def work(seed):
        random = np.random.default_rng(seed)
        live = []
        with arena:
            for turn in range(300):
                if len(live) < 8:
                    size = int(random.integers(1, 60_000))
                    kind = int(random.integers(3))
                    array = np.zeros(size) if kind == 0 else np.empty(size)
                    if kind == 0 and array.any():
                        wrong.append(("zeros", seed, turn))
                    array[:] = turn * 100 + seed
                    live.append((array, turn * 100 + seed))
                else:
                    array, value = live.pop(int(random.integers(len(live))))
                    if not (array == value).all():
                        wrong.append((seed, turn))
        for array, value in live:
            if not (array == value).all():
                wrong.append(("end", seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
    gc.collect()
    assert arena.stats()["arrays"] == 0
    assert arena.stats()["resident_bytes_max"] <= 2 << 20


def test_a_forked_child_goes_on_with_malloc():
    with pagetide.numpy(resident="1M") as arena:
        mine = np.ones(1 << 18)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                array = np.arange(1 << 18)
                array = array * 2
                array.resize(1 << 19, refcheck=False)
                del mine
                try:
                    arena.stats()
                except errors.ForkError:
                    code = 0 if array.sum() == (1 << 18) * ((1 << 18) - 1) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert mine.sum() == 1 << 18


def test_a_forked_child_has_arenas_of_its_own():
    outer = pagetide.numpy(resident="1M")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with outer:
                assert np.ones(1 << 16).sum() == 1 << 16
            with pagetide.numpy(resident="1M") as mine:
                kept = np.ones(1 << 18)
                code = 0 if mine.stats()["arrays"] == 1 and mine.stats()["evictions"] else 2
            grandchild = os.fork()
            if grandchild == 0:
                with mine:
                    os._exit(int(np.ones(1 << 16).sum() != 1 << 16))
            code = code or os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
            code = code or int(kept.sum() != 1 << 18)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert outer.stats()["arrays"] == 0


def test_tasks_enter_by_themselves():
    """Of tasks that take turns in one thread, each leaves what it has entered."""
    shared, seen = pagetide.numpy(resident="1M"), {}

    async def one(entered, left):
        with shared:
            await entered.wait()
            seen["one within"] = handler(np.ones(1 << 16))
        seen["one after"] = handler(np.ones(1 << 16))
        left.set()

    async def other(entered, left):
        with pagetide.numpy(resident="1M") as own:
            with shared:
                entered.set()
                await left.wait()
            kept = np.ones(1 << 16)
            seen["other within"] = own.stats()["arrays"], kept.size
        seen["other after"] = handler(np.ones(1 << 16))

    async def both():
        events = asyncio.Event(), asyncio.Event()
        await asyncio.gather(one(*events), other(*events))

    asyncio.run(both())
    assert seen == {
        "one within": "pagetide",
        "one after": "default_allocator",
        "other within": (1, 1 << 16),
        "other after": "default_allocator",
    }
    inner = pagetide.numpy(resident="1M")
    with shared:
        with inner:
            with pytest.raises(errors.ArenaError, match="another one since"):
                shared.__exit__()
    assert handler(np.ones(1 << 16)) == "default_allocator"


def test_arrays_that_live_until_the_interpreter_ends(python):
    done = python(
        """
        import threading, time
        import numpy as np, pagetide
        from pagetide.lock import LockedFile
        arena = pagetide.numpy(resident="1M")
        arena.__enter__()
        kept, small = np.arange(1 << 18), np.arange(5)
        mine = pagetide.zeros(1000)
        view = pagetide.zeros(1000)[5:]
        tracker = pagetide.DirtyTracker(mine)
        snapshotter = pagetide.Snapshotter(view=view)
        pin = pagetide.region_of(kept).pin(kept[:10])

        def work():
            with arena:
                while True:
                    np.ones(1 << 16).sum()

        threading.Thread(target=work, daemon=True).start()
        class Late:
            def __del__(self):
                # Nothing of numpy's in Python: it may be gone by then.
                self.array.tobytes()
        late = Late()
        late.array = np.arange(1 << 17)
        time.sleep(0.2)
        print("end")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_generator_that_is_in_an_arena_when_the_interpreter_ends(python):
    done = python(
        """
        import numpy as np, pagetide

        def numbers():
            with pagetide.numpy(resident="1M"):
                while True:
                    yield np.arange(1 << 17)

        some = numbers()
        print(next(some)[-1])
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "131071\n", "")


def test_bad_arguments():
    for options in [dict(resident="x"), dict(resident=0), dict(resident="1M", small="x")]:
        with pytest.raises(errors.SizeError):
            pagetide.numpy(**options)
    with pytest.raises(errors.StoreError):
        pagetide.numpy(resident="1M", store="nonsense:")
    with pytest.raises(errors.ShapeError):
        pagetide.numpy(resident="1M", size=1 << 50, overcommit=True)


def test_pandas_in_an_arena():
    pandas = pytest.importorskip("pandas")

    def work():
        random = np.random.default_rng(2)
        frame = pandas.DataFrame(
            {"key": random.integers(0, 1000, 300_000), "value": random.random(300_000)}
        )
        joined = frame.merge(frame.groupby("key")["value"].mean().rename("mean"), on="key")
        return joined.sort_values(["key", "value"]).reset_index(drop=True)

    expected = work()
    with pagetide.numpy(resident="4M") as arena:
        found = work()
    pandas.testing.assert_frame_equal(expected, found)
    assert arena.stats()["evictions"] > 1000 and arena.stats()["resident_bytes_max"] <= 4 << 20
