"""Locked files and secrets."""

import errno
import os

import numpy as np
import pytest

from pagetide import errors
from pagetide.lock import LockedFile, SecretBytes

pytestmark = pytest.mark.anywhere


@pytest.fixture
def big(tmp_path):
    data = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype="u1")
    data.tofile(tmp_path / "big")
    return tmp_path / "big", data


def open_or_skip(*arguments, **options):
    try:
        return LockedFile(*arguments, **options)
    except errors.LockError as error:
        pytest.skip(f"memory cannot be locked here: {error}")


def test_a_locked_file_is_a_buffer_of_it(big):
    path, data = big
    with open_or_skip(path) as file:
        assert len(file) == 1 << 20
        array = np.frombuffer(file, "u1")
        assert (array == data).all() and not array.flags.writeable
        file.prefetch([(0, 4096), (8192, 12288)])
        file.load([(4096, 8192)])
        with pytest.raises(errors.InUseError) as caught:
            file.close()
        assert caught.value.buffers == 1
        del array
    assert file.closed
    with pytest.raises(errors.ClosedError):
        memoryview(file)
    with pytest.raises(errors.ClosedError):
        len(file)


def test_parts_modes_and_private_copies(big):
    path, data = big
    with open_or_skip(path, mode="full", offset=4096, length="8K") as file:
        assert bytes(memoryview(file)) == data[4096:12288].tobytes()
    with open_or_skip(path, writable=True) as file:
        view = memoryview(file)
        view[:3] = b"abc"
        view.release()
    assert path.read_bytes() == data.tobytes()
    told = []
    with open_or_skip(path) as file:
        file.fill(told.append)
        assert told == [1 << 20]
        with pytest.raises(ZeroDivisionError):
            file.fill(lambda _: 1 / 0)


def test_the_progress_of_a_file_may_ask_about_it(python, big):
    open_or_skip(big[0]).close()
    done = python(
        f"""
        from pagetide import errors
        from pagetide.lock import LockedFile
        file = LockedFile({str(big[0])!r})

        def tell(done):
            view = memoryview(file)
            file.load([(0, 4096)])
            print(done, len(file), file.closed, len(view))
            try:
                file.close()
            except errors.InUseError as error:
                print(error.buffers)

        file.fill(tell)
        file.fill(lambda _: file.close())
        """
    )
    said = (1 << 20, 1 << 20, False, 1 << 20)
    assert done.stdout.splitlines() == [" ".join(map(str, said)), "1"]
    assert "ClosedError" in done.stderr


def test_bad_files(tmp_path, big):
    with pytest.raises(FileNotFoundError):
        LockedFile(tmp_path / "none")
    for options in [dict(mode="x"), dict(access="x"), dict(offset=5), dict(offset=1 << 40)]:
        with pytest.raises((ValueError, OSError)):
            LockedFile(big[0], **options)
    with pytest.raises(OSError):
        LockedFile(tmp_path)
    with pytest.raises(OSError, match="expected less than") as caught:
        LockedFile(big[0], offset=1 << 40)
    assert caught.value.errno == errno.EINVAL


def test_more_than_the_limit_says_what_is_missing(python):
    done = python(
        """
        import os, resource
        from pagetide import errors
        from pagetide.lock import LockedFile
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            LockedFile("/bin/sh", mode="full")
        except errors.LockError as error:
            print(error.needed_bytes > 65536, error.in_use_bytes)
            print("LimitMEMLOCK" in str(error))
        """
    )
    assert done.stdout in ("True 0\nTrue\n",), done


def secret_or_skip(*arguments, **options):
    try:
        return SecretBytes(*arguments, **options)
    except errors.LockError as error:
        pytest.skip(f"memory cannot be locked here: {error}")


def test_a_secret_is_compared_grown_and_wiped():
    with secret_or_skip(100, b"key") as secret:
        assert secret == b"key" and secret != b"kez" and secret != "key"
        other = secret_or_skip(50, b"key")
        assert secret == other and secret == secret and secret != secret_or_skip(50)
        assert secret == memoryview(b"k_e_y_")[::2] and secret == bytearray(b"key")
        other.extend(memoryview(secret))
        assert other == b"keykey" and secret_or_skip(50) == b""
        for bad in (5, "x", memoryview(b"k_e_y_")[::2]):
            with pytest.raises((TypeError, BufferError)):
                secret.extend(bad)
        with pytest.raises(BufferError):
            secret.extend(secret)
        secret.extend(b"word")
        view = memoryview(secret)
        assert bytes(view) == b"keyword" and "key" not in repr(secret)
        view[0] = ord("K")
        for change in [lambda: secret.extend(b"x"), secret.clear, lambda: secret.resize(3)]:
            with pytest.raises(BufferError):
                change()
        view.release()
        assert secret == b"Keyword"
        secret.resize(3)
        assert secret == b"Key" and secret.intact and secret.max >= 100
        with pytest.raises(errors.SecretSizeError) as caught:
            secret.resize(1 << 20)
        assert caught.value.asked_bytes == 1 << 20
        with pytest.raises(TypeError):
            hash(secret)
    assert len(secret) == 0


def test_a_secret_in_a_forked_child():
    secret = secret_or_skip(100, b"key")
    absent = secret_or_skip(100, b"key", in_child="absent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            empty = len(secret) == 0 and len(absent) == 0
            secret.extend(b"mine")
            try:
                absent.extend(b"x")
            except errors.ForkError:
                code = 0 if empty and secret == b"mine" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert secret == b"key"


def test_bad_secrets():
    with pytest.raises(ValueError):
        SecretBytes(10, in_child="x")
    with pytest.raises(errors.SizeError):
        SecretBytes(0)
    with pytest.raises(errors.PagetideError):
        SecretBytes(1 << 60)
