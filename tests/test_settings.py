"""What the environment says, what wins over it, and what is refused.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.errors import UsageError
from lattice_cli.options import Kernels
from lattice_cli.settings import KERNELS, check_serve_keys, read_api_key, read_home

pytestmark = pytest.mark.pure


def test_kernels_and_threads_come_from_the_environment() -> None:
    assert (read_home({}).kernels, read_home({}).threads) == ("fast", None)
    home = read_home({"LATTICE_KERNELS": "off", "LATTICE_THREADS": "3"})
    assert (home.kernels, home.threads) == ("off", 3)
    empty = read_home({"LATTICE_KERNELS": "", "LATTICE_THREADS": ""})
    assert (empty.kernels, empty.threads) == ("fast", None)


def test_the_command_line_wins_over_the_environment_even_over_nonsense_there() -> None:
    env = {"LATTICE_KERNELS": "nonsense", "LATTICE_THREADS": "nonsense"}
    home = read_home(env, kernels=Kernels.fast, threads=5)
    assert (home.kernels, home.threads) == ("fast", 5)
    assert type(home.kernels) is str


def test_the_option_knows_the_settings_values() -> None:
    assert tuple(Kernels) == KERNELS


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "1025", "٣", "9" * 5000])
def test_a_thread_count_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_home({"LATTICE_THREADS": value})
    assert caught.value.message == f"`LATTICE_THREADS` is `{value}`, and must be a number from 1 to 1024"
    assert caught.value.param == "LATTICE_THREADS"


@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_a_variable_for_keys_that_holds_none_is_no_open_door(value: str) -> None:
    """`LATTICE_API_KEY="$(cat key)"` where `cat` failed: the server had started without a key."""
    check_serve_keys({})
    check_serve_keys({"LATTICE_API_KEY": "a b"})
    with pytest.raises(UsageError, match="`LATTICE_API_KEY` is set and holds no key"):
        check_serve_keys({"LATTICE_API_KEY": value})


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        read_home({"LATTICE_KERNELS": "on"})
    assert caught.value.message == "`LATTICE_KERNELS` is `on`, and must be `off`, `exact` or `fast`"


def test_a_key_for_servers_elsewhere_is_ours_before_openais() -> None:
    assert read_api_key({"LATTICE_API_KEY": "a", "OPENAI_API_KEY": "b"}) == "a"
    assert read_api_key({"LATTICE_API_KEY": "", "OPENAI_API_KEY": "b"}) == "b"
    assert read_api_key({"OPENAI_API_KEY": ""}) is None
