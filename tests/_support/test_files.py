"""Files are whole or absent, whatever happens while they are written."""

import errno
import os
import signal
from pathlib import Path

import pytest

from commands import interpreter
from pyrobbb._support.files import locked, make_folder, replacing, write_text


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("half")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent  # one file system: the renaming is one step
    assert path.read_text() == "half"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_read_only_file_system_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There even the removal of what was never written fails, by an error of its own."""

    def refused(*given: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "the part")

    for name in ("write_text", "unlink"):
        monkeypatch.setattr(Path, name, refused)
    with pytest.raises(OSError, match=r"cannot write \S+check.json: Read-only"):
        write_text(tmp_path / "check.json", "whole")


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.txt") as one, replacing(tmp_path / "a.txt") as two:
        assert one != two
        one.write_text("one")
        two.write_text("two")
    assert (tmp_path / "a.txt").read_text() == "one"  # the last to finish


def test_text_is_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "µ, σ\n")
    assert (tmp_path / "a.txt").read_bytes() == "µ, σ\n".encode()
    write_text(tmp_path / "a.txt", os.fsdecode(b"\xff"))  # of a file's name that is not UTF-8
    assert (tmp_path / "a.txt").read_text() == r"\udcff"


def test_a_link_to_nothing_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "gone")
    with pytest.raises(NotADirectoryError, match="run is a file or a broken link, not a folder"):
        make_folder(tmp_path / "run")


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    program = (
        "import os, signal, sys\n"
        "from pyrobbb._support.files import replacing\n"
        "with replacing(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    interpreter("-c", program, str(path), status=-signal.SIGKILL)
    assert path.read_text() == "old"


def test_a_locked_folder_is_refused_and_free_again_afterwards(tmp_path: Path) -> None:
    with locked(tmp_path):
        second = locked(tmp_path)
        with pytest.raises(BlockingIOError, match=f"another run is working in {tmp_path}"):
            second.__enter__()
    with locked(tmp_path):
        pass
