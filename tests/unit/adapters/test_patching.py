"""An attribute that was replaced for a while is exactly what it was."""

from types import SimpleNamespace
from typing import Any

import pytest

from ttrace.adapters.patching import guarding, patched, replaced


class Base:
    def method(self, x: int) -> int:
        return x + 1

    @classmethod
    def made(cls, x: int) -> tuple[object, ...]:
        return cls.__name__, x

    @staticmethod
    def static(x: int) -> int:
        return x * 2


class Derived(Base):
    pass


def add_hundred(original: Any, *args: Any) -> Any:
    result = original(*args)
    return (*result, 100) if isinstance(result, tuple) else result + 100


@pytest.mark.parametrize("owner", [Base, Derived])
@pytest.mark.parametrize("name", ["method", "made", "static"])
def test_what_a_class_had_is_there_again_own_or_inherited(owner: type, name: str) -> None:
    before = dict(vars(owner))
    with patched(owner, name, add_hundred):
        assert name in vars(owner)
    assert dict(vars(owner)) == before
    assert all(vars(owner)[key] is value for key, value in before.items())


def test_the_first_argument_of_a_method_is_the_object() -> None:
    with patched(Base, "method", add_hundred):
        assert Base().method(1) == 102
        assert Derived().method(1) == 102
    assert Base().method(1) == 2


def test_a_class_method_knows_the_class_it_is_called_on() -> None:
    with patched(Base, "made", add_hundred):
        assert Derived.made(1) == ("Derived", 1, 100)
        assert Base().made(1) == ("Base", 1, 100)
    with patched(Derived, "made", add_hundred):
        assert Derived.made(1) == ("Derived", 1, 100)
        assert Base.made(1) == ("Base", 1)


def test_a_static_method_stays_one() -> None:
    with patched(Derived, "static", add_hundred):
        assert Derived.static(1) == Derived().static(1) == 102
        assert Base.static(1) == 2


def test_an_object_is_patched_alone() -> None:
    one, other = Base(), Base()
    with patched(one, "method", add_hundred):
        assert (one.method(1), other.method(1)) == (102, 2)
    assert vars(one) == {}


def test_patches_nest() -> None:
    owner = SimpleNamespace(f=lambda: 0)
    original = owner.f
    with patched(owner, "f", add_hundred):
        with patched(owner, "f", lambda inner: inner() + 1):
            assert owner.f() == 101
        assert owner.f() == 100
    assert owner.f is original


def test_a_patch_takes_what_is_there_when_it_is_opened() -> None:
    owner = SimpleNamespace(f=lambda: 0)
    later = patched(owner, "f", add_hundred)
    with patched(owner, "f", lambda inner: inner() + 1), later:
        assert owner.f() == 101


def test_an_exception_passes_and_everything_is_as_before() -> None:
    def fail(original: Any, *_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), patched(Derived, "method", fail):
        Derived().method(1)
    assert "method" not in vars(Derived)


def test_a_name_that_is_not_there_is_no_patch() -> None:
    with pytest.raises(AttributeError, match="mehtod"), patched(Base, "mehtod", add_hundred):
        pass


def test_a_patched_function_keeps_its_name_and_signature() -> None:
    with patched(Base, "method", add_hundred):
        assert Base.method.__qualname__ == "Base.method"


def test_a_closure_is_patched_through_its_cell() -> None:
    def make() -> Any:
        def inner() -> int:
            return 1

        return lambda: inner()

    outer = make()
    (cell,) = outer.__closure__
    with patched(cell, "cell_contents", add_hundred):
        assert outer() == 101
    assert outer() == 1


def test_a_value_is_replaced_also_where_there_was_none() -> None:
    owner = SimpleNamespace(kept=1)
    with replaced(owner, "kept", 2), replaced(owner, "new", None):
        assert vars(owner) == {"kept": 2, "new": None}
    assert vars(owner) == {"kept": 1}


class TestGuarded:
    """A fault of who watches is his alone."""

    def call(self, around: Any, original: Any = None) -> tuple[Any, list[str]]:
        told: list[str] = []
        owner = SimpleNamespace(f=original or (lambda x: x + 1))
        with guarding(lambda where, error: told.append(f"{where}: {error}")):
            patch = patched(owner, "f", around)
            patch.__enter__()
        try:
            return owner.f(1), told
        finally:
            patch.__exit__(None, None, None)

    def test_before_the_original_is_called(self) -> None:
        def around(original: Any, x: int) -> int:
            raise ValueError("ours")

        result, told = self.call(around)
        assert result == 2
        assert told == ["TestGuarded.test_before_the_original_is_called.<locals>.around: ours"]

    def test_after_the_original_was_called_it_is_not_called_again(self) -> None:
        calls = []

        def original(x: int) -> int:
            calls.append(x)
            return x + 1

        def around(original: Any, x: int) -> int:
            original(x + 10)
            raise ValueError("ours")

        result, told = self.call(around, original)
        assert (result, calls, len(told)) == (12, [11], 1)

    def test_an_exception_of_the_original_is_the_very_one(self) -> None:
        error = KeyError("theirs")

        def original(x: int) -> int:
            raise error

        def around(original: Any, x: int) -> int:
            try:
                return int(original(x))
            finally:
                raise ValueError("ours")

        with pytest.raises(KeyError) as caught:
            self.call(around, original)
        assert caught.value is error
        assert (error.__cause__, error.__context__) == (None, None)

    def test_what_ends_a_process_passes(self) -> None:
        def around(original: Any, x: int) -> int:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.call(around)

    def test_wrong_arguments_are_told_by_the_original(self) -> None:
        def around(original: Any, x: int, y: int) -> int:
            return int(original(x, y))

        assert self.call(around)[0] == 2

    def test_nobody_is_guarding_where_bugs_are_planted(self) -> None:
        def around(original: Any, x: int) -> int:
            raise ValueError("planted")

        owner = SimpleNamespace(f=lambda x: x)
        with patched(owner, "f", around), pytest.raises(ValueError, match="planted"):
            owner.f(1)
