"""The store keeps what was used last, within its limits."""

from ortolan.server.store import Store


def test_the_least_recently_used_entry_goes_first() -> None:
    store = Store(max_entries=2, max_bytes=100)
    store.put("a", b"1")
    store.put("b", b"2")
    assert store.get("a") == b"1"
    store.put("c", b"3")
    assert [store.get(key) for key in "abc"] == [b"1", None, b"3"]


def test_bytes_are_bounded() -> None:
    store = Store(max_entries=9, max_bytes=10)
    store.put("a", b"x" * 6)
    store.put("a", b"y" * 5)
    store.put("b", b"z" * 5)
    assert len(store) == 2
    store.put("c", b"w")
    assert (store.get("a"), len(store)) == (None, 2)
    store.put("d", b"x" * 11)
    assert len(store) == 0
    store.put("e", b"x" * 10)
    assert store.drop("e")
    assert not store.drop("e")
    store.put("f", b"x" * 10)
    assert store.get("f") is not None
