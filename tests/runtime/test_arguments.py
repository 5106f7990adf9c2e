import pytest

from statewise.runtime.arguments import Parser, with_flags


def parser():
    made = Parser("bake", "Bakes.")
    made.add_argument("--out", metavar="DIR")
    made.add_argument("--no-salt", dest="salt", action="store_false")
    made.add_argument("--oven-heat", type=int)
    return made


def test_arguments_in_messages_become_flags_of_the_command_that_runs():
    parser().split(["--out", "x", "--top.crust=2", "--seeds", "3"])
    message = "choose another `out`, set `oven_heat` or `salt` lower, not `sugar`, or more `seeds`: `statewise out`"
    wanted = "choose another --out, set --oven-heat or --no-salt lower, not `sugar`, or more --seeds: `statewise out`"
    assert with_flags(message) == wanted
    Parser("boil", "Boils.").parse_args([])
    assert with_flags(message) == message


def test_near_misses_of_options_are_named():
    with pytest.raises(ValueError, match=r"unknown option '--oven-head': did you mean --oven-heat\?.*bake --help"):
        parser().parse_args(["--oven-head", "3"])
