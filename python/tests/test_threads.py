"""Threads that use the library at once. With a free-threaded interpreter nothing else keeps them
apart; with another one these are tests all the same."""

import threading

import numpy as np
import pytest

import pagetide
from pagetide import errors

THREADS = 8


def together(work, count=THREADS):
    """Runs `work(number)` in so many threads that begin at once; raises what one of them raised."""
    start, failed = threading.Barrier(count), []

    def run(number):
        try:
            start.wait()
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if failed:
        raise failed[0]


def test_threads_fault_at_once_on_their_own_pages_and_on_each_others():
    table = pagetide.zeros((THREADS * 256, 512), resident="2M")

    def work(number):
        mine = table[number::THREADS]
        for turn in range(1, 6):
            mine += number
            # Pages of another thread's, which it writes at the same time.
            other = (number + 1) % THREADS
            assert (table[other::THREADS] % max(other, 1) == 0).all()
            assert (mine == number * turn).all()

    together(work)
    seen = pagetide.region_of(table).stats()
    assert seen["resident_bytes_max"] <= 2 << 20
    assert seen["evictions"] > THREADS * 256 and seen["fetched_pages"] > THREADS * 256


def test_threads_make_and_drop_arrays_and_ask_about_one():
    shared = pagetide.full((64, 512), 7, resident="128K")

    def work(number):
        for turn in range(10):
            own = pagetide.full((16, 512), number, resident="32K")
            own += turn
            region = pagetide.region_of(own)
            region.set_budget(f"{32 + 4 * turn}K")
            with pagetide.region_of(shared).pin(shared[number : number + 1]):
                assert (shared[number] == 7).all()
            region.evict()
            assert (own == number + turn).all()
            assert region.stats()["evictions"] > 0

    together(work)
    # No pin is left.
    region = pagetide.region_of(shared)
    region.evict()
    assert region.stats()["resident_bytes"] == 0


def test_threads_allocate_in_one_arena():
    with pagetide.numpy(resident="2M") as arena:
        pass

    def work(number):
        with arena:
            kept = []
            for turn in range(20):
                a = np.full(40_000, number * 100 + turn)
                kept = [*kept[-3:], a]
                b = a + 1
                assert (b - a == 1).all()
                assert all((one == one[0]).all() for one in kept)

    together(work)
    assert arena.stats()["arrays"] == 0
    assert arena.stats()["evictions"] > 0


def test_a_handle_used_by_many_threads_gives_errors_and_no_crash():
    tables = [pagetide.zeros((64, 512), resident="64K") for _ in range(4)]
    tracker = pagetide.DirtyTracker(tables[0])
    taken, refused = [], []

    def work(number):
        for turn in range(20):
            tables[0][number * 8 : number * 8 + 8] = turn
            taken.extend(tracker.take())
            try:
                pagetide.region_of(tables[1 + turn % 3]).close()
            except errors.InUseError as error:
                refused.append(error)

    together(work)
    tracker.close()
    # Nothing that was written is in no answer.
    told = np.zeros(64 * 512, bool)
    for part in taken:
        told[part] = True
    assert told.all()
    assert len(refused) == THREADS * 20


def test_an_error_that_is_made_while_another_thread_calls_holds_nobody_up(python):
    """An exception is made by the interpreter, which may run other threads meanwhile: those must
    not wait, with the interpreter, for what the first one holds."""
    done = python(
        """
        import sys, threading
        from pagetide import Region, errors
        sys.setswitchinterval(1e-6)
        region = Region("64K")
        kept = memoryview(region)

        def close():
            for _ in range(3000):
                try:
                    region.close()
                except errors.InUseError:
                    pass

        def ask():
            for _ in range(3000):
                assert not region.closed and region.stats()["budget_bytes"] and repr(region)
                memoryview(region).release()

        threads = [threading.Thread(target=work) for work in (close, ask, close, ask)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print("end")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_snapshots_of_several_threads(tmp_path):
    def work(number):
        table = pagetide.full((64, 512), number, resident="64K")
        first = pagetide.snapshot(tmp_path / f"{number}-one", table=table)
        table[3] = 99
        pagetide.snapshot(tmp_path / f"{number}-two", since=first, table=table)
        restored = pagetide.restore(tmp_path / f"{number}-two")
        restored.wait()
        assert (restored["table"][3] == 99).all() and (restored["table"][4:] == number).all()

    together(work, 4)



ENDS = {
    "in calls": """
        def work():
            while True:
                region.evict()
                region.pin(array[:1]).release()
        """,
    "in calls that fail": """
        sys.setswitchinterval(1e-5)
        def work():
            while True:
                try:
                    region.pin()
                except pagetide.errors.PinError:
                    pass
        """,
}


@pytest.mark.parametrize("work", ENDS)
def test_daemon_threads_do_not_keep_the_interpreter_from_ending(python, work):
    program = f"""
        import sys, threading, time
        import pagetide
        array = pagetide.zeros((64, 512), resident="64K")
        region = pagetide.region_of(array)
        {ENDS[work]}
        for _ in range(6):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.1)
        print("end")
        """
    for _ in range(6):
        done = python(program)
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_handlers_of_the_end_may_wait_for_threads_that_are_in_calls(python):
    done = python(
        """
        import atexit, os, threading, time
        wanted, at_work = True, threading.Event()

        def end():
            global wanted
            wanted = False
            worker.join()
            child = os.fork()
            if child == 0:
                print(int(pagetide.full(10, 3).sum()), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            print("joined")

        atexit.register(end)  # So it comes after what the package has registered.
        import pagetide
        array = pagetide.zeros((64, 512), resident="64K")

        def work():
            while wanted:
                pagetide.region_of(array).evict()
                at_work.set()

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        at_work.wait()
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "30\njoined\n", "")
